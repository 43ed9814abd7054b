"""`make bench-search`: what it takes to search fresh entries, which no background job has seen.

Fills a stream, asks ten kinds of questions, an aggregation and the routing keys, by one client and by eight, idle and
while entries are appended; appends while eight clients search; weighs the searching process. Beside it SQLite with
FTS5 on the same entries, in the benchmark's own process. With `--write` the report goes into docs/benchmarks.md.
"""

import argparse
import http.client
import json
import shutil
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from bench.command import end_with_servers
from bench.load import DISTURBED_CORES, Usage
from bench.peers import our_version
from bench.report import machine, write_page
from bench.search_load import DESCRIPTION, KINDS, Kind, encoded
from bench.streams_server import StreamsServer

_SIZES = (100_000, 1_000_000)
_ROUNDS = 40
_BATCH = 1000
_INGEST_RECORDS_S = 20_000
_INGEST_BATCH = 400
_AGGREGATE = {"rollup": "load", "from": 0, "to": 2**50, "interval": "1m", "group_by": ["service"]}
_PATH = "/v1/stream/logs"


@dataclass
class Row:
    """One kind of question: medians in milliseconds by way of asking, and processor time of both processes."""

    name: str
    cells: dict[str, float] = field(default_factory=dict)
    cpu_ms: float = 0.0


@dataclass
class Size:
    entries: int
    rows: list[Row] = field(default_factory=list)
    sqlite: dict[str, float] = field(default_factory=dict)
    first_s: float = 0.0
    memory_mb: float = 0.0
    appends: dict[str, float] = field(default_factory=dict)
    found_ms: tuple[float, float] = (0.0, 0.0)
    disturbed: int = 0
    measured: int = 0


