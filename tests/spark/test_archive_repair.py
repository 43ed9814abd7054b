"""Tables and files of the archive that were lost or damaged, in a folder and in a catalog, on a real Spark."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import clear_manifest_cache
from pyiceberg.table import StaticTable

from tests.http.live import LiveServer
from tests.spark.waiting_for import checkpointed, sealed_to, wait_until
from tests.unit.spark.catalogs import named_catalog
from topics.cli import main
from topics_client import Client

pytestmark = pytest.mark.usefixtures("spark")


class Archive:
    """An archive of 40 records of which four are deleted, and how its table is read."""

    def __init__(self, folder: Path, catalog: Catalog | None) -> None:
        self.root = folder / "data" / "archive"
        self.catalog = catalog

    def rows(self) -> int:
        clear_manifest_cache()
        if self.catalog is not None:
            return int(self.catalog.load_table("kept.records").scan("topic = 'orders'").to_arrow().num_rows)
        return int(StaticTable.from_metadata(str(self.root)).scan("topic = 'orders'").to_arrow().num_rows)

    def damage(self, what: str) -> None:
        if what == "catalog entry":
            assert self.catalog is not None
            self.catalog.drop_table("kept.records")
            return
        if what == "damaged metadata":
            for path in self.root.glob("metadata/*.metadata.json"):
                path.write_text("{")
            return
        pattern = {
            "metadata": "metadata/*.metadata.json", "manifest": "metadata/*.avro", "deletes": "deletes/*.parquet",
            "data": "data/*/*/*.parquet",
        }[what]  # fmt: skip
        paths = list(self.root.glob(pattern))
        assert paths
        for path in paths:
            path.unlink()


@pytest.fixture(params=["folder", "catalog"])
def archive(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Archive]:
    catalog = None
    monkeypatch.setenv("TOPICS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("TOPICS_SEARCH_FAMILIES", "off")
    monkeypatch.setenv("TOPICS_PIPELINE_PRIORITY", "normal")  # The runs are in this process.
    if request.param == "catalog":
        warehouse = {"uri": f"sqlite:///{tmp_path / 'lake.db'}", "warehouse": str(tmp_path / "warehouse")}
        catalog = named_catalog(monkeypatch, type="sql", **warehouse)
        monkeypatch.setenv("TOPICS_ARCHIVE_CATALOG", "lake")
        monkeypatch.setenv("TOPICS_ARCHIVE_TABLE", "kept.records")
    settings = {name: value for name, value in os.environ.items() if name.startswith("TOPICS_ARCHIVE_")}
    given = {name.removeprefix("TOPICS_").lower(): value for name, value in settings.items()}
    # Several segments, of which a delete by seq takes a part of one.
    soon = {"segment_max_events": "10", "snapshot_interval_ms": "200", "archive": "1", "pipeline": "off"}
    with LiveServer(tmp_path, **soon, **given) as server, Client(server.url) as client:
        client.append_many("orders", [{"n": n} for n in range(40)])
        wait_until(lambda: sealed_to(tmp_path / "data", "orders") >= 40, "the records are sealed")
        assert main(["pipeline", "run"]) == 0
        client.delete("orders", before_seq=5)
        checkpointed(client, tmp_path / "data")
        assert main(["pipeline", "run"]) == 0
        found = Archive(tmp_path, catalog)
        assert found.rows() == 36
        yield found


def checked(capsys: pytest.CaptureFixture[str], command: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["archive", command, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("what", ["metadata", "damaged metadata", "manifest", "deletes", "data", "catalog entry"])
def test_lost_or_damaged_part_is_found_and_made_again_by_the_next_run(
    archive: Archive, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if what == "catalog entry" and archive.catalog is None:
        pytest.skip("a folder has no catalog")
    assert checked(capsys, "verify")[0] == 0
    archive.damage(what)
    code, told = checked(capsys, "verify")
    assert code == 1
    assert told["findings"]
    assert main(["pipeline", "run"]) == 0
    assert archive.rows() == 36
    code, told = checked(capsys, "verify")
    assert (code, told["findings"]) == (0, [])


@pytest.mark.parametrize("what", ["damaged metadata", "deletes", "data"])
def test_repair_makes_the_table_again_and_has_the_records_copied(
    archive: Archive, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.damage(what)
    code, told = checked(capsys, "repair")
    assert code == 0
    assert told["repaired"]
    assert told["lost"] == []
    assert archive.rows() == (0 if what == "data" else 36)
    assert main(["pipeline", "run"]) == 0
    assert archive.rows() == 36
    assert checked(capsys, "verify")[0] == 0


def test_verify_finds_a_data_file_that_was_changed(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(archive.root.glob("data/*/*/*.parquet"))
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    code, told = checked(capsys, "verify")
    assert code == 1
    [finding] = told["findings"]
    assert finding["where"] == str(path)
    assert checked(capsys, "repair")[0] == 0
    assert main(["pipeline", "run"]) == 0
    assert archive.rows() == 36
