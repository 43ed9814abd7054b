"""Transaction state: open transactions, their staged records, and the last commit of each id.

Pure state. Live operations and replay use the same few methods, each of which returns the records of the transaction
log topic that are no longer needed.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from topics.engine.append import creation_body, make_topic
from topics.engine.core import EngineCore
from topics.engine.features import Rebuild
from topics.engine.results import PutResult
from topics.engine.topic import Topic
from topics.engine.topic_admin import Put, SystemTopic
from topics.engine.write_path import Gate
from topics.log.frame import Frame, FrameKind, decode_block
from topics.model.errors import TopicsError
from topics.model.records import Record
from topics.model.topic_config import TRANSACTIONS_TOPIC, Durability, TopicConfig, TopicConfigPatch
from topics.queues.queue_frames import Ending, JobTerms
from topics.transactions.transaction_frames import (
    PART_NAME,
    Begun,
    Committed,
    Ended,
    KnownState,
    OpenState,
    PartState,
    Placed,
    Staged,
    TransactionsPart,
    decode_begun,
    decode_committed,
    decode_ended,
    decode_part,
    decode_stage,
    encode_mark,
)

SeqRange = tuple[int, int]
Done = Callable[..., None]

_ENTRY_BYTES = 64


class OpenTransaction:
    """An attempt at a transaction."""

    __slots__ = (
        "attempt", "bytes", "committing", "deadline", "id", "inflight", "inflight_bytes", "inflight_records", "owner",
        "parts", "records", "sequence", "timeout_ms", "touched_ms",
    )  # fmt: skip

    def __init__(self, begun: Begun) -> None:
        self.id = begun.id
        self.sequence = begun.sequence
        self.attempt = begun.attempt
        self.owner = begun.owner
        self.timeout_ms = begun.timeout_ms
        self.touched_ms = begun.now_ms
        """The wall time of its last use, which is persisted."""
        self.deadline = 0
        """The end of its timeout, by the steady clock."""
        self.parts: dict[str, PartState] = {}
        """In the order of their first staging."""
        self.records = 0
        self.bytes = 0
        self.inflight = 0
        """Parts being logged."""
        self.inflight_records = 0
        self.inflight_bytes = 0
        self.committing: list[Done] | None = None
        """The waiters of a commit in progress."""

    def expect(self, parts: int, records: int, size: int) -> None:
        """Updates the number of parts being logged."""
        self.inflight += parts
        self.inflight_records += records
        self.inflight_bytes += size

    def is_meant(self, sequence: int, attempt: str) -> bool:
        return self.sequence == sequence and self.attempt == attempt

    def ranges(self) -> list[SeqRange]:
        return sorted((part.first_seq, part.first_seq + part.count - 1) for part in self.parts.values())


class TransactionTable:
    def __init__(self) -> None:
        self.open: dict[str, OpenTransaction] = {}
        self.known: dict[str, KnownState] = {}
        """By id, the oldest commit first."""
        self.known_bytes = 0
        """The approximate memory of the known commits."""

    # Changes, live and in a replay

    def begin(self, begun: Begun) -> list[SeqRange]:
        old = self.open.get(begun.id)
        if old is not None and old.is_meant(begun.sequence, begun.attempt):
            # Two clients of one attempt sent requests concurrently.
            old.touched_ms = max(old.touched_ms, begun.now_ms)
            return []
        self.open[begun.id] = OpenTransaction(begun)
        return old.ranges() if old is not None else []

    def stage(self, staged: Staged, first_seq: int, count: int, size: int) -> list[SeqRange]:
        entry = self.open.get(staged.id)
        if entry is None or not entry.is_meant(staged.sequence, staged.attempt):
            return [(first_seq, first_seq + count - 1)]
        old = entry.parts.get(staged.part)
        entry.parts[staged.part] = PartState(
            staged.part, staged.topic, first_seq, count, size, staged.create, staged.config, staged.terms
        )
        entry.records += count - (old.count if old is not None else 0)
        entry.bytes += size - (old.size if old is not None else 0)
        entry.touched_ms = max(entry.touched_ms, staged.now_ms)
        return [(old.first_seq, old.first_seq + old.count - 1)] if old is not None else []

    def end(self, ended: Ended) -> list[SeqRange]:
        entry = self.open.get(ended.id)
        if entry is None or not entry.is_meant(ended.sequence, ended.attempt):
            return []
        return self.open.pop(ended.id).ranges()

    def commit(self, committed: Committed) -> list[SeqRange]:
        entry = self.open.pop(committed.id, None)
        self.forget(committed.id)
        known = KnownState(committed.id, committed.sequence, committed.now_ms, committed.placed)
        self.known[committed.id] = known
        self.known_bytes += _memory(known)
        return entry.ranges() if entry is not None else []

    def forget(self, transaction_id: str) -> None:
        known = self.known.pop(transaction_id, None)
        if known is not None:
            self.known_bytes -= _memory(known)

    # Sums

    def staged_bytes(self, owner: str) -> int:
        return sum([entry.bytes + entry.inflight_bytes for entry in self.open.values() if entry.owner == owner])

    def open_of(self, owner: str) -> int:
        return sum([entry.owner == owner for entry in self.open.values()])

    def ids_of(self, tenant: str) -> int:
        """The number of ids of a tenant."""
        return sum([name.startswith(tenant + "/") for name in self.known.keys() | self.open.keys()])

    # Snapshots

    def part(self) -> TransactionsPart:
        return TransactionsPart(
            [
                OpenState(
                    entry.id, entry.sequence, entry.attempt, entry.owner, entry.timeout_ms, entry.touched_ms,
                    list(entry.parts.values()),
                )
                for entry in self.open.values()
            ],
            list(self.known.values()),
        )  # fmt: skip

    def load(self, part: TransactionsPart) -> None:
        self.open = {}
        for state in part.open:
            entry = OpenTransaction(
                Begun(state.id, state.sequence, state.attempt, state.owner, state.timeout_ms, state.touched_ms)
            )
            entry.parts = {one.name: one for one in state.parts}
            entry.records = sum([one.count for one in state.parts])
            entry.bytes = sum([one.size for one in state.parts])
            self.open[entry.id] = entry
        self.known = {known.id: known for known in part.known}
        self.known_bytes = sum(map(_memory, part.known))


def _memory(known: KnownState) -> int:
    return _ENTRY_BYTES + len(known.id) + sum([_ENTRY_BYTES + len(placed.topic) for placed in known.placed])


# Implements `engine.features.Feature` for transactions: a system topic has their state.
#
# Staged records are its records, so they are sealed, bounded in memory and recovered like any other. Its class is
# `memory`, because staged records have no value until the commit, which is synced separately.

TOPIC_NAME = TRANSACTIONS_TOPIC
_CONFIG = TopicConfig(durability=Durability.MEMORY)


class TransactionFeature:
    name = PART_NAME
    kinds = frozenset((FrameKind.TXN_BEGIN, FrameKind.TXN_STAGE, FrameKind.TXN_END, FrameKind.TXN_COMMIT))

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self.table = TransactionTable()
        self._topic: Topic | None = None
        self._waiting: list[Callable[[Topic | TopicsError], None]] | None = None
        core.features.add(self)

    # Recovery and snapshots

    def replay(self, topic: Topic, frame: Frame, rebuild: Rebuild) -> None:
        if frame.kind is FrameKind.TXN_BEGIN:
            ranges = self.table.begin(decode_begun(frame.body))
        elif frame.kind is FrameKind.TXN_STAGE:
            # The records themselves were appended by the caller that reads the log.
            staged, body = decode_stage(frame.body)
            block = decode_block(body)
            ranges = self.table.stage(staged, block.first_seq, block.count, block.payload_bytes)
        elif frame.kind is FrameKind.TXN_END:
            ranges = self.table.end(decode_ended(frame.body))
        else:
            ranges = self.table.commit(decode_committed(frame.body))
        self._adopt(topic)
        self.drop(topic, ranges)

    def save(self, topic: Topic) -> bytes:
        return encode_mark(self.table.part())

    def load(self, topic: Topic, part: bytes) -> None:
        self.table.load(decode_part(part))
        self._adopt(topic)

    def may_page_out(self, topic: Topic) -> bool:
        return False

    def reconcile(self) -> None:
        topic = self._core.directory.find(TOPIC_NAME)
        if topic is not None:
            self._adopt(topic)
        for entry in self.table.open.values():
            entry.deadline = self._core.time.resumed(Ending(entry.touched_ms + entry.timeout_ms, entry.timeout_ms))

    def _adopt(self, topic: Topic) -> None:
        self._topic = topic
        topic.guard = topic.guard or SystemTopic()
        if not topic.parts or PART_NAME not in topic.parts:
            topic.parts = {**(topic.parts or {}), PART_NAME: self.table}

    # Shared with live operations

    def drop(self, topic: Topic, ranges: list[SeqRange]) -> None:
        """Removes staged records that are no longer needed."""
        if ranges:
            self._core.applier.delete(topic, 0, ranges)

    @property
    def topic(self) -> Topic | None:
        """The transaction log topic, if it exists."""
        topic = self._topic
        return topic if topic is not None and topic.created else None

    def with_topic(self, then: Callable[[Topic | TopicsError], None]) -> None:
        """Calls back with the transaction log topic; the first call creates it."""
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


# Requests and results of transactions.

Permit = Callable[[str], None]
"""Raises unless the caller may write to a topic of that name."""


def scoped(tenant: str, transaction_id: str) -> str:
    """Returns the internal name of a transaction: each tenant has separate ids. No id contains a slash."""
    return f"{tenant}/{transaction_id}" if tenant else transaction_id


def shown(name: str) -> str:
    """Returns the id of a transaction as its tenant uses it."""
    return name.rpartition("/")[2]


class TransactionRef(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt of a transaction in a request, and its caller."""

    id: str
    sequence: int
    attempt: str | None = None
    """None means the open one."""
    owner: str = ""
    tenant: str = ""

    @property
    def name(self) -> str:
        return scoped(self.tenant, self.id)


