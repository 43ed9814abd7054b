"""`topics primary` and `topics promote`: look at the lease of the primary in the backup storage, and end it early;
`topics status`: look at the servers themselves."""

import msgspec

from topics.cli.backup import At, storage_of
from topics.cli.failures import CommandError
from topics.cli.output import Output, Yes, confirm, print_result, print_table
from topics.cli.server_connection import HERE, Server, each_client
from topics.ops.failover.lease import LeaseRecord, released
from topics.ops.failover.lease_keeper import LeasePlace
from topics.system.entropy import SystemEntropy
from topics_client import ApiError, Client, ConnectionFailed, NotPrimary

_TOKEN_BYTES = 8


def primary(*, at: At = None, output: Output = "table") -> int:
    """Show the primary of a backup location: its address, its term and its backups."""
    _, record = _newest(at)
    state = "released" if record.released else "held"
    row = (record.address, record.term, state, record.lease_ms, record.lineage or "none yet")
    print_table(output, ("PRIMARY", "TERM", "LEASE", "LEASE MS", "BACKUPS"), [(row, record)])
    return 0


class ServerState(msgspec.Struct, frozen=True):
    """A row of `topics status`."""

    server: str
    role: str | None
    """None while it is not known."""
    state: str
    term: int | None = None
    lag_ms: int | None = None
    primary: str | None = None


def status(*, output: Output = "table", server: Server = HERE) -> int:
    """Show the role, the term and the lag of each server of --url."""
    found = [_state_of(url, client) for url, client in each_client(server)]
    rows = [
        (one.server, one.role or "-", one.state, one.term or "-", "-" if one.lag_ms is None else one.lag_ms)
        for one in found
    ]
    print_table(output, ("SERVER", "ROLE", "STATE", "TERM", "LAG MS"), list(zip(rows, found, strict=True)))
    return 0 if any(one.role == "primary" for one in found) else 1


def _state_of(url: str, client: Client) -> ServerState:
    try:
        ready = client.ready()
    except NotPrimary as error:
        primary = (error.detail or {}).get("primary")
        return ServerState(url, "standby", "waits", primary=primary if isinstance(primary, str) else None)
    except ApiError as error:
        return ServerState(url, None, error.code)
    except ConnectionFailed:
        return ServerState(url, None, "does not answer")
    return ServerState(url, ready.role, ready.status, ready.primary_term, ready.lag_ms, ready.primary)


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
