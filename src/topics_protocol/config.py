"""Value types of the protocol: topic config, commit classes, router guarantees, tag matches, loss notices.

Server and client both import them from here; the server reaches them through `topics.model`.
"""

import enum
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

DEFAULT_URL: Final = "http://127.0.0.1:4000"
"""The address of a server with default settings on the same machine."""

MIN_LEASE_MS: Final = 100
MAX_LEASE_MS: Final = 86_400_000
"""A day: a job that is held longer should be extended by a worker that is alive."""

MAX_CLAIM_JITTER_MS: Final = 5_000

MAX_DELAY_MS: Final = 86_400_000
"""The maximum delay of a job, in an append or a nack."""

MAX_RUN_AHEAD_MS: Final = 10 * 366 * 86_400_000
"""The furthest `run_at` of a job: ten years ahead. A time in microseconds is further and refused."""

MIN_PRIORITY: Final = -1_000
MAX_PRIORITY: Final = 1_000
"""The range of priorities of jobs, where others are refused, and of topics, where they are clamped."""


def clamp_lease_ms(lease_ms: int) -> int:
    """A lease as it is granted: out-of-range wishes are bent, not refused."""
    return min(max(lease_ms, MIN_LEASE_MS), MAX_LEASE_MS)


def clamp_claim_jitter_ms(claim_jitter_ms: int) -> int:
    return min(max(claim_jitter_ms, 0), MAX_CLAIM_JITTER_MS)


# The five promises a topic can make about an acknowledged write.
#
#     class       logged   ack waits for    after a crash
#     ephemeral   no       nothing          every record is gone
#     memory      yes      the write        records may or may not be there; the head may fall back
#     disk        yes      the write        all but the last unsynced moment; seqs are never given out twice
#     fsync       yes      the sync         everything that was acknowledged
#     remote      yes      the storage      everything that was acknowledged, also after the loss of the machine
#
# Whatever the class, the topic and its config survive: those are logged and synced before they are answered.


class Durability(enum.Enum):
    """A commit class; the value is its name on the wire."""

    EPHEMERAL = "ephemeral"
    """Records live in memory only, also on a server that has a disk: for streams nobody wants to find again."""

    MEMORY = "memory"
    """As `disk`, through the same code, without any promise: for caches, where a loss costs only work."""

    DISK = "disk"
    """The default. Written before it is acknowledged and synced in the background within a moment: a killed process
    loses nothing, a power cut at most that moment, and readers are told."""

    FSYNC = "fsync"
    """The acknowledgement is held back until the log is synced: what was answered is there after any crash."""

    REMOTE = "remote"
    """As `fsync`, and the acknowledgement is held back until the log is in the backup storage too: what was answered
    outlives the machine."""

    logged: bool
    """Frames of this class are written to the WAL."""

    acks_after_sync: bool
    """An acknowledgement waits until its frame is synced."""

    reserves_seqs: bool
    """Seqs are shown only below a synced ceiling, so a crash that loses the tail cannot give one out again.

    `fsync` needs no ceiling because a seq is not shown before its frame is synced; `memory` and `ephemeral` promise
    nothing that would be worth an extra sync.
    """

    def __init__(self, name: str) -> None:
        # Plain attributes: every append asks, and a property of an enum costs more than the rest of the question.
        self.logged = name != "ephemeral"
        self.acks_after_sync = name in ("fsync", "remote")
        self.reserves_seqs = name == "disk"


class TopicType(enum.Enum):
    """The one property of a topic that can never change."""

    LOG = "log"
    QUEUE = "queue"
    """A log whose records can also be claimed, acknowledged and given back."""


class Discard(enum.Enum):
    """The treatment of another record for a full topic."""

    OLD = "old"
    """Evicts the oldest records and reports it to readers that missed them."""
    REJECT = "reject"
    """Refuses the write, so that work is never dropped unseen."""


