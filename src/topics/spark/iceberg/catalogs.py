"""Iceberg catalogs: table versions in the archive's own folder, or in a catalog that pyiceberg is configured for.

The address and credentials of a catalog are pyiceberg's own settings, such as `PYICEBERG_CATALOG__LAKE__URI` for one
named `lake`, or its file `.pyiceberg.yaml`: REST, Glue, Hive, SQL and others. The files of the table are in the archive
in either case, and are written by the pipeline.
"""

import contextlib
from typing import NamedTuple, Protocol

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

from topics.log.fs import FileSystem, read_whole, replace_file
from topics.model.settings import SettingsError

# Table pointer: names the current version of the table, in the folder itself or in a shared catalog.
#
# Every engine can read the folder without a catalog. It has the layout of Hadoop tables:
#
#     <archive>/metadata/v<number>.metadata.json
#     <archive>/metadata/version-hint.text
#
# A commit renames a version into place after everything that it names is on disk. Readers take the version that the
# hint names, or a later one beside it. A crash before the hint is updated leaves the hint one behind, and both versions
# are complete.

_HINT = "version-hint.text"
_END = ".metadata.json"
_NUMBER_KEY = "topics.metadata-version"
"""The property with the number of a metadata file in a folder."""


class Version(NamedTuple):
    """The table metadata after one commit, and its file."""

    metadata: TableMetadata
    location: str


class TableDamagedError(Exception):
    """The current version cannot be read. The table is derived from the ledger, so it can be rebuilt."""


class Pointer(Protocol):
    def load(self) -> Version | None:
        """The current version; None when there is no table. Raises TableDamagedError."""
        ...

    def create(self, fresh: TableMetadata) -> Version:
        """Creates an empty table, in place of an existing one."""
        ...

    def restore(self, kept: TableMetadata) -> Version:
        """Creates a table without rows that has snapshots, in place of an existing one."""
        ...

    def commit(
        self, base: Version, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...], now_ms: int
    ) -> Version:
        """Commits another version. Raises when `base` is not the current one."""
        ...

    def drop(self) -> None:
        """Drops the table."""
        ...

    def superfluous(self, names: list[str], current: Version, before_ms: int) -> list[str]:
        """Of the names in the table's folder, those of versions that are no longer needed."""
        ...


def misplaced(version: Version) -> bool:
    """Whether a metadata file of a folder is that of another version. Other writers copy the number of the version
    before and list its file."""
    claimed, number = version.metadata.properties.get(_NUMBER_KEY), _number(version.location.rpartition("/")[2])
    if claimed is None or not number or int(claimed) == number:
        return False
    before = [entry.metadata_file.rpartition("/")[2] for entry in version.metadata.metadata_log[-1:]]
    return before != [f"v{number - 1}{_END}"]


class FolderPointer:
    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._folder = f"{root}/metadata"

    def load(self) -> Version | None:
        number = self._newest()
        if not number:
            return None
        location = self._path(number)
        if self._hint() != number:
            # Readers that only use the hint would miss a version that a killed run renamed into place.
            self._point_at(number)
        try:
            return Version(TableMetadataUtil.parse_raw((read_whole(self._fs, location) or b"").decode()), location)
        except (ValueError, ValidationError) as error:
            raise TableDamagedError(f"{location}: {error}") from error

    def create(self, fresh: TableMetadata) -> Version:
        """Writes nothing: the first commit creates the table."""
        return Version(fresh, "")

    def restore(self, kept: TableMetadata) -> Version:
        return self.create(kept)

    def commit(
        self, base: Version, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...], now_ms: int
    ) -> Version:
        if base.location and self._newest() > _number(base.location.rpartition("/")[2]):
            # Somebody else has written a version, such as one with a tag, which must not be replaced.
            base = self.load() or base
        for requirement in requirements:
            requirement.validate(base.metadata)
        number = _number(base.location.rpartition("/")[2]) or self._newest()
        changed = update_table_metadata(base.metadata, updates, metadata_location=base.location or None)
        # Readers refuse versions whose times decrease, and the time is the pipeline's, not the library's.
        moment = max(now_ms, base.metadata.last_updated_ms)
        return self._put(changed.model_copy(update={"last_updated_ms": moment}), number + 1)

    def drop(self) -> None:
        for name in self._names():
            self._fs.remove(f"{self._folder}/{name}")

    def superfluous(self, names: list[str], current: Version, before_ms: int) -> list[str]:
        kept = {current.location, *_recent(current.metadata, before_ms)}
        versions = [name for name in names if name.endswith(_END) or name.endswith(".tmp")]
        return [name for name in versions if f"{self._folder}/{name}" not in kept]

    def _put(self, metadata: TableMetadata, number: int) -> Version:
        named = metadata.model_copy(update={"properties": {**metadata.properties, _NUMBER_KEY: str(number)}})
        version = Version(named, self._path(number))
        replace_file(self._fs, version.location, named.model_dump_json(exclude_none=True).encode())
        self._point_at(number)
        return version

    def _point_at(self, number: int) -> None:
        replace_file(self._fs, f"{self._folder}/{_HINT}", b"%d" % number)

    def _hint(self) -> int:
        hint = read_whole(self._fs, f"{self._folder}/{_HINT}") or b""
        return int(hint) if hint.isdigit() else 0

    def _newest(self) -> int:
        """The number of the current version, found as readers find it; 0 for none."""
        number = self._hint()
        if not number:
            # A crash may have come before the first hint, or the hint was lost.
            numbers = [_number(name) for name in self._names()]
            return max(numbers, default=0)
        while self._fs.exists(self._path(number + 1)):
            number += 1
        return number

    def _names(self) -> list[str]:
        try:
            return self._fs.list_dir(self._folder)
        except FileNotFoundError:
            return []

    def _path(self, number: int) -> str:
        return f"{self._folder}/v{number}{_END}"


