"""Runs the load generator against a server and measures the cost of both.

The generator is a small Go program of this repository (bench/loadgen), built into `.bench` when its source changes. It
runs on its own core. A generator that used its whole core measures itself and not the server: `Result` records this,
and the report shows it. The machine may run other programs: their use is measured, too, and a disturbed measurement is
repeated when the machine is quiet, as long as time for retries is left in the whole run.
"""

import functools
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench.install import CACHE, go, said
from bench.peers import Running, favour, pinned
from bench.protocols import PAYLOAD_BYTES, Speaker, publish, with_key

_SOURCE = Path(__file__).resolve().parent / "loadgen"
_TICKS = os.sysconf("SC_CLK_TCK")
# More than this much of a core used by others makes a measurement doubtful. Below are the kernel's threads, which write
# the server's data.
DISTURBED_CORES = 0.25
_QUIET_WINDOW_S = 0.3
_QUIET_WAIT_S = 10.0
# The generator is the bottleneck when it has next to no time left.
SATURATED = 0.95


@dataclass(frozen=True)
class Workload:
    """A row of the table."""

    key: str
    title: str
    connections: int
    # Records of one append, or of one read.
    records: int
    reads: bool = False
    # The sizes of the records, in turns.
    sizes: Sequence[int] = (PAYLOAD_BYTES,)
    # Whether each append has an idempotency key, another one each time.
    keyed: bool = False
    # The schema of the stream (`bench.described`); only servers that support such streams have the row.
    kind: str = ""
    # The number of appends in flight.
    at_once: int = 0
    # Whether ours are sent over a WebSocket.
    socket: bool = False


@dataclass(frozen=True)
class Result:
    """The result of one measurement. CPU shares are of one core."""

    records_per_s: float
    p50_ms: float
    p99_ms: float
    generator_cpu: float
    server_cpu: float
    other_cpu: float


@dataclass(frozen=True)
class LiveResult:
    """The result of one measurement of live delivery. CPU shares are of one core; those of the server and of others are
    over the whole time, in which watchers also connect.
    """

    records: int
    deliveries_per_s: float
    records_a_frame: float
    p50_ms: float
    p99_ms: float
    append_p99_ms: float
    generator_cpu: float
    server_cpu: float
    other_cpu: float


class Turn(msgspec.Struct):
    """The rate of one side in one turn."""

    records: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.records / self.seconds


class Turns(msgspec.Struct):
    """All turns of one side."""

    turns: list[Turn]

    @property
    def rates(self) -> list[float]:
        return [turn.rate for turn in self.turns]


R = TypeVar("R", Result, LiveResult)


