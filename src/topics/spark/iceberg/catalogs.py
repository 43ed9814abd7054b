"""Where the table's versions are kept: in the archive's own folder, or in a catalog that pyiceberg knows by a name.

A catalog's address and credentials are pyiceberg's own settings, such as `PYICEBERG_CATALOG__LAKE__URI` for one that is
called `lake`, or its file `.pyiceberg.yaml`: REST, Glue, Hive, SQL and what else it speaks. Nothing of it is looked at
here. The files of the table are in the archive all the same, and written by the pipeline's own means.
"""

from typing import NamedTuple, Protocol

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

from topics.log.fs import FileSystem, read_whole, replace_file
from topics.model.settings import SettingsError

# What says which version of the table counts: the folder itself, or a catalog that others share.
#
# The folder is read by every engine without any catalog. It has the layout that Hadoop tables have:
#
#     <archive>/metadata/v<number>.metadata.json
#     <archive>/metadata/version-hint.text
#
# A version is put in its place in one step after everything that it names is on disk, and that is the commit: whoever
# reads takes the version that the hint names, or a later one that stands beside it. A stop between the two leaves the
# hint one behind, and both versions are whole.

_HINT = "version-hint.text"
_END = ".metadata.json"


class Version(NamedTuple):
    """The table as of one commit, and the file that says so."""

    metadata: TableMetadata
    location: str


class TableDamagedError(Exception):
    """What counts cannot be read. The table is made of the archive's ledger, so it can be made again."""


class Pointer(Protocol):
    def load(self) -> Version | None:
        """The version that counts; None when there is no table. Raises TableDamagedError."""
        ...

    def create(self, fresh: TableMetadata) -> Version:
        """A table without any rows, in place of whatever was there."""
        ...

    def commit(
        self, base: Version, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...], now_ms: int
    ) -> Version:
        """Makes another version count. Raises when it is not `base` that counts."""
        ...

    def drop(self) -> None:
        """Forgets that there is a table."""
        ...

    def superfluous(self, names: list[str], current: Version, before_ms: int) -> list[str]:
        """Of the names in the table's folder, those of versions that nobody needs any longer."""
        ...


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
            # Readers that trust the hint alone would miss a version that a killed run put in its place.
            self._point_at(number)
        try:
            return Version(TableMetadataUtil.parse_raw((read_whole(self._fs, location) or b"").decode()), location)
        except (ValueError, ValidationError) as error:
            raise TableDamagedError(f"{location}: {error}") from error

    def create(self, fresh: TableMetadata) -> Version:
        """Nothing is written yet: with the first commit the table is there, and whole."""
        return Version(fresh, "")

    def commit(
        self, base: Version, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...], now_ms: int
    ) -> Version:
        for requirement in requirements:
            requirement.validate(base.metadata)
        number = _number(base.location.rpartition("/")[2]) or self._newest()
        changed = update_table_metadata(base.metadata, updates, metadata_location=base.location or None)
        # Readers refuse versions whose times run back, and the time is the pipeline's, not that of a library.
        moment = max(now_ms, base.metadata.last_updated_ms)
        return self._put(changed.model_copy(update={"last_updated_ms": moment}), number + 1)

    def drop(self) -> None:
        for name in self._names():
            self._fs.remove(f"{self._folder}/{name}")

    def superfluous(self, names: list[str], current: Version, before_ms: int) -> list[str]:
        kept = {entry.metadata_file for entry in current.metadata.metadata_log if entry.timestamp_ms > before_ms}
        kept.add(current.location)
        versions = [name for name in names if name.endswith(_END) or name.endswith(".tmp")]
        return [name for name in versions if f"{self._folder}/{name}" not in kept]

    def _put(self, metadata: TableMetadata, number: int) -> Version:
        version = Version(metadata, self._path(number))
        replace_file(self._fs, version.location, metadata.model_dump_json(exclude_none=True).encode())
        self._point_at(number)
        return version

    def _point_at(self, number: int) -> None:
        replace_file(self._fs, f"{self._folder}/{_HINT}", b"%d" % number)

    def _hint(self) -> int:
        hint = read_whole(self._fs, f"{self._folder}/{_HINT}") or b""
        return int(hint) if hint.isdigit() else 0

    def _newest(self) -> int:
        """The number of the version that counts, found as readers find it; 0 for none."""
        number = self._hint()
        if not number:
            # A stop may have come in front of the first hint; and somebody may have lost it.
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
    """A table in a catalog. The catalog says which version counts, and refuses a commit that another one overtook."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._catalog = catalog
        self._name = name
        self._table: Table | None = None

    def load(self) -> Version | None:
        try:
            return self._known(self._catalog.load_table(self._name))
        except NoSuchTableError:
            return None

    def drop(self) -> None:
        if self._catalog.table_exists(self._name):
            # Its files are the archive's: they are not the table's to be removed.
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

    def commit(
        self, base: Version, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...], now_ms: int
    ) -> Version:
        assert self._table is not None
        done = self._catalog.commit_table(self._table, requirements, updates)
        self._table.metadata, self._table.metadata_location = done.metadata, done.metadata_location
        return self._known(self._table)

    def superfluous(self, names: list[str], current: Version, before_ms: int) -> list[str]:
        """Of versions that the catalog wrote beside ours, those that it no longer counts among the recent ones."""
        folder = f"{current.metadata.location}/metadata"
        recent = {entry.metadata_file for entry in current.metadata.metadata_log if entry.timestamp_ms > before_ms}
        kept = {current.location, *recent}
        return [name for name in names if name.endswith(".metadata.json") and f"{folder}/{name}" not in kept]

    def _known(self, table: Table) -> Version:
        self._table = table
        return Version(table.metadata, table.metadata_location)


def pointer_of(fs: FileSystem, root: str, catalog: str | None, name: str) -> Pointer:
    """Where the settings say that versions are kept."""
    if not catalog:
        return FolderPointer(fs, root)
    if "." not in name:
        raise SettingsError(f"archive_table {name} names no namespace: accepted is namespace.table")
    try:
        return CatalogPointer(load_catalog(catalog), name)
    except (ValueError, ImportError) as error:
        raise SettingsError(f"archive_catalog {catalog}: {error}") from error
