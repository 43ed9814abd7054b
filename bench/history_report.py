"""The results of the history benchmark, and their form on a page."""

from dataclasses import dataclass, field

from bench.load import DISTURBED_CORES

_AIM_P50_MS, _AIM_P99_MS, _AIM_ROLLUP_MS, _AIM_BUILD_RATE = 10, 50, 5, 60_000


@dataclass
class Build:
    seconds: float
    """Until the worker of the pipeline had nothing left to do, with the start of Spark."""
    start_s: float
    records: int
    rounds: int
    memory_bytes: int
    files: int
    bytes: int

    @property
    def rate(self) -> float:
        """Records a second after Spark has started."""
        return self.records / max(self.seconds - self.start_s, 0.001)


@dataclass
class Question:
    name: str
    cold_ms: float = 0.0
    warm_ms: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Median and p99 by the number of clients."""
    new_ms: tuple[float, float] | None = None
    """Median and p99 of pages that were not requested before."""

    def __str__(self) -> str:
        warm = ", ".join(f"{clients}: p50 {p50:.1f} p99 {p99:.1f}" for clients, (p50, p99) in self.warm_ms.items())
        return f"{self.name}: cold {self.cold_ms:.1f} ms, {warm}"


@dataclass
class Peer:
    """Another library on the same entries: medians in milliseconds by the query, its setup time, and its size."""

    ms: dict[str, float] = field(default_factory=dict)
    build_s: float = 0.0
    bytes: int = 0


@dataclass
class Run:
    load: str
    entries: int
    fill_rate: float = 0.0
    sealed_bytes: int = 0
    build: Build | None = None
    questions: list[Question] = field(default_factory=list)
    memory_mb: dict[str, float] = field(default_factory=dict)
    indexed_s: list[float] = field(default_factory=list)
    peers: dict[str, Peer] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    measured: int = 0
    disturbed: int = 0


def report(runs: list[Run], said: str) -> str:
    lines = [f"Measured with `python -m bench.history` on {said}.", ""]
    for run in runs:
        lines += [*_questions(run), *_costs(run), *run.notes, ""]
    lines += _growth(runs)
    disturbed, measured = sum(run.disturbed for run in runs), sum(run.measured for run in runs)
    if disturbed:
        lines.append(
            f"**To be doubted:** the machine was not quiet. Other processes used more than {DISTURBED_CORES:.0%} of a "
            f"core in {disturbed} of {measured} measurements."
        )
    return "\n".join(lines)


def _questions(run: Run) -> list[str]:
    head = ["question", "cold", "1 client, p50 / p99", "8 clients, p50 / p99", "1 client, new pages", *run.peers]
    lines = [f"### {run.entries:,} {run.load}, milliseconds", "", _row(head), "|---" * len(head) + "|"]
    for question in run.questions:
        times = [*question.warm_ms.values(), question.new_ms]
        warm = ["" if one is None else f"{one[0]:.1f} / {one[1]:.1f}" for one in times]
        beside = [_cell(peer.ms.get(question.name)) for peer in run.peers.values()]
        lines.append(_row([question.name, f"{question.cold_ms:.1f}", *warm, *beside]))
    missed = [
        question.name
        for question in run.questions
        if question.warm_ms[1][0] > (_AIM_ROLLUP_MS if question.name.startswith("rollup") else _AIM_P50_MS)
        or question.warm_ms[1][1] > _AIM_P99_MS
    ]
    reported = f"not met by: {', '.join(missed)}" if missed else "met by all"
    aim = f"p50 under {_AIM_P50_MS} ms and p99 under {_AIM_P99_MS} ms for one client, rollups under {_AIM_ROLLUP_MS} ms"
    new = (
        "What a search finds in files that never change is remembered, so that a question asked again costs less. New "
        "pages are the same questions for 61 pages of 20 to 80 hits, each asked for once."
    )
    return [*lines, "", f"The aim ({aim}) is {reported}. {new}", ""]


def _costs(run: Run) -> list[str]:
    build = run.build
    assert build is not None
    lines = ["| | time | records/s | bytes an entry |", "|---|---|---|---|"]
    lines.append(
        f"| families, by Spark on 2 cores | {build.seconds:.0f} s, {build.start_s:.0f} of them to start Spark | "
        f"{build.rate:,.0f} | {build.bytes / run.entries:.0f} in {build.files} files |"
    )
    for name, peer in run.peers.items():
        lines.append(f"| {name} | {peer.build_s:.0f} s | {run.entries / peer.build_s:,.0f} | {_each(peer, run)} |")
    memory = ", ".join(f"{name} {size:.0f} MB" for name, size in run.memory_mb.items())
    indexed = ", ".join(f"{seconds:.1f}" for seconds in run.indexed_s)
    return [
        *lines,
        "",
        f"Entries take {run.sealed_bytes / run.entries:.0f} bytes each in segments, and came in at "
        f"{run.fill_rate:,.0f} records/s. The worker took {build.memory_bytes / 2**20:,.0f} MB with Spark. Memory "
        f"that is no page of a file, after all questions: {memory}. From a seal to its index, with a checkpoint "
        f"every second and Spark's start in the first one: {indexed} s.",
        "",
    ]


def _growth(runs: list[Run]) -> list[str]:
    """The ratio of the smallest run of a load to the largest."""
    lines: list[str] = []
    for load in dict.fromkeys(run.load for run in runs):
        few, *_, many = sorted((run for run in runs if run.load == load), key=lambda run: run.entries) * 2
        if few is many or few.build is None or many.build is None:
            continue
        times = many.entries / few.entries
        lines += [f"### From {few.entries:,} to {many.entries:,} {load}: {times:.0f} times as many", ""]
        lines += ["| | times |", "|---|---|"]
        lines.append(f"| building, seconds behind Spark's start | {_times(many.build, few.build):.1f} |")
        lines.append(f"| bytes | {many.build.bytes / few.build.bytes:.1f} |")
        lines.append(f"| files | {many.build.files} for {few.build.files} |")
        for name, size in many.memory_mb.items():
            lines.append(f"| memory of {name} | {size / few.memory_mb[name]:.1f} |")
        for one, other in zip(few.questions, many.questions, strict=True):
            lines.append(f"| {one.name}, p50 of 1 client | {other.warm_ms[1][0] / one.warm_ms[1][0]:.1f} |")
        lines.append("")
    return lines


def _times(many: Build, few: Build) -> float:
    return (many.seconds - many.start_s) / max(few.seconds - few.start_s, 0.001)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _each(peer: Peer, run: Run) -> str:
    return f"{peer.bytes / run.entries:.0f}" if peer.bytes else "-"
