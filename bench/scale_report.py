"""The report of the scale benchmark."""

from dataclasses import dataclass, field

from rich.console import Console

from bench.report import Sheet, short
from bench.scale_load import RECORDS_A_BATCH, RECORDS_A_TOPIC, Times
from bench.streams_server import Memory

START_S_MAX = 5.0
MEMORY_BYTES_MAX = 1.5e9
FLAT_RATIO_MAX = 2.0
_METHOD = f"""\
One server process, defaults but for `TOPICS_MAX_TOPICS=0`, class `disk`. One topic is filled with records of 22 bytes
of JSON in batches of {RECORDS_A_BATCH:,} over four connections; topics with {RECORDS_A_TOPIC} of them are created by
their first append. Single requests are sent one at a time over one connection by a Python client. A start ends when the
server is ready, and all stored records must exist. Memory is the private memory of the idle process (anonymous pages),
in brackets with the pages of mapped files. A checkpoint finds few changes: one record in the topic, or one in each of a
hundred topics; the columns are its processor time and the longest wait of a health request during it. Disk usage
includes log files that are allocated ahead."""


@dataclass(frozen=True)
class Start:
    seconds: float
    cpu_s: float
    stopped_s: float
    log_bytes: int
    """The largest size of the log behind the snapshots."""


@dataclass(frozen=True)
class RecordsRow:
    size: int
    per_s: float
    cpu_us: float
    append: Times
    read: Times
    caught_up_per_s: float
    delete_s: float
    checkpoint_s: float
    longest_ms: float
    stopped: Start
    killed: Start
    memory: Memory
    disk_bytes_each: float


@dataclass(frozen=True)
class TopicsRow:
    size: int
    per_s: float
    cpu_us: float
    append: Times
    read: Times
    page: Times
    streams: Times
    checkpoint_s: float
    longest_ms: float
    stopped: Start
    killed: Start
    made: Memory
    """The memory of the server that made them."""
    memory: Memory
    """That of one that was started with them."""
    disk_bytes_each: float


@dataclass
class ScaleResults:
    records: list[RecordsRow] = field(default_factory=list)
    topics: list[TopicsRow] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    """The processor use of other processes during the filling, in cores."""


class ScaleReport(Sheet):
    def __init__(self, results: ScaleResults, console: Console) -> None:
        super().__init__(console)
        self._results = results

    def make(self, machine: str) -> str:
        self.paragraph(f"Measured with `make bench-scale` on {machine}.")
        self.paragraph(_METHOD)
        if self._results.records:
            self._records()
        if self._results.topics:
            self._topics()
        self._aims()
        self.noise(self._results.others)
        return self.text

    def _records(self) -> None:
        rows = self._results.records
        curves = {
            "filled, records/s": [short(row.per_s) for row in rows],
            "filled, processor a record": [f"{row.cpu_us:.2f} µs" for row in rows],
            "append of one: p50 (p99)": [_times(row.append) for row in rows],
            "100 records anywhere: p50 (p99)": [_times(row.read) for row in rows],
            "catch-up by 1,000, records/s": [short(row.caught_up_per_s) for row in rows],
            "delete by tag": [_seconds(row.delete_s) for row in rows],
            **_upkeep(rows),
            "memory": [_memory(row.memory) for row in rows],
            "on disk, a record": [f"{row.disk_bytes_each:.0f} B" for row in rows],
        }
        self._curves("One topic", "records", [row.size for row in rows], curves)

    def _topics(self) -> None:
        rows = self._results.topics
        curves = {
            "made, topics/s": [short(row.per_s) for row in rows],
            "made, processor a topic": [f"{row.cpu_us:.0f} µs" for row in rows],
            "append of one anywhere: p50 (p99)": [_times(row.append) for row in rows],
            "10 records anywhere: p50 (p99)": [_times(row.read) for row in rows],
            "page of `GET /v0/topics`: p50 (p99)": [_times(row.page) for row in rows],
            "page of `GET /v1/streams`: p50 (p99)": [_times(row.streams) for row in rows],
            **_upkeep(rows),
            "memory of who made them": [_memory(row.made) for row in rows],
            "memory of who was started with them": [_memory(row.memory) for row in rows],
            "on disk, a record": [f"{row.disk_bytes_each:.0f} B" for row in rows],
        }
        self._curves(f"Topics of {RECORDS_A_TOPIC} records", "topics", [row.size for row in rows], curves)

    def _curves(self, title: str, what: str, sizes: list[int], curves: dict[str, list[str]]) -> None:
        head = [what, *(f"{size:,}" for size in sizes)]
        self.table(title, head, [[name, *values] for name, values in curves.items()])

    def _aims(self) -> None:
        rows: list[list[str]] = []
        kinds = (("records", self._results.records), ("topics", self._results.topics))
        for what, sizes in kinds:
            for row in sizes:
                for how, start in (("clean stop", row.stopped), ("kill", row.killed)):
                    aim = f"start after a {how}, {row.size:,} {what}"
                    rows.append(
                        [aim, f"under {START_S_MAX:.0f} s", _seconds(start.seconds), _met(start.seconds < START_S_MAX)]
                    )
        for topics in self._results.topics[-1:]:
            for who, memory in (("made", topics.made), ("started with", topics.memory)):
                held = memory.own_bytes
                rows.append(
                    [
                        f"memory, {topics.size:,} topics {who}",
                        "under 1.5 GB",
                        f"{held / 1e6:,.0f} MB",
                        _met(held < MEMORY_BYTES_MAX),
                    ]
                )
            ratio = topics.streams.p50_ms / self._results.topics[0].streams.p50_ms
            aim = f"page of `GET /v1/streams`: p50 at {topics.size:,} / at {self._results.topics[0].size:,}"
            rows.append([aim, f"under {FLAT_RATIO_MAX:.0f}", f"{ratio:.2f}", _met(ratio < FLAT_RATIO_MAX)])
        self.table("Aims", ["aim", "wanted", "measured", ""], rows)


def _upkeep(rows: list[RecordsRow] | list[TopicsRow]) -> dict[str, list[str]]:
    return {
        "a checkpoint, processor": [_seconds(row.checkpoint_s) for row in rows],
        "a checkpoint, longest wait": [f"{row.longest_ms:.0f} ms" for row in rows],
        "start after a clean stop (of processor)": [_start(row.stopped) for row in rows],
        "the stop itself": [_seconds(row.stopped.stopped_s) for row in rows],
        "start after a kill (of processor; log)": [
            f"{_start(row.killed)}; {row.killed.log_bytes / 1e6:,.0f} MB" for row in rows
        ],
    }


def _times(times: Times) -> str:
    return f"{times.p50_ms:.2f} ({times.p99_ms:.2f}) ms"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _start(start: Start) -> str:
    return f"{_seconds(start.seconds)} ({_seconds(start.cpu_s)})"


def _memory(memory: Memory) -> str:
    return f"{memory.own_bytes / 1e6:,.0f} ({memory.resident_bytes / 1e6:,.0f}) MB"


def _met(met: bool) -> str:
    return "met" if met else "missed"
