"""What the last server on a data folder left behind: the small file `machine`.

    BOOT RESERVE     a server has the folder, or was killed: the boot of its machine, and how many seqs beyond what the
                     disk knows it lets topics give out (`engine.seq_reserve`)
    closed cleanly   no server has it, and everything that was given out is in the snapshots

The first is written before a server takes anything, the second when all else is closed. A log that failed makes the
boot unknown: the kernel may have dropped pages as after a power cut, so the next start must not reason that the machine
kept running and nothing can be missing.
"""

import contextlib
from typing import NamedTuple

from topics.storage.fs import FileSystem, read_small, write_small
from topics.storage.layout import Layout

_CLEAN = "closed cleanly"
_NO_BOOT = "-"


class LastRun(NamedTuple):
    boot_id: str
    reserve: int | None
    """None where nothing is known of it."""
    clean: bool

    def same_boot(self, boot_id: str) -> bool:
        """Whether the machine kept running since, so that its page cache has every write."""
        return bool(boot_id) and boot_id == self.boot_id


def read_last_run(fs: FileSystem, layout: Layout) -> LastRun:
    text = read_small(fs, layout.machine)
    if text == _CLEAN:
        return LastRun("", 0, True)
    boot_id, _, reserve = text.partition(" ")
    if reserve.isdecimal():
        return LastRun("" if boot_id == _NO_BOOT else boot_id, int(reserve), False)
    # A release that wrote nothing but the boot reserved by frames alone; without the file, nobody knows.
    return LastRun(boot_id, 0 if boot_id else None, False)


def note_running(fs: FileSystem, layout: Layout, boot_id: str, reserve: int) -> None:
    write_small(fs, layout.machine, f"{boot_id or _NO_BOOT} {reserve}", layout.root)


def note_closed(fs: FileSystem, layout: Layout) -> None:
    """The next start need not ask what a crash may have taken. Where this cannot be written, it does."""
    with contextlib.suppress(OSError):
        write_small(fs, layout.machine, _CLEAN, layout.root)


def note_distrust(fs: FileSystem, layout: Layout) -> None:
    """On a disk this bad the attempt may fail as well; then there is nothing more to be done from here."""
    with contextlib.suppress(OSError):
        fs.remove(layout.machine)
        fs.sync_dir(layout.root)
