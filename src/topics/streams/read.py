"""Stream reads: the plan of a topic read, from which only the data of entries is extracted, optionally of one routing
key.

An answer has a maximum of entries and bytes, and ends between two entries: an entry larger than that is an answer by
itself. Only reads that continue within one response (`ReadSpec.splits`) are cut inside an entry of a bytes stream, and
then between two characters of a text.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import takewhile
from threading import get_ident

import msgspec

from topics.engine.engine import Engine
from topics.engine.read import ReadPlan, ReadRequest, corrupt_error
from topics.engine.topic import Block, Run, RunReader, Segment, Topic, live_ranges
from topics.log.segment_files import SegmentDamaged, SegmentKey
from topics.model.errors import RetryLaterError, ThrottledError, TopicsError
from topics.model.limits import MAX_U64
from topics.model.records import TRAIT_TAGS
from topics.model.seq_ranges import Tombstone
from topics.schema.documents import MAX_BUILT_OPS, MAX_PROMOTION_STEPS, PORTION_STEPS
from topics.schema.registry import Promoter
from topics.streams.entry_encoding import Entry, content_bytes, is_json, lone_content_bytes, wrapping_bytes
from topics.streams.stream_state import JSON_TYPE, Position, stream_of
from topics.wire.record_slicing import View, data_parts, data_span, end_that_fits, meta_of, tag_texts

CHUNK_RECORDS = 1_000
CHUNK_BYTES = 1024 * 1024
SCAN_RECORDS = 50_000
"""Maximum entries that one keyed read examines; the next read continues."""
_TOGETHER = 256
"""The number of entries promoted together; at most this many are promoted twice because they did not fit."""

_LARGE_BYTES = 4 * CHUNK_BYTES
"""Decoding a larger entry takes some milliseconds."""

CHARACTER_MORE = 3
"""Maximum continuation bytes of a UTF-8 character."""
_LEAD = 0xC0
_LF = 0x0A

_encode = msgspec.json.Encoder().encode


class ReadSpec(msgspec.Struct, frozen=True, kw_only=True):
    position: Position = Position(0)
    as_json: bool = True
    key: str | None = None
    max_records: int = CHUNK_RECORDS
    max_bytes: int = CHUNK_BYTES
    max_entry_bytes: int = MAX_U64
    """The longest entry of a bytes stream that may exceed `max_bytes`."""
    splits: bool = False
    """Whether an entry of a bytes stream that is longer than `max_bytes` is cut."""
    filter: str | None = None
    """A filter that entries must match; already validated."""
    up_to: int | None = None
    """The position where the read ends at the latest; default: the end of the stream."""

    def request(self) -> ReadRequest:
        """The read request for the engine's plan."""
        limit = self.max_records if self.key is None else SCAN_RECORDS
        return ReadRequest(from_seq=self.position.counter, limit=limit, max_bytes=self.max_bytes, up_to=self.up_to)

    def behind(self, found: "StreamSlice") -> "ReadSpec | None":
        """The rest of this read after a slice of it; None if the read is full."""
        records, size = self.max_records - found.count, self.max_bytes - len(found.body)
        if records <= 0 or size <= 0:
            return None
        return msgspec.structs.replace(self, position=found.position, max_records=records, max_bytes=size)


class StreamSlice(msgspec.Struct, frozen=True):
    """The result of a read. `body` is a JSON array, or the concatenated bytes of the entries."""

    body: bytes
    count: int
    position: Position
    head: int
    tombstone: Tombstone | None
    promoted_to: int = 0
    """The schema version that earlier entries were promoted to; 0 if all are as written."""
    scan_limit_bytes: int | None = None
    """How much a filtered read examined, if it stopped because of that."""

    @property
    def at_tail(self) -> bool:
        """Whether nothing follows. A read beyond the end is at the tail, too."""
        return self.position >= (self.head, 0)


