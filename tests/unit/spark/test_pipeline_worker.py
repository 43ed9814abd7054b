"""The pipeline's process: it ends on request, when its server is gone, and when another has the pipeline."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from tests.unit.spark.archives import archived
from tests.unit.spark.folders import Folder
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings
from topics.spark.archive.ledger import MissedDeletesError
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.pipeline_settings import archive_root, layout_of
from topics.spark.pipeline.pipeline_worker import (
    PipelineBusyError,
    UntrackedError,
    check_tracked,
    hold_pipeline,
    make_pipeline,
    note_failure,
    run_until_idle,
)
from topics.spark.pipeline.status import load_status
from topics.testing import ManualClock

_PATIENCE_S = 60


@contextmanager
def worker(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real one, on a folder without anything to do."""
    env = {**os.environ, "TOPICS_DATA_DIR": str(folder), "TOPICS_ARCHIVE": "1", "TOPICS_PIPELINE_IDLE_MS": "600000"}
    process = subprocess.Popen(
        [sys.executable, "-m", "topics.spark.pipeline"],
        env=env,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (folder / "pipeline" / "lock").exists() and process.poll() is None:
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def test_it_ends_with_its_server(tmp_path: Path) -> None:
    with worker(tmp_path) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(_PATIENCE_S) == 0


def test_the_terminals_interrupt_passes_it_by(tmp_path: Path) -> None:
    with worker(tmp_path) as process:
        assert os.getpgid(process.pid) == process.pid
        assert os.getsid(process.pid) == os.getsid(0)


def test_worker_lowers_its_priority_before_imports(tmp_path: Path) -> None:
    script = (
        "import runpy, sys, topics.system.process as machine; "
        'machine.step_back = lambda how: sys.exit(f\'{how} {sys.modules.keys() & {"numpy", "pyarrow", "pyspark"}}\'); '
        "runpy.run_module('topics.spark.pipeline', run_name='__main__')"
    )
    env = {**os.environ, "TOPICS_DATA_DIR": str(tmp_path), "TOPICS_PIPELINE_PRIORITY": "low"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "low set()"


def test_it_ends_when_reported_and_a_second_one_gives_way(tmp_path: Path) -> None:
    with worker(tmp_path) as first:
        with worker(tmp_path) as second:
            assert second.wait(_PATIENCE_S) == 3
        first.send_signal(signal.SIGTERM)
        assert first.wait(_PATIENCE_S) == 0


def test_pipeline_lock_allows_one_process(tmp_path: Path) -> None:
    fs, layout = PosixFileSystem(), Layout(str(tmp_path))
    lock = hold_pipeline(fs, layout, "somebody")
    with pytest.raises(PipelineBusyError, match="run by somebody"):
        hold_pipeline(fs, layout, "another")
    lock.release()
    hold_pipeline(fs, layout, "another").release()


def test_archiving_is_refused_beside_a_server_that_keeps_no_deletes(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path / "data"))
    folder = Folder(PosixFileSystem(), ManualClock(), layout, track_removals=False)
    folder.append("orders", 1)
    folder.seal()
    with pytest.raises(UntrackedError, match="start it with TOPICS_ARCHIVE=1"):
        check_tracked(folder.disk, layout)
    folder.engine.close_inline()
    check_tracked(folder.disk, layout)
    hold_pipeline(folder.disk, layout, "somebody").release()
    again = Folder(PosixFileSystem(), ManualClock(), layout, track_removals=False)
    again.append("orders", 2)
    again.seal()
    check_tracked(again.disk, layout)
    again.engine.close_inline()


def test_catalog_of_an_earlier_server_does_not_prove_that_this_one_keeps_deletes(tmp_path: Path) -> None:
    """Before the first checkpoint of a server, the catalog is the one that the server before wrote."""
    layout = Layout(str(tmp_path / "data"))
    folder = Folder(PosixFileSystem(), ManualClock(), layout, track_removals=True)
    folder.append("orders", 1)
    folder.seal()
    folder.engine.close_inline()
    again = Folder(PosixFileSystem(), ManualClock(), layout, track_removals=False)
    with pytest.raises(UntrackedError, match="start it with TOPICS_ARCHIVE=1"):
        check_tracked(again.disk, layout)
    again.engine.close_inline()
    tracking = Folder(PosixFileSystem(), ManualClock(), layout, track_removals=True)
    check_tracked(tracking.disk, layout)
    tracking.engine.close_inline()


def test_it_works_until_there_is_nothing_to_do_and_waits_a_while(tmp_path: Path) -> None:
    folder = Folder(PosixFileSystem(), ManualClock(), Layout(str(tmp_path / "data")))
    settings = Settings(data_dir=str(tmp_path / "data"), archive="1", pipeline_idle_ms=1000, pipeline_poll_ms=400)
    clock = folder.clock
    assert isinstance(clock, ManualClock)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(int(seconds * 1000))
        if len(waits) == 2:
            folder.append("orders", 1)
            folder.seal()

    pipeline = make_pipeline(settings, folder.disk, InlineExecutor(folder.disk), clock)
    run_until_idle(pipeline, settings, clock, wait)
    assert waits == [0.4] * 5
    assert pipeline.status.records == 1
    run_until_idle(pipeline, settings, clock, wait, once=True)
    assert len(waits) == 5


def test_the_archive_is_where_the_settings_state(tmp_path: Path) -> None:
    assert archive_root(Settings(data_dir="/a/b")) == "/a/b/archive"
    assert archive_root(Settings(data_dir="/a/b", archive_dir="/c")) == "/c"
    assert layout_of(Settings(data_dir="/a/b", cold_dir="/d")) == Layout("/a/b", "/d")
    assert not make_pipeline(
        Settings(data_dir=str(tmp_path), search_families="off"),
        PosixFileSystem(),
        InlineExecutor(PosixFileSystem()),
        ManualClock(),
    )._products


def test_deletes_wait_for_an_archive_that_is_turned_off(tmp_path: Path) -> None:
    """Other products go on working meanwhile, and cannot confirm that a delete has reached the archive."""
    folder = Folder(PosixFileSystem(), ManualClock(), Layout(str(tmp_path / "data")))
    folder.append("orders", *range(10))
    folder.seal()

    def run(archive: Literal["0", "1"]) -> None:
        settings = Settings(data_dir=str(tmp_path / "data"), archive=archive)
        pipeline = make_pipeline(settings, folder.disk, InlineExecutor(folder.disk), folder.clock)
        run_until_idle(pipeline, settings, folder.clock, lambda seconds: None, once=True)

    def shown() -> list[int]:
        return sorted(archived(folder.disk, "orders", str(tmp_path / "data" / "archive")))

    run("1")
    assert shown() == list(range(1, 11))
    folder.delete("orders", before_seq=4)
    for _ in range(3):
        folder.checkpoint()
        run("0")
    folder.append("orders", 10)
    folder.checkpoint()
    run("1")
    assert shown() == list(range(4, 11))
    folder.engine.close_inline()


def test_an_archive_that_was_left_for_another_does_not_show_what_was_deleted_meanwhile(tmp_path: Path) -> None:
    folder = Folder(PosixFileSystem(), ManualClock(), Layout(str(tmp_path / "data")))
    folder.append("orders", *range(10))
    folder.seal()

    def run(archive: str) -> list[int]:
        place = str(tmp_path / archive)
        settings = Settings(data_dir=str(tmp_path / "data"), archive="1", archive_dir=place)
        pipeline = make_pipeline(settings, folder.disk, InlineExecutor(folder.disk), folder.clock)
        run_until_idle(pipeline, settings, folder.clock, lambda seconds: None, once=True)
        return sorted(archived(folder.disk, "orders", place))

    assert run("one") == run("other") == list(range(1, 11))
    # Nothing was deleted in between.
    folder.delete("orders", before_seq=3)
    folder.checkpoint()
    assert run("one") == list(range(3, 11))
    (tmp_path / "one").rename(tmp_path / "moved")
    folder.delete("orders", before_seq=4)
    for _ in range(3):
        folder.checkpoint()
        assert run("moved") == list(range(4, 11))
    with pytest.raises(MissedDeletesError, match="Move it away"):
        run("other")
    assert run("moved") == list(range(4, 11))
    assert run("third") == list(range(4, 11))
    folder.engine.close_inline()


def test_a_failure_is_noted_and_a_good_round_forgets_it() -> None:
    folder = Folder()
    note_failure(folder.disk, folder.layout, ValueError("why"), folder.clock)
    note_failure(folder.disk, folder.layout, ValueError("why not"), folder.clock)
    status = load_status(folder.disk, folder.layout)
    assert (status.failures, status.error) == (2, "ValueError: why not")
    folder.append("orders", 1)
    folder.seal()
    from tests.unit.spark.archives import run_all

    run_all(folder.disk, folder)
    status = load_status(folder.disk, folder.layout)
    assert (status.failures, status.error) == (0, None)
    assert archived(folder.disk, "orders") == {1: "1"}
