"""`python -m bench.queue_schedules`: memory, idle processor time and start of a server with 10,000 schedules.

A part of `make bench-queue`. Schedules have cron expressions in a time zone and are due once a day; the same server
without schedules is measured first. `--quick` measures 1,000.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from bench.peers import launch_topics
from bench.report import Sheet
from topics_client import Client, NotReady

COUNT = 10_000
_QUICK = 1_000
_IDLE_S = 5.0
_START_TIMEOUT_S = 60.0


class Measured(msgspec.Struct, frozen=True):
    """A server with so many schedules."""

    schedules: int
    start_s: float
    """From the start of the process to readiness."""
    memory_mb: float
    idle_share: float
    """Share of a core while nothing is due."""
    put_per_s: float = 0.0
    """Created schedules a second, by one client one after the other."""


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[tuple[int, Client, float]]:
    """A server on a folder: its process, a client, and the time until it was ready."""
    launch = launch_topics(folder, 0)
    address = folder / "address"
    address.unlink(missing_ok=True)
    began = time.perf_counter()
    process = subprocess.Popen(
        launch.command, env={**os.environ, **launch.env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not (address.exists() and address.read_text().strip()):
            if time.perf_counter() - began > _START_TIMEOUT_S or process.poll() is not None:
                raise RuntimeError("the server does not start")
            time.sleep(0.005)
        with Client(f"http://{address.read_text().strip().removeprefix('http://')}") as client:
            while not _is_ready(client):
                time.sleep(0.005)
            yield process.pid, client, time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _is_ready(client: Client) -> bool:
    try:
        client.ready()
    except NotReady:
        return False
    return True


def _memory_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _look(pid: int, schedules: int, start_s: float, put_per_s: float = 0.0) -> Measured:
    time.sleep(1.0)
    before = _cpu_s(pid)
    time.sleep(_IDLE_S)
    return Measured(schedules, start_s, _memory_mb(pid), (_cpu_s(pid) - before) / _IDLE_S, put_per_s)


def measure(count: int = COUNT) -> list[Measured]:
    """An empty server, one that schedules were just created in, and one that was started with them."""
    found = []
    with tempfile.TemporaryDirectory(prefix="topics-bench-schedules-") as place:
        folder = Path(place)
        with _served(folder) as (pid, client, start_s):
            found.append(_look(pid, 0, start_s))
            client.put_topic("jobs", {"type": "queue"})
            hour = (time.gmtime().tm_hour + 12) % 24
            began = time.perf_counter()
            for number in range(count):
                cron = f"{number % 60} {hour} * * *"
                client.put_schedule(f"report-{number}", "jobs", cron=cron, timezone="Europe/Berlin", data={"n": number})
            rate = count / (time.perf_counter() - began)
            found.append(_look(pid, count, start_s, rate))
        with _served(folder) as (pid, _, start_s):
            found.append(_look(pid, count, start_s))
    return found


def add_table(report: Sheet, found: Sequence[Measured]) -> None:
    """Adds the measurements to a report."""
    empty, created, started = found
    names = ("without schedules", f"after creating {created.schedules:,}", f"started with {started.schedules:,}")
    report.table(
        "Schedules",
        ["server", "memory, MB", "start, s", "idle, share of a core", "created a second"],
        [
            [
                name, f"{one.memory_mb:.1f}", "" if one is created else f"{one.start_s:.2f}", f"{one.idle_share:.1%}",
                f"{one.put_per_s:,.0f}" if one.put_per_s else "",
            ]
            for name, one in zip(names, (empty, created, started), strict=True)
        ],
    )  # fmt: skip


def main() -> None:
    count = _QUICK if "--quick" in sys.argv[1:] else COUNT
    add_table(Sheet(Console()), measure(count))


if __name__ == "__main__":
    main()
