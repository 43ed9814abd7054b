"""The load of the Spark benchmark: a folder of sealed records, a server on one, and a writer that measures its
latency."""

import gc
import http.client
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.posix import PosixFileSystem
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics.system.process import boot_id
from topics_client import Client

BATCH = 1000
APPENDS_PER_S = 250
_SLICE_S = 1.0
_PATIENCE_S = 60.0
_NOTE = b"x" * 110


def fill(folder: Path, first: int, to: int) -> None:
    """Records `first` up to `to` of the topic `orders`, about 200 bytes each, sealed by the engine itself."""
    with _engine(folder) as engine:
        for start in range(first, to, BATCH):
            engine.append("orders", Batch(records=_orders(start, min(start + BATCH, to))), _expect_success)


def fill_many(folder: Path, topics: int, each: int) -> None:
    """Creates many topics with the same number of records each, all of them sealed."""
    with _engine(folder) as engine:
        for number in range(topics):
            records = _orders(number * each, (number + 1) * each)
            engine.append(f"many.{number}", Batch(records=records), _expect_success)


@contextmanager
def _engine(folder: Path) -> Iterator[Engine]:
    """An engine that seals all topics at the end."""
    options = EngineOptions(data_dir=str(folder), wal_shards=1)
    engine = Engine.recover(PosixFileSystem(), options, SystemClock(), SystemEntropy(), boot_id=boot_id())
    yield engine
    for topic in list(engine.core.directory.resident.values()):
        engine.core.before_change(topic)
        engine.sealer.cut(topic)
    engine.close_inline()


def _orders(first: int, to: int) -> list[Record]:
    """Records with distinct payloads, built as text because encoding a dict for each would be most of the work."""
    return [
        Record(
            b'{"id":%d,"customer":"customer-%d","total":%d.%02d,"note":"%b"}' % (n, n % 5000, n % 997, n % 83, _NOTE),
            tag=f"t{n % 50}",
        )
        for n in range(first, to)
    ]


def _expect_success(result: object) -> None:
    if isinstance(result, TopicsError):
        raise result


def forget_archive(data: Path) -> None:
    """Resets a folder to the state before its first pipeline run; no pipeline may be running on it."""
    for name in ("archive", "pipeline"):
        shutil.rmtree(data / name, ignore_errors=True)


def sealed_bytes(data: Path) -> int:
    return sum(path.stat().st_size for path in data.rglob("seg-*"))


@dataclass(frozen=True)
class Served:
    url: str
    pid: int


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """A server in its own process, with an archive whose pipeline is left to the benchmark."""
    folder.mkdir(parents=True, exist_ok=True)
    port_file = folder / "port"
    env = {
        "TOPICS_PORT": "0",
        "TOPICS_PORT_FILE": str(port_file),
        "TOPICS_DATA_DIR": str(folder / "data"),
        "TOPICS_ARCHIVE": "1",
        "TOPICS_PIPELINE": "off",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", "from topics.cli import main; main(['serve'])"],
        env={**os.environ, **env},
        stderr=subprocess.DEVNULL,
    )
    try:
        give_up = time.monotonic() + _PATIENCE_S
        while not port_file.exists() or not port_file.read_text():
            if time.monotonic() > give_up or process.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(0.05)
        url = f"http://{port_file.read_text()}"
        with Client(url) as client:
            client.list_topics()
        yield Served(url, process.pid)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def archiving(data: Path, **words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the pipeline's process as a server does, on a folder on which it has not run yet.

    `words` are additional environment variables.
    """
    forget_archive(data)
    env = {"TOPICS_DATA_DIR": str(data), "TOPICS_ARCHIVE": "1", "TOPICS_PIPELINE_IDLE_MS": "0", **words}
    process = subprocess.Popen(
        [sys.executable, "-m", "topics.spark.pipeline"],
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
    if process.returncode:
        raise SystemExit("the archive job failed")


@dataclass(frozen=True)
class Latencies:
    """The latencies of the appends of one window, from the moment each was due."""

    p50_ms: float
    p99_ms: float
    longest_ms: float
    appends: int
    waited_ms: float
    """How long the server's loop and the writer could have run and had no processor, all in all."""

    @classmethod
    def of(cls, seconds: list[float], waited_ms: float) -> "Latencies":
        ordered = sorted(1000 * one for one in seconds)
        p99_ms = ordered[min(int(0.99 * len(ordered)), len(ordered) - 1)]
        return cls(statistics.median(ordered), p99_ms, ordered[-1], len(ordered), waited_ms)


class Writer:
    """Appends a record every few milliseconds, even if the previous one was answered late."""

    def __init__(self, served: Served) -> None:
        self._server = served.pid
        place = urlsplit(served.url)
        assert place.hostname is not None
        self._connection = http.client.HTTPConnection(place.hostname, place.port)
        self._number = 0

    def close(self) -> None:
        self._connection.close()

    def window(self, go_on: Callable[[float], bool]) -> Latencies:
        """Appends while `go_on`, called once a second with the seconds since the beginning, returns true."""
        found: list[float] = []
        gc.collect()
        gc.disable()
        waited_ms = self._waited_ms()
        try:
            begun = time.perf_counter()
            while go_on(time.perf_counter() - begun):
                found += self._slice()
        finally:
            gc.enable()
        return Latencies.of(found, self._waited_ms() - waited_ms)

    def _waited_ms(self) -> float:
        stats = [Path(f"/proc/{process}/task/{process}/schedstat") for process in (self._server, os.getpid())]
        return sum(int(stat.read_text(encoding="ascii").split()[1]) for stat in stats) / 1_000_000

    def _slice(self) -> list[float]:
        found = []
        begun = time.perf_counter()
        for number in range(int(APPENDS_PER_S * _SLICE_S)):
            due = begun + number / APPENDS_PER_S
            wait = due - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            self._append()
            found.append(time.perf_counter() - due)
        return found

    def _append(self) -> None:
        self._number += 1
        body = msgspec.json.encode({"records": [{"data": {"id": self._number, "text": "x" * 180}}]})
        self._connection.request("POST", "/v0/topics/appended", body, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        answer.read()
        if answer.status >= 300:
            raise SystemExit(f"an append was answered with {answer.status}")
