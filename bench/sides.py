"""`python -m bench.sides CHECKOUT`: our server as it is here beside the one of another checkout, both running at once.

    git worktree add ../before HEAD~3
    python -m bench.sides ../before --rows 16x1,16x100 --turns 400

A change of a few percent is smaller than the variation of a machine from one minute to the next, and of a shared one
from one second to the next. So both servers are up, on the same core, and the load generator is connected to both and
turns from one to the other every tenth of a second: whatever else happens, happens to both. Prints the medians of all
turns, and the ratio of our rate to the peer's: the median of the ratios of all pairs of turns, and their interval of 95
percent. A row whose interval is too wide needs more `--turns`.
"""

import argparse
import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench.command import end_with_servers
from bench.load import Load, Turns, Workload, order_for
from bench.peers import BOTH, OURS, Launch, Running, launch_topics, own_cores, running
from bench.protocols import PAYLOAD_BYTES
from bench.ratios import Ratio

_ROWS = "1x1,1x1k,1x1p,1x1w,16x1,16x1k,16x1v,16x1p,16x1w,64x1,64x1k,1x100,16x100"
_HERE = Path(__file__).resolve().parent.parent


def launch_from(checkout: Path) -> Callable[[Path, int], Launch]:
    """Starts the server of a checkout, with the packages of this one."""

    def launch(data: Path, port: int) -> Launch:
        ours = launch_topics(data, port)
        return replace(ours, env={**ours.env, "PYTHONPATH": str(checkout / "src")})

    return launch


def parse_row(text: str) -> Workload:
    """`16x100` is 16 connections with batches of 100; `16x1v` has records of 100 to 300 bytes instead of 200; `16x1k`
    has an idempotency key for each append, as our own client sends it; `1x1p` sends 16 requests without waiting, and
    `1x1w` so many over a WebSocket."""
    connections, _, rest = text.partition("x")
    records = rest.rstrip("vkpw")
    how = rest[len(records) :]
    return Workload(
        text, text, int(connections), int(records),
        sizes=range(100, 301, 5) if "v" in how else (PAYLOAD_BYTES,),
        keyed="k" in how,
        at_once=16 if "p" in how or "w" in how else 0,
        socket="w" in how,
    )  # fmt: skip


def compare(title: str, before: Sequence[float], after: Sequence[float]) -> str:
    """A line of the report, computed from the rates of both in records a second."""
    there, here = statistics.median(before), statistics.median(after)
    return f"{title:>8}: {there:11,.0f} there, {here:11,.0f} here, ratio {Ratio.of(after, before)}"


class Sides:
    def __init__(self, before: Path, durability: str, seconds: float) -> None:
        self._core, load_core = own_cores()
        self._load = Load(load_core, seconds, warm_up_s=1.0, patience_s=0.0)
        ours = OURS[durability]
        self._servers = [replace(ours, launch=launch_from(checkout)) for checkout in (before, _HERE)]
        self._places = 0

    def run(self, rows: list[Workload], turns: int) -> None:
        with contextlib.ExitStack() as up:
            targets = [up.enter_context(running(server, self._core)) for server in self._servers]
            for row in rows:
                before, after = (side.rates for side in self._measure(targets, row, turns))
                print(compare(row.title, before, after), flush=True)

    def _measure(self, targets: list[Running], row: Workload, turns: int) -> list[Turns]:
        self._places += 1
        place = f"side{self._places}"
        for target in targets:
            target.server.speaker.make(target.address, place)
        sides = [(target, order_for(target.server.speaker, place, row)) for target in targets]
        measured = self._load.measure_in_turns(sides, turns)
        for target in targets:
            target.server.speaker.drop(target.address, place)
        return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the other one, a folder with `src` in it")
    help_rows = "connections x records; v varies sizes, k gives keys, p has 16 in flight, w over a WebSocket"
    parser.add_argument("--rows", default=_ROWS, help=help_rows)
    parser.add_argument("--durability", choices=BOTH, default="disk")
    parser.add_argument("--turns", type=int, default=150, help="of each side")
    parser.add_argument("--seconds", type=float, default=0.1, help="of one turn")
    arguments = parser.parse_args()
    if not (arguments.checkout / "src" / "topics").is_dir():
        parser.error(f"there is no src/topics in {arguments.checkout}")
    end_with_servers("bench.sides")
    sides = Sides(arguments.checkout.resolve(), arguments.durability, arguments.seconds)
    sides.run([parse_row(row) for row in arguments.rows.split(",")], arguments.turns)


if __name__ == "__main__":
    main()
