"""What queues log besides records, and their part of a snapshot. All numbers are little endian.

    LEASE      u8 event | u64 time | u16 length of the node | node | entries, by event:
                 1 claimed    time is the deadline; u64 seq, u64 token, u32 deliveries for each job
                 2 extended   time is the new deadline; u64 seq for each job; no node
                 3 released   time is when they are ready again, 0 = at once; u64 seq for each job; no node
    DELAY      u64 ready at | u64 first seq | u64 last seq
    ARRIVAL    u8 reason | u64 topic id of the source | u32 count | u64 seq there, for each record | block
    DEPARTURE  u8 reason | u64 topic id of the destination | ranges: u64 first, u64 last, inclusive, ascending, apart

An acknowledgement is a DELETE: the job is gone, and with it its lease. Expiry is not logged at all: a lease says when
it ends. Every event is absolute, so reading it a second time changes nothing.

DELAY stands before the APPEND it speaks of, in the same write. A crash between the two leaves a delay for jobs that do
not exist, and recovery forgets it; the other way round a job would be ready too early.

A move is an ARRIVAL in the destination's shard and a DEPARTURE in the source's. The arrival holds the records by value
and counts as soon as it is in the log: a departure that is missing is made up for by recovery. Reason 1 is a job that
was delivered too often (a dead letter), 2 one that is sent back to its queue.

The queue's part of a topic's state is the msgpack of `QueuePart`, under the name `queue`.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import msgspec

_LEASE = Struct("<BQH")
_CLAIM = Struct("<QQI")
_DELAY = Struct("<QQQ")
_ARRIVAL = Struct("<BQI")
_DEPARTURE = Struct("<BQ")
_PAIR = Struct("<QQ")
_U64_BYTES = 8

PART_NAME = "queue"


class LeaseEvent(IntEnum):
    CLAIMED = 1
    EXTENDED = 2
    RELEASED = 3


class MoveReason(IntEnum):
    DEAD_LETTER = 1
    REDRIVE = 2


class Claim(NamedTuple):
    seq: int
    token: int
    deliveries: int


class LeaseFrame(NamedTuple):
    event: LeaseEvent
    time: int
    node: str
    claims: list[Claim]
    """Of a claimed event."""
    seqs: Sequence[int]
    """Of the other two."""


class Arrival(NamedTuple):
    reason: MoveReason
    source_id: int
    seqs: Sequence[int]


class Departure(NamedTuple):
    reason: MoveReason
    dest_id: int
    ranges: list[tuple[int, int]]


class LeaseState(msgspec.Struct, array_like=True, frozen=True):
    seq: int
    node: str
    token: int
    deadline: int
    deliveries: int


class QueuePart(msgspec.Struct, array_like=True, frozen=True):
    """What a snapshot keeps of a queue. Leases and counts are there only when the queue's leases are durable."""

    dead_lettered: int = 0
    delayed: list[tuple[int, int]] = []
    """Seq and the moment it is ready."""
    leases: list[LeaseState] = []
    delivered: list[tuple[int, int]] = []
    """Seq and number of deliveries, of jobs that are not leased."""


_encode_part = msgspec.msgpack.Encoder().encode
_decode_part = msgspec.msgpack.Decoder(QueuePart).decode


def encode_claims(deadline: int, node: str, claims: Iterable[tuple[int, int, int]]) -> bytes:
    name = node.encode()
    entries = b"".join([_CLAIM.pack(*claim) for claim in claims])
    return _LEASE.pack(LeaseEvent.CLAIMED, deadline, len(name)) + name + entries


def encode_lease_change(event: LeaseEvent, time: int, seqs: Iterable[int]) -> bytes:
    """An extension or a release."""
    return _LEASE.pack(event, time, 0) + _encode_seqs(seqs)


def decode_lease(body: memoryview) -> LeaseFrame:
    event, time, length = _LEASE.unpack_from(body, 0)
    end = _LEASE.size + length
    if end > len(body):
        raise ValueError("a lease event shorter than its node")
    node, rest = str(body[_LEASE.size : end], "utf-8"), body[end:]
    if LeaseEvent(event) is not LeaseEvent.CLAIMED:
        return LeaseFrame(LeaseEvent(event), time, node, [], _decode_seqs(rest))
    if len(rest) % _CLAIM.size:
        raise ValueError("a claim with half an entry")
    return LeaseFrame(LeaseEvent.CLAIMED, time, node, [Claim(*entry) for entry in _CLAIM.iter_unpack(rest)], ())


def encode_delay(ready_at: int, first: int, last: int) -> bytes:
    return _DELAY.pack(ready_at, first, last)


def decode_delay(body: memoryview) -> tuple[int, int, int]:
    ready_at, first, last = _DELAY.unpack(body)
    if first > last:
        raise ValueError("a delay of no jobs")
    return ready_at, first, last


def encode_arrival_head(reason: MoveReason, source_id: int, seqs: Sequence[int]) -> bytes:
    """Everything before the block."""
    return _ARRIVAL.pack(reason, source_id, len(seqs)) + _encode_seqs(seqs)


def decode_arrival(body: memoryview) -> tuple[Arrival, memoryview]:
    """Where the records came from, and their block."""
    reason, source_id, count = _ARRIVAL.unpack_from(body, 0)
    end = _ARRIVAL.size + count * _U64_BYTES
    if not count or end > len(body):
        raise ValueError("an arrival whose lengths disagree")
    return Arrival(MoveReason(reason), source_id, _decode_seqs(body[_ARRIVAL.size : end])), body[end:]


def encode_departure(reason: MoveReason, dest_id: int, ranges: Iterable[tuple[int, int]]) -> bytes:
    return _DEPARTURE.pack(reason, dest_id) + b"".join([_PAIR.pack(first, last) for first, last in ranges])


def decode_departure(body: memoryview) -> Departure:
    reason, dest_id = _DEPARTURE.unpack_from(body, 0)
    return Departure(MoveReason(reason), dest_id, list(_PAIR.iter_unpack(body[_DEPARTURE.size :])))


def encode_part(part: QueuePart) -> bytes:
    return _encode_part(part)


def decode_part(raw: bytes) -> QueuePart:
    """Raises ValueError for a part that makes no sense."""
    return _decode_part(raw)


def _encode_seqs(seqs: Iterable[int]) -> bytes:
    packed = array("Q", seqs)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _decode_seqs(raw: memoryview) -> Sequence[int]:
    if len(raw) % _U64_BYTES:
        raise ValueError("half a seq")
    seqs = array("Q", bytes(raw))
    if sys.byteorder == "big":
        seqs.byteswap()
    return seqs
