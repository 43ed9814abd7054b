"""The report of the Spark benchmark."""

import statistics
from dataclasses import dataclass, field

from rich.console import Console

from bench.report import Sheet
from bench.spark_load import APPENDS_PER_S, Latencies
from bench.spark_many import ManyArchived, ManyDeletes, ManySealed, ManyTopics
from bench.spark_table import FILES_A_COMMIT, TableCost
from bench.spark_versions import VersionCost
from bench.spark_worker import WorkerCost

SOURCE, JSON, PARQUET = "segment source", "spark.read.json", "spark.read.parquet"
SOURCE_TO_JSON_MIN = 1.0
ARCHIVED_PER_S_MIN = 250_000
P99_RATIO_MAX = 2.0
MASKED_RATIO_MAX = 1.3
PLAN_S_MAX = 2.0
SMALL_TOPICS_S_MAX = 60.0
_METHOD = """\
One embedded Spark with the project's own settings, on records of about 200 bytes with a tag, sealed by the engine. A
figure is the median of {tries} tries (of {growth_tries} where time grows and for the connector) after one that is not
counted, so that Spark's start is not measured, and the readers take turns. *All columns* writes every row to a sink
that discards it; *an aggregate* sums the lengths of `data` and takes the largest `seq`. The archive job is a round of
the pipeline on a folder without an archive, with ledger, table and syncs."""
_LATENCY = """\
A writer of its own process appends {rate} records a second, one by one over one connection to a server in class `disk`,
each at its moment, whatever became of the one before; its time runs from that moment. Windows without a job and windows
with one take turns, {windows} of each. A window with a job is the whole life of the pipeline's process, from the start
of Java to the end, as the server starts it. *Waits for a processor* is how long the server's loop and the writer could
have run in a window and could not, as the kernel counts it: a longest append far beyond it has another cause."""


@dataclass
class Reader:
    """Seconds of each try."""

    whole: list[float] = field(default_factory=list)
    summed: list[float] = field(default_factory=list)


@dataclass
class Growth:
    records: int
    read: list[float]
    archived: list[float]


@dataclass
class SparkResults:
    tries: int
    growth_tries: int
    records: int
    sealed_bytes: int = 0
    readers: dict[str, Reader] = field(default_factory=dict)
    growth: list[Growth] = field(default_factory=list)
    connector_records: int = 0
    written: list[float] = field(default_factory=list)
    read_back: list[float] = field(default_factory=list)
    micro_batches_ms: list[float] = field(default_factory=list)
    topics: ManyTopics = field(default_factory=lambda: ManyTopics(0))
    archived: ManyArchived = field(default_factory=lambda: ManyArchived(0))
    sealed: ManySealed = field(default_factory=ManySealed)
    deletes: ManyDeletes = field(default_factory=lambda: ManyDeletes(0, 0))
    deletes_of_many: ManyDeletes = field(default_factory=lambda: ManyDeletes(0, 0))
    table: list[TableCost] = field(default_factory=list)
    versions: list[VersionCost] = field(default_factory=list)
    worker: list[WorkerCost] = field(default_factory=list)
    quiet: list[Latencies] = field(default_factory=list)
    busy: list[Latencies] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    """Cores that other processes used in the second before each part, while the benchmark waited."""


