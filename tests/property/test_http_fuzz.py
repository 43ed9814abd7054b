"""The HTTP layer gives the same answers for every division of the bytes, and survives all input.

Most of it runs without a network, because only there can a test choose where the bytes are cut. The same floods then go
through real sockets, where the question is whether the server still serves others and lets go of everything.
"""

import asyncio
import gzip
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop
from hypothesis import example, given
from hypothesis import strategies as st

from tests.http.protocol.memory import Memory, cut
from tests.http.protocol.support import App, Client, Site, get, keep, split_answers, until
from tests.property.effort import effort
from topics.http import HttpLimits, HttpServer


@dataclass(frozen=True)
class Asked:
    """A valid request: its bytes, and the application's view of it."""

    wire: bytes
    method: str
    path: str
    body: bytes


def _head(method: str, path: str, headers: list[str]) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: x", *headers, "", ""]).encode("latin-1")


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    method = draw(st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS"]))
    path = draw(st.from_regex(r"/[a-z0-9%/._~-]{0,12}(\?[a-z=&]{0,8})?", fullmatch=True))
    names = st.from_regex(r"x-[a-zA-Z0-9-]{1,8}", fullmatch=True)
    values = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)
    headers = [f"{name}: {value}" for name, value in draw(st.lists(st.tuples(names, values), max_size=3))]
    large = st.integers(4000, 9000).map(lambda length: (bytes(range(251)) * 36)[:length])
    body = draw(st.one_of(st.just(b""), st.binary(max_size=60), large))
    wire = body
    if draw(st.booleans()):
        headers.append("Content-Encoding: gzip")
        wire = gzip.compress(body)
    if draw(st.booleans()):
        headers.append("Transfer-Encoding: chunked")
        places = draw(st.lists(st.integers(0, 9000), max_size=4))
        extension = draw(st.sampled_from([b"", b";a=b", b";a"]))
        chunks = [b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in cut(wire, places) if part]
        wire = b"".join(chunks) + b"0\r\n" + draw(st.sampled_from([b"", b"trailer: x\r\n"])) + b"\r\n"
    elif wire or draw(st.booleans()):
        headers.append(f"Content-Length: {len(wire)}")
    elif "Content-Encoding: gzip" in headers:
        headers.remove("Content-Encoding: gzip")
    return Asked(_head(method, path, headers) + wire, method, path.partition("?")[0], body)


places = st.lists(st.integers(0, 40_000), max_size=12)
# Pieces of requests, whole ones and nonsense: the insertions of a mutation.
scraps = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [
            b"\r\n",
            b"\r\n\r\n",
            b"\n",
            b"\0",
            b":",
            b" ",
            b"0\r\n\r\n",
            b"ffffffffffffffff\r\n",
            b"Content-Length: 5\r\n",
            b"Content-Length: 99999999999\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Expect: 100-continue\r\n",
            b"Connection: close\r\n",
            b"Connection: upgrade\r\nUpgrade: h2c\r\n",
            b"Content-Encoding: gzip\r\n",
            b"HTTP/1.0",
            b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n",
            get("/whole"),
        ]
    ),
)


