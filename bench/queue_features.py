"""`python -m bench.queue_features`: the cost of priorities, limits and delays of jobs, in the engine alone.

A round claims 8 jobs, acknowledges them and produces 8 more, 10,000 jobs ahead, in an engine on a disk in memory; the
rate is in jobs per second of processor time, so that it means the same on a busy machine. Each round runs in a
separate process, all variants take turns, and the median counts. Another part starts on a folder with a million delayed
jobs. `--other CHECKOUT` measures the plain queue of another checkout in the same turns. With `--write` the report goes
into bench/results/queue_features.md.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.report import Sheet, machine, write_results
from topics import __version__

_ROOT = Path(__file__).resolve().parent.parent
_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("nothing of it used", {}),
    "one": ("one priority for all jobs", {}),
    "random": ("a random priority for each 8 jobs", {}),
    "fair": ("`fair_tags`, 100 tags", {"fair_tags": True}),
    "limits": ("`max_per_second`, `max_leased`", {"max_per_second": 10**9, "max_leased": 10**6}),
}
_OTHER = "other"
_JOBS, _AHEAD = 8, 10_000
_METHOD = """\
A round claims 8 jobs, acknowledges them and produces 8 more, with 10,000 jobs ahead, in an engine on a disk in memory.
Rates are jobs per second of processor time; each is the median of {rounds} processes, which take turns. `before` is the
plain queue of the commit before these features."""


def _rounds(variant: str, seconds: float) -> float:
    """Jobs per second of processor time. Uses only calls that an earlier checkout has, too."""
    import random

    from topics.engine.core import EngineOptions
    from topics.engine.engine import Engine
    from topics.model.records import Batch, Record
    from topics.model.topic_config import TopicConfigPatch, TopicType
    from topics.queues.leases import ClaimRequest, HeldRequest
    from topics.testing import FakeDisk, ManualClock, SeededEntropy

    clock, chance = ManualClock(), random.Random(1)
    engine = Engine.recover(FakeDisk(), EngineOptions(data_dir="data"), clock, SeededEntropy(1), boot_id="one")
    config = _VARIANTS[variant][1] if variant != _OTHER else {}
    engine.put_topic("jobs", TopicConfigPatch(type=TopicType.QUEUE, **config), lambda outcome: None)
    clock.advance(1000)
    records = [Record.of("x" * 200) for _ in range(_JOBS)]

    def append() -> None:
        nonlocal records
        if variant == "fair":
            records = [Record.of("x" * 200, tag=f"t{chance.randrange(100)}") for _ in range(_JOBS)]
        fields: dict[str, Any] = {"one": {"priority": 5}, "random": {"priority": chance.randint(-1000, 1000)}}.get(
            variant, {}
        )
        engine.append("jobs", Batch(records=records, **fields), lambda outcome: None)

    def round_of_jobs() -> None:
        answers: list[Any] = []
        engine.queues.claim("jobs", ClaimRequest(node="w", max=_JOBS), answers.append)
        seqs = [job.seq for job in answers[0].jobs]
        assert len(seqs) == _JOBS
        engine.queues.ack("jobs", HeldRequest(node="w", seqs=seqs), answers.append)
        append()

    for _ in range(_AHEAD // _JOBS):
        append()
    for _ in range(200):
        round_of_jobs()
    began, jobs = time.process_time(), 0
    while (spent := time.process_time() - began) < seconds:
        for _ in range(50):
            round_of_jobs()
        jobs += 50 * _JOBS
    return jobs / spent


def _fill(folder: str, jobs: int) -> None:
    import topics

    with topics.open(folder) as log:
        log.append("jobs", "first", config={"type": "queue"})
        for number in range(jobs // 100):
            # Each hundred has its own delay, within a day.
            log.append_many("jobs", ["x" * 100] * 100, delay_ms=3_600_000 + number * 1000)


def _start(folder: str) -> dict[str, float]:
    """The time of a start, and of the first claim behind the delayed jobs; and the memory after them."""
    import topics
    from topics.queues.leases import ClaimRequest

    before = _resident()
    began = time.perf_counter()
    with topics.open(folder) as log:
        started = time.perf_counter()
        delayed = log._now(lambda: log.engine.queues.counters("jobs").delayed)
        began_claim = time.perf_counter()
        # Of two, so that it must look behind the one that is ready.
        claim: Any = partial(log.engine.queues.claim, "jobs", ClaimRequest(node="w", max=2))
        log._call(claim)
        claimed = time.perf_counter()
        return {
            "start_s": started - began, "claim_s": claimed - began_claim, "delayed": delayed,
            "bytes": _resident() - before,
        }  # fmt: skip


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _child(what: str, folder: str, number: float, source: Path) -> Any:
    command = [sys.executable, "-m", "bench.queue_features", "--child", what, folder, str(number)]
    environment = {**os.environ, "PYTHONPATH": f"{source / 'src'}{os.pathsep}{_ROOT}"}
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, cwd=_ROOT).stdout)


def _run_child(what: str, folder: str, number: float) -> object:
    if what == "fill":
        _fill(folder, int(number))
        return None
    return _start(folder) if what == "start" else _rounds(what, number)


class Report(Sheet):
    def make(self, rates: dict[str, list[float]], started: dict[str, float], jobs: int, rounds: int) -> str:
        self.paragraph(f"Measured with `python -m bench.queue_features` on {machine({'topics': __version__})}.")
        self.paragraph(_METHOD.format(rounds=rounds))
        plain = rates["plain"]
        rows = []
        for key, found in rates.items():
            title = "before" if key == _OTHER else _VARIANTS[key][0]
            ratios = [here / there for here, there in zip(found, plain, strict=True)]
            rows.append([title, f"{statistics.median(found) / 1000:.1f}k", f"{statistics.median(ratios):.3f}"])
        self.table("Claim, acknowledge, produce", ["queue", "jobs/s of processor time", "of the plain queue"], rows)
        if started:
            self.table(
                f"{jobs:,} delayed jobs",
                ["start", "first claim behind them", "memory", "memory per job"],
                [[
                    f"{started['start_s']:.1f} s", f"{started['claim_s']:.2f} s",
                    f"{started['bytes'] / 2**20:.0f} MiB", f"{started['bytes'] / max(started['delayed'], 1):.0f} bytes",
                ]],
            )  # fmt: skip
        return "\n".join(self._markdown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=3, metavar=("WHAT", "FOLDER", "NUMBER"), help=argparse.SUPPRESS)
    parser.add_argument("--other", type=Path, help="another checkout, whose plain queue is measured as well")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="delayed jobs; 0 leaves that part out")
    parser.add_argument("--write", action="store_true", help="write the report into bench/results")
    arguments = parser.parse_args()
    if arguments.child is not None:
        what, folder, number = arguments.child
        print(json.dumps(_run_child(what, folder, float(number))))
        return
    keys = [*_VARIANTS, *([_OTHER] if arguments.other else [])]
    rates: dict[str, list[float]] = {key: [] for key in keys}
    for _ in range(arguments.rounds):
        for key in keys:
            source = arguments.other.resolve() if key == _OTHER else _ROOT
            rates[key].append(_child(key, "-", arguments.seconds, source))
    started: dict[str, float] = {}
    if arguments.jobs:
        with tempfile.TemporaryDirectory(prefix="topics-bench-") as folder:
            _child("fill", folder, arguments.jobs, _ROOT)
            started = _child("start", folder, 0, _ROOT)
    text = Report(Console(width=None if sys.stdout.isatty() else 200)).make(
        rates, started, arguments.jobs, arguments.rounds
    )
    if arguments.write:
        write_results(text, "queue_features", "Priorities, limits and delays of jobs")


if __name__ == "__main__":
    main()
