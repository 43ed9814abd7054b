"""Paths of a data folder. User-chosen names never become paths: a topic's folder is its id.

.topics.lock                     held while a server runs; names its process
machine                          what the last server left behind: its boot, and how far it may have come
lease-holder                     names this folder in the lease of the primary
reserve                          room kept back for a full disk; its content means nothing
wal/shard-NN/<16 digits>.wal     the log, one folder a shard, files numbered from 1
meta/snapshot-<16 digits>.bin    the newest full snapshot and the ones that add to it
meta/newest                      the head of the newest snapshot once more, so that its loss does not go unnoticed
meta/catalog                     what readers of the sealed segments need to know, as of a checkpoint
meta/catalog-<16 digits>         its changes since, one file a checkpoint
topics/<16 hex digits>/seg-<20 digits>.data and .idx     sealed segments, the same below the cold folder
near/                            copies of what is in the object store; can be fetched again
near/families/                   companions among them; emptied by every start
archive/                         sealed records as Parquet, kept by the pipeline; no part of the log
families/<16 hex digits>/        companions of sealed segments, which make searches quick; no part of the log
<cold>/families/                 those of them whose segments are all in the cold folder
pipeline/                        what the pipeline remembers between its runs; no part of the log
backup/                          which backups are this folder's, and log files that the next one wants
restoring                        there while a restore is at work; no server starts then
repair/                          what a repair has prepared; with a plan in it, the repair must be finished first
damaged-<number>/                what repairs have taken out of use, each file in its place below; never read again
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

from topics.model.settings import SettingsError

RESTORED = "restored"
"""The content of `pipeline/history` in a folder that was restored from a backup."""


class FileFormat(NamedTuple):
    """The versions of a format that this release supports."""

    what: str
    mark: str
    """The position of the version in a file."""
    written: str
    read: str
    otherwise: str
    """The result of reading another version."""


_REFUSED = "refused with `newer_format`"
FORMATS = (
    FileFormat("frame: log files, snapshots, `meta/newest`", "magic, kind", "TPF1", "TPF1", _REFUSED),
    FileFormat("block", "layout byte", "1, 2, 3, 4", "1, 2, 3, 4", _REFUSED),
    FileFormat("`seg-*.data`", "magic, layout byte", "TPSEG001", "TPSEG001", "reads of it fail; repair refuses"),
    FileFormat("`seg-*.idx`", "magic", "TPIDX001, TPIDX002", "TPIDX001, TPIDX002", "reads of it fail; repair refuses"),
    FileFormat("`meta/catalog`", "magic", "TPCAT002", "TPCAT001, TPCAT002", "replaced by the next checkpoint"),
    FileFormat("`meta/catalog-*`", "magic", "TPCDL001", "TPCDL001", "replaced by the next checkpoint"),
    FileFormat("`*.companion`", "magic", "TPCMP001", "TPCMP001", "not asked; entries are scanned"),
)
"""Every binary format of the data folder, bound to the table in docs/formats.md. A field may be added at the end of a
msgpack structure, or to a JSON object, with a default and without a new version."""


class FileRule(NamedTuple):
    """The writing, validity and crash states of a file of the data folder."""

    name: str
    written: str
    valid: str
    after_a_crash: str


FILES = (
    FileRule(
        "`.topics.lock`",
        "when a process takes the folder",
        "the kernel's lock on it counts, not its content",
        "a file without a lock, which the next start takes over",
    ),
    FileRule(
        "`machine`",
        "atomic, before the first seq is given out; the first byte of each copy in place after a log failed",
        (
            "two copies of 256 bytes, each with a checksum; one valid copy is enough. The boot id of the "
            "running kernel in it means that the machine has not restarted since (`topics.engine.recovery`)"
        ),
        "the old one",
    ),
    FileRule(
        "`lease-holder`",
        "atomic; before its server takes the lease, or at the end of a takeover",
        "when the newest lease names it; otherwise a start takes over",
        "none: a start takes over",
    ),
    FileRule(
        "`*.wal`",
        "appended to; created, preallocated and synced with its name before the first frame",
        "frame by frame, see below",
        "a torn tail in the newest file, or files that a snapshot has replaced",
    ),
    FileRule(
        "`snapshot-*.bin`",
        "atomic",
        "as soon as it has its name",
        "older snapshots that a newer full one replaced; the next checkpoint removes them",
    ),
    FileRule(
        "`meta/newest`",
        "atomic; after the snapshot, before anything that it replaces is removed",
        "when it is a valid frame. It proves only that a snapshot of that number existed",
        "an older one, which is harmless",
    ),
    FileRule(
        "`seg-*.data`, `seg-*.idx`",
        "in place, synced later",
        "when a snapshot names the segment, after both files and their names are synced",
        "orphans, whole or in parts; the next start removes them",
    ),
    FileRule(
        "`meta/catalog`",
        "atomic; after the snapshot and the delete flags of its checkpoint, before anything is removed",
        "when its checksum is right; recovery does not use it",
        "an older one than the snapshot; the next start takes a checkpoint and replaces it",
    ),
    FileRule(
        "`meta/catalog-*`",
        "atomic, instead of `meta/catalog` where that is large; never changed",
        "when its checksum is right and it begins with the number and stamp of the catalog before it",
        "files that lead to no newer catalog; the next whole catalog removes them",
    ),
    FileRule(
        "`families/*/manifest.json`, `*.companion`",
        "companions in place, synced with their names; then the manifest, atomic",
        "a companion when the manifest beside it names it",
        "companions that no manifest names; the next run of the pipeline removes them",
    ),
    FileRule(
        "`backup/lineage`",
        "atomic; before and after a backup's manifest",
        "when it names the newest backup at the place; otherwise the folder begins a new lineage",
        "the old one, or one that names an unfinished backup",
    ),
    FileRule(
        "`backup/log/`",
        "log files, renamed into it once a snapshot has replaced them",
        "while they continue the last backup without a gap",
        "files that a backup has already, which the next one removes",
    ),
    FileRule(
        "`backup/log/run`",
        "atomic; by the first start after a backup, before it serves",
        (
            "it gives the end of that backup's log, as the number of the start's checkpoint; removed once "
            "another backup counts"
        ),
        "none; the next start writes it",
    ),
    FileRule(
        "`pipeline/history`",
        "atomic; by the pipeline before its first work, or by a restore of a whole folder",
        (
            "it names the history to which the archive must belong. The content `restored` permits replacing an"
            " archive of another history"
        ),
        "the old one, or a name that the archive does not know yet",
    ),
    FileRule(
        "`pipeline/told`",
        "atomic; by the pipeline, before `pipeline/seen`",
        "the newest catalog whose deletes were confirmed; an archive that is behind it is refused",
        "the old one, and an old `pipeline/seen`",
    ),
)
"""*Atomic* means written under a `.tmp` name, synced and renamed."""


class Layout(NamedTuple):
    root: str
    cold_root: str | None = None

    @property
    def lock(self) -> str:
        return f"{self.root}/.topics.lock"

    @property
    def machine(self) -> str:
        return f"{self.root}/machine"

    @property
    def lease_holder(self) -> str:
        return f"{self.root}/lease-holder"

    @property
    def reserve(self) -> str:
        return f"{self.root}/reserve"

    @property
    def wal(self) -> str:
        return f"{self.root}/wal"

    def shard(self, shard: int) -> str:
        return f"{self.root}/wal/shard-{shard:02d}"

    @property
    def meta(self) -> str:
        return f"{self.root}/meta"

    def snapshot(self, number: int) -> str:
        return f"{self.root}/meta/snapshot-{number:016d}.bin"

    @property
    def newest(self) -> str:
        return f"{self.root}/meta/newest"

    @property
    def catalog(self) -> str:
        return f"{self.root}/meta/catalog"

    def catalog_changes(self, number: int) -> str:
        """The changes since the catalog with a number."""
        return f"{self.root}/meta/catalog-{number:016d}"

    @property
    def near(self) -> str:
        """Copies of objects, if the cold tier is an object store (`log.object_store.local_cache`)."""
        return f"{self.root}/near"

    @property
    def archive(self) -> str:
        return f"{self.root}/archive"

    @property
    def families(self) -> str:
        """The folder of the index files (`search.file_index.manifest`)."""
        return f"{self.root}/families"

    @property
    def cold_families(self) -> str | None:
        """The folder of index files whose segments are all in the cold tier."""
        return None if self.cold_root is None else f"{self.cold_root}/families"

    @property
    def near_families(self) -> str:
        """Copies of these, if the cold tier is an object store (`search.service.index_file_cache`)."""
        return f"{self.near}/families"

    @property
    def pipeline(self) -> str:
        return f"{self.root}/pipeline"

    @property
    def pipeline_settings(self) -> str:
        """The settings that the archive was made with (`topics.spark.pipeline.pipeline_settings`)."""
        return f"{self.root}/pipeline/settings.json"

    @property
    def pipeline_history(self) -> str:
        """Identifies the log from which the products were built (`topics.spark.pipeline.rounds`)."""
        return f"{self.root}/pipeline/history"

    @property
    def pipeline_seen(self) -> str:
        """The number of the last catalog whose removals the archive has applied."""
        return f"{self.root}/pipeline/seen"

    @property
    def pipeline_told(self) -> str:
        """The number of the newest catalog whose deletes were confirmed.

        An archive with a lower number has missed deletes.
        """
        return f"{self.root}/pipeline/told"

    @property
    def backup(self) -> str:
        return f"{self.root}/backup"

    @property
    def backup_lineage(self) -> str:
        """The name under which this folder's backups are kept (`ops.backup.backups`)."""
        return f"{self.root}/backup/lineage"

    @property
    def kept_logs(self) -> str:
        return f"{self.root}/backup/log"

    @property
    def kept_run(self) -> str:
        """The end of the log in the last backup (`ops.backup.backup_files`)."""
        return f"{self.root}/backup/log/run"

    def kept_log(self, shard: int) -> str:
        return f"{self.root}/backup/log/shard-{shard:02d}"

    @property
    def restoring(self) -> str:
        return f"{self.root}/restoring"

    @property
    def repair(self) -> str:
        return f"{self.root}/repair"

    @property
    def repair_plan(self) -> str:
        return f"{self.root}/repair/plan"

    def topics(self, cold: bool = False) -> str:
        return f"{self.cold_root if cold else self.root}/topics"

    def topic(self, topic_id: int, cold: bool = False) -> str:
        return f"{self.topics(cold)}/{topic_id:016x}"

    def segment(self, topic_id: int, first_seq: int, cold: bool = False) -> str:
        """Returns the path of a segment's two files without their suffixes."""
        return f"{self.topic(topic_id, cold)}/seg-{first_seq:020d}"