@st.composite
def floods(draw: st.DrawFn) -> bytes:
    """A valid stream of requests with something wrong in it."""
    data = b"".join(asked.wire for asked in draw(st.lists(requests(), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 40))
        data = data[:place] + draw(scraps) + data[place + length :]
    return data


def answers_to(parts: list[bytes], **limits: Any) -> tuple[bytes, list[tuple[str, str, bytes]]]:
    """Returns the answers of a server to these parts, and the requests that its application received, on a connection
    that is then left."""
    memory = Memory(App(), **limits)
    memory.send(*parts)
    answered = memory.answered
    memory.leave()
    seen = [(exchange.head.method, exchange.head.path, exchange.body) for exchange in memory.app.exchanges]
    return answered, seen


STREAM = (
    get("/first?q")
    + _head("POST", "/fixed", ["Content-Length: 5"])
    + b"fixed"
    + _head("PUT", "/chunked", ["Transfer-Encoding: chunked"])
    + b"3;x=y\r\nchu\r\n4\r\nnked\r\n0\r\ntrailer: x\r\n\r\n"
    + _head("POST", "/gzip", ["Content-Encoding: gzip", f"Content-Length: {len(gzip.compress(b'gzip' * 50, mtime=0))}"])
    + gzip.compress(b"gzip" * 50, mtime=0)
    + _head("POST", "/h2c", ["Connection: Upgrade", "Upgrade: h2c", "Content-Length: 3"])
    + b"h2c"
    + get("/upgrade", "connection: upgrade", "upgrade: websocket")
    + _head("HEAD", "/head", [])
    + _head("POST", "/wait", ["Expect: 100-continue", "Content-Length: 2"])
    + b"ab"
    + get("/last", "connection: close")
)


def test_a_stream_cut_at_every_byte_is_answered_alike() -> None:
    whole, seen = answers_to([STREAM])
    paths = ["/first", "/fixed", "/chunked", "/gzip", "/h2c", "/upgrade", "/head", "/wait", "/last"]
    assert [path for _, path, _ in seen] == paths
    assert [body for _, _, body in seen] == [b"", b"fixed", b"chunked", b"gzip" * 50, b"h2c", b"", b"", b"ab", b""]
    assert whole.count(b"HTTP/1.1 200 OK\r\n") == len(paths)
    for place in range(len(STREAM) + 1):
        assert answers_to([STREAM[:place], STREAM[place:]]) == (whole, seen), f"cut at {place}"
    assert answers_to([STREAM[place : place + 1] for place in range(len(STREAM))]) == (whole, seen)


@effort(100)
@given(st.lists(requests(), min_size=1, max_size=5), places)
def test_requests_are_answered_alike_however_they_are_cut(asked: list[Asked], places: list[int]) -> None:
    data = b"".join(each.wire for each in asked)
    answered, seen = answers_to(cut(data, places))
    assert seen == [(each.method, each.path, each.body) for each in asked]
    replies = split_answers(answered)
    assert [reply.status for reply in replies] == [200] * len(asked)
    assert [(reply.json["path"], reply.json["body"].encode("latin-1")) for reply in replies] == [
        (each.path, each.body) for each in asked
    ]
    assert answers_to([data]) == (answered, seen)


@effort(100)
@given(st.lists(requests(), min_size=1, max_size=3), st.lists(st.integers(0, 2), max_size=12), st.data())
def test_requests_sent_again_are_answered_like_new_ones(
    asked: list[Asked], order: list[int], data: st.DataObject
) -> None:
    sent = [asked[number % len(asked)] for number in order]
    pieces = [part for each in sent for part in cut(each.wire, data.draw(st.one_of(st.just([]), places)))]
    answered, seen = answers_to(pieces)
    assert seen == [(each.method, each.path, each.body) for each in sent]
    assert [reply.status for reply in split_answers(answered)] == [200] * len(sent)


@effort(100)
@given(
    st.lists(requests(), min_size=1, max_size=8),
    places,
    st.integers(1, 4),
    st.lists(st.integers(0, 100), min_size=1, max_size=20),
)
def test_answers_keep_their_order_in_whatever_order_they_are_given(
    asked: list[Asked], places: list[int], depth: int, order: list[int]
) -> None:
    memory = Memory(App(keep), pipeline_depth=depth)
    memory.send(*cut(b"".join(each.wire for each in asked), places))
    answered: set[int] = set()
    turn = 0
    while len(answered) < len(asked):
        waiting = [number for number in range(len(memory.app.exchanges)) if number not in answered]
        assert 0 < len(waiting) <= depth
        number = waiting[order[turn % len(order)] % len(waiting)]
        turn += 1
        memory.app.exchanges[number].respond(200, b"%d" % number)
        answered.add(number)
        memory.deliver()
    assert [reply.body for reply in split_answers(memory.answered)] == [b"%d" % number for number in range(len(asked))]
    memory.leave()


@effort(100)
@given(floods(), places)
@example(b"GET / HTTP/1.1\r\nhost: x\r\nConnection: close\r\n\r\n\r\n\r\nx", [5])
def test_what_is_malformed_is_answered_alike_however_it_is_cut(flood: bytes, places: list[int]) -> None:
    whole, seen = answers_to([flood])
    assert answers_to(cut(flood, places)) == (whole, seen)


@effort(100)
@given(floods(), places)
def test_small_limits_hold_for_whatever_comes(flood: bytes, places: list[int]) -> None:
    memory = Memory(App(keep, admit=lambda head: 1000), head_bytes=300, headers_count=4, pipeline_depth=2)
    memory.send(*cut(flood, places))
    assert all(len(exchange.body) <= 1000 for exchange in memory.app.exchanges)
    assert len(memory.app.exchanges) <= 2
    for exchange in memory.app.exchanges:
        assert len(exchange.head.headers) <= 4
    memory.leave()


@pytest.mark.random
@pytest.mark.parametrize("kind", ["uvloop", "asyncio"])
def test_a_flood_on_one_connection_does_not_harm_another(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Real sockets: after every flood the server answers a good request on another connection, and lets go."""
    unhandled: list[dict[str, Any]] = []

    async def attack(site: Site, flood: bytes, places: list[int], leave: str) -> None:
        client = await site.connect()
        for part in cut(flood, places):
            client.send(part)
            await asyncio.sleep(0)
        if leave == "abort":
            client.abort()
        elif leave == "half":
            client.writer.write_eof()
            await _read_to_the_end(client)
        else:
            client.close()
        assert (await site.ask(get("/good"))).json["path"] == "/good"
        await until(lambda: site.server.counters.connections_open == 0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if kind == "uvloop" else None) as runner:

        def run(scene: Coroutine[Any, Any, None]) -> None:
            async def guarded() -> None:
                async with asyncio.timeout(10):
                    await scene

            runner.run(guarded())

        runner.get_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        app = App()
        server = HttpServer(app, HttpLimits())
        [(_, port)] = runner.run(server.start("127.0.0.1", 0))
        site = Site(app, server, port)

        @effort(60)
        @given(floods(), places, st.sampled_from(["abort", "half", "close"]))
        def play(flood: bytes, places: list[int], leave: str) -> None:
            run(attack(site, flood, places, leave))
            assert server.held_body_bytes == 0

        try:
            play()
        finally:
            site.abort()
            assert runner.run(server.drain(1))
    assert unhandled == []
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


async def _read_to_the_end(client: Client) -> None:
    try:
        await client.rest()
    except ConnectionError:
        # Not an answer but an end too: the client was still sending when its time was up.
        pass
