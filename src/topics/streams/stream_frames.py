"""The frames of streams. All numbers are little endian; a mark is msgpack.

    STREAM_APPEND   u32 length of the mark | mark (`StreamMark`) | block (`log.block`)
    STREAM_CREATE   u32 length of the mark | mark (`StreamPart`) | u32 length | body of a CREATE frame | block, if any
    STREAM_CLOSE    u32 length of the mark | mark (`StreamMark`)
    STREAM_RENEW    u64 milliseconds since 1970
    STREAM_RETIRE   empty
    STREAM_CONTRACT contract (`topics.schema.contract`), whole

What a batch changes besides its records stands in the same frame, because a crash may cut between any two: a producer
whose place is known without its records would have its retry taken for a duplicate, and records without the place would
be appended twice. A stream's first batch stands in the frame of its creation for the same reason: a client that has to
ask again must not be told that the stream is there while its first content is not.
"""

from struct import Struct
from typing import NamedTuple

import msgspec

from topics.log.control_frames import Created, decode_create
from topics.log.frame import Frame, FrameKind

PART_NAME = "stream"
"""What a topic that is a stream has under this name in a snapshot is the msgpack of `StreamPart`."""
_U32 = Struct("<I")
_U64 = Struct("<Q")


class Producer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where a producer stands in a stream."""

    id: str
    epoch: int
    seq: int


class StreamMark(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What one append changes in its stream besides its records."""

    now_ms: int
    """When it came; the batch itself may carry another time that its writer chose."""
    seq: str | None = None
    producer: Producer | None = None
    close: bool = False


class Origin(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where a fork comes from, and up to which of its records it reads there."""

    topic_id: int
    upto: int
    below: int = 0
    """Inherited records with a lower seq were deleted in the fork."""


class ForkRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a fork was asked to be, so that asking again can be told from asking for something else."""

    source: str
    counter: int
    in_block: int
    sub_offset: int


class StreamPart(msgspec.Struct, array_like=True, frozen=True):
    """A stream's whole state but its records, for its creation and for snapshots."""

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
    """For a fork, from the oldest ancestor on: up to which counter its offsets carry which epoch."""
    fork: ForkRequest | None = None
    contract: bytes = b""
    """What it promises about its entries (`topics.schema.contract`); empty where that is nothing."""


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
    """The body of a STREAM_CLOSE frame, and what stands before the block of a STREAM_APPEND frame."""
    encoded = _encode(mark)
    return _U32.pack(len(encoded)) + encoded


def encode_creation(part: StreamPart, created: bytes) -> bytes:
    """The body of a STREAM_CREATE frame up to its block; `created` is the body of the CREATE frame it stands for."""
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
    """The topic that a frame brings into being; None for a frame that does not."""
    if frame.kind is FrameKind.CREATE:
        return decode_create(frame.body)
    if frame.kind is FrameKind.STREAM_CREATE:
        return decode_create(_split(frame.kind, frame.body).created)
    return None


def stream_block_in(kind: FrameKind, body: memoryview) -> memoryview | None:
    """The block that a stream's frame carries, whatever else it says; None when it carries none."""
    if kind is FrameKind.STREAM_APPEND or kind is FrameKind.STREAM_CREATE:
        return _split(kind, body).block or None
    return None


def head_at_creation(frame: Frame) -> int:
    """Where the seqs of a new topic begin: a fork goes on where it left its source."""
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
