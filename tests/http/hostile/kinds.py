"""Everything that a key can make the server keep, each created until it is refused or until enough was tried.

A kind is a generator of groups of requests. `fill` pipelines the requests of a group, which may be answered in any
order of effects, and stops at the first refusal with 429. `Held` keeps connections whose answers never end.
"""

import base64
import hashlib
import itertools
import json
import socket
from collections.abc import Callable, Iterator
from typing import NamedTuple

GROUP = 500


class Request(NamedTuple):
    method: str
    path: str
    body: object = None
    headers: str = ""


class Pipeline:
    """A connection that sends many requests at once and then reads their answers."""

    def __init__(self, url: str, key: str, timeout_s: float = 120.0) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.socket = socket.create_connection((host, int(port)), timeout_s)
        self._reader = self.socket.makefile("rb", 1 << 16)
        self._head = f"host: {host}\r\nauthorization: Bearer {key}\r\n"

    def encode(self, request: Request) -> bytes:
        body = request.body if isinstance(request.body, bytes) else b""
        if request.body is not None and not body:
            body = json.dumps(request.body).encode()
        kind = "content-type: application/json\r\n" if "content-type" not in request.headers else ""
        head = f"{request.method} {request.path} HTTP/1.1\r\n{self._head}{kind}{request.headers}"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body

    def ask(self, requests: list[Request]) -> list[tuple[int, bytes]]:
        # A group is small enough for the buffers of the sockets, so that neither side waits for the other.
        self.socket.sendall(b"".join(map(self.encode, requests)))
        return [self._answer() for _ in requests]

    def _answer(self) -> tuple[int, bytes]:
        status = int(self._reader.readline().split()[1])
        length = 0
        while (line := self._reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return status, self._reader.read(length)

    def close(self) -> None:
        self._reader.close()
        self.socket.close()


Kind = Callable[[str], Iterator[list[Request]]]
_RECORDS = {"records": [{"data": "x" * 1000}] * 1000}
_ONE = b'{"records":[{"data":1}]}'
_TEXTS = {f"p{number}": {"type": "string", "pattern": "^[a-z]{1,40}$"} for number in range(20)}


def _numbers(size: int = GROUP) -> Iterator[range]:
    return (range(first, first + size) for first in itertools.count(0, size))


def topics(own: str) -> Iterator[list[Request]]:
    for numbers in _numbers():
        yield [Request("PUT", f"/v0/topics/{own}topic-{n}", b"{}") for n in numbers]


def streams_with_schemas(own: str) -> Iterator[list[Request]]:
    schema = {"schema": {"type": "object", "properties": _TEXTS}}
    for n in itertools.count():
        path = f"/v1/stream/{own}schema-{n}"
        yield [Request("PUT", path)]
        yield [Request("POST", f"{path}/_schema", schema)]
        yield [Request("POST", path, {"p1": "a"})]


def ephemeral_records(own: str) -> Iterator[list[Request]]:
    yield [Request("PUT", f"/v0/topics/{own}ephemeral", {"durability": "ephemeral"})]
    while True:
        yield [Request("POST", f"/v0/topics/{own}ephemeral", _RECORDS)]


def idempotency_keys(own: str) -> Iterator[list[Request]]:
    yield [Request("PUT", f"/v0/topics/{own}keys", b"{}")]
    for numbers in _numbers():
        yield [
            Request("POST", f"/v0/topics/{own}keys", _ONE, f"idempotency-key: {n:0200}\r\n") for n in numbers
        ]  # fmt: skip


def producers(own: str) -> Iterator[list[Request]]:
    yield [Request("PUT", f"/v1/stream/{own}producers")]
    for numbers in _numbers():
        head = "producer-id: {:0100}\r\nproducer-epoch: 0\r\nproducer-seq: 0\r\n"
        yield [Request("POST", f"/v1/stream/{own}producers", b"[1]", head.format(n)) for n in numbers]


def delayed_jobs(own: str) -> Iterator[list[Request]]:
    path = f"/v0/topics/{own}delayed"
    yield [Request("PUT", path, {"type": "queue"})]
    jobs = {"records": [{"data": 1}] * 10_000, "delay_ms": 80_000_000}
    while True:
        yield [Request("POST", path, jobs)]


def leased_jobs(own: str) -> Iterator[list[Request]]:
    path = f"/v0/topics/{own}leased"
    yield [Request("PUT", path, {"type": "queue", "lease_ms": 3_600_000})]
    jobs, claim = {"records": [{"data": 1}] * 10_000}, {"node": "w" * 100, "limit": 1000, "max": 1000}
    while True:
        yield [Request("POST", path, jobs)] + [Request("POST", f"{path}/claim", claim)] * 10


def routers(own: str) -> Iterator[list[Request]]:
    yield [Request("PUT", f"/v0/topics/{own}source", b"{}")]
    for numbers in _numbers(100):
        yield [
            Request("PUT", f"/v0/routers/{own}router-{n}", {"source": f"{own}source", "dest": f"{own}to-{n}"})
            for n in numbers
        ]


def consumers(own: str) -> Iterator[list[Request]]:
    for n in itertools.count():
        path = f"/v0/topics/{own}consumed-{n}"
        yield [Request("PUT", path, b"{}")]
        yield [Request("PUT", f"{path}/consumers/{'c' * 100}{m}", b"{}") for m in range(1000)]


def subscriptions(own: str) -> Iterator[list[Request]]:
    yield [Request("PUT", f"/v1/stream/{own}wake"), Request("PUT", f"/v1/stream/{own}watched")]
    body = {"type": "pull-wake", "streams": [f"{own}watched"], "wake_stream": f"{own}wake", "description": "d" * 900}
    for numbers in _numbers(100):
        yield [Request("PUT", f"/v1/stream/__ds/subscriptions/{own}{n}", body) for n in numbers]


def watch_sessions(own: str) -> Iterator[list[Request]]:
    yield [Request("PUT", f"/v0/topics/{own}w-{n}", b"{}") for n in range(256)]
    body: dict[str, object] = {"topics": {f"{own}w-{n}": {} for n in range(256)}}
    while True:
        yield [Request("POST", "/v0/watch", body)] * 10


def open_transactions(own: str) -> Iterator[list[Request]]:
    yield [Request("PUT", f"/v0/topics/{own}t", b"{}")]
    for n in itertools.count():
        path = f"/v0/transactions/{own}{'t' * 60}{n}"
        staged = {"sequence": 1, "part": "p", "topic": f"{own}t", "records": [{"data": "x" * 900}] * 100}
        yield [Request("POST", "/v0/transactions", {"id": path.rpartition("/")[2], "sequence": 1})]
        yield [Request("POST", f"{path}/stage", staged)]


def tokens(own: str) -> Iterator[list[Request]]:
    while True:
        yield [Request("POST", "/v0/tokens", b"{}")] * GROUP


def touch_templates(own: str) -> Iterator[list[Request]]:
    fields = [f"field{number:030}" for number in range(40)]
    three = itertools.combinations(fields, 3)
    for n in itertools.count():
        path = f"/v1/stream/{own}touched-{n}"
        profile = {"profile": {"kind": "state-protocol", "touch": {"enabled": True}}}
        yield [Request("PUT", path)]
        yield [Request("POST", f"{path}/_profile", profile)]
        for _ in range(5):
            some = [
                {"entity": "posts", "fields": [{"name": name, "encoding": "string"} for name in names]}
                for names in itertools.islice(three, 256)
            ]
            yield [Request("POST", f"{path}/touch/templates/activate", {"templates": some})]
        three = itertools.combinations(fields, 3)


def searched_entries(own: str) -> Iterator[list[Request]]:
    path = f"/v1/stream/{own}searched"
    yield [Request("PUT", path)]
    yield [Request("POST", f"{path}/_schema", {"search": {"fields": {"k": "keyword", "t": "text"}}})]
    for numbers in _numbers(2000):
        keys = {n: hashlib.blake2b(f"{own}{n}".encode(), digest_size=20).hexdigest() for n in numbers}
        entries = [{"k": key[:16], "t": f"some words {n} {key[16:]}"} for n, key in keys.items()]
        yield [Request("POST", path, entries), Request("POST", f"{path}/_search", {"q": "t:words"})]


def durable_records(own: str) -> Iterator[list[Request]]:
    for n in itertools.count():
        yield [Request("POST", f"/v0/topics/{own}durable-{n % 50}?create=true", _RECORDS)]


def schema_versions(own: str) -> Iterator[list[Request]]:
    """Large schemas, one version after the other."""
    for n in itertools.count():
        path = f"/v1/stream/{own}version-{n}"
        yield [Request("PUT", path)]
        for version in range(1, 60):
            enum = [f"{version} {word} {'e' * 60}" for word in range(500)]
            told = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}, "x-words": enum}
            ops = [{"op": "rename", "from": "/id", "to": "/x"}, {"op": "rename", "from": "/x", "to": "/id"}]
            lens = {"apiVersion": "durable.lens/v1", "schema": path.rpartition("/")[2], "from": version - 1,
                    "to": version, "ops": ops}  # fmt: skip
            yield [Request("POST", f"{path}/_schema", {"schema": told, **({"lens": lens} if version > 1 else {})})]


