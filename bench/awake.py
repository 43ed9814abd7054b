"""`python -m bench.awake`: the server's processor time beside one client, at some rates, with and without the setting
that lets it stay awake between two requests (`awake_us`).

The client appends one record and waits for the answer, at the rate of the row or as fast as it can. Reports the
processor time of the server as a part of a core, and the duration of an answer. With `--write` the report goes into
bench/results/awake.md.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench.command import end_with_servers
from bench.large import Caller, request
from bench.load import Usage
from bench.peers import OURS, Launch, launch_topics, running
from bench.protocols import payload
from bench.report import Sheet, machine, write_results
from topics import __version__

_METHOD = """\
One client appends one record and waits for the answer, at the rate of the row. A server without `awake_us` sleeps
between two requests; with it, the server polls for the next one for that many microseconds while the rate is high."""
RATES = (100, 1_000, 3_000, 0)
AWAKE_US = (0, 200)


def launch(awake_us: int) -> Callable[[Path, int], Launch]:
    def start(data: Path, port: int) -> Launch:
        ours = launch_topics(data, port)
        return replace(ours, env={**ours.env, "TOPICS_AWAKE_US": str(awake_us)})

    return start


def measure(address: str, pid: int, rate: int, seconds: float) -> list[str]:
    """One row: the client at a rate, or without a pause where it is 0. Returns the requests per second, the part of a
    core they took, and the latency of an answer."""
    caller, waits = Caller(address), []
    said = request("POST", "/v0/topics/awake", "application/json", b'{"records":[{"data":%b}]}' % payload(200).encode())
    for _ in range(100):
        caller.ask(said)
    before, begun = Usage(pid), time.perf_counter()
    due = begun
    while (now := time.perf_counter()) - begun < seconds:
        if rate:
            due += 1 / rate
            time.sleep(max(due - now, 0))
        asked = time.perf_counter()
        caller.ask(said)
        waits.append(time.perf_counter() - asked)
    took = time.perf_counter() - begun
    share = (Usage(pid).server - before.server) / took
    caller.close()
    middle_us = statistics.median(waits) * 1e6
    return [f"{len(waits) / took:,.0f}", f"{share:.0%}", f"{middle_us:.0f} µs"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement")
    parser.add_argument("--write", action="store_true", help="puts the report into bench/results/awake.md")
    arguments = parser.parse_args()
    end_with_servers("bench.awake")
    cores = sorted(os.sched_getaffinity(0))
    apart = len(cores) > 1
    if apart:
        os.sched_setaffinity(0, {cores[1]})
    rows = []
    for awake_us in AWAKE_US:
        server = replace(OURS["disk"], launch=launch(awake_us))
        with running(server, cores[0] if apart else None) as target:
            for rate in RATES:
                requested = f"{rate:,} a second" if rate else "as fast as it can"
                rows.append(
                    [
                        f"`awake_us` {awake_us}, {requested}",
                        *measure(target.address, target.pid, rate, arguments.seconds),
                    ]
                )
    sheet = Sheet(Console())
    sheet.paragraph(f"Measured with `python -m bench.awake` on {machine({'topics': __version__})}.")
    sheet.paragraph(_METHOD)
    sheet.table(
        "One client that waits for each answer", ["client", "requests/s", "of a core", "p50 of an answer"], rows
    )
    if arguments.write:
        write_results(sheet.text, "awake", "Busy polling")


if __name__ == "__main__":
    main()
