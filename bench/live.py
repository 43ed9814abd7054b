"""`make bench-live`: the latency of a record from its writer to every watcher, also through routers.

Starts the server on one core and the load generator on another. Records leave at a fixed rate; their time runs from the
moment they were due until a watcher has them, so waiting at the server's door counts. Every watcher must get every
record, or the run fails. With `--write` the report goes into bench/results/races.md.
"""

import argparse
import base64
import http.client
import json
import os
import sys
from dataclasses import dataclass

from rich.console import Console

from bench import races
from bench.command import end_with_servers
from bench.install import Missing
from bench.live_report import FanOut, LiveReport, LiveResults, Watching
from bench.load import LiveResult, Load, generator
from bench.peers import OURS, Running, own_cores, running
from bench.report import machine, write_results

SERVER = OURS["disk"]
PAYLOAD_BYTES = 200
STAMP = "~t~" + "0" * 16
TOPICS_A_SESSION = 250
WATCHING = (
    Watching("sse", 1, 200),
    Watching("sse", 100, 200, p99_ms_max=5.0),
    Watching("sse", 1000, 150, p99_ms_max=20.0),
    Watching("sse", 100, 2000),
    Watching("sse", 1000, 1000),
    Watching("ws", 1, 200),
    Watching("ws", 100, 200, p99_ms_max=5.0),
    Watching("ws", 1000, 150, p99_ms_max=20.0),
    Watching("ws", 100, 2000),
    Watching("ws", 1000, 1000),
)
FAN_OUTS = (FanOut(0, 200), FanOut(1, 200), FanOut(10, 200), FanOut(100, 200), FanOut(1000, 20))
RACES = 4000
_TIMEOUT_S = 60


@dataclass(frozen=True)
class Transport:
    """The handshake of a watcher, and how the generator detects that it is live and counts frames."""

    ready: str
    frame: str


TRANSPORTS = {"sse": Transport("caught-up", '"to_seq"'), "ws": Transport("caught_up", '"to_seq"')}


