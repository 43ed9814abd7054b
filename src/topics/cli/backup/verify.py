"""`topics backup verify`."""

from topics.cli.backup.place import At, Lineage, load_all, open_place
from topics.cli.shared.output import Output, listing, note
from topics.formats.backup import Manifest
from topics.storage.backups.place import BackupDamaged, BackupPlace, damages


def verify(number: int | None = None, /, *, at: At = None, lineage: Lineage = None, output: Output = "table") -> int:
    """Read backups whole and compare them with their checksums.

    Exits with 0 when all are sound and with 1 when a file is missing or is not what was written.

    Parameters
    ----------
    number
        Only this one; all of them otherwise.
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
        listing(output, ("FILE", "DAMAGE"), (((name, why), {"file": name, "why": why}) for name, why in rows))
        return 1
    note(f"{len(looked_at)} backup(s) of {place.lineage} are sound")
    return 0


def _damaged_log(place: BackupPlace, newest: Manifest) -> list[BackupDamaged]:
    """What is wrong with the log that was shipped behind the newest backup."""
    try:
        shipped = place.shipped()
        # Until something is logged behind the newest one, this is what was behind an earlier one. It counts no more,
        # and pruning takes it away.
        if shipped is None or shipped.before != newest.number:
            return []
        found = damages(place, shipped.parts)
        # Where a server ships, a longer one may have taken its place meanwhile.
        return found if shipped == place.shipped() else _damaged_log(place, newest)
    except BackupDamaged as damage:
        return [damage]
