"""Stream frames and the stream part of snapshots. All numbers are little endian; a mark is msgpack.

    STREAM_APPEND   u32 length of the mark | mark (`StreamMark`) | block (`log.frame`)
    STREAM_CREATE   u32 length of the mark | mark (`StreamPart`) | u32 length | body of a CREATE frame | block, if any
    STREAM_CLOSE    u32 length of the mark | mark (`StreamMark`)
    STREAM_RENEW    u64 milliseconds since 1970
    STREAM_RETIRE   empty
    STREAM_CONTRACT contract (`topics.schema.contract`), whole

The state that a batch changes is in the same frame as its records, because a crash may cut between any two frames: with
the producer's position but without the records, a retry would be taken for a duplicate; with the records alone, they
would be appended twice. The first batch of a stream is in the frame of its creation for the same reason: a client that
retries must not learn that the stream exists while its first content is missing.
"""

from struct import Struct
from typing import NamedTuple

import msgspec

from topics.log.frame import Created, Frame, FrameKind, decode_create

PART_NAME = "stream"
"""The name of the stream part in a snapshot, which is the msgpack of `StreamPart`."""
_U32 = Struct("<I")
_U64 = Struct("<Q")


class Producer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The position of a producer in a stream."""

    id: str
    epoch: int
    seq: int


class StreamMark(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The changes of an append to its stream besides the records."""

    now_ms: int
    """Time of arrival; the batch may carry another time chosen by its writer."""
    seq: str | None = None
    producer: Producer | None = None
    close: bool = False


class Origin(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The source of a fork, and the last record that the fork reads from it."""

    topic_id: int
    upto: int
    below: int = 0
    """Inherited records below this seq were deleted in the fork."""


class ForkRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The request that created a fork, to compare a repeated request with it."""

    source: str
    counter: int
    in_block: int
    sub_offset: int


class StreamPart(msgspec.Struct, array_like=True, frozen=True):
    """The state of a stream without its records, for creation and snapshots."""

    content_type: str
    ttl_s: int | None = None
    expires_ms: int | None = None
    renewed_ms: int = 0
    closed: bool = False
    last_seq: str | None = None
    producers: list[Producer] = []
    retired: bool = False
    origin: Origin | None = None
    epochs: list[tuple[int, int]] = []
    """For a fork of an earlier version, from the oldest ancestor on: the epoch of its offsets up to each counter.

    It is derived from the sources now, because the list grows with every fork of a fork.
    """
    fork: ForkRequest | None = None
    contract: bytes = b""
    """The contract (`topics.schema.contract`); empty if there is none."""


_encode = msgspec.msgpack.Encoder().encode
_decode_mark = msgspec.msgpack.Decoder(StreamMark).decode
_decode_part = msgspec.msgpack.Decoder(StreamPart).decode


class _Parts(NamedTuple):
    mark: memoryview
    created: memoryview
    block: memoryview


def encode_part(part: StreamPart) -> bytes:
    return _encode(part)


def decode_part(raw: bytes | memoryview) -> StreamPart:
    return _decode_part(raw)


def encode_mark(mark: StreamMark) -> bytes:
    """The body of a STREAM_CLOSE frame, and the prefix of a STREAM_APPEND frame before its block."""
    encoded = _encode(mark)
    return _U32.pack(len(encoded)) + encoded


def encode_creation(part: StreamPart, created: bytes) -> bytes:
    """Encodes a STREAM_CREATE frame up to its block; `created` is the body of the equivalent CREATE frame."""
    encoded = _encode(part)
    return b"".join((_U32.pack(len(encoded)), encoded, _U32.pack(len(created)), created))


def encode_renewal(now_ms: int) -> bytes:
    return _U64.pack(now_ms)


def decode_renewal(body: memoryview) -> int:
    return int(_U64.unpack(body)[0])


def mark_in(frame: Frame) -> StreamMark:
    return _decode_mark(_split(frame.kind, frame.body).mark)


def part_in(frame: Frame) -> StreamPart:
    return _decode_part(_split(frame.kind, frame.body).mark)


def creation_in(frame: Frame) -> Created | None:
    """The topic that a frame creates; None for other frames."""
    if frame.kind is FrameKind.CREATE:
        return decode_create(frame.body)
    if frame.kind is FrameKind.STREAM_CREATE:
        return decode_create(_split(frame.kind, frame.body).created)
    return None


def stream_block_in(kind: FrameKind, body: memoryview) -> memoryview | None:
    """The block of a stream frame; None if it has none."""
    if kind is FrameKind.STREAM_APPEND or kind is FrameKind.STREAM_CREATE:
        return _split(kind, body).block or None
    return None


def head_at_creation(frame: Frame) -> int:
    """Returns the first seq of a new topic: a fork continues after its fork point."""
    if frame.kind is FrameKind.STREAM_CREATE:
        origin = part_in(frame).origin
        return origin.upto if origin is not None else 0
    return 0


def _split(kind: FrameKind, body: memoryview) -> _Parts:
    mark, at = _take(body, 0)
    created = body[:0]
    if kind is FrameKind.STREAM_CREATE:
        created, at = _take(body, at)
    return _Parts(mark, created, body[at:])


def _take(body: memoryview, at: int) -> tuple[memoryview, int]:
    if len(body) < at + _U32.size:
        raise ValueError("a stream's frame shorter than its head")
    begin = at + _U32.size
    end = begin + _U32.unpack_from(body, at)[0]
    if end > len(body):
        raise ValueError("a stream's frame whose lengths disagree")
    return body[begin:end], end
