"""`python -m bench.failover`: the time without a primary at a failover, and the cost of shipping for the primary.

Two servers share a lease. A client appends to whichever answers; the pause is the time from the fault to its first
acknowledged append of class `remote`. Appends of class `disk` are measured in turns on a server without a backup
storage and on a primary that ships its log.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from rich.console import Console

from bench.command import end_with_servers
from bench.load import Load, Result, Workload
from bench.peers import OURS, Launch, Running, launch_topics, own_cores, running
from bench.protocols import Topics
from bench.report import Sheet, machine, write_results
from tests.http.live import LiveServer
from tests.s3 import S3Server
from topics import __version__

LEASE_MS = 5000
_PATIENCE_S = 300.0
_BATCH = 8
_RECORD_BYTES = 250_000
_WORKLOADS = (
    Workload("16x1", "1 record, 16 connections", 16, 1),
    Workload("16x100", "100 records, 16 connections", 16, 100),
)
_METHOD = """\
Two servers with a lease of {lease_ms} ms, the storage on the same machine: an S3 server for kills, a folder for the
larger data. The pause is the time from the fault to the first append of class `remote` that is acknowledged, with
requests every 20 ms to both servers; `promote` is measured as a command, with its start. Shipping is measured with
appends of class `disk`, {rounds} times in turns: a server without a backup storage, and a primary with a lease that
ships its log to a folder every second."""


@dataclass
class Pauses:
    name: str
    data_bytes: int
    seconds: list[float]


class Pair:
    """Two servers at one place."""

    def __init__(self, folder: Path, place: str) -> None:
        self.place = place
        self.servers = []
        for name in ("first", "second"):
            (folder / name).mkdir()
            self.servers.append(
                LiveServer(
                    folder / name, backup_dir=place, primary_lease_ms=str(LEASE_MS), standby="1",
                    backup_ship_ms="1000", max_body_bytes="64000000",
                )
            )  # fmt: skip
        self._client = httpx.Client(trust_env=False, timeout=30)

    @property
    def primary(self) -> LiveServer:
        give_up = time.monotonic() + _PATIENCE_S
        while time.monotonic() < give_up:
            for server in self.servers:
                try:
                    answer = self._client.get(f"{server.url}/v0/ready", params={"role": "primary"}, timeout=2)
                except httpx.HTTPError:
                    continue
                if answer.status_code == 200:
                    return server
            time.sleep(0.02)
        raise SystemExit("no server becomes the primary")

    def start(self) -> None:
        self.servers[0].start()
        assert self.primary is self.servers[0]
        self.servers[1].start()

    def append(self, topic: str = "orders", body: object = None) -> None:
        """Returns once an append is acknowledged by either server."""
        body = body or {"records": [{"data": "x"}], "config": {"durability": "remote"}}
        give_up = time.monotonic() + _PATIENCE_S
        while time.monotonic() < give_up:
            for server in self.servers:
                try:
                    answer = self._client.post(f"{server.url}/v0/topics/{topic}", json=body, timeout=5)
                except httpx.HTTPError:
                    continue
                if answer.status_code < 300:
                    return
            time.sleep(0.02)
        raise SystemExit("nobody acknowledges an append")

    def fill(self, data_bytes: int) -> None:
        record = {"data": "x" * _RECORD_BYTES}
        for _ in range(data_bytes // (_RECORD_BYTES * _BATCH)):
            self.append("large", {"records": [record] * _BATCH, "config": {"durability": "disk"}})
        answer = self._client.post(f"{self.primary.url}/v0/backups", timeout=_PATIENCE_S)
        answer.raise_for_status()

    def close(self) -> None:
        self._client.close()
        for server in self.servers:
            if server._process is not None:
                server.kill()


@contextmanager
def pair(place: str, folder: Path) -> Iterator[Pair]:
    made = Pair(folder, place)
    try:
        made.start()
        made.append()
        yield made
    finally:
        made.close()


def kills(pair: Pair, count: int) -> Pauses:
    found = []
    for _ in range(count):
        killed = pair.primary
        time.sleep(1)
        pair.append()
        killed.kill()
        began = time.monotonic()
        pair_append_to_other(pair, killed)
        found.append(time.monotonic() - began)
        killed.start()
    return Pauses("kill -9", 0, found)


def pair_append_to_other(pair: Pair, gone: LiveServer) -> None:
    """The killed server is not started before: the other one has to take over."""
    servers, pair.servers = pair.servers, [server for server in pair.servers if server is not gone]
    try:
        pair.append()
    finally:
        pair.servers = servers


def promotions(pair: Pair, count: int, data_bytes: int) -> Pauses:
    pair.fill(data_bytes)
    found = []
    command = [sys.executable, "-m", "topics", "promote", "--at", pair.place, "--yes"]
    for _ in range(count):
        before = pair.primary
        pair.append()
        began = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=_PATIENCE_S)
        while before._process is not None and before._process.poll() is None and pair.primary is before:
            time.sleep(0.02)
        pair.append()
        found.append(time.monotonic() - began)
        # It ends when it next renews its lease.
        assert before._process is not None
        before._process.wait(_PATIENCE_S)
        before.start()
        time.sleep(LEASE_MS / 1000)
    return Pauses("topics promote", data_bytes, found)


def shipping(load: Load, rounds: int, core: int | None) -> list[tuple[Workload, list[Result], list[Result]]]:
    rows: list[tuple[Workload, list[Result], list[Result]]] = [(workload, [], []) for workload in _WORKLOADS]
    for _ in range(rounds):
        for ships in (False, True):
            with tempfile.TemporaryDirectory() as place, serving(Path(place), ships, core) as target:
                for workload, without, beside in rows:
                    Topics("disk").make(target.address, workload.key)
                    (beside if ships else without).append(load.measure(target, workload.key, workload))
    return rows


@contextmanager
def serving(place: Path, ships: bool, core: int | None) -> Iterator[Running]:
    def launch(data: Path, port: int) -> Launch:
        ours = launch_topics(data, port)
        settings = {
            "TOPICS_BACKUP_DIR": str(place), "TOPICS_BACKUP_SHIP_MS": "1000", "TOPICS_PRIMARY_LEASE_MS": str(LEASE_MS),
        }  # fmt: skip
        return replace(ours, env={**ours.env, **(settings if ships else {})})

    with running(replace(OURS["disk"], launch=launch), core) as target:
        yield target


def report(
    pauses: Sequence[Pauses], rows: Sequence[tuple[Workload, list[Result], list[Result]]], rounds: int, console: Console
) -> str:
    sheet = Sheet(console)
    sheet.paragraph(f"Measured with `python -m bench.failover` on {machine({'topics': __version__})}.")
    sheet.paragraph(_METHOD.format(lease_ms=LEASE_MS, rounds=rounds))
    sheet.table(
        "Pause of a failover",
        ["fault", "data", "failovers", "median", "longest"],
        [
            [
                one.name, f"{one.data_bytes / 1e9:.1f} GB", str(len(one.seconds)),
                f"{statistics.median(one.seconds):.1f} s", f"{max(one.seconds):.1f} s",
            ]
            for one in pauses
        ],
    )  # fmt: skip
    if rows:
        sheet.table(
            "Appends of class disk beside shipping",
            ["workload", "records/s without", "records/s with shipping", "ratio", "p99 without", "p99 with shipping"],
            [
                [
                    workload.title, f"{_median(without):,.0f}", f"{_median(beside):,.0f}",
                    f"{_median(beside) / _median(without):.2f}",
                    f"{statistics.median([one.p99_ms for one in without]):.1f} ms",
                    f"{statistics.median([one.p99_ms for one in beside]):.1f} ms",
                ]
                for workload, without, beside in rows
            ],
        )  # fmt: skip
        sheet.noise([one.other_cpu for _, without, beside in rows for one in (*without, *beside)])
    return sheet.text


def _median(results: Sequence[Result]) -> float:
    return statistics.median([one.records_per_s for one in results])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--promotions", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="data of the servers that are promoted")
    parser.add_argument("--rounds", type=int, default=5, help="turns of the measurement of shipping")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--write", action="store_true", help="write the report into bench/results/failover.md")
    arguments = parser.parse_args()
    end_with_servers("bench.failover")
    pauses: list[Pauses] = []
    folder = Path(tempfile.mkdtemp(prefix="topics-failover-"))
    try:
        if arguments.kills:
            with S3Server() as store:
                os.environ.update(store.environment)
                (folder / "kills").mkdir()
                with pair(store.make_bucket() + "/place", folder / "kills") as servers:
                    pauses.append(kills(servers, arguments.kills))
        for size in (0.0, arguments.gigabytes) if arguments.promotions else ():
            name = folder / f"promotions-{size}"
            name.mkdir()
            with pair(str(name / "place"), name) as servers:
                pauses.append(promotions(servers, arguments.promotions, int(size * 1e9)))
        server_core, load_core = own_cores()
        load = Load(load_core, arguments.seconds, warm_up_s=0.5, patience_s=0)
        rows = shipping(load, arguments.rounds, server_core) if arguments.rounds else []
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = report(pauses, rows, arguments.rounds, Console(width=160))
    if arguments.write:
        write_results(text, "failover", "Failover")


if __name__ == "__main__":
    main()