class BeginRequest(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    sequence: int
    attempt: str | None = None
    """The open attempt. A client with this name joins it; any other attempt replaces it. None while unknown."""
    timeout_ms: int = 0
    """0 means the maximum of the server."""
    owner: str = ""
    tenant: str = ""

    @property
    def name(self) -> str:
        return scoped(self.tenant, self.id)


class StageRequest(msgspec.Struct, frozen=True, kw_only=True):
    ref: TransactionRef
    topic: str
    records: Sequence[Record]
    part: str
    """Staging a part again replaces it."""
    node: str | None = None
    create: bool | None = None
    config: TopicConfigPatch | None = None
    terms: JobTerms | None = None
    """The delay of jobs of a queue, counted from the commit."""


class TransactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a transaction."""

    id: str
    sequence: int
    state: Literal["open", "committed", "aborted"]
    attempt: str | None = None
    parts: int = 0
    records: int = 0
    bytes: int = 0
    expires_ts: int = 0
    deduped: bool = False
    """Whether it was committed before, so that this request changed nothing."""
    topics: list[Placed] = []


class StagedResult(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    sequence: int
    attempt: str
    part: str
    topic: str
    count: int
    records: int
    """The number for the whole transaction."""
    bytes: int


TransactionDone = Callable[[TransactionResult | TopicsError], None]
StageDone = Callable[[StagedResult | TopicsError], None]
