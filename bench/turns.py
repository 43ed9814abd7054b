"""`python -m bench.turns`: the longest turn of the loop that each kind of request causes at its largest.

One server with a clock in its loop (`bench.turns_server`), one kind of request after the other, each a few times; the
result is the longest turn of the loop in the best of them, in processor time, so that it means the same on a busy
machine. The setup of a row is not measured. `--seen` reports the running code in turns that were too long, and with
`--write` the report goes into bench/results/turns.md.
"""

import argparse
import contextlib
import gzip
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.report import Sheet, machine, write_results
from topics import __version__

MB = 1_000_000
_AIM_MS = 10.0
_TIMEOUT_S = 120
_METHOD = """\
One server with a clock in its loop, one kind of request after the other, each at its largest and a few times. The
result is the longest turn of the loop in the best of them, in processor time. Other requests wait at most this
long."""
_SETTINGS = {
    "TOPICS_AWAKE_US": "0", "TOPICS_MAX_TOPICS": "0", "TOPICS_LOG_LEVEL": "error",
    "TOPICS_PIPELINE": "off",
    "TOPICS_SNAPSHOT_WAL_BYTES": str(2**40),
}  # fmt: skip
_REST_S = 0.3
SCHEMA = {
    "type": "object", "required": ["k"],
    "properties": {
        "k": {"type": "string"}, "n": {"type": "integer"}, "a": {"type": "array", "items": {"type": "integer"}},
    },
}  # fmt: skip


