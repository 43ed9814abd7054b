"""The archive's table in a catalog of others: one of SQL, which is what pyiceberg can be tested with on one machine."""

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.utils.config import Config

from tests.unit.spark.archives import advance
from tests.unit.spark.folders import Folder
from tests.unit.spark.tables import of_topic, payloads, rows_of
from topics.config.settings import Settings, SettingsError
from topics.core.records import Record
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.worker import make_pipeline
from topics.spark.table.catalogs import pointer_of
from topics.storage.layout import Layout
from topics.storage.posix import PosixFileSystem
from topics.system.clock import SystemClock
from topics.testing import FakeDisk, ManualClock

RETIRE_MS = 1_200_000
"""Ten minutes, and as much again for what the catalog's own clock is ahead by."""


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """A catalog that is named by pyiceberg's own settings, as an operator names one."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    # It reads them when it is first imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    return load_catalog("lake")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    # A catalog goes by the real time, so the pipeline has to.
    clock = ManualClock(SystemClock().now_ms())
    made = Folder(PosixFileSystem(), clock, Layout(str(tmp_path / "data")))
    made.append("orders", *[Record.of(n, tag=f"t{n % 10}") for n in range(50)])
    made.seal()
    return made


def pipeline(folder: Folder, compact: bool = False) -> Pipeline:
    settings = Settings(data_dir=folder.layout.root, archive="1", archive_catalog="lake", archive_table="kept.records")
    return make_pipeline(settings, folder.disk, InlineExecutor(folder.disk), folder.clock, compact)


def run(folder: Folder, compact: bool = False) -> None:
    made = pipeline(folder, compact)
    for _ in range(50):
        if not made.round():
            return
    raise AssertionError("the pipeline never comes to an end")


def shown(catalog: Catalog) -> dict[int, str]:
    return of_topic(rows_of(catalog.load_table("kept.records")), "orders")


def test_the_table_is_kept_in_the_catalog(lake: Catalog, folder: Folder, tmp_path: Path) -> None:
    run(folder)
    assert shown(lake) == {n + 1: str(n) for n in range(50)}
    assert not (tmp_path / "data" / "archive" / "metadata" / "version-hint.text").exists()
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    run(folder)
    kept = {n + 1: str(n) for n in range(50) if n % 10 != 3}
    assert shown(lake) == kept
    run(folder, compact=True)
    advance(folder.clock, RETIRE_MS)
    run(folder, compact=True)
    table = lake.load_table("kept.records")
    assert shown(lake) == kept and len(table.metadata.snapshots) == 1
    files = [path for path in (tmp_path / "data" / "archive").rglob("*") if path.is_file()]
    assert sorted(payload for path in files for payload in payloads(path.read_bytes())) == sorted(kept.values())
    assert not list((tmp_path / "data" / "archive" / "deletes").iterdir())


def test_what_others_change_is_refused_and_put_right(lake: Catalog, folder: Folder) -> None:
    made = pipeline(folder)
    while made.round():
        pass
    table = lake.load_table("kept.records")
    with table.transaction() as change, change.update_snapshot().delete() as deleting:
        deleting.delete_by_predicate(AlwaysTrue())
    assert shown(lake) == {}
    folder.append("orders", 50)
    folder.seal()
    with pytest.raises(CommitFailedException):
        made.round()
    assert shown(lake) == {}
    # What was archived is in the ledger; now the table is looked at again, and shows all of it.
    made.round()
    assert shown(lake) == {n + 1: str(n) for n in range(51)}


def test_a_catalog_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SettingsError, match="archive_catalog nowhere"):
        pointer_of(FakeDisk(), "data/archive", "nowhere", "kept.records")
    with pytest.raises(SettingsError, match="names no namespace"):
        pointer_of(FakeDisk(), "data/archive", "nowhere", "records")
