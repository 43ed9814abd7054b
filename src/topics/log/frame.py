"""The frame: one logged change, in the write-ahead log and in snapshots.

All numbers are little endian.

    offset  size  field
         0     4  magic "TPF1"
         4     4  length of the whole frame, magic and checksum included
         8     8  lsn: this frame's place in its shard, counting up by one without holes
        16     8  synced: the highest lsn known to be on disk when this frame was made
        24     8  topic id (0 = none)
        32     1  kind
        33     7  moment: what the server's clock said, never less than in the frame before; 0 where nobody asked
        40     n  body, its meaning given by the kind
      40+n     8  XXH3-64 of every byte before it

A frame is valid when the magic, the length, the kind and the checksum agree. One of an unknown kind whose checksum is
right, or with the magic of another version, was written by a newer release: it is neither damage nor a torn tail, and
reading stops with NewerFormatError. A log file is preallocated with zeros, so four zero bytes where a magic should
stand are the end of what was written. `synced` distinguishes a torn tail from damage: if a later frame records that lsn
7 was on disk, a missing or broken frame 7 cannot result from a crash.

The block: one appended batch, the body of an APPEND frame and the unit a segment is made of.

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

`model.records` has the picture of a row and of the text. Readers see the ts: it is set by the writer, or by the clock
but never decreasing. `written` is the clock's time, from which a record's age is counted. Layouts 3 and 4 are for
single records of one tick that share a block, at least one of which has a key.

The bodies of the small frames: all frames other than records. All numbers are little endian.

    CREATE   u64 epoch | u64 ts | u16 length of the name | name | config as JSON
    CONFIG   u64 head of the topic at that moment | config as JSON
    DROP     empty
    DELETE   u64 before seq (0 = none) | ranges: u64 first, u64 last, each inclusive, ascending; they may touch
    EVICT    u64 floor: every seq below it is gone | u8 reason (1 cap, 2 ttl, 3 none: the topic is complete)
    CEILING  u64 seq
    FENCE    u16 length of the token | token as UTF-8; empty removes the fence | perhaps a block, which it comes with

A DELETE contains seqs and not the selector that found them, so replay repeats the decision whatever else changed.

A topic that was of class ephemeral may hold records that a replay does not have, so a replay cannot compute the
evictions of its caps, and every eviction is an EVICT frame. An EVICT with reason 3 and floor 0 records that a snapshot
has all its records; from then on a replay computes evictions by caps again.
"""

import contextlib
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from topics.model.errors import NewerFormatError
from topics.model.records import ROW_BYTES

MAGIC = b"TPF1"
_MAGIC_BEGIN = MAGIC[:-1]
_MAGIC_WORD = int.from_bytes(MAGIC, "little")
_HEADER = Struct("<IIQQQQ")
"""Kind and moment share one number; the kind is its lowest byte."""
_CHECKSUM = Struct("<Q")
HEADER_BYTES = _HEADER.size
CHECKSUM_BYTES = _CHECKSUM.size
OVERHEAD_BYTES = HEADER_BYTES + CHECKSUM_BYTES

# Up to this size a copy costs less than separate writes.
_JOINED_BYTES_MAX = 4096


