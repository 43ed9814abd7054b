"""What can happen to the archive. A commit is some of it at one moment; `state` knows what each comes to.

The events are what is written down (`store`), and applying them in order is the only way the archive's state changes,
for the pipeline that decides as for everybody who reads.
"""

import msgspec

from topics.core.ranges import SeqRange
from topics.spark.archive.files import DataFile

UNHEARD = -1
"""Where an earlier version did not note it."""


class Covered(msgspec.Struct, frozen=True, array_like=True):
    """Seqs of a topic that are archived: nothing of them is ever read from the log again."""

    topic_id: int
    epoch: int
    topic: str
    ranges: list[SeqRange]


class Copied(msgspec.Struct, frozen=True, array_like=True, tag="copied"):
    """Sealed records became files."""

    files: list[DataFile]
    covered: list[Covered]


class Masked(msgspec.Struct, frozen=True, array_like=True, tag="masked"):
    """Records of a topic are deleted and no longer shown, though files still hold them."""

    topic_id: int
    deleted: bytes
    """A packed `Mask`: what was not hidden before."""
    catalog: int
    """The catalog that told of it. It goes on telling for a while, and what was written out of the files since then
    need not be hidden again."""


class Dropped(msgspec.Struct, frozen=True, array_like=True, tag="dropped"):
    """Topics were deleted: nothing of them is shown."""

    topic_ids: list[int]


class Expired(msgspec.Struct, frozen=True, array_like=True, tag="expired"):
    """Files no longer count because they are too old. Their seqs stay covered, so they do not come back."""

    paths: list[str]


class Rewritten(msgspec.Struct, frozen=True, array_like=True, tag="rewritten"):
    """Files were replaced by others that hold the same records less those that are deleted."""

    old: list[str]
    new: list[DataFile]
    applied: list[tuple[int, bytes]]
    """By topic, packed: what the new files no longer hold, and need not be remembered."""


class Removed(msgspec.Struct, frozen=True, array_like=True, tag="removed"):
    """Files that no longer counted are about to be taken off the disk."""

    paths: list[str]


class Owned(msgspec.Struct, frozen=True, array_like=True, tag="owned"):
    """From now on the archive is that of the log with this history, and has heard of all deletes up to a catalog."""

    history: str
    heard: int = UNHEARD


Event = Copied | Masked | Dropped | Expired | Rewritten | Removed | Owned


class Commit(msgspec.Struct, frozen=True, array_like=True):
    number: int
    """One more than that of the commit before."""
    now_ms: int
    events: list[Event]
