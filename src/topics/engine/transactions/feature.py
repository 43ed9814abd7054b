"""Transactions as checkpoints and recovery meet them (`engine.features`): a topic of the server's own keeps the books.

What is staged are its records, and so they are sealed, bounded in memory and recovered like any other. Its class is
`memory`: what is staged is worth nothing to anybody until it is committed, and a commit is synced by itself.
"""

from collections.abc import Callable

from topics.core.config import TopicConfig
from topics.core.durability import Durability
from topics.core.errors import TopicsError
from topics.core.names import TRANSACTIONS_TOPIC
from topics.engine.core import EngineCore
from topics.engine.features import Rebuild
from topics.engine.own_topic import Hidden
from topics.engine.results import PutResult
from topics.engine.topic import Topic
from topics.engine.transaction import Gate
from topics.engine.transactions.book import Book, SeqRange
from topics.engine.write.appending import creation_body, make_topic
from topics.engine.write.control import Put
from topics.formats.block import decode_block
from topics.formats.frame import Frame, FrameKind
from topics.formats.queue import Ending
from topics.formats.transaction import (
    PART_NAME,
    decode_begun,
    decode_committed,
    decode_ended,
    decode_part,
    decode_stage,
    encode_mark,
)

TOPIC_NAME = TRANSACTIONS_TOPIC
_CONFIG = TopicConfig(durability=Durability.MEMORY)


class TransactionFeature:
    name = PART_NAME
    kinds = frozenset((FrameKind.TXN_BEGIN, FrameKind.TXN_STAGE, FrameKind.TXN_END, FrameKind.TXN_COMMIT))

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self.book = Book()
        self._topic: Topic | None = None
        self._waiting: list[Callable[[Topic | TopicsError], None]] | None = None
        core.features.add(self)

    # Recovery and snapshots

    def replay(self, topic: Topic, frame: Frame, rebuild: Rebuild) -> None:
        if frame.kind is FrameKind.TXN_BEGIN:
            ranges = self.book.begin(decode_begun(frame.body))
        elif frame.kind is FrameKind.TXN_STAGE:
            # The records themselves were appended by whoever reads the log.
            staged, body = decode_stage(frame.body)
            block = decode_block(body)
            ranges = self.book.stage(staged, block.first_seq, block.count, block.payload_bytes)
        elif frame.kind is FrameKind.TXN_END:
            ranges = self.book.end(decode_ended(frame.body))
        else:
            ranges = self.book.commit(decode_committed(frame.body))
        self._adopt(topic)
        self.drop(topic, ranges)

    def save(self, topic: Topic) -> bytes:
        return encode_mark(self.book.part())

    def load(self, topic: Topic, part: bytes) -> None:
        self.book.load(decode_part(part))
        self._adopt(topic)

    def may_sleep(self, topic: Topic) -> bool:
        return False

    def settle(self) -> None:
        topic = self._core.by_name.get(TOPIC_NAME)
        if topic is not None:
            self._adopt(topic)
        for entry in self.book.open.values():
            entry.deadline = self._core.time.resumed(Ending(entry.touched_ms + entry.timeout_ms, entry.timeout_ms))

    def _adopt(self, topic: Topic) -> None:
        self._topic = topic
        topic.guard = topic.guard or Hidden()
        if not topic.parts or PART_NAME not in topic.parts:
            topic.parts = {**(topic.parts or {}), PART_NAME: self.book}

    # What live operations do as well

    def drop(self, topic: Topic, ranges: list[SeqRange]) -> None:
        """Takes away records that are staged for nothing any more."""
        if ranges:
            self._core.applier.delete(topic, 0, ranges)

    @property
    def topic(self) -> Topic | None:
        """The topic that keeps the books, once there is one."""
        topic = self._topic
        return topic if topic is not None and topic.created else None

    def with_topic(self, then: Callable[[Topic | TopicsError], None]) -> None:
        """Calls back with the topic that keeps the books. The first who asks makes it."""
        topic = self.topic
        if topic is not None:
            then(topic)
            return
        if self._waiting is not None:
            self._waiting.append(then)
            return
        core = self._core
        topic = make_topic(core, TOPIC_NAME, _CONFIG)
        core.path.check(topic)
        self._waiting = [then]
        self._adopt(topic)
        frame = (FrameKind.CREATE, creation_body(core, topic), b"")
        core.path.log(Put(core, topic, frame, _CONFIG, self._made), Gate.SYNC)

    def _made(self, outcome: PutResult | TopicsError) -> None:
        waiting, self._waiting = self._waiting or [], None
        if isinstance(outcome, TopicsError):
            self._topic = None
        for then in waiting:
            then(outcome if isinstance(outcome, TopicsError) else self._topic)  # type: ignore[arg-type]
