"""Record encoding: JSON fragments, written once at append and joined by every read.

`model.records` describes fragments and rows. No payload is parsed here; a fragment's parts are found by arithmetic over
the rows.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import add
from typing import NamedTuple

import msgspec

from topics.model.records import (
    DATA_NAME,
    META_NAME,
    NODE_NAME,
    ROW,
    SEQ_NAME,
    TAG_NAME,
    TRAIT_META,
    TRAIT_NODES,
    TRAIT_TAGS,
    TS_NAME,
    PlainRecords,
    Record,
    find_plain,
)

_THOUSAND = 1000
_LAST_DIGITS: list[msgspec.Raw | bytes] = [b"%03d" % number for number in range(_THOUSAND)]

_encode_json = msgspec.json.Encoder().encode


class Fragments(NamedTuple):
    """An encoded batch: the text, its rows, and its size for caps."""

    text: bytes
    rows: bytes
    payload_bytes: int
    traits: int

    def and_then(self, other: "Fragments") -> "Fragments":
        """Joins the fragments of two batches; the second batch's base must match the end of the first."""
        text, rows, payload_bytes, traits = other
        return Fragments(
            b"%b,%b" % (self.text, text), self.rows + rows, self.payload_bytes + payload_bytes, self.traits | traits
        )


def node_suffix(node: str) -> bytes:
    """Returns the end of the head of a fragment of this node, which node filters search for."""
    return NODE_NAME + _encode_json(node) + DATA_NAME


def encode_fragments(
    records: Sequence[Record], first_seq: int, ts: int, node: str | None, base: int, plain: PlainRecords | None = None
) -> Fragments:
    """Encodes a batch. `node` is the batch's default; `base` is the start of its text in the topic's coordinate.

    `plain` is the result of `find_plain` for the records, if the caller has it.
    """
    count = len(records) if plain is None else len(plain.sizes)
    if count == 1 and node is None:
        record = records[0]
        if record.tag is None and record.meta is None and record.node is None:
            data = record.data
            text = b'{"$seq":%d,"$ts":%d,"data":%b}' % (first_seq, ts, data)
            size = len(data)
            return Fragments(text, ROW.pack(base, 0, 0, len(text) - size - 1), size, 0)
    plain = plain or find_plain(records)
    tails = None if plain is not None else _find_tails(records)
    if plain is None and tails is None:
        return _encode_mixed(records, first_seq, ts, node, base)
    change = _next_length(first_seq)
    if first_seq + count > change:
        # Before and after it, all heads have the same length.
        few = change - first_seq
        before = encode_fragments(records[:few], first_seq, ts, node, base)
        behind = encode_fragments(records[few:], change, ts, node, base + len(before.text) + 1)
        return before.and_then(behind)
    if first_seq < _THOUSAND:
        return _encode_mixed(records, first_seq, ts, node, base)
    datas, sizes = plain or _find_data(records)
    middle = b',"$ts":%d' % ts + (DATA_NAME if node is None else node_suffix(node))
    head = len(SEQ_NAME) + len(str(first_seq)) + len(middle)
    traits = 0 if node is None else TRAIT_NODES
    rows = array("I", (0, 0, head << 16)) * count
    if tails is None:
        rows[0::3] = _starts(sizes, base, head + 2)
    else:
        lengths = list(map(len, tails))
        rows[0::3] = _starts(list(map(add, sizes, lengths)), base, head + 2)
        rows[2::3] = array("I", [head << 16 | length for length in lengths])
        traits |= TRAIT_TAGS
    return Fragments(_join(datas, tails, first_seq, middle), rows.tobytes(), sum(sizes), traits)


def _find_tails(records: Sequence[Record]) -> list[bytes] | None:
    """Returns the text after the data of each record of a batch in which no record has more than a tag; None if one has
    more."""
    tails = [
        b"" if r.tag is None else TAG_NAME + _encode_json(r.tag) for r in records if r.meta is None and r.node is None
    ]
    return tails if len(tails) == len(records) else None


def _find_data(records: Sequence[Record]) -> PlainRecords:
    datas = [record.data for record in records]
    return PlainRecords(datas, list(map(len, datas)))


def _next_length(seq: int) -> int:
    """Returns the seq from which on seqs are longer than this one, or long enough to share a prefix."""
    return 10 ** len(str(seq)) if seq >= _THOUSAND else _THOUSAND


def _starts(sizes: list[int], base: int, stride: int) -> "array[int]":
    """Returns the start of each fragment: after all earlier data, and as many strides.

    One long addition adds the strides of all of them: every sum fits into its 32 bits, so none runs into the next.
    """
    before = array("I", list(accumulate(sizes, initial=base)))
    before.pop()
    starts = int.from_bytes(before.tobytes(), "little") + _strides(len(sizes), stride)
    return array("I", starts.to_bytes(4 * len(sizes), "little"))


@lru_cache(maxsize=64)
def _strides(count: int, stride: int) -> int:
    """Returns 0, 1, 2 and so on strides, each in 32 bits."""
    return int.from_bytes(array("I", range(0, count * stride, stride)).tobytes(), "little")


