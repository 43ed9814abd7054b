"""Filtered reads: entries are sent to the search process in packs, and only those that match are answered.

A read ends with a full answer, at the end, or at its limit of examined entries; its cursor is then after all examined
entries, matching or not.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from topics.engine.background_jobs import Until
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, ReadResult, first_readable
from topics.engine.topic import Topic
from topics.model.errors import TopicsError
from topics.model.seq_ranges import LossReason, Tombstone
from topics.schema.registry import Promoter
from topics.search.service.backend import (
    PACK_BYTES,
    PACK_RECORDS,
    Later,
    Pack,
    Searcher,
    SearchStats,
    SeqSpan,
    Steps,
    next_turn,
    pack,
)
from topics.search.service.index_skip_scan import IndexSkipScan, Skip
from topics.search.worker.messages import NO_INDEX, Filter, Result, views
from topics.streams.read import ReadSpec, StreamSlice
from topics.streams.stream_state import Position
from topics.wire.record_encoding import node_suffix
from topics.wire.record_slicing import View, data_of, parts_of, project, without_nodes

T = TypeVar("T")

SCAN_BYTES = 104_857_600
"""Bytes that one filtered read scans."""


class _FilteredRead(Generic[T]):
    """The steps that reads of streams and of topics have in common."""

    def __init__(
        self,
        engine: Engine,
        searcher: Searcher,
        later: Later,
        stats: SearchStats,
        topic: Topic,
        request: ReadRequest,
        skip_scan: IndexSkipScan | None = None,
    ) -> None:
        """`request` has the start, the number and the size."""
        self._engine = engine
        self._searcher = searcher
        self._later = later
        self._stats = stats
        self._topic = topic
        self._request = request
        self._skip_scan = skip_scan
        self._cursor = request.from_seq
        self._pieces: list[bytes] = []
        self._size = 0
        self._records = 0
        """The number of entries sent to be examined."""
        self._scanned = 0
        """The number of examined bytes."""
        self._limited = False
        """Whether the read stopped at its limit of examined entries."""
        self._tombstone: Tombstone | None = None
        self._begun = False
        """Whether the cursor is one of this topic: only before that a loss is part of the answer."""

    def _filter(self) -> tuple[int, str]:
        """The index that knows how entries are described, and the filter. Raises SearchUnavailableError."""
        raise NotImplementedError

    def _cut(self, seq: int, view: View, index: int) -> bytes | None:
        """A matching entry in the form of the answer; None if it is omitted anyway."""
        raise NotImplementedError

    def _answer(self) -> T:
        raise NotImplementedError

    def steps(self) -> Steps[T]:
        """Reads, filters and collects entries, one pack in a turn of the loop."""
        windows: list[SeqSpan] = []
        through: int | None = None
        while True:
            while windows and windows[0].last <= self._cursor:
                windows.pop(0)
            if not windows:
                if through is not None:
                    self._cursor, through = max(self._cursor, through), None
                    if self._cursor >= self._end():
                        break
                skip = yield from self._skip()
                if skip is not None:
                    windows, through = skip
                    # All of it may be behind the cursor by now.
                    self._begun = True
                    yield next_turn(self._later)
                    continue
            if not (yield from self._read(windows[0] if windows else None)):
                break
            yield next_turn(self._later)
        self._stats.scanned_bytes += self._scanned
        return self._answer()

    def _skip(self) -> Steps[Skip | None]:
        """Where the next matches are, if an index file has them."""
        if self._skip_scan is None:
            return None
        limit = self._request.limit - len(self._pieces)
        return (yield from self._skip_scan.next_windows(self._cursor, self._end(), limit))

    def _read(self, window: SeqSpan | None) -> Steps[bool]:
        """Reads one pack, of a window or of the next entries, and takes the matches; returns whether there is more."""
        requested = self._request
        if window is not None:
            self._cursor = max(self._cursor, window.first - 1)
        request = ReadRequest(
            from_seq=self._cursor, limit=PACK_RECORDS, max_bytes=PACK_BYTES,
            up_to=requested.up_to if window is None else window.last,
            epoch=None if self._begun else requested.epoch,
        )  # fmt: skip
        packed: Pack | None = yield from self._attempt(
            lambda resume: self._engine.read_as(self._topic, request, pack, resume, aside=True)
        )
        if packed is None or (self._begun and packed.tombstone is not None):
            # A later loss is reported by the read that begins with it.
            return False
        self._begin(packed)
        if not packed.pieces:
            moved = packed.through > self._cursor
            self._cursor = max(self._cursor, packed.through)
            return moved and self._cursor < self._end()
        index, text = self._filter()
        self._records += sum([piece.count for piece in packed.pieces])
        result: Result | None = yield from self._attempt(
            lambda resume: self._searcher.ask(
                lambda request: Filter(request, index, text, packed.pieces), resume, packed.body
            )
        )
        return result is not None and self._take(packed, result)

    def _attempt(self, register: Callable[[Callable[[object], None]], None]) -> Steps[Any]:
        """The outcome of a wait. None where it failed and entries were found before: these can be given, and the next
        read meets the trouble itself."""
        try:
            return (yield Until(register))
        except TopicsError:
            if not self._pieces:
                raise
            return None

    def _begin(self, packed: Pack) -> None:
        if not self._begun and packed.tombstone is not None:
            self._tombstone = packed.tombstone
            if packed.tombstone.reason is LossReason.RECREATED:
                # The cursor was none of this topic's.
                self._cursor = min(packed.tombstone.earliest_seq - 1, self._topic.head)
        self._begun = True

    def _take(self, sent: Pack, result: Result) -> bool:
        """Takes the entries that match; whether the read goes on."""
        for seq, view, index in _found(sent, result.seqs):
            raw = self._cut(seq, view, index)
            if raw is not None and not self._put(raw):
                # All entries before it were examined.
                self._cursor = max(self._cursor, seq - 1)
                return False
        self._scanned += result.scanned_bytes
        self._cursor = max(self._cursor, sent.through)
        is_behind = self._cursor < self._end()
        self._limited = is_behind and self._scanned >= SCAN_BYTES
        return is_behind and not self._limited and len(self._pieces) < self._request.limit

    def _put(self, raw: bytes) -> bool:
        """Adds an entry to the answer; False if the answer is full."""
        requested = self._request
        if len(self._pieces) >= requested.limit or (self._pieces and self._size + len(raw) > requested.max_bytes):
            return False
        self._pieces.append(raw)
        self._size += len(raw)
        return True

    def _end(self) -> int:
        up_to = self._request.up_to
        return self._topic.head if up_to is None else min(up_to, self._topic.head)


class FilteredRead(_FilteredRead[StreamSlice]):
    """A read of a stream, by the fields of its description."""

    def __init__(
        self,
        engine: Engine,
        searcher: Searcher,
        later: Later,
        stats: SearchStats,
        topic: Topic,
        promoter: Promoter | None,
        spec: ReadSpec,
        index: Callable[[], int],
        skip_scan: IndexSkipScan | None,
    ) -> None:
        """`index` gives the number of an index that knows how the stream is described."""
        request = ReadRequest(
            from_seq=spec.position.counter, limit=spec.max_records, max_bytes=spec.max_bytes, up_to=spec.up_to
        )
        super().__init__(engine, searcher, later, stats, topic, request, skip_scan)
        self._spec = spec
        self._index = index
        self._promoter = promoter if spec.as_json else None
        self._promoted = False

    def _filter(self) -> tuple[int, str]:
        return self._index(), self._spec.filter or ""

    def _cut(self, seq: int, view: View, index: int) -> bytes | None:
        if self._spec.key is not None and parts_of(view, index).tag != self._spec.key:
            return None
        raw = data_of(view, index)
        if self._promoter is not None and seq <= self._promoter.current_from:
            raw = bytes(self._promoter.promote(seq - 1, raw))
            self._promoted = True
        return raw

    def _answer(self) -> StreamSlice:
        version = self._promoter.current_version if self._promoter is not None and self._promoted else 0
        return StreamSlice(
            b"[%b]" % b",".join(self._pieces) if self._spec.as_json else b"".join(self._pieces),
            len(self._pieces),
            Position(self._cursor),
            self._topic.head,
            self._tombstone,
            version,
            self._scanned if self._limited else None,
        )


class FilteredDiff(_FilteredRead[ReadResult]):
    """A read of a topic, by the fields that every record has and by JSON pointers."""

    def __init__(
        self,
        engine: Engine,
        searcher: Searcher,
        later: Later,
        stats: SearchStats,
        topic: Topic,
        request: ReadRequest,
        text: str,
    ) -> None:
        super().__init__(engine, searcher, later, stats, topic, request)
        self._text = text
        self._suffixes = tuple(map(node_suffix, request.nodes)) if topic.config.dedupe_node else ()

    def _filter(self) -> tuple[int, str]:
        return NO_INDEX, self._text

    def _cut(self, seq: int, view: View, index: int) -> bytes | None:
        ranges = [(index, index + 1)]
        if self._suffixes and not without_nodes(view, ranges, self._suffixes):
            return None
        requested = self._request
        return b"".join(project(view, ranges, requested.include_tags, requested.include_meta, requested.include_data))

    def _answer(self) -> ReadResult:
        topic = self._topic
        return ReadResult(
            body=b",".join(self._pieces),
            count=len(self._pieces),
            next_from_seq=self._cursor,
            head_seq=topic.head,
            earliest_seq=first_readable(topic),
            tombstone=self._tombstone,
            scanned=self._records,
            epoch=topic.epoch,
        )


def _found(sent: Pack, seqs: Sequence[int]) -> Iterator[tuple[int, View, int]]:
    """Where the entries of some seqs, which ascend, stand in what was sent."""
    at = 0
    for first_seq, view in views(sent.pieces, memoryview(b"".join(sent.body))):
        while at < len(seqs) and seqs[at] < first_seq + view.count:
            yield seqs[at], view, seqs[at] - first_seq
            at += 1