@functools.cache
def generator() -> Path:
    """The load generator, built. Raises `Missing` without a compiler."""
    binary = CACHE / "loadgen"
    CACHE.mkdir(exist_ok=True)
    command = [go(), "build", "-buildvcs=false", "-o", str(binary), "."]
    said(command, cwd=_SOURCE, env={**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"})
    return binary


class Load:
    """Puts load on servers from one core."""

    def __init__(
        self, core: int | None, seconds: float, warm_up_s: float, patience_s: float, *, favoured: bool = False
    ) -> None:
        self._core = core
        self.seconds = seconds
        self.warm_up_s = warm_up_s
        self._patience_s = patience_s
        self._favoured = favoured

    def fill(self, target: Running, place: str, total: int) -> None:
        """Appends `total` records, a thousand at a time."""
        size = 1000
        order = {
            "connections": 4, "requests": total // size,
            "request": target.server.speaker.append(place, size), "records": size,
        }  # fmt: skip
        self._order(target, order)

    def measure(self, target: Running, place: str, workload: Workload, total: int = 0) -> Result:
        return self.measure_order(target, order_for(target.server.speaker, place, workload, total))

    def measure_in_turns(self, sides: Sequence[tuple[Running, dict[str, object]]], turns: int) -> list[Turns]:
        """Returns the rates of each order when the orders are carried out in turns. A server is held while it is not
        its turn."""
        whole = {
            "warm_up_s": self.warm_up_s, "seconds": self.seconds, "turns": turns,
            "sides": [
                {
                    "address": target.address, "protocol": target.server.speaker.protocol, "pid": target.pid, **order,
                }
                for target, order in sides
            ],
        }  # fmt: skip
        names = ", ".join(target.server.title for target, _ in sides)
        try:
            answers = self._told([str(generator())], {}, whole, names, len(sides) * turns * self.seconds)
        finally:
            # A generator that was killed leaves them as they are.
            for target, _ in sides:
                os.kill(target.pid, signal.SIGCONT)
        return msgspec.convert(answers, list[Turns])

    def measure_order(self, target: Running, order: dict[str, object]) -> Result:
        """Runs an order and returns the result of the generator."""
        order = {"warm_up_s": self.warm_up_s, "seconds": self.seconds, **order}
        return self.least_disturbed(target, lambda: self._measure_once(target, order))

    def least_disturbed(self, target: Running, attempt: Callable[[], R]) -> R:
        """Returns the least disturbed of several attempts; stops at the first undisturbed one, or when the time for
        retries is used up."""
        best = attempt()
        while best.other_cpu > DISTURBED_CORES and self._patience_s > 0:
            begun = time.monotonic()
            self._await_quiet(target.pid)
            best = min(best, attempt(), key=lambda result: result.other_cpu)
            self._patience_s -= time.monotonic() - begun
        return best

    def _await_quiet(self, pid: int) -> None:
        """Waits until other processes are idle, but leaves enough time for the remaining measurements."""
        deadline = time.monotonic() + min(self._patience_s, _QUIET_WAIT_S)
        before = Usage(pid)
        while time.monotonic() < deadline:
            time.sleep(_QUIET_WINDOW_S)
            after = Usage(pid)
            if (after.others - before.others) / _QUIET_WINDOW_S < DISTURBED_CORES:
                return
            before = after

    def _measure_once(self, target: Running, order: dict[str, object]) -> Result:
        before = Usage(target.pid)
        answer = self._order(target, order)
        after = Usage(target.pid)
        wall = self.warm_up_s + answer["seconds"]
        return Result(
            records_per_s=answer["records"] / answer["seconds"],
            p50_ms=answer["p50_ms"],
            p99_ms=answer["p99_ms"],
            generator_cpu=answer["cpu_s"] / answer["seconds"],
            server_cpu=(after.server - before.server) / wall,
            other_cpu=max(0.0, after.others - before.others) / wall,
        )

    def measure_live(self, target: Running, order: dict[str, object]) -> LiveResult:
        """Measures the latency of records from a writer to watchers."""
        whole = {"protocol": "live", "warm_up_s": self.warm_up_s, "seconds": self.seconds, **order}
        before = Usage(target.pid)
        begun = time.monotonic()
        answer = self._order(target, whole)
        wall = time.monotonic() - begun
        after = Usage(target.pid)
        seconds = answer["seconds"]
        return LiveResult(
            records=int(answer["records"]),
            deliveries_per_s=answer["deliveries"] / seconds,
            records_a_frame=answer["deliveries"] / max(answer["frames"], 1),
            p50_ms=answer["p50_ms"],
            p99_ms=answer["p99_ms"],
            append_p99_ms=answer["append_p99_ms"],
            generator_cpu=answer["cpu_s"] / seconds,
            server_cpu=(after.server - before.server) / wall,
            other_cpu=max(0.0, after.others - before.others) / wall,
        )

    def _order(self, target: Running, order: dict[str, object]) -> dict[str, float]:
        whole = {"address": target.address, "protocol": target.server.speaker.protocol, **order}
        server = target.server
        answer: dict[str, float] = self._told(
            server.client or [str(generator())], server.client_env, whole, server.title, self.seconds
        )
        return answer

    def _told(
        self, command: list[str], env: dict[str, str], whole: dict[str, object], title: str, takes_s: float
    ) -> Any:
        """Returns the answer of the generator to an order."""
        limit_s = self.warm_up_s + takes_s + 300
        process = subprocess.Popen(
            pinned(self._core, command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "GOMAXPROCS": "1", **env},
            start_new_session=True,
        )
        try:
            if self._favoured:
                favour(process.pid)
            answered, complaint = process.communicate(json.dumps(whole), timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{title}: no end after {limit_s:.0f} s") from error
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode != 0:
            raise RuntimeError(f"{title}: {complaint.strip()}")
        return json.loads(answered)


def order_for(speaker: Speaker, place: str, workload: Workload, total: int = 0) -> dict[str, object]:
    """Returns the order for the generator."""
    order: dict[str, object] = {"connections": workload.connections}
    if workload.reads:
        return order | {"name": speaker.target(place), "limit": workload.records, "total": total}
    if workload.at_once:
        return order | _row(speaker, place, workload)
    first, *others = [speaker.append(place, workload.records, size) for size in workload.sizes]
    if workload.keyed:
        first, *others = [with_key(request) for request in (first, *others)]
    return order | {"request": first, "others": others, "records": workload.records}


def _row(speaker: Speaker, place: str, workload: Workload) -> dict[str, object]:
    """A row of appends that do not wait for each other."""
    row: dict[str, object] = {"records": workload.at_once, "answers": workload.at_once}
    if workload.socket and speaker.protocol == "topics":
        return row | {"protocol": "topics-ws", "request": publish(place)}
    return row | {"request": speaker.at_once(place, workload.at_once)}


def _used_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Usage:
    """Processor time used so far, in seconds: by the server, and by all other processes but ours and the generator."""

    def __init__(self, pid: int) -> None:
        self.server = _used_s(pid)
        started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        children = sum(_used_s(int(child)) for child in started)
        # user, nice, system, then idle and waiting for the disk, then interrupts and the time that the host took.
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        busy = (sum(ticks[:3]) + sum(ticks[5:8])) / _TICKS
        own = sum(
            usage.ru_utime + usage.ru_stime
            for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )
        self.others = busy - self.server - children - own
