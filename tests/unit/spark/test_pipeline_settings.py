"""Settings recorded in the data folder by a server, and as runs of the pipeline read them."""

import json
from pathlib import Path

import pytest

from tests.unit.spark.folders import Folder
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings, SettingsError
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.pipeline_settings import (
    SettingsConflictError,
    archive_root,
    check_server,
    record,
    record_first_use,
    recorded,
    resolve,
)
from topics.spark.pipeline.rounds import NoColdTierError, Pipeline
from topics.testing import FakeDisk

STORE = "s3://bucket/kept/archive"


def settings(folder: Path, **fields: object) -> Settings:
    return Settings(data_dir=str(folder / "data"), archive="1", **fields)  # type: ignore[arg-type]


def started(chosen: Settings, *reconfigure: str) -> Settings:
    """The settings of a server that has started with these; those that differ from the default were given."""
    given = [name for name in Settings.__struct_fields__ if getattr(chosen, name) != getattr(Settings(), name)]
    found = check_server(chosen, given, reconfigure)
    record_first_use(found)
    return found


def run(folder: Path, store: FileSystem, *reconfigure: str, **given: object) -> Settings:
    """The settings of a run by hand that was given these, and no others."""
    return resolve(settings(folder, **given), list(given), reconfigure, lambda _: store)


def test_run_before_the_first_round_uses_the_object_store_of_the_server(tmp_path: Path) -> None:
    started(settings(tmp_path, archive_dir=STORE))
    assert archive_root(run(tmp_path, FakeDisk())) == STORE
    with pytest.raises(SettingsConflictError, match="archive_dir"):
        run(tmp_path, FakeDisk(), archive_dir="/other")


def test_record_in_the_store_completes_the_places_that_a_server_recorded(tmp_path: Path) -> None:
    store = FakeDisk()
    record(settings(tmp_path / "lost", archive_dir=STORE, archive_erase_ms=5000, archive_typed="shop.*"), store)
    started(settings(tmp_path, archive_dir=STORE))
    found = run(tmp_path, store)
    assert (found.archive_dir, found.archive_erase_ms, found.archive_typed) == (STORE, 5000, "shop.*")
    with pytest.raises(SettingsConflictError, match="archive_erase_ms is 6000, and 5000 is recorded"):
        run(tmp_path, store, archive_erase_ms=6000)
    assert run(tmp_path, store, "archive_erase_ms", archive_erase_ms=6000).archive_erase_ms == 6000


def test_cold_tier_of_a_server_is_used_by_runs_and_later_servers(tmp_path: Path) -> None:
    cold = str(tmp_path / "cold")
    started(settings(tmp_path, cold_dir=cold + "/"))
    assert run(tmp_path, PosixFileSystem()).cold_dir == cold
    assert run(tmp_path, PosixFileSystem(), cold_dir=cold).cold_dir == cold
    assert started(settings(tmp_path)).cold_dir == cold
    with pytest.raises(SettingsConflictError, match=r"cold_dir is '/other'.*--reconfigure cold_dir"):
        run(tmp_path, PosixFileSystem(), cold_dir="/other")
    with pytest.raises(SettingsConflictError, match=r"cold_dir is '/other'.*--reconfigure cold_dir"):
        started(settings(tmp_path, cold_dir="/other"))
    assert started(settings(tmp_path, cold_dir="/other"), "cold_dir").cold_dir == "/other"
    assert run(tmp_path, PosixFileSystem()).cold_dir == "/other"
    assert "cold_dir" not in json.loads((tmp_path / "data/archive/settings.json").read_text())


def test_cold_tier_may_be_added_later_but_not_by_a_run(tmp_path: Path) -> None:
    started(settings(tmp_path))
    found = run(tmp_path, PosixFileSystem(), cold_dir="/by-mistake")
    record(found, PosixFileSystem())
    assert "cold_dir" not in (recorded(settings(tmp_path)) or {})
    started(settings(tmp_path, cold_dir="/cold"))
    assert run(tmp_path, PosixFileSystem()).cold_dir == "/cold"
    # A round writes the record again, and keeps the cold tier.
    record(run(tmp_path, PosixFileSystem()), PosixFileSystem())
    assert run(tmp_path, PosixFileSystem()).cold_dir == "/cold"


def test_server_without_an_archive_records_nothing(tmp_path: Path) -> None:
    chosen = Settings(data_dir=str(tmp_path / "data"), cold_dir="/cold")
    assert started(chosen) == chosen
    assert not (tmp_path / "data").exists()


def test_run_without_the_cold_tier_of_the_segments_is_refused() -> None:
    folder = Folder(hot_retain_segments=1)
    folder.put("orders")
    for n in range(3):
        folder.append("orders", n)
        folder.seal("orders")
    untold = Layout(folder.layout.root)
    Pipeline(folder.disk, untold, [], InlineExecutor(folder.disk), folder.clock).round()
    folder.relocate("orders")
    with pytest.raises(NoColdTierError, match="TOPICS_COLD_DIR"):
        Pipeline(folder.disk, untold, [], InlineExecutor(folder.disk), folder.clock).round()
    assert issubclass(NoColdTierError, SettingsError)
    Pipeline(folder.disk, folder.layout, [], InlineExecutor(folder.disk), folder.clock).round()
