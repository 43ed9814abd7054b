"""Where backups are, for commands that work on them without a server."""

import os
from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.failures import CommandError, UsageError
from topics.formats.backup import Manifest
from topics.storage.backups.place import BackupDamaged, BackupPlace, lineages
from topics.storage.objects.tiers import guest_files
from topics.storage.places import check_place

At = Annotated[
    str | None,
    Parameter(
        name=["--at"], help="Folder, or URL of an object store, with the backups. (TOPICS_BACKUP_DIR)",
        show_default=False,
    ),
]  # fmt: skip
Lineage = Annotated[
    str | None, Parameter(help="Whose backups, where several data folders share the place.", show_default=False)
]


def given_place(at: str | None) -> str | None:
    return check_place(at or os.environ.get("TOPICS_BACKUP_DIR", "").strip() or None, "the place for backups")


def open_place(at: str | None, lineage: str | None) -> BackupPlace:
    root = given_place(at)
    if root is None:
        raise UsageError("say where the backups are with --at or TOPICS_BACKUP_DIR")
    fs = guest_files(root)
    found = lineages(fs, root)
    if lineage is None:
        if len(found) != 1:
            there = f"there are those of {', '.join(found)}: choose with --lineage" if found else "there are none"
            raise CommandError(f"{root}: {there}")
        lineage = found[0]
    elif lineage not in found:
        raise CommandError(f"{root} has no backups of {lineage}; there are those of {', '.join(found) or 'nobody'}")
    return BackupPlace(fs, root, lineage)


def load_all(place: BackupPlace) -> tuple[list[Manifest], list[BackupDamaged]]:
    """The backups, the oldest first, and the manifests that cannot be read."""
    good, bad = [], []
    for number in place.numbers():
        try:
            good.append(place.load(number))
        except BackupDamaged as damage:
            bad.append(damage)
    return good, bad
