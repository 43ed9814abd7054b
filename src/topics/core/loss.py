"""How a reader learns that records are gone which nobody asked to remove.

Loss is never silent and never an error: a read answers normally and carries a tombstone with the exact range.
A deletion somebody asked for raises no tombstone, so it has no reason here.
"""

import enum

import msgspec


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
    """A router's source dropped the records before they could be forwarded; the destination says so in its place."""

    CRASH = "crash"
    """Acknowledged records of a class that does not promise to survive a crash went with one."""

    RESTORED = "restored"
    """The topic came back from a backup, and the server before it may have given these seqs out since."""

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


class LostRange(msgspec.Struct, frozen=True, gc=False):
    """Seqs `from_seq` to `to_seq`, both included, that a topic remembers as lost."""

    from_seq: int
    to_seq: int
    reason: LossReason