class SparkReport(Sheet):
    def __init__(self, results: SparkResults, console: Console) -> None:
        super().__init__(console)
        self._results = results

    def make(self, machine: str) -> str:
        self.paragraph(f"Measured with `make bench-spark` on {machine}.")
        self.paragraph(_METHOD.format(tries=self._results.tries, growth_tries=self._results.growth_tries))
        self._readers()
        self._growth()
        self._connector()
        self._many()
        self._table()
        self._versions()
        self._worker()
        self._latency()
        self._aims()
        self.noise(self._results.others)
        return self.text

    def _readers(self) -> None:
        found = self._results
        json, parquet = found.readers[JSON], found.readers[PARQUET]
        rows = []
        for name, reader in found.readers.items():
            rows.append([
                name, _rate(found.records, reader.whole),
                f"{found.sealed_bytes / 1e6 / statistics.median(reader.whole):.0f}",
                _ratio(json.whole, reader.whole), _ratio(parquet.whole, reader.whole),
                _rate(found.records, reader.summed),
                _ratio(json.summed, reader.summed), _ratio(parquet.summed, reader.summed),
            ])  # fmt: skip
        head = [
            "reader", "all columns, records/s", "MB/s", "of read.json", "of read.parquet",
            "an aggregate, records/s", "of read.json", "of read.parquet",
        ]  # fmt: skip
        self.table(f"{found.records:,} sealed records, {found.sealed_bytes / 1e6:.0f} MB", head, rows)

    def _growth(self) -> None:
        rows = [
            [
                f"{one.records:,}", f"{statistics.median(one.read):.1f} s", _rate(one.records, one.read),
                f"{statistics.median(one.archived):.1f} s", _rate(one.records, one.archived),
            ]
            for one in self._results.growth
        ]  # fmt: skip
        head = ["records", "read in", "records/s", "archived in", "records/s"]
        self.table("How time grows: the segment source and the archive job", head, rows)

    def _connector(self) -> None:
        found = self._results
        rows = [
            ["write over HTTP, records/s", _rate(found.connector_records, found.written)],
            ["read over HTTP, records/s", _rate(found.connector_records, found.read_back)],
            ["a micro-batch of 100 records, ms", f"{statistics.median(found.micro_batches_ms):.0f}"],
        ]
        self.table("The connector", ["", "median"], rows)

    def _many(self) -> None:
        topics, deletes, archived = self._results.topics, self._results.deletes, self._results.archived
        sealed, spread = self._results.sealed, self._results.deletes_of_many
        rows = [
            [f"a batch over {topics.topics:,} topics planned, s", f"{_number(topics.plan):.2f}"],
            ["its tasks", f"{topics.tasks}"],
            ["the next offsets of a stream over them, s", f"{_number(topics.offsets):.2f}"],
            ["such an offset, bytes", f"{topics.offset_bytes:,}"],
            ["a batch over as many that are sealed planned, mode segments, s", f"{_number(sealed.segments):.2f}"],
            ["the same, mode auto, s", f"{_number(sealed.auto):.2f}"],
            ["its tasks", f"{sealed.tasks}"],
            [f"{archived.topics:,} topics archived, s", f"{_number(archived.archived):.1f}"],
            ["its jobs", f"{archived.jobs}"],
            ["its files", f"{archived.files}"],
            ["a round over them that finds nothing to do, s", f"{_number(archived.idle):.3f}"],
            [f"{deletes.records:,} archived records, the files as they are, s", f"{_number(deletes.plain):.1f}"],
            [f"the same without {deletes.ranges:,} scattered deletes, s", f"{_number(deletes.masked):.1f}"],
            [
                f"{spread.records:,} of {spread.topics:,} topics, the files as they are, s",
                f"{_number(spread.plain):.1f}",
            ],
            [f"the same without {spread.ranges:,} deletes in all of them, s", f"{_number(spread.masked):.1f}"],
        ]
        self.table("Many topics of 50 records each, and many deletes", ["", "median"], rows)

    def _table(self) -> None:
        rows = [
            [f"{one.files:,}", f"{one.first:.2f}", f"{one.opened:.2f}", f"{one.commit_ms:.0f}", f"{one.delete_ms:.0f}"]
            for one in self._results.table
        ]
        head = [
            "files", "made of the ledger, s", "opened, s", f"a commit of {FILES_A_COMMIT} files, ms",
            "five rows of a file deleted, ms",
        ]  # fmt: skip
        self.table("The archive's table: what a commit costs as it grows, syncs included", head, rows)

    def _versions(self) -> None:
        rows = [
            [one.version, f"{one.start:.1f}", f"{one.first:.1f}", f"{one.read:,.0f}"] for one in self._results.versions
        ]
        head = ["Spark", "session and first job, s", "first read, s", "segment source, records/s"]
        self.table(f"Versions of Spark, {self._results.records:,} sealed records", head, rows)

    def _worker(self) -> None:
        rows = [
            [
                one.name, f"{one.start_s:.1f}", f"{one.whole_s:.1f}", f"{one.cpu_s:.1f}", f"{one.java_mb:.0f}",
                f"{one.python_mb:.0f}",
            ]
            for one in self._results.worker
        ]  # fmt: skip
        head = ["Java", "until Spark is there, s", "start to end, s", "CPU, s", "Java, MB", "Python, MB"]
        self.table("The supervised worker: from its start to its end, and its most memory", head, rows)

    def _latency(self) -> None:
        found = self._results
        self.paragraph(_LATENCY.format(rate=APPENDS_PER_S, windows=len(found.quiet)))
        rows = [
            [
                name, f"{_p50(windows):.2f}", f"{_p99(windows):.2f}",
                f"{min(one.p99_ms for one in windows):.2f} to {max(one.p99_ms for one in windows):.2f}",
                f"{max(one.longest_ms for one in windows):.1f}",
                f"{min(one.waited_ms for one in windows):.0f} to {max(one.waited_ms for one in windows):.0f}",
                f"{sum(one.appends for one in windows):,}",
            ]
            for name, windows in (("without a job", found.quiet), ("while an archive job runs", found.busy))
        ]  # fmt: skip
        rows.append(["ratio", *(f"{of(found.busy) / of(found.quiet):.2f}" for of in (_p50, _p99)), "", "", "", ""])
        head = [
            "appends", "p50, ms", "p99, ms", "p99 of the windows", "longest, ms",
            "waits for a processor, ms of a window", "appends",
        ]  # fmt: skip
        self.table("Cost of a job for writers, medians of the windows", head, rows)

    def _aims(self) -> None:
        found = self._results
        source, json = found.readers[SOURCE], found.readers[JSON]
        rows = [
            _at_least(f"{SOURCE} of {JSON}, {name}", _number(theirs) / _number(ours), SOURCE_TO_JSON_MIN, 2)
            for name, ours, theirs in (
                ("all columns", source.whole, json.whole), ("an aggregate", source.summed, json.summed),
            )
        ]  # fmt: skip
        for one in found.growth:
            rate = one.records / _number(one.archived)
            rows.append(_at_least(f"archive of {one.records:,}, records/s", rate, ARCHIVED_PER_S_MIN, 0))
        ratio = _p99(found.busy) / _p99(found.quiet)
        verdict = "met" if ratio <= P99_RATIO_MAX else "missed"
        rows.append(["p99 with a job / p99 without", f"at most {P99_RATIO_MAX:.1f}", f"{ratio:.2f}", verdict])
        for name, value, most in (
            (f"plan over {found.topics.topics:,} topics, s", _number(found.topics.plan), PLAN_S_MAX),
            (f"offsets of {found.topics.topics:,} topics, s", _number(found.topics.offsets), PLAN_S_MAX),
            (
                f"plan over {found.topics.topics:,} sealed topics, mode segments, s",
                _number(found.sealed.segments),
                PLAN_S_MAX,
            ),
            ("the same, mode auto, s", _number(found.sealed.auto), PLAN_S_MAX),
            (f"archive of {found.archived.topics:,} topics, s", _number(found.archived.archived), SMALL_TOPICS_S_MAX),
            (f"read with {found.deletes.ranges:,} deletes / without a look", found.deletes.ratio, MASKED_RATIO_MAX),
        ):
            verdict = "met" if value <= most else "missed"
            rows.append([name, f"at most {most:.1f}", f"{value:.2f}", verdict])
        met = sum(row[-1] == "met" for row in rows)
        self.paragraph(f"Aims: {met} of {len(rows)} met.")
        self.table("Aims", ["aim", "wanted", "measured", ""], rows)


def _at_least(name: str, value: float, requested: float, digits: int) -> list[str]:
    verdict = "met" if value >= requested else "missed"
    return [name, f"at least {requested:,.{digits}f}", f"{value:,.{digits}f}", verdict]


def _number(tries: list[float]) -> float:
    return statistics.median(tries)


def _rate(records: int, tries: list[float]) -> str:
    return f"{records / _number(tries):,.0f}"


def _ratio(theirs: list[float], ours: list[float]) -> str:
    return f"{_number(theirs) / _number(ours):.2f}"


def _p50(windows: list[Latencies]) -> float:
    return statistics.median(one.p50_ms for one in windows)


def _p99(windows: list[Latencies]) -> float:
    return statistics.median(one.p99_ms for one in windows)
