"""Attacks, and a well-behaved client that is served beside them.

Nothing here asserts a time: how long the well-behaved client waited and how much memory the server took are reported.
The assertions are that every request was answered, and that the server stayed within its budgets.
"""

import socket
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx

REPORT: list[str] = []
"""A line for each attack, for a caller that wants to read them; see `conftest`."""


class Seen(NamedTuple):
    """The results of a well-behaved client."""

    answers: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    resident_mib: float


def resident_mib(pid: int) -> float:
    fields = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in fields if line.startswith("VmHWM"))
    return kib / 1024


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)))


def beside(
    name: str, url: str, pid: int, attack: Callable[[threading.Event], None], asks: int = 200, pressing: bool = False
) -> Seen:
    """Appends, reads and asks for health while an attack runs in its own thread. An attack that keeps the disk busy is
    `pressing`: then appends may be put off."""
    over = threading.Event()
    begun = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            begun.set()
            attack(over)
        except (ConnectionError, TimeoutError):
            pass  # A server may end a connection that misbehaves.
        except BaseException as error:
            failures.append(error)

    attacker = threading.Thread(target=run, daemon=True)
    waited: list[float] = []
    with httpx.Client(base_url=url, timeout=60.0) as client:
        client.post("/v0/topics/calm", json={"records": [{"data": 0}]}).raise_for_status()
        attacker.start()
        begun.wait()
        for number in range(asks):
            begin = time.perf_counter()
            kind = number % 3
            if kind == 0:
                answer = client.post("/v0/topics/calm", json={"records": [{"data": number}]})
            elif kind == 1:
                answer = client.post("/v0/topics/calm/diff", json={"from_seq": 0, "limit": 10})
            else:
                answer = client.get("/v0/health")
            put_off = pressing and answer.status_code == 429
            assert answer.is_success or put_off, (name, answer.status_code, answer.text)
            waited.append((time.perf_counter() - begin) * 1000.0)
    over.set()
    attacker.join()
    assert not failures, failures
    cuts = statistics.quantiles(waited, n=100)
    seen = Seen(len(waited), statistics.median(waited), cuts[98], max(waited), resident_mib(pid))
    REPORT.append(
        f"{name:<40} p50 {seen.p50_ms:8.1f} ms   p99 {seen.p99_ms:8.1f} ms   worst {seen.worst_ms:8.1f} ms   "
        f"memory {seen.resident_mib:7.0f} MiB"
    )
    return seen


def flooding(url: str, data: bytes, connections: int, *, reads: bool = True) -> Callable[[threading.Event], None]:
    """Many connections that send the same bytes again and again, as fast as they are taken."""

    def attack(over: threading.Event) -> None:
        sockets = [connect(url) for _ in range(connections)]
        left = [memoryview(data)] * connections
        for each in sockets:
            each.setblocking(False)
        try:
            while not over.is_set():
                moved = False
                for place, each in enumerate(sockets):
                    try:
                        sent = each.send(left[place])
                        left[place] = left[place][sent:] or memoryview(data)
                        moved = True
                    except BlockingIOError:
                        pass
                    except OSError:
                        sockets[place] = connect(url)
                        sockets[place].setblocking(False)
                        left[place] = memoryview(data)
                        continue
                    if reads:
                        try:
                            each.recv(1 << 20)
                        except OSError:
                            continue
                if not moved:
                    time.sleep(0.001)
        finally:
            for each in sockets:
                each.close()

    return attack
