"""Ends of connections: by clients that leave, by clients that stall, and by a server that stops.

Times are tiny here and no test measures them: it waits for the final state.
"""

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from tests.http.protocol.http2 import PREFACE, settings
from tests.http.protocol.memory import Memory
from tests.http.protocol.support import App, Loops, Site, chunked, get, keep, post, split_answers, until
from tests.http.protocol.websockets import HANDSHAKE, SocketApp
from topics.http import Exchange, Refusal
from topics.testing import ManualClock


class Parting:
    """An application's view of clients that leave: counts its notifications."""

    def __init__(self) -> None:
        self.reported = 0

    def __call__(self, exchange: Exchange) -> None:
        exchange.on_disconnect(self.tell)

    def tell(self) -> None:
        self.reported += 1


@pytest.mark.parametrize("way", ["close", "abort", "reset", "half"])
def test_the_handler_is_notified_once_that_the_client_is_gone(loops: Loops, way: str) -> None:
    parting = Parting()

    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/"))
        exchange = await site.exchange()
        assert not exchange.gone
        if way == "close":
            client.close()
        elif way == "abort":
            client.abort()
        elif way == "reset":
            sock = client.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.abort()
        else:
            client.writer.write_eof()
        await until(lambda: parting.reported == 1)
        assert exchange.gone
        assert exchange.peer == ""
        exchange.respond(200, b"to nobody")
        await until(lambda: site.server.counters.connections_open == 0)
        assert parting.reported == 1

    loops.run(scene, App(parting))


def test_every_exchange_of_a_lost_connection_is_notified(loops: Loops) -> None:
    parting = Parting()

    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(*[get("/")] * 5)
        await site.exchange(5)
        site.app.exchanges[1].respond(200, b"kept back by the first, and then lost with it")
        client.abort()
        await until(lambda: parting.reported == 4)

    loops.run(scene, App(parting))
    assert parting.reported == 4


def test_late_disconnect_callback_is_called_immediately(loops: Loops) -> None:
    parting = Parting()

    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/"))
        exchange = await site.exchange()
        client.abort()
        await until(lambda: exchange.gone)
        exchange.on_disconnect(parting.tell)
        assert parting.reported == 1
        stream = exchange.start_stream(200, [])
        stream.on_disconnect(parting.tell)
        assert parting.reported == 2
        assert not stream.write(b"to nobody")
        stream.close()

    loops.run(scene, App(keep))


def test_disconnect_callback_is_not_called_after_the_answer(loops: Loops) -> None:
    parting = Parting()

    def handler(exchange: Exchange) -> None:
        exchange.on_disconnect(parting.tell)
        exchange.respond(200)
        exchange.on_disconnect(parting.tell)

    async def scene(site: Site) -> None:
        client = await site.connect()
        await client.ask(get("/"))
        client.abort()
        await until(lambda: site.server.counters.connections_open == 0)

    loops.run(scene, App(handler))
    assert parting.reported == 0


def test_failing_disconnect_callback_affects_no_other_request(loops: Loops) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/"), get("/"))
        await site.exchange(2)
        client.abort()
        await until(lambda: site.server.counters.connections_open == 0)

    logs = ("disconnect handler failed",) * 2
    loops.run(scene, App(lambda exchange: exchange.on_disconnect(fail)), logs=logs)


def test_a_client_that_only_stops_sending_gets_its_answers(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/1"), get("/2"), b"GET /never-compl")
        client.writer.write_eof()
        await site.exchange(2)
        for number in (2, 1):
            site.app.exchanges[number - 1].respond(200, b"%d" % number)
        answers = split_answers(await client.rest())
        assert [reply.body for reply in answers] == [b"1", b"2"]
        await until(lambda: site.server.counters.connections_open == 0)

    loops.run(scene, App(lambda exchange: None))


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"GE",
        b"GET / HTTP/1.1\r\nhos",
        get("/", "content-length: 10", method="POST") + b"abc",
        get("/", "transfer-encoding: chunked", method="POST") + b"5\r\nab",
        get("/", "content-length: 100000", method="POST") + b"x" * 80_000,
        get("/", "content-encoding: gzip", "content-length: 100", method="POST") + b"\x1f\x8b",
    ],
    ids=["nothing", "method", "head", "body", "chunk", "large body", "gzip"],
)
@pytest.mark.parametrize("way", ["close", "abort"])
def test_half_a_request_leaves_nothing_behind(loops: Loops, part: bytes, way: str) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(part)
        await until(lambda: site.server.counters.bytes_in == len(part))
        getattr(client, way)()
        await until(lambda: site.server.counters.connections_total == 1)
        await until(lambda: site.server.counters.connections_open == 0)
        assert site.app.exchanges == []

    loops.run(scene)


