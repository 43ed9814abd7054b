"""`python -m bench.cost`: the cost of one operation of each kind for the server, in processor time and in bytes of its
log.

    python -m bench.cost                              the table
    python -m bench.cost --write                      and it goes into bench/results/cost.md
    python -m bench.cost --beside ../before           the server of another checkout beside this one, in turns
    python -m bench.cost --only append,append-keyed

Rates compare servers on a quiet machine. The cost of an operation can be measured on a busy machine, too: a fixed
number of operations, and the processor time of the server's threads during them, as counted by the kernel. Of several
rounds the least counts, because disturbances can only add. The server does not stay awake between requests here
(`TOPICS_AWAKE_US=0`), which would be counted as work.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from bench.command import end_with_servers
from bench.cost_client import Place, share_one_core, used_ns
from bench.cost_operations import OPERATIONS, Operation
from bench.install import ROOT
from bench.peers import OURS, Launch, Running, our_version, running
from bench.report import Sheet, machine, write_results
from bench.sides import launch_from

_WARM_UP_ROUNDS = 20
_METHOD = """\
One server on one core, class `disk` unless the row names another, records of 200 bytes. A client on the same core sends
a request on each of its connections and then waits for all answers. The columns are the processor time of all threads
of the server, with kernel and sockets, and the bytes written to its log, for one operation: the least of {rounds}
rounds."""


@dataclass
class Cost:
    """The measured cost of one operation, by round."""

    us: list[float] = field(default_factory=list)
    log_bytes: list[float] = field(default_factory=list)


class Costs:
    """Measures operations on one server."""

    def __init__(self, target: Running) -> None:
        self._target = target
        self._places = 0

    def measure(self, operation: Operation, cost: Cost) -> None:
        self._places += 1
        with Place(self._target.address) as place:
            go_round = operation.begin(place, f"cost{self._places}")
            for _ in range(_WARM_UP_ROUNDS):
                go_round()
            pid, log_bytes = self._target.pid, place.log_bytes()
            before = used_ns(pid)
            for _ in range(operation.rounds):
                go_round()
            spent_ns = used_ns(pid) - before
            done = operation.done * operation.rounds
            cost.us.append(spent_ns / 1000 / done)
            cost.log_bytes.append((place.log_bytes() - log_bytes) / done)


def always_asleep(launch: Callable[[Path, int], Launch]) -> Callable[[Path, int], Launch]:
    def asleep(data: Path, port: int) -> Launch:
        made = launch(data, port)
        return replace(made, env={**made.env, "TOPICS_AWAKE_US": "0"})

    return asleep


def measure(checkouts: Sequence[Path], operations: Sequence[Operation], rounds: int) -> dict[str, list[Cost]]:
    """The costs of each operation, one for each checkout; they take turns."""
    found = {operation.key: [Cost() for _ in checkouts] for operation in operations}
    progress = Console(stderr=True)
    with contextlib.ExitStack() as up:
        sides = []
        for checkout in checkouts:
            server = replace(OURS["disk"], launch=always_asleep(launch_from(checkout)))
            sides.append(Costs(up.enter_context(running(server, None))))
        for operation in operations:
            progress.print(operation.title, highlight=False)
            for _ in range(rounds):
                for side, cost in zip(sides, found[operation.key], strict=True):
                    side.measure(operation, cost)
    return found


def report(console: Console, operations: Sequence[Operation], found: dict[str, list[Cost]], rounds: int) -> str:
    sheet = Sheet(console)
    sheet.paragraph(f"Measured with `python -m bench.cost` on {machine({'topics': our_version()})}.")
    sheet.paragraph(_METHOD.format(rounds=rounds))
    rows = []
    for operation in operations:
        ours = found[operation.key][-1]
        row = [operation.title, f"{min(ours.us):.1f}", f"{min(ours.log_bytes):,.0f}"]
        if len(found[operation.key]) > 1:
            before = found[operation.key][0]
            row += [f"{min(before.us):.1f}", f"{min(before.us) / min(ours.us):.2f}", f"{min(before.log_bytes):,.0f}"]
        rows.append(row)
    head = ["operation", "µs", "bytes of log"]
    if rows and len(rows[0]) > len(head):
        head += ["µs there", "times as fast", "bytes there"]
    sheet.table("Cost of an operation on the server", head, rows)
    return sheet.text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another one, a folder with `src` in it")
    parser.add_argument("--only", metavar="KEYS", help=f"of {','.join(operation.key for operation in OPERATIONS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write the table into bench/results/cost.md")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",") if arguments.only else [operation.key for operation in OPERATIONS]
    operations = [operation for operation in OPERATIONS if operation.key in chosen]
    unknown = set(chosen) - {operation.key for operation in operations}
    if unknown:
        parser.error(f"there is no operation {', '.join(sorted(unknown))}")
    checkouts = [ROOT]
    if arguments.beside is not None:
        if not (arguments.beside / "src" / "topics").is_dir():
            parser.error(f"there is no src/topics in {arguments.beside}")
        checkouts.insert(0, arguments.beside.resolve())
    end_with_servers("bench.cost")
    share_one_core()
    console = Console(width=None if sys.stdout.isatty() else 160)
    text = report(console, operations, measure(checkouts, operations, arguments.rounds), arguments.rounds)
    if arguments.write:
        write_results(text, "cost", "Processor time of an operation")


if __name__ == "__main__":
    main()
