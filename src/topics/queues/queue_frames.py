"""Queue frames and the queue part of a snapshot. All numbers are little endian.

    LEASE      u8 event | u64 time | u64 lasts | u16 length of the node | node | entries, by event:
                 4 claimed    time is the deadline; u64 seq, u64 token, u32 deliveries for each job
                 5 extended   time is the new deadline; u64 seq for each job; no node
                 6 released   time is when they are ready again, 0 = at once; u64 seq for each job; no node
               events 1 to 3 of older logs are the same without `lasts`
    DELAY      u64 ready at | u64 first seq | u64 last seq | u64 lasts, which older logs do not have
    ARRIVAL    u8 reason | u64 topic id of the source | u32 count | u64 seq there, for each record | block
    QUEUE      msgpack of `JobsFailed`, `QueuePaused`, `JobsPrioritized`, `JobKeyed` or `JobFinished`
    DEPARTURE  u8 reason | u64 topic id of the destination | ranges: u64 first, u64 last, inclusive, ascending, apart

An acknowledgement is a DELETE: it removes the job with its lease. Expiry is not logged, because a lease contains its
end. Every event is absolute, so reading it a second time changes nothing. Times are wall times of the decision, and
`lasts` is the remaining time in milliseconds: after a restart no duration becomes longer, even if that clock was
changed (`engine.core`).

A QUEUE frame with the reasons of failed jobs precedes the LEASE that returns them, in the same write; both exist only
if leases are logged. A failure is identified by the number of its delivery, so that reading it twice counts once. A
pause is always logged.

DELAY and a QUEUE frame with a priority or a key precede their APPEND or TXN_APPEND in the same write. A crash between
the two leaves them for jobs that do not exist, which recovery drops; in the reverse order a job would be ready too
early.

A move is an ARRIVAL in the destination's shard and a DEPARTURE in the source's. The arrival contains the records by
value and is effective once it is in the log: recovery adds a missing departure. Reason 1 is a job that exceeded its
deliveries (a dead letter), 2 a job that returns to its queue.

The queue's part of a topic's state is the msgpack of `QueuePart`, under the name `queue`.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import msgspec

_LEASE = Struct("<BQQH")
_OLD_LEASE = Struct("<BQH")
_OLD_EVENTS = 3
_CLAIM = Struct("<QQI")
_DELAY = Struct("<QQQQ")
_OLD_DELAY = Struct("<QQQ")
_ARRIVAL = Struct("<BQI")
_DEPARTURE = Struct("<BQ")
_PAIR = Struct("<QQ")
_U64_BYTES = 8

PART_NAME = "queue"


class LeaseEvent(IntEnum):
    CLAIMED = 4
    EXTENDED = 5
    RELEASED = 6


class MoveReason(IntEnum):
    DEAD_LETTER = 1
    REDRIVE = 2


class Claim(NamedTuple):
    seq: int
    token: int
    deliveries: int


class Ending(NamedTuple):
    """The end of a duration."""

    time: int
    """By the clock on the wall."""
    lasts_ms: int | None
    """The remaining time when the frame was written; None if it was not recorded."""


class JobTerms(NamedTuple):
    """The requested time and priority of a batch's jobs; see `Batch`."""

    delay_ms: int = 0
    run_at: int | None = None
    priority: int = 0
    unique_key: str | None = None


NO_TERMS = JobTerms()


class JobOrder(NamedTuple):
    """The time and the priority at which appended jobs can be claimed."""

    ready_at: int
    """By the steady clock; 0 means immediately."""
    priority: int
    unique_key: str | None = None
    """Of a single job."""


class LeaseFrame(NamedTuple):
    event: LeaseEvent
    ending: Ending
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


