"""`make bench-queue`: jobs through a queue of ours, beside BullMQ and NATS JetStream, on this machine, in this run.

A worker goes round: it claims 8 jobs, acknowledges them and produces 8 more. Prints jobs a second from end to end for
1, 16 and 64 workers and the time of a claim, and how many times a peer's rate ours is. With `--write` the report goes
into bench/results/queue.md. `--quick` measures a second a cell; `--only` takes a part of the servers.
"""

import sys
from collections.abc import Iterator, Sequence

from rich.console import Console

from bench.command import read_command
from bench.install import Missing
from bench.load import Load, Result, Workload
from bench.peers import BOTH, Running, Server, own_cores, running
from bench.queue_peers import OUR_QUEUES, QUEUE_PEERS
from bench.queue_schedules import Measured, add_table, measure
from bench.report import Report, Results, machine, write_results

_JOBS = 8
_LONE = Workload("claim@1", "1 worker, one job at a time", 1, 1)
WORKLOADS = (
    Workload("jobs@1", "1 worker, by 8", 1, _JOBS),
    Workload("jobs@16", "16 workers, by 8", 16, _JOBS),
    Workload("jobs@64", "64 workers, by 8", 64, _JOBS),
    _LONE,
)
SERVERS = (*OUR_QUEUES.values(), *QUEUE_PEERS)
_AIMED_JOBS_PER_S = 20_000
_METHOD = """\
One server at a time, as one process on one core, with the load generator on another core{priority}. Jobs of 200 bytes
of JSON; rates are jobs a second from end to end, {rounds}. A worker is a connection of `bench/loadgen` that repeats two
steps and waits for the answers of each: it claims 8 jobs; it acknowledges the 8 and produces 8 more, in two requests
sent together. Every claim must find its 8 jobs, and every job must be acknowledged. For NATS that is a pull of 8 from a
durable consumer of a work-queue stream, and 8 acknowledgements, which the server confirms, together with 8 messages.
BullMQ is a library and not a protocol, so its own workers do the work (`bench/queue_bullmq.mjs`, in Node): each holds
up to 8 jobs, producers add them by 8 and run ahead, so that a worker waits for its own jobs only. Most of the processor
time is that of the library and not of redis; their shares are listed below. The time of a claim is that of a single
worker with one job at a time (`getNextJob` of BullMQ)."""


class Bench:
    def __init__(self, seconds: float, rounds: int, patience_s: float, *, favoured: bool) -> None:
        self._server_core, load_core = own_cores()
        self._load = Load(load_core, seconds, warm_up_s=1.0, patience_s=patience_s, favoured=favoured)
        self._favoured = favoured
        self._rounds = rounds
        self._progress = Console(stderr=True)
        self.results = Results(WORKLOADS, 0)

    def run(self, servers: Sequence[Server]) -> None:
        available = [server for server in servers if self._installed(server)]
        for _ in range(self._rounds):
            for server in available:
                self._one(server)

    def _installed(self, server: Server) -> bool:
        try:
            self.results.versions[server.product] = server.install()
        except Missing as error:
            self._say(f"{server.title} is left out: {error}")
            self.results.left_out[server.title] = str(error)
            return False
        return True

    def _one(self, server: Server) -> None:
        """Runs all workloads on one server. A peer that fails under load is reported, and the run continues with the
        others."""
        try:
            with running(server, self._server_core, favoured=self._favoured) as target:
                for number, workload in enumerate(WORKLOADS):
                    self._measure(target, f"jobs{number}", workload)
        except (RuntimeError, OSError) as error:
            self._say(f"{server.title}: {error}")
            self.results.left_out[server.title] = f"stopped with: {str(error)[:300]}"

    def _measure(self, target: Running, place: str, workload: Workload) -> None:
        speaker = target.server.speaker
        speaker.make(target.address, place)
        order: dict[str, object] = {
            "connections": workload.connections, "records": workload.records, "name": speaker.target(place),
            "request": speaker.append(place, workload.records),
        }  # fmt: skip
        result = self._load.measure_order(target, order)
        self.results.add(target.server.key, workload.key, result)
        self._say(
            f"{target.server.key:16} {workload.key:8} {result.records_per_s:9,.0f} jobs/s, claim p50 "
            f"{result.p50_ms:.3f} ms, p99 {result.p99_ms:.3f} ms, CPU: server {result.server_cpu:.0%}, "
            f"client {result.generator_cpu:.0%}, others {result.other_cpu:.0%}"
        )

    def _say(self, line: str) -> None:
        self._progress.print(line, highlight=False, markup=False, soft_wrap=True)