class Server:
    """The server, and the requests to it."""

    def __init__(self, folder: Path) -> None:
        address = folder / "address"
        environment = {
            **os.environ, **_SETTINGS, "TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(address),
            "TOPICS_DATA_DIR": str(folder / "data"), "TOPICS_BACKUP_DIR": str(folder / "backups"),
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.turns_server"], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + _TIMEOUT_S
        while not address.exists() and self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        self.address = address.read_text().strip()
        self._connection = http.client.HTTPConnection(self.address, timeout=_TIMEOUT_S)
        while self.ask("GET", "/v0/ready", quietly=True)[0] != 200 and time.monotonic() < deadline:
            time.sleep(0.05)

    def ask(
        self, method: str, path: str, body: object = None, quietly: bool = False, **headers: str
    ) -> tuple[int, bytes]:
        """The answer. Values other than bytes are sent as JSON; a status of 300 or above raises an error, unless
        `quietly`."""
        said = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        words = {"content-type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
        self._connection.request(method, path, said, words)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 300 and not quietly:
            raise RuntimeError(f"{method} {path} was answered {answer.status}: {text[:300]!r}")
        return answer.status, text

    def connect(self) -> socket.socket:
        host, port = self.address.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)

    def longest_turn(self) -> tuple[float, str]:
        """The longest turn since the last call, in milliseconds, and the code seen in it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        reported = json.loads(self._process.stdout.readline())
        return reported["longest_ms"], reported["seen"]

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


Act = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """A kind of request: `prepare` creates its resources in a separate place and returns the call to measure."""

    title: str
    prepare: Callable[[Server, str], Act]
    times: int = 3


def value(nbytes: int, number: int = 0) -> bytes:
    return b'{"k":"%b","n":%d}' % (b"x" * max(nbytes - 15, 1), number)


def values(count: int, nbytes: int) -> bytes:
    return b"[" + b",".join([value(nbytes, number) for number in range(count)]) + b"]"


def records(count: int, nbytes: int, beside: bytes = b"") -> bytes:
    each = b'{"data":%b%b}'
    return b'{"records":[' + b",".join([each % (value(nbytes, number), beside) for number in range(count)]) + b"]}"


def to_topic(body: bytes, **headers: str) -> Callable[[Server, str], Act]:
    def prepare(server: Server, place: str) -> Act:
        server.ask("PUT", f"/v0/topics/{place}", {})
        return lambda: server.ask("POST", f"/v0/topics/{place}", body, False, **headers)

    return prepare


def to_stream(
    content_type: str, body: Callable[[], bytes], described: object = None, profile: object = None, **headers: str
) -> Callable[[Server, str], Act]:
    def prepare(server: Server, place: str) -> Act:
        path, said = f"/v1/stream/{place}", body()
        server.ask("PUT", path, content_type=content_type)
        if profile is not None:
            server.ask("POST", f"{path}/_profile", {"apiVersion": "durable.streams/profile/v1", "profile": profile})
        if described is not None:
            server.ask("POST", f"{path}/_schema", described)
        return lambda: server.ask("POST", path, said, False, content_type=content_type, **headers)

    return prepare


def filled(server: Server, place: str, count: int, nbytes: int, tags: int = 0, config: object = None) -> None:
    """A topic with records and, if given, a number of different tags."""
    server.ask("PUT", f"/v0/topics/{place}", config or {})
    for begin in range(0, count, 1000):
        some = [
            {"data": {"k": "x" * nbytes, "n": number}, **({"tag": f"t{number % tags}"} if tags else {})}
            for number in range(begin, min(begin + 1000, count))
        ]
        server.ask("POST", f"/v0/topics/{place}", {"records": some})


def diff(count: int, nbytes: int, **asked: object) -> Callable[[Server, str], Act]:
    def prepare(server: Server, place: str) -> Act:
        filled(server, place, count, nbytes, tags=7)
        return lambda: server.ask(
            "POST", f"/v0/topics/{place}/diff", {"from_seq": 0, "limit": 1000, "max_bytes": 8 << 20, **asked}
        )

    return prepare


def streamed(content_type: str, body: bytes, times: int, query: str) -> Callable[[Server, str], Act]:
    """A read of a stream; of an event stream until it is up to date."""

    def prepare(server: Server, place: str) -> Act:
        path = f"/v1/stream/{place}"
        server.ask("PUT", path, content_type=content_type)
        for _ in range(times):
            server.ask("POST", path, body, content_type=content_type)
        if "sse" not in query:
            return lambda: server.ask("GET", path + query)
        return lambda: _events(server, path + query, b'"upToDate":true')

    return prepare


def _events(server: Server, path: str, until: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
        tail = b""
        while until not in tail:
            part = connection.recv(1 << 20)
            if not part:
                raise RuntimeError(f"{path} ended early: {tail[-300:]!r}")
            tail = tail[-100:] + part


def watched(topics: int, count: int) -> Callable[[Server, str], Act]:
    def prepare(server: Server, place: str) -> Act:
        names = [f"{place}-{number}" for number in range(topics)]
        for name in names:
            filled(server, name, count, 500)

        def act() -> None:
            asked = {"topics": {name: {"from_seq": 0} for name in names}}
            session = json.loads(server.ask("POST", "/v0/watch", asked)[1])
            _events(server, session["stream_url"], b"caught-up")

        return act

    return prepare


def deleted(selector: object, count: int = 200_000, tags: int = 7) -> Callable[[Server, str], Act]:
    def prepare(server: Server, place: str) -> Act:
        filled(server, place, count, 40, tags=tags)
        return lambda: server.ask("POST", f"/v0/topics/{place}/delete", selector)

    return prepare


def dropped(server: Server, place: str) -> Act:
    filled(server, place, 200_000, 40, tags=200_000)
    return lambda: server.ask("DELETE", f"/v0/topics/{place}")


def capped(server: Server, place: str) -> Act:
    filled(server, place, 200_000, 40, tags=7)
    return lambda: server.ask("PUT", f"/v0/topics/{place}", {"cap_records": 10, "cap_bytes": 1000})


def many_topics(count: int, method: str, path: str, body: object = None) -> Callable[[Server, str], Act]:
    def prepare(server: Server, place: str) -> Act:
        have = len(json.loads(server.ask("GET", f"/v0/topics?prefix={_MANY}&limit=1000")[1])["topics"])
        if have < 1000:
            with server.connect() as connection:
                for begin in range(0, count, 64):
                    names = [f"{_MANY}{number:06d}" for number in range(begin, begin + 64)]
                    said = [f"PUT /v0/topics/{name} HTTP/1.1\r\n{_HEAD_OF_PUT}" for name in names]
                    connection.sendall("".join(said).encode())
                    heard = b""
                    while heard.count(b"HTTP/1.1 2") < 64:
                        part = connection.recv(1 << 16)
                        if not part:
                            raise RuntimeError(f"the server hung up: {heard[-300:]!r}")
                        heard += part
        return lambda: server.ask(method, path, body)

    return prepare


_MANY = "many-"
_HEAD_OF_PUT = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def subscribed(server: Server, place: str) -> Act:
    many_topics(20_000, "GET", "/v0/health")(server, place)
    subscription = f"/v1/stream/__ds/subscriptions/{place}"
    asked = {"type": "pull-wake", "pattern": f"{_MANY}00*", "wake_stream": f"{place}-wake"}

    def act() -> None:
        server.ask("PUT", subscription, asked)
        server.ask("GET", subscription)
        server.ask("DELETE", subscription)

    return act


def committed(parts: int, count: int, nbytes: int) -> Callable[[Server, str], Act]:
    def prepare(server: Server, place: str) -> Act:
        server.ask("POST", "/v0/transactions", {"id": place, "sequence": 0})
        for part in range(parts):
            some = [{"data": {"k": "x" * nbytes, "n": number}, "tag": f"t{number}"} for number in range(count)]
            body = {"sequence": 0, "part": f"p{part}", "topic": f"{place}-{part % 10}", "records": some}
            server.ask("POST", f"/v0/transactions/{place}/stage", body)
        return lambda: server.ask("POST", f"/v0/transactions/{place}/commit", {"sequence": 0})

    return prepare


def claimed(server: Server, place: str) -> Act:
    filled(server, place, 100_000, 40, config={"type": "queue"})
    return lambda: server.ask("POST", f"/v0/topics/{place}/claim", {"max": 1000, "node": "n", "lease_ms": 60_000})


def acked(server: Server, place: str) -> Act:
    claimed(server, place)
    reported = json.loads(server.ask("POST", f"/v0/topics/{place}/claim", {"max": 1000, "node": "n"})[1])
    seqs = [job["$seq"] for job in reported["claimed"]]
    return lambda: server.ask("POST", f"/v0/topics/{place}/ack", {"node": "n", "seqs": seqs})


def routed(server: Server, place: str) -> Act:
    server.ask("PUT", f"/v0/topics/{place}", {})
    for number in range(1000):
        server.ask("PUT", f"/v0/routers/{place}-{number}", {"source": place, "dest": f"{place}-to-{number}"})
    body = records(1, 200)

    def act() -> None:
        server.ask("POST", f"/v0/topics/{place}", body)
        time.sleep(0.5)

    return act


def routed_much(server: Server, place: str) -> Act:
    server.ask("PUT", f"/v0/topics/{place}", {})
    server.ask("PUT", f"/v0/routers/{place}", {"source": place, "dest": f"{place}-to", "match": "t1"}, quietly=True)
    body = records(10_000, 200, b',"tag":"t1"')

    def act() -> None:
        server.ask("POST", f"/v0/topics/{place}", body)
        time.sleep(0.5)

    return act


def forked(server: Server, place: str) -> Act:
    path = f"/v1/stream/{place}"
    server.ask("PUT", path)
    for _ in range(5):
        server.ask("POST", path, values(50_000, 60))
    numbers = iter(range(100))
    return lambda: server.ask("PUT", f"{path}-fork{next(numbers)}", stream_forked_from=path)


def _field(kind: str, pointer: str, *flags: str) -> dict[str, object]:
    return {"kind": kind, "bindings": [{"version": 1, "jsonPointer": pointer}], **dict.fromkeys(flags, True)}


DESCRIPTION = {
    "schema": {"type": "object"},
    "search": {
        "primaryTimestampField": "at",
        "fields": {
            "at": _field("date", "/n", "column"),
            "k": _field("keyword", "/k", "exact", "sortable", "column"),
            "n": _field("integer", "/n", "exact", "column", "sortable"),
        },
    },
}


def searched(
    method: str, below: str, body: object = None, count: int = 50_000, size: int = 60
) -> Callable[[Server, str], Act]:
    """A query of a stream of 200,000 entries, or of other entries, that are indexed by then."""

    def prepare(server: Server, place: str) -> Act:
        path = f"/v1/stream/{place}"
        server.ask("PUT", path)
        server.ask("POST", f"{path}/_schema", DESCRIPTION)
        for _ in range(4):
            server.ask("POST", path, values(count, size))
        while not json.loads(server.ask("POST", f"{path}/_search", {"size": 1})[1])["coverage"]["complete"]:
            time.sleep(0.1)
        return lambda: server.ask(method, path + below, body)

    return prepare


def schema_put(server: Server, place: str) -> Act:
    path = f"/v1/stream/{place}"
    server.ask("PUT", path)
    wide = {"type": "object", "properties": {f"name{number}": {"type": "string"} for number in range(5000)}}
    return lambda: server.ask("POST", f"{path}/_schema", {"schema": wide}, quietly=True)


def backed_up(server: Server, place: str) -> Act:
    many_topics(20_000, "GET", "/v0/health")(server, place)

    def act() -> None:
        server.ask("POST", "/v0/backups")
        while json.loads(server.ask("GET", "/v0/backups")[1])["running"]:
            time.sleep(0.02)

    return act


ROWS = (
    Row("/v0 append, 10,000 records of 30 bytes", to_topic(records(10_000, 30))),
    Row("/v0 append, 10,000 with tag and meta", to_topic(records(10_000, 30, b',"tag":"t","meta":{"a":1,"b":"c"}'))),
    Row("/v0 append, 10,000 with 64 meta keys", to_topic(
        records(10_000, 30, b',"meta":' + json.dumps({f"k{number}": number for number in range(64)}).encode()))),
    Row("/v0 append, 10,000 of 5 KB", to_topic(records(10_000, 5000))),
    Row("/v0 append, 60 of 1 MB", to_topic(records(60, 1_000_000))),
    Row("/v0 append, 10,000 keyed", to_topic(b'{"idempotency_key":"k",' + records(10_000, 30)[1:])),
    Row("/v0 append, 10,000, gzip", to_topic(gzip.compress(records(10_000, 5000), 1), content_encoding="gzip")),
    Row("/v1 append, 100,000 values of 20 bytes", to_stream("application/json", lambda: values(100_000, 20))),
    Row("/v1 append, 100,000 ones", to_stream("application/json", lambda: b"[" + b"1," * 99_999 + b"1]")),
    Row("/v1 append, 60,000 values of 1 KB", to_stream("application/json", lambda: values(60_000, 1000))),
    Row("/v1 append, 100,000 with a key", to_stream("application/json", lambda: values(100_000, 20), stream_key="k")),
    Row("/v1 append, 100,000 to a schema", to_stream(
        "application/json", lambda: values(100_000, 30), {"schema": SCHEMA})),
    Row("/v1 append, 60,000 of 1 KB to a schema", to_stream(
        "application/json", lambda: values(60_000, 1000), {"schema": SCHEMA})),
    Row("/v1 append, 100,000 by a routing key", to_stream(
        "application/json", lambda: values(100_000, 30), {"routingKey": {"jsonPointer": "/k", "required": True}})),
    Row("/v1 append, 20,000 of evlog", to_stream(
        "application/json", lambda: values(20_000, 60), profile={"kind": "evlog"})),
    Row("/v1 append, 60 MB of bytes", to_stream("application/octet-stream", lambda: os.urandom(60 * MB))),
    Row("/v1 append, 60 MB of text", to_stream("text/plain", lambda: b"some words\n" * (60 * MB // 11))),
    Row("/v1 append, 1 MB of bytes", to_stream("application/octet-stream", lambda: os.urandom(MB))),
    Row("/v0 diff, 1,000 of 40 bytes", diff(2000, 40)),
    Row("/v0 diff, 8 MB", diff(1000, 8000)),
    Row("/v0 diff, 8 MB, a node left out", diff(1000, 8000, node="n")),
    Row("/v0 diff, a tag of 200,000 records", diff(200_000, 40, match="t3")),
    Row("/v0 diff, a tag that is not there", diff(200_000, 40, match="nothing")),
    Row("/v1 read, JSON of 1 KB values", streamed("application/json", values(10_000, 1000), 3, "?offset=-1")),
    Row("/v1 read, JSON of ones", streamed("application/json", b"[" + b"1," * 99_999 + b"1]", 2, "?offset=-1")),
    Row("/v1 read, bytes of 14 MB", streamed("application/octet-stream", os.urandom(14 * MB), 2, "?offset=-1")),
    Row("/v1 read, bytes of 100", streamed("application/octet-stream", os.urandom(100), 2000, "?offset=-1")),
    Row("/v1 events, JSON of ones", streamed(
        "application/json", b"[" + b"1," * 99_999 + b"1]", 2, "?offset=-1&live=sse")),
    Row("/v1 events, 30 MB of JSON", streamed("application/json", values(10_000, 1000), 3, "?offset=-1&live=sse")),
    Row("/v1 events, 28 MB of bytes", streamed(
        "application/octet-stream", os.urandom(14 * MB), 2, "?offset=-1&live=sse")),
    Row("/v1 events, 28 MB of text", streamed(
        "text/plain", b"a few words\n" * (14 * MB // 12), 2, "?offset=-1&live=sse")),
    Row("watch of 200 topics with 1,000 each", watched(200, 1000)),
    Row("delete by seq, 200,000", deleted({"before_seq": 150_000}), 1),
    Row("delete by tag, 28,000 of 200,000", deleted({"match": "t3"}), 1),
    Row("delete by a glob, all of 200,000", deleted({"match": ["tag", "Glob", "t*"]}), 1),
    Row("delete by a glob, 200,000 tags", deleted({"match": ["tag", "Glob", "t*"]}, tags=200_000), 1),
    Row("a topic of 200,000 dropped", dropped, 1),
    Row("a topic of 200,000 capped at 10", capped, 1),
    Row("metrics of 20,000 topics", many_topics(20_000, "GET", "/v0/metrics?format=prometheus")),
    Row("metrics as JSON of 20,000 topics", many_topics(20_000, "GET", "/v0/metrics")),
    Row("GET topics, 1,000 of 20,000", many_topics(20_000, "GET", "/v0/topics?limit=1000")),
    Row("GET streams, 1,000 of 20,000", many_topics(20_000, "GET", "/v1/streams?limit=1000")),
    Row("a subscription to 10,000 streams", subscribed),
    Row("commit of 10 parts of 10,000", committed(10, 10_000, 40), 1),
    Row("commit of 10 parts of 1,000 of 900 B", committed(10, 1_000, 900), 1),
    Row("commit of 500 parts of 10", committed(500, 10, 40), 1),
    Row("claim of 1,000 of 100,000", claimed),
    Row("ack of 1,000", acked, 1),
    Row("a record to 1,000 routers", routed),
    Row("10,000 records through a router", routed_much),
    Row("fork of a stream of 250,000", forked),
    Row("filter over 200,000 entries", searched("GET", "?offset=-1&filter=n%3A7")),
    Row("search, 500 hits of 60 bytes", searched("POST", "/_search", {"size": 500, "sort": ["n:asc"]})),
    Row("search, 500 hits of 30 KB", searched("POST", "/_search", {"size": 500}, 500, 30_000)),
    Row("search, 100 hits of 160 KB", searched("POST", "/_search", {"size": 100}, 100, 160_000)),
    Row("aggregation of 50,000 groups", searched("POST", "/_aggregate", {"group_by": ["n"]})),
    Row("PUT of a schema of 5,000 members", schema_put),
    Row("backup with 20,000 topics", backed_up, 2),
)  # fmt: skip


@contextlib.contextmanager
def served() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="topics-turns-"))
    server = Server(folder)
    try:
        yield server
    finally:
        server.end()
        shutil.rmtree(folder, ignore_errors=True)


def measure(server: Server, row: Row, place: str, seen: bool) -> float:
    """The longest turn, in milliseconds."""
    act = row.prepare(server, place)
    time.sleep(_REST_S)
    found = []
    for _ in range(row.times):
        server.longest_turn()
        act()
        # Work that a request causes later, such as sealing, counts for the row.
        time.sleep(_REST_S)
        found.append(server.longest_turn())
    longest, what = min(found)
    print(f"{row.title}: {longest:.1f} ms" + (f"\n{what}" if seen and what else ""), flush=True)
    return longest


def report(found: dict[str, float], failed: dict[str, str]) -> str:
    """The page's text, and the same on the terminal."""
    sheet = Sheet(Console())
    sheet.paragraph(f"Measured with `python -m bench.turns` on {machine({'topics': __version__})}.")
    sheet.paragraph(_METHOD)
    rows = [[title, f"{ms:.1f}", "met" if ms <= _AIM_MS else "missed"] for title, ms in found.items()]
    rows += [[title, f"failed: {why}", ""] for title, why in failed.items()]
    sheet.table("Longest turns of the loop", ["request", "longest turn, ms of processor time", "aim 10"], rows)
    return sheet.text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows with these words in their titles")
    parser.add_argument("--behind", type=int, default=0, help="leave out so many rows")
    parser.add_argument("--seen", action="store_true", help="tell what the loop was at in long turns")
    parser.add_argument("--write", action="store_true", help="puts the report into bench/results/turns.md")
    arguments = parser.parse_args()
    found: dict[str, float] = {}
    failed: dict[str, str] = {}
    with served() as server:
        for number, row in enumerate(ROWS):
            if number >= arguments.behind and arguments.only in row.title:
                try:
                    found[row.title] = measure(server, row, f"row{number}", arguments.seen)
                except (RuntimeError, OSError, KeyError) as error:
                    failed[row.title] = repr(error)
                    server._connection.close()
    text = report(found, failed)
    if arguments.write:
        write_results(text, "turns", "Turns of the event loop")


if __name__ == "__main__":
    main()
