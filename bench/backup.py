"""`make bench-backup`: the duration and the size of a backup, its effect on appends, and the duration of a restore.

A server of class fsync is filled, backed up, filled a little more and backed up again; then the newest state is
restored. Appends are measured in turns, some seconds without and some with a backup a second, so that
whatever else the machine does happens to both.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.command import end_with_servers
from bench.load import Load, Result, Workload
from bench.peers import OURS, Launch, Running, launch_topics, own_cores, running
from bench.report import Sheet, machine, write_results
from topics import __version__

_PATIENCE_S = 600.0
_PAUSE_S = 1.0
"""Between two backups while appends are measured."""
_ONE = Workload("1x1", "one record, 16 connections", 16, 1)
P99_RATIO_MAX = 2.0
_METHOD = """\
One server, class `fsync`, records of 200 bytes, the place a folder on the same disk. The first backup copies
everything, the second what a hundredth more records have added. The restore is `topics backup restore` of the newest,
the recovery of an engine and its checkpoint included. Appends of one record over 16 connections are measured {rounds}
times, some seconds without and some seconds with a backup a second; medians."""


@dataclass
class Size:
    records: int
    first_s: float
    first_bytes: int
    second_s: float
    second_bytes: int
    restore_s: float
    quiet: list[Result]
    backed_up: list[Result]
    backups: int


class Place:
    """The server's backups, over HTTP."""

    def __init__(self, target: Running) -> None:
        self._url = f"http://{target.address}/v0/backups"

    def state(self) -> dict[str, Any]:
        with urllib.request.urlopen(self._url, timeout=_PATIENCE_S) as answer:
            return dict(json.load(answer))

    def take(self) -> float:
        """Makes a backup; returns how long it took."""
        before, begun = self.state()["completed"], time.monotonic()
        urllib.request.urlopen(urllib.request.Request(self._url, method="POST"), timeout=_PATIENCE_S).close()
        while time.monotonic() < begun + _PATIENCE_S:
            state = self.state()
            if state["failures"]:
                raise RuntimeError(state["error"])
            if state["completed"] > before and not state["running"]:
                return time.monotonic() - begun
            time.sleep(0.01)
        raise RuntimeError("a backup does not come to its end")


def measure(records: int, rounds: int, seconds: float, folder: Path) -> Size:
    server_core, load_core = own_cores()
    load = Load(load_core, seconds, warm_up_s=0.3, patience_s=0)
    place = folder / f"place-{records}"

    def launch(data: Path, port: int) -> Launch:
        ours = launch_topics(data, port)
        return replace(ours, env={**ours.env, "TOPICS_BACKUP_DIR": str(place)})

    with running(replace(OURS["fsync"], launch=launch), server_core) as target:
        backups, speaker = Place(target), target.server.speaker
        speaker.make(target.address, "filled")
        load.fill(target, "filled", records)
        first_s = backups.take()
        first_bytes = _size(place)
        load.fill(target, "filled", records // 100)
        second_s = backups.take()
        second_bytes = _size(place) - first_bytes
        begun = time.monotonic()
        back = folder / f"back-{records}"
        command = [sys.executable, "-m", "topics", "backup", "restore", str(back), "--at", str(place), "-o", "json"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=_PATIENCE_S)
        restore_s = time.monotonic() - begun
        shutil.rmtree(back)
        quiet, backed_up, taken = _in_turns(target, load, backups, rounds)
    return Size(records, first_s, first_bytes, second_s, second_bytes, restore_s, quiet, backed_up, taken)


def _in_turns(target: Running, load: Load, backups: Place, rounds: int) -> tuple[list[Result], list[Result], int]:
    speaker, results, taken = target.server.speaker, ([], []), 0  # type: tuple[Any, tuple[list[Result], list[Result]], int]
    for number in range(rounds):
        for with_backups in (False, True) if number % 2 else (True, False):
            name = f"round{number}{with_backups}"
            speaker.make(target.address, name)
            stop = threading.Event()

            def back_up(stop: threading.Event = stop) -> None:
                nonlocal taken
                while not stop.wait(_PAUSE_S):
                    backups.take()
                    taken += 1

            thread = threading.Thread(target=back_up, daemon=True)
            if with_backups:
                thread.start()
            results[with_backups].append(load.measure(target, name, _ONE))
            stop.set()
            if with_backups:
                thread.join(_PATIENCE_S)
            speaker.drop(target.address, name)
    return results[0], results[1], taken


def _size(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def report(sizes: list[Size], rounds: int, console: Console) -> str:
    sheet = Sheet(console)
    sheet.paragraph(f"Measured with `make bench-backup` on {machine({'topics': __version__})}.")
    sheet.paragraph(_METHOD.format(rounds=rounds))
    sheet.table(
        "Backups and the way back",
        ["records", "first backup", "copied", "records/s", "after 1% more", "copied", "restore", "records/s"],
        [
            [
                f"{size.records:,}", f"{size.first_s:.2f} s", f"{size.first_bytes / 1e6:,.0f} MB",
                f"{size.records / size.first_s:,.0f}", f"{size.second_s:.2f} s", f"{size.second_bytes / 1e6:,.1f} MB",
                f"{size.restore_s:.2f} s", f"{size.records / size.restore_s:,.0f}",
            ]
            for size in sizes
        ],
    )  # fmt: skip
    rows = []
    for size in sizes:
        quiet, busy = (statistics.median(r.p99_ms for r in results) for results in (size.quiet, size.backed_up))
        rates = [statistics.median(r.records_per_s for r in results) for results in (size.quiet, size.backed_up)]
        verdict = "met" if busy <= P99_RATIO_MAX * quiet else "missed"
        rows.append(
            [
                f"{size.records:,}", f"{rates[0]:,.0f}", f"{rates[1]:,.0f}", f"{quiet:.2f} ms", f"{busy:.2f} ms",
                f"{busy / quiet:.2f}", f"under {P99_RATIO_MAX:.0f}: {verdict}", str(size.backups),
            ]
        )  # fmt: skip
    head = ["records", "appends/s", "with backups", "p99", "with backups", "ratio", "aim", "backups meanwhile"]
    sheet.table("Appends beside backups", head, rows)
    sheet.noise([result.other_cpu for size in sizes for result in size.quiet])
    return sheet.text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", default="1000000,10000000", help="how many, one size after the other")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--write", action="store_true", help="write the report into bench/results/backup.md")
    arguments = parser.parse_args()
    end_with_servers("bench.backup")
    folder = Path(tempfile.mkdtemp(prefix="topics-bench-backup-"))
    try:
        sizes = [
            measure(int(size), arguments.rounds, arguments.seconds, folder) for size in arguments.records.split(",")
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = report(sizes, arguments.rounds, Console())
    if arguments.write:
        write_results(text, "backup", "Backups")


if __name__ == "__main__":
    main()
