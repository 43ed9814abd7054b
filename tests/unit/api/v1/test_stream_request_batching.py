"""Appends of one value to a stream: the shorter path answers like the long one, and leaves it every other request."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.unit.api.v0.test_request_batching import Client
from tests.unit.conftest import committers, flush, open_engine, values
from tests.unit.timeless import run
from topics.api.app import Api, Routes, match_of
from topics.api.auth import KeyRing
from topics.api.request_batching import BACKOFF_REQUESTS
from topics.engine.engine import Engine
from topics.http.exchange import Exchange
from topics.http.messages import Headers, RequestHead
from topics.model.settings import Settings
from topics.model.topic_config import Durability
from topics.server import stream_routes
from topics.streams.lifecycle import CreateRequest
from topics.streams.stream_state import StreamState, decode_offset, stream_of
from topics.streams.streams import inline_streams
from topics.streams.subscriptions.subscriptions import Subscriptions
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem, ManualClock


@pytest.fixture(params=["gathered", "alone"], autouse=True)
def way(request: pytest.FixtureRequest) -> str:
    """The path of requests: with a known head, or by themselves. Everything here holds for both."""
    World.gathers = request.param == "gathered"
    return str(request.param)


def _no_deliver(url: str, body: bytes, signature: str, done: Callable[[Any], None]) -> None:
    raise AssertionError("no webhook is called here")


def _no_timer(seconds: float, function: Callable[[], None]) -> Callable[[], None]:
    raise AssertionError("nothing is put off here")


class World:
    """A stream in an engine that gathers until `flush`, behind the API."""

    gathers = False

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or open_engine()
        self.clock = ManualClock()
        routes, streams = stream_routes(Settings()), inline_streams(self.engine, Durability.DISK)
        routes.open(streams, Subscriptions(streams, _no_deliver, _no_timer, allow_loopback=True))
        self.api = Api(Routes((), (routes,)), KeyRing.parse(""), self.clock, 10**6, 0)
        self.api.engine = self.engine
        self.client = Client()
        outcomes: list[object] = []
        streams.create("a", CreateRequest(content_type="application/json"), outcomes.append)
        assert outcomes
        for committer in committers(self.engine):
            committer.hold = committer.coalesces = True

    @property
    def state(self) -> StreamState:
        found = stream_of(self.engine.core.directory.load("a"))
        assert found is not None
        return found

    def head(self, query: str = "", content_type: str = "application/json", **headers: str) -> RequestHead:
        fields = [(b"content-type", content_type.encode())]
        fields += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        head = RequestHead("POST", b"", "/v1/stream/a", query, Headers.of(fields), "1.1", True)
        assert self.api.admit(head) == 10**6
        return head

    def ask(self, head: RequestHead, body: bytes = b'{"n":1}') -> Exchange:
        exchange = Exchange(head, self.client, self.clock.monotonic(), True, True, body)
        gather = self.api.batch_handler(head) if self.gathers else None
        if gather is None or not gather([exchange], len(body)):
            self.api.handle(exchange)
        return exchange

    def is_taken(self, body: bytes = b"1") -> bool:
        """Whether a request goes the shorter way."""
        head = self.head()
        match = match_of(head)
        assert match.batcher is not None
        exchange = Exchange(head, self.client, self.clock.monotonic(), True, True, body)
        return match.batcher.for_head(self.engine, match)([exchange], len(body))

    def offsets(self) -> list[int]:
        """The counters of the offsets that were answered."""
        texts = [
            answer.partition(b"stream-next-offset: ")[2].split(b"\r\n")[0].decode() for answer in self.client.answers
        ]
        return [decode_offset(text)[1] for text in texts]


def in_world(play: Callable[[World], None]) -> None:
    async def begin() -> None:
        play(World())

    run(begin())


def test_arrays_pause_batching() -> None:
    def play(world: World) -> None:
        head = world.head()
        world.ask(head, b"[1,2]")
        flush(world.engine)
        assert (world.client.statuses, world.offsets()) == ([204], [2])
        gather = world.api.batch_handler(head)
        assert gather is not None
        exchange = Exchange(head, world.client, world.clock.monotonic(), True, True, b"3")
        assert [gather([exchange], 1) for _ in range(BACKOFF_REQUESTS)] == [False] * BACKOFF_REQUESTS
        assert gather([exchange], 1)

    in_world(play)


def test_both_ways_answer_alike() -> None:
    def play(world: World) -> None:
        head = world.head()
        world.ask(head)
        world.ask(head)
        flush(world.engine)
        head.context = replace(match_of(head), batcher=None)
        world.ask(head)
        flush(world.engine)
        assert world.client.statuses == [204, 204, 204]
        assert world.offsets() == [1, 2, 3]
        short, _, long = [
            answer.replace(b"stream-next-offset: " + offset, b"")
            for answer in world.client.answers
            for offset in [answer.partition(b"stream-next-offset: ")[2].split(b"\r\n")[0]]
        ]
        assert short == long
        assert values(world.engine, "a") == [{"n": 1}] * 3
        # The first two share a block.
        assert [block.count for block in world.engine.core.directory.load("a").tail] == [2, 1]

    in_world(play)


@pytest.mark.parametrize(
    "headers",
    [
        {"stream_key": "k"}, {"stream_timestamp": "1"}, {"stream_seq": "a"}, {"stream_closed": "true"},
        {"producer_id": "p"}, {"producer_epoch": "0"}, {"producer_seq": "0"}, {"query": "a=1"},
        {"content_type": "text/plain"}, {"content_type": ""},
    ],
)  # fmt: skip
def test_heads_that_state_more_go_the_long_way(headers: dict[str, str]) -> None:
    world = World()
    assert match_of(world.head(**headers)).batcher is None
    assert match_of(world.head(content_type="Application/JSON; charset=utf-8")).batcher is not None


@pytest.mark.parametrize(
    ("body", "status", "found"),
    [
        (b"[1,2]", 204, [1, 2]), (b" 1", 204, [1]), (b"[]", 400, []), (b"", 400, []), (b"{", 400, []),
        (b'"\xff"', 400, []), ('"ä"'.encode(), 204, ["ä"]), (b"1 2", 400, []),
        (b'"%b"' % (b"x" * 9000), 204, ["x" * 9000]),
    ],
)  # fmt: skip
def test_bodies_are_read_as_ever(body: bytes, status: int, found: list[object]) -> None:
    def play(world: World) -> None:
        world.ask(world.head(), body)
        flush(world.engine)
        assert world.client.statuses == [status]
        assert values(world.engine, "a") == found

    in_world(play)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("closed", True), ("retired", True), ("ended", True), ("ttl_s", 60), ("expires_ms", 1 << 60),
        ("content_type", "text/plain"), ("staged", object()), ("description", object()),
    ],
)  # fmt: skip
def test_a_stream_that_is_more_than_open_is_asked_each_time(field: str, value: object) -> None:
    def play(world: World) -> None:
        assert world.is_taken()
        before = getattr(world.state, field)
        setattr(world.state, field, value)
        assert not world.is_taken()
        setattr(world.state, field, before)
        assert world.is_taken()

    in_world(play)


def test_a_failure_is_reported_to_all_of_them() -> None:
    async def play() -> None:
        fs = FaultyFileSystem(FakeDisk())
        world = World(open_engine(fs))
        head = world.head()
        world.ask(head)
        world.ask(head)
        fs.plan = FaultPlan(call=fs.calls + 1)
        flush(world.engine)
        assert world.client.statuses == [503, 503]
        assert {msgspec.json.decode(body)["error"]["code"] for body in world.client.bodies()} == {"unavailable"}

    run(play())


def test_a_log_that_does_not_answer_is_waited_for_so_long() -> None:
    async def play() -> None:
        world = World()
        tick_over = world.engine.core.shards[0].stage_coalesced
        first = world.ask(world.head())
        tick_over()
        world.clock.advance(2_000)
        second = world.ask(world.head())
        tick_over()
        world.clock.advance(1_500)
        await asyncio.sleep(1.0)
        assert (first.answered, second.answered) == (True, False)
        flush(world.engine)
        # A write that was too late for its caller was applied all the same, and no request is answered twice.
        assert world.client.statuses == [408, 204]
        assert values(world.engine, "a") == [{"n": 1}, {"n": 1}]

    run(play())
