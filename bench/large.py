"""`python -m bench.large`: appends of one to fourteen megabytes over /v1 beside the Node reference server, and the
latency of small requests meanwhile. With `--write` the report goes into bench/results/large.md.

Both servers run at once on one core and are measured in turns, so that whatever else the machine does happens to both.
One connection uploads one body after the other; beside it its own process appends one short record every five
milliseconds to another stream and notes how long the answer took.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

from rich.console import Console

from bench.command import end_with_servers
from bench.load import Usage
from bench.peers import OURS_V1, PEERS, Running, own_cores, running
from bench.protocols import payload
from bench.report import Sheet, machine, write_results

MB = 1_000_000
SIZES_MB = (1, 4, 14)
KINDS = ("values", "bytes", "text")
SERVERS = {server.key: server for server in (OURS_V1, *PEERS) if server.key in ("topics-v1", "node")}
_VALUE_BYTES = 1_000
_EVERY_S = 0.005
_TIMEOUT_S = 60
_RATIO_AIM, _WAIT_AIM_MS = 1.5, 20.0
_METHOD = """\
Both servers run at once, each as one process on one core, and are measured in turns. One connection uploads one body
after the other over /v1; beside it another process appends a short record every five milliseconds to another stream and
waits for its answer. A ratio is the median of the ratios of all rounds, with the least and the most in brackets;
latencies are those of all rounds together."""


@dataclass(frozen=True)
class Found:
    """The result of one measurement of one row."""

    mb_per_s: float
    waits_ms: list[float]
    cpu_ms_per_mb: float

    def wait_ms(self, part: float) -> float:
        ordered = sorted(self.waits_ms)
        return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def body_of(kind: str, nbytes: int) -> tuple[str, bytes]:
    """A content type and a body of it."""
    if kind == "values":
        return "application/json", b"[" + b",".join([payload(_VALUE_BYTES).encode()] * (nbytes // _VALUE_BYTES)) + b"]"
    if kind == "text":
        return "text/plain", b"a line of some text, again and again\n" * (nbytes // 37)
    return "application/octet-stream", bytes(range(256)) * (nbytes // 256)


def request(method: str, path: str, content_type: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


Sides = dict[str, list[Found]]
"""The rounds of each server."""


class Caller:
    """A connection that waits for each answer."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, said: bytes) -> int:
        """The status of the answer; its body, if it has one, is short."""
        self._socket.sendall(said)
        heard = b""
        while b"\r\n\r\n" not in heard:
            part = self._socket.recv(65536)
            if not part:
                raise RuntimeError(f"the server hung up after {heard!r}")
            heard += part
        return int(heard.split(b" ", 2)[1])

    def close(self) -> None:
        self._socket.close()


