"""What the last server on a data folder left behind: the small file `machine`.

    BOOT RESERVE SINCE [stopped]
                          the boot of its machine, how many seqs beyond what the disk knows it let topics give out
                          (`engine.write.seq_reserve`), and the newest snapshot there was when it began to

It is written before the first seq is given out. A snapshot that was taken while none were given out, at the end of a
recovery or of a clean stop, says so itself (`SnapshotHead.quiet`): when it is younger than the run, nothing can be
missing behind it. So neither a start that nobody wrote to nor a clean stop leaves a hole in any topic's seqs.

`stopped` is added where a clean stop could not take its last checkpoint, on a full disk for instance, while every log
is synced to its end: then nothing that was logged can be missing either.

A log that failed makes the boot unknown: the kernel may have dropped pages as after a power cut, so the next start must
not reason that the machine kept running and nothing can be missing.
"""

import contextlib
from typing import NamedTuple

from topics.formats.snapshot import SnapshotHead
from topics.storage.fs import FileSystem, read_small, write_small
from topics.storage.layout import Layout

_NO_BOOT = "-"
_STOPPED = "stopped"


class LastRun(NamedTuple):
    boot_id: str
    reserve: int
    since: int
    """-1 where no run gave out anything that is not in the snapshots by now."""
    stopped: bool = False
    """Whether it synced its log to the end and stopped."""

    def same_boot(self, boot_id: str) -> bool:
        """Whether the machine kept running since, so that its page cache has every write."""
        return bool(boot_id) and boot_id == self.boot_id

    def is_settled(self, newest: SnapshotHead | None) -> bool:
        """Whether everything that was given out is in the snapshots."""
        return newest is not None and newest.quiet and newest.number > self.since


def read_last_run(fs: FileSystem, layout: Layout) -> LastRun:
    words = read_small(fs, layout.machine).split(" ")
    if len(words) in (3, 4) and words[1].isdecimal() and words[2].isdecimal():
        boot = "" if words[0].startswith(_NO_BOOT) else words[0]
        return LastRun(boot, int(words[1]), int(words[2]), words[3:] == [_STOPPED])
    # A release that wrote nothing but the boot reserved seqs by frames alone.
    return LastRun(words[0], 0, -1)


def note_running(fs: FileSystem, layout: Layout, run: LastRun) -> None:
    write_small(fs, layout.machine, f"{run.boot_id or _NO_BOOT} {run.reserve} {run.since}", layout.root)


def note_stopped(fs: FileSystem, layout: Layout) -> None:
    """In place: on a full disk there may be no room for another file. Where it fails, a stop is told as a crash."""
    with contextlib.suppress(OSError):
        file = fs.open(layout.machine, write=True)
        try:
            if not file.read_at(0, 4096).endswith(_STOPPED.encode()):
                file.write_at(file.size(), f" {_STOPPED}".encode())
                file.sync()
        finally:
            file.close()


def note_distrust(fs: FileSystem, layout: Layout) -> None:
    """On a disk this bad the attempt may fail as well; then there is nothing more to be done from here."""
    with contextlib.suppress(OSError):
        try:
            file = fs.open(layout.machine, write=True)
            try:
                file.write_at(0, _NO_BOOT.encode())
                file.sync()
            finally:
                file.close()
        except OSError:
            fs.remove(layout.machine)
            fs.sync_dir(layout.root)