def joined(slices: Sequence[StreamSlice], as_json: bool) -> StreamSlice:
    """Joins consecutive slices, of which only the first may begin with a gap."""
    first, last = slices[0], slices[-1]
    if len(slices) == 1:
        return first
    found = [one.body for one in slices if one.count]
    body = b"[%b]" % b",".join([body[1:-1] for body in found]) if as_json else b"".join(found)
    promoted_to = max([one.promoted_to for one in slices])
    count = sum([one.count for one in slices])
    return StreamSlice(body, count, last.position, last.head, first.tombstone, promoted_to)


class SliceTooLongError(Exception):
    """The first entry of an answer is so large, or its promotion takes so long, that it would block the event loop. A
    thread has to execute the read."""


def cutter(
    spec: ReadSpec, promoter: Promoter | None = None, patient: bool = False
) -> Callable[[ReadPlan, RunReader], StreamSlice]:
    """A function that executes a plan for this read, on any thread. With a promoter, entries of earlier schema versions
    are promoted to the current one, unless raw bytes are requested. Without `patient` it may raise
    `SliceTooLongError`."""
    return lambda plan, reader: _Cut(spec, plan, reader, promoter if spec.as_json else None, patient).run()


def read_slice(
    engine: Engine,
    topic: Topic,
    spec: ReadSpec,
    promoter: Promoter | None,
    done: Callable[[StreamSlice | TopicsError], None],
) -> None:
    """Executes one plan; on a thread if entries of earlier versions take long."""
    loop = get_ident()

    def cut(plan: ReadPlan, reader: RunReader) -> StreamSlice:
        return cutter(spec, promoter, patient=get_ident() != loop)(plan, reader)

    try:
        engine.read_as(topic, spec.request(), cut, done)
    except SliceTooLongError:
        engine.read_as(topic, spec.request(), cutter(spec, promoter, patient=True), done, elsewhere=True)


def _cut_place(entry: Entry, begin: int, end: int) -> int:
    """Returns the position at which to split an entry that continues after `end`: not later, and if possible neither
    inside a character nor inside a line break, because clients decode each answer separately."""
    around = entry.part(max(end - CHARACTER_MORE, begin), end + 1)
    before, behind = around[:-1], around[-1]
    back = 0
    if behind == _LF and before.endswith(b"\r"):
        back = 1
    elif _is_continuation(behind):
        back = 1 + sum(1 for _ in takewhile(_is_continuation, reversed(before)))
        if back > len(before) or before[-back] < _LEAD:
            back = 0  # Not UTF-8.
    return end - back if end - back > begin else end


def _is_continuation(byte: int) -> bool:
    """Whether a byte is a UTF-8 continuation byte."""
    return 0x80 <= byte < _LEAD


