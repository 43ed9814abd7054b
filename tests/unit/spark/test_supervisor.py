"""The supervisor keeps a process while there is work, starts a failed one again, and ends it on drain."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import uvloop

from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings
from topics.spark.pipeline import supervisor as module
from topics.spark.pipeline.pipeline_requests import Pause, PipelineRequest, RequestQueue
from topics.spark.pipeline.status import PipelineStatus, Quarantine, save_status
from topics.spark.pipeline.supervisor import Supervisor
from topics.system.clock import SystemClock
from topics.testing import ManualClock, SeededEntropy

_PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TICK_S", 0.01)
    monkeypatch.setattr(module, "_FIRST_WAIT_S", 0.01)


def make(folder: Path, script: str, work: list[int], **settings: str) -> Supervisor:
    """A supervisor of a Python script instead of the pipeline."""
    chosen = Settings(**{"data_dir": str(folder), "archive": "1", **settings})  # type: ignore[arg-type]
    command = (sys.executable, "-c", script)
    return Supervisor(chosen, PosixFileSystem(), SystemClock(), lambda: work[0], command)


async def until(what: Callable[[], bool]) -> None:
    async def look() -> None:
        while not what():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), _PATIENCE_S)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    uvloop.run(asyncio.wait_for(scene(), _PATIENCE_S))  # As the server does; it starts processes in its own way.


def test_process_is_started_with_the_first_work(tmp_path: Path) -> None:
    work = [0]
    made = make(tmp_path, "import sys; sys.stdin.read()", work)

    async def scene() -> None:
        made.start()
        await asyncio.sleep(0.1)
        assert made.state == "idle"
        work[0] = 1
        await until(lambda: made.running)
        assert made.state == "running"
        await made.stop()
        assert not made.running

    play(scene)
    assert made.restarts == 0


def test_failed_process_is_restarted_with_backoff(tmp_path: Path) -> None:
    made = make(tmp_path, "import sys; sys.exit(1)", [1])

    async def scene() -> None:
        made.start()
        await until(lambda: made.restarts >= 3)
        await made.stop()

    play(scene)
    assert made._wait_s >= 0.04


def test_process_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KILL_AFTER_S", 0.1)
    ready = tmp_path / "ready"
    script = (
        "import signal, time, pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    )
    made = make(tmp_path, script, [1])

    async def scene() -> None:
        made.start()
        await until(ready.exists)
        await made.stop()
        assert not made.running

    play(scene)


def test_it_has_the_settings_of_the_server_and_no_keys(tmp_path: Path) -> None:
    reported = tmp_path / "told"
    script = (
        "import os, pathlib; "
        f"pathlib.Path({str(reported)!r}).write_text(os.environ['TOPICS_SPARK_MEMORY'] + os.environ['TOPICS_API_KEYS'])"
    )
    made = make(tmp_path, script, [1], spark_memory="3g", api_keys="secret")

    async def scene() -> None:
        made.start()
        await until(reported.exists)
        await until(lambda: reported.read_text() != "")
        await made.stop()

    play(scene)
    assert reported.read_text() == "3g"


@pytest.mark.parametrize(
    ("settings", "state"),
    [({"pipeline": "off"}, "off"), ({"archive": "0", "search_families": "off"}, "off"), ({}, "idle")],
)
def test_supervisor_is_off_without_products(tmp_path: Path, settings: dict[str, str], state: str) -> None:
    assert make(tmp_path, "", [0], **settings).state == state


def test_without_spark_it_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    made = make(tmp_path, "", [1])
    assert made.state == "unavailable"
    assert made.reason == "pyspark is not installed"

    async def scene() -> None:
        made.start()
        await asyncio.sleep(0.05)
        assert not made.running
        await made.stop()

    play(scene)


def test_what_counts_as_work(tmp_path: Path) -> None:
    fs, layout, clock = PosixFileSystem(), Layout(str(tmp_path)), ManualClock()
    work = [5]
    settings = Settings(data_dir=str(tmp_path), archive="1", archive_retention_ms=1)
    made = Supervisor(settings, fs, clock, lambda: work[0])

    def has_work(status: PipelineStatus) -> bool:
        save_status(fs, layout, status)
        made._watch_files.status = status
        return made.has_work()

    now = clock.now_ms()
    done = PipelineStatus(catalog=5, updated_ms=now)
    bad = Quarantine(1, "bad", "archive", "why", now, 1, now + 1000)
    assert not has_work(done)
    assert has_work(msgspec.structs.replace(done, catalog=4))
    assert not has_work(msgspec.structs.replace(done, quarantined=(bad,)))
    clock.advance(1000)
    assert has_work(msgspec.structs.replace(done, quarantined=(bad,)))
    assert not has_work(done)
    assert not has_work(msgspec.structs.replace(done, due_ms=clock.now_ms() + 1))
    assert has_work(msgspec.structs.replace(done, due_ms=clock.now_ms()))
    # A status written while the clock was ahead is not waited for.
    ahead = msgspec.structs.replace(done, updated_ms=clock.now_ms() + 86_400_000)
    assert has_work(msgspec.structs.replace(ahead, due_ms=clock.now_ms() + 86_400_001))
    assert not has_work(ahead)
    clock.advance(3_600_001)
    assert has_work(done)


def test_it_is_in_the_session_of_the_server(tmp_path: Path) -> None:
    """Between two sessions priorities may count for nothing."""
    reported = tmp_path / "told"
    script = f"import os, pathlib; pathlib.Path({str(reported)!r}).write_text(str(os.getsid(0)))"
    made = make(tmp_path, script, [1])

    async def scene() -> None:
        made.start()
        await until(reported.exists)
        await until(lambda: reported.read_text() != "")
        await made.stop()

    play(scene)
    assert int(reported.read_text()) == os.getsid(0)


def test_starting_it_copies_nothing_of_the_server(tmp_path: Path) -> None:
    """A fork holds the loop up for as long as it takes to copy the tables of all the memory that the server has."""
    forks: list[int] = []
    os.register_at_fork(before=lambda: forks.append(1))
    reported = tmp_path / "told"
    made = make(tmp_path, f"import pathlib; pathlib.Path({str(reported)!r}).touch()", [1])

    async def scene() -> None:
        made.start()
        await until(reported.exists)
        await made.stop()

    play(scene)
    assert forks == []


def test_a_launch_that_fails_in_any_way_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = make(tmp_path, "", [1])
    made._command = ("/nonexistent/python",)

    async def scene() -> None:
        made.start()
        await until(lambda: made.restarts >= 1)
        made._command = (1,)  # type: ignore[assignment]
        await until(lambda: made.restarts >= 2)
        await made.stop()

    play(scene)
    assert caplog.text.count("the pipeline's process could not be started") >= 2


_KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (_KILLED, "its process was ended by SIGKILL"),
        ("import sys; sys.exit(1)", "its process ended with 1; the log says why"),
        ("import sys; sys.exit(3)", "another process has the pipeline"),
    ],
)
def test_unreported_exit_status_is_shown(tmp_path: Path, script: str, why: str) -> None:
    made = make(tmp_path, script, [1])

    async def scene() -> None:
        made.start()
        await until(lambda: made.restarts >= 2)
        await made.stop()

    play(scene)
    assert made.status().error == why
    assert made.status().failures == made.restarts
    assert made.fails("families")


def test_failed_start_is_shown_in_the_status(tmp_path: Path) -> None:
    chosen = Settings(data_dir=str(tmp_path), archive="1")
    made = Supervisor(chosen, PosixFileSystem(), SystemClock(), lambda: 1, (str(tmp_path / "nothing"),))

    async def scene() -> None:
        made.start()
        await until(lambda: made.restarts >= 1)
        assert made.retry_at_ms is not None
        await made.stop()

    play(scene)
    assert "could not be started" in str(made.status().error)


def test_reported_failure_is_not_counted_twice(tmp_path: Path) -> None:
    failed = PipelineStatus(error="ShortError: no room", failures=5)
    save_status(PosixFileSystem(), Layout(str(tmp_path)), failed)
    made = make(tmp_path, "import sys; sys.exit(1)", [1])

    async def scene() -> None:
        made.start()
        await until(lambda: made.restarts >= 1)
        await made.stop()

    play(scene)
    assert made.status() == failed


def test_exit_status_is_cleared_by_a_finished_round(tmp_path: Path) -> None:
    """The first process is killed in a round, the second one works."""
    working = PipelineStatus(running=True, rounds=1)
    save_status(PosixFileSystem(), Layout(str(tmp_path)), working)
    done = PipelineStatus(rounds=2, catalog=0)
    script = (
        f"import os, pathlib, sys; once = pathlib.Path({str(tmp_path / 'once')!r})\n"
        "if not once.exists(): once.touch(); os.kill(os.getpid(), 9)\n"
        f"pathlib.Path({str(tmp_path / 'pipeline' / 'status.json')!r}).write_bytes({msgspec.json.encode(done)!r})\n"
        "sys.stdin.read()"
    )
    made = make(tmp_path, script, [1])

    async def scene() -> None:
        made.start()
        await until(lambda: made.status().error is not None)
        assert made.status().failures == 1
        await until(lambda: made.status() == done)
        assert made.state == "running"
        await made.stop()

    play(scene)


def test_exit_without_work_is_no_failure(tmp_path: Path) -> None:
    work = [1]
    save_status(PosixFileSystem(), Layout(str(tmp_path)), PipelineStatus(catalog=0))
    made = make(tmp_path, "import sys; sys.stdin.read()", work)

    async def scene() -> None:
        made.start()
        await until(lambda: made.running)
        work[0] = 0
        assert made._process is not None
        made._process.kill()
        await until(lambda: made.restarts == 1)
        await made.stop()

    play(scene)
    assert made.status().error is None


def test_waiting_request_starts_the_process_once_there_is_a_catalog(tmp_path: Path) -> None:
    work = [0]
    made = make(tmp_path, "import sys; sys.stdin.read()", work)
    layout = Layout(str(tmp_path))
    save_status(PosixFileSystem(), layout, PipelineStatus(catalog=9, updated_ms=1))
    RequestQueue(PosixFileSystem(), layout).add(PipelineRequest("compact", None, "a test", 1), SeededEntropy(1))

    async def scene() -> None:
        made.start()
        await asyncio.sleep(0.05)
        assert not made.running
        assert [one.kind for one in made.requests] == ["compact"]
        work[0] = 9
        await until(lambda: made.running)
        await made.stop()

    play(scene)


def test_pause_ends_the_process_until_it_is_resumed(tmp_path: Path) -> None:
    made = make(tmp_path, "import sys; sys.stdin.read()", [1])
    queue = RequestQueue(PosixFileSystem(), Layout(str(tmp_path)))

    async def scene() -> None:
        made.start()
        await until(lambda: made.running)
        queue.pause("a test", 5)
        await until(lambda: made.state == "paused")
        assert not made.running
        await asyncio.sleep(0.05)
        assert not made.running
        assert made.paused == Pause("a test", 5)
        queue.resume()
        await until(lambda: made.running)
        await made.stop()

    play(scene)
    assert made.restarts == 0
