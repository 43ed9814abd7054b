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
    shipped: int | None = None
    if given_place(at) is not None:
        place = open_place(at, lineage)
        good, bad = load_all(place)
        infos = [info_of(manifest) for manifest in good]
        for damage in bad:
            note(f"{damage.name}: {damage.why}")
        log = place.shipped()
        shipped = log.moment if log is not None and good and log.before == good[-1].number else None
    else:
        with connected(server) as client:
            answer = client.backups()
        infos, shipped = answer.backups, answer.shipped_moment_ms
    listing(output, HEAD, ((_row(info), info) for info in infos))
    if infos and shipped is not None and shipped > infos[-1].moment_ms:
        note(f"the log behind backup {infos[-1].number} is there up to {_shown(shipped)}")
    return 0


def _row(info: BackupInfo) -> tuple[object, ...]:
    since = "-" if info.before is None else f"backup {info.before}"
    return info.number, _shown(info.moment_ms), info.topics, shown_bytes(info.bytes), since


def _shown(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
