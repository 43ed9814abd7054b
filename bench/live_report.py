"""The report of the live benchmark."""

from dataclasses import dataclass, field

from rich.console import Console

from bench.load import LiveResult
from bench.report import Sheet, short

_TRANSPORTS = {"sse": "event streams", "ws": "WebSockets"}
_METHOD = """\
One server process on one core, class `disk`; the load generator (`bench/loadgen`, one thread) on another{priority}.
Records of 200 bytes of JSON leave one by one at a fixed rate, whatever the server does meanwhile. A record's time runs
from the moment it was due until a watcher has read it, so waiting in the server's socket counts, and so does the time
in which the generator reads the other watchers. Every watcher must get every record, or the run fails. A frame may
carry several records (coalescing)."""
_ROUTING = """\
The rows with routers append to one source; every destination is watched, through event streams of up to 250 topics
each. Copies are derived from the source's record, whose payload is logged once whatever their number. What is logged
for a destination is which records of the source it got: a small frame for each forward of one or many records. The last
column has the bytes that the log grew by for each appended record, all of that included."""


@dataclass(frozen=True)
class Watching:
    """One topic and its watchers."""

    transport: str
    watchers: int
    # Records a second.
    rate: int
    p99_ms_max: float | None = None

    @property
    def title(self) -> str:
        many = "watcher" if self.watchers == 1 else "watchers"
        return f"{self.watchers:,} {many} on {_TRANSPORTS[self.transport]}, {self.rate:,} records/s"


@dataclass(frozen=True)
class FanOut:
    """One source and many destinations."""

    routers: int
    rate: int

    @property
    def title(self) -> str:
        return f"1 to {self.routers:,}, {self.rate} records/s" if self.routers else f"no router, {self.rate} records/s"


@dataclass
class LiveResults:
    watching: dict[Watching, LiveResult] = field(default_factory=dict)
    routing: dict[FanOut, LiveResult] = field(default_factory=dict)
    log_bytes: dict[FanOut, float] = field(default_factory=dict)
    """Bytes of log for each record appended."""


class LiveReport(Sheet):
    def __init__(self, results: LiveResults, console: Console) -> None:
        super().__init__(console)
        self._results = results

    def make(self, machine: str, priority: str) -> str:
        self.paragraph(f"Measured with `make bench-live` on {machine}.")
        self.paragraph(_METHOD.format(priority=priority))
        self._watching()
        self._routing()
        self._aims()
        measured = {row.title: result for row, result in self._results.watching.items()}
        measured |= {row.title: result for row, result in self._results.routing.items()}
        self.doubts(
            {title: result.generator_cpu for title, result in measured.items()},
            [result.other_cpu for result in measured.values()],
        )
        return self.text

    def _watching(self) -> None:
        rows = [[row.title, *_cells(result)] for row, result in self._results.watching.items()]
        if rows:
            self.table("From a write to those who watch, milliseconds", ["watchers", *_HEAD], rows)

    def _routing(self) -> None:
        found, log_bytes = self._results.routing, self._results.log_bytes
        rows = [[row.title, *_cells(result), f"{log_bytes[row]:,.0f}"] for row, result in found.items()]
        if rows:
            self.paragraph(_ROUTING)
            head = ["fan-out", *_HEAD, "log bytes a record"]
            self.table("From a write through routers to those who watch, milliseconds", head, rows)

    def _aims(self) -> None:
        rows = []
        for row, result in self._results.watching.items():
            if row.p99_ms_max is not None:
                verdict = "met" if result.p99_ms < row.p99_ms_max else "missed"
                rows.append([row.title, f"p99 under {row.p99_ms_max:.0f} ms", f"{result.p99_ms:.2f} ms", verdict])
        if rows:
            self.table("Aims", ["aim", "wanted", "measured", ""], rows)


_HEAD = ["p50", "p99", "deliveries/s", "records a frame", "server CPU"]


def _cells(result: LiveResult) -> list[str]:
    return [
        f"{result.p50_ms:.2f}", f"{result.p99_ms:.2f}", short(result.deliveries_per_s),
        f"{result.records_a_frame:.1f}", f"{result.server_cpu:.0%}",
    ]  # fmt: skip
