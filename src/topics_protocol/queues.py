"""The messages of queues, typed: what workers send, what they get, and what they are told of their leases."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

Unsigned = Annotated[int, msgspec.Meta(ge=0)]


class ClaimBody(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker asks for jobs."""

    node: str
    max: Unsigned = 1
    lease_ms: Unsigned | None = None


class JobOut(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a worker's hands: the record, and the lease on it."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    node: str | UnsetType = msgspec.field(name="$node", default=UNSET)
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    data: Any
    meta: dict[str, Any] | UnsetType = UNSET
    lease_id: str
    deadline: int
    deliveries: int


class ClaimAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    claimed: list[JobOut]
    count: int
    ready: int


class JobEvent(JobOut, frozen=True, kw_only=True):
    """A job that is pushed: `event: job` of a work stream."""

    topic: str


class HeldBody(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that a worker holds."""

    node: str
    seqs: list[Unsigned]
    lease_ids: list[str] | None = None


class AckBody(HeldBody, frozen=True, kw_only=True):
    """Jobs that a worker is done with."""

    result: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """Of a single job; empty where it is left out."""


class AckAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int


class NackBody(HeldBody, frozen=True, kw_only=True):
    """Jobs that a worker gives back."""

    delay_ms: Unsigned = 0
    reason: str = ""
    fatal: bool = False


class NackAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int
    dead_lettered: int = 0


class ExtendBody(HeldBody, frozen=True, kw_only=True):
    """Jobs that a worker needs more time for."""

    lease_ms: Unsigned


class ExtendAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[int, int]


class JobFailureOut(msgspec.Struct, frozen=True, kw_only=True):
    """One failure of a job."""

    delivery: int
    at: int
    worker: str = ""
    reason: str = ""
    fatal: bool = False


class JobStateOut(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a queue as an operator sees it: the record, and what became of it so far."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    node: str | UnsetType = msgspec.field(name="$node", default=UNSET)
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    data: Any
    meta: dict[str, Any] | UnsetType = UNSET
    state: str
    deliveries: int = 0
    priority: int = 0
    worker: str | UnsetType = UNSET
    deadline: int | UnsetType = UNSET
    ready_at: int | UnsetType = UNSET
    first_failure: int | UnsetType = UNSET
    failures: list[JobFailureOut] = []


class JobsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    state: str
    jobs: list[JobStateOut]
    next_cursor: str | UnsetType = UNSET


class CancelBody(msgspec.Struct, frozen=True, kw_only=True):
    """Which job to delete: one of the queue, or a dead letter of it."""

    dead: bool = False


class JobAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one job after an operation."""

    topic: str
    seq: int
    changed: bool
    state: str | None


class QueueBody(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a queue besides its config."""

    paused: bool


class QueueAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    paused: bool


class RedriveBody(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of a queue that shall be its jobs again."""

    max: Unsigned = 100
    source: str | None = None


class RedriveAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    source: str
    moved: int
    first_seq: int
    last_seq: int
    more: bool


class LeaseOut(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of a job, its deadline, and the number of deliveries."""

    seq: int = msgspec.field(name="$seq")
    node: str
    deadline: int
    deliveries: int


class LeasesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    leases: list[LeaseOut]
    next_after: int | UnsetType = UNSET


class JobResultOut(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a job, or the state of one that is not done; then the other fields are null."""

    topic: str
    seq: int
    state: str
    result: msgspec.Raw
    finished_ms: int | None
    node: str | None
