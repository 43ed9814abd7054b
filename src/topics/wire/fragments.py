"""Records as the JSON fragments answers are made of: written once at append, cut and joined by every read.

`core.rows` has the picture of a fragment and of the row that says where its parts are. Nothing here parses a
payload; a fragment's parts are found by arithmetic over the rows.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import msgspec

from topics.core.records import PlainRecords, Record, find_plain
from topics.core.rows import (
    DATA_NAME,
    META_NAME,
    NODE_NAME,
    ROW,
    SEQ_NAME,
    TAG_NAME,
    TRAIT_META,
    TRAIT_NODES,
    TRAIT_TAGS,
)

_THOUSAND = 1000
_LAST_DIGITS: list[msgspec.Raw | bytes] = [b"%03d" % number for number in range(_THOUSAND)]

_encode_json = msgspec.json.Encoder().encode


class Fragments(NamedTuple):
    """An encoded batch: the text, its rows, and what caps count."""

    text: bytes
    rows: bytes
    payload_bytes: int
    traits: int


def node_suffix(node: str) -> bytes:
    """How the head of a fragment of this node ends; what a node filter looks for."""
    return NODE_NAME + _encode_json(node) + DATA_NAME


def encode_fragments(
    records: Sequence[Record], first_seq: int, ts: int, node: str | None, base: int, plain: PlainRecords | None = None
) -> Fragments:
    """Encodes a batch. `node` is the batch's default; `base` is where its text begins in the topic's coordinate.

    `plain` is what `find_plain` says of the records, for whoever has it.
    """
    count = len(records)
    if count == 1 and node is None:
        record = records[0]
        if record.tag is None and record.meta is None and record.node is None:
            data = record.data
            text = b'{"$seq":%d,"$ts":%d,"data":%b}' % (first_seq, ts, data)
            size = len(data)
            return Fragments(text, ROW.pack(base, 0, 0, len(text) - size - 1), size, 0)
    plain = plain or find_plain(records)
    digits = len(str(first_seq))
    if plain is None or first_seq < _THOUSAND or len(str(first_seq + count - 1)) != digits:
        return _encode_mixed(records, first_seq, ts, node, base)
    datas, sizes = plain
    middle = b',"$ts":%d' % ts + (DATA_NAME if node is None else node_suffix(node))
    text = _join_plain(datas, first_seq, middle)
    # All heads have the same length.
    head = len(SEQ_NAME) + digits + len(middle)
    rows = array("I", (0, 0, head << 16)) * count
    rows[0::3] = _starts(sizes, base, head + 2)
    return Fragments(text, rows.tobytes(), sum(sizes), 0 if node is None else TRAIT_NODES)


def _starts(sizes: list[int], base: int, stride: int) -> "array[int]":
    """Where each fragment begins: behind all data before it, and as many strides.

    One long addition adds the strides of all of them: every sum fits into its 32 bits, so none runs into the next.
    """
    before = array("I", list(accumulate(sizes, initial=base)))
    before.pop()
    starts = int.from_bytes(before.tobytes(), "little") + _strides(len(sizes), stride)
    return array("I", starts.to_bytes(4 * len(sizes), "little"))


@lru_cache(maxsize=64)
def _strides(count: int, stride: int) -> int:
    """0, 1, 2 and so on strides, each in 32 bits."""
    return int.from_bytes(array("I", range(0, count * stride, stride)).tobytes(), "little")


def _join_plain(datas: list[msgspec.Raw | bytes], first_seq: int, middle: bytes) -> bytes:
    """The text of records whose heads differ in their seqs alone.

    No number is formatted for a record: the seqs of one thousand have the same beginning, and their ends are known.
    """
    parts: list[msgspec.Raw | bytes] = []
    for thousand in range(first_seq // _THOUSAND, (first_seq + len(datas) - 1) // _THOUSAND + 1):
        low = max(first_seq, thousand * _THOUSAND)
        high = min(first_seq + len(datas), (thousand + 1) * _THOUSAND)
        some: list[msgspec.Raw | bytes] = [middle] * (4 * (high - low))
        some[0::4] = [b'},{"$seq":%d' % thousand] * (high - low)
        some[1::4] = _LAST_DIGITS[low % _THOUSAND : low % _THOUSAND + high - low]
        some[3::4] = datas[low - first_seq : high - first_seq]
        parts += some
    parts.append(b"}")
    # The first of them ends no record before it.
    parts[0] = b'{"$seq":%d' % (first_seq // _THOUSAND)
    return b"".join(parts)


def _encode_mixed(records: Sequence[Record], first_seq: int, ts: int, node: str | None, base: int) -> Fragments:
    """The general way: each record has a head, a meta part and a tag part of its own."""
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