class TopicConfig(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A resolved config, in the order in which it is answered. For every number but `lease_ms`, 0 means off."""

    type: TopicType = TopicType.LOG
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = Discard.OLD
    durable: bool = False
    """Whether `durability` is `fsync` or `remote`: part of every answer. Never set it, set `durability`."""
    durability: Durability = Durability.DISK
    priority: int | None = None
    """As it was given: it is answered unchanged, and clamped only where it is used."""
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False
    retain_for_consumers: int = 0
    """Bytes up to which caps and `ttl_ms` leave records that the slowest consumer has not committed."""
    max_per_second: int = 0
    """Jobs that are handed out within any second."""
    max_leased: int = 0
    """Jobs that are leased at once."""
    fair_tags: bool = False
    """Whether jobs go to the tag with the fewest leases instead of by seq."""
    result_retention_ms: int = 0
    """How long results of jobs are kept; 0 keeps none."""

    def __post_init__(self) -> None:
        # Enforced on construction, so that no config made by hand or read from an old file can contradict itself.
        durable = self.durability.acks_after_sync
        if self.durable and not durable:
            raise ValueError("durable follows from durability; set durability alone")
        msgspec.structs.force_setattr(self, "durable", durable)
        msgspec.structs.force_setattr(self, "lease_ms", clamp_lease_ms(self.lease_ms))
        msgspec.structs.force_setattr(self, "claim_jitter_ms", clamp_claim_jitter_ms(self.claim_jitter_ms))


class TopicConfigPatch(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A config as a request gives it. `UNSET` is a field left out, which is not the same as null."""

    type: TopicType | UnsetType = UNSET
    ttl_ms: int | UnsetType = UNSET
    cap_records: int | UnsetType = UNSET
    cap_bytes: int | UnsetType = UNSET
    discard: Discard | UnsetType = UNSET
    durable: bool | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    priority: int | UnsetType | None = UNSET
    auto_priority: bool | UnsetType = UNSET
    auto_create: bool | UnsetType = UNSET
    idempotency_window_ms: int | UnsetType = UNSET
    dedupe_node: bool | UnsetType = UNSET
    lease_ms: int | UnsetType = UNSET
    claim_jitter_ms: int | UnsetType = UNSET
    max_deliveries: int | UnsetType = UNSET
    dead_letter: str | UnsetType | None = UNSET
    leases_durable: bool | UnsetType = UNSET
    retain_for_consumers: int | UnsetType = UNSET
    max_per_second: int | UnsetType = UNSET
    max_leased: int | UnsetType = UNSET
    fair_tags: bool | UnsetType = UNSET
    result_retention_ms: int | UnsetType = UNSET


class TagMatch(msgspec.Struct, frozen=True, gc=False):
    """A condition on the tag. `pattern` is literal text; for a prefix it is what stands before the star."""

    pattern: str
    prefix: bool = False

    def matches(self, tag: str | None) -> bool:
        """A record without a tag is matched by nothing, not even by the empty prefix."""
        if tag is None:
            return False
        return tag.startswith(self.pattern) if self.prefix else tag == self.pattern

    def to_wire(self) -> tuple[str, str, str]:
        """The long form, which `parse_match` reads back as the same value."""
        return ("tag", "Glob", self.pattern + "*") if self.prefix else ("tag", "Eq", self.pattern)


class Guarantee(enum.Enum):
    """How a copy is protected from being made twice."""

    AT_LEAST_ONCE = "at_least_once"
    """The cursor moves together with the copies, in one frame: a crash makes no second copy. Only a router that is
    deleted and created again over the same records copies them again."""

    EXACTLY_ONCE = "exactly_once"
    """Each copy also has its origin in its meta, and a record whose copy still exists is skipped."""


class LossReason(enum.Enum):
    """Why a range is gone. Informational: the range is what a reader may rely on."""

    CAP = "cap"
    """Evicted, because the topic held more than its cap of records or bytes."""

    TTL = "ttl"
    """Older than the topic's time to live."""

    MIXED = "mixed"
    """Several of these had a part in one range."""

    RECREATED = "recreated"
    """The reader's cursor belongs to a topic of the same name that was deleted since; seqs began again."""

    SOURCE_TRIM = "source_trim"
    """A router's source lost the records before they were forwarded; the destination reports it in their place."""

    CRASH = "crash"
    """Acknowledged records of a class that does not promise to survive a crash went with one."""

    RESTORED = "restored"
    """The topic came back from a backup, and the server before it may have given these seqs out since."""

    FAILOVER = "failover"
    """A standby took over, and the primary before it may have given out these seqs without shipping their records."""

    CORRUPT = "corrupt"
    """Stored records could not be read back and a repair, which an operator asked for, gave the range up."""


class Tombstone(msgspec.Struct, frozen=True, gc=False):
    """The notice itself, in the order in which it is answered. The range includes both ends."""

    gap_from: int
    """The seq the reader asked for next."""
    gap_to: int
    """The last seq before the first live one, or the end of a range lost inside the log. Below `gap_from` where a
    recreated topic is still empty."""
    reason: LossReason
    missed_estimate: int
    """Records in the range that were lost; at most its length, since some may have been deleted on purpose."""
    earliest_seq: int
    head_seq: int
