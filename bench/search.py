"""`make bench-search`: the cost of searching fresh entries, which no background job has seen.

Fills a stream, asks ten kinds of questions, two aggregations and the routing keys, by one client and by eight, idle and
while 20,000 entries a second are appended; appends while eight clients search; weighs the searching process. Beside it
SQLite with FTS5, DuckDB and tantivy on the same entries, in the benchmark's own process, and Prisma Streams. Every
question has its time, so a run ends in ten minutes. With `--write` the report goes into bench/results/search.md.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from bench.command import end_with_servers
from bench.install import Missing
from bench.load import DISTURBED_CORES, Usage
from bench.peers import favour, our_version, prisma_version
from bench.report import machine, write_results
from bench.search_client import (
    INGEST_RECORDS_S,
    PATH,
    Ask,
    Client,
    Ingest,
    fill,
    p99,
    post,
    searching_clients,
    times_ms,
)
from bench.search_load import DESCRIPTION, KINDS, Kind, encoded
from bench.search_peers import Answers, ask_duckdb, ask_sqlite, ask_tantivy
from bench.search_prisma import WAYS, ask_prisma
from bench.streams_server import StreamsServer

_SIZES = (100_000, 1_000_000)
_ROUNDS = 1000
_QUESTION_S = 1.5
"""Most queries last as long as that: in less, the work of others could not be separated from the kernel's
accounting."""
_INDEX_S = 180
_PEERS_BEGIN_S = 600
"""No peer begins later than this, so that a run ends in twelve minutes on a slow machine, too."""
_PRISMA_ENTRIES_MAX = 100_000
"""The number of records it indexes in the given time."""
_APPENDS = 500
_APPEND_WINDOWS = 15
_MEMORY = {"TOPICS_SEARCH_STREAM_BYTES": str(2**30), "TOPICS_SEARCH_MEMORY_BYTES": str(3 * 2**30)}
"""So that a million entries, and those that arrive during the measurement, are in the index."""
_RANKED = {"q": "w5 OR w7", "rank": "bm25"}
_DECLARED = {"rollup": "load", "from": 0, "to": 2**50, "interval": "1m", "group_by": ["service"]}
_AD_HOC = {
    "group_by": ["region"], "top": 10, "interval": "1h",
    "measures": {"n": {"kind": "count"}, "ms": {"kind": "summary", "field": "duration", "histogram": "log2_v1"}},
}  # fmt: skip


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
    peers: dict[str, Answers] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    first_s: float = 0.0
    memory_mb: float = 0.0
    appends: dict[str, float] = field(default_factory=dict)
    found_ms: tuple[float, float] = (0.0, 0.0)
    ingest_rate: float = 0.0
    disturbed: int = 0
    measured: int = 0


class Bench:
    def __init__(self, folder: Path, size: int) -> None:
        self._server = StreamsServer(folder, _MEMORY)
        self._texts = encoded(size)
        self._progress = Console(stderr=True)
        self.size = Size(size)

    def run(self) -> Size:
        try:
            self._server.start()
            address = self._server.address
            fill(address, DESCRIPTION, self._texts)
            client = Client(address)
            self.size.first_s = self._warm(client)
            questions = self._questions(client)
            for name, ask in questions:
                self._measure(name, ask)
            self.size.memory_mb = _resident_mb(self._searcher())
            self._measure_appends()
            self._measure_ingest(client, questions)
            client.close()
        finally:
            self._server.end()
        return self.size

    def ask_peers(self, end: float) -> None:
        """Peers that are not available, or that would start after the deadline, are left out and listed in the
        report."""
        asked: dict[str, Callable[[], Answers]] = {
            "SQLite FTS5": lambda: ask_sqlite(self._texts),
            "DuckDB": lambda: ask_duckdb(self._texts),
            "tantivy": lambda: ask_tantivy(self._texts),
        }
        if self.size.entries <= _PRISMA_ENTRIES_MAX:
            asked |= {way: partial(self._ask_prisma, way) for way in WAYS}
        for name, ask in asked.items():
            self._progress.print(f"{self.size.entries:,} {name}", highlight=False)
            if time.monotonic() > end:
                self.size.notes.append(f"{name} is not in the table: there was no time left for it.")
                continue
            try:
                self.size.peers[name] = ask()
            except (Missing, ImportError, RuntimeError, OSError) as error:
                self.size.notes.append(f"{name} is not in the table: {str(error)[:200]}.")

    def _ask_prisma(self, way: str) -> Answers:
        found, covered = ask_prisma(self._texts, way)
        self.size.notes.append(f"{way}: coverage of its answers {covered}.")
        return found

    def _warm(self, client: Client) -> float:
        """Queries until everything is indexed; returns the seconds that took."""
        begun = time.monotonic()
        while time.monotonic() - begun < _INDEX_S:
            answer = client.ask("POST", f"{PATH}/_search", b'{"q":"service:svc-1"}', (200, 408))
            coverage = answer.get("coverage", {})
            if coverage.get("complete") and not coverage.get("scanned_segments"):
                return time.monotonic() - begun
        raise RuntimeError("the stream was not indexed in time")

    def _questions(self, client: Client) -> list[tuple[str, Ask]]:
        found: list[tuple[str, Ask]] = []
        for kind in KINDS:
            body = msgspec.json.encode(self._paged(client, kind))
            found.append((kind.name, partial(post, f"{PATH}/_search", body)))
        found.append(("two words, ranked", partial(post, f"{PATH}/_search", msgspec.json.encode(_RANKED))))
        for name, asked in (("aggregation, declared", _DECLARED), ("aggregation, ad hoc", _AD_HOC)):
            found.append((name, partial(post, f"{PATH}/_aggregate", msgspec.json.encode(asked))))
        found.append(("routing keys", lambda asked: asked.ask("GET", f"{PATH}/_routing_keys")))
        return found

    @staticmethod
    def _paged(client: Client, kind: Kind) -> dict[str, Any]:
        body = dict(kind.body)
        for _ in range(9 if kind.is_paged else 0):
            answer = client.ask("POST", f"{PATH}/_search", msgspec.json.encode(body))
            body["search_after"] = answer["next_search_after"]
        return body

    def _measure(self, name: str, ask: Ask) -> None:
        row, address = Row(name), self._server.address
        before, begun = Usage(self._server.pid), time.monotonic()
        searcher = _cpu_s(self._searcher())
        alone = times_ms(address, ask, 1, _ROUNDS, _QUESTION_S)
        row.cells["1 client"] = statistics.median(alone)
        used = Usage(self._server.pid).server - before.server + _cpu_s(self._searcher()) - searcher
        row.cpu_ms = used * 1000 / len(alone)
        row.cells["8 clients"] = statistics.median(times_ms(address, ask, 8, _ROUNDS, _QUESTION_S))
        others = (Usage(self._server.pid).others - before.others) / (time.monotonic() - begun)
        self.size.measured += 1
        self.size.disturbed += others > DISTURBED_CORES
        self.size.rows.append(row)
        cells = ", ".join(f"{way} {value:.1f} ms" for way, value in row.cells.items())
        self._progress.print(f"{self.size.entries:,} {name}: {cells}, CPU {row.cpu_ms:.1f} ms", highlight=False)

    def _measure_ingest(self, client: Client, questions: list[tuple[str, Ask]]) -> None:
        """Measures all queries, and the time from an append to an answer that contains it, during appends."""
        self._progress.print(f"{self.size.entries:,} during ingest", highlight=False)
        with Ingest(self._server.address, self._texts) as ingest:
            for row, (_, ask) in zip(self.size.rows, questions, strict=True):
                times = times_ms(self._server.address, ask, 1, _ROUNDS // 4, _QUESTION_S / 2)
                row.cells["1 client, during ingest"] = statistics.median(times)
            self.size.found_ms = self._append_to_found(client)
            self.size.ingest_rate = ingest.rate

    @staticmethod
    def _append_to_found(client: Client) -> tuple[float, float]:
        """Median and p99, in milliseconds."""
        times = []
        for number in range(100):
            begun = time.perf_counter()
            client.ask("POST", PATH, b'[{"service":"new","requestId":"new-%d"}]' % number)
            answer = post(f"{PATH}/_search", b'{"q":"requestId:new-%d"}' % number, client)
            if len(answer["hits"]) != 1 and not answer["timed_out"]:
                raise RuntimeError("an entry was not found by the first search after its append")
            times.append((time.perf_counter() - begun) * 1000)
        return statistics.median(times), p99(times)

    def _measure_appends(self) -> None:
        """Measures appends with and without searches in turns, so the machine affects both alike."""
        ways = {"alone": 0, "beside 8 clients that search": 8}
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(_APPEND_WINDOWS):
            for way, searching in ways.items():
                found[way].append(self._append_p99(searching))
        self.size.appends = {way: statistics.median(times) for way, times in found.items()}
        said = ", ".join(f"{way} " + " ".join(f"{time:.1f}" for time in times) for way, times in found.items())
        self._progress.print(f"{self.size.entries:,} p99 of appends, ms: {said}", highlight=False)

    def _append_p99(self, searching: int) -> float:
        """The p99 of single appends, in milliseconds, while clients search in another process: threads of one process
        would wait for each other and not for the server."""
        body, address = msgspec.json.encode(KINDS[0].body).decode(), self._server.address
        texts = iter(self._texts * (_APPENDS // len(self._texts) + 1))
        with searching_clients(address, searching, body):
            # Raises the priority of this process: the measured time is the wait that the server causes, without the
            # competition of the clients for its cores, which separate machines would not have.
            favour(os.getpid())
            try:
                return p99(times_ms(address, lambda client: client.ask("POST", PATH, next(texts)), 1, _APPENDS, 10))
            finally:
                favour(os.getpid(), 0)

    def _searcher(self) -> int:
        children = Path(f"/proc/{self._server.pid}/task/{self._server.pid}/children").read_text().split()
        return int(children[0])


def _cpu_s(pid: int) -> float:
    return Usage(pid).server


def _resident_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def report(sizes: list[Size], said: str) -> str:
    """The report as a page has it."""
    lines = [f"Measured with `make bench-search` on {said}.", ""]
    for size in sizes:
        ways, peers = list(size.rows[0].cells), list(size.peers)
        lines += [f"### {size.entries:,} fresh entries, medians in milliseconds", ""]
        head = ["question", *ways, "processor time", *peers]
        lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for row in size.rows:
            cells = [_cell(row.cells[way]) for way in ways]
            beside = [_cell(size.peers[peer].get(row.name)) for peer in peers]
            lines.append(f"| {' | '.join([row.name, *cells, f'{row.cpu_ms:.1f}', *beside])} |")
        appends = ", ".join(f"{way} {value:.1f} ms" for way, value in size.appends.items())
        lines += [
            "",
            f"The first search behind the last append had everything after {size.first_s:.2f} s; the searching process "
            f"then took {size.memory_mb:.0f} MB. The p99 of single appends, the median of {_APPEND_WINDOWS} windows "
            f"each, in turns, by a client that goes before those that search: {appends}. From an append to an answer "
            f"that has it, at {size.ingest_rate:,.0f} records/s of others ({INGEST_RECORDS_S:,} were meant): median "
            f"{size.found_ms[0]:.1f} ms, p99 {size.found_ms[1]:.1f} ms. Libraries are asked in the process and the "
            "servers over HTTP.",
            "",
            *size.notes,
            "",
        ]
    disturbed, measured = sum(size.disturbed for size in sizes), sum(size.measured for size in sizes)
    if disturbed:
        lines.append(
            f"**To be doubted:** the machine was not quiet. Other processes used more than {DISTURBED_CORES:.0%} of a "
            f"core in {disturbed} of {measured} measurements; processor time is what they change least."
        )
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the first size only")
    parser.add_argument("--sizes", type=int, nargs="+", help="numbers of entries")
    parser.add_argument("--no-peers", action="store_true", help="ours alone")
    parser.add_argument("--write", action="store_true", help="write the report into bench/results/search.md")
    arguments = parser.parse_args()
    end_with_servers("bench-search")
    sizes = arguments.sizes or ([_SIZES[0] // 10] if arguments.quick else list(_SIZES))
    results = []
    end = time.monotonic() + _PEERS_BEGIN_S
    for size in sizes:
        folder = Path(tempfile.mkdtemp(prefix="topics-bench-search-"))
        try:
            bench = Bench(folder, size)
            results.append(bench.run())
            if not arguments.no_peers:
                bench.ask_peers(end)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    versions = {"topics": our_version()}
    if any("Prisma Streams" in size.peers for size in results):
        versions["Prisma Streams"] = prisma_version()
    text = report(results, machine(versions))
    sys.stdout.write(text + "\n")
    if arguments.write:
        write_results(text, "search", "Search of fresh entries")


if __name__ == "__main__":
    main()