class _Cut:
    def __init__(
        self, spec: ReadSpec, plan: ReadPlan, reader: RunReader, promoter: Promoter | None, patient: bool
    ) -> None:
        self._patient = patient
        self._steps = MAX_PROMOTION_STEPS if patient else PORTION_STEPS
        """The remaining ops of lenses of this answer."""
        self._spec = spec
        self._promoter = promoter
        self._promoted = False
        self._plan = plan
        self._reader = reader
        self._pieces: list[bytes | memoryview] = []
        self._more = 0
        """The number of entries beyond one for each piece."""
        self._size = 0
        self._remaining = spec.max_records
        self._in_block = 0
        """Bytes of the entry after the cursor that are delivered, if the read ends inside one."""
        self._key = None if spec.key is None else _encode(spec.key)

    def run(self) -> StreamSlice:
        plan = self._plan
        cursor = min(plan.start - 1, plan.end)
        for run in plan.runs:
            lo, hi = max(plan.start - run.first_seq, 0), min(plan.end + 1 - run.first_seq, run.count)
            before = (len(self._pieces), self._more, self._size, self._remaining, self._in_block)
            try:
                stop = self._take_run(run, lo, hi)
            except RetryLaterError:
                # Return local entries; the next read starts with the rest.
                self._take_back(*before)
                if self._pieces:
                    break
                raise
            except SegmentDamaged as damage:
                # Records before the damage are intact: return them, and let the next read report the damage.
                self._take_back(*before)
                if self._pieces:
                    break
                if damage.first <= lo:
                    raise corrupt_error(plan, run, damage) from damage
                stop = self._take_run(run, lo, damage.first)
            cursor = run.first_seq + stop - 1
            if stop < hi or self._remaining <= 0:
                break
        else:
            cursor = max(cursor, plan.end)
        body = b"[%b]" % b",".join(self._pieces) if self._spec.as_json else b"".join(self._pieces)
        position = Position(min(cursor, plan.head), self._in_block)
        promoted_to = self._promoter.current_version if self._promoter is not None and self._promoted else 0
        return StreamSlice(body, len(self._pieces) + self._more, position, plan.head, plan.tombstone, promoted_to)

    def _take_back(self, count: int, more: int, size: int, requested: int, in_block: int) -> None:
        """Discards the entries taken from a failed run; the cursor is still before it."""
        del self._pieces[count:]
        self._more, self._size, self._remaining, self._in_block = more, size, requested, in_block

    def _take_run(self, run: Run, lo: int, hi: int) -> int:
        """Takes the fitting entries from a run. Returns the index after the last examined entry."""
        if self._key is not None and not run.traits & TRAIT_TAGS:
            return hi
        keyed = self._key is not None
        postings = self._postings(run) if keyed and isinstance(run, Segment) and run.blocks is None else None
        for begin, end in live_ranges(self._reader.flags(self._plan.topic_id, run), lo, hi):
            if postings is not None:
                stop = self._take_postings(run, postings, begin, end)
                if stop < end or self._remaining <= 0:
                    return stop
                continue
            # Read only the part that can be delivered.
            most = end if keyed else min(end, begin + self._remaining)
            for view, view_lo, view_hi, offset in self._views(run, begin, most):
                stop = self._take_view(view, view_lo, view_hi, offset + run.first_seq - 1)
                if stop < view_hi or self._remaining <= 0:
                    return offset + stop
        return hi

    def _views(self, run: Run, lo: int, hi: int) -> Iterator[tuple[View, int, int, int]]:
        room = self._spec.max_bytes - self._size
        return self._reader.views(self._plan.topic_id, run, lo, hi, window_bytes=room)

    def _postings(self, run: Run) -> list[int]:
        """The indexes of a sealed run's entries with the routing key."""
        assert self._key is not None and isinstance(run, Segment)
        index = self._reader.store.index(SegmentKey(self._plan.topic_id, run.first_seq, run.cold))
        place = index.first_tag_from(self._key)
        if place >= index.tag_count or index.tag_at(place) != self._key:
            return []
        return index.postings_at(place)

    def _take_postings(self, run: Run, postings: list[int], lo: int, hi: int) -> int:
        """Takes entries by their index. Returns the index after the last examined one."""
        at, last = bisect_left(postings, lo), bisect_left(postings, hi)
        while at < last:
            if self._remaining <= 0:
                return postings[at]
            begin, more = postings[at], min(self._remaining, last - at)
            # Consecutive entries with the key are read together.
            count = next((n for n in range(1, more) if postings[at + n] != begin + n), more)
            for view, view_lo, view_hi, offset in self._views(run, begin, begin + count):
                first_entry = run.first_seq + offset - 1
                stop = self._take_some(view, range(view_lo, view_hi), view_hi, first_entry)
                if stop < view_hi:
                    return offset + stop
            at += count
        return hi

    def _take_view(self, view: View, lo: int, hi: int, first_entry: int) -> int:
        """Takes the fitting entries from a view; `first_entry` is the entry of its record 0, counted from 0 (seqs count
        from 1)."""
        if self._key is not None:
            matches = [index for index, text in tag_texts(view, lo, hi) if text == self._key]
            return self._take_some(view, matches, hi, first_entry)
        if not self._spec.as_json:
            return self._take_some(view, range(lo, hi), hi, first_entry)
        if self._promoter is not None and first_entry + lo < self._promoter.current_from:
            older = min(self._promoter.current_from - first_entry, hi)
            stop = self._take_older(self._promoter, view, lo, older, first_entry)
            if stop < older or self._remaining <= 0:
                return stop
            lo = older
            if lo == hi:
                return hi
        stop = end_that_fits(view, lo, hi, self._spec.max_bytes - self._size)
        if stop == lo and not self._pieces:
            stop += 1
        if stop - lo == 1:
            # Fast path: most streams grow one entry at a time.
            begin, end = data_span(view, lo)
            self._pieces.append(view.text[begin:end])
        else:
            self._pieces += data_parts(view, lo, stop)
        self._size += view.start(stop) - view.start(lo)
        self._remaining -= stop - lo
        return stop

    def _take_older(self, promoter: Promoter, view: View, lo: int, hi: int, first_entry: int) -> int:
        """Takes entries of earlier versions, many at once while there is room."""
        while lo < hi and self._remaining > 0:
            version = promoter.version_of(first_entry + lo)
            stop = min(hi, lo + self._remaining, lo + _TOGETHER)
            if version:
                stop = min(stop, promoter.last_of(version) + 1 - first_entry)
                stop = self._affordable(promoter, version, view, lo, stop)
                if stop == lo:
                    self._remaining = 0
                    return lo
            parts = data_parts(view, lo, stop) if version and stop - lo > 1 else ()
            promoted = promoter.chain(version).promote_all(parts) if parts else None
            if promoted is None or len(promoted) > self._spec.max_bytes - self._size:
                stopped = self._take_some(view, range(lo, stop), stop, first_entry)
                if stopped < stop:
                    return stopped
            else:
                self._pieces.append(memoryview(promoted))
                self._more += stop - lo - 1
                self._size += len(promoted)
                self._remaining -= stop - lo
                self._promoted = True
            lo = stop
        return lo

    def _affordable(self, promoter: Promoter, version: int, view: View, lo: int, hi: int) -> int:
        """Returns the end of the entries of a version that can be promoted within the answer's steps: at least the
        first of an answer; otherwise raises `SliceTooLongError`."""
        if not self._patient and promoter.ops_to_compile(version) > MAX_BUILT_OPS:
            if not self._pieces:
                raise SliceTooLongError
            return lo
        chain = promoter.chain(version)
        stop = lo
        while stop < hi:
            each = chain.steps_for(view.start(stop + 1) - view.start(stop))
            if each > self._steps:
                begin, end = data_span(view, stop)
                each = min(chain.steps_of(memoryview(view.text)[begin:end]), MAX_PROMOTION_STEPS)
            if each > self._steps and (self._pieces or stop > lo):
                break
            if each > self._steps and not self._patient:
                raise SliceTooLongError
            self._steps -= each
            stop += 1
        return stop

    def _is_affordable(self, promoter: Promoter, version: int, view: View, index: int) -> bool:
        """Whether a single entry can be promoted within the answer's steps; without, the answer ends before it."""
        if self._affordable(promoter, version, view, index, index + 1) > index:
            return True
        self._remaining = 0
        return False

    def _take_some(self, view: View, indexes: Iterable[int], hi: int, first_entry: int) -> int:
        """Takes single entries. Returns the index after the last examined one."""
        text, promoter, place = memoryview(view.text), self._promoter, self._spec.position
        for index in indexes:
            if self._remaining <= 0:
                return index
            begin, end = data_span(view, index)
            data = text[begin:end]
            if promoter is not None and first_entry + index < promoter.current_from:
                version = promoter.version_of(first_entry + index)
                if self._key is not None and version and not self._is_affordable(promoter, version, view, index):
                    return index
                data = memoryview(promoter.promote(first_entry + index, data))
                self._promoted = True
            entry = Entry(data, b"" if self._spec.as_json else meta_of(view, index))
            # Only of the entry that contains the position: it may be deleted by now, or have another key.
            skip = min(place.in_block, entry.size) if first_entry + index == place.counter else 0
            room = self._spec.max_bytes - self._size
            stop = entry.size
            if entry.size - skip > room:
                if self._pieces:
                    self._remaining = 0
                    return index
                if self._spec.splits and not self._spec.as_json:
                    stop = self._in_block = _cut_place(entry, skip, skip + room)
                elif not self._spec.as_json:
                    self._check_large(entry.size - skip)
            self._pieces.append(entry.part(skip, stop))
            self._size += stop - skip
            self._remaining -= 1
            if stop < entry.size:
                self._remaining = 0
                return index
            if self._size > self._spec.max_bytes:
                self._remaining = 0
        return hi

    def _check_large(self, nbytes: int) -> None:
        """Whether an entry longer than an answer may be one by itself, and here."""
        if nbytes > self._spec.max_entry_bytes:
            raise ThrottledError.under_pressure(retry_after_ms=1000)
        if nbytes > _LARGE_BYTES and not self._patient:
            raise SliceTooLongError


