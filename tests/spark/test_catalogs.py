"""The archive's table in catalogs that are servers: Glue's as moto plays it, and in the slow set the one of REST that
Iceberg's own tests run on, and a metastore of Hive."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from tests.hive_metastore import HiveMetastore
from tests.rest_catalog import RestCatalogServer
from tests.s3 import HOME, S3Server
from tests.unit.spark.catalogs import (
    check_a_stream_has_a_table_beside_it,
    check_the_table_is_kept,
    check_what_others_change_is_put_right,
    make_folder,
    named_catalog,
)


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with RestCatalogServer(tmp_path_factory.mktemp("rest")) as server:
        yield {"type": "rest", "uri": server.url}


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with HiveMetastore(tmp_path_factory.mktemp("hive")) as server:
        # Hive before 3 has no times with zones.
        yield {"type": "hive", "uri": server.url, "hive__hive2_compatible": "true"}


@pytest.fixture(scope="module")
def glue(s3: S3Server) -> Iterator[dict[str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        # The packages that pyiceberg needs for Glue are installed beside the simulated server, and come last in the
        # path.
        patch.setattr(sys, "path", [*sys.path, str(HOME)])
        yield {"type": "glue", "glue__endpoint": s3.environment["AWS_ENDPOINT_URL"], "glue__region": "us-east-1"}


@pytest.fixture(params=["glue", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rest", "hive"))])
def lake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    catalog = named_catalog(monkeypatch, **request.getfixturevalue(request.param))
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
