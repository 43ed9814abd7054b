"""The report of the streams benchmark."""

from dataclasses import dataclass, field

from rich.console import Console

from bench.report import Sheet, short

BYTES_A_STREAM_MAX = 4096
FLAT_RATIO_MAX = 2.0
PAGES = {
    "first": "first 100",
    "after": "100 after a name",
    "prefix": "100 with a prefix",
    "offset": "100 by place",
    "thousand": "1000 after a name",
}
_METHOD = """\
One server process with `TOPICS_MAX_TOPICS=0` and `TOPICS_TAIL_MEMORY_BYTES` of 1 GiB, because a million last entries
are more than the default keeps in memory; defaults otherwise (class `fsync`). Streams are created by `PUT` with a first
entry of 200 bytes of JSON, over a few connections with many requests in flight, with unordered names. At each size,
once the server is idle, its resident memory is measured, less that of the empty server ({empty:.0f} MB), and {rounds}
pages of each kind of `GET /v1/streams` are requested, one at a time over one connection, from places throughout the
list. The columns of a page are the processor time of the server, which other processes do not affect, and the latency
at a Python client. Then the server is killed, started on the same folder, stopped cleanly and started again; a start
ends when the server is ready, and every stream must exist."""


@dataclass(frozen=True)
class Pages:
    """The cost of one kind of page for the server, its latency, and the processor use of other processes meanwhile."""

    cpu_ms: float
    p50_ms: float
    p99_ms: float
    other_cpu: float


@dataclass(frozen=True)
class Size:
    streams: int
    created_per_s: float
    bytes_each: float
    pages: dict[str, Pages]


@dataclass(frozen=True)
class Start:
    how: str
    streams: int
    log_bytes: int
    """The size of the log behind the snapshots at the beginning."""
    stopped_s: float
    seconds: float
    cpu_s: float
    bytes_each: float


@dataclass
class StreamsResults:
    empty_bytes: int = 0
    rounds: int = 0
    """Pages of each kind that were asked for."""
    sizes: list[Size] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)


class StreamsReport(Sheet):
    def __init__(self, results: StreamsResults, console: Console) -> None:
        super().__init__(console)
        self._results = results

    def make(self, machine: str) -> str:
        results = self._results
        self.paragraph(f"Measured with `make bench-streams` on {machine}.")
        self.paragraph(_METHOD.format(empty=results.empty_bytes / 1e6, rounds=results.rounds))
        self._memory()
        self._pages()
        self._starts()
        self._aims()
        self.noise([page.other_cpu for size in results.sizes for page in size.pages.values()])
        return self.text

    def _memory(self) -> None:
        rows = [
            [
                f"{size.streams:,}", f"{size.bytes_each * size.streams / 1e6:,.0f} MB", f"{size.bytes_each:,.0f} B",
                short(size.created_per_s),
            ]
            for size in self._results.sizes
        ]  # fmt: skip
        self.table("Idle streams in memory", ["streams", "memory", "each", "created a second"], rows)

    def _pages(self) -> None:
        rows = [[title, *(_page(size.pages[kind]) for size in self._results.sizes)] for kind, title in PAGES.items()]
        head = ["page", *(f"of {size.streams:,}" for size in self._results.sizes)]
        self.table(
            "A page of the list, milliseconds: of the server's processor (p50 and p99 until it is there)", head, rows
        )

    def _starts(self) -> None:
        rows = [
            [
                f"{start.streams:,}, {start.how}", f"{start.log_bytes / 1e6:,.0f} MB", f"{start.seconds:.1f} s",
                f"{start.cpu_s:.1f} s",
                f"{start.bytes_each:,.0f} B", f"{start.stopped_s:.1f} s" if start.stopped_s else "-",
            ]
            for start in self._results.starts
        ]  # fmt: skip
        self.table(
            "Starting again", ["streams", "log", "ready in", "of processor", "each in memory", "stopping took"], rows
        )

    def _aims(self) -> None:
        results = self._results
        rows = []
        small, large = results.sizes[0], results.sizes[-1]
        for kind, title in PAGES.items():
            ratio = large.pages[kind].cpu_ms / small.pages[kind].cpu_ms
            name = f"{title}: time at {large.streams:,} / time at {small.streams:,}"
            rows.append([name, f"under {FLAT_RATIO_MAX:.0f}", f"{ratio:.2f}", _verdict(ratio < FLAT_RATIO_MAX)])
        weighed = [(f"{size.streams:,} created", size.bytes_each) for size in results.sizes]
        weighed += [(f"{start.streams:,} {start.how} and started", start.bytes_each) for start in results.starts]
        for name, each in weighed:
            requested = f"under {BYTES_A_STREAM_MAX:,} B"
            rows.append([f"memory a stream, {name}", requested, f"{each:,.0f} B", _verdict(each < BYTES_A_STREAM_MAX)])
        self.table("Aims", ["aim", "wanted", "measured", ""], rows)


def _page(page: Pages) -> str:
    return f"{page.cpu_ms:.2f} ({page.p50_ms:.2f}, {page.p99_ms:.2f})"


def _verdict(met: bool) -> str:
    return "met" if met else "missed"
