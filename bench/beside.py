"""`python -m bench.beside`: our server and its alternatives, all running at once and measured in turns.

`make bench-http` measures one server after the other; on a machine whose speed changes from minute to minute, a ratio
of two of its rates depends on the minutes as much as on the servers. Here the load generator is connected to all of
them and turns from one to the next every tenth of a second, and a server is held while it is not its turn. Each round
states how many times the other's rate ours is; printed is the median, and the interval that holds it in nineteen cases
of twenty. With `--write` the report goes into bench/results/beside.md.
"""

import argparse
import contextlib
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version

from rich.console import Console

from bench.command import end_with_servers
from bench.install import ROOT, Missing
from bench.load import Load, Turns, Workload, order_for
from bench.peers import OURS, OURS_V1, PEERS, Launch, Running, Server, own_cores, running
from bench.queue_peers import OUR_QUEUES, QUEUE_PEERS
from bench.ratios import Ratio
from bench.report import Sheet, machine, short, write_results

FLOOR = Server(
    "floor", "a loop that only answers", ("disk",), OURS["disk"].speaker, product="uvloop",
    install=lambda: version("uvloop"),
    launch=lambda data, port: Launch([sys.executable, "-m", "bench.floor", str(port)], cwd=ROOT),
)  # fmt: skip
_PEERS = {peer.key: peer for peer in (*PEERS, FLOOR)}
_QUEUES = {peer.key: peer for peer in QUEUE_PEERS}
_METHOD = """\
All servers of a row run at once, each as one process on one core; the load generator is on another. It turns from one
to the next every {seconds:g} s, {turns} times, and a server is held (`SIGSTOP`) while it is not its turn, so that
deferred work costs its own time. The order is reversed in each round. A ratio is the median of the ratios of all
rounds, with its 95 percent interval in brackets; no distribution is assumed. Records are 200 bytes of JSON; the
workloads are those of `make bench-http` and `make bench-queue`. A loop that only answers (`bench.floor`) is the lower
bound for Python: it reads requests and sends the same bytes each time."""


@dataclass(frozen=True)
class Side:
    """A server, and the requests to it."""

    server: Server
    workload: Workload
    title: str
    # The target ratio of our rate to its rate; 0 where the ratio is only reported.
    aim: float = 0.0


@dataclass(frozen=True)
class Row:
    title: str
    ours: Side
    others: tuple[Side, ...]


