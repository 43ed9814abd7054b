"""Takeover: a server that has the lease makes itself a data folder with everything that the last primary acknowledged.

1. The newest backup is chosen after the lease was taken. The last primary acknowledges nothing because of a newer one:
   it announces each backup with a record of the lease first, and has none to make any more.
2. The log behind it is fenced: an object with the new term is made at the first number that is free. Log is made with
   conditional puts and acknowledged in its order, so the last primary acknowledges nothing behind the fence, with
   any clock and after any sleep.
3. The folder that this server had is set aside, and the backup with the log up to the fence is restored. Topics of
   classes below `remote` skip the seqs that the last primary reserved (`LeaseRecord.skipped`), with a tombstone.

A crash anywhere leaves the lease with the backups it had, so the next takeover does the same again.
"""

import logging
from typing import NamedTuple

from topics.engine.core import EngineOptions
from topics.log.fs import FileSystem, WrongChecksumError, read_checked, write_checked
from topics.log.layout import Layout
from topics.model.errors import BackupTargetError
from topics.model.seq_ranges import LossReason
from topics.ops.backup.backup_store import BackupPlace
from topics.ops.backup.restore import ALL, Restore, Restored, newest_of
from topics.ops.failover.lease import LeaseRecord
from topics.system.clock import Clock
from topics.system.entropy import Entropy

_log = logging.getLogger(__name__)

_ASIDE_MAX = 1000


class Place(NamedTuple):
    """The backup storage of the servers that share a lease."""

    fs: FileSystem
    root: str


def read_holder(fs: FileSystem, layout: Layout) -> str | None:
    """The name of a data folder in the lease; None where it never had one, or it cannot be read."""
    try:
        return read_checked(fs, layout.lease_holder) or None
    except WrongChecksumError:
        return None


def note_holder(fs: FileSystem, layout: Layout, holder: str) -> None:
    """Gives a data folder its name in the lease. The folder is made where it is missing."""
    fs.make_dirs(layout.root)
    write_checked(fs, layout.lease_holder, holder)


def take_over(
    place: Place, fs: FileSystem, newest: LeaseRecord, own: LeaseRecord, options: EngineOptions, clock: Clock,
    entropy: Entropy,
) -> Restored:  # fmt: skip
    """Restores the state of the last primary, whose record was `newest`, into the data folder. Blocks.

    `own` names a new holder, which the folder has once it is complete: a start after a crash begins again.
    """
    term = own.term
    if not newest.lineage:
        raise BackupTargetError(
            f"the primary of term {newest.term} has no backup; start it again, or use another place"
        )
    source = BackupPlace(place.fs, place.root, newest.lineage)
    manifests = [source.load(number) for number in source.numbers()]
    if not manifests:
        raise BackupTargetError(f"{place.root} has no backup of {newest.lineage}, which the lease names")
    source.fence(manifests[-1], term, f"fence-{term}")
    layout = Layout(options.data_dir)
    aside = _set_aside(fs, layout, term)
    if aside is not None:
        _log.warning("old data folder set aside", extra={"folder": aside, "term": term})
    job = Restore(source, fs, layout)
    target = newest_of(source, manifests)
    job.copy(target)
    restored = job.finish(target, ALL, newest.skipped, options, clock, entropy, LossReason.FAILOVER)
    note_holder(fs, layout, own.holder)
    _log.warning(
        "took over", extra={"term": term, "from": newest.address, "lineage": newest.lineage, "moment": restored.moment}
    )
    return restored


def _set_aside(fs: FileSystem, layout: Layout, term: int) -> str | None:
    """Moves what is in the data folder away: it may have changes that are not part of the history. Its new name."""
    if not fs.exists(layout.root):
        return None
    if not fs.list_dir(layout.root):
        return None
    for attempt in range(_ASIDE_MAX):
        aside = f"{layout.root}.before-term-{term}" + (f"-{attempt}" if attempt else "")
        if not fs.exists(aside):
            fs.rename(layout.root, aside)
            fs.sync_dir(layout.root.rpartition("/")[0] or ".")
            return aside
    raise BackupTargetError(f"there are {_ASIDE_MAX} folders {layout.root}.before-term-{term}; remove them")
