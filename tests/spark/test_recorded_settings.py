"""Settings that are recorded with the data, on a real Spark: a run with fewer, or other, settings removes nothing."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from tests.http.live import LiveServer
from tests.spark.waiting_for import checkpointed, sealed_to, wait_until
from tests.unit.spark.catalogs import named_catalog
from topics.cli import main
from topics_client import Client

pytestmark = pytest.mark.usefixtures("spark")

SCHEMA = {"schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
SOON = {"segment_max_events": "10", "snapshot_interval_ms": "200"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data folder with sealed records and a stream with a schema, which no server uses any more."""
    with LiveServer(tmp_path, **SOON, archive="1", pipeline="off") as server:
        with Client(server.url) as client:
            client.append_many("orders", [{"n": n} for n in range(40)])
            wait_until(lambda: sealed_to(tmp_path / "data", "orders") >= 40, "the records are sealed")
        server.stop()
    (tmp_path / "port-1").unlink()
    # As a folder that no version recorded anything of: the runs of the tests are the first use.
    for record in ("pipeline/settings.json", "archive/settings.json"):
        (tmp_path / "data" / record).unlink(missing_ok=True)
    monkeypatch.setenv("TOPICS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("TOPICS_PIPELINE_PRIORITY", "normal")  # The runs are in this process.
    yield tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *flags: str, **env: str) -> int:
    """`topics pipeline run` with these variables alone."""
    with monkeypatch.context() as patch:
        for name, value in env.items():
            patch.setenv(f"TOPICS_{name.upper()}", value)
        return main(["pipeline", "run", *flags])


def tabled(archive: Path) -> int:
    return int(StaticTable.from_metadata(str(archive)).scan().to_arrow().num_rows)


def test_run_without_the_catalog_setting_keeps_the_table_in_its_catalog(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{folder / 'lake.db'}"
    lake = named_catalog(monkeypatch, type="sql", uri=uri, warehouse=str(folder / "warehouse"))
    assert run(monkeypatch, archive_catalog="lake", archive_table="kept.records") == 0
    assert lake.load_table("kept.records").scan().to_arrow().num_rows == 40
    assert run(monkeypatch) == 0
    assert lake.load_table("kept.records").scan().to_arrow().num_rows == 40
    assert not (folder / "data/archive/metadata/version-hint.text").exists()


def test_run_without_the_archive_place_goes_on_with_the_archive_there_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder / "elsewhere"
    assert run(monkeypatch, archive_dir=str(place)) == 0
    assert tabled(place) == 40
    assert run(monkeypatch) == 0
    assert not (folder / "data" / "archive" / "data").exists()
    assert tabled(place) == 40


def test_run_that_is_reported_otherwise_is_refused_by_name_and_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, archive_retention_ms="0") == 0
    before = sorted(path for path in folder.rglob("*") if path.is_file())
    assert run(monkeypatch, archive_retention_ms="1", archive_dir=str(folder / "other")) == 2
    reported = capsys.readouterr().err
    assert "archive_dir" in reported
    assert "archive_retention_ms is 1, and 0 is recorded" in reported
    assert "--reconfigure archive_dir,archive_retention_ms" in reported
    assert "Traceback" not in reported
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == before
    assert tabled(folder / "data/archive") == 40


def test_reconfigure_replaces_the_named_setting_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, archive_erase_ms="5000") == 0
    assert run(monkeypatch, "--reconfigure", "archive-retention-ms", archive_retention_ms="1") == 0
    for record in ("data/pipeline/settings.json", "data/archive/settings.json"):
        found = json.loads((folder / record).read_text())
        assert (found["archive_retention_ms"], found["archive_erase_ms"]) == (1, 5000)
    assert tabled(folder / "data/archive") == 0
    assert run(monkeypatch, "--reconfigure", "archive_erase_ms") == 0
    assert json.loads((folder / "data/pipeline/settings.json").read_text())["archive_erase_ms"] == 86_400_000
    assert run(monkeypatch, "--reconfigure", "data_dir") == 2