class FrameKind(IntEnum):
    """The kinds of frames. Numbers are never reused."""

    APPEND = 1
    """A block: one batch of records of one topic (`log.frame`)."""
    CREATE = 2
    """A topic was created."""
    CONFIG = 3
    """A topic's config was replaced."""
    DROP = 4
    """A topic was deleted with everything in it."""
    DELETE = 5
    """Records were deleted for good."""
    EVICT = 6
    """Records below a floor were evicted."""
    CEILING = 7
    """A seq ceiling: no higher seq was given out before this frame was on disk."""
    ROUTER = 8
    """A router of this topic was created or changed (`routers.router_frames`)."""
    UNROUTE = 9
    """A router of this topic was deleted."""
    FORWARD = 10
    """Copies of another topic's records, as a map from seqs of this topic to seqs of that one."""
    LEASE = 11
    """Jobs of a queue were claimed, extended or given back (`queues.queue_frames`)."""
    DELAY = 12
    """The jobs of the following append are delayed until a time."""
    ARRIVAL = 13
    """Records moved here from another topic: a block, and their seqs there."""
    DEPARTURE = 14
    """Records moved to another topic and are removed here."""
    FORWARDS = 15
    """The same records forwarded into many topics: many FORWARD frames in one (`log.frame`)."""
    STREAM_APPEND = 16
    """A block, and its other changes to the stream (`streams.stream_frames`)."""
    STREAM_CREATE = 17
    """A topic was created as a stream, optionally with its first block."""
    STREAM_CLOSE = 18
    """A stream was closed without a block."""
    STREAM_RENEW = 19
    """A stream with a time to live was used."""
    STREAM_RETIRE = 20
    """A stream that forks still read was deleted."""
    STREAM_CONTRACT = 21
    """The schemas or the profile of a stream were changed."""
    TXN_BEGIN = 24
    """An attempt at a transaction begins (`transactions.transaction_frames`)."""
    TXN_STAGE = 25
    """A block that is staged for a transaction, and its destination."""
    TXN_END = 26
    """An attempt ended without a commit."""
    TXN_APPEND = 27
    """A block that becomes visible only if its transaction is committed."""
    TXN_COMMIT = 28
    """A transaction is committed."""
    CONSUMER = 29
    """A named consumer was created, committed a cursor or was deleted (`consumers.consumer_state`)."""
    FENCE = 30
    """The fence token of a topic was set, perhaps with one batch (`engine.conditional_append`)."""
    QUEUE = 31
    """Jobs of a queue failed, or it was paused or resumed (`queues.queue_frames`)."""
    SNAPSHOT_HEAD = 32
    """Opens a snapshot file."""
    TOPIC = 33
    """A topic's whole state but its payload, in a snapshot."""
    SNAPSHOT_END = 34
    """Closes a snapshot file."""
    DIRECTORY = 35
    """The positions of the topics in the range of a snapshot before it."""
    SCHEDULE = 36
    """A schedule of this topic was created, changed or deleted, or ran (`schedules.schedule_frames`)."""


_KINDS = {int(kind): kind for kind in FrameKind}


class Frame(NamedTuple):
    """A valid frame found in a buffer; `body` is a view into it."""

    kind: FrameKind
    topic_id: int
    lsn: int
    synced: int
    body: memoryview
    start: int
    end: int
    moment: int = 0
    """The time at which it was logged, in milliseconds since 1970; 0 if unknown."""

    @property
    def is_part(self) -> bool:
        """Whether it was derived from a shared frame, so that its body is not in the log."""
        return self.end - self.start != OVERHEAD_BYTES + len(self.body)


class BadFrame(NamedTuple):
    """Bytes that are not a valid frame, and the reason."""

    start: int
    reason: str
    length: int
    """The length field if it is plausible, otherwise 0."""


def seal_frame(
    kind: FrameKind, topic_id: int, lsn: int, synced: int, head: bytes, tail: bytes = b"", moment: int = 0
) -> list[bytes]:
    """Returns the pieces of a frame, in order. The body is given in two parts so that a large payload is not copied."""
    length = OVERHEAD_BYTES + len(head) + len(tail)
    start = _HEADER.pack(_MAGIC_WORD, length, lsn, synced, topic_id, kind | moment << 8) + head
    if len(tail) < _JOINED_BYTES_MAX:
        whole = start + tail
        return [whole + _CHECKSUM.pack(xxh3_64_intdigest(whole))]
    digest = xxh3_64(start)
    digest.update(tail)
    return [start, tail, _CHECKSUM.pack(digest.intdigest())]


