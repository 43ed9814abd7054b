"""Record slicing: cuts answers out of stored fragments, the counterpart of `wire.record_encoding`.

A `View` is one run of fragments with its rows, from memory or from a mapped segment. Whole ranges are one slice; only a
projection that omits something (tags, meta, a filtered node) reads single rows, and never a payload.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from topics.model.records import DATA_NAME, META_NAME, NODE_NAME, TAG_NAME

_META_NAME_BYTES = len(META_NAME)
_TAG_NAME_BYTES = len(TAG_NAME)
_DATA_NAME_BYTES = len(DATA_NAME)
_decode_string = msgspec.json.Decoder(str).decode
_HEAD = re.compile(rb'\{"\$seq":[0-9]+,"\$ts":([0-9]+)(?:,"\$node":(.+))?,"data":', re.DOTALL)

Range = tuple[int, int]
"""A range of record indexes; the end is exclusive."""


class View(msgspec.Struct, frozen=True, gc=False):
    """Fragments in `text`, located by `rows` (32-bit words, three for each record, starts counted from `bias`)."""

    text: bytes | memoryview
    rows: memoryview
    bias: int
    count: int

    def start(self, index: int) -> int:
        """Returns the start of a fragment in the text; for the index past the last, the end of the text plus its
        comma."""
        return self.rows[3 * index] - self.bias if index < self.count else len(self.text) + 1

    def whole(self, lo: int, hi: int) -> bytes | memoryview:
        """Returns the fragments from lo to before hi as one piece, separated by commas."""
        if lo == 0 and hi == self.count:
            return self.text
        return self.text[self.start(lo) : self.start(hi) - 1]


class RowsOnly(View, frozen=True, gc=False):
    """A view without its text: it has only the positions and sizes of fragments."""

    text_bytes: int

    def start(self, index: int) -> int:
        return self.rows[3 * index] - self.bias if index < self.count else self.text_bytes + 1


def end_that_fits(view: View, lo: int, hi: int, budget: int) -> int:
    """Returns the largest end up to `hi` such that the fragments from `lo` fit into `budget` bytes; `lo` if none
    does."""
    start = view.start(lo)
    if view.start(hi) - 1 - start <= budget:
        return hi
    starts = view.rows[0::3]
    return max(lo, bisect_right(starts, view.bias + start + budget + 1, lo, hi) - 1)


def project(view: View, ranges: Iterable[Range], tags: bool, meta: bool, data: bool = True) -> list[bytes | memoryview]:
    """Yields the fragments of some ranges without unrequested `$tag`, `meta` or `data`; join them with commas."""
    if not data:
        return [b",".join(_without_data(view, lo, hi, tags, meta)) for lo, hi in ranges if lo < hi]
    if tags and meta:
        return [view.whole(lo, hi) for lo, hi in ranges]
    text, rows = view.text, view.rows
    pieces: list[bytes | memoryview] = []
    for lo, hi in ranges:
        starts = [view.start(i) for i in range(lo, hi + 1)]
        metas = rows[3 * lo + 1 : 3 * hi : 3].tolist()
        tag_parts = [word & 0xFFFF for word in rows[3 * lo + 2 : 3 * hi : 3].tolist()]
        ends = starts[1:]
        # An end points past the comma; the closing brace is two bytes before it.
        if meta:
            cut = [text[s : e - 2 - t] for s, e, t in zip(starts, ends, tag_parts, strict=False)]
        elif tags:
            cut = [
                b"".join((text[s : e - 2 - t - m], text[e - 2 - t : e - 2]))
                for s, e, t, m in zip(starts, ends, tag_parts, metas, strict=False)
            ]
        else:
            cut = [text[s : e - 2 - t - m] for s, e, t, m in zip(starts, ends, tag_parts, metas, strict=False)]
        if cut:
            pieces.append(b"},".join(cut) + b"}")
    return pieces


def _without_data(view: View, lo: int, hi: int, tags: bool, meta: bool) -> list[bytes]:
    """Yields each record of a range with its head, without the name of its data, and the other requested parts."""
    text, cut = view.text, []
    for index in range(lo, hi):
        start, end = view.start(index), view.start(index + 1) - 2
        meta_bytes, word = view.rows[3 * index + 1], view.rows[3 * index + 2]
        tag_at = end - (word & 0xFFFF)
        head = text[start : start + (word >> 16) - _DATA_NAME_BYTES]
        cut.append(
            b"".join(
                (head, text[tag_at - meta_bytes : tag_at] if meta else b"", text[tag_at:end] if tags else b"", b"}")
            )
        )
    return cut


def without_nodes(view: View, ranges: Iterable[Range], suffixes: tuple[bytes, ...]) -> list[Range]:
    """Returns the ranges without the records whose head ends in one of the suffixes
    (`wire.record_encoding.node_suffix`)."""
    kept: list[Range] = []
    for lo, hi in ranges:
        begin = lo
        for index in range(lo, hi):
            start = view.start(index)
            head = view.rows[3 * index + 2] >> 16
            if bytes(view.text[start : start + head]).endswith(suffixes):
                if begin < index:
                    kept.append((begin, index))
                begin = index + 1
        if begin < hi:
            kept.append((begin, hi))
    return kept


def payload_sizes(view: View, lo: int, hi: int) -> list[int]:
    """Returns the size of each record for caps and quotas: the bytes of its data and meta."""
    starts = view.rows[3 * lo : 3 * hi : 3].tolist()
    starts.append(view.start(hi) + view.bias)
    metas = view.rows[3 * lo + 1 : 3 * hi : 3].tolist()
    lasts = view.rows[3 * lo + 2 : 3 * hi : 3].tolist()
    return [
        after - before - 2 - (last >> 16) - (last & 0xFFFF) - (_META_NAME_BYTES if meta else 0)
        for before, after, meta, last in zip(starts, starts[1:], metas, lasts, strict=False)
    ]


def tag_texts(view: View, lo: int, hi: int) -> list[tuple[int, bytes]]:
    """Yields the index and the JSON string of every tag in a range."""
    found = []
    for index, word in enumerate(view.rows[3 * lo + 2 : 3 * hi : 3].tolist(), lo):
        length = word & 0xFFFF
        if length:
            end = view.start(index + 1) - 2
            found.append((index, bytes(view.text[end - length + _TAG_NAME_BYTES : end])))
    return found


def tag_value(text: bytes) -> str:
    """Decodes a tag from its JSON string."""
    return _decode_string(text) if b"\\" in text else str(text[1:-1], "utf-8")


class RecordParts(msgspec.Struct, frozen=True, gc=False):
    """The parts of a record; data and meta are the writer's text."""

    data: bytes
    meta: bytes | None
    tag: str | None
    node: str | None


