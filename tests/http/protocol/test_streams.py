"""Answers without a known end, and connections that become something else."""

import asyncio

import pytest

from tests.http.protocol.support import App, Client, Loops, Site, get, keep, post, split_answers, until
from topics.http import Exchange, Stream

EVENTS = [("content-type", "text/event-stream"), ("cache-control", "no-store")]


async def head_of(client: Client) -> str:
    return (await client.reader.readuntil(b"\r\n\r\n")).decode()


async def open_stream(site: Site, client: Client, *, chunked: bool = False, request: bytes = b"") -> Stream:
    count = len(site.app.exchanges)
    client.send(request or get("/stream"))
    return (await site.exchange(count + 1)).start_stream(200, EVENTS, chunked=chunked)


def test_a_stream_is_what_is_written_until_the_connection_ends(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        stream = await open_stream(site, client)
        head = await head_of(client)
        assert head.startswith("HTTP/1.1 200 OK\r\n")
        for line in ("content-type: text/event-stream", "cache-control: no-store", "connection: close"):
            assert f"\r\n{line}\r\n" in head
        assert "content-length" not in head
        assert "transfer-encoding" not in head
        assert stream.write(b"one\n\n")
        assert await client.reader.readexactly(5) == b"one\n\n"
        assert stream.writable
        stream.write(b"two\n\n")
        stream.close()
        stream.close()
        assert not stream.writable
        stream.write(b"too late")
        assert await client.rest() == b"two\n\n"

    loops.run(scene, App(keep))


def test_a_chunked_stream_leaves_the_connection_usable(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        for _ in range(2):
            stream = await open_stream(site, client, chunked=True)
            assert "\r\ntransfer-encoding: chunked\r\n" in await head_of(client)
            stream.write(b"hello")
            stream.write(b"")
            stream.write(b"x" * 300)
            stream.close()
            expected = b"5\r\nhello\r\n12c\r\n" + b"x" * 300 + b"\r\n0\r\n\r\n"
            assert await client.reader.readexactly(len(expected)) == expected

    loops.run(scene, App(keep))


def test_http_1_0_has_no_chunks(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        stream = await open_stream(
            site, client, chunked=True, request=b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"
        )
        assert "\r\nconnection: close\r\n" in await head_of(client)
        stream.write(b"hello")
        stream.close()
        assert await client.rest() == b"hello"

    loops.run(scene, App(keep))


def test_a_stream_for_head_has_no_body(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        stream = await open_stream(site, client, chunked=True, request=get("/", method="HEAD"))
        assert stream.write(b"unseen")
        stream.close()
        await head_of(client)
        stream = await open_stream(site, client)
        assert (await head_of(client)).startswith("HTTP/1.1 200 OK\r\n")
        stream.close()

    loops.run(scene, App(keep))


def test_a_full_stream_reports_it_and_states_when_it_is_not(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        stream = await open_stream(site, client)
        drained = asyncio.Event()
        stream.on_drain(drained.set)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        written = 0
        while stream.write(b"x" * 10_000):
            written += 1
            await asyncio.sleep(0)
        assert not stream.writable
        # The write that returned False is taken too: the cost of a client is about the limit of the buffer.
        assert 50_000 < stream.buffered_bytes <= 60_000 + 10_000
        assert not drained.is_set()
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        await head_of(client)
        await client.reader.readexactly(10_000 * (written + 1))
        await drained.wait()
        assert stream.writable
        stream.close()
        assert await client.rest() == b""

    loops.run(scene, App(keep), write_buffer_bytes=50_000)


def test_a_stream_waits_for_its_turn(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/1"), get("/stream"))
        await site.exchange(2)
        first, second = site.app.exchanges
        stream = second.start_stream(200, EVENTS)
        drained = asyncio.Event()
        stream.on_drain(drained.set)
        assert not stream.writable
        assert not stream.write(b"held ")
        assert stream.buffered_bytes == 5
        first.respond(200, b"first")
        assert (await client.answer()).body == b"first"
        await drained.wait()
        assert stream.write(b"sent")
        stream.close()
        await head_of(client)
        assert await client.rest() == b"held sent"

    loops.run(scene, App(keep))


@pytest.mark.parametrize("chunked", [True, False])
def test_a_stream_that_is_over_before_its_turn(loops: Loops, chunked: bool) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/1"), get("/stream"))
        await site.exchange(2)
        first, second = site.app.exchanges
        stream = second.start_stream(200, EVENTS, chunked=chunked)
        stream.write(b"all")
        stream.close()
        first.respond(200, b"first")
        assert (await client.answer()).body == b"first"
        await head_of(client)
        if chunked:
            assert await client.reader.readexactly(13) == b"3\r\nall\r\n0\r\n\r\n"
            client.send(get("/2"))
            (await site.exchange(3)).respond(200, b"second")
            assert (await client.answer()).body == b"second"
        else:
            assert await client.rest() == b"all"

    loops.run(scene, App(keep))


@pytest.mark.parametrize("way", ["close", "abort", "half"])
def test_a_stream_is_reported_once_that_the_client_is_gone(loops: Loops, way: str) -> None:
    reported = []

    async def scene(site: Site) -> None:
        client = await site.connect()
        stream = await open_stream(site, client)
        stream.on_disconnect(lambda: reported.append(1))
        await head_of(client)
        if way == "half":
            client.writer.write_eof()
        else:
            getattr(client, way)()
        await until(lambda: reported == [1])
        assert not stream.write(b"to nobody")
        assert not stream.writable
        stream.close()
        await until(lambda: site.server.counters.connections_open == 0)

    loops.run(scene, App(keep))
    assert reported == [1]


def test_a_stalled_stream_is_cut_off(loops: Loops) -> None:
    gone = asyncio.Event()

    async def scene(site: Site) -> None:
        client = await site.connect()
        stream = await open_stream(site, client)
        stream.on_disconnect(gone.set)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        while stream.write(bytes(100_000)):
            await asyncio.sleep(0)
        await gone.wait()

    loops.run(scene, App(keep), write_idle_timeout_s=0.02)


def test_a_quiet_stream_is_not_cut_off(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        stream = await open_stream(site, client)
        await head_of(client)
        await asyncio.sleep(0.15)
        assert stream.write(b"still here")
        assert await client.reader.readexactly(10) == b"still here"

    loops.run(scene, App(keep), keep_alive_s=0.05, head_timeout_s=0.05, body_idle_timeout_s=0.05)


def test_a_stream_ignores_what_the_client_sends_up_to_a_limit(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        stream = await open_stream(site, client)
        gone = asyncio.Event()
        stream.on_disconnect(gone.set)
        client.send(get("/ignored"), b"garbage")
        await until(lambda: site.server.counters.bytes_in == len(get("/stream") + get("/ignored")) + 7)
        assert stream.write(b"x")
        client.send(b"x" * 100_000)
        await gone.wait()
        assert len(site.app.exchanges) == 1

    loops.run(scene, App(keep), linger_bytes=50_000)


def test_failing_stream_affects_no_other_request(loops: Loops) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    async def scene(site: Site) -> None:
        client = await site.connect()
        stream = await open_stream(site, client)
        stream.on_disconnect(fail)
        client.abort()
        await until(lambda: site.server.counters.connections_open == 0)

    loops.run(scene, App(keep), logs=("stream handler failed",))


def test_drain_ends_when_the_streams_do(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        stream = await open_stream(site, client)
        draining = asyncio.create_task(site.server.drain(5))
        await asyncio.sleep(0.01)
        assert not draining.done()
        stream.write(b"bye")
        stream.close()
        await head_of(client)
        assert await client.rest() == b"bye"
        assert await draining

    loops.run(scene, App(keep))


WEBSOCKET = ("connection: Upgrade", "upgrade: websocket")


class Echo(asyncio.Protocol):
    """Another protocol: repeats its input twice."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.lost = False

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data * 2)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


def test_a_connection_can_be_taken_over(loops: Loops) -> None:
    echo = Echo()

    def handler(exchange: Exchange) -> None:
        if not exchange.head.upgrade:
            exchange.respond(200, b"http")
            return
        transport, leftover, _ = exchange.upgrade()
        echo.transport = transport
        transport.set_protocol(echo)
        transport.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        echo.data_received(leftover)

    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/before"), get("/", *WEBSOCKET), b"early ")
        assert (await client.answer()).body == b"http"
        assert (await head_of(client)).startswith("HTTP/1.1 101 ")
        assert await client.reader.readexactly(12) == b"early early "
        client.send(b"later ")
        assert await client.reader.readexactly(12) == b"later later "
        assert site.server.counters.connections_open == 0
        client.close()
        await until(lambda: echo.lost)

    loops.run(scene, App(handler))


def test_a_connection_is_taken_over_only_when_it_owes_nothing(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/first"), get("/", *WEBSOCKET))
        first = await site.exchange()
        await until(lambda: len(site.app.admitted) == 2)
        await asyncio.sleep(0.005)
        assert len(site.app.exchanges) == 1
        first.respond(200, b"first")
        assert (await client.answer()).body == b"first"
        (await site.exchange(2)).respond(200, b"second")
        assert (await client.answer()).body == b"second"

    loops.run(scene, App(keep))


def test_a_wish_for_another_protocol_may_be_ignored(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        h2c = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAAP__")
        client.send(get("/1", *h2c), get("/2"), post("/3", b"abc", *h2c), get("/4"), post("/5", b"x" * 50_000, *h2c))
        client.send(get("/6", *h2c, "transfer-encoding: chunked", method="POST"), b"3\r\nabc\r\n0\r\n\r\n")
        client.send(get("/7", *h2c, "connection: close"))
        answers = split_answers(await client.rest())
        assert [reply.json["path"] for reply in answers] == ["/1", "/2", "/3", "/4", "/5", "/6", "/7"]
        assert [len(reply.json["body"]) for reply in answers] == [0, 0, 3, 0, 50_000, 3, 0]

    loops.run(scene)
