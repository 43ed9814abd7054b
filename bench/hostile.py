"""`python -m bench.hostile`: the effect of one key's attacks on the requests of another key.

One server with default settings and two keys. A prober with the second key appends a record at a time, while the first
key attacks; the report has the latencies of the prober, and the longest turn of the event loop in processor time, which
means the same on a busy machine. The first and the last row are without an attack. All rows take about five minutes,
and at most eight. With `--write` the report goes into bench/results/hostile.md.
"""

import argparse
import base64
import contextlib
import http.client
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.report import Sheet, machine, write_results
from topics import __version__

_P99_MS_MAX = 50.0
_MAX_MS_MAX = 200.0
_TIMEOUT_S = 300
_TURN_SHOWN_MS = 20.0
_ATTACKER, _PROBER = "attacker-secret-0000", "prober-secret-000000"
_SECONDS_MIN = 3.0
_RUN_S_MAX = 420
"""Rows that have not begun by then are left out, and the report lists them."""
_IDLE = ("nothing", "nothing, at the end")
_IDLE_P99_MS_MAX = 5.0
"""Without an attack it is 1.2 ms on a quiet machine."""
_RECORD = b'{"records":[{"data":"thirty bytes of a small record"}]}'
_SEARCHED, _QUERY = "/v1/stream/v-probed/_search", b'{"q":"k:*words*","size":5}'
_METHOD = f"""\
One server with default settings and two keys. One key attacks, the other appends a record of 30 bytes every 2 ms and
waits for the answer, or searches 1,000 entries where a row says so. The aim is a p99 under {_P99_MS_MAX:.0f} ms and a
maximum under {_MAX_MS_MAX:.0f} ms. The longest turn of the event loop is in processor time. Answers are those of the
attacker: 400 and 413 mean that a budget refused the attack."""

Act = Callable[[], object]