def parts_of(view: View, index: int) -> RecordParts:
    """Splits a stored record into its parts, to write it to another topic."""
    meta_size, last = view.rows[3 * index + 1], view.rows[3 * index + 2]
    start, end = view.start(index), view.start(index + 1) - 2
    head_size, tag_size = last >> 16, last & 0xFFFF
    head = bytes(view.text[start : start + head_size])
    meta = bytes(view.text[end - tag_size - meta_size + _META_NAME_BYTES : end - tag_size]) if meta_size else None
    tag = tag_value(bytes(view.text[end - tag_size + _TAG_NAME_BYTES : end])) if tag_size else None
    node_at = head.find(NODE_NAME)
    node = _decode_string(head[node_at + len(NODE_NAME) : -_DATA_NAME_BYTES]) if node_at >= 0 else None
    return RecordParts(data_of(view, index), meta, tag, node)


def head_of(view: View, index: int) -> tuple[int, str | None]:
    """Returns the ts of a record, and its node."""
    start = view.start(index)
    found = _HEAD.fullmatch(view.text[start : start + (view.rows[3 * index + 2] >> 16)])
    assert found is not None, "a record has a head"
    return int(found[1]), None if found[2] is None else _decode_string(found[2])


def data_of(view: View, index: int) -> bytes:
    """Returns a record's payload, verbatim."""
    meta, last = view.rows[3 * index + 1], view.rows[3 * index + 2]
    begin = view.start(index) + (last >> 16)
    return bytes(view.text[begin : view.start(index + 1) - 2 - (last & 0xFFFF) - meta])


def data_parts(view: View, lo: int, hi: int) -> list[bytes | memoryview]:
    """Yields the payloads of a range, verbatim."""
    text, bias = view.text, view.bias
    starts = view.rows[3 * lo : 3 * hi : 3].tolist()
    starts.append(view.start(hi) + bias)
    metas = view.rows[3 * lo + 1 : 3 * hi : 3].tolist()
    lasts = view.rows[3 * lo + 2 : 3 * hi : 3].tolist()
    return [
        text[begin - bias + (last >> 16) : end - bias - 2 - (last & 0xFFFF) - meta]
        for begin, end, meta, last in zip(starts, starts[1:], metas, lasts, strict=False)
    ]


def data_span(view: View, index: int) -> Range:
    """Returns the start and end of a record's payload in the text."""
    rows, at, bias = view.rows, 3 * index, view.bias
    last = rows[at + 2]
    end = rows[at + 3] - bias if index + 1 < view.count else view.start(index + 1)
    return rows[at] - bias + (last >> 16), end - 2 - (last & 0xFFFF) - rows[at + 1]


def meta_of(view: View, index: int) -> bytes:
    """Returns a record's meta part with its name, `,"meta":META`; empty if it has none."""
    meta, last = view.rows[3 * index + 1], view.rows[3 * index + 2]
    end = view.start(index + 1) - 2 - (last & 0xFFFF)
    return bytes(view.text[end - meta : end])
