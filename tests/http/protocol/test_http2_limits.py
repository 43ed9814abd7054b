"""Limits of one HTTP/2 connection: streams, heads, idle frames, bodies, answers that nobody reads, time."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.http.protocol.http2 import (
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GET,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    NO_ERROR,
    PING,
    POST,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    Http2Client,
    connect,
    frame,
    reset,
    run,
    settings,
    window,
)
from tests.http.protocol.support import App, Loops, Site, get, keep, post, until
from topics.http import Exchange, Stream
from topics.http.h2.connection import Http2Connection
from topics.http.output_backpressure import Account
from topics.system.fair_scheduler import Task
from topics.testing import ManualClock


def test_a_stream_too_many_is_refused_by_itself(loops: Loops) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        for number in range(6):
            client.ask(2 * number + 1)
        await client.until(lambda: len(client.resets) == 2)
        assert client.resets == {9: REFUSED_STREAM, 11: REFUSED_STREAM}
        for exchange in site.app.exchanges:
            exchange.respond(200, b"{}")
        assert [(await client.answer(stream_id)).status for stream_id in (1, 3, 5, 7)] == [200] * 4
        client.ask(13)
        await site.exchange(5)
        assert client.goodbyes == []

    run(loops, scene, App(keep), http2_streams=4)


def test_opening_too_many_streams_ends_the_connection(loops: Loops) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        for number in range(12):
            client.ask(2 * number + 1)
        assert await client.goodbye() == ENHANCE_YOUR_CALM
        assert len(site.app.exchanges) == 4
        assert all(exchange.gone for exchange in site.app.exchanges)

    run(loops, scene, App(keep), http2_streams=4, http2_resets=5)


@pytest.mark.parametrize("where", ["path", "value", "name", "many headers"])
def test_a_head_over_the_limit_is_refused_with_a_status(loops: Loops, where: str) -> None:
    large = "x" * 1100
    fields = {
        "path": [*GET[:2], (":path", "/" + large), GET[3]],
        "value": [*GET, ("large", large)],
        "name": [*GET, (large, "large")],
        "many headers": [*GET, *[(f"h{number}", "x") for number in range(11)]],
    }

    async def scene(site: Site, client: Http2Client) -> None:
        client.send(client.headers(1, fields[where]))
        client.ask(3)
        assert [(await client.answer(stream_id)).status for stream_id in (1, 3)] == [431, 200]
        assert [head.path for head in site.app.admitted] == ["/"]

    run(loops, scene, head_bytes=1000, headers_count=10)


def test_a_bomb_of_headers_is_not_unpacked(loops: Loops) -> None:
    """One large header into the table, and then a thousand bytes that each name it."""

    async def scene(site: Site, client: Http2Client) -> None:
        block = client.block([*GET, ("bomb", "x" * 3000)])
        client.send(frame(HEADERS, END_STREAM | END_HEADERS, 1, block + b"\xbe" * 10_000))
        assert await client.goodbye() == ENHANCE_YOUR_CALM
        assert site.app.admitted == []

    run(loops, scene)


def continuations(nbytes: int) -> Iterator[bytes]:
    yield frame(HEADERS, END_STREAM, 1, b"x" * nbytes)
    while True:
        yield frame(CONTINUATION, 0, 1, b"x" * nbytes)


@pytest.mark.parametrize(("nbytes", "code"), [(10_000, ENHANCE_YOUR_CALM), (1, PROTOCOL_ERROR), (0, PROTOCOL_ERROR)])
def test_headers_without_an_end_end_the_connection(loops: Loops, nbytes: int, code: int) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        frames = continuations(nbytes)
        sent = 0
        while not client.goodbyes and sent < 2_000_000:
            client.send(part := next(frames))
            sent += len(part)
            if sent % 7 == 0:
                await asyncio.sleep(0)
            if site.server.counters.refused:
                break
        assert await client.goodbye() == code

    run(loops, scene)


def rapid_resets(client: Http2Client, number: int) -> bytes:
    stream_id = 2 * number + 1
    return client.headers(stream_id, GET) + reset(stream_id)


FLOODS: dict[str, Callable[[Http2Client, int], bytes]] = {
    "rapid resets": rapid_resets,
    "resets provoked": lambda client, number: client.headers(2 * number + 1, [*GET, ("connection", "x")]),
    "PING": lambda client, number: frame(PING, payload=b"x" * 8),
    "SETTINGS": lambda client, number: settings((INITIAL_WINDOW_SIZE, number)),
    "SETTINGS without any": lambda client, number: settings(),
    "PRIORITY": lambda client, number: frame(PRIORITY, 0, 2 * number + 1, b"\0\0\0\0\0"),
    "unknown frames": lambda client, number: frame(0xEE),
    "WINDOW_UPDATE": lambda client, number: window(0, 1),
    "DATA without a byte": lambda client, number: frame(DATA, 0, 1),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_its_connection_and_no_other(loops: Loops, name: str) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        calm = await connect(site)
        if name == "DATA without a byte":
            client.send(client.headers(1, POST, ended=False))
        for number in range(500):
            client.send(FLOODS[name](client, number))
        assert await client.goodbye() == ENHANCE_YOUR_CALM
        calm.ask(1)
        assert (await calm.answer(1)).status == 200
        # Requests cancelled before their turn were never begun; the tokens limit the others.
        assert len(site.app.exchanges) <= 60

    run(loops, scene, App(), ManualClock(), http2_resets=50, http2_idle_frames=50)


def test_frames_that_belong_to_something_are_no_flood(loops: Loops) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        for number in range(100):
            client.send(frame(PING, payload=b"x" * 8))
            client.ask(2 * number + 1)
            assert (await client.answer(2 * number + 1)).status == 200
        assert client.goodbyes == []

    # Each answer is acknowledged by the client, twice.
    run(loops, scene, App(), ManualClock(), http2_idle_frames=10)


def test_tokens_come_back_with_time(loops: Loops) -> None:
    clock = ManualClock()

    async def scene(site: Site, client: Http2Client) -> None:
        for _ in range(20):
            for _ in range(10):
                await client.settle()
            clock.advance(1000)
        client.send(*[frame(PING, payload=b"x" * 8)] * 30)
        assert await client.goodbye() == ENHANCE_YOUR_CALM

    run(loops, scene, App(), clock, http2_idle_frames=20, http2_idle_frames_per_s=10, keep_alive_s=10**6)


def test_bodies_count_from_their_first_bytes_and_all_together(loops: Loops) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        for stream_id in (1, 3, 5, 7):
            client.send(client.headers(stream_id, POST, ended=False), frame(DATA, 0, stream_id, bytes(10_000)))
        assert (await client.answer(7)).status == 503
        await client.settle()
        assert site.server.held_body_bytes == 30_000
        client.send(frame(DATA, END_STREAM, 1), reset(3), reset(5))
        assert (await client.answer(1)).status == 200

    run(loops, scene, bodies_bytes=35_000)


def test_a_body_over_its_limit_is_refused_at_once_or_when_it_is(loops: Loops) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        client.send(client.headers(1, [*POST, ("content-length", "2000000")], ended=False))
        assert (await client.answer(1)).status == 413
        client.send(client.headers(3, POST, ended=False), frame(DATA, 0, 3, bytes(1001)))
        assert (await client.answer(3)).status == 413
        client.post(5, bytes(1000))
        assert (await client.answer(5)).status == 200

    run(loops, scene, App(admit=lambda head: 1000))


class Reader:
    """Answers with as much as there is room for."""

    def __init__(self, requested: int) -> None:
        self._wanted = requested
        self.account = Account()
        self.given: list[int] = []

    def handle(self, exchange: Exchange) -> None:
        nbytes = min(self._wanted, exchange.room(self.account))
        self.given.append(nbytes)
        exchange.respond(200, b"x" * nbytes)


def test_unread_output_shortens_answers(loops: Loops) -> None:
    reader = Reader(400_000)

    async def scene(site: Site) -> None:
        deaf = await connect(site, (INITIAL_WINDOW_SIZE, 0))
        for stream_id in (1, 3):
            deaf.ask(stream_id)
        await deaf.settle()
        assert reader.given == [400_000, 64 * 1024]
        assert site.server.unread_bytes == reader.account.unread_bytes == sum(reader.given)
        # Another stream of the connection gets its whole answer, and so does another connection.
        well = await connect(site)
        well.ask(1)
        assert len((await well.answer(1)).body) == 400_000
        deaf.send(window(3, 10**6))
        assert len((await deaf.answer(3)).body) == 64 * 1024
        # The client may have read the last of it before the server checks its buffer.
        await until(lambda: site.server.unread_bytes == 400_000)
        deaf.send(reset(1))
        await deaf.settle()
        assert site.server.unread_bytes == reader.account.unread_bytes == 0

    loops.run(scene, App(reader.handle), unread_bytes=16 * 2**20)


def test_a_connection_with_too_much_unread_starts_no_more_requests(loops: Loops) -> None:
    reader = Reader(400_000)

    async def scene(site: Site) -> None:
        deaf = await connect(site, (INITIAL_WINDOW_SIZE, 0))
        deaf.ask(1)
        deaf.post(3, bytes(5000))
        deaf.ask(5)
        await deaf.settle()
        # They wait, and the body still counts as one on its way.
        assert (len(site.app.exchanges), site.server.held_body_bytes) == (1, 5000)
        deaf.send(reset(5))
        deaf.send(window(1, 10**6), window(3, 10**6))
        assert [len((await deaf.answer(stream_id)).body) for stream_id in (1, 3)] == [400_000, 400_000]
        assert len(site.app.exchanges) == 2

    loops.run(scene, App(reader.handle), unread_bytes=4 * 2**20)


def test_a_client_that_reads_nothing_is_not_read_either(loops: Loops) -> None:
    reader = Reader(300_000)

    async def scene(site: Site) -> None:
        deaf = await connect(site, (INITIAL_WINDOW_SIZE, 2**30), reads=False)
        deaf.send(window(0, 2**30))
        await deaf.settle()
        deaf.listen(False)
        for number in range(90):
            deaf.ask(2 * number + 1)
        [served] = site.server.connections
        assert isinstance(served, Http2Connection)
        await until(lambda: served.write_paused)
        asked = len(site.app.exchanges)
        for number in range(90, 100):
            deaf.ask(2 * number + 1)
        assert (await site.ask(get("/"))).status == 200
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(site.app.exchanges) == asked + 1
        deaf.listen(True)
        for number in range(100):
            assert (await deaf.answer(2 * number + 1)).status == 200

    loops.run(scene, App(reader.handle), write_buffer_bytes=100_000)


def test_a_stream_of_events_waits_for_its_client_and_goes_on(loops: Loops) -> None:
    opened: list[Stream] = []
    drained: list[int] = []

    def handler(exchange: Exchange) -> None:
        stream = exchange.start_stream(200, [("Content-Type", "text/event-stream")], chunked=True)
        stream.on_drain(lambda: drained.append(len(opened)))
        opened.append(stream)

    async def scene(site: Site) -> None:
        client = await connect(site, (INITIAL_WINDOW_SIZE, 1000))
        client.ask(1)
        await until(lambda: len(opened) == 1)
        [stream] = opened
        drained.clear()
        assert stream.write(b"x" * 5000) and not stream.chunked
        assert not stream.write(b"x" * 10_000)
        await client.until(lambda: client.received == {1: 1000})
        # The client has acknowledged the bytes that it read; more is sent, until there is room again.
        await client.until(lambda: client.received == {1: 15_000})
        await until(lambda: drained == [1])
        assert stream.writable and stream.buffered_bytes == 0
        stream.write(b"last")
        stream.close(last=True)
        reply = await client.answer(1)
        assert reply.body == b"x" * 15_000 + b"last"
        assert ("connection" in reply.headers, "transfer-encoding" in reply.headers) == (False, False)
        client.ask(3)
        await until(lambda: len(opened) == 2)

    loops.run(scene, App(handler), write_buffer_bytes=10_000)


def test_events_are_not_lost_when_their_client_leaves(loops: Loops) -> None:
    gone: list[str] = []

    def handler(exchange: Exchange) -> None:
        stream = exchange.start_stream(200, [("Content-Type", "text/event-stream")])
        stream.on_disconnect(lambda: gone.append(exchange.head.path))

    async def scene(site: Site, client: Http2Client) -> None:
        client.ask(1, "/a")
        client.ask(3, "/b")
        await site.exchange(2)
        client.send(reset(1))
        await client.settle()
        assert gone == ["/a"]
        site.abort()
        await until(lambda: gone == ["/a", "/b"])

    run(loops, scene, App(handler))


class Steps:
    """Work of ten steps for each request that has a body."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def handle(self, exchange: Exchange) -> None:
        exchange.run(self._work(exchange))

    def _work(self, exchange: Exchange) -> Task:
        for left in range(9, -1, -1):
            self.order.append(exchange.body.decode())
            if left:
                yield None
        exchange.respond(200, b"{}")


