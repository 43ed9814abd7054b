"""The entries of hits, one after the other until there is enough for one answer."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from topics.core.errors import TopicsError
from topics.engine import Engine
from topics.engine.state.runs import Segment
from topics.engine.topic import Topic
from topics.formats.segment import DELETED
from topics.schema.promotion import Promoter
from topics.storage.segments import SegmentDamaged
from topics.streams.offsets import Position
from topics.streams.reading import ReadSpec, StreamSlice, cutter
from topics.wire.cuts import data_of

ANSWER_BYTES = 16 * 1024 * 1024
"""What the entries of one answer may have together; the one that crosses it is the last."""


class Fetched(NamedTuple):
    entries: dict[int, bytes]
    """By their seqs, promoted; those that are gone by now are missing."""
    reached: int
    """How many seqs were looked at."""


class Fetch:
    def __init__(
        self,
        engine: Engine,
        topic: Topic,
        promoter: Promoter | None,
        seqs: Sequence[int],
        done: Callable[[Fetched | TopicsError], None],
    ) -> None:
        self._engine = engine
        self._topic = topic
        self._promoter = promoter
        self._seqs = seqs
        self._done = done
        self._entries: dict[int, bytes] = {}
        self._size = 0
        self._at = 0
        self._failed: TopicsError | None = None
        self._waiting = False
        self._running = False

    def run(self) -> None:
        """Goes on until it has to wait. Entries that are nearby come at once, so this is a loop and no recursion."""
        self._running = True
        while self._at < len(self._seqs) and self._size < ANSWER_BYTES and not self._waiting and self._failed is None:
            seq = self._seqs[self._at]
            raw = self._nearby(seq)
            if raw is not None:
                self._entries[seq] = raw
                self._size += len(raw)
                self._at += 1
                continue
            spec = ReadSpec(position=Position(seq - 1), max_records=1, max_bytes=1, up_to=seq)
            self._waiting = True
            try:
                self._engine.read_as(self._topic, spec.request(), cutter(spec, self._promoter), self._take)
            except TopicsError as error:
                self._take(error)
        self._running = False
        if not self._waiting:
            self._done(self._failed or Fetched(self._entries, self._at))

    def _nearby(self, seq: int) -> bytes | None:
        """An entry that is at hand, without a read of its own; None where only a read can tell what became of it."""
        topic, reader, promoter = self._topic, self._engine.core.reader, self._promoter
        run = topic.run_from(seq) if topic.origin is None and topic.earliest <= seq <= topic.head else None
        if run is None or run.first_seq > seq or (isinstance(run, Segment) and run.cold and run.blocks is None):
            return None
        index = seq - run.first_seq
        flags = reader.flags(topic.id, run)
        if flags is not None and flags[index] == DELETED:
            return None
        try:
            view, place, _, _ = next(reader.views(topic.id, run, index, index + 1))
        except SegmentDamaged:
            return None
        raw = data_of(view, place)
        return raw if promoter is None or seq > promoter.current_from else bytes(promoter.promote(seq - 1, raw))

    def _take(self, outcome: StreamSlice | TopicsError) -> None:
        self._waiting = False
        if isinstance(outcome, TopicsError):
            self._failed = outcome
        elif outcome.count:
            self._entries[self._seqs[self._at]] = outcome.body[1:-1]
            self._size += len(outcome.body)
        self._at += 1
        if not self._running:
            self.run()
