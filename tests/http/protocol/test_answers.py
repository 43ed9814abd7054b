"""Answers on the wire: their form and their order."""

import asyncio
import gzip
import random
import socket

import pytest

from tests.http.protocol.support import App, Loops, Site, chunked, get, keep, post, split_answers, until
from topics.http import Exchange, Refusal
from topics.http.h1.connection import Connection
from topics.testing import ManualClock

TEXT = b'{"a":1}' * 1000


def text(exchange: Exchange) -> None:
    exchange.respond(200, TEXT)


def test_the_head_of_an_answer(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/", "connection: close"))
        assert await client.rest() == (
            b"HTTP/1.1 418 I'm a Teapot\r\n"
            b"date: Tue, 14 Nov 2023 22:13:20 GMT\r\n"
            b"content-type: text/plain\r\n"
            b"x-a: 1\r\n"
            b"x-a: \xff\r\n"
            b"connection: close\r\n"
            b"content-length: 3\r\n\r\nabc"
        )

    def handler(exchange: Exchange) -> None:
        exchange.respond(418, b"abc", "text/plain", [("x-a", "1"), ("x-a", "\xff")])

    loops.run(scene, App(handler), ManualClock())


def test_the_date_moves_on_with_the_sweep(loops: Loops) -> None:
    clock = ManualClock()

    async def scene(site: Site) -> None:
        client = await site.connect()
        first = (await client.ask(get("/"))).headers["date"]
        clock.advance(1000)
        site.server.sweep()
        second = (await client.ask(get("/"))).headers["date"]
        assert (first, second) == ("Tue, 14 Nov 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:13:21 GMT")

    loops.run(scene, clock=clock)


@pytest.mark.parametrize("status", [204, 304])
def test_some_answers_have_no_body(loops: Loops, status: int) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        for _ in range(2):
            reply = await client.ask(get("/"))
            assert reply.status == status
            assert not {"content-length", "content-type"} & reply.headers.keys()

    loops.run(scene, App(lambda exchange: exchange.respond(status, b"not sent")))


def test_an_unknown_status_has_a_phrase_too(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        assert (await site.ask(get("/"))).status == 299

    loops.run(scene, App(lambda exchange: exchange.respond(299)))


@pytest.mark.parametrize("header", [("x", "a\r\nforged: b"), ("x", "a\nb"), ("x\r\n", "a"), ("x", "a\0b")])
def test_a_header_cannot_forge_another(loops: Loops, header: tuple[str, str]) -> None:
    async def scene(site: Site) -> None:
        reply = await site.ask(get("/"))
        assert (reply.status, "forged" in reply.headers) == (500, False)

    loops.run(scene, App(lambda exchange: exchange.respond(200, headers=[header])), logs=("handler failed",))


def test_an_answer_is_given_once(loops: Loops) -> None:
    def handler(exchange: Exchange) -> None:
        exchange.respond(200, b"first")
        for again in (exchange.respond, lambda status: exchange.start_stream(status, [])):
            with pytest.raises(RuntimeError, match="answered twice"):
                again(200)
        with pytest.raises(RuntimeError, match="cannot be upgraded"):
            exchange.upgrade()

    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(get("/", "connection: close")))
        assert reply.body == b"first"

    loops.run(scene, App(handler))


def test_an_answer_may_come_later(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        for number in range(1, 4):
            client.send(get("/"))
            exchange = await site.exchange(number)
            exchange.respond(200, b"%d" % number)
            assert (await client.answer()).body == b"%d" % number

    loops.run(scene, App(keep))


@pytest.mark.parametrize(
    ("accept", "requested"),
    [
        (None, False),
        ("", False),
        ("gzip", True),
        ("GZip", True),
        ("x-gzip", True),
        ("deflate, gzip;q=0.5, br", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("*", True),
        ("*;q=0", False),
        ("br, *;q=0.1", True),
        ("gzip;q=0, *", False),
        ("identity, gzip;q=0.5", False),
        ("identity;q=0.5, gzip", True),
        ("identity", False),
        ("br", False),
        ("gzip;q=nan", False),
        ("gzip;q=2", False),
        ("gzip;level=9", False),
        (",,;q=,=;", False),
    ],
)
def test_gzip_is_used_if_accepted(loops: Loops, accept: str | None, requested: bool) -> None:
    async def scene(site: Site) -> None:
        reply = await site.ask(get("/", *([] if accept is None else [f"accept-encoding: {accept}"])))
        assert reply.headers.get("content-encoding") == ("gzip" if requested else None)
        assert (gzip.decompress(reply.body) if requested else reply.body) == TEXT
        assert reply.headers["vary"] == "accept-encoding"

    loops.run(scene, App(text))


def test_small_answers_are_not_compressed(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        for path, encoding in (("/1023", None), ("/1024", "gzip")):
            reply = await client.ask(get(path, "accept-encoding: gzip"))
            assert reply.headers.get("content-encoding") == encoding
            assert ("vary" in reply.headers) is (encoding is not None)

    loops.run(scene, App(lambda exchange: exchange.respond(200, b"x" * int(exchange.head.path[1:]))))


def test_an_answer_is_the_same_the_second_time_whatever_its_length(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        for nbytes in (1023, 1024, 5000, 32 * 1024, 32 * 1024 + 1):
            plain = [await client.ask(get(f"/{nbytes}")) for _ in range(2)]
            asked = await client.ask(get(f"/{nbytes}", "accept-encoding: identity"))
            assert {len(reply.body) for reply in (*plain, asked)} == {nbytes}
            reported = [[pair for pair in reply.headers.items() if pair[0] != "date"] for reply in (*plain, asked)]
            assert reported[0] == reported[1] == reported[2]

    loops.run(scene, App(lambda exchange: exchange.respond(200, b"x" * int(exchange.head.path[1:]))))


def test_encoded_answer_is_not_compressed_again(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        reply = await site.ask(get("/", "accept-encoding: gzip"))
        assert (reply.headers["content-encoding"], reply.body) == ("br", TEXT)
        assert "vary" not in reply.headers

    loops.run(scene, App(lambda exchange: exchange.respond(200, TEXT, headers=[("content-encoding", "br")])))


def test_incompressible_answer_is_sent_plain(loops: Loops) -> None:
    dense = random.Random(1).randbytes(3000)

    async def scene(site: Site) -> None:
        reply = await site.ask(get("/", "accept-encoding: gzip"))
        assert reply.body == dense
        assert "content-encoding" not in reply.headers

    loops.run(scene, App(lambda exchange: exchange.respond(200, dense)))


def test_head_reports_the_length_of_the_compressed_body(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        whole = await client.ask(get("/", "accept-encoding: gzip"))
        client.send(get("/", "accept-encoding: gzip", method="HEAD"))
        head = await client.answer(to_head=True)
        assert head.headers == whole.headers

    loops.run(scene, App(text), ManualClock())


def test_large_answers_are_compressed_beside_the_loop(loops: Loops) -> None:
    large = TEXT * 100

    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/large", "accept-encoding: gzip"), get("/small", "accept-encoding: gzip"))
        assert gzip.decompress((await client.answer()).body) == large
        assert (await client.answer()).body == b"small"
        # The client is gone before the thread is done: that causes no error.
        gone = await site.connect()
        gone.send(get("/large", "accept-encoding: gzip"))
        await site.exchange(3)
        gone.abort()
        await until(lambda: site.server.counters.connections_open == 1)

    def handler(exchange: Exchange) -> None:
        exchange.respond(200, large if exchange.head.path == "/large" else b"small")

    loops.run(scene, App(handler))


def test_pipelined_requests_are_answered_in_order(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        requests = [get("/a"), post("/b", b"x" * 5000), chunked("/c", b"y", b"z" * 9000), get("/d")] * 50
        answers = split_answers(await site.say(*requests, get("/end", "connection: close")))
        assert [reply.json["path"] for reply in answers] == ["/a", "/b", "/c", "/d"] * 50 + ["/end"]
        assert [len(reply.json["body"]) for reply in answers] == [0, 5000, 9001, 0] * 50 + [0]

    loops.run(scene)


def test_answers_wait_for_their_turn(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(*[get(f"/{number}") for number in range(6)])
        await site.exchange(6)
        for number in (5, 3, 1, 2, 0, 4):
            site.app.exchanges[number].respond(200, b"%d" % number)
        assert [(await client.answer()).body for _ in range(6)] == [b"%d" % number for number in range(6)]

    loops.run(scene, App(keep))


def test_a_refusal_waits_for_its_turn(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/slow"), get("/none"), b"garbage\r\n\r\n")
        exchange = await site.exchange()
        await until(lambda: site.server.counters.refused == 2)
        exchange.respond(200, b"slow")
        answers = split_answers(await client.rest())
        assert [(reply.status, reply.headers.get("connection")) for reply in answers] == [
            (200, None),
            (404, None),
            (400, "close"),
        ]

    loops.run(scene, App(keep, lambda head: Refusal(404) if head.path == "/none" else 10))


def test_the_word_to_continue_waits_for_its_turn(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/1"), get("/2", "content-length: 1", "expect: 100-continue", method="POST"))
        first = await site.exchange()
        await until(lambda: len(site.app.admitted) == 2)
        first.respond(200, b"1")
        assert (await client.answer()).body == b"1"
        assert (await client.answer()).status == 100
        client.send(b"x")
        (await site.exchange(2)).respond(200, b"2")
        assert (await client.answer()).body == b"2"

    loops.run(scene, App(keep))


def test_the_pipeline_is_bounded(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(*[get(f"/{number}") for number in range(1000)])
        for number in range(1000):
            exchange = await site.exchange(number + 1)
            await asyncio.sleep(0)
            assert len(site.app.exchanges) <= number + 4
            exchange.respond(200, exchange.head.path.encode())
        assert [(await client.answer()).body for _ in range(1000)] == [b"/%d" % number for number in range(1000)]

    loops.run(scene, App(keep), pipeline_depth=4)


def test_a_pipeline_of_one_still_gets_its_bodies(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(post("/1", b"x" * 100_000), chunked("/2", b"y" * 100_000), get("/3"))
        for number in range(1, 4):
            (await site.exchange(number)).respond(200, b"%d" % number)
        assert [(await client.answer()).body for _ in range(3)] == [b"1", b"2", b"3"]

    loops.run(scene, App(keep), pipeline_depth=1)


def test_a_client_that_does_not_read_is_not_read_either(loops: Loops) -> None:
    size = 1_000_000

    async def scene(site: Site) -> None:
        client = await site.connect()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(*[get(f"/{number}") for number in range(200)])
        await until(lambda: len(site.app.exchanges) > 0)
        for _ in range(50):
            await asyncio.sleep(0.001)
        # The content of the socket buffers, one answer that fills the output buffer, and no more.
        assert len(site.app.exchanges) < 50
        [connection] = site.server.connections
        assert connection.buffered_bytes < 2 * size
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(200):
            assert len((await client.answer()).body) == size

    loops.run(scene, App(lambda exchange: exchange.respond(200, bytes(size))), write_buffer_bytes=10_000)


def test_answers_are_counted_by_status(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(*[get("/")] * 10)
        sizes = [len((await client.answer()).body) for _ in range(10)]
        counters = site.server.counters
        assert (counters.requests, counters.refused) == (10, 0)
        assert (counters.connections_open, counters.connections_total) == (1, 1)
        assert counters.bytes_in == 10 * len(get("/"))
        assert counters.bytes_out > sum(sizes)

    loops.run(scene)


def test_small_packets_are_not_delayed(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        await site.connect()
        await until(lambda: site.server.counters.connections_open == 1)
        [connection] = site.server.connections
        assert isinstance(connection, Connection) and connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    loops.run(scene)


@pytest.mark.parametrize("streams", [False, True])
def test_an_answer_starts_no_other_request_in_the_middle_of_one(loops: Loops, streams: bool) -> None:
    """A handler may be deciding while it answers, and a request admitted by the answer must not change that."""
    seen: list[str] = []

    def handler(exchange: Exchange) -> None:
        seen.append(exchange.head.path)
        if exchange.head.path == "/now":
            late = app.exchanges[0]
            if streams:
                late.start_stream(200, [], chunked=True).close()
            else:
                late.respond(200)
            seen.append("decided")
        if exchange.head.path != "/late":
            exchange.respond(200)

    app = App(handler)

    async def scene(site: Site) -> None:
        first, second = await site.connect(), await site.connect()
        first.send(get("/late"))
        await site.exchange()
        first.send(get("/next"))
        await until(lambda: site.server.counters.bytes_in == len(get("/late") + get("/next")))
        await second.ask(get("/now"))
        await until(lambda: len(seen) > 3)
        assert seen == ["/late", "/now", "decided", "/next"]

    loops.run(scene, app, pipeline_depth=1)
