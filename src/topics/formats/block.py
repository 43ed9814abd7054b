"""The block: one appended batch, the body of an APPEND frame and the unit a segment is made of.

All numbers are little endian.

    offset  size   field
         0     8   first seq; the batch holds `count` seqs from here on
         8     8   ts, milliseconds since 1970, the same for the whole batch
        16     8   payload bytes: data and meta of all records, what caps and quotas count
        24     4   count
        28     4   base: where `text` begins in the topic's running text coordinate
        32     4   length of `text`
        36     1   layout (1 = JSON fragments, 2 = the same, and single records have keys of their own)
        37     1   traits (1 some record has a tag, 2 a node, 4 meta)
        38     2   length of the idempotency key; zero in layout 2
        40     k   layout 1: the idempotency key of the whole batch
                   layout 2: u32 length, msgpack map from a key to the place of its record, from 0, ascending
      40+k   12n   rows, one a record
         .     .   text

`core.rows` has the picture of a row and of the text. Layout 2 is for single records of one tick that share a block, at
least one of which came with a key.
"""

from itertools import pairwise
from struct import Struct

import msgspec

from topics.core.rows import ROW_BYTES

BLOCK_HEAD = Struct("<QQQIIIBBH")
LAYOUT_JSON = 1
LAYOUT_KEYS = 2
BASE_MAX = 1 << 30
"""Past this the running coordinate starts again at zero (and a segment ends), so that it always fits in 32 bits."""


Keys = str | dict[str, int]
"""The idempotency key of a whole batch, or those of single records with the place of each."""

_KEYS_LENGTH = Struct("<I")
_encode_keys = msgspec.msgpack.Encoder().encode
_decode_keys = msgspec.msgpack.Decoder(dict[str, int]).decode


class BlockParts(msgspec.Struct, frozen=True, gc=False):
    """A decoded block; `rows` and `text` are copies, free of the buffer they came from."""

    first_seq: int
    ts: int
    payload_bytes: int
    count: int
    base: int
    traits: int
    key: Keys | None
    rows: bytes
    text: bytes


def encode_block_head(
    first_seq: int, ts: int, payload_bytes: int, base: int, traits: int, key: bytes | dict[str, int], rows: bytes,
    text_length: int,
) -> bytes:  # fmt: skip
    """Everything of a block before its text."""
    count = len(rows) // ROW_BYTES
    if isinstance(key, bytes):
        head = BLOCK_HEAD.pack(first_seq, ts, payload_bytes, count, base, text_length, LAYOUT_JSON, traits, len(key))
        return head + key + rows
    keys = _encode_keys(key)
    head = BLOCK_HEAD.pack(first_seq, ts, payload_bytes, count, base, text_length, LAYOUT_KEYS, traits, 0)
    return head + _KEYS_LENGTH.pack(len(keys)) + keys + rows


def rows_start(body: memoryview, layout: int, key_length: int) -> int:
    """Where the rows of a block begin, behind its key or keys."""
    if layout == LAYOUT_JSON:
        return BLOCK_HEAD.size + key_length
    if layout != LAYOUT_KEYS:
        raise ValueError(f"an unknown block layout {layout}")
    keys_at = BLOCK_HEAD.size + _KEYS_LENGTH.size
    if key_length or len(body) < keys_at:
        raise ValueError("a block whose lengths disagree")
    return keys_at + int(_KEYS_LENGTH.unpack_from(body, BLOCK_HEAD.size)[0])


def decode_block(body: memoryview) -> BlockParts:
    """Reads an APPEND body whose checksum was found right; raises ValueError where its lengths disagree."""
    if len(body) < BLOCK_HEAD.size:
        raise ValueError("a block shorter than its head")
    first_seq, ts, payload, count, base, length, layout, traits, key_length = BLOCK_HEAD.unpack_from(body, 0)
    rows_at = rows_start(body, layout, key_length)
    text_at = rows_at + count * ROW_BYTES
    if count == 0 or text_at + length != len(body):
        raise ValueError("a block whose lengths disagree")
    key: Keys | None = None
    if layout == LAYOUT_KEYS:
        key = _keys_of(body[BLOCK_HEAD.size + _KEYS_LENGTH.size : rows_at], count)
    elif key_length:
        key = str(body[BLOCK_HEAD.size : rows_at], "utf-8")
    rows = bytes(body[rows_at:text_at])
    return BlockParts(first_seq, ts, payload, count, base, traits, key, rows, bytes(body[text_at:]))


def _keys_of(encoded: memoryview, count: int) -> dict[str, int]:
    keys = _decode_keys(encoded)
    places = list(keys.values())
    if not places or places[0] < 0 or places[-1] >= count or any(a >= b for a, b in pairwise(places)):
        raise ValueError("a block whose keys are of records that it does not have")
    return keys


def block_first_seq(body: memoryview) -> int:
    """The first seq alone, for whoever only notes where blocks are."""
    return int.from_bytes(body[:8], "little")