# Sizes of streams: the bytes that a reader gets of all entries. JSON is stored verbatim, and its size is counted when
# it is written. Bytes are stored as base64, whose padding only the text contains: the sealer measures each segment
# while it has the text in memory, and entries that are not sealed are measured on request.

_SIZED_ENTRIES = 16_384
_SIZED_TEXT = 1024 * 1024
"""The maximum numbers of newest entries, and of bytes of segments, that are examined for one answer.

Others are estimated: entries of segments that an earlier release sealed, or of which some entries were removed.
"""


class ContentSizes:
    """Returns the bytes of the live entries of a stream as returned to readers: without keys, meta and base64."""

    def __init__(self, topic: Topic, reader: RunReader) -> None:
        state = stream_of(topic)
        content_type = JSON_TYPE if state is None else state.content_type
        self._topic = topic
        self._is_json = is_json(content_type)
        if self._is_json:
            self.pending = sum([block.live_bytes for block in topic.tail])
            return
        self._reader = reader
        self._wrapping = wrapping_bytes(content_type)
        self._entries, self._text = _SIZED_ENTRIES, _SIZED_TEXT
        self.pending = sum([self._size(block) for block in reversed(topic.tail)])

    @cached_property
    def total(self) -> int:
        if self._is_json:
            return self._topic.live_bytes
        return self.pending + sum([self._size(segment) for segment in reversed(self._topic.segments)])

    def _size(self, run: Run) -> int:
        on_disk, is_cold = 0, False
        if isinstance(run, Block) and run.count == run.live == 1 and self._entries:
            self._entries -= 1
            return lone_content_bytes(run.text, run.rows)
        if isinstance(run, Segment):
            if run.content_bytes >= 0 and run.live == run.count:
                return run.content_bytes
            if run.blocks is None:
                on_disk, is_cold = run.text_bytes, bool(run.cold)
        if run.live <= self._entries and on_disk <= self._text and not is_cold:
            try:
                size = self._count(run)
            except (SegmentDamaged, RetryLaterError):
                return self._estimate(run)
            self._entries -= run.live
            self._text -= on_disk
            if isinstance(run, Segment) and run.live == run.count:
                run.content_bytes = size
            return size
        return self._estimate(run)

    def _count(self, run: Run) -> int:
        size, reader, topic_id = 0, self._reader, self._topic.id
        first = max(self._topic.earliest - run.first_seq, 0)
        for lo, hi in live_ranges(reader.flags(topic_id, run), first, run.count):
            for view, view_lo, view_hi, _ in reader.views(topic_id, run, lo, hi):
                size += content_bytes(view, view_lo, view_hi)
        return size

    def _estimate(self, run: Run) -> int:
        """From the average entry if the segment was measured; otherwise with one byte of padding for each."""
        if isinstance(run, Segment) and run.content_bytes >= 0 and run.payload_bytes:
            return run.content_bytes * run.live_bytes // run.payload_bytes
        return max((run.live_bytes - run.live * self._wrapping) * 3 // 4 - run.live, 0)
