"""`topics primary` and `topics promote`: look at the lease of the primary in the backup storage, and end it early."""

from topics.cli.backup import At, storage_of
from topics.cli.failures import CommandError
from topics.cli.output import Output, Yes, confirm, print_result, print_table
from topics.ops.failover.lease import LeaseRecord, released
from topics.ops.failover.lease_keeper import LeasePlace
from topics.system.entropy import SystemEntropy

_TOKEN_BYTES = 8


def primary(*, at: At = None, output: Output = "table") -> int:
    """Show the primary of a backup location: its address, its term and its backups."""
    _, record = _newest(at)
    state = "released" if record.released else "held"
    row = (record.address, record.term, state, record.lease_ms, record.lineage or "none yet")
    print_table(output, ("PRIMARY", "TERM", "LEASE", "LEASE MS", "BACKUPS"), [(row, record)])
    return 0


def promote(*, at: At = None, output: Output = "table", yes: Yes = False) -> int:
    """End the lease of the primary, so that a standby takes over at once.

    The primary stops accepting writes when it next renews the lease, within a quarter of its length.
    """
    place, record = _newest(at)
    if record.released:
        raise CommandError(f"the lease of term {record.term} was released already")
    if not record.lineage:
        raise CommandError(f"{record.address} has no backup yet, so no server can take over")
    confirm(f"End term {record.term} of {record.address}?", yes)
    made = place.make(released(record, SystemEntropy().token(_TOKEN_BYTES).hex()))
    if made is None:
        raise CommandError("the primary renewed its lease meanwhile; try again")
    print_result(made, output, f"term {made.term} of {made.address} ends; a standby takes over", str(made.term))
    return 0


def _newest(at: str | None) -> tuple[LeasePlace, LeaseRecord]:
    fs, root = storage_of(at)
    place = LeasePlace(fs, root)
    record = place.newest()
    if record is None:
        raise CommandError(f"{root} has no lease: start a server with TOPICS_PRIMARY_LEASE_MS")
    return place, record
