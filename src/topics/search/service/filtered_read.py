"""Filtered reads: entries are sent to the search process in packs, and only matching entries are returned.

A read ends when the answer is full, at the end of the topic, or at its limit of examined entries. Its cursor is then
behind all examined entries, matching or not.
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
"""The maximum number of bytes that one filtered read scans."""


class _FilteredRead(Generic[T]):
    """The common steps of filtered reads of streams and topics."""

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
        """`request` has the start, the maximum number of entries and the maximum size."""
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
        """The number of entries sent to the search process."""
        self._scanned = 0
        """The number of examined bytes."""
        self._limited = False
        """Whether the read stopped at its limit of examined entries."""
        self._tombstone: Tombstone | None = None
        self._begun = False
        """Whether the cursor is known to belong to this topic. A loss is part of the answer only before that."""

    def _filter(self) -> tuple[int, str]:
        """Returns the number of the index with the search description, and the filter. Raises
        SearchUnavailableError."""
        raise NotImplementedError

    def _cut(self, seq: int, view: View, index: int) -> bytes | None:
        """Returns a matching entry in the form of the answer, or None if the answer omits it."""
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
                    # The cursor may be behind all entries by now.
                    self._begun = True
                    yield next_turn(self._later)
                    continue
            if not (yield from self._read(windows[0] if windows else None)):
                break
            yield next_turn(self._later)
        self._stats.scanned_bytes += self._scanned
        return self._answer()

    def _skip(self) -> Steps[Skip | None]:
        """Returns where the next matches are, according to an index file; None if no index file covers them."""
        if self._skip_scan is None:
            return None
        limit = self._request.limit - len(self._pieces)
        return (yield from self._skip_scan.next_windows(self._cursor, self._end(), limit))

    def _read(self, window: SeqSpan | None) -> Steps[bool]:
        """Reads one pack, from a window or from the cursor on, and takes its matches. Returns whether entries are
        left."""
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
            # The read that starts at a later loss reports it.
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
        """Waits for an outcome. Returns None on failure if entries were found before: they are returned, and the next
        read raises the error."""
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
                # The cursor was not one of this topic.
                self._cursor = min(packed.tombstone.earliest_seq - 1, self._topic.visible_head)
        self._begun = True

    def _take(self, sent: Pack, result: Result) -> bool:
        """Takes the matching entries. Returns whether the read continues."""
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
        """Adds an entry to the answer. Returns False if the answer is full."""
        requested = self._request
        if len(self._pieces) >= requested.limit or (self._pieces and self._size + len(raw) > requested.max_bytes):
            return False
        self._pieces.append(raw)
        self._size += len(raw)
        return True

    def _end(self) -> int:
        up_to = self._request.up_to
        return self._topic.visible_head if up_to is None else min(up_to, self._topic.visible_head)


class FilteredRead(_FilteredRead[StreamSlice]):
    """A filtered read of a stream, by the fields of its search description."""

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
        """`index` returns the number of an index that has the stream's search description."""
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
            self._topic.visible_head,
            self._tombstone,
            version,
            self._scanned if self._limited else None,
        )


class FilteredDiff(_FilteredRead[ReadResult]):
    """A filtered read of a topic, by the fields that every record has and by JSON pointers."""

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
            head_seq=topic.visible_head,
            earliest_seq=first_readable(topic),
            tombstone=self._tombstone,
            scanned=self._records,
            epoch=topic.epoch,
        )


def _found(sent: Pack, seqs: Sequence[int]) -> Iterator[tuple[int, View, int]]:
    """Yields the position of each seq, in ascending order, in a sent pack."""
    at = 0
    for first_seq, view in views(sent.pieces, memoryview(b"".join(sent.body))):
        while at < len(seqs) and seqs[at] < first_seq + view.count:
            yield seqs[at], view, seqs[at] - first_seq
            at += 1