@pytest.mark.parametrize(
    ("part", "limit", "status"),
    [
        (b"", "head_timeout_s", None),
        (b"GET / HTTP/1.1\r\nhost: x\r\n", "head_timeout_s", 408),
        (get("/", "content-length: 10", method="POST") + b"abc", "body_idle_timeout_s", 408),
        (get("/", "transfer-encoding: chunked", method="POST"), "body_idle_timeout_s", 408),
        (get("/", "transfer-encoding: chunked", method="POST") + b"3\r\nabc\r\n0\r\n", "body_idle_timeout_s", 408),
    ],
    ids=["nothing", "head", "body", "no chunk", "no end"],
)
def test_half_a_request_is_not_waited_for(loops: Loops, part: bytes, limit: str, status: int | None) -> None:
    async def scene(site: Site) -> None:
        answers = split_answers(await site.say(part))
        assert [reply.status for reply in answers] == ([] if status is None else [status])
        await until(lambda: site.server.counters.connections_open == 0)

    limits: dict[str, Any] = {limit: 0.06}
    loops.run(scene, linger_timeout_s=0.02, **limits)


def test_a_connection_at_rest_is_closed_without_a_word(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        assert (await client.ask(get("/"))).status == 200
        assert await client.rest() == b""

    loops.run(scene, keep_alive_s=0.02)


def test_the_times_of_the_sweep(loops: Loops) -> None:
    """One connection in each phase, and a clock that is moved by hand: each goes at its own time and not before."""
    clock = ManualClock()

    async def scene(site: Site) -> None:
        counters = site.server.counters
        fresh, idle, head, body, busy = [await site.connect() for _ in range(5)]
        await idle.ask(get("/"))
        head.send(b"GET / HTTP/1.1\r\nhost: x\r\n")
        body.send(get("/", "content-length: 5000", method="POST"))
        busy.send(get("/wait"))
        await site.exchange(2)
        await until(lambda: counters.connections_open == 5 and len(site.app.admitted) == 3)

        async def pass_time(ms: int) -> None:
            clock.advance(ms)
            site.server.sweep()
            await asyncio.sleep(0.005)

        await pass_time(0)
        await pass_time(29_000)
        assert counters.refused == 0
        body.send(bytes(1024))
        await until(lambda: counters.bytes_in == site_bytes + 1024)
        await pass_time(0)
        await pass_time(29_999)
        assert (counters.refused, counters.connections_open) == (0, 5)
        # Nor do connections that drip into a body.
        body.send(b"x")
        await until(lambda: counters.bytes_in == site_bytes + 1025)
        await pass_time(1)
        assert (await body.answer()).status == 408
        # Bytes that drip into a head do not buy it time.
        head.send(b"a: b\r\n")
        await pass_time(1_000)
        assert (await head.answer()).status == 408
        await fresh.ended()
        await pass_time(14_999)
        assert not idle.reader.at_eof()
        await pass_time(1)
        await idle.ended()
        await pass_time(1_000_000)
        site.app.exchanges[1].respond(200, b"patience")
        assert (await busy.answer()).body == b"patience"

    site_bytes = len(get("/")) + len(b"GET / HTTP/1.1\r\nhost: x\r\n") + len(get("/wait"))
    site_bytes += len(get("/", "content-length: 5000", method="POST"))

    def handler(exchange: Exchange) -> None:
        if exchange.head.path == "/":
            exchange.respond(200)

    loops.run(scene, App(handler), clock)


def test_a_client_that_never_reads_is_cut_off(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(get("/"))
        await until(lambda: site.server.counters.requests == 1)
        await until(lambda: site.server.counters.connections_open == 0)

    app = App(lambda exchange: exchange.respond(200, bytes(20_000_000)))
    loops.run(scene, app, write_idle_timeout_s=0.02)


def test_a_client_that_never_reads_its_last_answer_is_cut_off(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(get("/", "connection: close"))
        await until(lambda: site.server.counters.requests == 1)
        await until(lambda: site.server.counters.connections_open == 0)

    app = App(lambda exchange: exchange.respond(200, bytes(20_000_000)))
    loops.run(scene, app, linger_timeout_s=0.02)


def test_a_slow_reader_of_the_last_answer_gets_all_of_it(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(get("/", "connection: close"))
        await until(lambda: site.server.counters.requests == 1)
        await asyncio.sleep(0.01)
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert len((await client.answer()).body) == 20_000_000
        assert await client.rest() == b""

    loops.run(scene, App(lambda exchange: exchange.respond(200, bytes(20_000_000))))


def test_a_refused_client_that_does_not_leave_is_cut_off(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        assert (await client.ask(b"garbage\r\n\r\n")).status == 400
        assert site.server.counters.connections_open == 1
        await until(lambda: site.server.counters.connections_open == 0)

    loops.run(scene, linger_timeout_s=0.02)


def test_the_rest_of_a_refused_body_is_not_waited_for(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/", "content-length: 10", method="POST"), b"abc")
        [reply] = split_answers(await client.rest())
        assert reply.status == 404

    loops.run(scene, App(admit=lambda head: Refusal(404)), body_idle_timeout_s=0.02)


def test_drain_of_a_server_at_rest(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        used, fresh = await site.connect(), await site.connect()
        await used.ask(get("/"))
        await until(lambda: site.server.counters.connections_open == 2)
        assert await site.server.drain(5)
        assert await used.rest() == await fresh.rest() == b""
        with pytest.raises(OSError):
            await site.connect()

    loops.run(scene)


def test_drain_waits_for_what_is_under_way(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        busy, idle, sending = await site.connect(), await site.connect(), await site.connect()
        busy.send(get("/1"))
        sending.send(get("/2", "content-length: 4", method="POST"), b"ab")
        await idle.ask(get("/now"))
        await until(lambda: len(site.app.admitted) == 3)
        draining = asyncio.create_task(site.server.drain(5))
        await asyncio.sleep(0.01)
        assert not draining.done()

        # New requests are refused in the shape of the application, and their connection ends.
        idle.send(get("/3"))
        [refused] = split_answers(await idle.rest())
        assert (refused.status, refused.json["code"]) == (503, "shutting_down")
        assert refused.headers["connection"] == "close"

        # Also on new connections, until the last answer is sent.
        for _ in range(3):
            [refused] = split_answers(await site.say(get("/4")))
            assert (refused.status, refused.json["code"]) == (503, "shutting_down")

        # Requests admitted before are served to their end.
        [exchange] = [exchange for exchange in site.app.exchanges if exchange.head.path == "/1"]
        exchange.respond(200, b"one")
        [reply] = split_answers(await busy.rest())
        assert (reply.body, reply.headers["connection"]) == (b"one", "close")
        assert not draining.done()
        sending.send(b"cd")
        [reply] = split_answers(await sending.rest())
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert await draining
        with pytest.raises(OSError):
            await site.connect()

    def handler(exchange: Exchange) -> None:
        if exchange.head.path != "/1":
            exchange.respond(200)

    loops.run(scene, App(handler))


def test_a_stop_waits_for_uploads_and_their_answers_only(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        sending, waiting = await site.connect(), await site.connect()
        waiting.send(get("/1"))
        sending.send(get("/2", "content-length: 4", method="POST"), b"ab")
        await until(lambda: len(site.app.admitted) == 2)
        await until(lambda: any(one.uploading for one in site.server._server_state.connections))
        finishing = asyncio.create_task(site.server.finish_uploads(5))
        await asyncio.sleep(0)
        assert not finishing.done()
        sending.send(b"cd")
        await until(lambda: len(site.app.exchanges) == 2)
        assert not finishing.done()
        answers = {exchange.head.path: exchange for exchange in site.app.exchanges}
        answers["/2"].respond(200, b"two")
        await finishing
        draining = asyncio.create_task(site.server.drain(5))
        answers["/1"].respond(200, b"one")
        assert [reply.body for reply in split_answers(await waiting.rest())] == [b"one"]
        assert await draining

    loops.run(scene, App(lambda exchange: None))


def test_a_stop_does_not_wait_for_an_upload_for_ever(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        sending = await site.connect()
        sending.send(get("/2", "content-length: 4", method="POST"), b"ab")
        await until(lambda: len(site.app.admitted) == 1)
        await site.server.finish_uploads(0.02)
        assert not await site.server.drain(0.02)
        await sending.ended()

    loops.run(scene, App(lambda exchange: None), logs=("uploads cut off", "connections closed at shutdown"))


def test_drain_answers_a_whole_pipeline(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/1"), get("/2"))
        await site.exchange(2)
        draining = asyncio.create_task(site.server.drain(5))
        await asyncio.sleep(0)
        client.send(get("/3"))
        await until(lambda: site.server.counters.refused == 1)
        for number in (2, 1):
            site.app.exchanges[number - 1].respond(200, b"%d" % number)
        answers = split_answers(await client.rest())
        assert [reply.status for reply in answers] == [200, 200, 503]
        assert await draining

    loops.run(scene, App(keep))


def test_drain_does_not_wait_for_ever(loops: Loops) -> None:
    parting = Parting()

    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/"))
        await site.exchange()
        assert not await site.server.drain(0.02)
        await client.ended()
        assert parting.reported == 1
        assert site.server.counters.connections_open == 0

    loops.run(scene, App(parting), logs=("connections closed at shutdown",))


def test_drain_sends_large_answers_to_their_end(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/"))
        exchange = await site.exchange()
        draining = asyncio.create_task(site.server.drain(5))
        await asyncio.sleep(0)
        exchange.respond(200, bytes(20_000_000))
        assert len((await client.answer()).body) == 20_000_000
        assert await draining

    loops.run(scene, App(keep))


def test_many_clients_come_and_go(loops: Loops) -> None:
    async def visit(site: Site, number: int) -> None:
        client = await site.connect()
        requests = [get("/"), post("/", b"x" * 100), chunked("/", b"y"), b"garbage\r\n\r\n", b"GET / HT", b""]
        client.send(requests[number % len(requests)])
        if number % 2:
            await asyncio.sleep(0)
            client.abort()
        else:
            client.writer.write_eof()
            await client.rest()

    async def scene(site: Site) -> None:
        await asyncio.gather(*[visit(site, number) for number in range(200)])
        await until(lambda: site.server.counters.connections_open == 0)

    loops.run(scene)


@pytest.mark.parametrize("sent", [b"", post("/", b"{}")[:-1], PREFACE, PREFACE + settings(), HANDSHAKE, HANDSHAKE[:20]])
@pytest.mark.parametrize("before", ["", "close", "abort", "expect_end"])
def test_no_call_is_made_on_a_transport_that_has_ended(sent: bytes, before: str) -> None:
    """The transport of these tests fails such calls, as asyncio's and uvloop's do in some of their states."""
    memory = Memory(SocketApp())
    memory.send(sent)
    (connection,) = memory.server_state.connections
    if before:
        # A first end, that the transport has not reported yet.
        loop = asyncio.new_event_loop()
        with contextlib.closing(loop):
            loop.run_until_complete(call_on_loop(connection, before))
    memory.wire.lose()
    for _ in range(2):
        for end in ("close", "abort", "expect_end", "recount"):
            getattr(connection, end, lambda: None)()
        connection.sweep(memory.clock.monotonic())
        memory.clock.advance(100_000)
        while memory.server_state.put_off:
            memory.server_state.put_off.popleft()()
    assert memory.server_state.connections == set()


async def call_on_loop(connection: Any, name: str) -> None:
    getattr(connection, name)()


_BIG = b"x" * 8_000_000
_STATES = {
    "accepted": b"",
    "in a body": post("/", b"{}")[:-1],
    "answer unread": get("/big"),
    "HTTP/2": PREFACE + settings(),
    "WebSocket": HANDSHAKE,
}


class _Endings(SocketApp):
    """Has a large answer for one path, and a WebSocket for upgrade requests."""

    def handle(self, exchange: Exchange) -> None:
        if exchange.head.path == "/big":
            self.exchanges.append(exchange)
            exchange.respond(200, _BIG)
        else:
            super().handle(exchange)


@pytest.mark.parametrize("ends", ["close close", "close abort", "abort abort", "abort close", "expect_end close"])
@pytest.mark.parametrize("leaves", ["reads on", "resets", "ends"])
@pytest.mark.parametrize("state", _STATES)
def test_connection_is_closed_any_number_of_times(loops: Loops, state: str, leaves: str, ends: str) -> None:
    """Before its transport has ended, while the rest of an answer is flushed, and afterwards."""

    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(_STATES[state])
        await until(lambda: site.server.counters.bytes_in == len(_STATES[state]))
        await until(lambda: len(site.server.connections) == 1)
        (connection,) = site.server.connections
        for end in ends.split():
            getattr(connection, end)()
        if leaves == "reads on":
            with contextlib.suppress(ConnectionError):
                await client.reader.read()
            client.close()
        elif leaves == "resets":
            client.abort()
        else:
            client.writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await client.reader.read()
        for end in ends.split():
            getattr(connection, end)()
        if "abort" not in ends:
            client.abort()
        await until(lambda: site.server.counters.connections_open == 0)
        for end in (*ends.split(), "close", "abort", "expect_end"):
            getattr(connection, end)()

    loops.run(scene, _Endings(), linger_timeout_s=0.05)
