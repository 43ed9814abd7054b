"""The archive's table in an external catalog: an SQL one, with which pyiceberg can be tested on one machine."""

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from tests.unit.spark.catalogs import (
    check_a_stream_has_a_table_beside_it,
    check_the_table_is_kept,
    check_what_others_change_is_put_right,
    make_folder,
    named_catalog,
    run,
)
from tests.unit.spark.tables import rows_of
from topics.model.settings import SettingsError
from topics.spark.iceberg.catalogs import pointer_of
from topics.testing import FakeDisk


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    return named_catalog(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")


def test_the_table_is_kept_in_the_catalog(lake: Catalog, tmp_path: Path) -> None:
    check_the_table_is_kept(lake, make_folder(tmp_path), tmp_path)


def test_what_others_change_is_refused_and_put_right(lake: Catalog, tmp_path: Path) -> None:
    check_what_others_change_is_put_right(lake, make_folder(tmp_path))


def test_a_stream_has_a_table_beside_it(lake: Catalog, tmp_path: Path) -> None:
    check_a_stream_has_a_table_beside_it(lake, make_folder(tmp_path))


@pytest.mark.parametrize("how", ["entry", "metadata"])
def test_table_that_a_catalog_lost_keeps_its_tags(lake: Catalog, tmp_path: Path, how: str) -> None:
    folder = make_folder(tmp_path)
    run(folder)
    table = lake.load_table("kept.records")
    tagged = table.metadata.current_snapshot_id
    assert tagged is not None
    table.manage_snapshots().create_tag(tagged, "audit").commit()
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    run(folder)
    rows = rows_of(lake.load_table("kept.records"))
    if how == "entry":
        lake.drop_table("kept.records")
    else:
        Path(lake.load_table("kept.records").metadata_location).unlink()
    for _ in range(2):
        run(folder, compact=True)
    rebuilt = lake.load_table("kept.records")
    assert rows_of(rebuilt) == rows and len(rows) == 45
    assert rebuilt.metadata.refs["audit"].snapshot_id == tagged
    assert len(rows_of(rebuilt, tagged)) == 50


def test_unknown_catalog_is_refused() -> None:
    with pytest.raises(SettingsError, match="archive_catalog nowhere"):
        pointer_of(FakeDisk(), "data/archive", "nowhere", "kept.records")
    with pytest.raises(SettingsError, match="names no namespace"):
        pointer_of(FakeDisk(), "data/archive", "nowhere", "records")
