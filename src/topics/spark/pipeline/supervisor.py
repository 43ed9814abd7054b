"""Pipeline supervisor: starts the worker process beside a server when there is work, restarts it, ends it on drain.

It does not import pyspark. Each second the server compares two numbers to see whether there is work, and reads one
small file while a process runs. The process is started by `subprocess`, which uses vfork. asyncio's child processes
fork: that copies the page tables of the server first, and appends would wait 20 ms for each gigabyte.
"""

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec

import msgspec

from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.log.posix import is_locked
from topics.model.settings import SETTINGS, Settings
from topics.spark.pipeline.pipeline_requests import Pause, PipelineRequest, RequestQueue
from topics.spark.pipeline.pipeline_settings import RECORDED, has_archive, recorded
from topics.spark.pipeline.status import ExitStatus, PipelineStatus, Quarantine, RunProgress, StatusWatch
from topics.system.clock import Clock
from topics.system.installation import install_command

INSTALL = install_command("spark")
FAILING = "the pipeline's rounds fail: GET /v0/pipeline says why"
"""The reason shown for a single topic: the error itself may name other topics."""
_TICK_S = 1.0
_FIRST_WAIT_S = 1.0
_LAST_WAIT_S = 300.0
_KILL_AFTER_S = 5.0
_LOOK_S = 0.02
_RETENTION_EVERY_MS = 3_600_000

_log = logging.getLogger(__name__)


