"""Reports: tables, performance targets, reasons for doubt, and the page that they are written to."""

import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.install import ROOT
from bench.load import DISTURBED_CORES, SATURATED, Result, Workload
from bench.peers import BOTH, OURS, OURS_V1, PEERS, Server

RESULTS = ROOT / "bench" / "results"
_LONE_WRITER = "append-1@1"


@dataclass(frozen=True)
class Aim:
    """A performance target: at least `ratio` times a peer, in every workload whose key begins so."""

    workloads: str
    ours: Server
    peer: str
    ratio: float


_DISK, _FSYNC = OURS["disk"], OURS["fsync"]
# Reads do not depend on the class; one table is enough to judge them by.
AIMS = (
    Aim("append-1@16", _DISK, "redis-everysec", 0.5),
    Aim("append-1@16", _DISK, "nats-debian", 0.8),
    Aim("append-1@16", _DISK, "nats", 0.8),
    Aim("append-1@16", _FSYNC, "redis-always", 0.7),
    # Servers are not written to by clients that always send the same number of bytes.
    Aim("append-1v@16", _DISK, "redis-everysec", 0.5),
    Aim("append-1v@16", _DISK, "nats-debian", 0.8),
    Aim("append-1v@16", _DISK, "nats", 0.8),
    Aim("append-1v@16", _FSYNC, "redis-always", 0.7),
    # Pipelined publishing of a client belongs to this row.
    Aim("row-16", _DISK, "nats-debian", 1.0),
    Aim("row-16", _DISK, "nats", 1.0),
    Aim("append-100", _DISK, "redis-everysec", 1.3),
    Aim("append-100", _DISK, "nats-debian", 2.0),
    Aim("append-100", _DISK, "nats", 2.0),
    Aim("append-100", _FSYNC, "redis-always", 1.3),
    Aim("append-100", _FSYNC, "nats-always", 2.0),
    Aim("read", _DISK, "redis-everysec", 1.2),
    Aim("read", _DISK, "nats-debian", 3.0),
    Aim("read", _DISK, "nats", 3.0),
    *(
        Aim(kind, OURS_V1, peer, 5.0)
        for kind in ("schema", "routing", "evlog", "lenses")
        for peer in ("prisma", "prisma-64")
    ),
    *(Aim("", ours, peer.key, 1.0) for peer in PEERS if peer.speaks_http for ours in (_DISK, _FSYNC, OURS_V1)),
)
LONE_WRITER_P50_MS_MAX = 0.15


@dataclass
class Results:
    """Everything that was measured, by server and workload; of several rounds the median counts."""

    workloads: tuple[Workload, ...]
    total: int
    rounds: dict[tuple[str, str], list[Result]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, server: str, workload: str, result: Result) -> None:
        self.rounds.setdefault((server, workload), []).append(result)

    def rate(self, server: str, workload: str) -> float | None:
        return self._median(server, workload, "records_per_s")

    def p50_ms(self, server: str) -> float | None:
        return self._median(server, _LONE_WRITER, "p50_ms")

    def p99_ms(self, server: str) -> float | None:
        return self._median(server, _LONE_WRITER, "p99_ms")

    def ratio(self, ours: str, peer: str, workload: str) -> float | None:
        own, other = self.rate(ours, workload), self.rate(peer, workload)
        return own / other if own is not None and other else None

    def _median(self, server: str, workload: str, name: str) -> float | None:
        found = self.rounds.get((server, workload))
        return statistics.median(getattr(result, name) for result in found) if found else None


