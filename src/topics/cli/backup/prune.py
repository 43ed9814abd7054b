"""`topics backup prune`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.backup.place import At, Lineage, open_place
from topics.cli.shared.asking import Yes, confirm
from topics.cli.shared.failures import CommandError, UsageError
from topics.cli.shared.output import note
from topics.storage.backups.pruning import PlaceBusy
from topics.storage.backups.pruning import prune as prune_place


def prune(
    *,
    keep: Annotated[int, Parameter(help="How many of the newest stay.")],
    at: At = None,
    lineage: Lineage = None,
    yes: Yes = False,
) -> int:
    """Remove old backups, and every file that only they had."""
    if keep < 1:
        raise UsageError("--keep must be at least 1")
    place = open_place(at, lineage)
    numbers = place.numbers()
    if len(numbers) <= keep:
        note(f"there are {len(numbers)} backup(s): nothing to remove")
        return 0
    confirm(f"Remove {len(numbers) - keep} of {len(numbers)} backups of {place.lineage}?", yes)
    try:
        files = prune_place(place, keep)
    except PlaceBusy:
        raise CommandError(
            f"a backup is being taken at {place.root}, or its server stopped in the middle of one; try again when it "
            "is done, or after the server's next backup"
        ) from None
    note(f"removed {len(numbers) - keep} backup(s) with {files} file(s)")
    return 0
