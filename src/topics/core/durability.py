"""The four promises a topic can make about an acknowledged write.

    class       logged   ack waits for    after a crash
    ephemeral   no       nothing          every record is gone
    memory      yes      the write        records may or may not be there; the head may fall back
    disk        yes      the write        all but the last unsynced moment; seqs are never given out twice
    fsync       yes      the sync         everything that was acknowledged

Whatever the class, the topic and its config survive: those are logged and synced before they are answered.
"""

import enum


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
        self.acks_after_sync = name == "fsync"
        self.reserves_seqs = name == "disk"