def test_long_requests_of_a_connection_take_its_turn_one_after_the_other(loops: Loops) -> None:
    steps = Steps()

    async def scene(site: Site, client: Http2Client) -> None:
        for number in range(5):
            client.post(2 * number + 1, b"a%d" % number)
        for number in range(5):
            assert (await client.answer(2 * number + 1)).status == 200
        assert steps.order == [f"a{number}" for number in range(5) for _ in range(10)]

    run(loops, scene, App(steps.handle))


def test_a_connection_with_many_requests_waits_in_line(loops: Loops) -> None:
    """Each request takes longer than a slice. Ninety of them on one connection delay no other connection for long."""
    clock = ManualClock()
    order: list[str] = []

    def handler(exchange: Exchange) -> None:
        order.append(exchange.head.path)
        clock.advance(1)
        exchange.respond(200, b"{}")

    async def scene(site: Site, client: Http2Client) -> None:
        other = await site.connect()
        await other.ask(get("/before"))
        client.send(
            b"".join(client.headers(2 * number + 1, [*GET[:2], (":path", "/many"), GET[3]]) for number in range(90))
        )
        await until(lambda: "/many" in order)
        assert (await other.ask(post("/other", b"x"))).status == 200
        # A round of the line may have served a few of them, and no more.
        assert order.index("/other") < 45
        for number in range(90):
            await client.answer(2 * number + 1)
        assert order.count("/many") == 90

    run(loops, scene, App(handler), clock)


