"""Limits of one client: heads, bodies, compressed bodies and connections, each accepted up to its limit and not
beyond."""

import gzip
import random
import zlib

import pytest

from tests.http.protocol.support import App, Loops, Site, chunked, get, gzipped, post, split_answers, until
from topics.http import Refusal

BOMB = zlib.compress(bytes(50_000_000), 9, wbits=31)


@pytest.mark.parametrize("where", ["target", "value", "name", "many headers"])
def test_a_head_over_the_limit_is_refused(loops: Loops, where: str) -> None:
    large = "x" * 20_000
    heads = {
        "target": get(f"/{large}"),
        "value": get("/", f"large: {large}"),
        "name": get("/", f"{large}: large"),
        "many headers": get("/", *[f"h{number}: {'x' * 1000}" for number in range(20)]),
    }

    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(heads[where]))
        assert (reply.status, reply.headers["connection"]) == (431, "close")
        assert site.app.admitted == []

    loops.run(scene)


def test_a_head_up_to_the_limit_is_taken(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        for _ in range(3):
            assert (await client.ask(get("/", "large: " + "x" * 16_000))).status == 200
        # The limit is for each of them, however they share the packets.
        client.send(*[get("/", "large: " + "x" * 12_000)] * 5)
        for _ in range(5):
            assert (await client.answer()).status == 200

    loops.run(scene)


def test_more_headers_than_the_limit_are_refused(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        assert (await site.ask(get("/", *[f"h{number}: x" for number in range(99)]))).status == 200
        assert (await site.ask(get("/", *[f"h{number}: x" for number in range(100)]))).status == 431

    loops.run(scene)


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nendless: ",
        b"GET / HTTP/1.1\r\n" + b"header: x\r\n" * 10,
        b"GET /",
        b"\r\n",
        get("/", "transfer-encoding: chunked", method="POST") + b"1;",
        get("/", "transfer-encoding: chunked", method="POST") + b"0\r\n",
        get("/", "transfer-encoding: chunked", method="POST") + b"1\r\nx\r\n0\r\nendless: ",
    ],
    ids=["header", "headers", "target", "line ends", "chunk extension", "trailers", "trailer"],
)
def test_endless_input_is_cut_off(loops: Loops, start: bytes) -> None:
    flood = b"\r\n" if start == b"\r\n" else b"trailer: x\r\n" if start.endswith(b"0\r\n") else b"x"

    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(start, flood * (40_000 // len(flood))))
        assert (reply.status, reply.headers["connection"]) == (431, "close")
        assert site.app.exchanges == []

    loops.run(scene)


def test_a_body_up_to_the_limit_is_taken(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        for body in (b"x" * 100, b"x" * 99, b""):
            assert (await client.ask(post("/", body))).json["body"] == body.decode()
            assert (await client.ask(chunked("/", body))).json["body"] == body.decode()
            assert (await client.ask(gzipped("/", body))).json["body"] == body.decode()

    loops.run(scene, App(admit=lambda head: 100))


@pytest.mark.parametrize(
    "request_bytes",
    [
        post("/", b"x" * 101),
        get("/", "content-length: 101", method="POST"),
        get("/", "content-length: 18446744073709551615", method="POST"),
        chunked("/", b"x" * 101),
        chunked("/", b"x" * 60, b"x" * 60),
        get("/", "transfer-encoding: chunked", method="POST") + b"65\r\n" + b"x" * 101,
        gzipped("/", b"x" * 101),
        chunked("/", gzip.compress(b"x" * 101), headers=("content-encoding: gzip",)),
    ],
    ids=["whole", "only announced", "absurd", "chunk", "chunks", "unfinished chunk", "gzip", "gzip chunk"],
)
def test_a_body_over_the_limit_is_refused(loops: Loops, request_bytes: bytes) -> None:
    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(request_bytes))
        assert (reply.status, reply.headers["connection"]) == (413, "close")
        assert reply.json["code"] == "body_too_large"
        assert site.app.exchanges == []

    loops.run(scene, App(admit=lambda head: 100))


def test_the_application_cannot_raise_the_limit_of_the_server(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        assert (await site.ask(post("/", b"x" * 50))).status == 200
        assert (await site.ask(post("/", b"x" * 51))).status == 413

    loops.run(scene, body_bytes=50)


def test_a_large_body_arrives_whole(loops: Loops) -> None:
    body = random.Random(1).randbytes(5_000_000)

    async def scene(site: Site) -> None:
        client = await site.connect()
        for request in (post("/", body), chunked("/", body), chunked("/", *[body[:1000]] * 1000), gzipped("/", body)):
            assert (await client.ask(request)).status == 200
        assert [exchange.body for exchange in site.app.exchanges] == [body, body, body[:1000] * 1000, body]

    app = App(lambda exchange: exchange.respond(200), admit=lambda head: 2 * len(body))
    loops.run(scene, app)


@pytest.mark.parametrize("verdict", [1000, Refusal(413)], ids=["by the server", "by the application"])
def test_a_client_that_is_still_sending_can_read_its_refusal(loops: Loops, verdict: int | Refusal) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/", "content-length: 4000000", method="POST"))
        # Sent after the refusal, and all of it before it is read: a plain close would be a reset by then.
        await until(lambda: site.server.counters.refused == 1)
        client.send(b"x" * 4_000_000)
        await client.writer.drain()
        [reply] = split_answers(await client.rest())
        assert reply.status == 413

    loops.run(scene, App(admit=lambda head: verdict))


def test_a_client_that_never_stops_sending_is_cut_off(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/", "content-length: 400000000", method="POST"))
        with pytest.raises(ConnectionError):
            while True:
                client.send(b"x" * 100_000)
                await client.writer.drain()
        assert site.server.counters.bytes_in < 5_000_000

    loops.run(scene, App(admit=lambda head: 1000), linger_bytes=1_000_000)


def test_all_bodies_together_have_a_limit(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        first = await site.connect()
        first.send(get("/", "content-length: 300000", method="POST"), b"x" * 250_000)
        await until(lambda: site.server.held_body_bytes == 250_000)
        # Small bodies are not counted: they continue whatever the large ones do.
        assert (await site.ask(post("/", b"x" * 10_000))).status == 200
        [reply] = split_answers(await site.say(post("/", b"y" * 200_000)))
        assert (reply.status, reply.json["code"]) == (503, "too_many_bodies")
        assert (await first.ask(b"x" * 50_000)).status == 200
        assert site.server.held_body_bytes == 0
        assert (await site.ask(post("/", b"y" * 200_000))).status == 200

    loops.run(scene, bodies_bytes=400_000)


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "GZIP", "identity", ""])
def test_known_encodings(loops: Loops, coding: str) -> None:
    body = b"hello " * 100
    wire = gzip.compress(body) if "gzip" in coding.lower() else body

    async def scene(site: Site) -> None:
        reply = await site.ask(post("/", wire, f"content-encoding: {coding}"))
        assert reply.json["body"] == body.decode()

    loops.run(scene)


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, gzip", "identity, gzip", "zstd"])
def test_unknown_encodings_are_refused(loops: Loops, coding: str) -> None:
    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(post("/", b"body", f"content-encoding: {coding}")))
        assert (reply.status, reply.json["code"]) == (415, "unsupported_encoding")
        assert reply.headers["accept-encoding"] == "gzip, identity"
        assert site.app.exchanges == []

    loops.run(scene)


def test_the_application_refuses_before_the_encoding_is_looked_at(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        assert (await site.ask(post("/", b"body", "content-encoding: br"))).status == 401

    loops.run(scene, App(admit=lambda head: Refusal(401)))


WHOLE = gzip.compress(b"hello" * 100)


@pytest.mark.parametrize(
    "body",
    [WHOLE[:-1], WHOLE[:-8], WHOLE[:10], b"plain text", WHOLE[:20] + b"\xff" * 20 + WHOLE[40:], WHOLE + b"more"],
    ids=["cut by one", "cut by eight", "only a header", "not gzip", "damaged", "followed by something else"],
)
def test_bad_gzip_is_refused(loops: Loops, body: bytes) -> None:
    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(post("/", body, "content-encoding: gzip")))
        assert (reply.status, reply.json["code"]) == (400, "bad_encoding")
        assert site.app.exchanges == []

    loops.run(scene)


def test_several_gzip_files_in_a_row_are_one_body(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        many = gzip.compress(b"one ") + gzip.compress(b"") + gzip.compress(b"two")
        assert (await site.ask(post("/", many, "content-encoding: gzip"))).json["body"] == "one two"
        endless = gzip.compress(b"") * 1001
        assert (await site.ask(post("/", endless, "content-encoding: gzip"))).status == 400

    loops.run(scene)


def test_a_bomb_costs_its_limit(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(post("/", BOMB, "content-encoding: gzip")))
        assert (reply.status, reply.json["code"]) == (413, "body_too_large")
        assert site.app.exchanges == []

    # The application would allow the whole of it: the ratio stops it.
    loops.run(scene, App(admit=lambda head: 100_000_000), body_bytes=100_000_000)


def test_a_body_that_compresses_very_well_is_no_bomb_while_it_is_small(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        assert (await site.ask(gzipped("/", b" " * 900_000))).status == 200

    loops.run(scene)


def test_a_connection_that_states_nothing_makes_room_for_one_that_may(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        silent, second = await site.connect(), await site.connect()
        await until(lambda: site.server.counters.connections_open == 2)
        third = await site.connect()
        assert (await third.ask(get("/"))).status == 200
        assert await silent.rest() == b""
        assert (await second.ask(get("/"))).status == 200

    loops.run(scene, connections_max=2)


def test_connections_over_the_limit_are_refused(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        first, second = await site.connect(), await site.connect()
        for speaking in (first, second):
            assert (await speaking.ask(get("/"))).status == 200
        third = await site.connect()
        [reply] = split_answers(await third.rest())
        assert (reply.status, reply.json["code"]) == (503, "too_many_connections")
        assert (await first.ask(get("/"))).status == 200
        second.close()
        await until(lambda: site.server.counters.connections_open == 1)
        assert (await site.ask(get("/"))).status == 200

    loops.run(scene, connections_max=2)