def read_frame(buffer: memoryview, start: int) -> Frame | BadFrame | None:
    """Returns the frame at `start`; None at the end of the log (zeros, or the end of the buffer).

    Raises NewerFormatError if a newer release wrote the frame.
    """
    room = len(buffer) - start
    if room < HEADER_BYTES:
        return None if not any(buffer[start:]) else BadFrame(start, "the file ends inside a frame's header", 0)
    magic, length, lsn, synced, topic_id, kind_and_moment = _HEADER.unpack_from(buffer, start)
    if magic == 0:
        # Zeros end the log only if the whole header is zero; anything else is a torn header.
        return None if not any(buffer[start : start + HEADER_BYTES]) else BadFrame(start, "a torn frame header", 0)
    if magic != _MAGIC_WORD:
        if _is_newer_magic(buffer, start, length):
            raise NewerFormatError(f"frames with the magic {str(buffer[start : start + 4], 'ascii')}")
        return BadFrame(start, "no frame magic", 0)
    if length < OVERHEAD_BYTES or length > room:
        return BadFrame(start, f"a frame length of {length} bytes with {room} bytes left", 0)
    end = start + length
    found = xxh3_64_intdigest(buffer[start : end - CHECKSUM_BYTES])
    if found != _CHECKSUM.unpack_from(buffer, end - CHECKSUM_BYTES)[0]:
        return BadFrame(start, "a wrong checksum", length)
    known = _KINDS.get(kind_and_moment & 0xFF)
    if known is None:
        raise NewerFormatError(f"a frame of the unknown kind {kind_and_moment & 0xFF} at byte {start}")
    body = buffer[start + HEADER_BYTES : end - CHECKSUM_BYTES]
    return Frame(known, topic_id, lsn, synced, body, start, end, kind_and_moment >> 8)


def _is_newer_magic(buffer: memoryview, start: int, length: int) -> bool:
    """Returns whether the magic is that of another version, and not this one with a damaged digit."""
    magic = bytes(buffer[start : start + len(MAGIC)])
    if magic[:-1] != _MAGIC_BEGIN or not magic[-1:].isdigit():
        return False
    end = start + length
    if not OVERHEAD_BYTES <= length <= len(buffer) - start:
        return True
    digest = xxh3_64(MAGIC)
    digest.update(buffer[start + len(MAGIC) : end - CHECKSUM_BYTES])
    return digest.intdigest() != int(_CHECKSUM.unpack_from(buffer, end - CHECKSUM_BYTES)[0])


@contextlib.contextmanager
def named(path: str) -> Iterator[None]:
    """Adds the file to a NewerFormatError raised while it is read."""
    try:
        yield
    except NewerFormatError as error:
        raise error.at(path) from None


def read_body(buffer: memoryview, start: int, kind: FrameKind) -> memoryview:
    """Returns the body of the frame of the expected kind at `start`, checked like in `read_frame`.

    Raises ValueError if there is none. Faster than `read_frame`: a page of a list reads a hundred frames and uses only
    their bodies.
    """
    last = len(buffer) - CHECKSUM_BYTES
    if start + HEADER_BYTES <= last:
        magic, length, _, _, _, kind_and_moment = _HEADER.unpack_from(buffer, start)
        body, end = start + HEADER_BYTES, start + length - CHECKSUM_BYTES
        if (
            magic == _MAGIC_WORD
            and kind_and_moment & 0xFF == kind
            and body <= end <= last
            and xxh3_64_intdigest(buffer[start:end]) == _CHECKSUM.unpack_from(buffer, end)[0]
        ):
            return buffer[body:end]
    raise ValueError(f"no complete frame of the kind {kind.name} at {start}")


def find_frames(buffer: memoryview, start: int) -> Iterator[Frame]:
    """Yields every valid frame at or after `start`, and skips other bytes between them."""
    whole = bytes(buffer[start:])
    at = whole.find(MAGIC)
    while at >= 0:
        found = read_frame(buffer, start + at)
        if isinstance(found, Frame):
            yield found
            at = whole.find(MAGIC, found.end - start)
        else:
            at = whole.find(MAGIC, at + 1)


BLOCK_HEAD = Struct("<QQQIIIBBH")
_WRITTEN = Struct("<Q")
LAYOUT_JSON = 1
LAYOUT_WRITTEN = 2
LAYOUT_KEYS = 3
LAYOUT_KEYS_WRITTEN = 4
BASE_MAX = 1 << 30
"""Beyond this the text coordinate restarts at zero (and a segment ends), so it always fits in 32 bits."""


