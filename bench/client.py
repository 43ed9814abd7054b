"""`make bench-client`: the cost of an append of one record for the program that sends it, beside other clients.

Every client runs in its own process, which counts the processor time it used itself; the server runs on another core
and is not counted. With `--write` the report goes into bench/results/client.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field

from rich.console import Console

from bench.client_drivers import DRIVERS, Driver
from bench.command import end_with_servers
from bench.install import ROOT, Missing, python_folder
from bench.peers import OURS, PEERS, Running, Server, own_cores, pinned, running
from bench.report import Sheet, machine, write_results

AT_ONCE = 32
AIMS = (("`Client`", "ours", 1, 150.0), (f"`AsyncClient`, {AT_ONCE} at a time", "ours-async", AT_ONCE, 250.0))
IMPORT_MS_MAX = 100.0
QUIET_LOAD_MAX = 1.0
SERVERS: dict[str, Server] = {
    "topics": OURS["disk"],
    **{peer.key.split("-")[0]: peer for peer in PEERS if peer.key in ("redis-everysec", "nats-debian")},
}


@dataclass
class Measured:
    cpu_us: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)

    @property
    def shown(self) -> list[str]:
        if not self.cpu_us:
            return ["-", "-"]
        return [f"{statistics.median(self.cpu_us):.0f}", f"{statistics.median(self.rate):,.0f}"]


Results = dict[tuple[str, int], Measured]


def measure(target: Running, driver: Driver, at_once: int, calls: int, core: int | None) -> tuple[float, float]:
    """The microseconds of processor time and the calls a second of a process that does nothing else."""
    command = [sys.executable, "-m", "bench.client_drivers", driver.key, target.address, str(at_once), str(calls)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), str(python_folder())])
    env = {**os.environ, "PYTHONPATH": path}
    ran = subprocess.run(pinned(core, command), check=False, env=env, capture_output=True, text=True, timeout=600)
    if ran.returncode != 0:
        raise RuntimeError(f"{driver.title} failed: {ran.stderr[-600:]}")
    found = json.loads(ran.stdout)
    return float(found["cpu_us"]), float(found["rate"])


def import_ms() -> float:
    """The processor time of importing the client in a fresh interpreter, with its bytecode there."""
    code = "import time; t = time.process_time(); import topics_client; print((time.process_time() - t) * 1000)"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = str(ROOT / "src")
    env["PYTHONPYCACHEPREFIX"] = str(ROOT / ".bench" / "bytecode")
    runs = [subprocess.check_output([sys.executable, "-c", code], env=env) for _ in range(8)]
    return statistics.median([float(run) for run in runs[1:]])


def report(
    results: Results, versions: dict[str, str], left_out: dict[str, str], imported_ms: float, load: float
) -> str:
    sheet = Sheet(Console())
    sheet.paragraph(f"Measured with `make bench-client` on {machine(versions)}.")
    sheet.paragraph(
        "Appends of one record of 25 bytes by one process, which waits for each to be acknowledged: one at a time, and "
        f"{AT_ONCE} at a time in one event loop. The time is that of the client's processor, medians of the rounds; "
        "the server has a core of its own."
    )
    rows = []
    for driver in DRIVERS:
        one, many = results.get((driver.key, 1), Measured()), results.get((driver.key, AT_ONCE), Measured())
        if one.cpu_us or many.cpu_us:
            rows.append([driver.title, *one.shown, *many.shown])
    head = [
        "client",
        "µs of CPU a call",
        "calls/s",
        f"µs of CPU a call, {AT_ONCE} at a time",
        f"calls/s, {AT_ONCE} at a time",
    ]
    sheet.table("An append of one record", head, rows)
    aims = []
    for title, key, at_once, most in AIMS:
        found = results.get((key, at_once))
        if found is not None:
            cost = statistics.median(found.cpu_us)
            verdict = "met" if cost <= most else "missed"
            aims.append([f"{title}, µs of CPU a call", f"{most:.0f}", f"{cost:.0f}", verdict])
    verdict = "met" if imported_ms <= IMPORT_MS_MAX else "missed"
    aims.append(["`import topics_client`, ms of CPU", f"{IMPORT_MS_MAX:.0f}", f"{imported_ms:.0f}", verdict])
    sheet.table("Aims", ["what", "at most", "measured", ""], aims)
    if load > QUIET_LOAD_MAX:
        sheet.paragraph(
            f"**To be doubted:** the machine was not quiet, with a load of {load:.0f} on {os.cpu_count()} cores. The "
            "calls a second say nothing then, and the times of the processor are longer than they need to be."
        )
    for server, reason in left_out.items():
        sheet.paragraph(f"Left out: {server}, because {reason}.")
    return sheet.text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the report into bench/results/client.md")
    parser.add_argument("--calls", type=int, default=4000, help="in each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="the median counts")
    arguments = parser.parse_args()
    end_with_servers("bench-client")
    server_core, client_core = own_cores()
    progress = Console(stderr=True)
    load = os.getloadavg()[0]
    results: Results = {}
    versions: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name, server in SERVERS.items():
        try:
            versions[server.product or name] = server.install()
            python_folder()
        except Missing as error:
            left_out[name] = str(error)
            continue
        with running(server, server_core) as target:
            for _ in range(arguments.rounds):
                for driver in [driver for driver in DRIVERS if driver.server == name]:
                    for at_once in (1,) if driver.sync is not None else (1, AT_ONCE):
                        cpu_us, rate = measure(target, driver, at_once, arguments.calls, client_core)
                        found = results.setdefault((driver.key, at_once), Measured())
                        found.cpu_us.append(cpu_us)
                        found.rate.append(rate)
                        progress.print(f"{driver.title} @{at_once}: {cpu_us:.0f} µs, {rate:,.0f}/s", highlight=False)
    text = report(results, versions, left_out, import_ms(), load)
    if arguments.write:
        write_results(text, "client", "Python client")


if __name__ == "__main__":
    main()
