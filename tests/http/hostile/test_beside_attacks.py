"""Well-behaved clients are served beside attackers; their waiting time and its cost are reported."""

import socket
import threading
from typing import cast

import httpx
import pytest

from tests.http.hostile.attacks import beside, connect, flooding
from tests.http.live import LiveServer
from tests.http.protocol.http2 import (
    DATA,
    END_STREAM,
    INITIAL_WINDOW_SIZE,
    PREFACE,
    RST_STREAM,
    Http2Client,
    frame,
    settings,
)
from tests.http.protocol.support import Client

pytestmark = pytest.mark.slow

POST = b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
MIB = 1024 * 1024


def fill(url: str, topic: str, nbytes: int) -> None:
    """Puts records of 64 KiB into a topic."""
    record = {"data": "x" * 65_000}
    with httpx.Client(base_url=url, timeout=60.0) as client:
        for _ in range(nbytes // MIB):
            client.post(f"/v0/topics/{topic}", json={"records": [record] * 16}).raise_for_status()


def test_nobody_attacks(server: LiveServer) -> None:
    beside("nobody", server.url, server.pid, lambda over: None)


@pytest.mark.parametrize("connections", [50, 200])
def test_pipelined_requests(server: LiveServer, connections: int) -> None:
    attack = flooding(server.url, GET * 2_000, connections)
    beside(f"pipelined requests, {connections} connections", server.url, server.pid, attack)


def test_chunks_of_one_byte(server: LiveServer) -> None:
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"records":[{"data":"%b"}]}' % (b"x" * 20_000))
    beside("chunks of one byte", server.url, server.pid, flooding(server.url, head + body + b"0\r\n\r\n", 50))


def test_many_small_bodies(server: LiveServer) -> None:
    body = b'{"records":[{"data":1}]}'
    one = POST + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    beside("many small bodies", server.url, server.pid, flooding(server.url, one * 500, 50))


@pytest.mark.parametrize("kind", ["records", "numbers", "values", "bytes"])
def test_large_bodies(server: LiveServer, kind: str) -> None:
    """Each of them held the loop for a tenth of a second to half a second."""
    many = b",".join
    body, path, content_type = {
        "records": (
            b'{"records":[' + many([b'{"data":"%b","tag":"t"}' % (b"x" * 6_000)] * 9_000) + b"]}",
            "/v0/topics/t",
            "json",
        ),
        "numbers": (
            b'{"records":[' + many([b'{"data":[' + b"1," * 2_500 + b"1]}"] * 9_000) + b"]}",
            "/v0/topics/t",
            "json",
        ),
        "values": (b"[" + many([b"1"] * 100_000) + b"]", "/v1/stream/s", "json"),
        "bytes": (b"x" * (40 * MIB), "/v1/stream/b", "octet-stream"),
    }[kind]
    kinds = f"application/{content_type}"
    httpx.put(f"{server.url}/v1/stream/s", headers={"content-type": "application/json"}).raise_for_status()
    httpx.put(f"{server.url}/v1/stream/b", headers={"content-type": kinds}).raise_for_status()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kinds}\r\nContent-Length: {len(body)}\r\n\r\n"
    attack = flooding(server.url, head.encode() + body, 4)
    seen = beside(f"large bodies, {kind}", server.url, server.pid, attack, asks=300, pressing=True)
    assert seen.resident_mib < 2048


def test_heads_that_never_end(server: LiveServer) -> None:
    data = b"GET / HTTP/1.1\r\n" + b"x-a: b\r\n" * 50

    def attack(over: threading.Event) -> None:
        sockets = [connect(server.url) for _ in range(300)]
        for each in sockets:
            each.sendall(data)
        over.wait()
        for each in sockets:
            each.close()

    beside("heads that never end", server.url, server.pid, attack)


@pytest.mark.parametrize("path", ["/v0/topics/large/diff", "/v1/stream/large"])
def test_unread_answers(server: LiveServer, path: str) -> None:
    fill(server.url, "large", 16 * MIB)
    if path.startswith("/v0"):
        body = b'{"from_seq":0,"limit":1000,"max_batch_bytes":%d}' % (8 * MIB)
        head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        request = head % (path.encode(), len(body)) + body
    else:
        request = b"GET %b?offset=-1 HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode()

    def attack(over: threading.Event) -> None:
        sockets: list[socket.socket] = []
        for _ in range(700):
            each = connect(server.url)
            each.sendall(request * 4)
            sockets.append(each)
        over.wait()
        for each in sockets:
            each.close()

    seen = beside(f"answers that nobody reads, {path[:3]}", server.url, server.pid, attack, asks=600)
    assert seen.resident_mib < 1024, "700 connections with answers of 8 MiB were 5.3 GB"


def test_large_bodies_that_are_never_finished(server: LiveServer) -> None:
    head = (
        b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )

    def attack(over: threading.Event) -> None:
        sockets = []
        for _ in range(30):
            each = connect(server.url)
            each.settimeout(5.0)
            sockets.append(each)
            try:
                each.sendall(head % (60 * MIB) + b"x" * (59 * MIB))
            except OSError:
                continue
            if over.is_set():
                break
        over.wait()
        for each in sockets:
            each.close()

    seen = beside("large bodies that are never finished", server.url, server.pid, attack, asks=600)
    assert seen.resident_mib < 900, "a bound of 512 MiB took 1,045 MB"


def test_scrapes_of_the_metrics(server: LiveServer) -> None:
    with httpx.Client(base_url=server.url, timeout=60.0) as client:
        for number in range(1_000):
            client.post(f"/v0/topics/topic-{number}", json={"records": [{"data": 1}]}).raise_for_status()
    scrape = b"GET /v0/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    beside("scrapes of the metrics", server.url, server.pid, flooding(server.url, scrape * 5, 20))


def http2(*requests: tuple[bytes, bytes], window: int = 65_535, then: bytes = b"") -> bytes:
    """A connection of HTTP/2 with these requests, a path and a body each; `then` follows each of them."""
    client = Http2Client(cast(Client, None))
    said = [PREFACE, settings((INITIAL_WINDOW_SIZE, window))]
    for number, (path, body) in enumerate(requests):
        fields = [(":method", "POST" if body else "GET"), (":scheme", "http"), (":path", path.decode())]
        fields += [(":authority", "localhost"), ("content-type", "application/json")]
        said.append(client.headers(2 * number + 1, fields, ended=not body))
        if body:
            said.append(frame(DATA, END_STREAM, 2 * number + 1, body))
        if then:
            said.append(frame(RST_STREAM, 0, 2 * number + 1, then))
    return b"".join(said)


def test_rapid_resets_of_http_2(server: LiveServer) -> None:
    data = http2(*[(b"/v0/topics/t/diff", b"{}")] * 1000, then=b"\0\0\0\x08")
    seen = beside("rapid resets of HTTP/2", server.url, server.pid, flooding(server.url, data, 50))
    assert seen.resident_mib < 1024


def test_unread_streams(server: LiveServer) -> None:
    """Five thousand answers of up to eight megabytes, none of which may be sent."""
    fill(server.url, "wide", 16 * MIB)
    body = b'{"from_seq":0,"limit":1000,"max_batch_bytes":%d}' % (8 * MIB)
    data = http2(*[(b"/v0/topics/wide/diff", body)] * 100, window=0)

    def attack(over: threading.Event) -> None:
        sockets = [connect(server.url) for _ in range(50)]
        for each in sockets:
            each.sendall(data)
        over.wait()
        for each in sockets:
            each.close()

    seen = beside("streams that nobody reads", server.url, server.pid, attack, asks=300)
    assert seen.resident_mib < 1024