COUNTED: dict[str, tuple[Kind, int]] = {
    "routers": (routers, 20_000),
    "consumers": (consumers, 20_000),
    "subscriptions": (subscriptions, 5_000),
    "watch sessions": (watch_sessions, 5_000),
    "open transactions": (open_transactions, 20_000),
    "tokens": (tokens, 20_000),
    "touch templates": (touch_templates, 1_000),
    "searched entries": (searched_entries, 400),
    "durable records": (durable_records, 400),
    "streams with schemas": (streams_with_schemas, 15_000),
}
"""Kinds that a separate limit, a cache, or the disk bounds; and the number of requests that is enough where none is
refused."""
KEPT: dict[str, tuple[Kind, int]] = {
    "versions of schemas": (schema_versions, 6_000),
    "producers": (producers, 200_000),
    "leased jobs": (leased_jobs, 10_000),
    "delayed jobs": (delayed_jobs, 1_000),
    "idempotency keys": (idempotency_keys, 500_000),
    "ephemeral records": (ephemeral_records, 1_000),
}
"""Kinds that count against `max_memory_bytes_per_key`."""
KINDS: dict[str, tuple[Kind, int]] = COUNTED | KEPT | {"topics": (topics, 60_000)}
"""Topics come last: the others need some."""


class Filled(NamedTuple):
    requests: int
    refusal: str
    """The limit of the first refusal, or its status where it names none."""