def test_restored_folder_reads_the_settings_from_its_archive(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, archive_erase_ms="5000") == 0
    (folder / "data/pipeline/settings.json").unlink()
    assert run(monkeypatch, archive_erase_ms="6000") == 2
    assert run(monkeypatch) == 0
    assert json.loads((folder / "data/pipeline/settings.json").read_text())["archive_erase_ms"] == 5000


def test_archive_without_a_record_is_not_emptied_by_a_run_that_lacks_its_settings(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Archives of earlier versions: the content of their files must agree with the first run."""
    uri = f"sqlite:///{folder / 'lake.db'}"
    lake = named_catalog(monkeypatch, type="sql", uri=uri, warehouse=str(folder / "warehouse"))
    assert run(monkeypatch, archive_catalog="lake", archive_table="kept.records", archive_typed="typed.*") == 0
    (folder / "data/archive/typed/typed.orders").mkdir(parents=True)
    for record in ("data/pipeline/settings.json", "data/archive/settings.json"):
        (folder / record).unlink()
    assert run(monkeypatch) == 2
    reported = capsys.readouterr().err
    assert "TOPICS_ARCHIVE_CATALOG, TOPICS_ARCHIVE_TYPED" in reported
    assert lake.load_table("kept.records").scan().to_arrow().num_rows == 40
    shutil.rmtree(folder / "data/archive")
    assert run(monkeypatch) == 2
    assert "archive_dir is not set" in capsys.readouterr().err


def test_server_takes_the_recorded_settings_and_refuses_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder / "elsewhere"
    assert run(monkeypatch, archive_dir=str(place)) == 0
    assert main(["serve", "--archive", "--archive-dir", "/other"]) == 2
    assert "archive_dir is '/other'" in capsys.readouterr().err
    soon = {**SOON, "pipeline_poll_ms": "200", "pipeline_priority": "normal", "spark_memory": "512m"}
    with LiveServer(folder, **soon, archive="1") as server, Client(server.url) as client:
        client.append_many("orders", [{"n": n} for n in range(40, 60)])
        wait_until(lambda: tabled(place) == 60, "the server's pipeline has archived it")
    assert not (folder / "data" / "archive" / "data").exists()


def test_tag_of_the_table_keeps_its_snapshot_and_its_files_until_it_is_dropped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{folder / 'lake.db'}"
    lake = named_catalog(monkeypatch, type="sql", uri=uri, warehouse=str(folder / "warehouse"))
    soon = {"archive_keep_snapshots_ms": "1", "archive_grace_ms": "1"}
    assert run(monkeypatch, archive_catalog="lake", archive_table="kept.records", **soon) == 0
    table = lake.load_table("kept.records")
    tagged = table.current_snapshot()
    assert tagged is not None
    table.manage_snapshots().create_tag(tagged.snapshot_id, "audit").commit()
    with LiveServer(folder, **SOON, archive="1", pipeline="off") as server, Client(server.url) as client:
        client.delete("orders", before_seq=21)
        checkpointed(client, folder / "data")
    for _ in range(4):
        assert run(monkeypatch, "--compact") == 0
    table = lake.load_table("kept.records")
    assert table.scan("topic = 'orders'").to_arrow().num_rows == 20
    assert table.scan(snapshot_id=tagged.snapshot_id).to_arrow().num_rows == 40
    # Every other snapshot that was replaced has gone, but for the last ones.
    before = len(list((folder / "data/archive/data").glob("*/*/*.parquet")))
    table.manage_snapshots().remove_tag("audit").commit()
    for _ in range(3):
        assert run(monkeypatch, "--compact") == 0
    assert lake.load_table("kept.records").snapshot_by_id(tagged.snapshot_id) is None
    assert len(list((folder / "data/archive/data").glob("*/*/*.parquet"))) < before
