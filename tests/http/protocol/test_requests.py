"""The syntax of requests, and the parts that the application receives."""

import json

import pytest

from tests.http.protocol.support import App, Loops, Site, chunked, get, keep, post, split_answers, until
from topics.http import Exchange, HttpError, Refusal, RequestHead
from topics.testing import ManualClock


def test_a_get(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        reply = await site.ask(get("/a%20b?x=1&y=%C3%BC"))
        assert reply.status == 200
        assert reply.json == {"method": "GET", "path": "/a%20b", "query": "x=1&y=%C3%BC", "body": ""}
        assert reply.headers["content-type"] == "application/json"
        assert "connection" not in reply.headers
        assert site.app.exchanges[0].head.target == b"/a%20b?x=1&y=%C3%BC"

    loops.run(scene)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("body", [b"", b"{}", b"x" * 100_000], ids=["empty", "small", "large"])
def test_every_method_may_have_a_body(loops: Loops, method: str, body: bytes) -> None:
    async def scene(site: Site) -> None:
        reply = await site.ask(get("/p", f"content-length: {len(body)}", method=method), body)
        assert (reply.json["method"], reply.json["body"]) == (method, body.decode())

    loops.run(scene)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "/", ""),
        ("//a", "//a", ""),
        ("/a?b?c", "/a", "b?c"),
        ("*", "*", ""),
        ("http://h:1/p?q", "/p", "q"),
        ("http://h", "/", ""),
        ("http://h?q", "/", "q"),
    ],
)
def test_forms_of_the_target(loops: Loops, target: str, path: str, query: str) -> None:
    async def scene(site: Site) -> None:
        reply = await site.ask(get(target, method="OPTIONS"))
        assert (reply.json["path"], reply.json["query"]) == (path, query)

    loops.run(scene)