class QueueReport(Report):
    unit = "jobs/s"
    schedules: Sequence[Measured] = ()
    own_clients = frozenset(server.key for server in SERVERS if server.client is not None)

    def make(self, machine: str, method: str) -> str:
        self.paragraph(f"Measured with `make bench-queue` on {machine}.")
        self.paragraph(method)
        for durability in BOTH:
            peers = [peer for peer in QUEUE_PEERS if durability in peer.classes]
            self._ratios(f"Jobs, class {durability}", OUR_QUEUES[durability], peers, WORKLOADS[:-1])
        self._claims()
        self._shares()
        self._aimed()
        if self.schedules:
            add_table(self, self.schedules)
        self._notes()
        return "\n".join(self._markdown)

    def _claims(self) -> None:
        rows = [
            [server.title, f"{found.p50_ms:.3f}", f"{found.p99_ms:.3f}"]
            for server, workload, found in self._found()
            if workload is _LONE
        ]
        if rows:
            self.table("A claim by a lone worker, milliseconds", ["server", "p50", "p99"], rows)

    def _shares(self) -> None:
        rows = [
            [f"{server.title}, {workload.title}", f"{found.server_cpu:.0%}", f"{found.generator_cpu:.0%}"]
            for server, workload, found in self._found()
            if workload is not _LONE
        ]
        if rows:
            self.table("Shares of a core", ["row", "server", "client"], rows)

    def _aimed(self) -> None:
        rows = []
        for durability, ours in OUR_QUEUES.items():
            for peer in QUEUE_PEERS:
                if durability in peer.classes and peer.product == "BullMQ":
                    for workload in WORKLOADS[:-1]:
                        ratio = self._results.ratio(ours.key, peer.key, workload.key)
                        if ratio is not None:
                            name = f"{workload.title}, class {durability}, of {peer.title}"
                            rows.append([name, "at least 1.0", f"{ratio:.2f}", "met" if ratio >= 1 else "missed"])
        rate = self._results.rate(OUR_QUEUES["disk"].key, "jobs@16")
        if rate is not None:
            verdict = "met" if rate >= _AIMED_JOBS_PER_S else "missed"
            rows.append(["16 workers, class disk", f"at least {_AIMED_JOBS_PER_S:,}", f"{rate:,.0f}", verdict])
        if rows:
            self.table("Aims", ["aim", "wanted", "measured", ""], rows)

    def _found(self) -> "Iterator[tuple[Server, Workload, Result]]":
        for server in SERVERS:
            for workload in WORKLOADS:
                results = self._results.rounds.get((server.key, workload.key))
                if results:
                    ordered = sorted(results, key=lambda result: result.records_per_s)
                    yield server, workload, ordered[len(ordered) // 2]


def main() -> None:
    arguments, servers = read_command("bench-queue", __doc__, "a second a cell", SERVERS)
    seconds = 1.0 if arguments.quick else 3.0
    bench = Bench(seconds, arguments.rounds, arguments.patience, favoured=arguments.priority)
    bench.run(servers)
    rounds = f"over {seconds:.0f} s" if arguments.rounds == 1 else f"the median of {arguments.rounds} rounds"
    console = Console(width=None if sys.stdout.isatty() else 200)
    report = QueueReport(bench.results, console)
    if not arguments.quick:
        report.schedules = measure()
    text = report.make(
        machine(bench.results.versions),
        _METHOD.format(rounds=rounds, priority=", both with raised priority" if arguments.priority else ""),
    )
    if arguments.write:
        write_results(text, "queue", "Queues beside peers")


if __name__ == "__main__":
    main()
