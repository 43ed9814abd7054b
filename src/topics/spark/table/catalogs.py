"""Where the table's versions are kept: in the archive's own folder, or in a catalog that pyiceberg knows by a name.

A catalog's address and credentials are pyiceberg's own settings, such as `PYICEBERG_CATALOG__LAKE__URI` for one that is
called `lake`, or its file `.pyiceberg.yaml`: REST, Glue, Hive, SQL and what else it speaks. Nothing of it is looked at
here. The files of the table are in the archive all the same, and written by the pipeline's own means.
"""

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate

from topics.config.values import SettingsError
from topics.spark.table.pointers import FolderPointer, Pointer, Version
from topics.storage.fs import FileSystem


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
