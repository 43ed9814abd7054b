"""Connections of the search benchmark, and measurements over them: medians and percentiles within a time."""

import gc
import http.client
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

INGEST_RECORDS_S = 20_000
_INGEST_BATCH = 400
PATH = "/v1/stream/logs"


class Client:
    """One connection. Anything but the expected status ends the benchmark."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=120)
        self.answered = 0.0
        """When the last byte of the last answer was there. The time that a client needs to parse the answer is not
        counted."""

    def ask(self, method: str, path: str, body: bytes = b"", expected: tuple[int, ...] = (200, 201, 204)) -> Any:
        self._connection.request(method, path, body, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read()
        self.answered = time.perf_counter()
        if answer.status not in expected:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]!r}")
        return msgspec.json.decode(text) if text else None

    def close(self) -> None:
        self._connection.close()


Ask = Callable[[Client], Any]


def post(path: str, body: bytes, client: Client) -> Any:
    # An answer in part, because the time was over, is one as well: its time is then that of the budget.
    return client.ask("POST", path, body, (200, 408))


def fill(address: str, description: dict[str, Any], texts: list[bytes], batch: int = 1000) -> None:
    client = Client(address)
    client.ask("PUT", PATH)
    client.ask("POST", f"{PATH}/_schema", msgspec.json.encode(description))
    for begin in range(0, len(texts), batch):
        client.ask("POST", PATH, array(texts[begin : begin + batch]))
    client.close()


def times_ms(address: str, ask: Ask, clients: int, rounds: int, seconds: float) -> list[float]:
    """The latencies of queries sent by several clients side by side: this many, or fewer if the time is over."""
    times: list[float] = []
    end = time.perf_counter() + seconds

    def work() -> None:
        client = Client(address)
        asked = 0
        while asked < max(rounds // clients, 1) and (not asked or time.perf_counter() < end):
            begun = time.perf_counter()
            ask(client)
            times.append((client.answered - begun) * 1000)
            asked += 1
        client.close()

    # The benchmark holds millions of objects, and its collector looking through them is not the server's time.
    gc.disable()
    try:
        together([work] * clients)
    finally:
        gc.enable()
    return times


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98] if len(times) > 1 else times[0]


class Ingest:
    """Appends at a steady rate in a thread while the context is open."""

    def __init__(self, address: str, texts: list[bytes]) -> None:
        self._address = address
        self._texts = texts
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.records = 0
        self.begun = 0.0

    def __enter__(self) -> "Ingest":
        self.begun = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def rate(self) -> float:
        """Records a second so far: the target rate, unless the machine was too slow."""
        return self.records / max(time.monotonic() - self.begun, 0.001)

    def _run(self) -> None:
        client = Client(self._address)
        at, due = 0, time.monotonic()
        while not self._done.is_set():
            due = max(due + _INGEST_BATCH / INGEST_RECORDS_S, time.monotonic() - 1)
            client.ask("POST", PATH, array(self._texts[at : at + _INGEST_BATCH]))
            self.records += _INGEST_BATCH
            at = (at + _INGEST_BATCH) % max(len(self._texts) - _INGEST_BATCH, 1)
            time.sleep(max(due - time.monotonic(), 0))
        client.close()


def array(texts: list[bytes]) -> bytes:
    return b"[" + b",".join(texts) + b"]"


def together(works: list[Callable[[], None]]) -> None:
    failed: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


@contextmanager
def searching_clients(address: str, count: int, body: str) -> Iterator[None]:
    """Clients that repeat the same query, in their own process."""
    if not count:
        yield
        return
    command = [sys.executable, "-m", "bench.search_client", address, str(count), body]
    # A separate session: its processor time is not charged to the process that measures beside it.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        time.sleep(1.0)
        yield
        if process.poll() is not None:
            raise RuntimeError("the clients that search have ended")
    finally:
        process.terminate()
        process.wait(30)


def _search_for_ever(address: str, count: int, body: bytes) -> None:
    def search() -> None:
        client = Client(address)
        while True:
            post(f"{PATH}/_search", body, client)

    for _ in range(count):
        threading.Thread(target=search, daemon=True).start()
    # The parent process ends this one, or closes its input by exiting.
    sys.stdin.read()


if __name__ == "__main__":
    _search_for_ever(sys.argv[1], int(sys.argv[2]), sys.argv[3].encode())
