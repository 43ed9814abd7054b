"""HTTP/2 by its frames: requests are answered, and violations of RFC 9113 end a stream or the connection."""

import gzip
import struct
from collections.abc import Callable

import pytest

from tests.http.protocol.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GET,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    NO_ERROR,
    PING,
    POST,
    PREFACE,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    Http2Client,
    connect,
    frame,
    reset,
    run,
    settings,
    window,
)
from tests.http.protocol.support import App, Loops, Site, get, keep, split_answers, until
from topics.http import Exchange, Refusal

Bad = Callable[[Http2Client], bytes]


def test_a_request_is_answered_with_the_headers_of_a_stream(loops: Loops) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        client.ask(1, "/a%20b?c=d", ("x", "y"))
        reply = await client.answer(1)
        assert reply.json == {"method": "GET", "path": "/a%20b", "query": "c=d", "body": ""}
        assert list(reply.headers) == [":status", "date", "content-type", "content-length"]
        [head] = site.app.admitted
        assert (head.headers.get("host"), head.headers.get("x"), head.http_version) == ("x", "y", "2")
        assert head.peer == site.app.exchanges[0].head.peer != ""
        assert (site.server.counters.http2_connections_open, site.server.counters.http2_connections_total) == (1, 1)
        assert site.server.counters.connections_open == 1
        assert client.settings[MAX_CONCURRENT_STREAMS] == 100

    run(loops, scene)


@pytest.mark.parametrize("step", [1, 7, 24, 25, 1000])
def test_the_preface_is_found_however_it_is_cut(loops: Loops, step: int) -> None:
    async def scene(site: Site) -> None:
        client = Http2Client(await site.connect())
        hello = PREFACE + settings() + client.headers(1, GET)
        for begin in range(0, len(hello), step):
            client.send(hello[begin : begin + step])
            sent = len(hello[: begin + step])
            await until(lambda: site.server.counters.bytes_in >= sent)  # noqa: B023
        assert (await client.answer(1)).status == 200

    loops.run(scene)


def test_a_server_that_is_reported_so_speaks_http_1_alone(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(PREFACE, settings()))
        assert (reply.status, reply.headers["connection"]) == (400, "close")

    loops.run(scene, http2=False)


