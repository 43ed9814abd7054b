"""Reads with a filter: entries go to the searching process a little at a time, and come back as those that match.

A read ends with a full answer, at the end, or when it has looked at enough; its cursor then stands behind all that was
looked at, matching or not.
"""

from collections.abc import Callable, Iterator, Sequence

from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, ReadResult, first_readable
from topics.engine.topic import Topic
from topics.model.errors import SearchUnavailableError, TopicsError
from topics.model.seq_ranges import LossReason, Tombstone
from topics.schema.promotion import Promoter
from topics.search.service.backend import (
    PACK_BYTES,
    PACK_RECORDS,
    Later,
    Pack,
    Searcher,
    SearchStats,
    SeqSpan,
    Trampoline,
    pack,
)
from topics.search.service.index_skip_scan import IndexSkipScan, Skip
from topics.search.worker.messages import NO_INDEX, Filter, Result, views
from topics.streams.offsets import Position
from topics.streams.read import ReadSpec, StreamSlice
from topics.wire.record_encoding import node_suffix
from topics.wire.record_slicing import View, data_of, parts_of, project, without_nodes

SCAN_BYTES = 104_857_600
"""What one filtered read looks at."""


class _Filtering:
    """What reads of streams and of topics have in common."""

    def __init__(
        self,
        engine: Engine,
        searcher: Searcher,
        later: Later,
        stats: SearchStats,
        topic: Topic,
        request: ReadRequest,
        failed: Callable[[TopicsError], None],
    ) -> None:
        """`request` says from where, how many and how large."""
        self._engine = engine
        self._searcher = searcher
        self._later = later
        self._stats = stats
        self._topic = topic
        self._request = request
        self._failed = failed
        self._cursor = request.from_seq
        self._pieces: list[bytes] = []
        self._size = 0
        self._scanned = 0
        self._tombstone: Tombstone | None = None
        self._begun = False
        self._steps = Trampoline()
        self._windows: list[SeqSpan] = []
        """Where the next matches are, if that is known."""
        self._through: int | None = None
        """Nothing matches behind the windows up to there."""

    def _filter(self) -> tuple[int, str]:
        """The index that knows how entries are described, and the filter. Raises SearchUnavailableError."""
        raise NotImplementedError

    def _cut(self, seq: int, view: View, index: int) -> bytes | None:
        """An entry that matches, as it is answered; None for one that is left out all the same."""
        raise NotImplementedError

    def _finish(self, limited: bool = False) -> None:
        """Answers. `limited` says that it stopped because it has looked at enough."""
        raise NotImplementedError

    def run(self) -> None:
        self._steps.next(self._step)

    def _step(self) -> None:
        """What is known to match is read, and behind that it is looked for again."""
        while self._windows and self._windows[0].last <= self._cursor:
            self._windows.pop(0)
        if self._windows:
            window = self._windows[0]
            self._cursor = max(self._cursor, window.first - 1)
            self._read(window.last)
            return
        if self._through is not None:
            self._cursor, self._through = max(self._cursor, self._through), None
            if self._cursor >= self._end():
                self._end_with()
                return
        self._go_on()

    def _go_on(self) -> None:
        """Behind all that is known."""
        self._read()

    def _read(self, up_to: int | None = None) -> None:
        wanted = self._request
        request = ReadRequest(
            from_seq=self._cursor, limit=PACK_RECORDS, max_bytes=PACK_BYTES,
            up_to=wanted.up_to if up_to is None else up_to,
            epoch=None if self._begun else wanted.epoch,
        )  # fmt: skip
        try:
            self._engine.read_as(self._topic, request, pack, self._packed, aside=True)
        except TopicsError as error:
            self._fail(error)

    def _fail(self, error: TopicsError) -> None:
        # What was found before can be given; the next read meets the trouble itself.
        self._end_with() if self._pieces else self._failed(error)

    def _packed(self, outcome: Pack | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            self._fail(outcome)
            return
        if self._begun and outcome.tombstone is not None:
            # A loss further on is told by the read that begins with it.
            self._end_with()
            return
        if not self._begun and outcome.tombstone is not None:
            self._tombstone = outcome.tombstone
            if outcome.tombstone.reason is LossReason.RECREATED:
                # The cursor was none of this topic's.
                self._cursor = min(outcome.tombstone.earliest_seq - 1, self._topic.head)
        self._begun = True
        if not outcome.pieces:
            moved = outcome.through > self._cursor
            self._cursor = max(self._cursor, outcome.through)
            if moved and self._cursor < self._end():
                self._later(0, self.run)
            else:
                self._end_with()
            return
        try:
            index, text = self._filter()
        except SearchUnavailableError as error:
            self._failed(error)
            return
        self._searcher.ask(
            lambda request: Filter(request, index, text, outcome.pieces),
            lambda result: self._take(outcome, result),
            outcome.body,
        )

    def _take(self, sent: Pack, result: Result | TopicsError) -> None:
        if isinstance(result, TopicsError):
            self._fail(result)
            return
        for seq, view, index in _found(sent, result.seqs):
            raw = self._cut(seq, view, index)
            if raw is not None and not self._put(raw):
                # Everything before it was looked at.
                self._cursor = max(self._cursor, seq - 1)
                self._end_with()
                return
        self._scanned += result.scanned_bytes
        self._cursor = max(self._cursor, sent.through)
        is_behind = self._cursor < self._end()
        if is_behind and len(self._pieces) < self._request.limit and self._scanned < SCAN_BYTES:
            self._later(0, self.run)
        else:
            self._end_with(limited=is_behind and self._scanned >= SCAN_BYTES)

    def _put(self, raw: bytes) -> bool:
        """Takes an entry into the answer; False if there is no room for it."""
        wanted = self._request
        if len(self._pieces) >= wanted.limit or (self._pieces and self._size + len(raw) > wanted.max_bytes):
            return False
        self._pieces.append(raw)
        self._size += len(raw)
        return True

    def _end(self) -> int:
        up_to = self._request.up_to
        return self._topic.head if up_to is None else min(up_to, self._topic.head)

    def _end_with(self, limited: bool = False) -> None:
        self._stats.scanned_bytes += self._scanned
        self._finish(limited)


class FilteredRead(_Filtering):
    """Of a stream, by the fields of its description."""

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
        leaper: IndexSkipScan | None,
        done: Callable[[StreamSlice | TopicsError], None],
    ) -> None:
        """`index` gives the number of an index that knows how the stream is described."""
        request = ReadRequest(
            from_seq=spec.position.counter, limit=spec.max_records, max_bytes=spec.max_bytes, up_to=spec.up_to
        )
        super().__init__(engine, searcher, later, stats, topic, request, done)
        self._spec = spec
        self._done = done
        self._index = index
        self._leaper = leaper
        self._promoter = promoter if spec.as_json else None
        self._promoted = False

    def _go_on(self) -> None:
        if self._leaper is None:
            self._read()
        else:
            self._leaper.leap(self._cursor, self._end(), self._request.limit - len(self._pieces), self._take_leap)

    def _take_leap(self, leap: Skip | None) -> None:
        if leap is None:
            self._read()
            return
        self._windows, self._through = leap.windows, leap.through
        # All of it may be behind the cursor by now.
        self._begun = True
        self._later(0, self.run)

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

    def _finish(self, limited: bool = False) -> None:
        version = self._promoter.current_version if self._promoter is not None and self._promoted else 0
        as_json = self._spec.as_json
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


