"""Takeover: a server that has the lease restores a data folder with everything that the last primary acknowledged.

1. The newest backup is chosen after the lease was taken. The last primary acknowledges nothing because of a newer one:
   it announces each backup with a record of the lease first, and has none to make any more.
2. The log behind it is fenced: an object with the new term is made at the first number that is free. Log is made with
   conditional puts and acknowledged in its order, so the last primary acknowledges nothing behind the fence, with
   any clock and after any sleep.
3. Log that the folder of this server has and that was not shipped is kept in a file beside it
   (`ops.failover.unshipped`), and the folder is removed at the end. Where it is unknown what was shipped, the folder
   stays beside the new one.
4. The backup with the log up to the fence is restored. Topics of classes below `remote` skip the seqs that the last
   primary reserved (`LeaseRecord.skipped`), with a tombstone.

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
from topics.ops.failover.unshipped import UnknownTailError, keep_tail, read_tail
from topics.system.clock import Clock
from topics.system.entropy import Entropy

_log = logging.getLogger(__name__)

_ASIDE_MAX = 1000


class Place(NamedTuple):
    """The backup storage of the servers that share a lease."""

    fs: FileSystem
    root: str


def read_holder(fs: FileSystem, layout: Layout) -> str | None:
    """Returns the name of a data folder in the lease; None if it never had one, or it cannot be read."""
    try:
        return read_checked(fs, layout.lease_holder) or None
    except WrongChecksumError:
        return None


def note_holder(fs: FileSystem, layout: Layout, holder: str) -> None:
    """Sets the name of a data folder in the lease. Creates a missing folder."""
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
    manifests = [source.load(number) for number in source.numbers()[-1:]]
    if not manifests:
        raise BackupTargetError(f"{place.root} has no backup of {newest.lineage}, which the lease names")
    source.fence(manifests[-1], term, f"fence-{term}")
    layout = Layout(options.data_dir)
    kept = _keep_unshipped(place, fs, layout, term)
    aside = _set_aside(fs, layout, term)
    if aside is not None and not kept:
        _log.warning("old data folder set aside", extra={"folder": aside, "term": term})
    job = Restore(source, fs, layout)
    target = newest_of(source, manifests)
    job.copy(target, checks_first=False)
    restored = job.finish(target, ALL, newest.skipped, options, clock, entropy, LossReason.FAILOVER)
    note_holder(fs, layout, own.holder)
    if aside is not None and kept:
        _remove_folder(fs, aside)
    _log.warning(
        "took over", extra={"term": term, "from": newest.address, "lineage": newest.lineage, "moment": restored.moment}
    )
    return restored


def _keep_unshipped(place: Place, fs: FileSystem, layout: Layout, term: int) -> bool:
    """Keeps the log of an old folder that was not shipped in a file beside it. Returns whether nothing else in the
    folder can be missing from the history."""
    try:
        tail = read_tail(place.fs, place.root, fs, layout, own_run=False)
    except (UnknownTailError, OSError) as error:
        if fs.exists(layout.meta):
            _log.warning("unshipped log unknown", extra={"folder": layout.root, "why": str(error)})
        return False
    if tail.pieces:
        path = f"{layout.root}.unshipped-term-{term}.log"
        keep_tail(tail, fs, path, term)
        extra = {"file": path, "bytes": tail.size, "frames": tail.frames, "term": term}
        _log.warning("unshipped log set aside", extra=extra)
    return True


_OWN = ("wal", "meta", "topics", "backup", "families", "near", "pipeline")
"""The folders of a data folder that a backup or the shipped log has, or that can be made again."""


def _remove_folder(fs: FileSystem, root: str) -> None:
    """Removes what the server has made in a data folder. Files of others stay, and so does the folder then."""
    try:
        for name in _OWN:
            if fs.exists(f"{root}/{name}"):
                _remove_tree(fs, f"{root}/{name}")
        layout = Layout(root)
        for path in (layout.lock, layout.machine, layout.lease_holder, layout.reserve):
            if fs.exists(path):
                fs.remove(path)
        if not fs.list_dir(root):
            fs.remove_dir(root)
    except OSError as error:
        _log.warning("old data folder set aside", extra={"folder": root, "error": str(error)})


def _remove_tree(fs: FileSystem, folder: str) -> None:
    for name in fs.list_dir(folder):
        path = f"{folder}/{name}"
        try:
            _remove_tree(fs, path)
        except NotADirectoryError:
            fs.remove(path)
    fs.remove_dir(folder)


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
