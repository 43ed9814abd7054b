"""The server of the streams benchmark: one process that is started on the same folder again and again, and its clients.

Unlike the servers of `bench.peers` it is not kept on one core, since what is measured here is memory, the time of
single requests and the time of a start, which uses whatever the machine has.
"""

import asyncio
import http.client
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import uvloop

from bench.peers import launch_topics

# Everybody's creations of a moment share one sync: enough of them on their way make the sync cheap.
_CONNECTIONS = 32
_PUTS_A_WRITE = 64
_SETTINGS = {"TOPICS_MAX_TOPICS": "0", "TOPICS_TAIL_MEMORY_BYTES": str(2**30)}
_START_TIMEOUT_S = 900
_STOP_TIMEOUT_S = 300
_REST_TIMEOUT_S = 180
_QUIET_WINDOWS = 3
_QUIET_WINDOW_S = 1.0
_QUIET_SHARE = 0.1
_POLL_S = 0.02
_REQUEST_TIMEOUT_S = 60
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Memory(NamedTuple):
    """The memory of a process: private memory, and resident memory with the pages of mapped files."""

    own_bytes: int
    resident_bytes: int


class StreamsServer:
    """The server on one folder. `end` leaves no process behind in any case."""

    def __init__(self, folder: Path, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self._folder = folder
        self._settings = {**_SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Starts the server; returns the seconds until it was ready, which is after the whole log was read."""
        launch = launch_topics(self._folder, 0)
        port_file = self._folder / "address"
        port_file.unlink(missing_ok=True)
        begun = time.monotonic()
        with (self._folder / "log").open("ab") as output:
            self._process = subprocess.Popen(
                launch.command,
                env={**os.environ, **launch.env, **self._settings},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        while time.monotonic() - begun < _START_TIMEOUT_S:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended at once: {self._last_words()}")
            if port_file.exists() and (address := port_file.read_text().strip()) and _ready(address):
                self.address = address
                return time.monotonic() - begun
            time.sleep(_POLL_S)
        raise RuntimeError(f"the server was not ready in time: {self._last_words()}")

    def stop(self) -> float:
        """Stops the server cleanly; returns the seconds until it had exited."""
        return self._end_with(signal.SIGTERM)

    def kill(self) -> None:
        self._end_with(signal.SIGKILL)

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_BYTES

    def memory(self) -> Memory:
        _, resident, shared = [
            int(word) * _PAGE_BYTES for word in Path(f"/proc/{self.pid}/statm").read_text().split()[:3]
        ]
        return Memory(resident - shared, resident)

    def rest(self) -> None:
        """Waits until it is idle: creating streams leaves work such as a checkpoint."""
        deadline = time.monotonic() + _REST_TIMEOUT_S
        quiet = 0
        while quiet < _QUIET_WINDOWS and time.monotonic() < deadline:
            before = self.cpu_s()
            time.sleep(_QUIET_WINDOW_S)
            quiet = quiet + 1 if self.cpu_s() - before < _QUIET_SHARE * _QUIET_WINDOW_S else 0

    def cpu_s(self) -> float:
        """Processor time of the current threads in nanosecond resolution; other processes do not count."""
        threads = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

    def log_bytes(self) -> int:
        """Returns an upper bound of the bytes that a start would replay after the snapshots: log files are
        preallocated."""
        return sum(path.stat().st_size for path in (self._folder / "topics" / "wal").rglob("*.wal"))

    def _end_with(self, number: signal.Signals) -> float:
        assert self._process is not None
        begun = time.monotonic()
        self._process.send_signal(number)
        self._process.wait(_STOP_TIMEOUT_S)
        return time.monotonic() - begun

    def _last_words(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-600:]


def _ready(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=_REQUEST_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


class Lister:
    """Asks for pages over one connection, one after the other."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=_REQUEST_TIMEOUT_S)

    def page(self, query: str) -> tuple[float, bytes]:
        """The page, and the seconds that it took."""
        begun = time.perf_counter()
        self._connection.request("GET", f"/v1/streams?{query}")
        answer = self._connection.getresponse()
        body = answer.read()
        seconds = time.perf_counter() - begun
        if answer.status != 200:
            raise RuntimeError(f"{query} was answered {answer.status}: {body[:300]!r}")
        return seconds, body

    def close(self) -> None:
        self._connection.close()


def put_streams(address: str, names: Iterable[str], body: bytes) -> float:
    """Creates streams of one entry over a few connections with many requests in flight; returns the seconds."""
    begun = time.monotonic()
    uvloop.run(_put_all(address, iter(names), body))
    return time.monotonic() - begun


async def _put_all(address: str, names: Iterable[str], body: bytes) -> None:
    host, port = address.rsplit(":", 1)
    tail = b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )
    # One iterator that all connections take from: each is busy until everything is done.
    requests = (b"PUT /v1/stream/%b%b" % (name.encode(), tail) for name in names)

    async def work() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            while mine := [request for _, request in zip(range(_PUTS_A_WRITE), requests, strict=False)]:
                await _put(reader, writer, mine)
        finally:
            writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(_CONNECTIONS):
            group.create_task(work())


async def _put(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: list[bytes]) -> None:
    """Sends requests until each succeeds. Creation is idempotent, so refused requests are repeated."""
    while requests:
        writer.write(b"".join(requests))
        refused = []
        for request in requests:
            head = await reader.readuntil(b"\r\n\r\n")
            status = head[9:12]
            if status not in (b"200", b"201"):
                length = head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
                said = await reader.readexactly(int(length or b"0"))
                if status not in (b"408", b"429", b"503"):
                    raise RuntimeError(f"a creation was answered {head + said!r}")
                refused.append(request)
        requests = refused
        if refused:
            await asyncio.sleep(0.1)