class JobFailure(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A delivery that ended without an acknowledgement, with its reason."""

    deliveries: int
    """The number of the delivery."""
    at_ms: int
    """By the clock on the wall."""
    node: str
    reason: str
    """May be empty if `fatal` is set."""
    fatal: bool = False
    """Whether the job must not be retried."""


class JobHistory(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The failures of a job."""

    first_ms: int
    """The time of the first failure."""
    last: tuple[JobFailure, ...]
    """The last few failures, the newest at the end."""

    @property
    def fatal(self) -> bool:
        return self.last[-1].fatal


class QueuePart(msgspec.Struct, array_like=True, frozen=True):
    """The queue's part of a snapshot. It contains leases and counts only if the queue's leases are durable."""

    dead_lettered: int = 0
    delayed: list[tuple[int, int]] = []
    """Seq and the time when the job is ready."""
    leases: list[LeaseState] = []
    delivered: list[tuple[int, int]] = []
    """Seq and number of deliveries, of jobs that are not leased."""
    told_ms: int = 0
    """The wall time of the snapshot, to which all times in it are relative; 0 in older snapshots."""
    failures: list[tuple[int, JobHistory]] = []
    """Seq and past failures; only when the queue's leases are durable."""
    paused: bool = False
    priorities: list[tuple[int, int]] = []
    """Seq and priority, of jobs with another priority than 0."""
    keys: list[tuple[int, str]] = []
    """Seq and unique key."""
    results: list["JobFinished"] = []
    """The results that are kept, the oldest first."""


class JobsFailed(msgspec.Struct, array_like=True, frozen=True, tag=1, gc=False):
    """Jobs that a worker returned with a reason."""

    at_ms: int
    node: str
    reason: str
    fatal: bool
    jobs: list[tuple[int, int]]
    """Seq and number of the delivery that failed."""


class QueuePaused(msgspec.Struct, array_like=True, frozen=True, tag=2, gc=False):
    """A pause or resumption of the queue."""

    paused: bool


class JobsPrioritized(msgspec.Struct, array_like=True, frozen=True, tag=3, gc=False):
    """The priority of jobs that are appended by the next frame."""

    first: int
    last: int
    priority: int


class JobFinished(msgspec.Struct, array_like=True, frozen=True, tag=5, gc=False):
    """The result of a job that is acknowledged by the next frame."""

    seq: int
    at_ms: int
    """By the clock on the wall."""
    node: str
    result: bytes
    """JSON text."""


class JobKeyed(msgspec.Struct, array_like=True, frozen=True, tag=4, gc=False):
    """The unique key of the job that is appended by the next frame."""

    seq: int
    key: str


QueueEvent = JobsFailed | QueuePaused | JobsPrioritized | JobKeyed | JobFinished

encode_event = msgspec.msgpack.Encoder().encode
_event_decoder: "msgspec.msgpack.Decoder[QueueEvent]" = msgspec.msgpack.Decoder(QueueEvent)

_encode_part = msgspec.msgpack.Encoder().encode
_decode_part = msgspec.msgpack.Decoder(QueuePart).decode


def encode_claims(deadline: Ending, node: str, claims: Iterable[tuple[int, int, int]]) -> bytes:
    name = node.encode()
    entries = b"".join([_CLAIM.pack(*claim) for claim in claims])
    return _LEASE.pack(LeaseEvent.CLAIMED, deadline.time, deadline.lasts_ms, len(name)) + name + entries


def encode_lease_change(event: LeaseEvent, ending: Ending, seqs: Iterable[int]) -> bytes:
    """An extension or a release."""
    return _LEASE.pack(event, ending.time, ending.lasts_ms, 0) + _encode_seqs(seqs)


def decode_lease(body: memoryview) -> LeaseFrame:
    if not body:
        raise ValueError("a lease event of nothing")
    if body[0] <= _OLD_EVENTS:
        number, time, length = _OLD_LEASE.unpack_from(body, 0)
        event, lasts_ms, at = LeaseEvent(number + _OLD_EVENTS), None, _OLD_LEASE.size
    else:
        number, time, lasts_ms, length = _LEASE.unpack_from(body, 0)
        event, at = LeaseEvent(number), _LEASE.size
    end = at + length
    if end > len(body):
        raise ValueError("a lease event shorter than its node")
    node, rest, ending = str(body[at:end], "utf-8"), body[end:], Ending(time, lasts_ms)
    if event is not LeaseEvent.CLAIMED:
        return LeaseFrame(event, ending, node, [], _decode_seqs(rest))
    if len(rest) % _CLAIM.size:
        raise ValueError("a claim with half an entry")
    return LeaseFrame(event, ending, node, [Claim(*entry) for entry in _CLAIM.iter_unpack(rest)], ())


def encode_delay(ready: Ending, first: int, last: int) -> bytes:
    return _DELAY.pack(ready.time, first, last, ready.lasts_ms)


def decode_delay(body: memoryview) -> tuple[Ending, int, int]:
    lasts_ms: int | None = None
    if len(body) == _OLD_DELAY.size:
        ready_at, first, last = _OLD_DELAY.unpack(body)
    else:
        ready_at, first, last, lasts_ms = _DELAY.unpack(body)
    if first > last:
        raise ValueError("a delay of no jobs")
    return Ending(ready_at, lasts_ms), first, last


def encode_arrival_head(reason: MoveReason, source_id: int, seqs: Sequence[int]) -> bytes:
    """The part of the frame before the block."""
    return _ARRIVAL.pack(reason, source_id, len(seqs)) + _encode_seqs(seqs)


def decode_arrival(body: memoryview) -> tuple[Arrival, memoryview]:
    """The origin of the records, and their block."""
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


def decode_event(body: memoryview) -> QueueEvent:
    """Raises ValueError for a malformed body."""
    return _event_decoder.decode(body)


def encode_part(part: QueuePart) -> bytes:
    return _encode_part(part)


def decode_part(raw: bytes) -> QueuePart:
    """Raises ValueError for a malformed part."""
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
