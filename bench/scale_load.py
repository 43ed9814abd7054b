"""Requests of the scale benchmark: batches of records, batches of topics, and single timed requests.

Loading must not become what is measured: requests are prepared bytes, several connections have some in flight, and of
an answer only the status is read.
"""

import asyncio
import http.client
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import uvloop

RECORDS_A_BATCH = 5_000
RECORDS_A_TOPIC = 10
TAGS = 16
_LOADING_CONNECTIONS = 4
_CREATING_CONNECTIONS = 16
_PIPELINED = 32
_TIMEOUT_S = 120
_PING_S = 0.005
_HEAD = (
    b"POST /v0/topics/%b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
)


def load_records(address: str, topic: str, count: int) -> float:
    """Appends small records to one topic; returns the seconds. The first record of each batch has one of the tags."""
    requests = [_append(topic, RECORDS_A_BATCH, f"t{tag}") for tag in range(TAGS)]
    batches = (requests[number % TAGS] for number in range(count // RECORDS_A_BATCH))
    return _send_all(address, batches, _LOADING_CONNECTIONS, 1)


def load_topics(address: str, names: Iterable[str]) -> float:
    """Creates topics of ten records each; returns the seconds."""
    requests = (_append(name, RECORDS_A_TOPIC) for name in names)
    return _send_all(address, requests, _CREATING_CONNECTIONS, _PIPELINED)


def _append(topic: str, records: int, tag: str = "") -> bytes:
    # 22 bytes of JSON a record.
    parts = ['{"data":"%020d"}' % number for number in range(records)]  # noqa: UP031 - many, and quick
    if tag:
        parts[0] = f'{{"data":"{0:020d}","tag":"{tag}"}}'
    body = ('{"records":[' + ",".join(parts) + "]}").encode()
    return _HEAD % (topic.encode(), len(body), body)


def _send_all(address: str, requests: Iterator[bytes], connections: int, pipelined: int) -> float:
    begun = time.monotonic()
    uvloop.run(_send(address, requests, connections, pipelined))
    return time.monotonic() - begun


async def _send(address: str, requests: Iterator[bytes], connections: int, pipelined: int) -> None:
    host, port = address.rsplit(":", 1)

    async def work() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            while mine := [request for _, request in zip(range(pipelined), requests, strict=False)]:
                await _until_taken(reader, writer, mine)
        finally:
            writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(work())


async def _until_taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: list[bytes]) -> None:
    """Sends refused records again: a server under pressure refuses requests."""
    while requests:
        writer.write(b"".join(requests))
        refused = []
        for request in requests:
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
            said = await reader.readexactly(int(length or b"0"))
            if head[9:12] in (b"408", b"429", b"503"):
                refused.append(request)
            elif head[9:10] != b"2":
                raise RuntimeError(f"an append was answered {head + said!r}")
        requests = refused
        if refused:
            await asyncio.sleep(0.05)


@dataclass(frozen=True)
class Times:
    """The latencies of single requests."""

    p50_ms: float
    p99_ms: float


class Client:
    """One connection, one request at a time."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        headers = {"content-type": "application/json"} if body is not None else {}
        self._connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = self._connection.getresponse()
        said = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path} was answered {answer.status}: {said[:300]!r}")
        return said

    def timed(self, rounds: int, ask: Callable[["Client"], object]) -> Times:
        times = []
        for _ in range(rounds):
            begun = time.perf_counter()
            ask(self)
            times.append((time.perf_counter() - begun) * 1000)
        return Times(statistics.median(times), statistics.quantiles(times, n=100)[98])

    def read(self, topic: str, from_seq: int, limit: int) -> bytes:
        return self.ask("POST", f"/v0/topics/{topic}/diff", {"from_seq": from_seq, "limit": limit})

    def catch_up(self, topic: str, count: int) -> float:
        """Reads the first records of a topic, a thousand at a time; returns records a second."""
        begun = time.monotonic()
        for seq in range(0, count, 1000):
            self.read(topic, seq, 1000)
        return count / (time.monotonic() - begun)

    def metric(self, name: str) -> float:
        for line in self.ask("GET", "/v0/metrics").decode().splitlines():
            if line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
        raise RuntimeError(f"there is no metric {name}")

    def close(self) -> None:
        self._connection.close()


class Pings:
    """Sends a small request again and again, to measure the waiting time for the event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self.longest_ms = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Pings":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_TIMEOUT_S)

    def _run(self) -> None:
        client = Client(self._address)
        client.ask("GET", "/v0/health")
        while not self._stop.wait(_PING_S):
            begun = time.perf_counter()
            client.ask("GET", "/v0/health")
            self.longest_ms = max(self.longest_ms, (time.perf_counter() - begun) * 1000)
        client.close()
