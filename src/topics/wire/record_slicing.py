"""Record slicing: cuts answers out of stored fragments, the counterpart of `wire.record_encoding`.

A `View` is one run of fragments with its rows, from memory or from a mapped segment. Whole spans are one slice;
only a projection that leaves something out (tags, meta, a filtered node) looks at single rows, and even then only at
the rows, never at a payload.
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
"""Record indexes from the first up to, not including, the second."""


class View(msgspec.Struct, frozen=True, gc=False):
    """Fragments in `text`, found through `rows` (32-bit words, three a record, starts counted from `bias`)."""

    text: bytes | memoryview
    rows: memoryview
    bias: int
    count: int

    def start(self, index: int) -> int:
        """Where a fragment begins in the text; the end of the text plus its comma for the index past the last."""
        return self.rows[3 * index] - self.bias if index < self.count else len(self.text) + 1

    def whole(self, lo: int, hi: int) -> bytes | memoryview:
        """The fragments lo up to hi as one piece, commas between them."""
        if lo == 0 and hi == self.count:
            return self.text
        return self.text[self.start(lo) : self.start(hi) - 1]


class RowsOnly(View, frozen=True, gc=False):
    """A view whose text is elsewhere: it reports where fragments are, and how large, and nothing more."""

    text_bytes: int

    def start(self, index: int) -> int:
        return self.rows[3 * index] - self.bias if index < self.count else self.text_bytes + 1


def end_that_fits(view: View, lo: int, hi: int, budget: int) -> int:
    """The largest end up to `hi` so that the fragments from `lo` fit into `budget` bytes; `lo` when none does."""
    start = view.start(lo)
    if view.start(hi) - 1 - start <= budget:
        return hi
    starts = view.rows[0::3]
    return max(lo, bisect_right(starts, view.bias + start + budget + 1, lo, hi) - 1)


def project(view: View, ranges: Iterable[Range], tags: bool, meta: bool, data: bool = True) -> list[bytes | memoryview]:
    """The fragments of some ranges, less the `$tag`, `meta` or `data` not asked for; join them with commas."""
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
        # An end points past the comma; the closing brace stands two bytes before it.
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
    """Each record of a range with its head, less the name of its data, and what else was asked for."""
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
    """The ranges less the records whose head ends in one of the suffixes (`wire.record_encoding.node_suffix`)."""
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
    """The size of each record for caps and quotas: the bytes of its data and meta."""
    starts = view.rows[3 * lo : 3 * hi : 3].tolist()
    starts.append(view.start(hi) + view.bias)
    metas = view.rows[3 * lo + 1 : 3 * hi : 3].tolist()
    lasts = view.rows[3 * lo + 2 : 3 * hi : 3].tolist()
    return [
        after - before - 2 - (last >> 16) - (last & 0xFFFF) - (_META_NAME_BYTES if meta else 0)
        for before, after, meta, last in zip(starts, starts[1:], metas, lasts, strict=False)
    ]


def tag_texts(view: View, lo: int, hi: int) -> list[tuple[int, bytes]]:
    """The index and the JSON string of every tag in a range."""
    found = []
    for index, word in enumerate(view.rows[3 * lo + 2 : 3 * hi : 3].tolist(), lo):
        length = word & 0xFFFF
        if length:
            end = view.start(index + 1) - 2
            found.append((index, bytes(view.text[end - length + _TAG_NAME_BYTES : end])))
    return found


def tag_value(text: bytes) -> str:
    """A tag as it was given, from its JSON string."""
    return _decode_string(text) if b"\\" in text else str(text[1:-1], "utf-8")


class RecordParts(msgspec.Struct, frozen=True, gc=False):
    """One record taken apart; data and meta are the writer's text."""

    data: bytes
    meta: bytes | None
    tag: str | None
    node: str | None


def parts_of(view: View, index: int) -> RecordParts:
    """Takes a stored record apart, so that it can be written to another topic."""
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
    """When a record was committed, and its node."""
    start = view.start(index)
    found = _HEAD.fullmatch(view.text[start : start + (view.rows[3 * index + 2] >> 16)])
    assert found is not None, "a record has a head"
    return int(found[1]), None if found[2] is None else _decode_string(found[2])


def data_of(view: View, index: int) -> bytes:
    """One record's payload, verbatim."""
    meta, last = view.rows[3 * index + 1], view.rows[3 * index + 2]
    begin = view.start(index) + (last >> 16)
    return bytes(view.text[begin : view.start(index + 1) - 2 - (last & 0xFFFF) - meta])


def data_parts(view: View, lo: int, hi: int) -> list[bytes | memoryview]:
    """The payloads of a range, verbatim."""
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
    """Where one record's payload begins and ends in the text."""
    rows, at, bias = view.rows, 3 * index, view.bias
    last = rows[at + 2]
    end = rows[at + 3] - bias if index + 1 < view.count else view.start(index + 1)
    return rows[at] - bias + (last >> 16), end - 2 - (last & 0xFFFF) - rows[at + 1]


def meta_of(view: View, index: int) -> bytes:
    """One record's meta part with its name, `,"meta":META`; empty when it has none."""
    meta, last = view.rows[3 * index + 1], view.rows[3 * index + 2]
    end = view.start(index + 1) - 2 - (last & 0xFFFF)
    return bytes(view.text[end - meta : end])
