"""Segment check: compares a segment's two files, and finds the damage and the records that can still be read.

Each file helps to repair the other. The index has the rows, so damaged text costs only the records it touches; the text
has complete fragments, so a lost index can be rebuilt. The segment's entry in the topic's state helps if a header is
damaged. A record counts as readable only if every byte of it is covered by a valid checksum.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

import msgspec

from topics.log.frame import BlockParts
from topics.log.segment import (
    CHUNK_BYTES,
    SegmentHead,
    SegmentIndex,
    chunk_is_good,
    decode_head,
    encode_data,
    guess_head,
)
from topics.model.records import DATA_NAME, META_NAME, NODE_NAME, TAG_NAME, TRAIT_META, TRAIT_NODES, TRAIT_TAGS
from topics.wire.record_encoding import FragmentParts, scan_fragments, scan_to_end
from topics.wire.record_slicing import Range, View, payload_sizes, tag_texts

_FLAG_UNKNOWN = 1


class Trouble(NamedTuple):
    """A problem of one of the two files."""

    ending: str
    what: str
    byte_range: tuple[int, int] | None = None
    records: tuple[int, int] | None = None
    """The first and the last affected record index; None if all are affected."""


class SegmentImage:
    """The readable contents of a segment's two files. `head` is None if nothing can be used.

    `expected` is the head according to the topic's state; its bias is ignored, because the state does not have it.
    """

    def __init__(self, data: memoryview | None, index: memoryview | None, expected: SegmentHead | None) -> None:
        self.head: SegmentHead | None = None
        self.text = b""
        self.rows = memoryview(b"").cast("I")
        self.blocks: list[tuple[int, int]] = []
        self.written: list[int] = []
        """The time of each block by the index; without an index, its ts."""
        self.kept: list[Range] = []
        """Ranges of record indexes that can be read back."""
        self.flags = b""
        """A byte for each record from the file: `DELETED`, 0, or another value, also for missing bytes.

        Only the topic's state can confirm them, because no checksum covers them.
        """
        self.troubles: list[Trouble] = []
        self.proven = True
        """Whether the head was covered by a valid checksum, or came from the topic's state."""
        if data is None:
            self.troubles.append(Trouble(".data", "the file is missing"))
        if index is None:
            self.troubles.append(Trouble(".idx", "the file is missing"))
        if data is not None:
            self._look(data, index, expected)

    @property
    def whole(self) -> bool:
        return not self.troubles

    @property
    def lost(self) -> list[Range]:
        """Ranges of record indexes that cannot be read back."""
        count = self.head.count if self.head is not None else 0
        edges = [(0, 0), *self.kept, (count, count)]
        return [(before[1], after[0]) for before, after in pairwise(edges) if before[1] < after[0]]

    @property
    def view(self) -> View:
        assert self.head is not None
        return View(self.text, self.rows, self.head.bias, self.head.count)

    def _look(self, data: memoryview, index: memoryview | None, expected: SegmentHead | None) -> None:
        opened = self._open_index(index) if index is not None else None
        head = self._find_head(data, opened, expected)
        if head is None:
            return
        self.head = head
        self.text = _text(data, head)
        self._read_flags(data, head)
        if len(self.text) < head.text_bytes:
            # The checksums follow the text, so a file truncated within the text has lost them all.
            return
        good = self._good_chunks(data, head)
        indexed = opened is not None and self._take_index(opened, head, good)
        if not indexed:
            self._scan(head, good)
        self._report_bad_chunks(head, good, indexed)

    def parts(self) -> Iterator[BlockParts]:
        """Returns the readable records as blocks, in order. A block never spans a gap or a change of time."""
        assert self.head is not None
        view, first_seq = self.view, self.head.first_seq
        edges = [*self.blocks, (self.head.count, 0)]
        for lo, hi in self.kept:
            for ((begin, ts), (end, _)), written in zip(pairwise(edges), self.written, strict=True):
                a, b = max(lo, begin), min(hi, end)
                if a < b:
                    rows, text = self.rows[3 * a : 3 * b].tobytes(), bytes(view.whole(a, b))
                    size, traits = sum(payload_sizes(view, a, b)), traits_of(view, a, b)
                    yield BlockParts(
                        first_seq + a, ts, size, b - a, self.rows[3 * a], traits, None, rows, text, written
                    )

    # The header

    def _find_head(
        self, data: memoryview, index: SegmentIndex | None, expected: SegmentHead | None
    ) -> SegmentHead | None:
        try:
            head = decode_head(data)
        except ValueError as error:
            rebuilt = self._rebuild_head(data, index, expected)
            end = rebuilt.text_at if rebuilt is not None else len(data)
            self.troubles.append(Trouble(".data", str(error), (0, min(end, len(data)))))
            return rebuilt
        # The name is informational: a repair may have renamed the topic.
        if expected is None or msgspec.structs.replace(expected, bias=head.bias, name=head.name) == head:
            return head
        self.troubles.append(Trouble(".data", "it is not the segment that the topic's state names"))
        mine = (head.topic_id, head.epoch) == (expected.topic_id, expected.epoch)
        return head if mine else None

    def _rebuild_head(
        self, data: memoryview, index: SegmentIndex | None, expected: SegmentHead | None
    ) -> SegmentHead | None:
        guessed = guess_head(data)
        if expected is None:
            self.proven = False
            return guessed
        biases = [index.rows[0]] if index is not None and index.count else []
        names = [expected.name]
        if guessed is not None:
            biases.append(guessed.bias)
            names.append(guessed.name)
        biases = biases or [0]
        heads = [msgspec.structs.replace(expected, bias=bias, name=name) for bias in biases for name in names]
        likely = msgspec.structs.replace(expected, bias=biases[0], name=names[-1])
        return next((head for head in heads if _is_sealed(data, head, _text(data, head))), likely)

    # The text

    def _good_chunks(self, data: memoryview, head: SegmentHead) -> list[bool]:
        if _is_sealed(data, head, self.text):
            # The header, the text's own checksums and the seal agree, so at most the stored checksums are damaged.
            return [True] * head.chunks
        complete = len(data) >= head.flags_at - 8
        return [complete and chunk_is_good(data, head, chunk) for chunk in range(head.chunks)]

    def _report_bad_chunks(self, head: SegmentHead, good: list[bool], indexed: bool) -> None:
        begin = 0
        for is_good, group in groupby(good):
            end = begin + len(list(group))
            if not is_good:
                lo, hi = begin * CHUNK_BYTES, min(end * CHUNK_BYTES, head.text_bytes)
                lost = self._touching(head, lo, hi) if indexed else _span(self.lost)
                place = (head.text_at + lo, head.text_at + hi)
                self.troubles.append(Trouble(".data", "a wrong checksum of a part of the text", place, lost))
            begin = end

    def _touching(self, head: SegmentHead, lo: int, hi: int) -> tuple[int, int] | None:
        """Returns the first and the last record with a byte in a range of the text; None if it has at most a comma."""
        first = bisect_left(range(head.count), lo + 1, key=lambda i: self.view.start(i + 1) - 1)
        last = bisect_left(range(head.count), hi, key=self.view.start) - 1
        return (first, last) if first <= last else None

    # The index

    def _open_index(self, data: memoryview) -> SegmentIndex | None:
        try:
            return SegmentIndex(data)
        except (ValueError, TypeError, IndexError) as error:
            self.troubles.append(Trouble(".idx", str(error), (0, len(data))))
            return None

    def _take_index(self, index: SegmentIndex, head: SegmentHead, good: list[bool]) -> bool:
        """Uses the rows of the index if they fit the text; returns the problems of the index."""
        problem = None
        if (index.topic_id, index.first_seq, index.count) != (head.topic_id, head.first_seq, head.count):
            problem = "it belongs to another segment"
        else:
            try:
                blocks = index.blocks()
                problem = _blocks_problem(blocks, head)
                if problem is None:
                    self.rows, self.blocks, self.written = index.rows, blocks, index.written()
                    self.kept = self._in_good_chunks(head, good)
                    problem = self._rows_problem(head) or (self._tables_problem(index, head) if all(good) else None)
            except (ValueError, TypeError, IndexError) as error:
                problem = str(error)
        if problem is not None:
            self.troubles.append(Trouble(".idx", problem))
            self.rows, self.blocks, self.written, self.kept = memoryview(b"").cast("I"), [], [], []
        return problem is None

    def _in_good_chunks(self, head: SegmentHead, good: list[bool]) -> list[Range]:
        if all(good):
            return [(0, head.count)]
        starts = [start - head.bias for start in self.rows[0::3].tolist()]
        ends = [*(start - 1 for start in starts[1:]), head.text_bytes]
        kept, lo = [], 0
        for chunk, is_good in enumerate(good):
            if not is_good:
                hi = bisect_right(ends, chunk * CHUNK_BYTES)
                if lo < hi:
                    kept.append((lo, hi))
                lo = max(lo, bisect_left(starts, (chunk + 1) * CHUNK_BYTES))
        if lo < head.count:
            kept.append((lo, head.count))
        return kept

    def _rows_problem(self, head: SegmentHead) -> str | None:
        """Returns whether the rows of the readable records match the positions of the fragments."""
        text = self.text
        starts = [start - head.bias for start in self.rows[0::3].tolist()]
        starts.append(len(text) + 1)
        if starts[0] != 0 or any(before + 2 > after for before, after in pairwise(starts)) or starts[-2] >= len(text):
            return "its rows are out of order"
        metas, lasts = self.rows[1::3].tolist(), self.rows[2::3].tolist()
        ends = [index for index, _ in self.blocks[1:]] + [head.count]
        kept = iter(self.kept)
        lo, hi = next(kept, (head.count, head.count))
        for (begin, ts), stop in zip(self.blocks, ends, strict=True):
            for i in range(begin, stop):
                if i >= hi:
                    lo, hi = next(kept, (head.count, head.count))
                if i < lo:
                    continue
                start, end, last = starts[i], starts[i + 1] - 2, lasts[i]
                meta_at = end - (last & 0xFFFF) - metas[i]
                if not (
                    text.startswith(b'{"$seq":%d,"$ts":%d,' % (head.first_seq + i, ts), start)
                    and text.startswith(DATA_NAME, start + (last >> 16) - len(DATA_NAME))
                    and start + (last >> 16) < meta_at
                    and (not metas[i] or text.startswith(META_NAME, meta_at))
                    and (not last & 0xFFFF or text.startswith(TAG_NAME, end - (last & 0xFFFF)))
                    and text[end] == ord("}")
                    and (end + 1 == len(text) or text[end + 1] == ord(","))
                ):
                    return f"its row of record {head.first_seq + i} does not fit the text"
        return None

    def _tables_problem(self, index: SegmentIndex, head: SegmentHead) -> str | None:
        view = self.view
        tags: dict[bytes, list[int]] = {}
        for record, text in tag_texts(view, 0, head.count):
            tags.setdefault(text, []).append(record)
        listed = [(index.tag_at(place), index.postings_at(place)) for place in range(index.tag_count)]
        if listed != sorted(tags.items()):
            return "its tags are not those of the records"
        if sum(payload_sizes(view, 0, head.count)) != head.payload_bytes:
            return "its rows do not add up to the segment's payload"
        if traits_of(view, 0, head.count) != head.traits:
            return "its rows have other traits than the segment"
        return None

    def _scan(self, head: SegmentHead, good: list[bool]) -> None:
        """Rebuilds the rows from the text: from the front to the first damage, and from the last damage on."""
        bad = [chunk for chunk, is_good in enumerate(good) if not is_good]
        limit = bad[0] * CHUNK_BYTES if bad else len(self.text)
        parts = list(scan_fragments(self.text, 0, head.first_seq, limit))
        if bad:
            behind = (bad[-1] + 1) * CHUNK_BYTES
            first, last = head.first_seq + len(parts), head.first_seq + head.count - 1
            parts += scan_to_end(self.text, behind, first, last) if behind < len(self.text) else []
        self._take_parts(head, parts)

    def _take_parts(self, head: SegmentHead, parts: list[FragmentParts]) -> None:
        rows = array("I", bytes(12 * head.count))
        last_ts = None
        for part in parts:
            i = part.seq - head.first_seq
            rows[3 * i : 3 * i + 3] = array("I", (part.start + head.bias, part.meta, part.head << 16 | part.tag))
            if i + 1 < head.count:
                # A record ends at the start of the next one, also if that one is lost.
                rows[3 * i + 3] = part.end + 1 + head.bias
            if part.ts != last_ts:
                self.blocks.append((i, part.ts))
                self.written.append(part.ts)
                last_ts = part.ts
            if self.kept and self.kept[-1][1] == i:
                self.kept[-1] = (self.kept[-1][0], i + 1)
            else:
                self.kept.append((i, i + 1))
        self.rows = memoryview(rows)

    # The flags

    def _read_flags(self, data: memoryview, head: SegmentHead) -> None:
        found = bytes(data[head.flags_at : head.flags_at + head.count])
        self.flags = found + bytes((_FLAG_UNKNOWN,)) * (head.count - len(found))


