"""The block: one appended batch, the body of an APPEND frame and the unit a segment is made of.

All numbers are little endian.

    offset  size   field
         0     8   first seq; the batch holds `count` seqs from here on
         8     8   ts, milliseconds since 1970, the same for the whole batch
        16     8   payload bytes: data and meta of all records, what caps and quotas count
        24     4   count
        28     4   base: where `text` begins in the topic's running text coordinate
        32     4   length of `text`
        36     1   layout (1 = JSON fragments, 2 = the same, written at another time than its ts says)
        37     1   traits (1 some record has a tag, 2 a node, 4 meta)
        38     2   length of the idempotency key
         .     8   written, milliseconds since 1970; only in layout 2
         .     k   idempotency key
         .   12n   rows, one a record
         .     .   text

`core.rows` has the picture of a row and of the text. The ts is what readers see: it is given by the writer, or kept
from running back when the clock does. `written` is what the clock said, and what a record's age is counted from.
"""

from struct import Struct

import msgspec

from topics.core.rows import ROW_BYTES

BLOCK_HEAD = Struct("<QQQIIIBBH")
_WRITTEN = Struct("<Q")
LAYOUT_JSON = 1
_LAYOUT_JSON_WRITTEN = 2
BASE_MAX = 1 << 30
"""Past this the running coordinate starts again at zero (and a segment ends), so that it always fits in 32 bits."""


class BlockParts(msgspec.Struct, frozen=True, gc=False):
    """A decoded block; `rows` and `text` are copies, free of the buffer they came from."""

    first_seq: int
    ts: int
    payload_bytes: int
    count: int
    base: int
    traits: int
    key: str | None
    rows: bytes
    text: bytes
    written: int | None = None
    """None where it is what the ts says."""


def encode_block_head(
    first_seq: int,
    ts: int,
    payload_bytes: int,
    base: int,
    traits: int,
    key: bytes,
    rows: bytes,
    text_length: int,
    written: int | None = None,
) -> bytes:
    """Everything of a block before its text."""
    count = len(rows) // ROW_BYTES
    if written is None or written == ts:
        head = BLOCK_HEAD.pack(first_seq, ts, payload_bytes, count, base, text_length, LAYOUT_JSON, traits, len(key))
        return head + key + rows
    layout = _LAYOUT_JSON_WRITTEN
    head = BLOCK_HEAD.pack(first_seq, ts, payload_bytes, count, base, text_length, layout, traits, len(key))
    return head + _WRITTEN.pack(written) + key + rows


def decode_block(body: memoryview) -> BlockParts:
    """Reads an APPEND body whose checksum was found right; raises ValueError where its lengths disagree."""
    if len(body) < BLOCK_HEAD.size:
        raise ValueError("a block shorter than its head")
    first_seq, ts, payload, count, base, length, layout, traits, key_length = BLOCK_HEAD.unpack_from(body, 0)
    if layout not in (LAYOUT_JSON, _LAYOUT_JSON_WRITTEN):
        raise ValueError(f"an unknown block layout {layout}")
    key_at = BLOCK_HEAD.size + (_WRITTEN.size if layout == _LAYOUT_JSON_WRITTEN else 0)
    rows_at = key_at + key_length
    text_at = rows_at + count * ROW_BYTES
    if count == 0 or text_at + length != len(body):
        raise ValueError("a block whose lengths disagree")
    written = None if layout == LAYOUT_JSON else _WRITTEN.unpack_from(body, BLOCK_HEAD.size)[0]
    key = str(body[key_at:rows_at], "utf-8") if key_length else None
    rows = bytes(body[rows_at:text_at])
    return BlockParts(first_seq, ts, payload, count, base, traits, key, rows, bytes(body[text_at:]), written)


def block_first_seq(body: memoryview) -> int:
    """The first seq alone, for whoever only notes where blocks are."""
    return int.from_bytes(body[:8], "little")