class Server:
    """The requests that the benchmark sends besides the load."""

    def __init__(self, target: Running) -> None:
        self._connection = http.client.HTTPConnection(target.address, timeout=_TIMEOUT_S)

    def ask(self, method: str, path: str, body: object = None) -> dict[str, object]:
        encoded = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        self._connection.request(method, path, encoded, headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path} was answered {answer.status}: {text[:300]!r}")
        found: dict[str, object] = json.loads(text)
        return found

    def make(self, topic: str) -> None:
        self.ask("PUT", f"/v0/topics/{topic}", {"durability": "disk"})

    def log_bytes(self) -> float:
        found = self.ask("GET", "/v0/metrics")["topics_wal_bytes_written_total"]
        assert isinstance(found, float)
        return found

    def event_stream(self, topics: list[str]) -> dict[str, str]:
        """A watcher of an event stream."""
        session = self.ask("POST", "/v0/watch", {"topics": {topic: {"tail": True} for topic in topics}})
        request = f"GET {session['stream_url']} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        return {"hello": _encoded(request.encode())}

    def web_socket(self, topics: list[str]) -> dict[str, str]:
        """A watcher on a WebSocket."""
        upgrade = (
            "GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        subscribe = {"op": "subscribe", "request_id": "1", "topics": {topic: {"tail": True} for topic in topics}}
        return {"hello": _encoded(upgrade.encode()), "then": _encoded(races.text_frame(subscribe))}

    def watcher(self, transport: str, topics: list[str]) -> dict[str, str]:
        return self.event_stream(topics) if transport == "sse" else self.web_socket(topics)


class Bench:
    def __init__(self, seconds: float, patience_s: float, *, favoured: bool) -> None:
        self._server_core, load_core = own_cores()
        self._load = Load(load_core, seconds, warm_up_s=1.0, patience_s=patience_s, favoured=favoured)
        self._favoured = favoured
        self._progress = Console(stderr=True)
        self._topics = 0
        self.results = LiveResults()

    def run(self, watching: list[Watching], fan_outs: list[FanOut]) -> None:
        for row in watching:
            with running(SERVER, self._server_core, favoured=self._favoured) as target:
                result = self._load.least_disturbed(target, lambda row=row, target=target: self._watch(target, row))  # type: ignore[misc]
                self.results.watching[row] = result
                self._say(f"{row.title}: {_told(result)}")
        for fan_out in fan_outs:
            with running(SERVER, self._server_core, favoured=self._favoured) as target:
                result = self._load.least_disturbed(target, lambda row=fan_out, target=target: self._route(target, row))  # type: ignore[misc]
                self.results.routing[fan_out] = result
                self._say(f"{fan_out.title}: {_told(result)}, {self.results.log_bytes[fan_out]:.0f} B of log a record")

    def _watch(self, target: Running, row: Watching) -> LiveResult:
        server, topic = Server(target), self._new_topic()
        server.make(topic)
        watchers = [server.watcher(row.transport, [topic]) for _ in range(row.watchers)]
        return self._measure(target, topic, row.transport, watchers, row.rate, row.watchers)

    def _route(self, target: Running, row: FanOut) -> LiveResult:
        """Watches every destination, or the source if there is none."""
        server, source = Server(target), self._new_topic()
        server.make(source)
        dests = [f"{source}-to-{number}" for number in range(row.routers)]
        for dest in dests:
            server.ask("PUT", f"/v0/routers/{dest}", {"source": source, "dest": dest})
        watched = dests or [source]
        groups = [watched[at : at + TOPICS_A_SESSION] for at in range(0, len(watched), TOPICS_A_SESSION)]
        watchers = [server.event_stream(group) for group in groups]
        before = server.log_bytes()
        result = self._measure(target, source, "sse", watchers, row.rate, len(watched))
        # The warm-up is logged, too.
        records = result.records * (1 + self._load.warm_up_s / self._load.seconds)
        self.results.log_bytes[row] = (server.log_bytes() - before) / records
        return result

    def _measure(
        self, target: Running, topic: str, transport: str, watchers: list[dict[str, str]], rate: float, copies: int
    ) -> LiveResult:
        order: dict[str, object] = {
            "watchers": watchers, "ready": TRANSPORTS[transport].ready, "frame": TRANSPORTS[transport].frame,
            "append": _encoded(_append(topic)), "writers": 16, "rate": rate, "copies": copies,
        }  # fmt: skip
        return self._load.measure_live(target, order)

    def _new_topic(self) -> str:
        self._topics += 1
        return f"live{self._topics}"

    def _say(self, line: str) -> None:
        self._progress.print(line, highlight=False, markup=False, soft_wrap=True)


def _told(result: LiveResult) -> str:
    return (
        f"p50 {result.p50_ms:.2f} ms, p99 {result.p99_ms:.2f} ms, {result.deliveries_per_s:,.0f} deliveries/s, "
        f"{result.records_a_frame:.1f} records a frame, CPU: server {result.server_cpu:.0%}, "
        f"generator {result.generator_cpu:.0%}, others {result.other_cpu:.0%}"
    )


def _priority(favoured: bool) -> str:
    """A note for the report about the priority of the processes."""
    if os.sched_getscheduler(0) == os.SCHED_FIFO:
        return ", both with real-time priority"
    return ", both with raised priority" if favoured else ""


def _append(topic: str) -> bytes:
    """The complete bytes of an append of one record that contains a time stamp."""
    data = {"k": "x" * (PAYLOAD_BYTES - len('{"k":"","t":""}') - len(STAMP)), "t": STAMP}
    body = json.dumps({"records": [{"data": data}]}, separators=(",", ":"))
    head = f"POST /v0/topics/{topic}?return_seqs=false HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a second a row")
    parser.add_argument("--write", action="store_true", help="write the report into bench/results/races.md")
    parser.add_argument("--only", metavar="KIND", choices=["sse", "ws", "routers"], help="one of sse, ws, routers")
    parser.add_argument("--races", action="store_true", help="races of writes and beginnings to follow, and no more")
    parser.add_argument(
        "--patience", type=float, default=120, metavar="SECONDS", help="to repeat what other processes disturbed"
    )
    parser.add_argument(
        "--priority", action="store_true", help="go before everything else on the machine; needs root, starves others"
    )
    arguments = parser.parse_args()
    try:
        generator()
        version = SERVER.install()
    except Missing as error:
        sys.exit(f"bench-live cannot run: {error}")
    end_with_servers("bench-live")
    console = Console(width=None if sys.stdout.isatty() else 200)
    if arguments.races:
        text = races.run(300 if arguments.quick else RACES, console, machine({SERVER.product: version}))
        if arguments.write:
            write_results(text, "races", "Races between a write and a new follower")
        return
    bench = Bench(1.0 if arguments.quick else 5.0, arguments.patience, favoured=arguments.priority)
    bench.run(
        [row for row in WATCHING if arguments.only in (None, row.transport)],
        list(FAN_OUTS) if arguments.only in (None, "routers") else [],
    )
    text = LiveReport(bench.results, console).make(machine({SERVER.product: version}), _priority(arguments.priority))
    if arguments.write:
        write_results(text, "live", "Live delivery")


if __name__ == "__main__":
    main()