class FilteredDiff(_Filtering):
    """Of a topic, by what every record has and by JSON pointers."""

    def __init__(
        self,
        engine: Engine,
        searcher: Searcher,
        later: Later,
        stats: SearchStats,
        topic: Topic,
        request: ReadRequest,
        text: str,
        done: Callable[[ReadResult | TopicsError], None],
    ) -> None:
        super().__init__(engine, searcher, later, stats, topic, request, done)
        self._text = text
        self._done = done
        self._records = 0
        self._suffixes = tuple(map(node_suffix, request.nodes)) if topic.config.dedupe_node else ()

    def _filter(self) -> tuple[int, str]:
        return NO_INDEX, self._text

    def _take(self, sent: Pack, result: Result | TopicsError) -> None:
        self._records += sum([piece.count for piece in sent.pieces])
        super()._take(sent, result)

    def _cut(self, seq: int, view: View, index: int) -> bytes | None:
        ranges = [(index, index + 1)]
        if self._suffixes and not without_nodes(view, ranges, self._suffixes):
            return None
        wanted = self._request
        return b"".join(project(view, ranges, wanted.include_tags, wanted.include_meta, wanted.include_data))

    def _finish(self, limited: bool = False) -> None:
        topic = self._topic
        self._done(
            ReadResult(
                body=b",".join(self._pieces),
                count=len(self._pieces),
                next_from_seq=self._cursor,
                head_seq=topic.head,
                earliest_seq=first_readable(topic),
                tombstone=self._tombstone,
                scanned=self._records,
                epoch=topic.epoch,
            )
        )


def _found(sent: Pack, seqs: Sequence[int]) -> Iterator[tuple[int, View, int]]:
    """Where the entries of some seqs, which ascend, stand in what was sent."""
    at = 0
    for first_seq, view in views(sent.pieces, memoryview(b"".join(sent.body))):
        while at < len(seqs) and seqs[at] < first_seq + view.count:
            yield seqs[at], view, seqs[at] - first_seq
            at += 1