class Client:
    """One connection. Anything but the expected status ends the benchmark."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=120)

    def ask(self, method: str, path: str, body: bytes = b"", expected: tuple[int, ...] = (200, 201, 204)) -> Any:
        self._connection.request(method, path, body, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status not in expected:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]!r}")
        return json.loads(text) if text else None

    def close(self) -> None:
        self._connection.close()


class Bench:
    def __init__(self, folder: Path, size: int) -> None:
        self._server = StreamsServer(folder)
        self._texts = encoded(size)
        self._progress = Console(stderr=True)
        self.size = Size(size)

    def run(self) -> Size:
        try:
            self._server.start()
            client = Client(self._server.address)
            client.ask("PUT", _PATH)
            client.ask("POST", f"{_PATH}/_schema", msgspec.json.encode(DESCRIPTION))
            for begin in range(0, self.size.entries, _BATCH):
                client.ask("POST", _PATH, _array(self._texts[begin : begin + _BATCH]))
            self.size.appends["alone"] = self._append_p99(0)
            self.size.first_s = self._warm(client)
            for name, ask in self._questions(client):
                self._measure(name, ask)
            self.size.memory_mb = _resident_mb(self._searcher())
            self.size.appends["beside 8 clients that search"] = self._append_p99(8)
            self.size.found_ms = self._append_to_found(client)
            client.close()
        finally:
            self._server.end()
        self.size.sqlite = ask_sqlite(self._texts)
        return self.size

    def _warm(self, client: Client) -> float:
        """Asks until everything is indexed; the seconds that took."""
        begun = time.monotonic()
        while True:
            answer = client.ask("POST", f"{_PATH}/_search", b'{"q":"service:svc-1"}', (200, 408))
            if answer.get("coverage", {}).get("complete"):
                return time.monotonic() - begun
            if answer.get("coverage", {}).get("possible_missing_events_upper_bound") and not answer["timed_out"]:
                raise RuntimeError("the stream is larger than what is searched in memory")

    def _questions(self, client: Client) -> list[tuple[str, Callable[[Client], Any]]]:
        found: list[tuple[str, Callable[[Client], Any]]] = []
        for kind in KINDS:
            body = msgspec.json.encode(self._paged(client, kind))
            found.append((kind.name, partial(_post, f"{_PATH}/_search", body)))
        found.append(("aggregation", partial(_post, f"{_PATH}/_aggregate", msgspec.json.encode(_AGGREGATE))))
        found.append(("routing keys", lambda asked: asked.ask("GET", f"{_PATH}/_routing_keys")))
        return found

    @staticmethod
    def _paged(client: Client, kind: Kind) -> dict[str, Any]:
        body = dict(kind.body)
        for _ in range(9 if kind.is_paged else 0):
            answer = client.ask("POST", f"{_PATH}/_search", msgspec.json.encode(body))
            body["search_after"] = answer["next_search_after"]
        return body

    def _measure(self, name: str, ask: Callable[[Client], Any]) -> None:
        row = Row(name)
        before, begun = Usage(self._server.pid), time.monotonic()
        searcher = _cpu_s(self._searcher())
        row.cells["1 client"] = self._median_ms(ask, 1)
        used = Usage(self._server.pid).server - before.server + _cpu_s(self._searcher()) - searcher
        row.cpu_ms = used * 1000 / _ROUNDS
        row.cells["8 clients"] = self._median_ms(ask, 8)
        with Ingest(self._server.address, self._texts):
            row.cells["1 client, during ingest"] = self._median_ms(ask, 1)
        others = (Usage(self._server.pid).others - before.others) / (time.monotonic() - begun)
        self.size.measured += 1
        self.size.disturbed += others > DISTURBED_CORES
        self.size.rows.append(row)
        cells = ", ".join(f"{way} {value:.1f} ms" for way, value in row.cells.items())
        self._progress.print(f"{self.size.entries:,} {name}: {cells}, CPU {row.cpu_ms:.1f} ms", highlight=False)

    def _median_ms(self, ask: Callable[[Client], Any], clients: int) -> float:
        times: list[float] = []

        def work() -> None:
            client = Client(self._server.address)
            for _ in range(_ROUNDS // clients):
                begun = time.perf_counter()
                ask(client)
                times.append((time.perf_counter() - begun) * 1000)
            client.close()

        _together([work] * clients)
        return statistics.median(times)

    def _append_p99(self, searching: int) -> float:
        """The p99 of single appends, in milliseconds, while clients search."""
        times: list[float] = []
        done = threading.Event()
        body = msgspec.json.encode(KINDS[0].body)

        def search() -> None:
            client = Client(self._server.address)
            while not done.is_set():
                _post(f"{_PATH}/_search", body, client)
            client.close()

        def write() -> None:
            client = Client(self._server.address)
            for text in self._texts[:500]:
                begun = time.perf_counter()
                client.ask("POST", _PATH, text)
                times.append((time.perf_counter() - begun) * 1000)
            client.close()
            done.set()

        _together([write, *[search] * searching])
        return statistics.quantiles(times, n=100)[98]

    def _append_to_found(self, client: Client) -> tuple[float, float]:
        """From an append to an answer that has it, while entries come in; median and p99, in milliseconds."""
        times = []
        with Ingest(self._server.address, self._texts):
            for number in range(100):
                begun = time.perf_counter()
                client.ask("POST", _PATH, b'[{"service":"new","requestId":"new-%d"}]' % number)
                answer = _post(f"{_PATH}/_search", b'{"q":"requestId:new-%d"}' % number, client)
                if len(answer["hits"]) != 1 and not answer["timed_out"]:
                    raise RuntimeError("an entry was not found by the first search after its append")
                times.append((time.perf_counter() - begun) * 1000)
        return statistics.median(times), statistics.quantiles(times, n=100)[98]

    def _searcher(self) -> int:
        children = Path(f"/proc/{self._server.pid}/task/{self._server.pid}/children").read_text().split()
        return int(children[0])


class Ingest:
    """Appends at a steady rate, in a thread, for as long as the block is open."""

    def __init__(self, address: str, texts: list[bytes]) -> None:
        self._address = address
        self._texts = texts
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        client = Client(self._address)
        at = 0
        while not self._done.is_set():
            due = time.monotonic() + _INGEST_BATCH / _INGEST_RECORDS_S
            client.ask("POST", _PATH, _array(self._texts[at : at + _INGEST_BATCH]))
            at = (at + _INGEST_BATCH) % (len(self._texts) - _INGEST_BATCH)
            time.sleep(max(due - time.monotonic(), 0))
        client.close()


def ask_sqlite(texts: list[bytes]) -> dict[str, float]:
    """The same questions to SQLite in this process, with an index for each field and FTS5 for the words."""
    base = sqlite3.connect(":memory:")
    base.execute("CREATE TABLE logs (event_time, service, status, duration, request_id, region, message, why, body)")
    base.execute("CREATE VIRTUAL TABLE words USING fts5(message, why, content='logs')")
    names = ("eventTime", "service", "status", "duration", "requestId", "region", "message", "why")
    decoded = ((msgspec.json.decode(text), text) for text in texts)
    rows = ((*(entry[name] for name in names), text.decode()) for entry, text in decoded)
    base.executemany("INSERT INTO logs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    for column in ("event_time", "service", "status", "duration", "request_id", "region"):
        base.execute(f"CREATE INDEX by_{column} ON logs ({column})")
    base.execute("INSERT INTO words (words) VALUES ('rebuild')")
    found = {}
    for kind in KINDS:
        if kind.sql is not None:
            times = []
            for _ in range(_ROUNDS):
                begun = time.perf_counter()
                base.execute(kind.sql).fetchall()
                times.append((time.perf_counter() - begun) * 1000)
            found[kind.name] = statistics.median(times)
    base.close()
    return found


def _post(path: str, body: bytes, client: Client) -> Any:
    # An answer in part, because the time was over, is one as well: its time is then that of the budget.
    return client.ask("POST", path, body, (200, 408))


def _array(texts: list[bytes]) -> bytes:
    return b"[" + b",".join(texts) + b"]"


def _together(works: list[Callable[[], None]]) -> None:
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


def _cpu_s(pid: int) -> float:
    return Usage(pid).server


def _resident_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def report(sizes: list[Size], said: str) -> str:
    """The report as a page has it."""
    lines = [f"Measured with `make bench-search` on {said}.", ""]
    for size in sizes:
        ways = list(size.rows[0].cells)
        lines += [f"### {size.entries:,} fresh entries, medians in milliseconds", ""]
        head = ["question", *ways, "processor time", "SQLite FTS5, in process"]
        lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for row in size.rows:
            cells = [f"{row.cells[way]:.1f}" for way in ways]
            beside = f"{size.sqlite[row.name]:.1f}" if row.name in size.sqlite else "-"
            lines.append(f"| {row.name} | {' | '.join(cells)} | {row.cpu_ms:.1f} | {beside} |")
        appends = ", ".join(f"{way} {value:.1f} ms" for way, value in size.appends.items())
        lines += [
            "",
            f"The first search had everything after {size.first_s:.1f} s; the searching process then took "
            f"{size.memory_mb:.0f} MB. The p99 of single appends: {appends}. From an append to an answer that has it, "
            f"at {_INGEST_RECORDS_S:,} records/s of others: median {size.found_ms[0]:.1f} ms, "
            f"p99 {size.found_ms[1]:.1f} ms.",
            "",
        ]
    disturbed, measured = sum(size.disturbed for size in sizes), sum(size.measured for size in sizes)
    if disturbed:
        lines.append(
            f"**To be doubted:** the machine was not quiet. Other processes used more than {DISTURBED_CORES:.0%} of a "
            f"core in {disturbed} of {measured} measurements; processor time is what they change least."
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the first size only")
    parser.add_argument("--sizes", type=int, nargs="+", help="numbers of entries")
    parser.add_argument("--write", action="store_true", help="write the report into docs/benchmarks.md")
    arguments = parser.parse_args()
    end_with_servers("bench-search")
    sizes = arguments.sizes or ([_SIZES[0] // 10] if arguments.quick else list(_SIZES))
    results = []
    for size in sizes:
        folder = Path(tempfile.mkdtemp(prefix="topics-bench-search-"))
        try:
            results.append(Bench(folder, size).run())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    text = report(results, machine({"topics": our_version()}))
    sys.stdout.write(text + "\n")
    if arguments.write:
        write_page(text, "search", "Searching")


if __name__ == "__main__":
    main()
