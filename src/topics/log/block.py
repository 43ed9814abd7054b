"""The block: one appended batch, the body of an APPEND frame and the unit a segment is made of.

All numbers are little endian.

    offset  size   field
         0     8   first seq; the batch holds `count` seqs from here on
         8     8   ts, milliseconds since 1970, the same for the whole batch
        16     8   payload bytes: data and meta of all records, what caps and quotas count
        24     4   count
        28     4   base: where `text` begins in the topic's running text coordinate
        32     4   length of `text`
        36     1   layout (1 = JSON fragments, 2 = and a time of writing, 3 = and keys of single records, 4 = and both)
        37     1   traits (1 some record has a tag, 2 a node, 4 meta)
        38     2   length of the idempotency key; zero in layouts 3 and 4
         .     8   written, milliseconds since 1970; only in layouts 2 and 4
         .     k   layouts 1 and 2: the idempotency key of the whole batch
                   layouts 3 and 4: u32 length, msgpack map from a key to the place of its record, from 0, ascending
         .   12n   rows, one a record
         .     .   text

`model.records` has the picture of a row and of the text. The ts is what readers see: it is given by the writer, or kept
from running back when the clock does. `written` is what the clock said, and what a record's age is counted from.
Layouts 3 and 4 are for single records of one tick that share a block, at least one of which came with a key.
"""

from itertools import pairwise
from struct import Struct

import msgspec

from topics.model.errors import NewerFormatError
from topics.model.records import ROW_BYTES

BLOCK_HEAD = Struct("<QQQIIIBBH")
_WRITTEN = Struct("<Q")
LAYOUT_JSON = 1
LAYOUT_WRITTEN = 2
LAYOUT_KEYS = 3
LAYOUT_KEYS_WRITTEN = 4
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
    written: int | None = None
    """None where it is what the ts says."""


def encode_block_head(
    first_seq: int,
    ts: int,
    payload_bytes: int,
    base: int,
    traits: int,
    key: bytes | dict[str, int],
    rows: bytes,
    text_length: int,
    written: int | None = None,
) -> bytes:
    """Everything of a block before its text."""
    count = len(rows) // ROW_BYTES
    layout, behind = LAYOUT_JSON, b""
    if written is not None and written != ts:
        layout, behind = LAYOUT_WRITTEN, _WRITTEN.pack(written)
    if isinstance(key, bytes):
        head = BLOCK_HEAD.pack(first_seq, ts, payload_bytes, count, base, text_length, layout, traits, len(key))
        return head + behind + key + rows
    keys = _encode_keys(key)
    layout += LAYOUT_KEYS - LAYOUT_JSON
    head = BLOCK_HEAD.pack(first_seq, ts, payload_bytes, count, base, text_length, layout, traits, 0)
    return head + behind + _KEYS_LENGTH.pack(len(keys)) + keys + rows


def key_places(body: memoryview, layout: int, key_length: int) -> tuple[int, int]:
    """Where the key of a block, or its keys, begin and end; the rows follow."""
    if not LAYOUT_JSON <= layout <= LAYOUT_KEYS_WRITTEN:
        raise ValueError(f"an unknown block layout {layout}")
    key_at = BLOCK_HEAD.size + (_WRITTEN.size if layout in (LAYOUT_WRITTEN, LAYOUT_KEYS_WRITTEN) else 0)
    if layout < LAYOUT_KEYS:
        return key_at, key_at + key_length
    keys_at = key_at + _KEYS_LENGTH.size
    if key_length or len(body) < keys_at:
        raise ValueError("a block whose lengths disagree")
    return keys_at, keys_at + int(_KEYS_LENGTH.unpack_from(body, key_at)[0])


def decode_block(body: memoryview) -> BlockParts:
    """Reads an APPEND body whose checksum was found right; raises ValueError where its lengths disagree,
    and NewerFormatError for a layout of a newer release."""
    if len(body) < BLOCK_HEAD.size:
        raise ValueError("a block shorter than its head")
    first_seq, ts, payload, count, base, length, layout, traits, key_length = BLOCK_HEAD.unpack_from(body, 0)
    if layout > LAYOUT_KEYS_WRITTEN:
        raise NewerFormatError(f"a block of the unknown layout {layout}")
    key_at, rows_at = key_places(body, layout, key_length)
    text_at = rows_at + count * ROW_BYTES
    if count == 0 or text_at + length != len(body):
        raise ValueError("a block whose lengths disagree")
    has_written = layout in (LAYOUT_WRITTEN, LAYOUT_KEYS_WRITTEN)
    written = _WRITTEN.unpack_from(body, BLOCK_HEAD.size)[0] if has_written else None
    key: Keys | None = None
    if layout >= LAYOUT_KEYS:
        key = _keys_of(body[key_at:rows_at], count)
    elif key_length:
        key = str(body[key_at:rows_at], "utf-8")
    rows = bytes(body[rows_at:text_at])
    return BlockParts(first_seq, ts, payload, count, base, traits, key, rows, bytes(body[text_at:]), written)


def _keys_of(encoded: memoryview, count: int) -> dict[str, int]:
    keys = _decode_keys(encoded)
    places = list(keys.values())
    if not places or places[0] < 0 or places[-1] >= count or any(a >= b for a, b in pairwise(places)):
        raise ValueError("a block whose keys are of records that it does not have")
    return keys


def block_first_seq(body: memoryview) -> int:
    """The first seq alone, for whoever only notes where blocks are."""
    return int.from_bytes(body[:8], "little")