def test_the_preface_behind_a_request_is_none(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        replies = split_answers(await site.say(get("/"), PREFACE, settings()))
        assert [reply.status for reply in replies] == [200, 400]

    loops.run(scene)


def test_answers_come_in_the_order_in_which_they_are_given(loops: Loops) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        for stream_id in (1, 3, 5):
            client.ask(stream_id)
        last = await site.exchange(3)
        last.respond(200, b"last")
        assert (await client.answer(5)).body == b"last"
        for exchange, stream_id in zip(site.app.exchanges[:2], (1, 3), strict=True):
            exchange.respond(200, b"earlier")
            assert (await client.answer(stream_id)).body == b"earlier"

    run(loops, scene, App(keep))


def test_bodies_are_collected_with_and_without_a_length_and_by_frames(loops: Loops) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        client.post(1, b"one")
        client.post(3, b"two", length=False)
        client.send(client.headers(5, POST, ended=False), client.headers(7, POST, ended=False))
        client.send(frame(DATA, 0, 5, b"a"), frame(DATA, 0, 7, b"x"), frame(DATA, 0, 5, b"b"))
        client.send(frame(DATA, END_STREAM, 7), client.headers(5, [("trailer", "ignored")]))
        bodies = [(await client.answer(stream_id)).json["body"] for stream_id in (1, 3, 5, 7)]
        assert bodies == ["one", "two", "ab", "x"]
        assert [head.headers.get("transfer-encoding") for head in site.app.admitted] == [None, *["chunked"] * 3]
        assert "trailer" not in site.app.exchanges[2].head.headers

    run(loops, scene)


def test_gzip_goes_both_ways(loops: Loops) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        client.post(1, gzip.compress(b"x" * 5000), ("content-encoding", "gzip"), ("accept-encoding", "gzip"))
        reply = await client.answer(1)
        assert (reply.headers["content-encoding"], reply.headers["vary"]) == ("gzip", "accept-encoding")
        assert b"x" * 5000 in gzip.decompress(reply.body)
        client.post(3, gzip.compress(b"x" * 500)[:-9], ("content-encoding", "gzip"))
        assert (await client.answer(3)).status == 400
        client.post(5, bytes(2_000_000)[:16_000], ("content-encoding", "br"))
        assert (await client.answer(5)).status == 415

    run(loops, scene)


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_answer_without_body_ends_with_its_headers(loops: Loops, method: str, status: int) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        client.ask(1, method=method)
        await client.until(lambda: 1 in client._ended)
        reply = await client.answer(1)
        assert (reply.status, reply.body, client.received) == (status, b"", {})
        assert ("content-length" in reply.headers) == (method == "HEAD")

    run(loops, scene, App(lambda exchange: exchange.respond(status, b"{}")))


def test_headers_of_the_connection_are_dropped_from_answers(loops: Loops) -> None:
    def handler(exchange: Exchange) -> None:
        named = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Keep-Alive", "5"), ("X-Mixed", "Kept")]
        exchange.respond(426, b"{}", headers=named)

    async def scene(site: Site, client: Http2Client) -> None:
        client.ask(1)
        reply = await client.answer(1)
        assert list(reply.headers) == [":status", "date", "content-type", "x-mixed", "content-length"]
        assert reply.headers["x-mixed"] == "Kept"

    run(loops, scene, App(handler))


def test_a_refusal_before_the_body_leaves_the_connection(loops: Loops) -> None:
    app = App(admit=lambda head: Refusal(403, b"no") if head.method == "POST" else 10)

    async def scene(site: Site, client: Http2Client) -> None:
        client.post(1, b"x" * 16_000)
        assert (await client.answer(1)).status == 403
        client.ask(3)
        assert (await client.answer(3)).status == 200
        assert client.resets == {}
        assert site.server.counters.refused == 1

    run(loops, scene, app)


def test_long_refused_body_is_reset(loops: Loops) -> None:
    app = App(admit=lambda head: Refusal(403, b"no"))

    async def scene(site: Site, client: Http2Client) -> None:
        reported = [("content-length", "50000")]
        client.send(client.headers(1, [*POST, *reported], ended=False), client.headers(3, POST, ended=False))
        assert [(await client.answer(stream_id)).status for stream_id in (1, 3)] == [403, 403]
        await client.until(lambda: 1 in client.resets)
        client.send(*[frame(DATA, 0, 3, bytes(10_000))] * 3)
        await client.until(lambda: 3 in client.resets)
        assert client.resets == {1: NO_ERROR, 3: NO_ERROR}

    run(loops, scene, app, linger_bytes=25_000)


def test_a_request_that_is_reset_is_gone_and_the_others_are_not(loops: Loops) -> None:
    gone: list[int] = []

    def handler(exchange: Exchange) -> None:
        number = len(site_exchanges) + 1
        site_exchanges.append(exchange)
        exchange.on_disconnect(lambda: gone.append(number))

    site_exchanges: list[Exchange] = []

    async def scene(site: Site, client: Http2Client) -> None:
        client.ask(1)
        client.ask(3)
        client.send(client.headers(5, POST, ended=False), frame(DATA, 0, 5, bytes(10_000)))
        await client.settle()
        assert site.server.held_body_bytes == 10_000
        client.send(reset(1), reset(5))
        await client.settle()
        assert (gone, site.server.held_body_bytes) == ([1], 0)
        site_exchanges[0].respond(200, b"too late")
        site_exchanges[1].respond(200, b"in time")
        assert (await client.answer(3)).body == b"in time"

    run(loops, scene, App(handler))


def test_a_websocket_is_refused(loops: Loops) -> None:
    """RFC 8441 is not spoken: its CONNECT is answered like any other."""

    async def scene(site: Site, client: Http2Client) -> None:
        client.send(client.headers(1, [(":method", "CONNECT"), (":authority", "x")]))
        assert (await client.answer(1)).status == 501
        client.send(client.headers(3, [(":method", "CONNECT"), (":protocol", "websocket"), *GET[1:]]))
        await client.until(lambda: 3 in client.resets)
        assert client.resets == {3: PROTOCOL_ERROR}

    run(loops, scene)


# Requests that are none, by RFC 9113: the stream ends, and the connection lives on.
BAD_REQUESTS: dict[str, list[tuple[str, str]]] = {
    "no method (8.3.1)": [*GET[1:]],
    "no scheme (8.3.1)": [GET[0], *GET[2:]],
    "no path (8.3.1)": [*GET[:2], GET[3]],
    "an empty path (8.3.1)": [*GET[:2], (":path", ""), GET[3]],
    "a path without a slash (8.3.1)": [*GET[:2], (":path", "a"), GET[3]],
    "a space in the path (8.2.1)": [*GET[:2], (":path", "/a b"), GET[3]],
    "a method twice (8.3.1)": [GET[0], *GET],
    "an unknown pseudo-header (8.3)": [*GET, (":new", "x")],
    "a pseudo-header of answers (8.3)": [*GET, (":status", "200")],
    "a pseudo-header behind a header (8.3)": [*GET[:3], ("x", "y"), GET[3]],
    "a name in large letters (8.2.1)": [*GET, ("Large", "x")],
    "a name with a space (8.2.1)": [*GET, ("a b", "x")],
    "an empty name (8.2.1)": [*GET, ("", "x")],
    "a value with an end of a line (8.2.1)": [*GET, ("x", "a\r\nb: c")],
    "a value with a zero byte (8.2.1)": [*GET, ("x", "a\0")],
    "a value with space before it (8.2.1)": [*GET, ("x", " a")],
    "connection (8.2.2)": [*GET, ("connection", "close")],
    "keep-alive (8.2.2)": [*GET, ("keep-alive", "5")],
    "transfer-encoding (8.2.2)": [*GET, ("transfer-encoding", "chunked")],
    "upgrade (8.2.2)": [*GET, ("upgrade", "websocket")],
    "te (8.2.2)": [*GET, ("te", "gzip")],
    "a length and no body (8.1.1)": [*GET, ("content-length", "3")],
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_malformed_request_ends_its_stream_alone(loops: Loops, name: str) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        client.ask(1)
        client.send(client.headers(3, BAD_REQUESTS[name]))
        client.ask(5, "/", ("te", "trailers"))
        assert [(await client.answer(stream_id)).status for stream_id in (1, 5)] == [200, 200]
        assert client.resets == {3: PROTOCOL_ERROR}
        assert len(site.app.admitted) == 2

    run(loops, scene)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([*GET[:3]], 400),
        ([*GET, ("host", "other")], 400),
        ([*GET[:3], ("host", "a"), ("host", "b")], 400),
        ([*GET, ("host", "x")], 200),
        ([*GET[:3], ("host", "a")], 200),
    ],
)
def test_there_is_exactly_one_host(loops: Loops, fields: list[tuple[str, str]], status: int) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        client.send(client.headers(1, fields))
        assert (await client.answer(1)).status == status

    run(loops, scene)


