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
)
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


def test_a_catalog_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SettingsError, match="archive_catalog nowhere"):
        pointer_of(FakeDisk(), "data/archive", "nowhere", "kept.records")
    with pytest.raises(SettingsError, match="names no namespace"):
        pointer_of(FakeDisk(), "data/archive", "nowhere", "records")
