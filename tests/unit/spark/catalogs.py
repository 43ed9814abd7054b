"""The archive's table in external catalogs: conditions that hold in every catalog."""

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.utils.config import Config

from tests.unit.spark.archives import advance
from tests.unit.spark.folders import Folder
from tests.unit.spark.tables import of_topic, payloads, rows_of
from tests.unit.spark.typed import Described, entry_of
from tests.unit.streams.describing import rename
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.records import Record
from topics.model.settings import Settings
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.pipeline_worker import make_pipeline
from topics.spark.pipeline.rounds import Pipeline
from topics.system.clock import SystemClock
from topics.testing import ManualClock

RETIRE_MS = 1_200_000
"""Ten minutes, and as much again for the lead of the catalog's clock."""


def named_catalog(monkeypatch: pytest.MonkeyPatch, **words: str) -> Catalog:
    """A catalog that is named by pyiceberg's own settings, as an operator names one."""
    for name, value in words.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    # It reads them when it is first imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    return load_catalog("lake")


def make_folder(tmp_path: Path) -> Folder:
    # A catalog goes by the real time, so the pipeline has to.
    clock = ManualClock(SystemClock().now_ms())
    made = Folder(PosixFileSystem(), clock, Layout(str(tmp_path / "data")))
    made.append("orders", *[Record.of(n, tag=f"t{n % 10}") for n in range(50)])
    made.seal()
    return made


def pipeline(folder: Folder, compact: bool = False) -> Pipeline:
    settings = Settings(
        data_dir=folder.layout.root,
        archive="1",
        archive_catalog="lake",
        archive_table="kept.records",
        archive_typed="typed.*",
    )
    return make_pipeline(settings, folder.disk, InlineExecutor(folder.disk), folder.clock, compact)


def run(folder: Folder, compact: bool = False) -> None:
    made = pipeline(folder, compact)
    for _ in range(50):
        if not made.round():
            return
    raise AssertionError("the pipeline never comes to an end")


def shown(catalog: Catalog) -> dict[int, str]:
    return of_topic(rows_of(catalog.load_table("kept.records")), "orders")


def check_the_table_is_kept(lake: Catalog, folder: Folder, tmp_path: Path) -> None:
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


def check_what_others_change_is_put_right(lake: Catalog, folder: Folder) -> None:
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
    # The archived records are in the ledger; now the table is checked again, and contains all of them.
    made.round()
    assert shown(lake) == {n + 1: str(n) for n in range(51)}


def check_a_stream_has_a_table_beside_it(lake: Catalog, folder: Folder) -> None:
    described = Described(folder)
    numbered = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    described.create("typed.one", numbered)
    described.append("typed.one", *[{"a": n} for n in range(10)])
    folder.seal()
    run(folder)
    name = "kept.typed_typed_2e_one"
    before = lake.load_table(name).schema().find_field("a").field_id
    described.evolve(
        "typed.one", {**numbered, "required": ["b"], "properties": {"b": {"type": "integer"}}}, rename("/a", "/b")
    )
    described.append("typed.one", {"b": 100})
    folder.seal()
    folder.delete("typed.one", before_seq=3)
    folder.checkpoint()
    run(folder)
    table = lake.load_table(name)
    shown = {row["_seq"]: entry_of(row) for row in table.scan().to_arrow().to_pylist()}
    assert shown == described.promoted("typed.one") and len(shown) == 9
    assert table.schema().find_field("b").field_id > before
    folder.drop("typed.one")
    folder.checkpoint()
    run(folder)
    assert lake.load_table(name).scan().to_arrow().num_rows == 0
    advance(folder.clock, RETIRE_MS)
    run(folder)
    assert not lake.table_exists(name)
