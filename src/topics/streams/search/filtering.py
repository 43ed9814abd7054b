"""Reads with a filter: entries go to the searching process a little at a time, and come back as those that match.

A read ends with a full answer, at the end of the stream, or when it has looked at enough; its cursor then stands behind
all that was looked at, matching or not.
"""

from collections.abc import Callable, Iterator, Sequence

from topics.core.errors import SearchUnavailableError, TopicsError
from topics.core.loss import Tombstone
from topics.engine import Engine, ReadRequest
from topics.engine.topic import Topic
from topics.schema.promotion import Promoter
from topics.searching.messages import Filter, Result, views
from topics.streams.offsets import Position
from topics.streams.reading import ReadSpec, StreamSlice
from topics.streams.search.packing import PACK_BYTES, PACK_RECORDS, Pack, pack
from topics.streams.search.searcher import Later, Searcher
from topics.streams.search.stats import SearchStats
from topics.wire.cuts import View, data_of, parts_of

SCAN_BYTES = 104_857_600
"""What one filtered read looks at."""


class FilteredRead:
    def __init__(
        self,
        engine: Engine,
        searcher: Searcher,
        later: Later,
        topic: Topic,
        promoter: Promoter | None,
        spec: ReadSpec,
        done: Callable[[StreamSlice | TopicsError], None],
        stats: SearchStats,
    ) -> None:
        self._stats = stats
        self._engine = engine
        self._searcher = searcher
        self._later = later
        self._topic = topic
        self._spec = spec
        self._done = done
        self._promoter = promoter if spec.as_json else None
        self._cursor = spec.position.counter
        self._pieces: list[bytes] = []
        self._size = 0
        self._scanned = 0
        self._promoted = False
        self._tombstone: Tombstone | None = None
        self._begun = False
        self._index: Callable[[], int] = lambda: 0

    def begin(self, index: Callable[[], int]) -> None:
        """`index` gives the number of an index that knows how the stream is described."""
        self._index = index
        self._next()

    def _next(self) -> None:
        spec = self._spec
        request = ReadRequest(from_seq=self._cursor, limit=PACK_RECORDS, max_bytes=PACK_BYTES, up_to=spec.up_to)
        try:
            self._engine.read_as(self._topic, request, pack, self._packed)
        except TopicsError as error:
            self._done(error)

    def _packed(self, outcome: Pack | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            # What was found before can be given; the next read meets the trouble itself.
            self._finish() if self._pieces else self._done(outcome)
            return
        if self._begun and outcome.tombstone is not None:
            # A loss further on is told by the read that begins with it.
            self._finish()
            return
        self._begun, self._tombstone = True, self._tombstone or outcome.tombstone
        if not outcome.pieces:
            moved = outcome.through > self._cursor
            self._cursor = max(self._cursor, outcome.through)
            if moved and self._cursor < self._end():
                self._later(0, self._next)
            else:
                self._finish()
            return
        text = self._spec.filter or ""
        try:
            index = self._index()
        except SearchUnavailableError as error:
            self._done(error)
            return
        self._searcher.ask(
            lambda request: Filter(request, index, text, outcome.pieces),
            lambda result: self._take(outcome, result),
            outcome.body,
        )

    def _take(self, sent: Pack, result: Result | TopicsError) -> None:
        if isinstance(result, TopicsError):
            self._finish() if self._pieces else self._done(result)
            return
        for seq, view, index in _found(sent, result.seqs):
            if self._has_key(view, index) and not self._put(seq, data_of(view, index)):
                # Everything before it was looked at.
                self._cursor = max(self._cursor, seq - 1)
                self._finish()
                return
        self._scanned += result.scanned_bytes
        self._cursor = max(self._cursor, sent.through)
        is_behind = self._cursor < self._end()
        if is_behind and len(self._pieces) < self._spec.max_records and self._scanned < SCAN_BYTES:
            self._later(0, self._next)
        else:
            self._finish(limited=is_behind and self._scanned >= SCAN_BYTES)

    def _has_key(self, view: View, index: int) -> bool:
        return self._spec.key is None or parts_of(view, index).tag == self._spec.key

    def _put(self, seq: int, raw: bytes) -> bool:
        """Takes an entry into the answer; False if there is no room for it."""
        if len(self._pieces) >= self._spec.max_records or (
            self._pieces and self._size + len(raw) > self._spec.max_bytes
        ):
            return False
        if self._promoter is not None and seq <= self._promoter.current_from:
            raw = bytes(self._promoter.promote(seq - 1, raw))
            self._promoted = True
        self._pieces.append(raw)
        self._size += len(raw)
        return True

    def _end(self) -> int:
        return self._topic.head if self._spec.up_to is None else min(self._spec.up_to, self._topic.head)

    def _finish(self, limited: bool = False) -> None:
        version = self._promoter.current_version if self._promoter is not None and self._promoted else 0
        as_json = self._spec.as_json
        self._stats.scanned_bytes += self._scanned
        self._done(
            StreamSlice(
                b"[%b]" % b",".join(self._pieces) if as_json else b"".join(self._pieces),
                len(self._pieces),
                Position(self._cursor),
                self._topic.head,
                self._tombstone,
                version,
                self._scanned if limited else None,
            )
        )


def _found(sent: Pack, seqs: Sequence[int]) -> Iterator[tuple[int, View, int]]:
    """Where the entries of some seqs, which ascend, stand in what was sent."""
    at = 0
    for first_seq, view in views(sent.pieces, memoryview(b"".join(sent.body))):
        while at < len(seqs) and seqs[at] < first_seq + view.count:
            yield seqs[at], view, seqs[at] - first_seq
            at += 1