def neighbour(address: str, path: str, core: int | None, pipe: Connection) -> None:
    """Appends a short record at intervals until a line arrives on standard input, and prints the latencies in
    milliseconds."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    caller = Caller(address)
    said = request("POST", path, "application/json", payload(200).encode())
    waits: list[float] = []
    due = time.perf_counter()
    while not pipe.poll():
        begun = time.perf_counter()
        status = caller.ask(said)
        waits.append((time.perf_counter() - begun) * 1000 if status < 300 else float("inf"))
        due = max(due + _EVERY_S, time.perf_counter())
        time.sleep(max(due - time.perf_counter(), 0))
    pipe.send(waits)


class Bench:
    def __init__(self, seconds: float) -> None:
        self._server_core, self._load_core = own_cores()
        self._seconds = seconds
        self._places = 0

    def run(self, keys: list[str], kinds: list[str], sizes_mb: list[float], rounds: int) -> dict[str, Sides]:
        """The results by size of the records."""
        rows: dict[str, Sides] = {}
        if self._load_core is not None:
            os.sched_setaffinity(0, {self._load_core})
        with contextlib.ExitStack() as up:
            targets = {key: up.enter_context(running(SERVERS[key], self._server_core)) for key in keys}
            for kind in kinds:
                for size_mb in sizes_mb:
                    found: Sides = {key: [] for key in keys}
                    for number in range(rounds):
                        for key in keys if number % 2 else reversed(keys):
                            found[key].append(self._measure(targets[key], kind, int(size_mb * MB)))
                    for key in keys:
                        print(reported(f"{kind} of {size_mb:g} MB, {key}", found[key]), flush=True)
                    rows[f"{kind} of {size_mb:g} MB"] = found
        return rows

    def _measure(self, target: Running, kind: str, nbytes: int) -> Found:
        self._places += 1
        place, beside = f"/v1/stream/large{self._places}", f"/v1/stream/beside{self._places}"
        content_type, body = body_of(kind, nbytes)
        caller = Caller(target.address)
        for path, its_type in ((place, content_type), (beside, "application/json")):
            caller.ask(request("PUT", path, its_type))
        said = request("POST", place, content_type, body)
        with self._neighbour(target, beside) as pipe:
            caller.ask(said)
            usage, begun, count = Usage(target.pid), time.perf_counter(), 0
            while time.perf_counter() - begun < self._seconds:
                status = caller.ask(said)
                if status >= 300:
                    raise RuntimeError(f"{kind} of {nbytes} bytes: answered {status}")
                count += 1
            took, cpu_s = time.perf_counter() - begun, Usage(target.pid).server - usage.server
            pipe.send("enough")
            waits = pipe.recv()
        for path in (place, beside):
            caller.ask(request("DELETE", path, content_type))
        caller.close()
        sent_mb = count * nbytes / MB
        return Found(sent_mb / took, waits, cpu_s * 1000 / sent_mb)

    @contextlib.contextmanager
    def _neighbour(self, target: Running, path: str) -> Iterator[Connection]:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.Process(target=neighbour, args=(target.address, path, self._load_core, theirs))
        process.start()
        try:
            yield ours
        finally:
            process.join(_TIMEOUT_S)
            process.kill()


def together(found: list[Found]) -> Found:
    """The latencies of all rounds together, and the medians of the other numbers."""
    return Found(
        statistics.median([one.mb_per_s for one in found]),
        [wait for one in found for wait in one.waits_ms],
        statistics.median([one.cpu_ms_per_mb for one in found]),
    )


def report(rows: dict[str, Sides], versions: dict[str, str]) -> str:
    """The page's text, and the same on the terminal."""
    sheet = Sheet(Console())
    sheet.paragraph(f"Measured with `python -m bench.large` on {machine(versions)}.")
    sheet.paragraph(_METHOD)
    sheet.table("Long appends, and what others wait meanwhile", [
        "appends of", "ours, MB/s", "Node, MB/s", "ratio", "aim 1.5",
        "others beside ours: p50 (p99), ms", "aim p99 under 20", "others beside Node: p50 (p99), ms",
    ], [_row(title, sides) for title, sides in rows.items()])  # fmt: skip
    return sheet.text


def _row(title: str, sides: Sides) -> list[str]:
    ours, node = together(sides["topics-v1"]), together(sides["node"])
    pairs = zip(sides["topics-v1"], sides["node"], strict=True)
    ratios = sorted(here.mb_per_s / there.mb_per_s for here, there in pairs)
    ratio, wait_ms = statistics.median(ratios), ours.wait_ms(0.99)
    return [
        title, f"{ours.mb_per_s:.0f}", f"{node.mb_per_s:.0f}", f"{ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        "met" if ratio >= _RATIO_AIM else "missed", f"{ours.wait_ms(0.5):.1f} ({wait_ms:.1f})",
        "met" if wait_ms < _WAIT_AIM_MS else "missed", f"{node.wait_ms(0.5):.1f} ({node.wait_ms(0.99):.1f})",
    ]  # fmt: skip


def reported(title: str, found: list[Found]) -> str:
    """A progress line."""
    everyone = together(found)
    return (
        f"{title:32} {everyone.mb_per_s:7.1f} MB/s, {everyone.cpu_ms_per_mb:6.2f} ms CPU a MB; others wait p50 "
        f"{everyone.wait_ms(0.5):6.2f}, p99 {everyone.wait_ms(0.99):7.2f}, at most {everyone.wait_ms(1):7.2f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(SERVERS), help="of the servers")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sizes", default=json.dumps(SIZES_MB), help="in megabytes, as a JSON array")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of one measurement")
    parser.add_argument("--write", action="store_true", help="puts the report into bench/results/large.md")
    arguments = parser.parse_args()
    end_with_servers("bench.large")
    keys = [key for key in SERVERS if key in arguments.only.split(",")]
    versions = {SERVERS[key].product: SERVERS[key].install() for key in keys}
    bench = Bench(arguments.seconds)
    rows = bench.run(keys, arguments.kinds.split(","), json.loads(arguments.sizes), arguments.rounds)
    if len(keys) == len(SERVERS):
        text = report(rows, versions)
        if arguments.write:
            write_results(text, "large", "Large appends")


if __name__ == "__main__":
    main()