# Errors that end the connection, by RFC 9113. Each begins behind the preface and SETTINGS, with stream 1 open and 3
# answered.
BAD_FRAMES: dict[str, tuple[Bad, int]] = {
    "DATA on stream 0 (6.1)": (lambda c: frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
    "DATA on an idle stream (5.1)": (lambda c: frame(DATA, 0, 9, b"x"), PROTOCOL_ERROR),
    "padding longer than the frame (6.1)": (lambda c: frame(DATA, 0x8, 1, b"\x09x"), PROTOCOL_ERROR),
    "HEADERS on stream 0 (6.2)": (lambda c: c.headers(0, GET), PROTOCOL_ERROR),
    "HEADERS on an even stream (5.1.1)": (lambda c: c.headers(2, GET), PROTOCOL_ERROR),
    "HEADERS on a lower stream (5.1.1)": (lambda c: c.headers(7, GET) + c.headers(5, GET), PROTOCOL_ERROR),
    "HEADERS on an ended stream (5.1)": (lambda c: c.headers(3, GET), STREAM_CLOSED),
    "trailers that do not end (8.1)": (lambda c: c.headers(1, [("a", "b")], ended=False), PROTOCOL_ERROR),
    "RST_STREAM on an idle stream (6.4)": (lambda c: reset(9), PROTOCOL_ERROR),
    "RST_STREAM of a wrong size (6.4)": (lambda c: frame(RST_STREAM, 0, 1, b"xxx"), FRAME_SIZE_ERROR),
    "SETTINGS on a stream (6.5)": (lambda c: frame(SETTINGS, 0, 1), PROTOCOL_ERROR),
    "SETTINGS of a wrong size (6.5)": (lambda c: frame(SETTINGS, 0, 0, b"x" * 5), FRAME_SIZE_ERROR),
    "SETTINGS with a window too large (6.5.2)": (lambda c: settings((INITIAL_WINDOW_SIZE, 2**31)), FLOW_CONTROL_ERROR),
    "SETTINGS with a push of 2 (6.5.2)": (lambda c: settings((2, 2)), PROTOCOL_ERROR),
    "SETTINGS with tiny frames (6.5.2)": (lambda c: settings((5, 100)), PROTOCOL_ERROR),
    "PUSH_PROMISE by a client (8.4)": (lambda c: frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2"), PROTOCOL_ERROR),
    "PING on a stream (6.7)": (lambda c: frame(PING, 0, 1, b"x" * 8), PROTOCOL_ERROR),
    "PING of a wrong size (6.7)": (lambda c: frame(PING, 0, 0, b"x" * 7), FRAME_SIZE_ERROR),
    "WINDOW_UPDATE by nothing (6.9)": (lambda c: window(0, 0), PROTOCOL_ERROR),
    "WINDOW_UPDATE beyond all bounds (6.9.1)": (lambda c: window(0, 2**31 - 1), FLOW_CONTROL_ERROR),
    "WINDOW_UPDATE on an idle stream (5.1)": (lambda c: window(9, 1), PROTOCOL_ERROR),
    "CONTINUATION out of the blue (6.10)": (lambda c: frame(CONTINUATION, END_HEADERS, 1), PROTOCOL_ERROR),
    "PING within headers (6.10)": (
        lambda c: frame(HEADERS, END_STREAM, 5, c.block(GET)) + frame(PING, payload=b"x" * 8), PROTOCOL_ERROR
    ),
    # The code of the library; the RFC defines another one for it.
    "headers that cannot be decoded (4.3)": (lambda c: frame(HEADERS, 0x5, 5, b"\xff\xff\xff\xff"), PROTOCOL_ERROR),
    "a frame that is too long (4.2)": (lambda c: frame(DATA, 0, 1, bytes(16_385)), FRAME_SIZE_ERROR),
    "the head of one (4.2)": (lambda c: struct.pack(">LBL", 0xFFFFFF00, 0, 1)[:9], FRAME_SIZE_ERROR),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_protocol_violation_ends_the_connection(loops: Loops, name: str) -> None:
    bad, code = BAD_FRAMES[name]

    async def scene(site: Site, client: Http2Client) -> None:
        client.send(client.headers(1, [*POST, ("content-length", "100")], ended=False))
        client.ask(3)
        await client.answer(3)
        client.send(bad(client))
        assert await client.goodbye() == code
        assert (site.server.counters.refused, site.server.held_body_bytes) == (1, 0)
        assert (await site.ask(get("/"))).status == 200

    run(loops, scene)


# Errors that end the stream alone, with stream 1 open for a body of 100 bytes.
BAD_BODIES: dict[str, Callable[[Http2Client], bytes]] = {
    "a body that is longer than it says (8.1.1)": lambda c: frame(DATA, 0, 1, bytes(101)),
    "a body that ends longer than it says (8.1.1)": lambda c: frame(DATA, END_STREAM, 1, bytes(101)),
    "a body that is shorter than it says (8.1.1)": lambda c: frame(DATA, END_STREAM, 1, b"x"),
    "trailers behind a body that is too short (8.1.1)": lambda c: c.headers(1, [("a", "b")]),
    "trailers with a pseudo-header (8.1)": lambda c: frame(DATA, 0, 1, bytes(100)) + c.headers(1, [(":path", "/")]),
    "trailers with a name in large letters (8.2.1)": lambda c: (
        frame(DATA, 0, 1, bytes(100)) + c.headers(1, [("Large", "x")])
    ),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_body_that_breaks_the_protocol_ends_its_stream_alone(loops: Loops, name: str) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        client.send(client.headers(1, [*POST, ("content-length", "100")], ended=False), BAD_BODIES[name](client))
        client.ask(3)
        assert (await client.answer(3)).status == 200
        assert client.resets == {1: PROTOCOL_ERROR}
        assert [exchange.head.method for exchange in site.app.exchanges] == ["GET"]
        assert site.server.held_body_bytes == 0

    run(loops, scene)


@pytest.mark.parametrize(
    "first", [frame(PING, payload=b"x" * 8), frame(SETTINGS, 1), b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", window(0, 1)]
)
def test_the_first_frame_is_settings(loops: Loops, first: bytes) -> None:
    async def scene(site: Site) -> None:
        client = Http2Client(await site.connect())
        client.send(PREFACE, first)
        assert await client.goodbye() in (PROTOCOL_ERROR, FRAME_SIZE_ERROR)

    loops.run(scene)


def test_unknown_frames_are_ignored(loops: Loops) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        client.send(frame(0xEE, 0xFF, 0, b"?"), settings((0x99, 1)), frame(PING, 0, 0, b"12345678"))
        client.ask(1)
        assert (await client.answer(1)).status == 200
        assert client.pongs == [b"12345678"]

    run(loops, scene)


def test_a_client_that_says_goodbye_gets_its_answers_and_then_the_end(loops: Loops) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        client.ask(1)
        exchange = await site.exchange()
        client.send(frame(GOAWAY, 0, 0, bytes(8)))
        await client.settle()
        exchange.respond(200, b"x" * 100_000)
        assert (await client.answer(1)).body == b"x" * 100_000
        assert await client.goodbye() == NO_ERROR

    run(loops, scene, App(keep))


def test_windows_are_kept_and_given_back(loops: Loops) -> None:
    """The data sent stays within the windows of the client, on a stream and on all of them."""

    async def scene(site: Site) -> None:
        client = await connect(site, (INITIAL_WINDOW_SIZE, 1000), reads=False)
        client.ask(1)
        client.ask(3)
        await client.until(lambda: client.received == {1: 1000, 3: 1000})
        client.send(window(1, 500))
        await client.until(lambda: client.received == {1: 1500, 3: 1000})
        client.send(settings((INITIAL_WINDOW_SIZE, 100_000)))
        # The connection has 65,535 for both of them, and they share it.
        await client.until(lambda: sum(client.received.values()) == 65_535)
        assert min(client.received.values()) > 20_000
        client.send(settings((INITIAL_WINDOW_SIZE, 0)), window(0, 1_000_000))
        await client.settle()
        assert sum(client.received.values()) == 65_535
        client.send(window(1, 2**20), window(3, 2**20))
        for stream_id in (1, 3):
            assert (await client.answer(stream_id)).body == b"x" * 200_000
        assert site.server.unread_bytes == 0

    loops.run(scene, App(lambda exchange: exchange.respond(200, b"x" * 200_000)))


def test_a_body_is_taken_beyond_the_first_window(loops: Loops) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        client.send(client.headers(1, POST, ended=False))
        opened = {0: 65_535, 1: 100_000}
        sent = 0
        while sent < 500_000:
            nbytes = min(16_000, *opened.values())
            if nbytes < 16_000:
                got = await client.read()
                if got.kind == WINDOW_UPDATE:
                    opened[got.stream_id] += got.number
                continue
            client.send(frame(DATA, 0, 1, b"y" * nbytes))
            sent += nbytes
            opened = {stream_id: left - nbytes for stream_id, left in opened.items()}
        client.send(frame(DATA, END_STREAM, 1))
        assert len((await client.answer(1)).json["body"]) == sent

    run(loops, scene, http2_stream_window_bytes=100_000, http2_window_bytes=200_000)
