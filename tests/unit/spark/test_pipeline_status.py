"""The status of the pipeline: its two files, the progress of any run, and the lag between two runs."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.unit.spark.archives import ROOT
from tests.unit.spark.folders import Folder
from topics.api.auth import Key, Scope
from topics.api.operator_routes import no_pipeline, pipeline_for
from topics.log.fs import read_whole, replace_file
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem, is_locked
from topics.model.settings import Settings
from topics.server import _sealed_since, pipeline_answer
from topics.spark.archive.archive_plan import ArchiveRules
from topics.spark.pipeline.archive_product import ArchiveProduct
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.pipeline_worker import open_run
from topics.spark.pipeline.products import CommitResult
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.status import (
    PROGRESS_MS,
    PipelineStatus,
    RunReporter,
    StatusWatch,
    load_progress,
    load_status,
    save_status,
)
from topics.spark.pipeline.supervisor import Supervisor
from topics.testing import FakeDisk, ManualClock, SeededEntropy
from topics_protocol.v0 import PipelineAnswer, PipelineRequest

LAYOUT = Layout("data")


def test_status_with_a_changed_byte_counts_as_missing() -> None:
    folder = Folder()
    save_status(folder.disk, LAYOUT, PipelineStatus(rounds=7, records=123))
    path = f"{LAYOUT.pipeline}/status.json"
    data = read_whole(folder.disk, path) or b""
    assert load_status(folder.disk, LAYOUT).records == 123
    replace_file(folder.disk, path, data.replace(b"123", b"124"))
    assert load_status(folder.disk, LAYOUT) == PipelineStatus()
    # As an earlier version wrote it.
    replace_file(folder.disk, path, b'{\n "rounds": 7, "records": 5}')
    assert load_status(folder.disk, LAYOUT).records == 5


def test_progress_is_written_at_most_once_a_second() -> None:
    folder, clock = Folder(), ManualClock()
    reporter = RunReporter(folder.disk, LAYOUT, clock, "cron")
    reporter.begin()
    reporter.job("archive of 3 topics", 9, 900)
    reporter.tasks_done(1, 100)
    found = load_progress(folder.disk, LAYOUT)
    assert found is not None and found.job is not None
    assert (found.by, found.job.tasks, found.job.tasks_done) == ("cron", 9, 0)
    clock.advance(PROGRESS_MS)
    reporter.published(10, 100)
    reporter.tasks_done(2, 200)
    found = load_progress(folder.disk, LAYOUT)
    assert found is not None and found.job is not None
    assert (found.records, found.job.tasks_done, found.job.bytes_done) == (10, 2, 200)
    reporter.end("OSError: no room")
    found = load_progress(folder.disk, LAYOUT)
    assert found is not None
    assert (found.job, found.error, found.ended_ms) == (None, "OSError: no room", clock.now_ms())


def test_killed_run_is_not_running(tmp_path: Path) -> None:
    layout, fs = Layout(str(tmp_path)), PosixFileSystem()
    fs.make_dirs(layout.pipeline)
    script = (
        "import sys; from topics.log.posix import PosixFileSystem as P;"
        f"lock = P().lock({layout.pipeline + '/lock'!r}, 'cron'); print('locked', flush=True); sys.stdin.read()"
    )
    watch = StatusWatch(fs, layout, is_locked)
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        RunReporter(fs, layout, ManualClock(), "cron").begin()
        watch.look()
        assert watch.is_running
        process.kill()
        process.wait()
    watch.look()
    assert not watch.is_running


class _Failing(ArchiveProduct):
    def commit(self, outcomes: Sequence[bytes], now_ms: int) -> CommitResult:
        raise OSError("no room")


def test_records_of_a_failed_commit_are_not_counted() -> None:
    folder = Folder()
    folder.append("orders", *range(10))
    folder.seal()
    product = _Failing(folder.disk, ROOT, ArchiveRules(), SeededEntropy(1))
    made = Pipeline(folder.disk, folder.layout, [product], InlineExecutor(folder.disk), folder.clock)
    with pytest.raises(OSError, match="no room"):
        made.round()
    status = load_status(folder.disk, folder.layout)
    assert (status.records, status.bytes, status.lag_records, status.lag_segments) == (0, 0, 10, 1)


def answer(folder: Folder, supervisor: Supervisor) -> PipelineAnswer:
    supervisor._watch_files.look()
    return pipeline_answer(supervisor, _sealed_since(folder.engine, supervisor), folder.clock.now_ms())


def rounds(folder: Folder, seed: int = 1) -> None:
    product = ArchiveProduct(folder.disk, ROOT, ArchiveRules(), SeededEntropy(seed))
    made = Pipeline(folder.disk, folder.layout, [product], InlineExecutor(folder.disk), folder.clock)
    while made.round():
        pass


def test_lag_counts_what_was_sealed_since_the_last_run_without_a_pipeline_and_after_a_restart() -> None:
    disk, clock = FakeDisk(), ManualClock()
    folder = Folder(disk, clock)
    settings = Settings(data_dir="data", archive="1", pipeline="off")
    supervisor = Supervisor(settings, folder.disk, folder.clock, lambda: 0)
    folder.append("orders", *range(10))
    folder.seal()
    found = answer(folder, supervisor)
    assert (found.state, found.lag_segments, found.lag_records) == ("off", 1, 10)
    rounds(folder)
    found = answer(folder, supervisor)
    assert (found.lag_segments, found.lag_records, found.lag_bytes, found.lag_ms, found.records) == (0, 0, 0, 0, 10)
    folder.append("orders", *range(5))
    folder.append("bills", *range(7))
    clock.advance(5000)
    folder.seal()
    found = answer(folder, supervisor)
    assert (found.lag_segments, found.lag_records, found.lag_ms) == (2, 12, 5000)
    assert next(one.lag_records for one in found.products if one.product == "archive") == 12
    again = Folder(disk.clone(), clock)
    supervisor = Supervisor(settings, again.disk, folder.clock, lambda: 0)
    found = answer(again, supervisor)
    assert (found.lag_segments, found.lag_records) == (2, 12)
    rounds(again, seed=2)
    assert answer(again, supervisor).lag_records == 0


def test_failure_of_a_hand_run_is_in_the_status(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path / "data"), archive="1", pipeline="off")
    supervisor = Supervisor(settings, PosixFileSystem(), ManualClock(), lambda: 0)
    with (
        pytest.raises(OSError, match="no room"),
        open_run(settings, [], "topics pipeline run, process 7", ManualClock()) as run,
    ):
        supervisor._watch_files.look()
        assert (supervisor.state, run.reporter.progress.by) == ("running", "topics pipeline run, process 7")
        raise OSError("no room")
    supervisor._watch_files.look()
    found = pipeline_answer(supervisor, Folder().engine.sealer.unlisted(), 0)
    assert (found.state, found.failures, found.error) == ("off", 1, "OSError: no room")
    assert found.run is not None
    assert found.run.error == "OSError: no room"


def test_requests_for_streams_of_others_are_hidden_from_a_key_with_prefixes() -> None:
    mine, other, whole = (
        PipelineRequest(kind="rebuild", stream=name, by="x", since_ms=1) for name in ("a.x", "b.x", None)
    )
    state = msgspec.structs.replace(no_pipeline(), requests=[mine, other, whole])
    key = Key(1, b"", Scope.READ, ("a.",))
    assert pipeline_for(key, state).requests == [mine, whole]
