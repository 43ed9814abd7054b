"""The composition root: the only place that puts the real clock, dice, disk, engine and network together.

The port opens first and the log is replayed behind it, so that a probe can tell a server that replays from one that
hangs. Stopping goes the same way back: the answer to "ready" changes first, then the engine finishes what it has
accepted, and the port closes last.
"""

import asyncio
import concurrent.futures
import logging
import signal
import threading
from collections.abc import Callable
from typing import Literal

import msgspec
import uvloop

from topics import __version__
from topics.config.settings import Settings
from topics.core.errors import NotReadyError, RetryLaterError, ShuttingDownError, quoted
from topics.core.limits import Limits
from topics.engine import Engine, EngineOptions
from topics.http.probe import Answer, ProbeProtocol, error_answer
from topics.storage.posix import PosixFileSystem
from topics.system.clock import Clock, SystemClock
from topics.system.dice import SystemDice
from topics.system.files import write_whole
from topics.system.logs import configure_logs
from topics.system.machine import boot_id, cpu_count
from topics.system.memory import tune_allocator

# More writer threads than this compete for the interpreter instead of overlapping their syncs.
DEFAULT_WAL_SHARDS_MAX = 8

_logger = logging.getLogger(__name__)


class Lifecycle:
    """Where the server is between start and stop, and what probes are told about it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self.phase: Literal["replaying", "serving", "draining"] = "replaying"
        # Written by the replaying thread and read by the event loop: a float needs no lock.
        self.replay_progress = 0.0

    def report_progress(self, progress: float) -> None:
        self.replay_progress = progress

    def answer(self, method: str, path: str) -> Answer:
        """Answers a probe; the method is GET or HEAD, and the same either way."""
        if path in ("/v0/health", "/healthz"):
            uptime_ms = int((self._clock.monotonic() - self._started) * 1000)
            return 200, msgspec.json.encode({"status": "ok", "version": __version__, "uptime_ms": uptime_ms})
        if path in ("/v0/ready", "/readyz"):
            return self._ready()
        return error_answer(404, "not_found", f"there is nothing at {quoted(path)}")

    def _ready(self) -> Answer:
        if self.phase == "replaying":
            return _unavailable(NotReadyError(round(self.replay_progress, 4)))
        if self.phase == "draining":
            return _unavailable(ShuttingDownError())
        return 200, msgspec.json.encode({"ready": True, "status": "ready", "wal_replay_complete": True})


def engine_options(settings: Settings) -> EngineOptions:
    """The engine's part of the settings: fields of the same name, and the number of shards decided."""
    limits = msgspec.convert(settings, Limits, from_attributes=True)
    wal_shards = settings.wal_shards or min(cpu_count(), DEFAULT_WAL_SHARDS_MAX)
    values = {**msgspec.structs.asdict(settings), "wal_shards": wal_shards, "limits": limits}
    return msgspec.convert(values, EngineOptions)


def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT. Raises `TopicsError` or `OSError` when the server cannot start or not go on."""
    configure_logs(settings.log_format)
    tune_allocator()
    uvloop.run(_serve_until_signalled(settings))


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Serves on the running loop until `stop` is set and everything accepted is safe."""
    lifecycle = Lifecycle(SystemClock())
    connections: set[ProbeProtocol] = set()
    listener = await asyncio.get_running_loop().create_server(
        lambda: ProbeProtocol(lifecycle.answer, connections), settings.host, settings.port
    )
    try:
        _announce(listener, settings)
        await _run_engine(settings, lifecycle, stop)
    finally:
        listener.close()
        for connection in tuple(connections):
            connection.close()
        await listener.wait_closed()


async def _serve_until_signalled(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(settings, stop)


async def _run_engine(settings: Settings, lifecycle: Lifecycle, stop: asyncio.Event) -> None:
    recovery = _recover_in_thread(settings, lifecycle.report_progress)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((recovery, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not recovery.done():
        # To abandon a replay is to crash in it, which the next replay must survive anyway; waiting gains nothing.
        recovery.cancel()
        _logger.warning("stopped before the log was replayed")
        return
    engine = recovery.result()
    engine.start(asyncio.get_running_loop())
    lifecycle.phase = "serving"
    _logger.info("ready", extra={"data_dir": settings.data_dir})
    await stopping
    lifecycle.phase = "draining"
    _logger.info("shutting down")
    await engine.close()
    _logger.info("stopped")


def _recover_in_thread(settings: Settings, progress: Callable[[float], None]) -> asyncio.Future[Engine]:
    """Replays the log beside the event loop. The thread is a daemon because an abandoned one must not hold up the exit,
    for which asyncio's own threads would be waited for.
    """
    options = engine_options(settings)
    outcome: concurrent.futures.Future[Engine] = concurrent.futures.Future()

    def recover() -> None:
        outcome.set_running_or_notify_cancel()
        try:
            engine = Engine.recover(
                PosixFileSystem(), options, SystemClock(), SystemDice(), boot_id=boot_id(), progress=progress
            )
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(engine)

    threading.Thread(target=recover, name="topics-recovery", daemon=True).start()
    return asyncio.wrap_future(outcome)


def _announce(listener: asyncio.Server, settings: Settings) -> None:
    host, port = listener.sockets[0].getsockname()[:2]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    _logger.info("listening", extra={"address": address, "version": __version__})
    _logger.warning(
        "AUTHENTICATION IS OFF: whoever reaches this address may read, change and delete everything",
        extra={"address": address},
    )
    if settings.port_file is not None:
        write_whole(settings.port_file, address)


def _unavailable(error: RetryLaterError) -> Answer:
    return error_answer(503, error.code, error.message, error.detail or None)