def _number(name: str) -> int:
    digits = name.removeprefix("v").removesuffix(_END)
    return int(digits) if digits.isdigit() and name == f"v{digits}{_END}" else 0


class CatalogPointer:
    """A table in a catalog. The catalog has the current version, and refuses a commit on an older one."""

    def __init__(self, fs: FileSystem, catalog: Catalog, name: str) -> None:
        self._fs = fs
        self._catalog = catalog
        self._name = name
        self._table: Table | None = None

    def load(self) -> Version | None:
        try:
            return self._known(self._catalog.load_table(self._name))
        except NoSuchTableError:
            return None
        except (FileNotFoundError, ValueError, ValidationError) as error:
            # The catalog has an entry, and the metadata file that it names is lost or damaged.
            raise TableDamagedError(f"{self._name} in the catalog {self._catalog.name}: {error}") from error

    def drop(self) -> None:
        # Existence is not checked first: a catalog reads the metadata file for that, and the file may be lost. The
        # files belong to the archive and must not be purged with the table.
        with contextlib.suppress(NoSuchTableError, NoSuchNamespaceError):
            self._catalog.drop_table(self._name)

    def create(self, fresh: TableMetadata) -> Version:
        self.drop()
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        words = {"format-version": str(fresh.format_version), **fresh.properties}
        return self._known(
            self._catalog.create_table(
                self._name, fresh.schema(), fresh.location, fresh.spec(), fresh.sort_order(), words
            )
        )

    def restore(self, kept: TableMetadata) -> Version:
        # A file first, which has the snapshots also after a crash that leaves the catalog without an entry.
        path = f"{kept.location}/metadata/00000-{kept.table_uuid}{_END}"
        self._fs.make_dirs(path.rpartition("/")[0])
        replace_file(self._fs, path, kept.model_dump_json(exclude_none=True).encode())
        self.drop()
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        return self._known(self._catalog.register_table(self._name, path))

    def commit(
        self, base: Version, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...], now_ms: int
    ) -> Version:
        assert self._table is not None
        done = self._catalog.commit_table(self._table, requirements, updates)
        self._table.metadata, self._table.metadata_location = done.metadata, done.metadata_location
        return self._known(self._table)

    def superfluous(self, names: list[str], current: Version, before_ms: int) -> list[str]:
        """The metadata files of the catalog that are no longer in its metadata log."""
        folder = f"{current.metadata.location}/metadata"
        kept = {current.location, *_recent(current.metadata, before_ms)}
        return [name for name in names if name.endswith(".metadata.json") and f"{folder}/{name}" not in kept]

    def _known(self, table: Table) -> Version:
        self._table = table
        return Version(table.metadata, table.metadata_location)


def _recent(metadata: TableMetadata, before_ms: int) -> list[str]:
    """The previous metadata files that are kept: always the last one, which has the tags if the current one is lost."""
    log = metadata.metadata_log
    return [entry.metadata_file for entry in log[:-1] if entry.timestamp_ms > before_ms] + [
        entry.metadata_file for entry in log[-1:]
    ]


def pointer_of(fs: FileSystem, root: str, catalog: str | None, name: str) -> Pointer:
    """The table pointer that the settings select."""
    if not catalog:
        return FolderPointer(fs, root)
    if "." not in name:
        raise SettingsError(f"archive_table {name} names no namespace: accepted is namespace.table")
    try:
        return CatalogPointer(fs, load_catalog(catalog), name)
    except (ValueError, ImportError) as error:
        raise SettingsError(f"archive_catalog {catalog}: {error}") from error
