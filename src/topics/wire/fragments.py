"""Records as the JSON fragments answers are made of: written once at append, cut and joined by every read.

`formats.block` has the picture of a fragment and of the row that says where its parts are. Nothing here parses a
payload; a fragment's parts are found by arithmetic over the rows.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from operator import add
from struct import Struct
from typing import NamedTuple

import msgspec

from topics.core.records import Record

_TRAIT_TAGS = 1
_TRAIT_NODES = 2
_TRAIT_META = 4
_META_NAME_BYTES = len(b',"meta":')
_ONE_ROW = Struct("<IIHH")

_encode_json = msgspec.json.Encoder().encode


class Fragments(NamedTuple):
    """An encoded batch: the text, its rows, and what caps count."""

    text: bytes
    rows: bytes
    payload_bytes: int
    traits: int


def node_suffix(node: str) -> bytes:
    """How the head of a fragment of this node ends; what a node filter looks for."""
    return b',"$node":' + _encode_json(node) + b',"data":'


def encode_fragments(records: Sequence[Record], first_seq: int, ts: int, node: str | None, base: int) -> Fragments:
    """Encodes a batch. `node` is the batch's default; `base` is where its text begins in the topic's coordinate."""
    count = len(records)
    if count == 1 and node is None:
        record = records[0]
        if record.tag is None and record.meta is None and record.node is None:
            data = record.data
            text = b'{"$seq":%d,"$ts":%d,"data":%b}' % (first_seq, ts, data)
            size = len(data)
            return Fragments(text, _ONE_ROW.pack(base, 0, 0, len(text) - size - 1), size, 0)
    if [r for r in records if r.tag is not None or r.meta is not None or r.node is not None]:
        return _encode_mixed(records, first_seq, ts, node, base)
    suffix = b',"data":' if node is None else node_suffix(node)
    middle = b',"$ts":%d' % ts + suffix
    traits = 0 if node is None else _TRAIT_NODES
    digits = len(str(first_seq))
    if len(str(first_seq + count - 1)) != digits:
        return _encode_mixed(records, first_seq, ts, node, base)
    # All heads have the same length, so one format call writes the whole batch and one pass finds every start.
    datas = [r.data for r in records]
    sizes = list(map(len, datas))
    arguments: list[object] = [None] * (2 * count)
    arguments[0::2] = range(first_seq, first_seq + count)
    arguments[1::2] = datas
    template = b'{"$seq":%d' + middle.replace(b"%", b"%%") + b"%b}"
    text = (b",".join([template] * count)) % tuple(arguments)
    head = 8 + digits + len(middle)
    rows = array("I", bytes(12 * count))
    rows[0::3] = array("I", map(add, accumulate(sizes, initial=0), range(base, base + count * (head + 2), head + 2)))
    rows[2::3] = array("I", [head << 16]) * count
    return Fragments(text, rows.tobytes(), sum(sizes), traits)


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
            suffix = b',"data":' if owner is None else node_suffix(owner)
            middle = middles[owner] = b',"$ts":%d' % ts + suffix
        meta = b"" if record.meta is None else b',"meta":%b' % record.meta
        tag = b"" if record.tag is None else b',"$tag":' + _encode_json(record.tag)
        fragment = b'{"$seq":%d%b%b%b%b}' % (seq, middle, record.data, meta, tag)
        fragments.append(fragment)
        size = len(record.data)
        head = len(fragment) - size - len(meta) - len(tag) - 1
        rows.extend((start, len(meta), head << 16 | len(tag)))
        start += len(fragment) + 1
        payload += size + (len(meta) - _META_NAME_BYTES if meta else 0)
        traits |= (
            (_TRAIT_META if meta else 0) | (_TRAIT_TAGS if tag else 0) | (_TRAIT_NODES if owner is not None else 0)
        )
    return Fragments(b",".join(fragments), rows.tobytes(), payload, traits)