class Supervisor:
    def __init__(
        self,
        settings: Settings,
        fs: FileSystem,
        clock: Clock,
        work_number: Callable[[], int],
        command: tuple[str, ...] = (sys.executable, "-m", "topics.spark.pipeline"),
    ) -> None:
        self._settings = settings
        self._fs = fs
        self._layout = Layout(settings.data_dir, settings.cold_dir)
        self._clock = clock
        self._work_number = work_number
        self._command = command
        self._retention_ms = settings.archive_retention_ms
        self._process: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._wait_s = 0.0
        self._not_before = 0.0
        self.restarts = 0
        """The number of failed exits after which the process was or will be started again."""
        self.archives = has_archive(settings)
        needed = ("pyspark", "pyiceberg") if self.archives else ("pyspark",)
        missing = [name for name in needed if find_spec(name) is None]
        self.reason: str | None = f"{missing[0]} is not installed" if missing else None
        self.enabled = settings.pipeline == "auto" and (self.archives or settings.search_families == "auto")
        self._watch_files = StatusWatch(fs, self._layout, is_locked)
        self._queue = RequestQueue(fs, self._layout)
        self.requests: tuple[PipelineRequest, ...] = ()
        """The waiting requests of operators at the last check."""
        self.paused: Pause | None = None
        """Set while the pipeline of the server is paused."""
        self._exit_status = ExitStatus()
        self.retry_at_ms: int | None = None
        """The time of the next start after a failure; None while a process runs, or if none has failed."""

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def state(self) -> str:
        """One of off, unavailable, idle, running, waiting (for the next attempt), paused. A run by hand counts as
        running."""
        if self.running or self._watch_files.is_running:
            return "running"
        if not self.enabled:
            return "off"
        if self.reason is not None:
            return "unavailable"
        if self.paused is not None:
            return "paused"
        return "waiting" if self._clock.monotonic() < self._not_before else "idle"

    @property
    def progress(self) -> RunProgress | None:
        """The current run, or the last one, regardless of which process started it."""
        found = self._watch_files.progress
        if found is None or found.ended_ms is not None or self.state == "running":
            return found
        return msgspec.structs.replace(
            found, ended_ms=found.updated_ms, job=None, error=found.error or "its process was ended before it was done"
        )

    @property
    def _status(self) -> PipelineStatus:
        return self._watch_files.status

    def status(self) -> PipelineStatus:
        """The status that the process last saved, with exits that it could not report."""
        return self._exit_status.amended(self._status)

    def quarantine_of(self, topic: str, product: str) -> Quarantine | None:
        """The quarantine of a topic in a product; None where there is none."""
        return next((one for one in self._status.quarantined if (one.topic, one.product) == (topic, product)), None)

    def fails(self, product: str) -> bool:
        """Whether rounds fail, and not only because of other products."""
        status = self.status()
        sick = [one.product for one in status.products if one.error is not None]
        return self.enabled and status.error is not None and (not sick or product in sick)

    def start(self) -> None:
        if self.enabled and self.reason is not None:
            reported = _log.warning if self.archives else _log.info
            reported(
                "the pipeline cannot run",
                extra={"reason": self.reason, "install": INSTALL},
            )
        self._look()
        self._retention_ms = (recorded(self._settings) or {}).get("archive_retention_ms", self._retention_ms)
        if self.archives or (self.enabled and self.reason is None):
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends the process: SIGTERM, then SIGKILL."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._end()

    def has_work(self) -> bool:
        """Whether there is work for the process."""
        status, now = self._status, self._clock.now_ms()
        if self.requests and self._work_number():
            return True  # Without a catalog they could not be run.
        if self._work_number() > status.catalog or not all(one.is_active(now) for one in status.quarantined):
            return True
        if status.due_ms is not None and (status.due_ms <= now or status.is_ahead(now)):
            return True
        return bool(self._retention_ms) and now - status.updated_ms > _RETENTION_EVERY_MS

    async def _run(self) -> None:
        while True:
            try:
                self._look()
                if self._process is not None and self.paused is not None:
                    _log.info("the pipeline is paused", extra={"by": self.paused.by})
                    await self._end()
                elif self._process is not None:
                    self._watch()
                else:
                    if self._may_launch() and self.has_work():
                        self._launch()
            except Exception as error:
                # The server and the attempts continue after any error.
                _log.exception("the pipeline's process could not be started")
                self._exit_status.note_unreported(f"its process could not be started: {error}", self._status)
                self._back_off()
            await asyncio.sleep(_TICK_S)

    def _look(self) -> None:
        self._watch_files.look()
        self.requests, self.paused = tuple(self._queue.waiting().values()), self._queue.paused()

    def _may_launch(self) -> bool:
        able = self.enabled and self.reason is None and self.paused is None and not self._watch_files.is_running
        return able and self._clock.monotonic() >= self._not_before

    def _launch(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            env={**os.environ, **_as_env(self._settings)},
            # It makes its own process group, so that the terminal's Ctrl-C does not reach it, but no session: Linux
            # autogroups share the processor by session first, and nice values have no effect between sessions.
        )
        self.retry_at_ms = None
        _log.info("the pipeline was started", extra={"pid": self._process.pid})

    def _watch(self) -> None:
        assert self._process is not None
        # Polled first, so that the status read next is the last one of an ended process.
        code = self._process.poll()
        self._look()
        if code is None:
            self._exit_status.observe(self._status)
            return
        _close_stdin(self._process)
        self._process = None
        # An exit after all work is done is not a failure.
        self._exit_status.note(code if self.has_work() else 0, self._status)
        if code == 0:
            self._wait_s = 0.0
            _log.info("the pipeline has nothing more to do")
        else:
            _log.error("the pipeline's process ended badly; it will be started again", extra={"exit_code": code})
            self._back_off()

    def _back_off(self) -> None:
        self.restarts += 1
        self._wait_s = min(max(2 * self._wait_s, _FIRST_WAIT_S), _LAST_WAIT_S)
        self._not_before = self._clock.monotonic() + self._wait_s
        self.retry_at_ms = self._clock.now_ms() + int(self._wait_s * 1000)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        kill_at = self._clock.monotonic() + _KILL_AFTER_S
        while process.poll() is None:
            if self._clock.monotonic() >= kill_at:
                process.kill()
            await asyncio.sleep(_LOOK_S)
        _close_stdin(process)


def _close_stdin(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()


def _as_env(settings: Settings) -> Mapping[str, str]:
    """The settings as environment variables, flags included, without API keys, which the process does not need.

    Settings that are recorded with the data are left out where they have their default: the process reads the record.
    """
    values = msgspec.structs.asdict(settings)
    given = {
        one.env: str(values[one.name])
        for one in SETTINGS
        if values[one.name] is not None and not (one.name in RECORDED and values[one.name] == one.default)
    }
    given["TOPICS_API_KEYS"] = ""
    return given