def _join(datas: list[msgspec.Raw | bytes], tails: list[bytes] | None, first_seq: int, middle: bytes) -> bytes:
    """Returns the text of records whose heads differ in their seqs only.

    No number is formatted for each record: a thousand consecutive seqs share a prefix, and their suffixes are
    precomputed.
    """
    parts: list[msgspec.Raw | bytes] = []
    pieces = 4 if tails is None else 5
    for thousand in range(first_seq // _THOUSAND, (first_seq + len(datas) - 1) // _THOUSAND + 1):
        low = max(first_seq, thousand * _THOUSAND)
        high = min(first_seq + len(datas), (thousand + 1) * _THOUSAND)
        begin, end = low - first_seq, high - first_seq
        some: list[msgspec.Raw | bytes] = [middle] * (pieces * (high - low))
        some[0::pieces] = [b'},{"$seq":%d' % thousand] * (high - low)
        some[1::pieces] = _LAST_DIGITS[low % _THOUSAND : low % _THOUSAND + high - low]
        some[3::pieces] = datas[begin:end]
        if tails is not None:
            some[4::pieces] = tails[begin:end]
        parts += some
    parts.append(b"}")
    # The first one does not end an earlier record.
    parts[0] = b'{"$seq":%d' % (first_seq // _THOUSAND)
    return b"".join(parts)


def _encode_mixed(records: Sequence[Record], first_seq: int, ts: int, node: str | None, base: int) -> Fragments:
    """The general way: each record has its own head, meta part and tag part."""
    middles: dict[str | None, bytes] = {}
    fragments: list[bytes] = []
    rows = array("I")
    start, payload, traits = base, 0, 0
    for seq, record in enumerate(records, first_seq):
        owner = record.node if record.node is not None else node
        middle = middles.get(owner)
        if middle is None:
            suffix = DATA_NAME if owner is None else node_suffix(owner)
            middle = middles[owner] = b',"$ts":%d' % ts + suffix
        meta = b"" if record.meta is None else b"%b%b" % (META_NAME, record.meta)
        tag = b"" if record.tag is None else TAG_NAME + _encode_json(record.tag)
        fragment = b'{"$seq":%d%b%b%b%b}' % (seq, middle, record.data, meta, tag)
        fragments.append(fragment)
        size = len(record.data)
        head = len(fragment) - size - len(meta) - len(tag) - 1
        rows.extend((start, len(meta), head << 16 | len(tag)))
        start += len(fragment) + 1
        payload += size + (len(meta) - len(META_NAME) if meta else 0)
        traits |= (TRAIT_META if meta else 0) | (TRAIT_TAGS if tag else 0) | (TRAIT_NODES if owner is not None else 0)
    return Fragments(b",".join(fragments), rows.tobytes(), payload, traits)


# Recovery of fragments from a text without rows.
#
# A JSON object is complete at exactly one position: no prefix of it is an object. So a fragment ends at the first
# position that looks like the start of the next seq and up to which the text decodes. Similar text in a payload cannot
# mislead, because the text before it does not decode.

_BEGIN = re.compile(re.escape(SEQ_NAME) + rb"([1-9][0-9]{0,19})" + re.escape(TS_NAME))
_NONE = msgspec.Raw()


class FragmentParts(NamedTuple):
    """The position of a fragment in the text and the lengths of its parts; see `model.records`."""

    seq: int
    ts: int
    start: int
    end: int
    meta: int
    tag: int
    head: int


class _Fragment(msgspec.Struct, gc=False):
    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw
    node: msgspec.Raw = msgspec.field(name="$node", default=_NONE)
    meta: msgspec.Raw = _NONE
    tag: msgspec.Raw = msgspec.field(name="$tag", default=_NONE)


_decode = msgspec.json.Decoder(_Fragment).decode


def read_fragment(text: bytes, start: int, end: int) -> FragmentParts | None:
    """Returns the fragment from `start` to exactly `end`; None if this is not one whole fragment."""
    piece = text[start:end]
    try:
        found = _decode(piece)
    except (ValueError, RecursionError):
        return None
    node = NODE_NAME + bytes(found.node) if len(found.node) else b""
    head = b"%b%d%b%d%b%b" % (SEQ_NAME, found.seq, TS_NAME, found.ts, node, DATA_NAME)
    tag = TAG_NAME + bytes(found.tag) if len(found.tag) else b""
    if not piece.startswith(head) or not piece.endswith(tag + b"}"):
        return None
    meta = 0
    if len(found.meta):
        stop = len(piece) - 1 - len(tag)
        begin = piece.rfind(META_NAME, 0, len(piece[:stop].rstrip()) - len(found.meta))
        if begin < len(head):
            return None
        meta = stop - begin
    return FragmentParts(found.seq, found.ts, start, end, meta, len(tag), len(head))


def scan_fragments(text: bytes, start: int, seq: int, limit: int) -> Iterator[FragmentParts]:
    """Yields complete fragments from `start` to `limit`, the first of which has this seq."""
    while start < limit:
        marker = b",%b%d%b" % (SEQ_NAME, seq + 1, TS_NAME)
        found, at = None, start
        while found is None and (at := text.find(marker, at + 1, limit)) >= 0:
            found = read_fragment(text, start, at)
        if found is None and limit == len(text):
            found = read_fragment(text, start, limit)
        if found is None or found.seq != seq:
            return
        yield found
        start, seq = found.end + 1, seq + 1


def scan_to_end(text: bytes, start: int, first_seq: int, last_seq: int) -> list[FragmentParts]:
    """Returns the longest series of fragments after `start` that reaches the end of the text with `last_seq`; used
    after damage.

    Only the end proves that a start was real and not part of a payload.
    """
    for match in _BEGIN.finditer(text, start):
        seq = int(match[1])
        if first_seq <= seq <= last_seq and (match.start() == 0 or text[match.start() - 1] == ord(",")):
            found = list(scan_fragments(text, match.start(), seq, len(text)))
            if found and found[-1].seq == last_seq and found[-1].end == len(text):
                return found
    return []