def _text(data: memoryview, head: SegmentHead) -> bytes:
    return bytes(data[head.text_at : head.checksums_at])


def _is_sealed(data: memoryview, head: SegmentHead, text: bytes) -> bool:
    """Returns whether this head and the text are intact, whatever chunk checksums are stored."""
    return encode_data(head, [text], b"")[3] == bytes(data[head.flags_at - 8 : head.flags_at])


def _span(ranges: list[Range]) -> tuple[int, int] | None:
    return (ranges[0][0], ranges[-1][1] - 1) if ranges else None


def _blocks_problem(blocks: list[tuple[int, int]], head: SegmentHead) -> str | None:
    if not blocks or blocks[0][0] != 0 or blocks[-1][0] >= head.count:
        return "its blocks do not cover the segment"
    if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(blocks)):
        return "its blocks are out of order"
    if blocks[0][1] != head.first_ts or blocks[-1][1] != head.last_ts:
        return "its blocks have other times than the segment"
    return None


def traits_of(view: View, lo: int, hi: int) -> int:
    """Returns whether any of these records has a tag, a node or meta, as the bits of `model.records`."""
    lasts = view.rows[3 * lo + 2 : 3 * hi : 3].tolist()
    traits = TRAIT_META if any(view.rows[3 * lo + 1 : 3 * hi : 3]) else 0
    traits |= TRAIT_TAGS if any(last & 0xFFFF for last in lasts) else 0
    for index, last in enumerate(lasts, lo):
        start = view.start(index)
        if NODE_NAME in bytes(view.text[start : start + (last >> 16)]):
            return traits | TRAIT_NODES
    return traits
