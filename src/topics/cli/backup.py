"""`topics backup`: create, list, verify, prune and restore backups."""

import os
import time
from datetime import UTC, datetime
from typing import Annotated

from cyclopts import Parameter

from topics.cli.arguments import moment_ms, shown_bytes
from topics.cli.failures import CommandError, UsageError
from topics.cli.output import Output, Yes, confirm, json_line, note, print_result, print_table, progress, table
from topics.cli.server_connection import HERE, Server, connected
from topics.engine.core import EngineOptions
from topics.log.fs import FileSystem
from topics.log.layout import Layout, check_place
from topics.log.object_store.tiered_fs import guest_files
from topics.log.posix import PosixFileSystem, make_private
from topics.model.errors import DamagedBackupError
from topics.ops.backup.backup_store import (
    BackupDamaged,
    BackupPlace,
    Manifest,
    PlaceBusy,
    damages,
    lineages,
    prune_unfinished,
)
from topics.ops.backup.backup_store import prune as prune_place
from topics.ops.backup.backups import info_of
from topics.ops.backup.restore import RequestedTopics, Restore, Target, at_moment, at_seq_of, newest_of, numbered
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics_protocol.v0 import BackupInfo

_LOOK_AGAIN_S = 0.1


def create(
    *,
    wait: Annotated[bool, Parameter(help="Wait until the backup is complete.")] = True,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Create a backup of a running server, in the backup location of its settings."""
    with connected(server) as client:
        before = client.backups()
        client.create_backup()
        if not wait:
            note("the backup is being created; `topics backup list` shows it when it is complete")
            return 0
        while True:
            now = client.backups()
            if now.failures > before.failures:
                raise CommandError(now.error or "the backup failed")
            if now.completed > before.completed and not now.running:
                break
            time.sleep(_LOOK_AGAIN_S)
        newest = now.backups[-1]
        sentence = f"backup {newest.number}: {newest.topics} topics, {shown_bytes(newest.bytes)}, at {now.place}"
        print_result(newest, output, sentence, str(newest.number))
    return 0


# Backup locations, for commands that work without a server.

At = Annotated[
    str | None,
    Parameter(
        name=["--at"], help="Folder or object store URL with the backups. (TOPICS_BACKUP_DIR)",
        show_default=False,
    ),
]  # fmt: skip
Lineage = Annotated[
    str | None, Parameter(help="The lineage, if several data folders share the location.", show_default=False)
]


def given_place(at: str | None) -> str | None:
    return check_place(at or os.environ.get("TOPICS_BACKUP_DIR", "").strip() or None, "the backup location")


def storage_of(at: str | None) -> tuple[FileSystem, str]:
    root = given_place(at)
    if root is None:
        raise UsageError("the backup location is missing: give --at or set TOPICS_BACKUP_DIR")
    return guest_files(root), root


def open_place(at: str | None, lineage: str | None) -> BackupPlace:
    fs, root = storage_of(at)
    found = lineages(fs, root)
    if lineage is None:
        if len(found) != 1:
            there = (
                f"contains several lineages: {', '.join(found)}. Choose one with --lineage" if found else "no backups"
            )
            raise CommandError(f"{root}: {there}")
        lineage = found[0]
    elif lineage not in found:
        raise CommandError(f"{root} has no backups of {lineage}, only of {', '.join(found) or 'no lineage'}")
    return BackupPlace(fs, root, lineage)


def load_all(place: BackupPlace) -> tuple[list[Manifest], list[BackupDamaged]]:
    """The readable backups, oldest first, and the damaged manifests."""
    good, bad = [], []
    for number in place.numbers():
        try:
            good.append(place.load(number))
        except BackupDamaged as damage:
            bad.append(damage)
    return good, bad


HEAD = ("BACKUP", "UP TO", "TOPICS", "SIZE", "RESTORABLE SINCE")


def list_(*, at: At = None, lineage: Lineage = None, output: Output = "table", server: Server = HERE) -> int:
    """List the backups of a server, or with --at those of a location, without a server."""
    shipped: int | None = None
    if given_place(at) is not None:
        place = open_place(at, lineage)
        good, bad = load_all(place)
        infos = [info_of(manifest) for manifest in good]
        for damage in bad:
            note(f"{damage.name}: {damage.why}")
        shipped = place.shipped_moment(good[-1]) if good else None
    else:
        with connected(server) as client:
            answer = client.backups()
        infos, shipped = answer.backups, answer.shipped_moment_ms
    print_table(output, HEAD, ((_row(info), info) for info in infos))
    if infos and shipped is not None and shipped > infos[-1].moment_ms:
        note(f"the log after backup {infos[-1].number} is available up to {_shown(shipped)}")
    return 0


def _row(info: BackupInfo) -> tuple[object, ...]:
    since = "-" if info.before is None else f"backup {info.before}"
    return info.number, _shown(info.moment_ms), info.topics, shown_bytes(info.bytes), since


def _shown(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def verify(number: int | None = None, /, *, at: At = None, lineage: Lineage = None, output: Output = "table") -> int:
    """Verify the checksums of backups.

    Exits with 0 when all files are intact and with 1 when one is missing or damaged.

    Parameters
    ----------
    number
        The backup to verify; all of them by default.
    """
    place = open_place(at, lineage)
    good, bad = load_all(place)
    looked_at = [manifest for manifest in good if number is None or manifest.number == number]
    found = [(damage.name, damage.why) for damage in bad]
    for manifest in looked_at:
        found += [(damage.name, damage.why) for damage in damages(place, manifest.files())]
    if number is None and good:
        found += [(damage.name, damage.why) for damage in _damaged_log(place, good[-1])]
    rows = sorted(set(found))
    if rows:
        print_table(output, ("FILE", "DAMAGE"), (((name, why), {"file": name, "why": why}) for name, why in rows))
        return 1
    note(f"{len(looked_at)} backup(s) of {place.lineage} are sound")
    return 0


def _damaged_log(place: BackupPlace, newest: Manifest) -> list[BackupDamaged]:
    """Damage in the log that was shipped after the newest backup."""
    shipped = place.shipped(newest)
    return [] if shipped is None else shipped.damaged


def prune(
    *,
    keep: Annotated[int, Parameter(help="The number of newest backups to keep.")],
    at: At = None,
    lineage: Lineage = None,
    yes: Yes = False,
) -> int:
    """Remove old backups, the files that only they use, and first backups without progress for a day."""
    if keep < 1:
        raise UsageError("--keep must be at least 1")
    now_ms = SystemClock().now_ms()
    fs, root = storage_of(at)
    unfinished = prune_unfinished(fs, root, now_ms)
    if unfinished:
        note(f"removed {len(unfinished)} unfinished backup(s)")
        if not lineages(fs, root):
            return 0
    place = open_place(at, lineage)
    numbers = place.numbers()
    if len(numbers) <= keep:
        note(f"{len(numbers)} backup(s), none to remove")
        return 0
    confirm(f"Remove {len(numbers) - keep} of {len(numbers)} backups of {place.lineage}?", yes)
    try:
        files = prune_place(place, keep, now_ms=now_ms)
    except PlaceBusy:
        raise CommandError(
            f"a backup is being created at {place.root}, or its server stopped during one; try again when it is done, "
            "or a day after its last progress"
        ) from None
    note(f"removed {len(numbers) - keep} backup(s) with {files} file(s)")
    return 0


_GAP = 1_000_000
_GAP_MAX = 10**12
"""More seqs than any server assigns, and far below 2**53, where JavaScript loses precision."""


def restore(
    folder: str,
    /,
    *,
    at: At = None,
    lineage: Lineage = None,
    backup: Annotated[int | None, Parameter(help="The number of the backup.", show_default="the newest")] = None,
    until: Annotated[
        str | None, Parameter(help="Restore the state at this time: a date, or a time before now such as 10m.")
    ] = None,
    seq: Annotated[
        str | None, Parameter(help="Restore the state in which this seq is the last of a topic, TOPIC:SEQ.")
    ] = None,
    topic: Annotated[list[str] | None, Parameter(help="Restore only this topic; may be repeated.")] = None,
    prefix: Annotated[
        list[str] | None, Parameter(help="Restore only topics with this prefix; may be repeated.")
    ] = None,
    rename: Annotated[str | None, Parameter(help="Replace the prefix OLD of topic names by NEW, OLD=NEW.")] = None,
    gap: Annotated[
        int, Parameter(help="Seqs after each head to report as lost, because the old server may have assigned them.")
    ] = _GAP,
    output: Output = "table",
) -> int:
    """Restore a backup into a new data folder.

    Parameters
    ----------
    folder
        The new data folder. It must be empty or not exist.
    """
    if sum(given is not None for given in (backup, until, seq)) > 1:
        raise UsageError("--backup, --until and --seq exclude each other: give one of them")
    if not 0 <= gap <= _GAP_MAX:
        raise UsageError(f"--gap must be from 0 to {_GAP_MAX}")
    place = open_place(at, lineage)
    clock, fs = SystemClock(), PosixFileSystem()
    moment = None if until is None else moment_ms(until, "--until", clock.now_ms())
    requested = RequestedTopics(topic or (), prefix or (), _renaming(rename))
    layout = Layout(folder.rstrip("/") or "/")
    make_private(layout.root)
    with progress("restoring") as (on_total, on_bytes):
        job = Restore(place, fs, layout, on_bytes)
        target = _target(place, backup, moment, seq)
        on_total(sum([kept.size for kept in target.base.files()] + [part.size for part in target.log]))
        try:
            job.copy(target, requested)
        except DamagedBackupError:
            # Nothing was written yet. A running server may have replaced the newest log meanwhile.
            again = _target(place, backup, moment, seq)
            if again == target:
                raise
            target = again
            job.copy(target, requested)
        options = EngineOptions(data_dir=layout.root, wal_shards=len(target.base.positions) or 1)
        restored = job.finish(target, requested, gap, options, clock, SystemEntropy())
    if output == "json":
        json_line(restored)
        return 0
    table(
        ("TOPIC", "HEAD", "RECORDS", "REPORTED AS LOST"),
        [
            (one.topic, one.head_seq, one.records, "-" if one.lost_from is None else f"{one.lost_from}-{one.lost_to}")
            for one in restored.topics
        ],
    )
    note(
        f"restored backup {restored.backup} of {restored.lineage} into {layout.root}, up to moment {restored.moment}; "
        f"{restored.excluded_frames} later change(s) of the backups are not included"
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
