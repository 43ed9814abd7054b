"""Appends of a lone record: the shorter path answers like the long one, and leaves it every other request."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import msgspec
import pytest
from msgspec.structs import replace

from tests.unit.conftest import ask_append, ask_put, committers, flush, open_engine, put, read, values
from topics.api.app import Api, Match, Routes, match_of
from topics.api.auth import KeyRing
from topics.api.request_batching import BACKOFF_REQUESTS
from topics.api.v0 import appends, records
from topics.api.v0.request_parsing import decode_body
from topics.api.v0.routes import V0_ROUTES
from topics.engine.engine import Engine
from topics.http.exchange import LENGTH_LINES, Exchange, Renderer
from topics.http.messages import Headers, RequestHead
from topics.http.streaming import Stream, Upgrade
from topics.model.records import AppendBody
from topics.model.topic_config import Discard
from topics.system.fair_scheduler import Task
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem, ManualClock
from topics_protocol.v0 import AppendAnswer


class Client:
    """A connection that records its input."""

    peer = "client"
    gzip_min_bytes = gzip_inline_bytes = 1 << 20
    small_bytes = len(LENGTH_LINES)

    def __init__(self) -> None:
        self.renderer = Renderer()
        self.answers: list[bytes] = []
        self.runs: list[int] = []

    def room(self, account: object) -> int:
        return 1 << 20

    def deliver_plain(self, exchange: Exchange, answer: bytes) -> None:
        self.answers.append(answer)

    def deliver_run(self, exchanges: Sequence[Exchange], answers: Sequence[bytes]) -> None:
        self.runs.append(len(answers))
        self.answers += answers

    def deliver(self, exchange: Exchange, payload: tuple[bytes, ...]) -> None:
        self.answers.append(b"".join(payload))

    def is_last(self, exchange: Exchange) -> bool:
        return False

    def open_stream(self, exchange: Exchange, payload: tuple[bytes, ...], stream: Stream) -> None:
        raise NotImplementedError

    def hand_over(self, exchange: Exchange) -> Upgrade:
        raise NotImplementedError

    def compress_later(self, body: bytes, done: Callable[[bytes], None]) -> None:
        raise NotImplementedError

    def run(self, exchange: Exchange, task: Task, owner: Hashable | None) -> None:
        raise NotImplementedError

    @property
    def statuses(self) -> list[int]:
        return [int(answer.split(b" ", 2)[1]) for answer in self.answers]

    def bodies(self) -> list[bytes]:
        return [answer.partition(b"\r\n\r\n")[2] for answer in self.answers]


@pytest.fixture(params=["gathered", "alone"], autouse=True)
def way(request: pytest.FixtureRequest) -> str:
    """The path of requests: with a known head, or by themselves. Everything here holds for both."""
    World.gathers = request.param == "gathered"
    return str(request.param)


class World:
    """An engine that gathers until `flush`, behind the API."""

    gathers = False

    def __init__(self, keys: str = "", inflight_max: int = 0, engine: Engine | None = None) -> None:
        self.engine = engine or open_engine()
        self.clock = ManualClock()
        self.api = Api(Routes(V0_ROUTES), KeyRing.parse(keys), self.clock, 10**6, inflight_max)
        self.api.engine = self.engine
        self.client = Client()
        put(self.engine, "a")
        self.gather()
        ask_append(self.engine, "a", 0)
        flush(self.engine)
        self.gather()

    def gather(self) -> None:
        """From now on single records wait for `flush`."""
        for committer in committers(self.engine):
            committer.hold = committer.coalesces = True

    def head(self, query: str = "", **headers: str) -> RequestHead:
        fields = [(b"content-type", b"application/json")]
        fields += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        head = RequestHead("POST", b"", "/v0/topics/a", query, Headers.of(fields), "1.1", True)
        assert self.api.admit(head) == 10**6
        return head

    def ask(self, head: RequestHead, body: bytes = b'{"records":[{"data":1}]}') -> Exchange:
        return self.ask_together(head, body)[0]

    def ask_together(self, head: RequestHead, *bodies: bytes) -> list[Exchange]:
        """Asks with bodies of one length that came in one piece."""
        exchanges = [Exchange(head, self.client, self.clock.monotonic(), True, True, body) for body in bodies]
        gather = self.api.batch_handler(head) if self.gathers else None
        if gather is None or not gather(exchanges, len(bodies[0])):
            for exchange in exchanges:
                self.api.handle(exchange)
        return exchanges

    def answers(self) -> list[dict[str, object]]:
        return [msgspec.json.decode(body) for body in self.client.bodies()]

    def match(self, head: RequestHead) -> Match:
        return match_of(head)


def in_common(answers: list[bytes]) -> list[AppendAnswer]:
    return [msgspec.json.decode(answer, type=AppendAnswer) for answer in answers]


def test_both_ways_answer_alike() -> None:
    world = World()
    head = world.head()
    world.ask(head)
    world.ask(head)
    flush(world.engine)
    head.context = replace(world.match(head), batcher=None)
    world.ask(head)
    flush(world.engine)
    assert world.client.statuses == [200, 200, 200]
    assert in_common(world.client.bodies()) == [
        AppendAnswer(
            topic="a", first_seq=seq, last_seq=seq, seqs=[seq], head_seq=seq, count=1, created=False, deduped=False
        )
        for seq in (2, 3, 4)
    ]
    short, _, long = (msgspec.json.decode(body)["performance"] for body in world.client.bodies())
    assert short.keys() == long.keys()


def test_requests_with_several_records_pause_batching() -> None:
    world = World()
    head, other = world.head(), world.head()
    several, one = b'{"records":[{"data":1},{"data":2}]}', b'{"records":[{"data":1}]}'
    world.ask(head, several)
    flush(world.engine)
    assert world.client.statuses == [200]
    backoff = world.match(head).backoff
    assert (backoff.remaining, world.match(other).backoff.remaining) == (BACKOFF_REQUESTS, 0)
    exchange = Exchange(head, world.client, world.clock.monotonic(), True, True, one)
    gather = world.api.batch_handler(head)
    assert gather is not None
    assert [gather([exchange], len(one)) for _ in range(BACKOFF_REQUESTS)] == [False] * BACKOFF_REQUESTS
    assert gather([exchange], len(one))
    flush(world.engine)
    assert values(world.engine, "a") == [0, 1, 2, 1]


def test_the_time_a_request_was_here_is_its_own() -> None:
    world = World()
    head = world.head()
    world.ask(head)
    world.clock.advance(2)
    world.ask(head)
    world.clock.advance(1)
    flush(world.engine)
    spent = [msgspec.json.decode(body)["performance"]["server_total_ms"] for body in world.client.bodies()]
    assert spent == [3.0, 1.0]


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        (b'{"records":[{"data":1}],"node":"n"}', [0, 1]),
        (b'{"records":[{"data":1},{"data":2}]}', [0, 1, 2]),
        (b'{"records":[{"data":1}],"unknown":true}', [0, 1]),
    ],
)
def test_whatever_is_not_plain_goes_the_long_way(body: bytes, stored: list[int]) -> None:
    world = World()
    head = world.head()
    world.ask(head, body)
    flush(world.engine)
    assert world.client.statuses == [200]
    assert values(world.engine, "a") == stored


def test_a_new_key_is_no_reason_to_go_the_long_way_and_a_known_one_is() -> None:
    world = World()
    head = world.head()
    body, other = (
        b'{"records":[{"data":%d}],"idempotency_key":"k","idempotency_check":true}' % data for data in (1, 2)
    )
    world.ask(head, body)
    assert world.engine.core.shards[0].coalesced
    world.ask(head, b'{"records":[{"data":3}]}')
    world.ask(head, b'{"records":[{"data":4}],"idempotency_key":"l"}')
    world.ask(head, body)
    world.ask(head, other)
    flush(world.engine)
    world.ask(head, body)
    assert sorted(world.client.statuses) == [200, 200, 200, 200, 200, 409]
    reported = sorted((answer["first_seq"], answer["deduped"]) for answer in world.answers() if "error" not in answer)
    assert reported == [(2, False), (2, True), (2, True), (3, False), (4, False)]
    assert values(world.engine, "a") == [0, 1, 3, 4]


def test_a_tag_is_no_reason_to_go_the_long_way() -> None:
    world = World()
    head = world.head()
    world.ask(head, b'{"records":[{"data":1,"tag":"t","node":"n","meta":{"k":"v"}}]}')
    assert world.engine.core.shards[0].coalesced
    flush(world.engine)
    assert world.client.statuses == [200]
    text = read(world.engine, "a", from_seq=1, include_tags=True).body
    assert text.endswith(b'"$node":"n","data":1,"meta":{"k":"v"},"$tag":"t"}')


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b'{"records":[]}', b'{"records":[{}]}', b'{"records":[{"data":"\xff"}]}',
        b'{"records":[{"data":1,"tag":5}]}', b'{"records":[{"data":1,"meta":[]}]}',
    ],
)  # fmt: skip
def test_bad_bodies_are_refused_as_ever(body: bytes) -> None:
    world = World()
    world.ask(world.head(), body)
    flush(world.engine)
    assert world.client.statuses == [400]
    assert values(world.engine, "a") == [0]


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"data":1},{"data":2}]}', b'{"records":[{"data":1}]}', b"{",
        b'{"records":[{"data":1},{"data":"%b"}]}' % (b"x" * 3_000),
    ],
)  # fmt: skip
@pytest.mark.parametrize("plain", [True, False])
def test_no_body_is_decoded_twice(body: bytes, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    if not plain:
        ask_put(world.engine, "a", discard=Discard.REJECT, cap_records=100)
        flush(world.engine)
    decoded: list[bytes] = []

    def decode(text: bytes) -> AppendBody:
        decoded.append(text)
        return msgspec.json.decode(text, type=AppendBody)

    for name in ("decode_ascii", "decode_many"):
        monkeypatch.setattr(appends, name, decode)
    monkeypatch.setattr(records, "decode_append", partial(decode_body, "append", decode))
    head = world.head()
    world.ask(head, body)
    world.ask(head, body)
    flush(world.engine)
    # Where it is batched and is one record, that was all.
    read_together = plain and body == b'{"records":[{"data":1}]}'
    assert decoded == ([] if read_together else [body, body])
    assert world.client.statuses == ([400, 400] if body == b"{" else [200, 200])


@pytest.mark.parametrize(("query", "headers"), [("return_seqs=false", {}), ("", {"idempotency_key": "k"})])
def test_heads_that_ask_for_more_go_the_long_way(query: str, headers: dict[str, str]) -> None:
    world = World()
    assert world.match(world.head(query, **headers)).batcher is None


def test_a_failure_is_reported_to_all_of_them() -> None:
    fs = FaultyFileSystem(FakeDisk())
    world = World(engine=open_engine(fs))
    head = world.head()
    world.ask(head)
    world.ask(head)
    fs.plan = FaultPlan(call=fs.calls + 1)
    flush(world.engine)
    assert world.client.statuses == [503, 503]
    assert {msgspec.json.decode(body)["error"]["code"] for body in world.client.bodies()} == {"read_only"}


def test_a_client_that_went_away_keeps_no_answer_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    head = world.head()
    gone, broken, last = world.ask(head), world.ask(head), world.ask(head)
    gone.lose()
    broken.answered = True
    flush(world.engine)
    assert world.client.statuses == [200]
    assert last.answered
    assert "answer failed" in caplog.text
    assert values(world.engine, "a") == [0, 1, 1, 1]


def test_requests_of_a_key_are_counted_until_they_are_answered() -> None:
    world = World(keys="secret", inflight_max=2)
    head = world.head(authorization="Bearer secret")
    key = world.match(head).key
    exchanges = [world.ask(head) for _ in range(3)]
    assert key.inflight == 2
    assert world.client.statuses == [429]
    exchanges[0].lose()
    flush(world.engine)
    assert key.inflight == 0
    assert world.client.statuses == [429, 200]