def wal_file(folder: str, number: int) -> str:
    return f"{folder}/{number:016d}.wal"


def wal_numbers(names: Iterable[str]) -> list[int]:
    """Returns the numbers of the log files in a shard's folder, sorted."""
    return sorted(number for name in names if (number := number_in(name, "", ".wal")) is not None)


def number_in(name: str, before: str, after: str) -> int | None:
    """Returns the number in a file name such as snapshot-0000000000000007.bin; None for any other name."""
    digits = name.removeprefix(before).removesuffix(after)
    whole = name == before + digits + after
    return int(digits) if whole and digits.isascii() and digits.isdigit() else None


# Places for segments and the archive besides the data folder: a folder, or an object store given by a URL.

SCHEMES = ("s3", "gs", "az")
"""Amazon S3 and compatible stores, Google Cloud Storage, Azure Blob Storage."""


def is_object_store(place: str | None) -> bool:
    return place is not None and "://" in place


def check_place(place: str | None, what: str = "the cold folder") -> str | None:
    """Returns a place in canonical form. Raises SettingsError for a URL of an unknown object store."""
    if place is None:
        return None
    if not is_object_store(place):
        return place.rstrip("/") or "/"
    scheme, _, rest = place.partition("://")
    if scheme not in SCHEMES or not rest.strip("/") or rest.startswith("/"):
        accepted = ", ".join(f"{known}://bucket/prefix" for known in SCHEMES)
        raise SettingsError(f"{what} {place} names no object store: accepted is a folder, or {accepted}")
    if any(part in ("", ".", "..") for part in rest.rstrip("/").split("/")):
        raise SettingsError(f"{what} {place} has an empty part, or one that leads elsewhere")
    return place.rstrip("/")


