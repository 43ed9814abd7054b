"""The frame: one logged change, in the write-ahead log and in snapshots alike.

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
reading stops with NewerFormatError. A log file is preallocated with zeros, so
four zero bytes where a magic should stand are the end of what was written. `synced` is what tells a torn tail from
damage: once any later frame says that lsn 7 was on disk, a missing or broken frame 7 cannot be the work of a crash.
"""

import contextlib
from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from topics.model.errors import NewerFormatError

MAGIC = b"TPF1"
_MAGIC_BEGIN = MAGIC[:-1]
_MAGIC_WORD = int.from_bytes(MAGIC, "little")
_HEADER = Struct("<IIQQQQ")
"""Kind and moment are one number, the kind in its lowest byte."""
_CHECKSUM = Struct("<Q")
HEADER_BYTES = _HEADER.size
CHECKSUM_BYTES = _CHECKSUM.size
OVERHEAD_BYTES = HEADER_BYTES + CHECKSUM_BYTES

# Up to here a copy costs less than to do without one.
_JOINED_BYTES_MAX = 4096


class FrameKind(IntEnum):
    """Every kind of change there is. A number is never given a second meaning."""

    APPEND = 1
    """One batch of records of one topic (`log.block`)."""
    CREATE = 2
    """A topic came to be: its name, epoch and config."""
    CONFIG = 3
    """A topic's config was replaced."""
    DROP = 4
    """A topic was deleted with everything in it."""
    DELETE = 5
    """Records were deleted for good, named by a bound and by ranges of seqs."""
    EVICT = 6
    """Records below a floor expired."""
    CEILING = 7
    """No seq above this one was given out before this frame was on disk."""
    ROUTER = 8
    """A router of this topic was created or changed (`routers.router_frames`)."""
    UNROUTE = 9
    """A router of this topic was deleted."""
    FORWARD = 10
    """Copies of another topic's records: which seqs of this topic are which of that one."""
    LEASE = 11
    """Jobs of a queue were claimed, extended or given back (`queues.queue_frames`)."""
    DELAY = 12
    """The jobs of the append behind it are held back until a moment."""
    ARRIVAL = 13
    """Records came from another topic: a block, and where they were."""
    DEPARTURE = 14
    """Records went to another topic and are gone here."""
    FORWARDS = 15
    """The same records forwarded into many topics: as many FORWARD frames in one (`log.control_frames`)."""
    STREAM_APPEND = 16
    """One batch, and what else it changes in its stream, such as a producer's place (`streams.stream_frames`)."""
    STREAM_CREATE = 17
    """A topic came to be as a stream, perhaps with its first batch."""
    STREAM_CLOSE = 18
    """A stream was closed without a batch."""
    STREAM_RENEW = 19
    """A renewal of a stream's time to live."""
    STREAM_RETIRE = 20
    """A stream was deleted that forks still read: it is kept for them and shown to nobody else."""
    STREAM_CONTRACT = 21
    """A change of a stream's contract: its schemas or its profile."""
    TXN_BEGIN = 24
    """An attempt at a transaction begins (`transactions.transaction_frames`)."""
    TXN_STAGE = 25
    """Records are staged for a transaction: a block of the topic that keeps them until it is committed."""
    TXN_END = 26
    """An attempt at a transaction is over without a commit, and what it staged is gone."""
    TXN_APPEND = 27
    """One batch that counts only if its transaction is committed."""
    TXN_COMMIT = 28
    """A transaction is committed."""
    SNAPSHOT_HEAD = 32
    """Opens a snapshot file: which one it is and where in the log it stands."""
    TOPIC = 33
    """A topic's whole state but its payload; the APPEND frames of its tail follow."""
    SNAPSHOT_END = 34
    """Closes a snapshot file; one without it was never finished."""
    DIRECTORY = 35
    """Where the topics of the span of a snapshot before it are, and one checksum for all of it."""


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
    """When it was logged, in milliseconds since 1970; 0 where that is not known."""

    @property
    def is_part(self) -> bool:
        """Whether it is what a frame of the log means, and its body is not in the log as it is
        (`log.control_frames`)."""
        return self.end - self.start != OVERHEAD_BYTES + len(self.body)


class BadFrame(NamedTuple):
    """Bytes that are no valid frame, and the reason."""

    start: int
    reason: str
    length: int
    """The length field if it looks valid, else 0."""


def seal_frame(
    kind: FrameKind, topic_id: int, lsn: int, synced: int, head: bytes, tail: bytes = b"", moment: int = 0
) -> list[bytes]:
    """The pieces of a frame in order. The body comes in two parts so that a large payload is never copied here."""
    length = OVERHEAD_BYTES + len(head) + len(tail)
    start = _HEADER.pack(_MAGIC_WORD, length, lsn, synced, topic_id, kind | moment << 8) + head
    if len(tail) < _JOINED_BYTES_MAX:
        whole = start + tail
        return [whole + _CHECKSUM.pack(xxh3_64_intdigest(whole))]
    digest = xxh3_64(start)
    digest.update(tail)
    return [start, tail, _CHECKSUM.pack(digest.intdigest())]


def read_frame(buffer: memoryview, start: int) -> Frame | BadFrame | None:
    """The frame at `start`; None where the log simply ends (zeros, or the end of the buffer).

    Raises NewerFormatError where a newer release wrote the frame.
    """
    room = len(buffer) - start
    if room < HEADER_BYTES:
        return None if not any(buffer[start:]) else BadFrame(start, "the file ends inside a frame's header", 0)
    magic, length, lsn, synced, topic_id, kind_and_moment = _HEADER.unpack_from(buffer, start)
    if magic == 0:
        # Zeros end the log only when the whole header is zero; anything else is what is left of a torn header.
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
    """Whether the magic is that of another version, and not this one with a damaged digit."""
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
    """Names the file in a NewerFormatError that is raised while it is read."""
    try:
        yield
    except NewerFormatError as error:
        raise error.at(path) from None


def read_body(buffer: memoryview, start: int, kind: FrameKind) -> memoryview:
    """The body of the frame of a kind that is known to stand at `start`, checked as `read_frame` does. ValueError where
    it does not. A page of a list reads a hundred frames, and needs to know nothing else of them."""
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
    raise ValueError(f"there is no whole frame of the kind {kind.name} at {start}")


def find_frames(buffer: memoryview, start: int) -> Iterator[Frame]:
    """Every valid frame at or behind `start`, whatever stands between them."""
    whole = bytes(buffer[start:])
    at = whole.find(MAGIC)
    while at >= 0:
        found = read_frame(buffer, start + at)
        if isinstance(found, Frame):
            yield found
            at = whole.find(MAGIC, found.end - start)
        else:
            at = whole.find(MAGIC, at + 1)