def test_headers_reach_the_application(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        await site.ask(get("/", "X-One: 1 ", "x-two:2", "X-ONE:\tother\t", "empty:", "high: \xff"))
        headers = site.app.exchanges[0].head.headers
        assert headers.get("x-one") == headers.get("X-One") == "1"
        assert headers.get_all("x-One") == ["1", "other"]
        assert headers.get("empty") == ""
        assert headers.get("high") == "\xff"
        assert headers.get("none") is None
        assert headers.get("none", "default") == "default"
        assert [name for name, _ in headers] == ["host", "x-one", "x-two", "empty", "high", "x-one"]

    loops.run(scene)


def test_who_asks_and_when(loops: Loops) -> None:
    clock = ManualClock()
    clock.advance(5)

    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/", "content-length: 2"))
        await until(lambda: len(site.app.admitted) == 1)
        started = clock.monotonic()
        clock.advance(7)
        client.send(b"ab")
        exchange = await site.exchange()
        host, port = client.writer.get_extra_info("sockname")
        assert exchange.peer == f"{host}:{port}"
        assert exchange.started == started

    loops.run(scene, App(keep), clock)


def test_the_application_decides_before_the_body_comes(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/", "content-length: 2", method="POST"))
        await until(lambda: len(site.app.admitted) == 1)
        assert site.app.exchanges == []
        assert (await client.ask(b"ab")).json["body"] == "ab"

    loops.run(scene)


def test_head_has_the_head_of_a_get_and_no_body(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/", method="HEAD"))
        reply = await client.answer(to_head=True)
        assert reply.headers["content-length"] == str(len(b'{"method": "HEAD", "path": "/", "query": "", "body": ""}'))
        # Had a body come, it would be in the way of the next answer.
        assert (await client.ask(get("/next"))).json["path"] == "/next"

    loops.run(scene)


def test_a_connection_is_kept(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        for number in range(5):
            assert (await client.ask(get(f"/{number}"))).json["path"] == f"/{number}"
            assert (await client.ask(post("/p", b"x" * number))).json["body"] == "x" * number
        assert site.server.counters.connections_total == 1
        assert site.server.counters.requests == 10

    loops.run(scene)


def test_connection_close_is_obeyed(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(get("/", "connection: close")))
        assert (reply.status, reply.headers["connection"]) == (200, "close")

    loops.run(scene)


def test_nothing_after_connection_close_is_a_request(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        client.send(get("/1", "connection: close"), get("/2"), b"garbage")
        exchange = await site.exchange()
        client.send(get("/3"))
        await until(lambda: site.server.counters.bytes_in > len(get("/1", "connection: close") + get("/2")) + 7)
        exchange.respond(200, b"one")
        [reply] = split_answers(await client.rest())
        assert reply.body == b"one"
        assert len(site.app.admitted) == 1
        assert site.app.refusals == []

    loops.run(scene, App(keep))


def test_http_1_0_closes(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(b"GET /old HTTP/1.0\r\n\r\n"))
        assert (reply.json["path"], reply.headers["connection"]) == ("/old", "close")

    loops.run(scene)


def test_http_1_0_may_ask_to_be_kept(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        for _ in range(3):
            reply = await client.ask(b"POST / HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nab")
            assert (reply.json["body"], reply.headers["connection"]) == ("ab", "keep-alive")

    loops.run(scene)


def test_line_ends_before_a_request_are_passed_over(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        assert (await client.ask(b"\r\n\r\n" + get("/1"))).status == 200
        assert (await client.ask(b"\r\n" + get("/2"))).status == 200

    loops.run(scene)


def test_chunks_become_one_body(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        assert (await client.ask(chunked("/", b"ab", b"c", b"def" * 5000))).json["body"] == "abc" + "def" * 5000
        assert (await client.ask(chunked("/"))).json["body"] == ""
        assert (await client.ask(chunked("/", *[b"x"] * 5000))).json["body"] == "x" * 5000

    loops.run(scene)


def test_trailers_and_chunk_extensions_are_dropped(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        request = get("/1", "transfer-encoding: chunked", method="POST")
        request += b"3;name=value\r\nabc\r\n0;last\r\nauthorization: forged\r\n\r\n"
        client = await site.connect()
        client.send(request, get("/2"))
        assert (await client.answer()).json["body"] == "abc"
        assert (await client.answer()).json["path"] == "/2"
        assert all("authorization" not in exchange.head.headers for exchange in site.app.exchanges)

    loops.run(scene)


MALFORMED = {
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10,
    "no version": b"GET /\r\n\r\n",
    "bad version": b"GET / HTTP/1.x\r\n\r\n",
    "unknown method": b"FETCH / HTTP/1.1\r\nhost: x\r\n\r\n",
    "method in small letters": b"get / HTTP/1.1\r\nhost: x\r\n\r\n",
    "target without a slash": b"GET path HTTP/1.1\r\nhost: x\r\n\r\n",
    "target with a control character": b"GET /\x01 HTTP/1.1\r\nhost: x\r\n\r\n",
    "target that is not ASCII": b"GET /\xc3\xbc HTTP/1.1\r\nhost: x\r\n\r\n",
    "bare line feed": b"GET / HTTP/1.1\nhost: x\n\n",
    "carriage return in a header": b"GET / HTTP/1.1\r\nhost: x\ry\r\n\r\n",
    "zero byte in a header": b"GET / HTTP/1.1\r\nhost: x\x00y\r\n\r\n",
    "blank before the colon": b"GET / HTTP/1.1\r\nhost : x\r\n\r\n",
    "header without a name": b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    "header without a colon": b"GET / HTTP/1.1\r\nhost\r\n\r\n",
    "folded header": b"GET / HTTP/1.1\r\nhost: x\r\n y\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "a list of lengths": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3, 4\r\n\r\nabcd",
    "a signed length": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: +3\r\n\r\nabc",
    "a negative length": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -3\r\n\r\nabc",
    "a length in letters": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: three\r\n\r\nabc",
    "an empty length": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length:\r\n\r\nabc",
    "an endless length": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\nabc",
    "length, then chunked": get("/", "content-length: 5", "transfer-encoding: chunked") + b"0\r\n\r\n",
    "chunked, then length": get("/", "transfer-encoding: chunked", "content-length: 5") + b"0\r\n\r\n",
    "chunked twice": b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunked not last": b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST / HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk of no number": b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
    "a chunk in 0x": b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    "a chunk too short": b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabc\r\n0\r\n\r\n\r\n",
    "a chunk too long": b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
    "an endless chunk": b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc",
    "half of the HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
}
# Errors for which the protocol requires another status than 400.
OTHERWISE = {"no version": 505}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_request_is_refused(loops: Loops, name: str) -> None:
    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(MALFORMED[name]))
        assert (reply.status, reply.headers["connection"]) == (OTHERWISE.get(name, 400), "close")
        assert reply.json["message"]
        assert site.app.exchanges == []
        assert site.server.counters.refused == 1

    loops.run(scene)


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"GET / HTTP/2.0\r\nhost: x\r\n\r\n", 505, "unsupported_version"),
        (b"GET / HTTP/1.2\r\nhost: x\r\n\r\n", 505, "unsupported_version"),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n", 501, "unsupported_method"),
        (get("/", "transfer-encoding: gzip", method="POST"), 501, "unsupported_transfer_encoding"),
        (get("/", "transfer-encoding: gzip, chunked", method="POST"), 501, "unsupported_transfer_encoding"),
        (get("/", "content-length: 1", "expect: a miracle", method="POST"), 417, "expectation_failed"),
    ],
)
def test_unsupported_request_is_refused(loops: Loops, request_bytes: bytes, status: int, code: str) -> None:
    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(request_bytes))
        assert (reply.status, reply.json["code"]) == (status, code)
        assert site.app.exchanges == []

    loops.run(scene)


def test_a_client_that_waits_is_asked_to_continue(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        assert (await client.ask(get("/", "content-length: 2", "Expect: 100-Continue", method="POST"))).status == 100
        assert site.app.exchanges == []
        assert (await client.ask(b"ab")).json["body"] == "ab"
        # Nothing to wait for, and a version that does not know the question.
        assert (await client.ask(get("/", "expect: 100-continue"))).status == 200
        assert (await client.ask(post("/", b"ab", "expect: 100-continue", version="1.0"))).status == 200

    loops.run(scene)


def test_a_client_that_waits_is_not_asked_to_send_what_will_be_refused(loops: Loops) -> None:
    def admit(head: RequestHead) -> int | Refusal:
        return Refusal(404, b"no") if head.path == "/none" else 10

    async def scene(site: Site) -> None:
        large = get("/", "content-length: 11", "expect: 100-continue", method="POST")
        assert [reply.status for reply in split_answers(await site.say(large))] == [413]
        unknown = get("/none", "content-length: 1", "expect: 100-continue", method="POST")
        # The connection ends: the client may send the body or not, so the beginning of the next request is unknown.
        [reply] = split_answers(await site.say(unknown))
        assert (reply.status, reply.headers["connection"], reply.body) == (404, "close", b"no")

    loops.run(scene, App(admit=admit))


def test_the_application_refuses_by_the_head(loops: Loops) -> None:
    refusal = Refusal(405, b"refused", "text/plain", [("allow", "GET")])

    async def scene(site: Site) -> None:
        client = await site.connect()
        reply = await client.ask(get("/1"))
        assert (reply.status, reply.body) == (405, b"refused")
        assert (reply.headers["allow"], reply.headers["content-type"]) == ("GET", "text/plain")
        # A small body on its way is read over, and the connection lives.
        client.send(post("/2", b"x" * 1000), post("/3", b"y" * 1000, "connection: close"))
        assert [reply.status for reply in split_answers(await client.rest())] == [405, 405]
        assert site.app.exchanges == []
        assert site.server.counters.refused == 3

    loops.run(scene, App(admit=lambda head: refusal))


def test_the_body_of_a_refused_request_is_no_part_of_the_next(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        for body in (b"refused", b"refused" * 5000):
            assert (await client.ask(post("/none", body))).status == 404
            assert (await client.ask(post("/", b"taken"))).json["body"] == "taken"

    loops.run(scene, App(admit=lambda head: Refusal(404) if head.path == "/none" else 1000))


@pytest.mark.parametrize("framing", ["content-length: 100000000", "transfer-encoding: chunked"])
def test_a_refused_body_that_may_be_large_ends_the_connection(loops: Loops, framing: str) -> None:
    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(get("/", framing, method="POST"), b"1\r\nx\r\n"))
        assert (reply.status, reply.headers["connection"]) == (404, "close")

    loops.run(scene, App(admit=lambda head: Refusal(404)))


def test_a_bug_in_a_handler_is_an_answer(loops: Loops) -> None:
    def handler(exchange: Exchange) -> None:
        if exchange.head.path == "/late":
            exchange.respond(200, b"done")
        raise RuntimeError("a bug")

    async def scene(site: Site) -> None:
        client = await site.connect()
        reply = await client.ask(get("/"))
        assert (reply.status, reply.json["code"]) == (500, "internal")
        # Answers before the bug stay valid, and the connection works as before.
        assert (await client.ask(get("/late"))).body == b"done"

    loops.run(scene, App(handler), logs=("handler failed",) * 2)


def test_a_bug_before_the_body_is_an_answer(loops: Loops) -> None:
    def admit(head: RequestHead) -> int:
        raise RuntimeError("a bug")

    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(post("/", b"body")))
        assert (reply.status, reply.headers["connection"]) == (500, "close")

    loops.run(scene, App(admit=admit), logs=("request admission failed",))


def test_a_bug_in_the_words_of_a_refusal_is_an_answer(loops: Loops) -> None:
    class Speechless(App):
        def refuse(self, error: HttpError, path: str) -> Refusal:
            raise RuntimeError("a bug")

    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(b"garbage\r\n\r\n"))
        assert (reply.status, reply.body) == (400, b"")

    loops.run(scene, Speechless(), logs=("error rendering failed",))


def test_a_refusal_has_the_shape_of_the_application(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        [reply] = split_answers(await site.say(b"garbage\r\n\r\n"))
        [error] = site.app.refusals
        assert json.loads(reply.body) == {"code": "malformed", "message": error.message}

    loops.run(scene)