class Sheet:
    """Builds the terminal's tables and the page's text side by side."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._markdown: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join(self._markdown)

    def paragraph(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)
        self._markdown += [text, ""]

    def table(self, title: str, head: list[str], rows: Iterable[list[str]]) -> None:
        table = Table(title=title, title_justify="left")
        for place, name in enumerate(head):
            table.add_column(name, justify="left" if place == 0 else "right")
        self._markdown += [f"### {title}", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        for row in rows:
            table.add_row(*row)
            self._markdown.append("| " + " | ".join(row) + " |")
        self._console.print(table)
        self._markdown.append("")

    def doubts(self, generator: dict[str, float], others: Iterable[float]) -> None:
        """Lists reasons to doubt the measurements: a generator without spare processor time, by row, and a machine that
        was not quiet."""
        saturated = [row for row, share in generator.items() if share > SATURATED]
        if saturated:
            self.paragraph(f"The load generator used its core up, and so measured itself, in: {', '.join(saturated)}.")
        else:
            self.paragraph("The load generator was never the bottleneck: it had time left on its core in every row.")
        self.noise(others)

    def noise(self, others: Iterable[float]) -> None:
        """Returns a note if the machine was not quiet."""
        shares = list(others)
        disturbed = sum(share > DISTURBED_CORES for share in shares)
        if disturbed:
            self.paragraph(
                f"**To be doubted:** the machine was not quiet. Other processes used more than {DISTURBED_CORES:.0%} "
                f"of a core in {disturbed} of {len(shares)} measurements, {statistics.median(shares):.0%} in the "
                "median. That slows down whoever waits for a sync most."
            )


class Report(Sheet):
    """The report of the HTTP benchmark."""

    unit = "records/s"
    own_clients: frozenset[str] = frozenset()
    """Servers that are not measured with the load generator."""

    def __init__(self, results: Results, console: Console) -> None:
        super().__init__(console)
        self._results = results

    def make(self, machine: str, method: str) -> str:
        self.paragraph(f"Measured with `make bench-http` on {machine}.")
        self.paragraph(method)
        plain = [workload for workload in self._results.workloads if not workload.kind]
        appends = [workload for workload in plain if not workload.reads]
        for durability in BOTH:
            peers = [peer for peer in PEERS if durability in peer.classes]
            self._ratios(f"Appends, class {durability}", OURS[durability], peers, appends)
        reads = [workload for workload in plain if workload.reads]
        self._ratios("Catch-up reads", OURS["disk"], [peer for peer in PEERS if peer.reads], reads)
        same = [peer for peer in PEERS if peer.speaker.protocol == OURS_V1.speaker.protocol]
        self._ratios("Appends over /v1", OURS_V1, same, appends)
        self._ratios("Catch-up reads over /v1", OURS_V1, [peer for peer in same if peer.reads], reads)
        described = [workload for workload in self._results.workloads if workload.kind]
        knowing = [peer for peer in same if any(self._results.rate(peer.key, one.key) for one in described)]
        self._ratios("Streams that promise something, over /v1", OURS_V1, knowing, described)
        self._lone_writer()
        self._aims()
        self._notes()
        return self.text

    def _ratios(self, title: str, ours: Server, peers: Iterable[Server], workloads: Iterable[Workload]) -> None:
        shown = [peer for peer in peers if self._measured(peer)]
        if not self._measured(ours) or not shown:
            return
        rows = []
        for workload in workloads:
            rate = self._results.rate(ours.key, workload.key)
            row = [workload.title, "-" if rate is None else short(rate)]
            for peer in shown:
                other = self._results.rate(peer.key, workload.key)
                row.append("-" if rate is None or not other else f"{rate / other:.2f} ({short(other)})")
            rows.append(row)
        head = ["workload", f"ours, {self.unit}", *(peer.title for peer in shown)]
        self.table(f"{title}: ours / peer (and the peer's {self.unit})", head, rows)

    def _lone_writer(self) -> None:
        rows = []
        for server in (*OURS.values(), OURS_V1, *PEERS):
            p50, p99 = self._results.p50_ms(server.key), self._results.p99_ms(server.key)
            if p50 is not None and p99 is not None:
                rows.append([server.title, f"{p50:.3f}", f"{p99:.3f}"])
        if rows:
            self.table("A lone writer: one record, one connection, milliseconds", ["server", "p50", "p99"], rows)

    def _aims(self) -> None:
        rows = []
        titles = {server.key: server.title for server in PEERS}
        for aim in AIMS:
            for workload in self._results.workloads:
                ratio = self._results.ratio(aim.ours.key, aim.peer, workload.key)
                if workload.key.startswith(aim.workloads) and ratio is not None:
                    verdict = "met" if ratio >= aim.ratio else "missed"
                    name = f"{workload.title}, {aim.ours.title}, of {titles[aim.peer]}"
                    rows.append([name, f"at least {aim.ratio:.1f}", f"{ratio:.2f}", verdict])
        p50 = self._results.p50_ms(OURS["disk"].key)
        if p50 is not None:
            verdict = "met" if p50 < LONE_WRITER_P50_MS_MAX else "missed"
            aimed = f"under {LONE_WRITER_P50_MS_MAX} ms"
            rows.append(["lone writer, class disk, p50", aimed, f"{p50:.3f} ms", verdict])
        if not rows:
            return
        met = sum(row[-1] == "met" for row in rows)
        missed = [row for row in rows if row[-1] == "missed"]
        self.paragraph(f"Aims: {met} of {len(rows)} met.")
        if missed:
            self.table("Aims missed", ["aim", "wanted", "measured", ""], missed)

    def _notes(self) -> None:
        found = {name: results for name, results in self._results.rounds.items() if results}
        busy = {
            f"{server} {workload}": statistics.median(result.generator_cpu for result in results)
            for (server, workload), results in found.items()
            if server not in self.own_clients
        }
        others = [statistics.median(result.other_cpu for result in results) for results in found.values()]
        self.doubts(busy, others)
        for server, reason in self._results.left_out.items():
            self.paragraph(f"Missing: {server}: {reason}")

    def _measured(self, server: Server) -> bool:
        return any(key == server.key for key, _ in self._results.rounds)


def write_results(text: str, name: str, title: str) -> None:
    """Writes a report to `bench/results`, replacing the last one of its name. docs/benchmarks.md summarizes them."""
    RESULTS.mkdir(exist_ok=True)
    body = re.sub(r"^### ", "## ", text.strip(), flags=re.MULTILINE)
    (RESULTS / f"{name}.md").write_text(f"# {title}\n\n{body}\n")


def machine(versions: dict[str, str]) -> str:
    """The machine and its software, in one sentence."""
    cpu = "an unknown processor"
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        cpu = found[1] if found else cpu
    except OSError:
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    said = [f"{product} {version}" for product, version in versions.items()]
    return (
        f"{os.cpu_count()} cores of {cpu}, {memory:.0f} GiB, Linux {platform.release()}, data on {_file_system()}, "
        f"Python {platform.python_version()} {_build()}, {time.strftime('%Y-%m-%d')}; {', '.join(said)}"
    )


def _build() -> str:
    """How Python was built: distributions enable optimizations that other builds leave out, which matters."""
    return "as the system brings it" if sys.base_prefix == "/usr" else "not the system's own"


def _file_system() -> str:
    found = subprocess.run(
        ["df", "--output=fstype", tempfile.gettempdir()], check=False, capture_output=True, text=True
    ).stdout.split()
    return found[-1] if found else "an unknown file system"


def short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f}M"
    return f"{value / 1e3:.1f}k" if value >= 1e3 else f"{value:.0f}"
