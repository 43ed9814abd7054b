"""`make bench-streams`: the cost of a million streams for their server.

Fills one server with streams of one entry each and stops at every size to weigh it and to ask for pages of
`GET /v1/streams`. Then it is killed, started, stopped and started again on the same folder. With `--write` the report
goes into bench/results/streams.md. `--quick` goes to a tenth of the sizes.
"""

import argparse
import json
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from bench.load import Usage
from bench.peers import our_version
from bench.protocols import PAYLOAD_BYTES, payload
from bench.report import machine, write_results
from bench.streams_report import PAGES, Pages, Size, Start, StreamsReport, StreamsResults
from bench.streams_server import Lister, StreamsServer, put_streams

SIZES = (10_000, 100_000, 1_000_000)
_ROUNDS = 300
_SEED = 6


def name_of(number: int) -> str:
    """The name of a stream by its number. Names are in no order, like random ids: an odd factor scatters the numbers
    without collisions."""
    return f"room/{number * 2654435761 % 2**32:08x}"


class Bench:
    def __init__(self, folder: Path) -> None:
        self._server = StreamsServer(folder)
        self._rng = random.Random(_SEED)
        self._progress = Console(stderr=True)
        self._empty_bytes = 0
        self.results = StreamsResults(rounds=_ROUNDS)

    def run(self, sizes: tuple[int, ...]) -> None:
        try:
            self._server.start()
            self._empty_bytes = self._server.resident_bytes()
            self.results.empty_bytes = self._empty_bytes
            for before, size in zip((0, *sizes), sizes, strict=False):
                self._grow(before, size)
            log_bytes = self._server.log_bytes()
            self._server.kill()
            self._start("killed", sizes[-1], 0.0, log_bytes)
            stopped_s = self._server.stop()
            self._start("stopped", sizes[-1], stopped_s, self._server.log_bytes())
        finally:
            self._server.end()

    def _grow(self, before: int, size: int) -> None:
        seconds = put_streams(self._server.address, map(name_of, range(before, size)), payload(PAYLOAD_BYTES).encode())
        self._server.rest()
        each = self._each(size)
        pages = self._pages(size)
        self.results.sizes.append(Size(size, (size - before) / seconds, each, pages))
        self._say(f"{size:,} streams: {each:,.0f} B each, {(size - before) / seconds:,.0f} created/s, {_told(pages)}")

    def _start(self, how: str, size: int, stopped_s: float, log_bytes: int) -> None:
        seconds = self._server.start()
        cpu_s = Usage(self._server.pid).server
        self._check(size)
        self.results.starts.append(Start(how, size, log_bytes, stopped_s, seconds, cpu_s, self._each(size)))
        each = self._each(size)
        self._say(
            f"{how}: stopped in {stopped_s:.1f} s, ready in {seconds:.1f} s, CPU {cpu_s:.1f} s, {each:,.0f} B each"
        )

    def _check(self, size: int) -> None:
        """Checks that exactly the created streams exist."""
        lister = Lister(self._server.address)
        _, behind = lister.page(f"offset={size - 1}")
        lister.close()
        if len(json.loads(behind)) != 1:
            raise RuntimeError(f"there are not {size} streams: behind all but one are {behind[:200]!r}")

    def _each(self, size: int) -> float:
        return (self._server.resident_bytes() - self._empty_bytes) / size

    def _pages(self, size: int) -> dict[str, Pages]:
        """Each kind of page, from places throughout the list except its end, so that all pages are full."""
        queries: dict[str, Callable[[], str]] = {
            "first": lambda: "limit=100",
            "after": lambda: f"limit=100&after={self._place()}",
            "prefix": lambda: f"limit=100&prefix={self._place()[:-7]}",
            "offset": lambda: f"limit=100&offset={self._rng.randrange(size - 100)}",
            "thousand": lambda: f"limit=1000&after={self._place()}",
        }
        assert queries.keys() == PAGES.keys()
        lister = Lister(self._server.address)
        found = {}
        for kind, query in queries.items():
            before, begun = Usage(self._server.pid), time.monotonic()
            cpu_s = self._server.cpu_s()
            times = [lister.page(query())[0] * 1000 for _ in range(_ROUNDS)]
            cpu_ms = (self._server.cpu_s() - cpu_s) * 1000 / _ROUNDS
            others = Usage(self._server.pid).others - before.others
            quantiles = statistics.quantiles(times, n=100)
            shares = others / (time.monotonic() - begun)
            found[kind] = Pages(cpu_ms, statistics.median(times), quantiles[98], shares)
        lister.close()
        return found

    def _place(self) -> str:
        """A start of a page: like a name, and not among the last eighth of them."""
        return f"room/{self._rng.randrange(7 << 29):08x}"

    def _say(self, line: str) -> None:
        self._progress.print(line, highlight=False, markup=False, soft_wrap=True)


def _told(pages: dict[str, Pages]) -> str:
    return "; ".join(
        f"{PAGES[kind]} {page.cpu_ms:.2f} ms CPU, p50 {page.p50_ms:.2f} ms, p99 {page.p99_ms:.2f} ms"
        for kind, page in pages.items()
    )


def _end(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(f"bench-streams: ended by signal {number}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the streams")
    parser.add_argument("--write", action="store_true", help="write the report into bench/results/streams.md")
    arguments = parser.parse_args()
    sizes = tuple(size // 10 for size in SIZES) if arguments.quick else SIZES
    signal.signal(signal.SIGTERM, _end)
    folder = Path(tempfile.mkdtemp(prefix="topics-bench-streams-"))
    try:
        bench = Bench(folder)
        bench.run(sizes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console = Console(width=None if sys.stdout.isatty() else 200)
    text = StreamsReport(bench.results, console).make(machine({"topics": our_version()}))
    if arguments.write:
        write_results(text, "streams", "A million streams")


if __name__ == "__main__":
    main()
