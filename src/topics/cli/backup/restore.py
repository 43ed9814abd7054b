"""`topics backup restore`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.backup.place import At, Lineage, load_all, open_place
from topics.cli.shared.amounts import moment_ms
from topics.cli.shared.failures import CommandError, UsageError
from topics.cli.shared.output import Output, json_line, note, table
from topics.cli.shared.screen import progress
from topics.core.backup_errors import DamagedBackupError
from topics.engine.backup.restoring import Restore
from topics.engine.backup.targets import Target, at_moment, at_seq_of, newest_of, numbered
from topics.engine.backup.wanted import Wanted
from topics.engine.core import EngineOptions
from topics.formats.backup import Manifest
from topics.storage.backups.place import BackupPlace
from topics.storage.layout import Layout
from topics.storage.posix import PosixFileSystem, make_private
from topics.system.clock import SystemClock
from topics.system.dice import SystemDice

_GAP = 1_000_000
_GAP_MAX = 10**12
"""More than any server gives out, and so little that seqs stay far from where readers in JavaScript can tell no two
numbers apart."""


def restore(
    folder: str,
    /,
    *,
    at: At = None,
    lineage: Lineage = None,
    backup: Annotated[int | None, Parameter(help="This backup.", show_default="the newest")] = None,
    until: Annotated[str | None, Parameter(help="As it was then: a date, or a time before now such as 10m.")] = None,
    seq: Annotated[str | None, Parameter(help="As it was before a topic had a higher seq, TOPIC:SEQ.")] = None,
    topic: Annotated[list[str] | None, Parameter(help="Only this topic; may be repeated.")] = None,
    prefix: Annotated[list[str] | None, Parameter(help="Only topics that begin so; may be repeated.")] = None,
    rename: Annotated[str | None, Parameter(help="Give names that begin with OLD another beginning, OLD=NEW.")] = None,
    gap: Annotated[
        int, Parameter(help="Seqs behind each head that are told as lost: the old server may have given them out.")
    ] = _GAP,
    output: Output = "table",
) -> int:
    """Make a data folder out of a backup.

    Parameters
    ----------
    folder
        The new data folder; it must not exist, or be empty.
    """
    if sum(given is not None for given in (backup, until, seq)) > 1:
        raise UsageError("--backup, --until and --seq each name a state: give one of them")
    if not 0 <= gap <= _GAP_MAX:
        raise UsageError(f"--gap must be from 0 to {_GAP_MAX}")
    place = open_place(at, lineage)
    clock, fs = SystemClock(), PosixFileSystem()
    moment = None if until is None else moment_ms(until, "--until", clock.now_ms())
    wanted = Wanted(topic or (), prefix or (), _renaming(rename))
    layout = Layout(folder.rstrip("/") or "/")
    make_private(layout.root)
    with progress("restoring") as (on_total, on_bytes):
        job = Restore(place, fs, layout, on_bytes)
        target = _target(place, backup, moment, seq)
        on_total(sum(kept.size for kept in (*target.base.files(), *target.log)))
        try:
            job.copy(target, wanted)
        except DamagedBackupError:
            # Nothing was written. Where the server has gone on meanwhile, the newest log is another one by now.
            again = _target(place, backup, moment, seq)
            if again == target:
                raise
            target = again
            job.copy(target, wanted)
        options = EngineOptions(data_dir=layout.root, wal_shards=len(target.base.positions) or 1)
        restored = job.finish(target, wanted, gap, options, clock, SystemDice())
    if output == "json":
        json_line(restored)
        return 0
    table(
        ("TOPIC", "HEAD", "RECORDS", "TOLD AS LOST"),
        [
            (one.topic, one.head_seq, one.records, "-" if one.lost_from is None else f"{one.lost_from}-{one.lost_to}")
            for one in restored.topics
        ],
    )
    note(
        f"restored backup {restored.backup} of {restored.lineage} into {layout.root}, up to moment {restored.moment}; "
        f"{restored.excluded_frames} later change(s) of the backups are not in it"
    )
    return 0


def _target(place: BackupPlace, backup: int | None, until: int | None, seq: str | None) -> Target:
    manifests: list[Manifest]
    manifests, bad = load_all(place)
    for damage in bad:
        note(f"{damage.name}: {damage.why}; it is not used")
    if backup is not None:
        return numbered(manifests, backup)
    if until is not None:
        return at_moment(place, manifests, until)
    if seq is not None:
        name, _, number = seq.rpartition(":")
        if not name or not number.isdecimal():
            raise UsageError(f"--seq is {seq!r}; accepted is TOPIC:SEQ")
        return at_seq_of(place, manifests, name, int(number))
    return newest_of(place, manifests)


def _renaming(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    old, equals, new = text.partition("=")
    if not equals:
        raise CommandError("--rename takes OLD=NEW")
    return old, new