def test_idle_streams_are_ended(loops: Loops) -> None:
    clock = ManualClock()

    async def scene(site: Site) -> None:
        silent = Http2Client(await site.connect())
        silent.send(PREFACE, settings())
        client = await connect(site, (INITIAL_WINDOW_SIZE, 10), reads=False)
        client.send(client.headers(1, POST, ended=False))
        client.ask(3)
        await client.until(lambda: client.received == {3: 10})
        site.server.sweep()
        clock.advance(31_000)
        client.send(window(3, 1))
        await client.until(lambda: client.received == {3: 11})
        site.server.sweep()
        # The body did not come. Its refusal and the other answer are more than the client takes.
        await client.until(lambda: client.received == {1: 10, 3: 11})
        site.server.sweep()
        clock.advance(61_000)
        site.server.sweep()
        await client.until(lambda: len(client.resets) == 2)
        assert client.resets == {1: CANCEL, 3: CANCEL}
        assert site.server.unread_bytes == 0
        assert await silent.goodbye() == NO_ERROR
        site.server.sweep()
        clock.advance(76_000)
        site.server.sweep()
        assert await client.goodbye() == NO_ERROR

    loops.run(scene, App(), clock)


def test_a_body_that_does_not_come_is_refused(loops: Loops) -> None:
    clock = ManualClock()

    async def scene(site: Site, client: Http2Client) -> None:
        client.send(client.headers(1, POST, ended=False), frame(DATA, 0, 1, bytes(5000)))
        await client.settle()
        site.server.sweep()
        clock.advance(20_000)
        client.send(frame(DATA, 0, 1, bytes(5000)))
        await client.settle()
        site.server.sweep()
        clock.advance(20_000)
        client.send(frame(DATA, 0, 1, bytes(10)))
        await client.settle()
        site.server.sweep()
        assert site.server.held_body_bytes == 10_010
        clock.advance(11_000)
        site.server.sweep()
        assert (await client.answer(1)).status == 408
        assert site.server.held_body_bytes == 0

    run(loops, scene, App(), clock)


def test_a_stop_answers_what_is_under_way_and_refuses_the_rest(loops: Loops) -> None:
    async def scene(site: Site, client: Http2Client) -> None:
        client.ask(1)
        exchange = await site.exchange()
        stopping = asyncio.ensure_future(site.server.drain(5.0))
        await client.until(lambda: bool(client.goodbyes))
        assert (client.goodbyes[0].payload[:4], client.goodbyes[0].number) == (b"\x7f\xff\xff\xff", NO_ERROR)
        client.ask(3)
        assert (await client.answer(3)).status == 503
        exchange.respond(200, b"x" * 200_000)
        assert len((await client.answer(1)).body) == 200_000
        assert await client.goodbye() == NO_ERROR
        assert client.goodbyes[-1].payload[:4] == b"\0\0\0\3"
        site.abort()
        assert await stopping

    run(loops, scene, App(keep))
