"""Schedule frames and the schedule part of snapshots.

    SCHEDULE   "SCH1" | u32 length of the mark | mark | block (`log.frame`), with a run that appends

The mark is msgpack: `ScheduleState` is a schedule as it was created or changed, `ScheduleRun` a run of due times, and
`ScheduleDropped` a deletion. All are absolute, so applying one a second time changes nothing. The due time of a run is
in the frame of its jobs: a crash keeps both or neither, so that no due time is lost and none gets its job twice. The
next due time is stored as well. It holds after a restart, even with other time zone files.

The schedules of a topic are in its snapshot under the name `schedules`, as the msgpack of a list of `ScheduleState`.
"""

from enum import StrEnum
from struct import Struct

import msgspec

PART_NAME = "schedules"
_MAGIC = b"SCH1"
"""Distinguishes the body from other frames with a block, even if the byte of the kind is damaged."""
_HEAD = Struct("<4sI")


class CatchUp(StrEnum):
    """The jobs that missed due times get, after a restart or a jump of the clock."""

    NONE = "none"
    ONE = "one"
    ALL = "all"


class ScheduleState(msgspec.Struct, array_like=True, frozen=True, tag=1, gc=False):
    """A schedule as the log has it. Times are those of the clock on the wall; 0 stands for never."""

    name: str
    cron: str
    every_ms: int
    timezone: str
    start_ms: int
    """The moment from which the interval counts."""
    data: bytes
    """JSON text of the jobs' data."""
    tag: str | None
    catch_up: CatchUp
    paused: bool
    created_ms: int
    created_by: str
    """The name of the key that created it."""
    next_due_ms: int
    last_due_ms: int = 0
    """The newest due time that got a job."""
    last_run_ms: int = 0
    """When that job was appended."""
    last_seq: int = 0
    """The seq of that job."""
    runs: int = 0
    """The number of jobs."""


class ScheduleRun(msgspec.Struct, array_like=True, frozen=True, tag=2, gc=False):
    """A run: jobs were appended, or due times were skipped. The numbers are those of the schedule behind it."""

    name: str
    next_due_ms: int
    last_due_ms: int
    last_run_ms: int
    last_seq: int
    runs: int


class ScheduleDropped(msgspec.Struct, array_like=True, frozen=True, tag=3, gc=False):
    name: str


ScheduleMark = ScheduleState | ScheduleRun | ScheduleDropped

_encode = msgspec.msgpack.Encoder().encode
_mark_decoder: "msgspec.msgpack.Decoder[ScheduleMark]" = msgspec.msgpack.Decoder(ScheduleMark)
_decode_part = msgspec.msgpack.Decoder(list[ScheduleState]).decode


def encode_schedule(mark: ScheduleMark) -> bytes:
    """The body of a SCHEDULE frame before its block."""
    encoded = _encode(mark)
    return _HEAD.pack(_MAGIC, len(encoded)) + encoded


def decode_schedule(body: memoryview) -> tuple[ScheduleMark, memoryview | None]:
    """The mark of a SCHEDULE frame, and its block if it has one. Raises ValueError for a malformed body."""
    if len(body) < _HEAD.size:
        raise ValueError("a schedule's frame shorter than its head")
    magic, length = _HEAD.unpack_from(body, 0)
    end = _HEAD.size + length
    if magic != _MAGIC or end > len(body):
        raise ValueError("a schedule's frame whose head is wrong")
    return _mark_decoder.decode(body[_HEAD.size : end]), body[end:] or None


def encode_part(states: list[ScheduleState]) -> bytes:
    return _encode(states)


def decode_part(raw: bytes) -> list[ScheduleState]:
    """Raises ValueError for a malformed part."""
    return _decode_part(raw)
