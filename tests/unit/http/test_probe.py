"""The probe server over a real loopback connection, on the event loop it runs on: framing is what it is for, and a fake
would not frame.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from topics.http.probe import BODY_BYTES_MAX, HEAD_BYTES_MAX, Answer, ProbeProtocol, error_answer

Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def handler(method: str, path: str) -> Answer:
    if path == "/ok":
        return 200, b'{"method":"%s"}' % method.encode()
    if path == "/busy":
        return 503, b"{}"
    if path == "/bug":
        raise RuntimeError("a bug")
    return error_answer(404, "not_found", path)


def talk(client: Client) -> None:
    """Runs `client` on a connection to a server of its own and checks that no connection outlives both."""

    async def scene() -> None:
        connections: set[ProbeProtocol] = set()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: ProbeProtocol(handler, connections), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await asyncio.wait_for(client(reader, writer), 10)
        for connection in tuple(connections):
            connection.close()
        writer.close()
        await asyncio.sleep(0.01)
        assert connections == set()
        server.close()
        await server.wait_closed()

    uvloop.run(scene())


def exchange(request: bytes) -> bytes:
    """Everything the server says to `request` before it closes."""
    answer = b""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answer
        writer.write(request)
        answer = await reader.read()

    talk(client)
    return answer


def split(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: x", "connection: close", *headers]
    if body:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def error_code(body: bytes) -> str:
    error = json.loads(body)["error"]
    assert set(error) == {"code", "message"}
    return str(error["code"])


def test_get() -> None:
    status, headers, body = split(exchange(request("GET", "/ok?x=1")))
    assert (status, body) == (200, b'{"method":"GET"}')
    assert headers["content-type"] == "application/json"
    assert headers["content-length"] == str(len(body))
    assert headers["connection"] == "close"


def test_head_has_the_same_head_and_no_body() -> None:
    status, headers, body = split(exchange(request("HEAD", "/ok")))
    assert (status, body) == (200, b"")
    assert headers["content-length"] == str(len('{"method":"HEAD"}'))


def test_an_unknown_path() -> None:
    status, _, body = split(exchange(request("GET", "/nowhere")))
    assert (status, error_code(body)) == (404, "not_found")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_another_method(method: str) -> None:
    status, headers, body = split(exchange(request(method, "/ok", body=b"{}")))
    assert (status, error_code(body)) == (405, "method_not_allowed")
    assert headers["allow"] == "GET, HEAD"


def test_unavailable_says_when_to_come_back() -> None:
    status, headers, _ = split(exchange(request("GET", "/busy")))
    assert (status, headers["retry-after"]) == (503, "1")


def test_a_bug_in_the_handler_is_an_answer() -> None:
    status, _, body = split(exchange(request("GET", "/bug")))
    assert (status, error_code(body)) == (500, "internal")


def test_what_is_not_http_is_refused() -> None:
    status, _, body = split(exchange(b"\x16\x03\x01 this is not HTTP\r\n\r\n"))
    assert (status, error_code(body)) == (400, "invalid_request")


@pytest.mark.parametrize("where", ["path", "header", "endless header"])
def test_a_large_head_is_refused(where: str) -> None:
    large = "x" * HEAD_BYTES_MAX
    requests = {
        "path": request("GET", f"/{large}"),
        "header": request("GET", "/ok", f"large: {large}"),
        "endless header": b"GET /ok HTTP/1.1\r\nlarge: " + b"x" * (HEAD_BYTES_MAX + BODY_BYTES_MAX),
    }
    status, headers, body = split(exchange(requests[where]))
    assert (status, error_code(body)) == (431, "invalid_request")
    assert headers["connection"] == "close"


def test_a_body_is_ignored_up_to_its_limit() -> None:
    assert split(exchange(request("GET", "/ok", body=b"x" * BODY_BYTES_MAX)))[0] == 200
    status, _, body = split(exchange(request("GET", "/ok", body=b"x" * (BODY_BYTES_MAX + 1))))
    assert (status, error_code(body)) == (413, "payload_too_large")


def test_a_connection_is_kept_for_the_next_request() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            for part in (b"GET /o", b"k HTTP/1.1\r\nhost", b": x\r\n\r\n"):
                writer.write(part)
                await asyncio.sleep(0.001)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"connection: close" not in head
            assert await reader.readexactly(16) == b'{"method":"GET"}'

    talk(client)


def test_pipelined_requests_are_answered_in_order() -> None:
    paths = ["/ok", "/nowhere", "/busy"]
    pipelined = b"".join(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode() for path in paths)
    answers = exchange(pipelined * 200 + request("GET", "/ok"))
    statuses = [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 404, 503] * 200 + [200]