def check_cold(place: str | None, data_dir: str) -> str | None:
    """Returns the place of the cold tier. Raises SettingsError if it is the data folder, also by another path.

    A segment is copied there and the original removed; in the data folder both would be the same file.
    """
    checked = check_place(place)
    if checked is not None and not is_object_store(checked) and _is_same(checked, data_dir):
        raise SettingsError(f"the cold folder {place} is the data folder: segments that move there would be lost")
    return checked


def check_backup(place: str | None, data_dir: str) -> str | None:
    """Returns the place for backups. Raises SettingsError if it is the data folder or inside it, also by another path.

    Unknown files in a data folder count as damage, and the loss of the disk would take both.
    """
    checked = check_place(place, "the place for backups")
    if checked is not None and not is_object_store(checked):
        inner, outer = os.path.realpath(checked), os.path.realpath(data_dir)
        if os.path.commonpath((inner, outer)) == outer:
            raise SettingsError(f"the place for backups {place} is in the data folder: put them on another disk")
    return checked


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # One of them does not exist yet.
        return os.path.realpath(one) == os.path.realpath(other)


def absolute(place: str | None) -> str | None:
    """Returns the place as an absolute path or URL, valid in every process on the machine."""
    return place if place is None or is_object_store(place) else os.path.abspath(place)