def fill(url: str, key: str, own: str, kind: str, most: int | None = None) -> Filled:
    make, usual = KINDS[kind]
    pipeline, sent = Pipeline(url, key), 0
    try:
        for group in make(own):
            for status, body in pipeline.ask(group):
                sent += 1
                if status == 429 or status >= 500:
                    error = json.loads(body)["error"]
                    named = error.get("detail") or error
                    if named.get("retry_after_ms") is None:
                        return Filled(sent, named.get("limit") or body.decode()[:300])
                elif status >= 400:
                    return Filled(sent, f"{status} {body.decode()[:300]}")
            if sent >= (most or usual):
                break
    finally:
        pipeline.close()
    return Filled(sent, "")


class Held:
    """Connections that wait: event streams, WebSockets, long polls and heads that never end, as many as are taken."""

    def __init__(self, url: str, key: str, own: str, each: int) -> None:
        self.sockets: list[socket.socket] = []
        pipeline = Pipeline(url, key)
        pipeline.ask([Request("PUT", f"/v0/topics/{own}held", b"{}")])
        pipeline.close()
        secret = base64.b64encode(bytes(16)).decode()
        upgrade = (
            f"upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: {secret}"
        )
        waiting = [
            Request("GET", f"/v0/topics/{own}held/tail", None, "accept: text/event-stream\r\n"),
            Request("GET", "/v0/ws", None, upgrade + "\r\n"),
            Request("POST", f"/v0/topics/{own}held/diff", {"from_seq": 0, "wait_ms": 30_000}),
        ]
        for request in waiting:
            for _ in range(each):
                one = Pipeline(url, key)
                one.socket.sendall(one.encode(request))
                self.sockets.append(one.socket)

    def close(self) -> None:
        for one in self.sockets:
            one.close()
