"""`make bench-scale`: growth with the stored data: one topic of many records, and many topics of ten.

One server process on a folder that grows from size to size. At each size: the rate it was filled with, single requests,
the memory of the idle server, the room on disk; then it is killed and started, stopped and started, and a checkpoint is
watched that has little to do. `--records` and `--topics` set the sizes, `none` skips a half. A hundred million records
take about 10 GB of the temporary folder (`TMPDIR`), a million topics about 3 GB.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from bench.command import end_with_servers
from bench.load import Usage
from bench.peers import our_version
from bench.report import machine, write_results
from bench.scale_load import RECORDS_A_TOPIC, TAGS, Client, Pings, load_records, load_topics
from bench.scale_report import RecordsRow, ScaleReport, ScaleResults, Start, TopicsRow
from bench.streams_server import StreamsServer

_SEED = 22
_ROUNDS = 500
_CATCH_UP_MAX = 1_000_000
_CHANGED = 100
_SHORT_INTERVAL_MS = 4_000
_CHECKPOINT_TIMEOUT_S = 180
# The defaults of the product, not those of `bench.streams`; a million topics are more than the default limit.
_SETTINGS = {"TOPICS_MAX_TOPICS": "0", "TOPICS_TAIL_MEMORY_BYTES": str(128 * 2**20)}
_TOPIC = "grows"


def name_of(number: int) -> str:
    """The name of a topic by its number. An odd factor scatters the numbers without collisions."""
    return f"room.{number * 2654435761 % 2**32:08x}"


class Growth:
    """Code for both halves: a server on a folder, and the ways to stop and start it."""

    def __init__(self, results: ScaleResults) -> None:
        self.results = results
        self.rng = random.Random(_SEED)
        self._progress = Console(stderr=True)
        self.folder = Path()
        self.server = StreamsServer(self.folder)

    @contextmanager
    def running(self) -> Iterator[None]:
        self.folder = Path(tempfile.mkdtemp(prefix="topics-bench-scale-"))
        self.server = StreamsServer(self.folder, _SETTINGS)
        try:
            self.server.start()
            yield
        finally:
            self.server.end()
            shutil.rmtree(self.folder, ignore_errors=True)

    def note_others(self, before: Usage, seconds: float) -> None:
        """Records the processor use of other processes, in cores, without the loading client."""
        self.results.others.append(max(Usage(self.server.pid).others - before.others, 0.0) / seconds)

    def restart(self, how: str) -> Start:
        log_bytes = self.server.log_bytes()
        stopped_s = self.server.stop() if how == "stopped" else 0.0
        if how == "killed":
            self.server.kill()
        seconds = self.server.start()
        cpu_s = Usage(self.server.pid).server
        return Start(seconds, cpu_s, stopped_s, log_bytes)

    def checkpoint(self, changed: list[str]) -> tuple[float, float]:
        """Measures a checkpoint of few changes: its processor seconds, and the longest wait of a request during it."""
        self.server.stop()
        quick = StreamsServer(self.folder, {**_SETTINGS, "TOPICS_SNAPSHOT_INTERVAL_MS": str(_SHORT_INTERVAL_MS)})
        self.server = quick
        quick.start()
        client = Client(quick.address)
        spent = []
        longest = 0.0
        for _ in range(2):  # The first one after a start may have to write everything.
            quick.rest()
            before, idle = client.metric("topics_checkpoints_total"), quick.cpu_s()
            time.sleep(1.0)
            idle = quick.cpu_s() - idle
            cpu, begun = quick.cpu_s(), time.monotonic()
            with Pings(quick.address) as pings:
                for name in changed:
                    client.ask("POST", f"/v0/topics/{name}", {"records": [{"data": "changed"}]})
                while client.metric("topics_checkpoints_total") == before:
                    if time.monotonic() > begun + _CHECKPOINT_TIMEOUT_S:
                        raise RuntimeError("no checkpoint was taken")
                    time.sleep(0.2)
            spent.append(max(quick.cpu_s() - cpu - idle * (time.monotonic() - begun), 0.0))
            longest = pings.longest_ms
        client.close()
        quick.stop()
        self.server = StreamsServer(self.folder, _SETTINGS)
        self.server.start()
        return spent[-1], longest

    def disk_bytes(self) -> int:
        """Returns the disk usage of the folder in whole blocks, with preallocated space."""
        return sum(path.stat().st_blocks * 512 for path in (self.folder / "topics").rglob("*") if path.is_file())

    def say(self, line: str) -> None:
        self._progress.print(line, highlight=False, markup=False, soft_wrap=True)


class RecordsGrowth(Growth):
    def run(self, sizes: list[int]) -> None:
        with self.running():
            for before, size in zip([0, *sizes], sizes, strict=False):
                self._grow(before, size)

    def _grow(self, before: int, size: int) -> None:
        server = self.server
        cpu, usage = server.cpu_s(), Usage(server.pid)
        seconds = load_records(server.address, _TOPIC, size - before)
        cpu_us = (server.cpu_s() - cpu) * 1e6 / (size - before)
        self.note_others(usage, seconds)
        log_killed = self.restart("killed")
        client = Client(self.server.address)
        self._check(client, size)
        append = client.timed(_ROUNDS, lambda c: c.ask("POST", f"/v0/topics/{_TOPIC}", {"records": [{"data": 1}]}))
        read = client.timed(_ROUNDS, lambda c: c.read(_TOPIC, self.rng.randrange(size - 100), 100))
        caught_up = client.catch_up(_TOPIC, min(size, _CATCH_UP_MAX))
        tag = f"t{len(self.results.records) % TAGS}"
        begun = time.monotonic()
        client.ask("POST", f"/v0/topics/{_TOPIC}/delete", {"match": tag})
        delete_s = time.monotonic() - begun
        client.close()
        stopped = self.restart("stopped")
        self.server.rest()
        memory, disk = self.server.memory(), self.disk_bytes()
        checkpoint_s, longest_ms = self.checkpoint([_TOPIC])
        row = RecordsRow(
            size, (size - before) / seconds, cpu_us, append, read, caught_up, delete_s, checkpoint_s, longest_ms,
            stopped, log_killed, memory, disk / size,
        )  # fmt: skip
        self.results.records.append(row)
        self.say(str(row))

    def _check(self, client: Client, size: int) -> None:
        last = client.read(_TOPIC, size - 1, 10)
        if f'"$seq":{size},'.encode() not in last:
            raise RuntimeError(f"the last of {size} records is not there: {last[:300]!r}")


class TopicsGrowth(Growth):
    def run(self, sizes: list[int]) -> None:
        with self.running():
            for before, size in zip([0, *sizes], sizes, strict=False):
                self._grow(before, size)

    def _grow(self, before: int, size: int) -> None:
        server = self.server
        cpu, usage = server.cpu_s(), Usage(server.pid)
        seconds = load_topics(server.address, map(name_of, range(before, size)))
        cpu_us = (server.cpu_s() - cpu) * 1e6 / (size - before)
        self.note_others(usage, seconds)
        server.rest()
        made = server.memory()
        killed = self.restart("killed")
        client = Client(self.server.address)
        self._check(client, size)
        append = client.timed(
            _ROUNDS, lambda c: c.ask("POST", f"/v0/topics/{self._any(size)}", {"records": [{"data": 1}]})
        )
        read = client.timed(_ROUNDS, lambda c: c.read(self._any(size), 0, 10))
        page = client.timed(_ROUNDS, lambda c: c.ask("GET", f"/v0/topics?limit=100&after={self._place()}"))
        streams = client.timed(_ROUNDS, lambda c: c.ask("GET", f"/v1/streams?limit=100&after={self._place()}"))
        client.close()
        stopped = self.restart("stopped")
        self.server.rest()
        memory, disk = self.server.memory(), self.disk_bytes()
        checkpoint_s, longest_ms = self.checkpoint([self._any(size) for _ in range(_CHANGED)])
        row = TopicsRow(
            size, (size - before) / seconds, cpu_us, append, read, page, streams, checkpoint_s, longest_ms, stopped,
            killed, made, memory, disk / (size * RECORDS_A_TOPIC),
        )  # fmt: skip
        self.results.topics.append(row)
        self.say(str(row))

    def _any(self, size: int) -> str:
        return name_of(self.rng.randrange(size))

    def _place(self) -> str:
        return f"room.{self.rng.randrange(7 << 29):08x}"

    def _check(self, client: Client, size: int) -> None:
        """Checks that exactly the created topics exist, and that a sample of them is complete."""
        if b'"topics"' not in client.ask("GET", "/v0/topics?limit=1") or client.metric("topics_topics") < size:
            raise RuntimeError(f"there are not {size} topics")
        for _ in range(100):
            found = client.read(self._any(size), 0, 100)
            if f'"$seq":{RECORDS_A_TOPIC},'.encode() not in found:
                raise RuntimeError(f"a topic is not whole: {found[:300]!r}")


def _sizes(text: str) -> list[int]:
    return [] if text == "none" else [int(size) for size in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=_sizes, default="1000000,10000000", help="sizes of the one topic")
    parser.add_argument("--topics", type=_sizes, default="10000,100000", help="how many topics")
    parser.add_argument("--write", action="store_true", help="write the report into bench/results/scale.md")
    arguments = parser.parse_args()
    end_with_servers("bench.scale")
    results = ScaleResults()
    if arguments.records:
        RecordsGrowth(results).run(arguments.records)
    if arguments.topics:
        TopicsGrowth(results).run(arguments.topics)
    console = Console(width=None if sys.stdout.isatty() else 240)
    text = ScaleReport(results, console).make(machine({"topics": our_version()}))
    if arguments.write:
        write_results(text, "scale", "Growth")


if __name__ == "__main__":
    main()
