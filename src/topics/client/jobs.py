"""Jobs in a worker's hands, and what queues answer."""

import msgspec

from topics.client.answers import Performance
from topics.client.records import Record
from topics.wire import queues


class Job(Record, frozen=True, kw_only=True, dict=True):
    """A job that was claimed: a record, and the lease on it."""

    lease_id: str
    """This delivery's own word: with it, an acknowledgement counts only while the job is still this worker's."""
    deadline: int
    """When the lease ends unless it is extended: milliseconds since 1970."""
    deliveries: int
    """How often the job has been delivered, this time included."""


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that a claim got, in the order of their seqs; none at all is an ordinary answer."""

    topic: str
    claimed: list[Job]
    count: int
    ready: int
    """Jobs that can still be claimed."""
    performance: Performance = msgspec.field(default_factory=dict)


class Acked(queues.AckAnswer, frozen=True, kw_only=True):
    """How many jobs are done, and which were not this worker's any more."""

    performance: Performance = msgspec.field(default_factory=dict)


class Nacked(queues.NackAnswer, frozen=True, kw_only=True):
    """How many jobs were given back, and which were not this worker's any more."""

    performance: Performance = msgspec.field(default_factory=dict)


class Extended(queues.ExtendAnswer, frozen=True, kw_only=True):
    """The new deadlines by seq, and which jobs were not this worker's any more."""

    performance: Performance = msgspec.field(default_factory=dict)


class Redriven(queues.RedriveAnswer, frozen=True, kw_only=True):
    """How many dead letters are jobs again, under which seqs, and whether there may be more."""

    performance: Performance = msgspec.field(default_factory=dict)


class Lease(queues.LeaseOut, frozen=True, kw_only=True):
    """Who holds a job, and until when."""


class LeasePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some leases of a queue, in the order of the seqs."""

    topic: str
    leases: list[Lease]
    next_after: int | None = None
    """Where the next page begins; None on the last one."""
    performance: Performance = msgspec.field(default_factory=dict)