class Server:
    """The server, and the requests of the attacker."""

    def __init__(self, folder: Path) -> None:
        address = folder / "address"
        environment = {
            **os.environ, "TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(address), "TOPICS_DATA_DIR": str(folder / "data"),
            "TOPICS_API_KEYS": f"{_ATTACKER}::a-,{_PROBER}::v-", "TOPICS_LOG_LEVEL": "error", "TOPICS_PIPELINE": "off",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.turns_server"], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + _TIMEOUT_S
        while not address.exists() and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        self.address = address.read_text().strip()
        self._connection = http.client.HTTPConnection(self.address, timeout=_TIMEOUT_S)
        while self.ask("GET", "/v0/ready")[0] != 200 and time.monotonic() < deadline:
            time.sleep(0.05)

    @classmethod
    @contextlib.contextmanager
    def attached(cls, address: str) -> Iterator["Server"]:
        """A server that another object started, with its own connection."""
        server = cls.__new__(cls)
        server.address = address
        server._connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
        try:
            yield server
        finally:
            server._connection.close()

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, bytes]:
        """The status and the body of an answer, for any status."""
        said = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        words = {"content-type": "application/json", "authorization": f"Bearer {_ATTACKER}"}
        words |= {name.replace("_", "-"): text for name, text in headers.items()}
        self._connection.request(method, path, said, words)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def made(self, method: str, path: str, body: object = None, **headers: str) -> bytes:
        """The body of an answer, which must be a success."""
        status, text = self.ask(method, path, body, **headers)
        if status >= 300:
            raise RuntimeError(f"{method} {path} was answered {status}: {text[:300]!r}")
        return text

    def websocket(self) -> socket.socket:
        host, port = self.address.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        key = base64.b64encode(os.urandom(16)).decode()
        connection.sendall(
            f"GET /v0/ws HTTP/1.1\r\nHost: {self.address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            f"Authorization: Bearer {_ATTACKER}\r\n\r\n".encode()
        )
        while b"\r\n\r\n" not in connection.recv(1 << 16):
            pass
        return connection

    def longest_turn(self) -> tuple[float, str]:
        """The milliseconds of the longest turn since the last call, and the stacks that were seen in long turns."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return float(answer["longest_ms"]), answer["seen"]

    def memory_mb(self) -> float:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()


@dataclass(frozen=True)
class Row:
    """An attack: `prepare` creates its resources, and returns the calls to make while the prober measures."""

    title: str
    prepare: Callable[[Server, str], Act]
    search: bool = False
    """Whether the prober searches instead of appending."""


@dataclass(frozen=True)
class Found:
    p50_ms: float
    p99_ms: float
    max_ms: float
    turn_ms: float
    memory_mb: float
    answers: str
    """The answers that the attacker received."""


def _nothing(server: Server, place: str) -> Act:
    return lambda: time.sleep(_SECONDS_MIN)


def _forks(server: Server, place: str) -> Act:
    path = f"/v1/stream/{place}"
    server.made("PUT", f"{path}-0")
    for number in range(400):
        server.made("POST", f"{path}-{number}", b"[1]")
        server.made("PUT", f"{path}-{number + 1}", stream_forked_from=f"{path}-{number}")
    return lambda: server.made("GET", f"{path}-400?offset=-1")


def _entries(schema: object, entry: bytes) -> Callable[[Server, str], Act]:
    def prepare(server: Server, place: str) -> Act:
        path = f"/v1/stream/{place}"
        server.made("PUT", path)
        server.made("POST", f"{path}/_schema", {"schema": schema})
        return lambda: server.ask("POST", path, entry)

    return prepare


def _numbers(number: bytes, count: int) -> bytes:
    """An entry with this many numbers."""
    return b'[{"t":[' + b",".join([number] * count) + b"]}]"


def _lens(stream: str, version: int, ops: list[object]) -> dict[str, object]:
    return {"apiVersion": "durable.lens/v1", "schema": stream, "from": version, "to": version + 1, "ops": ops}


_NUMBERED = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}


def _many_lenses(server: Server, place: str) -> Act:
    path = f"/v1/stream/{place}"
    server.made("PUT", path)
    server.made("POST", f"{path}/_schema", {"schema": _NUMBERED})
    server.made("POST", path, b"[" + b",".join([b'{"id":%d}' % number for number in range(1000)]) + b"]")
    ops: list[object] = [{"op": "rename", "from": "/id", "to": "/x"}, {"op": "rename", "from": "/x", "to": "/id"}] * 128
    for version in range(1, 200):
        server.made("POST", f"{path}/_schema", {"schema": _NUMBERED, "lens": _lens(place, version, ops)})
    return lambda: server.made("GET", f"{path}?offset=-1")


def _copying_lens(server: Server, place: str) -> Act:
    path = f"/v1/stream/{place}"
    names = [f"m{number}" for number in range(16)]
    server.made("PUT", path)
    first = {"type": "object", "required": ["m0"], "properties": {"m0": {"type": "object"}}}
    server.made("POST", f"{path}/_schema", {"schema": first})
    server.made("POST", path, json.dumps([{"m0": {"k": "x" * 1000}}] * 100).encode())
    ops: list[object] = []
    for name in names[1:]:
        ops += [{"op": "plunge", "from": "/m0", "host": f"/{name}", "name": "a", "removeFromSource": False}]
        ops += [{"op": "copy", "from": f"/{name}", "to": "/m0"}]
        ops += [{"op": "plunge", "from": f"/{name}", "host": "/m0", "name": "b", "removeFromSource": False}]
    wide = {"type": "object", "required": ["m0"], "properties": {name: {"type": "object"} for name in names}}
    server.ask("POST", f"{path}/_schema", {"schema": wide, "lens": _lens(place, 1, ops)})
    return lambda: server.made("GET", f"{path}?offset=-1")


def _proof(server: Server, place: str) -> Act:
    def union(depth: int, least: int) -> dict[str, object]:
        if not depth:
            return {"type": "string", "minLength": least}
        kinds = [{"type": "array", "items": union(depth - 1, least), "minItems": n} for n in range(6)]
        return {"anyOf": kinds}

    def schema(least: int) -> dict[str, object]:
        more = {"n": {"type": "integer"}}
        return {"type": "object", "required": ["id"], "properties": {"id": union(4, least), **more}}

    path = f"/v1/stream/{place}"
    server.made("PUT", path)
    server.made("POST", f"{path}/_schema", {"schema": schema(0)})
    op = {"op": "add", "path": "/n", "schema": {"type": "integer"}, "default": 1}
    return lambda: server.ask("POST", f"{path}/_schema", {"schema": schema(1), "lens": _lens(place, 1, [op])})


def _fan_out(server: Server, place: str) -> Act:
    server.made("PUT", f"/v0/topics/{place}", {})

    def create(first: int) -> None:
        with Server.attached(server.address) as one:
            for number in range(first, 5_000, 16):
                one.made("PUT", f"/v0/routers/{place}-{number}", {"source": place, "dest": f"{place}-to-{number}"})

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(create, range(16)))
    sizes = itertools.cycle((200_000, 1_000_000))
    return lambda: server.ask("POST", f"/v0/topics/{place}", {"records": [{"data": "x" * next(sizes)}]})


def _many_schemas(server: Server, place: str) -> Act:
    patterns = {f"p{number}": {"type": "string", "pattern": "^[a-z]{1,40}$"} for number in range(20)}
    numbers = iter(range(10**9))

    def act() -> None:
        path = f"/v1/stream/{place}-{next(numbers)}"
        server.ask("PUT", path)
        server.ask("POST", f"{path}/_schema", {"schema": {"type": "object", "properties": patterns}})
        server.ask("POST", path, b'{"p1":"text"}')

    return act


def _transactions(server: Server, place: str) -> Act:
    topics = [f"{place}-{number}" for number in range(10)]
    for topic in topics:
        server.made("PUT", f"/v0/topics/{topic}", {})
    numbers = itertools.count(1)
    records = [{"data": "x" * 900}] * 1_000

    def act() -> list[object]:
        sequence = next(numbers)
        path, told = f"/v0/transactions/{place}", {"sequence": sequence, "attempt": "a"}
        answers: list[object] = [server.ask("POST", "/v0/transactions", {"id": place, **told})]
        for topic in topics:
            staged = {**told, "part": topic, "topic": topic, "records": records}
            answers.append(server.ask("POST", f"{path}/stage", staged))
        return [*answers, server.ask("POST", f"{path}/commit", told)]

    return act


def _rapid_resets(server: Server, place: str) -> Act:
    """Sends HTTP/2 requests and resets each at once."""

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload

    def literal(name: bytes, value: bytes) -> bytes:
        return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value

    head = b"".join([
        literal(b":method", b"GET"), literal(b":scheme", b"http"), literal(b":path", b"/v0/topics"),
        literal(b":authority", b"localhost"), literal(b"authorization", f"Bearer {_ATTACKER}".encode()),
    ])  # fmt: skip

    def act() -> None:
        host, port = server.address.rsplit(":", 1)
        data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
        for stream in range(1, 40_001, 2):
            data += frame(1, 5, stream, head) + frame(3, 0, stream, b"\0\0\0\x08")
        with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection:
            connection.settimeout(1.0)
            with contextlib.suppress(OSError):
                connection.sendall(data)
                while connection.recv(1 << 20):
                    pass

    return act


def _ephemeral(server: Server, place: str) -> Act:
    server.made("PUT", f"/v0/topics/{place}", {"durability": "ephemeral"})
    body = json.dumps({"records": [{"data": "x" * 1000}] * 1000}).encode()
    return lambda: server.ask("POST", f"/v0/topics/{place}", body)


def _keyed(server: Server, place: str) -> Act:
    server.made("PUT", f"/v0/topics/{place}", {})
    numbers = iter(range(10**9))
    body = b'{"records":[{"data":1}]}'
    return lambda: server.ask("POST", f"/v0/topics/{place}", body, idempotency_key=f"{next(numbers):0200}")


def _frame(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        head = bytes([opcode, 0x80 | size])
    elif size <= 0xFFFF:
        head = bytes([opcode, 0xFE]) + size.to_bytes(2, "big")
    else:
        head = bytes([opcode, 0xFF]) + size.to_bytes(8, "big")
    return head + b"\0\0\0\0" + payload


def _socket(data: bytes) -> Callable[[Server, str], Act]:
    def prepare(server: Server, place: str) -> Act:
        def act() -> None:
            with server.websocket() as connection, contextlib.suppress(OSError):
                connection.sendall(data)
                connection.settimeout(1.0)
                while connection.recv(1 << 20):
                    pass

        return act

    return prepare


def _publishes(server: Server, place: str) -> Act:
    message = json.dumps({"op": "publish", "topic": place, "records": [{"data": {"n": n}} for n in range(10_000)]})
    return _socket(_frame(0x81, message.encode()) * 3)(server, place)


def _delete_ranges(method: str, path: str, body: object) -> Callable[[Server, str], Act]:
    def prepare(server: Server, place: str) -> Act:
        def act() -> None:
            name = f"{place}-{time.monotonic_ns()}"
            for begin in range(0, 200_000, 10_000):
                some = [{"data": n, "tag": "odd" if n % 2 else "even"} for n in range(begin, begin + 10_000)]
                server.made("POST", f"/v0/topics/{name}", {"records": some})
            server.made("POST", f"/v0/topics/{name}/delete", {"match": "odd"})
            server.made(method, f"/v0/topics/{name}{path}", body)

        return act

    return prepare


def _touches(server: Server, place: str) -> Act:
    path = f"/v1/stream/{place}"
    server.made("PUT", path)
    touch = {"profile": {"kind": "state-protocol", "touch": {"enabled": True}}}
    server.made("POST", f"{path}/_profile", touch)
    fields = [f"f{number}" for number in range(12)]
    wanted = [(a, b, c) for a in fields for b in fields for c in fields if a < b < c][:1024]
    templates = [
        {"entity": "posts", "fields": [{"name": name, "encoding": "string"} for name in names]} for names in wanted
    ]
    for begin in range(0, len(templates), 256):
        server.made("POST", f"{path}/touch/templates/activate", {"templates": templates[begin : begin + 256]})
    rows = [
        {"type": "posts", "key": str(n), "value": {name: f"{n}" for name in fields},
         "old_value": {name: f"{n + 1}" for name in fields}, "headers": {"operation": "update"}}
        for n in range(200)
    ]  # fmt: skip
    return lambda: server.ask("POST", path, rows)


def _fill_searchable(server: Server, path: str, entries: int, key: str) -> None:
    authorization = f"Bearer {key}"
    server.made("PUT", path, authorization=authorization)
    server.made("POST", f"{path}/_schema", {"search": {"fields": {"k": "keyword"}}}, authorization=authorization)
    for begin in range(0, entries, 10_000):
        some = [{"k": f"{n} words"} for n in range(begin, min(begin + 10_000, entries))]
        server.made("POST", path, some, authorization=authorization)


def _searches(server: Server, place: str) -> Act:
    path = f"/v1/stream/{place}"
    _fill_searchable(server, path, 50_000, _ATTACKER)
    number = itertools.count()

    def ask(_: int) -> object:
        with Server.attached(server.address) as one:
            return one.ask("POST", f"{path}/_search", {"q": f"k:*{next(number) % 97}*", "size": 100})

    pool = ThreadPoolExecutor(16)
    return lambda: list(pool.map(ask, range(32)))


_PATTERNS = {"properties": {"t": {"allOf": [{"pattern": f"^[ab]*$|z{number}"} for number in range(99)]}}}
_ENUM = {"properties": {"t": {"items": {"enum": [f"value {number}" for number in range(2_000)]}}}}
_NUMBERS = {"properties": {"t": {"items": {"minimum": 0.5}}}}
_UNIQUE = {"properties": {"t": {"uniqueItems": True}}}
_TEXT = {"properties": {"s": {"type": "string"}}}
_EQUAL = b",".join([b"1%030d" % number for number in range(190)])
_MULTIPLES = {"properties": {"t": {"items": {"multipleOf": 0.01}}}}

ROWS = (
    Row("nothing", _nothing),
    Row("reads of 400 forks of forks", _forks),
    Row("multipleOf on 9,900 numbers", _entries(_MULTIPLES, _numbers(b"61234567", 9_900))),
    Row("multipleOf on 490 numbers of 300 digits", _entries(_MULTIPLES, _numbers(b"1e308", 490))),
    Row("39,000 numbers of 300 digits", _entries(_TEXT, _numbers(b"1e308", 39_000))),
    Row("a fraction as minimum, 16,000 numbers of 300 digits", _entries(_NUMBERS, _numbers(b"1e308", 16_000))),
    Row("a fraction as minimum, 19,900 numbers", _entries(_NUMBERS, _numbers(b"7", 19_900))),
    Row("a fraction as minimum, 500,000 numbers", _entries(_NUMBERS, _numbers(b"7", 500_000))),
    Row("uniqueItems with numbers of one hash", _entries(_UNIQUE, b'[{"t":[' + _EQUAL + b"]}]")),
    Row("an enum of 2,000 texts, 4,000 times missed", _entries(_ENUM, b'[{"t":[' + b'"x",' * 3_999 + b'"x"]}]')),
    Row("99 patterns on 40 kB", _entries(_PATTERNS, b'[{"t":"' + b"ab" * 20_000 + b'"}]')),
    Row("200 versions of 256 renames", _many_lenses),
    Row("lenses that copy", _copying_lens),
    Row("a proof of union against union", _proof),
    Row("schemas without end", _many_schemas),
    Row("200 kB and 1 MB to 5,000 routers", _fan_out),
    Row("ephemeral records without end", _ephemeral),
    Row("idempotency keys without end", _keyed),
    Row("WebSocket, 400,000 empty continuation frames", _socket(_frame(0x01, b"{") + _frame(0x00, b"") * 400_000)),
    Row("WebSocket, 200,000 messages {}", _socket(_frame(0x81, b"{}") * 200_000)),
    Row("WebSocket, publishes of 10,000 records", _publishes),
    Row("WebSocket, 400,000 pings", _socket(_frame(0x89, b"ping") * 400_000)),
    Row("HTTP/2, 20,000 requests that are reset", _rapid_resets),
    Row("transactions of 10,000 records in 10 topics", _transactions),
    Row("100,000 delete ranges, then a cap", _delete_ranges("PUT", "", {"cap_records": 10})),
    Row("100,000 delete ranges, then a delete by seq", _delete_ranges("POST", "/delete", {"before_seq": 199_990})),
    Row("100,000 delete ranges, then a time to live", _delete_ranges("PUT", "", {"ttl_ms": 1})),
    Row("changes under 1,024 touch templates", _touches),
    Row("16 searches at a time", _searches),
    Row("the other key searches, nothing", _nothing, search=True),
    Row("the other key searches, 16 searches at a time", _searches, search=True),
    Row("nothing, at the end", _nothing),
)  # fmt: skip


@contextlib.contextmanager
def served() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="topics-hostile-"))
    server = Server(folder)
    try:
        yield server
    finally:
        server.end()
        shutil.rmtree(folder, ignore_errors=True)


def probe(address: str, search: bool) -> None:
    """Sends requests until a line arrives on standard input, then prints the latencies in milliseconds."""
    connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
    words = {"content-type": "application/json", "authorization": f"Bearer {_PROBER}"}
    found = []
    while not select.select([sys.stdin], [], [], 0)[0]:
        begun = time.perf_counter()
        connection.request("POST", _SEARCHED if search else "/v0/topics/v-probe", _QUERY if search else _RECORD, words)
        connection.getresponse().read()
        found.append((time.perf_counter() - begun) * 1000)
        time.sleep(0.002)
    print(json.dumps(found))


def measure(server: Server, row: Row, place: str) -> Found:
    act = row.prepare(server, place)
    if row.search:
        _fill_searchable(server, _SEARCHED.removesuffix("/_search"), 1_000, _PROBER)
    time.sleep(1.0)
    prober = subprocess.Popen(
        [sys.executable, "-m", "bench.hostile", "--probe", server.address, *(["--search"] if row.search else [])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(1.0)
    server.longest_turn()
    end, statuses = time.monotonic() + _SECONDS_MIN, Counter[str]()
    while time.monotonic() < end:
        statuses.update(_statuses(act()))
    turn_ms, seen = server.longest_turn()
    if turn_ms > _TURN_SHOWN_MS:
        print(seen, file=sys.stderr)
    latencies = sorted(json.loads(prober.communicate("\n")[0]))
    p50, p99 = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
    answers = ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))
    return Found(p50, p99, latencies[-1], turn_ms, server.memory_mb(), answers)


def _statuses(result: object) -> list[str]:
    """The statuses of the answers to an attack."""
    if isinstance(result, list):
        return [status for one in result for status in _statuses(one)]
    if isinstance(result, tuple):
        return [str(result[0])]
    return ["200"] if isinstance(result, bytes) else []


def report(found: dict[str, Found], failed: dict[str, str]) -> str:
    """The page's text, and the same on the terminal."""
    sheet = Sheet(Console())
    sheet.paragraph(f"Measured with `python -m bench.hostile` on {machine({'topics': __version__})}.")
    sheet.paragraph(_METHOD)
    idle = [one.p99_ms for title, one in found.items() if title in _IDLE]
    if idle and max(idle) > _IDLE_P99_MS_MAX:
        sheet.paragraph(
            f"The machine was busy with other work: without an attack the p99 was up to {max(idle):.1f} ms (on a quiet "
            "machine 1.2 ms), and the load average at the end was "
            f"{os.getloadavg()[0]:.1f}. The waits include that; the turns do not."
        )
    rows = []
    for title, one in found.items():
        met = one.p99_ms < _P99_MS_MAX and one.max_ms < _MAX_MS_MAX
        figures = [f"{value:.1f}" for value in (one.p50_ms, one.p99_ms, one.max_ms, one.turn_ms)]
        rows.append([title, *figures, f"{one.memory_mb:.0f}", one.answers, "met" if met else "missed"])
    rows += [[title, *[""] * 6, why] for title, why in failed.items()]
    head = ["attack", "p50, ms", "p99, ms", "max, ms", "longest turn, ms", "server, MB", "answers", "aim"]
    sheet.table("Appends of another key during attacks", head, rows)
    return sheet.text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows with these words in their titles")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    parser.add_argument("--search", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="puts the report into bench/results/hostile.md")
    arguments = parser.parse_args()
    if arguments.probe:
        probe(arguments.probe, arguments.search)
        return
    found: dict[str, Found] = {}
    failed: dict[str, str] = {}
    end = time.monotonic() + _RUN_S_MAX
    for number, row in enumerate(ROWS):
        if arguments.only not in row.title:
            continue
        if time.monotonic() > end:
            failed[row.title] = "not measured, the time was over"
            continue
        with served() as server:
            try:
                found[row.title] = measure(server, row, f"a-row{number}")
                print(row.title, found[row.title], flush=True)
            except (RuntimeError, OSError, http.client.HTTPException, ValueError, OverflowError) as error:
                failed[row.title] = f"failed: {error!r}"[:200]
                print(row.title, failed[row.title], flush=True)
    text = report(found, failed)
    if arguments.write:
        write_results(text, "hostile", "Attacks of one key on another")


if __name__ == "__main__":
    main()
