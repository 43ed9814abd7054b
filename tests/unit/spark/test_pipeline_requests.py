"""Requests to the process that runs the pipeline: they wait as files, are done between rounds, and once."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.crash.test_index_files_follow_segments import ColdWorld, manifests
from tests.unit.spark.archives import archived, data_files
from tests.unit.spark.folders import Folder
from topics.cli import main
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings
from topics.spark.index_builds.index_plan import IndexRules
from topics.spark.pipeline import pipeline_requests
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.index_product import IndexProduct
from topics.spark.pipeline.pipeline_requests import Kind, PipelineRequest, RequestQueue, TooManyRequestsError
from topics.spark.pipeline.pipeline_settings import record_first_use
from topics.spark.pipeline.pipeline_worker import RequestWorker, hold_pipeline, make_pipeline, run_until_idle
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.status import load_status, quarantine, save_status
from topics.testing import FakeDisk, ManualClock, SeededEntropy

ENTROPY = SeededEntropy(5)


def ask(fs: FileSystem, layout: Layout, kind: Kind, stream: str | None = None) -> None:
    RequestQueue(fs, layout).add(PipelineRequest(kind, stream, "a test", 7), ENTROPY)


def waiting(fs: FileSystem, layout: Layout) -> list[PipelineRequest]:
    return list(RequestQueue(fs, layout).waiting().values())


class Runs:
    """A worker of a folder: each call runs until there is nothing to do."""

    def __init__(self, folder: Folder, **settings: str) -> None:
        self.folder = folder
        self.made = 0
        self.settings = Settings(data_dir=folder.layout.root, **{"archive": "1", **settings})  # type: ignore[arg-type]

    def make(self, compact: bool, keep: bool) -> Pipeline:
        self.made += 1
        disk, clock = self.folder.disk, self.folder.clock
        return make_pipeline(self.settings, disk, InlineExecutor(disk), clock, compact, keep_replaced=keep)

    def __call__(self) -> Pipeline:
        folder = self.folder
        requests = RequestWorker(folder.disk, folder.layout, folder.clock, self.make)
        made = self.make(False, True)
        return run_until_idle(made, self.settings, folder.clock, lambda seconds: None, once=True, requests=requests)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.chdir(tmp_path)
    folder = Folder(PosixFileSystem(), ManualClock(), Layout("data"))
    folder.append("orders", *range(10))
    folder.seal()
    made = Runs(folder)
    made()
    return made


def test_compact_request_rewrites_files_with_deleted_records(runs: Runs) -> None:
    folder = runs.folder
    folder.delete("orders", before_seq=2)
    folder.checkpoint()
    runs()
    before = data_files(folder.disk)
    assert sorted(archived(folder.disk, "orders")) == list(range(2, 11))
    ask(folder.disk, folder.layout, "compact")
    runs()
    # The replaced file stays for its readers.
    assert len(before) == 1
    assert before < data_files(folder.disk)
    assert waiting(folder.disk, folder.layout) == []
    assert sorted(archived(folder.disk, "orders")) == list(range(2, 11))


def test_erase_request_removes_replaced_files_and_snapshots_at_once(runs: Runs) -> None:
    folder = runs.folder
    folder.delete("orders", before_seq=2)
    folder.checkpoint()
    before = data_files(folder.disk)
    ask(folder.disk, folder.layout, "erase")
    runs()
    left = data_files(folder.disk)
    assert len(left) == 1
    assert not left & before
    assert sorted(archived(folder.disk, "orders")) == list(range(2, 11))
    assert not any(folder.disk.list_dir("data/archive/deletes"))
    # The next replaced file has its grace again.
    folder.delete("orders", before_seq=9)
    folder.checkpoint()
    runs()
    assert left < data_files(folder.disk)


def test_backfill_request_tries_quarantined_topics_again(runs: Runs) -> None:
    folder = runs.folder
    folder.append("orders", 10)
    folder.seal()
    status = load_status(folder.disk, folder.layout)
    (topic_id,) = [topic.id for topic in folder.engine.core.directory.resident.values() if topic.name == "orders"]
    left_out = quarantine((), topic_id, "orders", "archive", "why", folder.clock.now_ms())
    save_status(folder.disk, folder.layout, msgspec.structs.replace(status, quarantined=left_out))
    runs()
    assert sorted(archived(folder.disk, "orders")) == list(range(1, 11))
    ask(folder.disk, folder.layout, "backfill")
    assert runs().status.quarantined == ()
    assert sorted(archived(folder.disk, "orders")) == list(range(1, 12))


def test_backfill_request_rebuilds_files_that_went_missing(runs: Runs) -> None:
    folder = runs.folder
    (path,) = data_files(folder.disk)
    folder.disk.remove(f"data/archive/{path}")
    ask(folder.disk, folder.layout, "backfill")
    runs()
    assert sorted(archived(folder.disk, "orders")) == list(range(1, 11))


def test_rebuild_request_builds_index_files_again() -> None:
    world = ColdWorld(FakeDisk(), ManualClock(), "cold")
    world.create("logs")
    world.append("logs", 0, 3)
    world.seal()
    world.run(5)

    def files() -> set[str]:
        return {file.name for manifest in manifests(world.disk, "cold").values() for file in manifest.files}

    before, layout = files(), Layout("data", "cold")

    def make(compact: bool, keep: bool) -> Pipeline:
        product = IndexProduct(world.disk, layout, IndexRules(), SeededEntropy(6))
        return Pipeline(world.disk, layout, [product], InlineExecutor(world.disk), world.clock)

    requests = RequestWorker(world.disk, layout, world.clock, make)
    ask(world.disk, layout, "rebuild", "logs")
    ask(world.disk, layout, "rebuild", "gone")
    assert requests.run() is not None
    assert before
    assert files()
    assert not before & files()
    assert waiting(world.disk, layout) == []
    assert requests.run() is None


def test_request_of_a_failed_run_is_done_by_the_next_one(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = runs.folder
    folder.delete("orders", before_seq=2)
    folder.checkpoint()
    ask(folder.disk, folder.layout, "erase")
    before = data_files(folder.disk)
    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "round", _fails)
        with pytest.raises(OSError, match="no room"):
            runs()
    assert len(waiting(folder.disk, folder.layout)) == 1
    runs()
    assert waiting(folder.disk, folder.layout) == []
    assert not before & data_files(folder.disk)


def _fails(pipeline: Pipeline) -> bool:
    raise OSError("no room")


def test_request_during_another_is_done_afterwards(runs: Runs) -> None:
    folder = runs.folder
    ask(folder.disk, folder.layout, "backfill")
    inner = runs.make
    asked: list[bool] = []

    def make(compact: bool, keep: bool) -> Pipeline:
        if not asked:
            asked.append(True)
            ask(folder.disk, folder.layout, "backfill")
        return inner(compact, keep)

    requests = RequestWorker(folder.disk, folder.layout, folder.clock, make)
    assert requests.run() is not None
    assert len(waiting(folder.disk, folder.layout)) == 1
    assert requests.run() is not None
    assert waiting(folder.disk, folder.layout) == []


def test_requests_without_a_catalog_end(tmp_path: Path) -> None:
    folder = Folder(layout=Layout("data"))
    ask(folder.disk, folder.layout, "compact")
    Runs(folder)()
    assert waiting(folder.disk, folder.layout) == []


def test_damaged_request_is_removed_and_the_others_are_done(runs: Runs) -> None:
    disk, layout = runs.folder.disk, runs.folder.layout
    ask(disk, layout, "backfill")
    file = disk.open(f"{layout.pipeline}/requests/0-x.json", create=True)
    file.write_at(0, b'{"kind"')
    file.close()
    assert len(waiting(disk, layout)) == 1
    runs()
    assert disk.list_dir(f"{layout.pipeline}/requests") == []


def test_requests_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_requests, "REQUESTS_MAX", 2)
    disk, layout = FakeDisk(), Layout("data")
    ask(disk, layout, "compact")
    ask(disk, layout, "compact")
    with pytest.raises(TooManyRequestsError, match="2 requests wait"):
        ask(disk, layout, "compact")


# The commands


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.setenv("TOPICS_DATA_DIR", str(tmp_path / "data"))
    made = Folder(PosixFileSystem(), ManualClock(), Layout(str(tmp_path / "data")))
    made.append("orders", 1)
    made.seal()
    yield made
    made.engine.close_inline()


@pytest.mark.parametrize("kind", ["compact", "erase", "backfill"])
def test_command_queues_a_request_beside_a_busy_pipeline(
    folder: Folder, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = hold_pipeline(folder.disk, folder.layout, "the server's process 7")
    assert main(["pipeline", kind]) == 0
    lock.release()
    assert [request.kind for request in waiting(folder.disk, folder.layout)] == [kind]
    assert f"{kind} is queued" in capsys.readouterr().out
    assert main(["pipeline", "status"]) == 0
    assert f"requested: {kind}, by topics pipeline {kind}" in capsys.readouterr().out


def test_compacting_run_beside_a_busy_pipeline_is_queued_and_a_plain_run_is_refused(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = hold_pipeline(folder.disk, folder.layout, "the server's process 7")
    assert main(["pipeline", "run"]) == 3
    assert waiting(folder.disk, folder.layout) == []
    assert main(["pipeline", "run", "--compact"]) == 0
    lock.release()
    assert "run by the server's process 7" in capsys.readouterr().out
    assert [request.kind for request in waiting(folder.disk, folder.layout)] == ["compact"]


def test_compacting_run_with_other_settings_is_not_queued(folder: Folder, tmp_path: Path) -> None:
    record_first_use(Settings(data_dir=folder.layout.root, archive="1"))
    lock = hold_pipeline(folder.disk, folder.layout, "the server's process 7")
    assert main(["pipeline", "run", "--compact", "--archive-dir", str(tmp_path / "other")]) == 2
    lock.release()
    assert waiting(folder.disk, folder.layout) == []


def test_rebuild_of_a_stream_without_index_files_is_refused(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "rebuild", "orders"]) == 1
    assert "orders has no index files" in capsys.readouterr().err
    assert main(["pipeline", "rebuild", "other"]) == 1
    assert waiting(folder.disk, folder.layout) == []


def test_pause_lasts_until_it_is_resumed(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    queue = RequestQueue(folder.disk, folder.layout)
    assert main(["pipeline", "pause"]) == 0
    pause = queue.paused()
    assert pause is not None
    assert pause.by.startswith("topics pipeline pause")
    assert main(["pipeline", "status"]) == 0
    assert "is paused" in capsys.readouterr().out
    assert main(["pipeline", "resume"]) == 0
    assert queue.paused() is None
    assert main(["pipeline", "resume"]) == 0
    assert "was not paused" in capsys.readouterr().out


def test_pause_beside_a_run_by_hand_says_that_it_goes_on(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.cli.pipeline._PAUSE_S", 0.0)
    lock = hold_pipeline(folder.disk, folder.layout, "topics pipeline run, process 7")
    assert main(["pipeline", "pause"]) == 3
    lock.release()
    assert RequestQueue(folder.disk, folder.layout).paused() is not None
