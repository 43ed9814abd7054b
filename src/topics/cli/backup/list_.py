"""`topics backup list`."""

from datetime import UTC, datetime

from topics.cli.backup.place import At, Lineage, given_place, load_all, open_place
from topics.cli.shared.amounts import shown_bytes
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output, listing, note
from topics.engine.backup.info import info_of
from topics.wire.backups import BackupInfo

HEAD = ("BACKUP", "UP TO", "TOPICS", "SIZE", "EVERY MOMENT SINCE")


def list_(*, at: At = None, lineage: Lineage = None, output: Output = "table", server: Server = HERE) -> int:
    """List the backups of a server, or with --at those at a place, without one."""
    if given_place(at) is not None:
        good, bad = load_all(open_place(at, lineage))
        infos = [info_of(manifest) for manifest in good]
        for damage in bad:
            note(f"{damage.name}: {damage.why}")
    else:
        with connected(server) as client:
            infos = client.backups().backups
    listing(output, HEAD, ((_row(info), info) for info in infos))
    return 0


def _row(info: BackupInfo) -> tuple[object, ...]:
    moment = datetime.fromtimestamp(info.moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    since = "-" if info.before is None else f"backup {info.before}"
    return info.number, moment, info.topics, shown_bytes(info.bytes), since
