"""The archive's table in catalogs that are servers: the one of REST that Iceberg's own tests run on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from tests.rest_catalog import RestCatalogServer
from tests.unit.spark.catalogs import (
    check_a_stream_has_a_table_beside_it,
    check_the_table_is_kept,
    check_what_others_change_is_put_right,
    make_folder,
    named_catalog,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    with RestCatalogServer(tmp_path_factory.mktemp("rest")) as found:
        yield found


@pytest.fixture
def lake(server: RestCatalogServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    catalog = named_catalog(monkeypatch, type="rest", uri=server.url)
    yield catalog
    for namespace in catalog.list_namespaces():
        for table in catalog.list_tables(namespace):
            catalog.drop_table(table)


def test_the_table_is_kept_in_the_catalog(lake: Catalog, tmp_path: Path) -> None:
    check_the_table_is_kept(lake, make_folder(tmp_path), tmp_path)


def test_what_others_change_is_refused_and_put_right(lake: Catalog, tmp_path: Path) -> None:
    check_what_others_change_is_put_right(lake, make_folder(tmp_path))


def test_a_stream_has_a_table_beside_it(lake: Catalog, tmp_path: Path) -> None:
    check_a_stream_has_a_table_beside_it(lake, make_folder(tmp_path))
