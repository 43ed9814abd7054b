"""Old backups go, with every file that only they had."""

from topics.formats.backup import Manifest, log_part
from topics.storage.backups.place import BackupPlace


class PlaceBusy(Exception):
    """A backup is being taken: what it has put already cannot be told from what may go."""


def prune(place: BackupPlace, keep: int, own: bool = False) -> int:
    """Removes all but the newest backups, and every file that none of these has; how many files went. `own` says that
    the caller is who writes there, and takes no backup now.

    The manifests go first, so that a crash leaves no backup that is not whole. The files are listed before the look
    whether a backup is being taken: what one puts from then on is not among them, and what it had put, it names.
    """
    files = place.files()
    if place.is_written and not own:
        raise PlaceBusy
    numbers = place.numbers()
    kept = [place.load(number) for number in numbers[-keep:]]
    names = {found.name for manifest in kept for found in manifest.files()}
    place.withdraw(numbers[:-keep])
    removed = 0
    for name in files:
        if name not in names and not (kept and _is_behind(name, kept[-1])):
            place.remove(name)
            removed += 1
    return removed


def _is_behind(name: str, newest: Manifest) -> bool:
    """Whether a file is of the log behind the newest backup: that is shipped at any time."""
    if not name.startswith("log/"):
        return False
    try:
        part = log_part(name)
    except ValueError:
        return False
    begins = {position.shard: position.file for position in newest.positions}
    return part.number >= begins.get(part.shard, 0)
