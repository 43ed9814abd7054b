"""Whose backups are whose: the small file `backup/lineage` of a data folder.

    LINEAGE LAST NEXT     the folder's name at every place, its newest backup, and the one that is being written

Numbers of snapshots and segments mean something within one history only. A folder that was copied, put back to an
older state or restored has another future than the one its backups know; built upon them, a backup would mix the two.
So the file is compared with the place before each backup: unless the newest one there is `LAST` or `NEXT`, the folder
begins a lineage of its own. It is no part of a backup, so a restored folder has none.
"""

from typing import NamedTuple

from topics.storage.fs import FileSystem, read_small, write_small
from topics.storage.layout import Layout
from topics.system.dice import Dice

_BYTES = 8


class Lineage(NamedTuple):
    name: str
    last: int
    next: int

    def knows(self, newest: int) -> bool:
        return newest in (self.last, self.next)


def read_lineage(fs: FileSystem, layout: Layout) -> Lineage | None:
    words = read_small(fs, layout.backup_lineage).split(" ")
    if len(words) != 3 or not (words[1].isdecimal() and words[2].isdecimal()):
        return None
    return Lineage(words[0], int(words[1]), int(words[2]))


def new_lineage(dice: Dice) -> str:
    return dice.token(_BYTES).hex()


def note_lineage(fs: FileSystem, layout: Layout, lineage: Lineage) -> None:
    fs.make_dirs(layout.backup)
    write_small(fs, layout.backup_lineage, f"{lineage.name} {lineage.last} {lineage.next}", layout.backup)


def forget_lineage(fs: FileSystem, layout: Layout) -> None:
    """The next backup begins a history of its own."""
    if fs.exists(layout.backup_lineage):
        fs.remove(layout.backup_lineage)
        fs.sync_dir(layout.backup)