@dataclass
class Found:
    rows: list[tuple[Row, list[Turns]]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def _row(title: str, workload: Workload, server: Server, **aims: float) -> Row:
    """A row of the report. All servers get the same requests; a peer's key has an underscore for each hyphen."""
    keys = {key.replace("_", "-"): aim for key, aim in aims.items()}
    others = tuple(Side(_PEERS[key], workload, _PEERS[key].title, aim) for key, aim in keys.items())
    return Row(title, Side(server, workload, server.title), others)


def _singles(connections: int, *, keyed: bool = False) -> Workload:
    return Workload("", "", connections, 1, keyed=keyed)


def _at_once(connections: int, *, socket: bool = False) -> Workload:
    return Workload("", "", connections, 1, at_once=16, socket=socket)


def _jobs(workers: int, durability: str, peer: str) -> Row:
    jobs = Workload("", "", workers, 8)
    other = Side(_QUEUES[peer], jobs, _QUEUES[peer].title, 1.0)
    return Row(f"queue, {workers} workers by 8", Side(OUR_QUEUES[durability], jobs, f"class {durability}"), (other,))


def _protocols(connections: int) -> Row:
    of_topics = Side(OURS["fsync"], _singles(connections), "/v0, class fsync", 0.95)
    return Row(
        f"/v1 append, {connections} connections", Side(OURS_V1, _singles(connections), "topics, /v1"), (of_topics,)
    )


DISK, FSYNC = OURS["disk"], OURS["fsync"]
_IN_SOCKETS = "16 records in flight over a WebSocket"
ROWS = (
    _row("lone writer, class disk", _singles(1), DISK, redis_everysec=0.9, nats_debian=1.0, nats=1.0, floor=0.0),
    _row("lone writer, class fsync", _singles(1), FSYNC, redis_always=0.95, nats_always=1.0),
    Row(
        "one record with a key, 16 connections",
        Side(DISK, _singles(16, keyed=True), "with a key"),
        (Side(DISK, _singles(16), "without", 0.9),),
    ),
    _row("one record, 16 connections", _singles(16), DISK, redis_everysec=0.7, nats_debian=1.1, nats=1.1, floor=0.0),
    _row("one record, 64 connections", _singles(64), DISK, redis_everysec=0.0, nats_debian=0.0, nats=0.0),
    _row("16 records in flight, 1 connection", _at_once(1), DISK, redis_everysec=0.0, nats_debian=1.0, nats=1.0),
    _row("16 records in flight, 16 connections", _at_once(16), DISK, redis_everysec=0.0, nats_debian=1.0, nats=1.0),
    _row(f"{_IN_SOCKETS}, 1 connection", _at_once(1, socket=True), DISK, nats_debian=1.0, nats=1.0),
    _row(f"{_IN_SOCKETS}, 16 connections", _at_once(16, socket=True), DISK, nats_debian=1.0, nats=1.0),
    _protocols(16),
    _protocols(64),
    _jobs(16, "disk", "nats"),
    _jobs(64, "disk", "nats"),
    _row("one record over /v1, 16 connections", _singles(16), OURS_V1, prisma=1.0, prisma_64=1.0, node=1.0),
)


class Beside:
    def __init__(self, seconds: float, turns: int, console: Console) -> None:
        self._core, load_core = own_cores()
        self._load = Load(load_core, seconds, warm_up_s=1.0, patience_s=0.0)
        self._turns = turns
        self._console = console
        self.found = Found()

    def run(self, rows: Sequence[Row]) -> None:
        for row in rows:
            present = replace(row, others=tuple(side for side in row.others if self._installed(side.server)))
            if self._installed(row.ours.server) and present.others:
                self._measure(present)

    def _installed(self, server: Server) -> bool:
        try:
            self.found.versions[server.product] = server.install()
        except Missing as error:
            self.found.left_out[server.title] = str(error)
            return False
        return True

    def _measure(self, row: Row) -> None:
        sides = (row.ours, *row.others)
        with contextlib.ExitStack() as up:
            # Two sides of one kind of server are two places of one server.
            by_launch: dict[object, Running] = {}
            orders: list[tuple[Running, dict[str, object]]] = []
            for number, side in enumerate(sides):
                launch = side.server.product, side.server.launch
                if launch not in by_launch:
                    by_launch[launch] = up.enter_context(running(side.server, self._core))
                target = replace(by_launch[launch], server=side.server)
                place = f"side{number}"
                side.server.speaker.make(target.address, place)
                orders.append((target, _order(target, place, side.workload)))
            measured = self._load.measure_in_turns(orders, self._turns)
        self.found.rows.append((row, measured))
        for side, turns in zip(row.others, measured[1:], strict=True):
            self._console.print(f"{row.title}: {Ratio.of(measured[0].rates, turns.rates)} of {side.title}")


def _order(target: Running, place: str, workload: Workload) -> dict[str, object]:
    speaker = target.server.speaker
    order = order_for(speaker, place, workload)
    # A worker of a queue needs the path of the queue.
    return order | {"name": speaker.target(place)} if speaker.protocol.endswith("-queue") else order


def report(found: Found, method: str, console: Console) -> str:
    sheet = Sheet(console)
    sheet.paragraph(f"Measured with `python -m bench.beside` on {machine(found.versions)}.")
    sheet.paragraph(method)
    rows, generator = [], {}
    for row, measured in found.rows:
        ours = measured[0]
        for place, turns in enumerate(measured):
            name = (row.ours, *row.others)[place].title
            shares = [turn.cpu_s / turn.seconds for turn in turns.turns]
            generator[f"{row.title}, {name}"] = statistics.median(shares)
        for side, turns in zip(row.others, measured[1:], strict=True):
            ratio = Ratio.of(ours.rates, turns.rates)
            said = [short(statistics.median(ours.rates)), side.title, short(statistics.median(turns.rates)), str(ratio)]
            aim = f"{side.aim:g}" if side.aim else ""
            rows.append([f"{row.title}: {row.ours.title}", *said, aim, _verdict(ratio, side.aim)])
    head = ["row", "ours a second", "beside", "theirs", "ratio", "aim", ""]
    sheet.table("Rates and ratios", head, rows)
    sheet.doubts(generator, ())
    for title, reason in found.left_out.items():
        sheet.paragraph(f"Missing: {title}: {reason}")
    return sheet.text


def _verdict(ratio: Ratio, aim: float) -> str:
    if not aim:
        return ""
    if ratio.middle >= aim:
        return "met"
    return "missed" if ratio.high < aim else "missed, within what was measured"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=150, help="of each side")
    parser.add_argument("--seconds", type=float, default=0.1, help="of one turn")
    parser.add_argument("--only", metavar="WORDS", default="", help="rows whose titles have these words")
    parser.add_argument("--write", action="store_true", help="write the report into bench/results/beside.md")
    arguments = parser.parse_args()
    end_with_servers("bench.beside")
    beside = Beside(arguments.seconds, arguments.turns, Console(stderr=True, highlight=False))
    beside.run([row for row in ROWS if arguments.only in row.title])
    console = Console(width=None if sys.stdout.isatty() else 200)
    method = _METHOD.format(seconds=arguments.seconds, turns=arguments.turns)
    text = report(beside.found, method, console)
    if arguments.write:
        write_results(text, "beside", "Peers measured in turns")


if __name__ == "__main__":
    main()
