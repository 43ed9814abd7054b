"""`python -m bench.sides CHECKOUT`: our server as it is here beside the one of another checkout, both running at once.

    git worktree add ../before HEAD~3
    python -m bench.sides ../before --rows 16x1,16x100 --rounds 9

A change of a few percent is lost in what a machine does from one minute to the next. So both servers are up, on the
same core, and are measured in turns, a second each: whatever else happens, happens to both. Printed are the medians
of all rounds, and how many times the other's rate ours is: by the medians, by the best, and by the median of what each
round says by itself, which is least moved by a machine that is fast in one minute and slow in the next. A measurement
that others disturbed is made again.
"""

import argparse
import contextlib
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench.command import end_with_servers
from bench.load import Load, Workload
from bench.peers import BOTH, OURS, Launch, Running, launch_topics, running
from bench.protocols import PAYLOAD_BYTES

_PATIENCE_S = 180.0
_HERE = Path(__file__).resolve().parent.parent


def launch_from(checkout: Path) -> Callable[[Path, int], Launch]:
    """Starts the server of a checkout, with the packages of this one."""

    def launch(data: Path, port: int) -> Launch:
        ours = launch_topics(data, port)
        return replace(ours, env={**ours.env, "PYTHONPATH": str(checkout / "src")})

    return launch


def parse_row(text: str) -> Workload:
    """`16x100` is 16 connections with batches of 100; `16x1v` has records of 100 to 300 bytes instead of 200; `16x1k`
    has an idempotency key for each append, as our own client sends it."""
    connections, _, rest = text.partition("x")
    records = rest.removesuffix("k")
    sizes = range(100, 301, 5) if records.endswith("v") else (PAYLOAD_BYTES,)
    keyed = rest.endswith("k")
    return Workload(text, text, int(connections), int(records.removesuffix("v")), sizes=sizes, keyed=keyed)


def compare(title: str, before: Sequence[float], after: Sequence[float]) -> str:
    """A line of the report, from the rates of both in records a second."""
    middle_before, middle_after = statistics.median(before), statistics.median(after)
    in_turn = statistics.median(ours / theirs for ours, theirs in zip(after, before, strict=True))
    return (
        f"{title:>8}: {middle_before:11,.0f} there, {middle_after:11,.0f} here, ratio of the medians "
        f"{middle_after / middle_before:.2f}, of the best {max(after) / max(before):.2f}, round by round {in_turn:.2f}"
    )


class Sides:
    def __init__(self, before: Path, durability: str, seconds: float) -> None:
        cores = sorted(os.sched_getaffinity(0))
        apart = len(cores) > 1
        self._core = cores[0] if apart else None
        self._load = Load(cores[1] if apart else None, seconds, warm_up_s=0.3, patience_s=_PATIENCE_S)
        ours = OURS[durability]
        self._servers = [replace(ours, launch=launch_from(checkout)) for checkout in (before, _HERE)]
        self._places = 0

    def run(self, rows: list[Workload], rounds: int) -> None:
        with contextlib.ExitStack() as up:
            targets = [up.enter_context(running(server, self._core)) for server in self._servers]
            for row in rows:
                rates: list[list[float]] = [[], []]
                for number in range(rounds):
                    # Who comes second pays for what the first has left to be written: each does in its turn.
                    for side in (0, 1) if number % 2 else (1, 0):
                        rates[side].append(self._rate(targets[side], row))
                before, after = rates
                print(compare(row.title, before, after), flush=True)

    def _rate(self, target: Running, row: Workload) -> float:
        self._places += 1
        place, speaker = f"side{self._places}", target.server.speaker
        speaker.make(target.address, place)
        rate = self._load.measure(target, place, row).records_per_s
        speaker.drop(target.address, place)
        return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the other one, a folder with `src` in it")
    help_rows = "connections x records of an append; v varies their size, k gives each append a key"
    parser.add_argument("--rows", default="1x1,1x1k,16x1,16x1k,16x1v,64x1,64x1k,1x100,16x100", help=help_rows)
    parser.add_argument("--durability", choices=BOTH, default="disk")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.8)
    arguments = parser.parse_args()
    if not (arguments.checkout / "src" / "topics").is_dir():
        parser.error(f"there is no src/topics in {arguments.checkout}")
    end_with_servers("bench.sides")
    sides = Sides(arguments.checkout.resolve(), arguments.durability, arguments.seconds)
    sides.run([parse_row(row) for row in arguments.rows.split(",")], arguments.rounds)


if __name__ == "__main__":
    main()