Keys = str | dict[str, int]
"""The idempotency key of a whole batch, or the keys of single records with their positions."""

_KEYS_LENGTH = Struct("<I")
_encode_keys = msgspec.msgpack.Encoder().encode
_decode_keys = msgspec.msgpack.Decoder(dict[str, int]).decode


class BlockParts(msgspec.Struct, frozen=True, gc=False):
    """A decoded block; `rows` and `text` are copies that do not reference the buffer."""

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
    """None if it equals the ts."""


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
    """Encodes the part of a block before its text."""
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
    """Returns the range of the key or keys of a block; the rows follow it."""
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
    """Decodes an APPEND body whose checksum was verified.

    Raises ValueError if its lengths disagree, and NewerFormatError for a layout of a newer release.
    """
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
    """Returns the first seq only, for callers that record the positions of blocks."""
    return int.from_bytes(body[:8], "little")


_CREATE = Struct("<QQH")
_U64 = Struct("<Q")
_U16 = Struct("<H")
_PAIR = Struct("<QQ")
_EVICT = Struct("<QB")
_CAP, _TTL, _COMPLETE = 1, 2, 3


class Created(NamedTuple):
    epoch: int
    ts: int
    name: str
    config: bytes


def encode_create(epoch: int, ts: int, name: str, config: bytes) -> bytes:
    encoded = name.encode()
    return _CREATE.pack(epoch, ts, len(encoded)) + encoded + config


def decode_create(body: memoryview) -> Created:
    epoch, ts, length = _CREATE.unpack_from(body, 0)
    end = _CREATE.size + length
    return Created(epoch, ts, str(body[_CREATE.size : end], "utf-8"), bytes(body[end:]))


def encode_config_change(head: int, config: bytes) -> bytes:
    return _U64.pack(head) + config


def decode_config_change(body: memoryview) -> tuple[int, bytes]:
    return _U64.unpack_from(body, 0)[0], bytes(body[_U64.size :])


def encode_delete(before_seq: int, ranges: Sequence[tuple[int, int]]) -> bytes:
    return _U64.pack(before_seq) + b"".join([_PAIR.pack(first, last) for first, last in ranges])


def encode_pairs(pairs: Iterable["array[int]"]) -> bytes:
    """Encodes the ranges of a DELETE from arrays of first and last seqs."""
    # Joining bytes releases the interpreter lock while it copies; filling one large array does not.
    return b"".join([_little_endian(some).tobytes() for some in pairs])


def _little_endian(numbers: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers


def decode_delete(body: memoryview) -> tuple[int, list[tuple[int, int]]]:
    return _U64.unpack_from(body, 0)[0], list(_PAIR.iter_unpack(body[_U64.size :]))


class Evicted(NamedTuple):
    floor: int
    expired: bool
    complete: bool


def encode_evict(floor: int, expired: bool) -> bytes:
    return _EVICT.pack(floor, _TTL if expired else _CAP)


def encode_complete() -> bytes:
    return _EVICT.pack(0, _COMPLETE)


def decode_evict(body: memoryview) -> Evicted:
    floor, reason = _EVICT.unpack(body)
    return Evicted(floor, reason == _TTL, reason == _COMPLETE)


def encode_ceiling(seq: int) -> bytes:
    return _U64.pack(seq)


def decode_ceiling(body: memoryview) -> int:
    return int(_U64.unpack(body)[0])


def encode_fence(token: str) -> bytes:
    encoded = token.encode()
    return _U16.pack(len(encoded)) + encoded


def decode_fence(body: memoryview) -> tuple[str, memoryview | None]:
    """Returns the token and the block. Raises ValueError for a malformed body."""
    end = _U16.size + (_U16.unpack_from(body)[0] if len(body) >= _U16.size else 0)
    if not _U16.size <= end <= len(body):
        raise ValueError("a fence frame shorter than its token")
    return str(body[_U16.size : end], "utf-8"), body[end:] or None
