"""The API over HTTP/2, with a client that others wrote: the same requests have the same answers as over HTTP/1.1."""

import asyncio
import gzip
import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.http.live import LiveServer
from tests.http.protocol.http2 import DATA, END_STREAM, NO_ERROR, PREFACE, Http2Client, frame, reset, settings
from tests.http.protocol.support import Client

JSON = {"content-type": "application/json"}
KEY = {"authorization": "Bearer reader"}
PAGE = {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"}
MIB = 2**20

# The values that differ between two answers to the same request: durations, times, ids, and the epoch in offsets.
_VOLATILE = re.compile(
    r'"(performance":\{[^}]*\}|(uptime_ms|wid|stream_url|epoch|effective_priority)":("[^"]*"|\d+))'
    r"|\b\d{13}\b|\d{4}-\d\d-\d\dT[\d:.]+Z|\b[0-9A-Z]{8}(?=[0-9A-Z]{18}\b)"
)
_VOLATILE_HEADERS = frozenset(("date", "content-length", "connection", "keep-alive", "transfer-encoding"))


class Row(NamedTuple):
    """A request. Its path has `T` where the name of a topic or stream stands."""

    method: str
    path: str
    headers: dict[str, str] = {}  # noqa: RUF012
    body: bytes | None = None


def row(method: str, path: str, body: object = None, **headers: str) -> Row:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is None:
        return Row(method, path, named)
    return Row(method, path, {**JSON, **named}, body if isinstance(body, bytes) else json.dumps(body).encode())


ONE = {"records": [{"data": 1, "tag": "a"}]}
ROWS = {
    "create": row("PUT", "/v0/topics/T", {"ttl_ms": 10**9}),
    "append": row("POST", "/v0/topics/T", ONE),
    "append with a key": row("POST", "/v0/topics/T", {**ONE, "idempotency_key": "k"}),
    "append with it again": row("POST", "/v0/topics/T", {**ONE, "idempotency_key": "k"}),
    "append what is no JSON": row("POST", "/v0/topics/T", b"{"),
    "append nothing": row("POST", "/v0/topics/T", {"records": []}),
    "append in gzip": row("POST", "/v0/topics/T", gzip.compress(json.dumps(ONE).encode()), content_encoding="gzip"),
    "append in a coding": row("POST", "/v0/topics/T", b"x", content_encoding="br"),
    "append no JSON type": Row("POST", "/v0/topics/T", {"content-type": "text/plain"}, b"x"),
    "append at a place": row("POST", "/v0/topics/T", {**ONE, "expected_head_seq": 99}),
    "append a lot": row("POST", "/v0/topics/T", {"records": [{"data": "x" * 1000}] * 200}),
    "diff": row("POST", "/v0/topics/T/diff", {"from_seq": 0, "limit": 3}),
    "diff in gzip": row("POST", "/v0/topics/T/diff", {"limit": 100}, accept_encoding="gzip"),
    "diff a lot": row("POST", "/v0/topics/T/diff", {"limit": 1000}),
    "diff of nobody": row("POST", "/v0/topics/nobody/diff", {}),
    "diff with a wrong field": row("POST", "/v0/topics/T/diff", {"limit": "x"}),
    "diff too long": row("POST", "/v0/topics/T/diff", b" " * (MIB + MIB // 2)),
    "look": row("GET", "/v0/topics/T"),
    "look at the head": row("HEAD", "/v0/topics/T"),
    "look from a page": Row("GET", "/v0/topics/T", PAGE),
    "look from elsewhere": row("GET", "/v0/topics/T", origin="https://evil.example"),
    "look under a name": row("GET", "/v0/topics/T", host="evil.example"),
    "a preflight": Row("OPTIONS", "/v0/topics/T", {**PAGE, "access-control-request-method": "POST"}),
    "nowhere": row("GET", "/v0/nowhere"),
    "a wrong method": row("PATCH", "/v0/topics/T"),
    "a method nobody has": row("TRACE", "/v0/topics/T"),
    "health": row("GET", "/v0/health"),
    "not acceptable": row("GET", "/v0/topics/T/work?node=w", accept="text/html"),
    "a watch": row("POST", "/v0/watch", {"topics": {"T": {"from_seq": 0}}}),
    "a watch of nobody": row("POST", "/v0/watch", {"topics": {"nobody": None}}),
    "the stream of no watch": row("GET", "/v0/watch/none"),
    "a long head": row("GET", "/v0/topics/T", large="x" * 16_500),
    "delete by tag": row("POST", "/v0/topics/T/delete", {"tag": "a"}),
    "a stream": row("PUT", "/v1/stream/T-s", b"", stream_ttl="3600"),
    "its head": row("HEAD", "/v1/stream/T-s"),
    "an append to it": row("POST", "/v1/stream/T-s", [1, 2, 3]),
    "a read of it": row("GET", "/v1/stream/T-s?offset=-1"),
    "a read that is known": row("GET", "/v1/stream/T-s?offset=-1", if_none_match="*"),
    "a live read that ends": row("GET", "/v1/stream/T-s?offset=now&live=long-poll&timeout=1"),
    "a bad offset": row("GET", "/v1/stream/T-s?offset=x"),
    "a stream of nobody": row("GET", "/v1/stream/nobody"),
    "its end": row("POST", "/v1/stream/T-s", b"", stream_closed="true"),
    "an append behind it": row("POST", "/v1/stream/T-s", [4]),
    "a list": row("GET", "/v0/topics?prefix=T"),
    "the end of it": row("DELETE", "/v0/topics/T"),
}


def random_rows(seed: int, count: int) -> Iterator[Row]:
    """Appends and reads as they come."""
    rng = random.Random(seed)
    for _ in range(count):
        tag = rng.choice(["a", "b", "ü"])
        records = [{"data": "x" * rng.randrange(3000), "tag": tag} for _ in range(rng.randrange(1, 40))]
        accept = {"accept_encoding": rng.choice(["gzip", "identity", "gzip;q=0"])}
        reading = {"from_seq": rng.randrange(200), "limit": rng.randrange(1, 300)}
        yield rng.choice(
            [
                row("POST", "/v0/topics/T", {"records": records}),
                row("POST", "/v0/topics/T/diff", reading, **accept),
                row("POST", "/v0/topics/T/delete", {"before_seq": rng.randrange(50)}),
                row("POST", "/v1/stream/T", [record["data"] for record in records]),
                row("GET", "/v1/stream/T?offset=-1", **accept),
                row("GET", "/v0/topics/T"),
            ]
        )


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: str


def ask(client: httpx.Client, asked: Row, name: str) -> Answer:
    """The answer, without its variable parts, and with `T` for the name."""

    def lasting(text: str) -> str:
        return _VOLATILE.sub("", text.replace(name, "T"))

    body = None if asked.body is None else asked.body.replace(b'"T"', f'"{name}"'.encode())
    path = asked.path.replace("T", name)
    given = client.request(asked.method, path, headers={"accept-encoding": "identity", **asked.headers}, content=body)
    assert given.http_version == ("HTTP/2" if client.headers["x-version"] == "2" else "HTTP/1.1")
    headers = [(key, lasting(value)) for key, value in given.headers.multi_items() if key not in _VOLATILE_HEADERS]
    return Answer(given.status_code, headers, lasting(given.text))


def clients(url: str, **more: Any) -> tuple[httpx.Client, httpx.Client]:
    first = httpx.Client(base_url=url, timeout=30.0, **more)
    second = httpx.Client(base_url=url, timeout=30.0, http1=False, http2=True, **more)
    first.headers["x-version"], second.headers["x-version"] = "1", "2"
    return first, second


def test_every_request_has_the_same_answer_in_both_versions(server: LiveServer) -> None:
    first, second = clients(server.url)
    with first, second:
        for name, asked in ROWS.items():
            assert ask(second, asked, "parity-2") == ask(first, asked, "parity-1"), name


def test_random_requests_have_the_same_answers_in_both_versions(server: LiveServer, seed: int) -> None:
    first, second = clients(server.url)
    with first, second:
        for asked in [ROWS["create"], *random_rows(seed, 60)]:
            assert ask(second, asked, "random-2") == ask(first, asked, "random-1"), (seed, asked)


def test_keys_and_scopes_are_asked_for_on_each_stream(tmp_path: Path) -> None:
    with LiveServer(tmp_path, api_keys="reader:read:open.,writer:write", pipeline="off") as live:
        first, second = clients(live.url)
        rows = [
            row("GET", "/v0/topics/open.T"), Row("GET", "/v0/topics/open.T", KEY), Row("GET", "/v0/topics/T", KEY),
            Row("POST", "/v0/topics/open.T", {**JSON, **KEY}, b'{"records":[{"data":1}]}'),
            Row("POST", "/v0/topics/open.T", {**JSON, "authorization": "Bearer writer"}, b'{"records":[{"data":1}]}'),
            Row("GET", "/v0/topics/open.T", KEY), row("GET", "/v0/topics/open.T", authorization="Bearer nobody"),
        ]  # fmt: skip
        with first, second:
            found = [(ask(first, asked, "alpha"), ask(second, asked, "bravo")) for asked in rows]
        assert [one for one, _ in found] == [two for _, two in found]
        assert [one.status for one, _ in found] == [401, 404, 403, 403, 201, 200, 401]


def test_a_websocket_learns_that_it_is_of_http_1(server: LiveServer) -> None:
    _, second = clients(server.url)
    with second:
        answer = second.get("/v0/ws")
        assert (answer.status_code, answer.json()["error"]["code"]) == (426, "upgrade_required")
        assert "HTTP/1.1" in answer.json()["error"]["message"]
        assert "upgrade" not in answer.headers


def test_twenty_megabytes_go_up_and_come_down(server: LiveServer, name: str) -> None:
    record = b'{"data":"%b"}' % (b"x" * 500_000)
    body = b'{"records":[' + b",".join([record] * 40) + b"]}"
    pieces = [body[begin : begin + 65_536] for begin in range(0, len(body), 65_536)]
    _, second = clients(server.url)
    with second:
        answer = second.post(f"/v0/topics/{name}", content=iter(pieces), headers=JSON)
        assert (answer.status_code, answer.json()["count"]) == (201, 40)
        seen, from_seq = 0, 0
        while seen < 40:
            asked = {"from_seq": from_seq, "limit": 1000, "max_batch_bytes": 8 * MIB}
            read = second.post(f"/v0/topics/{name}/diff", json=asked).json()
            assert {len(record["data"]) for record in read["records"]} == {500_000}
            seen, from_seq = seen + len(read["records"]), read["next_from_seq"]


def gauge(url: str, metric: str) -> float:
    lines = httpx.get(url + "/v0/metrics?topics=false").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(metric + " "))


@asynccontextmanager
async def raw_client(url: str) -> AsyncIterator[Http2Client]:
    """A connection of frames, that has said hello."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**24)
    client = Http2Client(Client(reader, writer))
    client.send(PREFACE, settings())
    try:
        yield client
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def test_a_page_has_more_than_six_event_streams_over_one_connection(server: LiveServer, name: str) -> None:
    """Forty watches, and the appends that they see, on one connection.

    By frames: where many streams are open, httpx lets one of them wait for the next byte while the others have theirs.
    """

    async def play(client: Http2Client) -> None:
        authority = server.url.removeprefix("http://")
        streams = gauge(server.url, "topics_sse_connections")
        asked = [(":scheme", "http"), (":authority", authority), ("content-type", "application/json")]

        async def post(stream_id: int, path: str, body: object) -> Any:
            client.send(client.headers(stream_id, [(":method", "POST"), (":path", path), *asked], ended=False))
            client.send(frame(DATA, END_STREAM, stream_id, json.dumps(body).encode()))
            return (await client.answer(stream_id)).json

        ids = iter(range(1, 1001, 2))
        opened = {}
        for number in range(40):
            await post(next(ids), f"/v0/topics/{name}-{number}", {"records": [{"data": 0}]})
            made = await post(next(ids), "/v0/watch", {"topics": {f"{name}-{number}": {"from_seq": 0}}})
            opened[watching := next(ids)] = number
            client.send(client.headers(watching, [(":method", "GET"), (":path", made["stream_url"]), *asked]))
        for number in range(40):
            await post(next(ids), f"/v0/topics/{name}-{number}", {"records": [{"data": 1}]})
        for stream_id in opened:
            await client.until(lambda: client.body(stream_id).count(b'"records":[{') == 2)  # noqa: B023
            assert client.head(stream_id)[":status"] == "200"
            assert client.head(stream_id)["content-type"] == "text/event-stream; charset=utf-8"
            assert "connection" not in client.head(stream_id)
        assert gauge(server.url, "topics_http2_connections") == 1
        client.send(*[reset(stream_id) for stream_id in opened])
        await client.settle()
        assert gauge(server.url, "topics_sse_connections") <= streams

    async def connected() -> None:
        async with raw_client(server.url) as client:
            await play(client)

    asyncio.run(asyncio.wait_for(connected(), 60.0))


def test_a_stop_ends_event_streams_and_then_the_connection(tmp_path: Path) -> None:
    async def play(live: LiveServer) -> None:
        async with raw_client(live.url) as client:
            first = httpx.post(live.url + "/v0/topics/t", json=ONE)
            assert first.status_code == 201
            made = httpx.post(live.url + "/v0/watch", json={"topics": {"t": {"from_seq": 0}}}).json()
            asked = [(":scheme", "http"), (":authority", live.url.removeprefix("http://"))]
            client.send(client.headers(1, [(":method", "GET"), (":path", made["stream_url"]), *asked]))
            await client.until(lambda: b"event: record" in client.body(1))
            live.stop()
            assert await client.goodbye() == NO_ERROR
            assert b"the server is shutting down" in (await client.answer(1)).body

    with LiveServer(tmp_path, pipeline="off") as live:
        asyncio.run(asyncio.wait_for(play(live), 60.0))
        assert "closed at shutdown" not in live.log()
