"""`make bench-search`, second half: the cost of searching history, which Spark has indexed.

Fills a stream with flights, or with webhook payloads, stops the server and lets a worker of the pipeline build what
there is to build; then asks ten kinds of questions, aggregations and one routing key among all, the first time after
a start with nothing in the page cache, and warm by one client and by eight. Then the server runs its pipeline
itself, and the time from a seal until it is indexed is taken. With `--peers` the same is asked of others in the
benchmark's own process, with `--prisma` of Prisma Streams, which takes ten minutes for a million entries.

    python -m bench.history --sizes 1000000 10000000 --texts 100000 --peers 1000000 --write
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from rich.console import Console

from bench.command import end_with_servers
from bench.history_load import LOADS, Load
from bench.history_peers import ask_peers
from bench.history_report import Build, Question, Run, report
from bench.load import DISTURBED_CORES, Usage
from bench.peers import our_version
from bench.report import machine, write_results
from bench.search_client import PATH, Ask, Client, array, p99, post, times_ms
from bench.streams_server import StreamsServer
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.spark.pipeline.status import load_status

_BATCH = 1000
_ROUNDS = 200
_QUESTION_S = 2.0
_BUILD_S = 1500
_INDEXED_S = 120
_SEALED = {"TOPICS_SNAPSHOT_INTERVAL_MS": "1000"}
_QUIET = {**_SEALED, "TOPICS_PIPELINE": "off"}
_SPARK = {"TOPICS_SPARK_MASTER": "local[2]", "TOPICS_SPARK_MEMORY": "1g"}
_ALONE = {"TOPICS_PIPELINE_PRIORITY": "normal", "TOPICS_PIPELINE_IDLE_MS": "1"}
"""For a worker without a server: both cores are its own, of which it would leave one to the server."""
_SEAL_ENTRIES = 10_000
_NEW_SIZES = [20 + number * 23 % 61 for number in range(61)]
"""All from 20 to 80, in no order, 50 on average as pages have."""


class Bench:
    def __init__(self, folder: Path, load: Load, entries: int) -> None:
        self._folder = folder
        self._data = folder / "topics"
        self._load = load
        self._progress = Console(stderr=True)
        self.run_ = Run(load.name, entries)

    def run(self) -> Run:
        server = StreamsServer(self._folder, _QUIET)
        try:
            server.start()
            self._fill(server)
            server.stop()
            self.run_.sealed_bytes = _bytes_below(self._data, "seg-*")
            self.run_.build = self._build()
            self._say(f"built {self.run_.build}")
            forget_pages(self._data)
            server.start()
            self._ask(server)
            server.stop()
            self.run_.indexed_s = self._seal_to_indexed()
        finally:
            server.end()
        return self.run_

    def _say(self, text: str) -> None:
        self._progress.print(f"{self._load.name} {self.run_.entries:,}: {text}", highlight=False)

    def _fill(self, server: StreamsServer) -> None:
        client, texts = Client(server.address), self._load.texts(self.run_.entries)
        client.ask("PUT", PATH)
        client.ask("POST", f"{PATH}/_schema", msgspec.json.encode(self._load.description))
        begun = time.monotonic()
        for batch in batches(texts):
            client.ask("POST", PATH, array(batch))
        client.close()
        self.run_.fill_rate = self.run_.entries / (time.monotonic() - begun)
        self._say(f"filled, {self.run_.fill_rate:,.0f} records/s")

    def _build(self) -> Build:
        """Runs a pipeline worker until it has nothing left to do."""
        command = [sys.executable, "-m", "topics.spark.pipeline"]
        env = {**os.environ, **_SPARK, **_ALONE, "TOPICS_DATA_DIR": str(self._data)}
        begun = time.monotonic()
        with (
            (self._folder / "worker.log").open("ab") as log,
            subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=log, stderr=log) as worker,
        ):
            try:
                code = worker.wait(_BUILD_S)
            finally:
                worker.kill()
        if code:
            raise RuntimeError(f"the worker failed: {(self._folder / 'worker.log').read_text()[-2000:]}")
        took = time.monotonic() - begun
        status = load_status(PosixFileSystem(), Layout(str(self._data)))
        started = status.worker.start_ms / 1000 if status.worker is not None else 0.0
        memory = status.worker.memory_bytes if status.worker is not None else 0
        # The files that count; merged files that are kept for older readers are left out.
        manifests = [json.loads(path.read_text()) for path in (self._data / "families").rglob("manifest.json")]
        files = [file for manifest in manifests for file in manifest["files"]]
        named = sum(file["bytes"] for file in files)
        return Build(took, started, status.records, status.rounds, memory, len(files), named)

    # Asking

    def _ask(self, server: StreamsServer) -> None:
        client = Client(server.address)
        for name, ask in self._questions():
            question = Question(name)
            begun = time.perf_counter()
            ask(client)
            question.cold_ms = (client.answered - begun) * 1000
            self.run_.questions.append(question)
        client.close()
        for question, (_, ask) in zip(self.run_.questions, self._questions(Client(server.address)), strict=True):
            self._measure(server, question, ask)
        for question, kind in zip(self.run_.questions, self._load.kinds, strict=False):
            question.new_ms = self._new_pages(server, kind.body)
            self._say(f"{question.name}, new pages: p50 {question.new_ms[0]:.1f} p99 {question.new_ms[1]:.1f}")
        self.run_.memory_mb = {
            "the server": _own_mb(server.pid),
            "the searching process": _own_mb(_searcher(server.pid)),
        }

    def _questions(self, client: Client | None = None) -> list[tuple[str, Ask]]:
        """The queries. With a client, queries for later pages use the cursors of earlier answers."""
        found: list[tuple[str, Ask]] = []
        for kind in self._load.kinds:
            body: dict[str, Any] = dict(kind.body)
            for _ in range(9 if kind.is_paged and client is not None else 0):
                assert client is not None
                body["search_after"] = post(f"{PATH}/_search", msgspec.json.encode(body), client)["next_search_after"]
            found.append((kind.name, partial(_answered, f"{PATH}/_search", msgspec.json.encode(body))))
        for name, asked in self._load.aggregates.items():
            ask = _answered if "rollup" in asked else _answered_in_part
            found.append((name, partial(ask, f"{PATH}/_aggregate", msgspec.json.encode(asked))))
        found.append(("routing keys, a page", lambda asked: asked.ask("GET", f"{PATH}/_routing_keys")))
        key = quote(self._load.key_of(self.run_.entries // 3))
        found.append(("one key among all", partial(_read_key, key)))
        return found

    def _measure(self, server: StreamsServer, question: Question, ask: Ask) -> None:
        before, begun = Usage(server.pid), time.monotonic()
        for clients in (1, 8):
            times = times_ms(server.address, ask, clients, _ROUNDS, _QUESTION_S)
            question.warm_ms[clients] = (statistics.median(times), p99(times))
        others = (Usage(server.pid).others - before.others) / (time.monotonic() - begun)
        self.run_.measured += 1
        self.run_.disturbed += others > DISTURBED_CORES
        self._say(str(question))

    def _new_pages(self, server: StreamsServer, body: Mapping[str, Any]) -> tuple[float, float]:
        bodies = iter([msgspec.json.encode({**body, "size": size}) for size in _NEW_SIZES])
        ask = partial(_asked_next, bodies)
        times = times_ms(server.address, ask, 1, len(_NEW_SIZES), _QUESTION_S)
        return statistics.median(times), p99(times)

    # From a seal to an index

    def _seal_to_indexed(self) -> list[float]:
        """Seconds from the last append of a segment until it is indexed, with and without the start of Spark."""
        settings = {**_SEALED, **_SPARK, "TOPICS_PIPELINE": "auto"}
        server = StreamsServer(self._folder, settings)
        took = []
        try:
            server.start()
            client = Client(server.address)
            for _ in range(3):
                before = _indexed(client)
                for batch in batches(self._load.texts(_SEAL_ENTRIES + _BATCH)):
                    client.ask("POST", PATH, array(batch))
                took.append(_wait_indexed(client, before))
                self._say(f"indexed {took[-1]:.1f} s after its seal")
            client.close()
        finally:
            server.end()
        return took


def _answered_in_part(path: str, body: bytes, client: Client) -> Any:
    """Whether the query was cut off at its time limit, as happens with many entries and eight clients; its time is then
    the limit."""
    return post(path, body, client)


def _asked_next(bodies: Iterator[bytes], client: Client) -> Any:
    return _answered(f"{PATH}/_search", next(bodies), client)


def _answered(path: str, body: bytes, client: Client) -> Any:
    answer = post(path, body, client)
    if not answer["coverage"]["complete"]:
        raise RuntimeError(f"an answer in part: {body!r}: {answer['coverage']}")
    return answer


def _read_key(key: str, client: Client) -> None:
    """One read of a routing key from the beginning."""
    found = client.ask("GET", f"{PATH}?offset=-1&key={key}")
    if len(found) != 1:
        raise RuntimeError(f"one key has {len(found)} entries")


def _indexed(client: Client) -> int:
    return int(client.ask("GET", f"{PATH}/_index_status")["search_families"][0]["contiguous_covered_segment_count"])


def _wait_indexed(client: Client, before: int) -> float:
    begun = time.monotonic()
    while time.monotonic() - begun < _INDEXED_S:
        if _indexed(client) > before:
            return time.monotonic() - begun
        time.sleep(0.05)
    raise RuntimeError("a segment was not indexed in time")


def batches(texts: Iterator[bytes]) -> Iterator[list[bytes]]:
    while batch := list(islice(texts, _BATCH)):
        yield batch


def _bytes_below(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.rglob(pattern))


def forget_pages(folder: Path) -> None:
    """Drops the kernel's cached pages of a folder, so that the first query reads from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _searcher(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _own_mb(pid: int) -> float:
    """The memory of a process without file-backed pages, which the kernel reclaims when it needs them."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000_000, 10_000_000], help="numbers of flights")
    parser.add_argument("--texts", type=int, nargs="*", default=[100_000], help="numbers of webhook payloads")
    parser.add_argument("--peers", type=int, default=1_000_000, help="ask peers of no more entries than this")
    parser.add_argument("--prisma", action="store_true", help="ask Prisma Streams, too")
    parser.add_argument("--write", action="store_true", help="write the report into bench/results/history.md")
    arguments = parser.parse_args()
    end_with_servers("bench-history")
    requested = [("flights", size) for size in arguments.sizes] + [("webhooks", size) for size in arguments.texts]
    runs = []
    for name, size in requested:
        folder = Path(tempfile.mkdtemp(prefix="topics-bench-history-"))
        try:
            run = Bench(folder, LOADS[name], size).run()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if size <= arguments.peers:
            run.peers, notes = ask_peers(LOADS[name], size, arguments.prisma)
            run.notes += notes
        runs.append(run)
    text = report(runs, machine({"topics": our_version()}))
    sys.stdout.write(text + "\n")
    if arguments.write:
        write_results(text, "history", "Search of history")


if __name__ == "__main__":
    main()
