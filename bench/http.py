"""`make bench-http`: our server over HTTP beside the servers one would choose instead, on this machine, in this run.

Starts one server after the other, puts the same workloads on each from a load generator on another core, and prints
how many times a peer's rate ours is. With `--write` the report goes into bench/results/http.md.
`--quick` measures a second a cell and reads a tenth of the records; `--only` takes a part of the servers.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from bench.command import read_command
from bench.described import DescribedStreams
from bench.install import Missing
from bench.load import Load, Workload
from bench.peers import OURS, OURS_V1, PEERS, Running, Server, own_cores, running
from bench.report import Report, Results, machine, write_results

WORKLOADS = (
    Workload("append-1@1", "append 1 record, 1 connection", 1, 1),
    Workload("append-1@16", "append 1 record, 16 connections", 16, 1),
    Workload("append-1@64", "append 1 record, 64 connections", 64, 1),
    Workload("append-1v@16", "append 1 record of 100 to 300 bytes, 16 connections", 16, 1, sizes=range(100, 301, 5)),
    Workload("row-16@1", "append 16 single records at once, 1 connection", 1, 1, at_once=16),
    Workload("row-16@16", "append 16 single records at once, 16 connections", 16, 1, at_once=16),
    Workload("row-16ws@1", "the same over a WebSocket, 1 connection", 1, 1, at_once=16, socket=True),
    Workload("row-16ws@16", "the same over a WebSocket, 16 connections", 16, 1, at_once=16, socket=True),
    Workload("append-100@1", "append batches of 100, 1 connection", 1, 100),
    Workload("append-100@16", "append batches of 100, 16 connections", 16, 100),
    Workload("read-1000@1", "catch-up read by 1000, 1 connection", 1, 1000, reads=True),
    Workload("read-1000@4", "catch-up read by 1000, 4 connections", 4, 1000, reads=True),
    *(
        Workload(f"{kind}-{size}@16", f"append {what} {title}, 16 connections", 16, size, kind=kind)
        for kind, title in (
            ("schema", "to a schema of ten members"), ("routing", "with a routing key"), ("evlog", "to evlog"),
        )
        for size, what in ((1, "1 record"), (100, "batches of 100"))
    ),
    Workload("lenses-1000@1", "read by 1000 through two lenses, 1 connection", 1, 1000, reads=True, kind="lenses"),
)  # fmt: skip
DESCRIBED = ("topics-v1", "prisma", "prisma-64")
"""The servers that know streams which promise something about their entries."""
_LENSES_SHARE = 10
"""Reads through lenses go over so much less than the others: their cost depends on the entry, not on the number of
entries."""
SERVERS = (*OURS.values(), OURS_V1, *PEERS)
_METHOD = """\
One server at a time, as one process on one core; the load generator (`bench/loadgen`: one thread, one epoll loop for
all protocols, one request in flight on each connection) on another core{priority}. Loopback, records of 200 bytes of
JSON unless the row names another size, a new topic, stream or key for each row; rates are records a second, of
{rounds}. Reads go over {total:,} records from the beginning to the end, by 1000, again and again, and every pass must
find every record. A batch of 100 is one atomic request for us and one array for the streams servers; for redis it is a
pipeline of 100 XADDs (without MULTI, which would be atomic and slower), for NATS 100 messages sent at once and
acknowledged one by one. Single records at once are requests that are sent together and answered one by one: pipelined
HTTP or messages of a WebSocket for ours, pipelined commands for redis, published messages for NATS. Redis writes an
append-only file and is spared rewriting it; NATS uses file storage, a consumer without acknowledgements for reads, and
`sync_interval: always` in the column of that name. Prisma Streams and the Node server sync before they answer and have
no weaker class, so they are in both tables; the Node server has no page size and answers a read with the whole rest of
the stream. The tables of /v1 compare the same requests of the Durable Streams protocol on all servers, ours with its
defaults, which are class `fsync`. In that protocol the server chooses the size of a read, whatever the row's number.
Rows with schemas, keys, profiles and lenses use streams with the same descriptions in ours and in Prisma Streams."""


class Bench:
    def __init__(self, seconds: float, rounds: int, total: int, patience_s: float, *, favoured: bool) -> None:
        self._server_core, load_core = own_cores()
        self._load = Load(load_core, seconds, warm_up_s=0.5, patience_s=patience_s, favoured=favoured)
        self._favoured = favoured
        self._rounds = rounds
        self._total = total
        self._progress = Console(stderr=True)
        self.results = Results(WORKLOADS, total)

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
                self._appends(target)
                if server.reads:
                    self._reads(target)
                if server.key in DESCRIBED:
                    self._described(target)
        except (RuntimeError, OSError) as error:
            self._say(f"{server.title}: {error}")
            self.results.left_out[server.title] = f"stopped with: {str(error)[:300]}"

    def _appends(self, target: Running) -> None:
        for number, workload in enumerate(one for one in WORKLOADS if not one.reads and not one.kind):
            if workload.at_once and target.server.speaker.at_once("", 1) is None:
                continue
            place = f"append{number}"
            target.server.speaker.make(target.address, place)
            self._measure(target, place, workload, 0)
            target.server.speaker.drop(target.address, place)

    def _reads(self, target: Running) -> None:
        target.server.speaker.make(target.address, "read")
        self._load.fill(target, "read", self._total)
        for workload in WORKLOADS:
            if workload.reads and not workload.kind:
                self._measure(target, "read", workload, self._total)

    def _described(self, target: Running) -> None:
        for workload in WORKLOADS:
            if not workload.kind:
                continue
            speaker = DescribedStreams(workload.kind)
            place = f"described-{workload.key.partition('@')[0]}"
            described = replace(target, server=replace(target.server, speaker=speaker))
            speaker.make(target.address, place)
            total = self._total // _LENSES_SHARE if workload.reads else 0
            if workload.reads:
                self._load.fill(described, place, total)
                speaker.evolve(target.address, place)
            self._measure(described, place, workload, total)
            speaker.drop(target.address, place)

    def _measure(self, target: Running, place: str, workload: Workload, total: int) -> None:
        result = self._load.measure(target, place, workload, total)
        self.results.add(target.server.key, workload.key, result)
        self._say(
            f"{target.server.key:15} {workload.key:14} {result.records_per_s:12,.0f} records/s, "
            f"p50 {result.p50_ms:.3f} ms, p99 {result.p99_ms:.3f} ms, CPU: server {result.server_cpu:.0%}, "
            f"generator {result.generator_cpu:.0%}, others {result.other_cpu:.0%}"
        )

    def _say(self, line: str) -> None:
        self._progress.print(line, highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    arguments, servers = read_command("bench-http", __doc__, "a second a cell, a tenth of the records to read", SERVERS)
    seconds, total = (1.0, 100_000) if arguments.quick else (1.5, 1_000_000)
    bench = Bench(seconds, arguments.rounds, total, arguments.patience, favoured=arguments.priority)
    bench.run(servers)
    rounds = f"{seconds:g} s" if arguments.rounds == 1 else f"{seconds:g} s, the median of {arguments.rounds} rounds"
    console = Console(width=None if sys.stdout.isatty() else 200)
    text = Report(bench.results, console).make(
        machine(bench.results.versions),
        _METHOD.format(
            rounds=rounds, total=total, priority=", both with raised priority" if arguments.priority else ""
        ),
    )
    if arguments.write:
        write_results(text, "http", "HTTP server beside peers")


if __name__ == "__main__":
    main()
