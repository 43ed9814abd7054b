"""Wake-ups and leases, with a webhook and a timer that the test holds in its hand."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.unit.conftest import checkpoint, flush, hold
from tests.unit.streams.conftest import append, create, delete, reopened, text
from topics.log.fs import read_whole
from topics.model.errors import DiskFullError, InvalidRequestError, ThrottledError, TopicNotFoundError, TopicsError
from topics.streams.stream_state import START, decode_offset, encode_offset, tail_offset
from topics.streams.streams import Streams
from topics.streams.subscriptions import subscription_store, webhooks
from topics.streams.subscriptions.subscription import (
    AlreadyClaimedError,
    BadTokenError,
    FencedError,
    NoPendingWorkError,
    Subscription,
    SubscriptionNotFoundError,
    SubscriptionRequest,
    Webhook,
)
from topics.streams.subscriptions.subscription_store import NAME, SubscriptionTable
from topics.streams.subscriptions.subscriptions import Ack, Acks, Granted, SubscriptionLimits, Subscriptions
from topics.streams.subscriptions.webhooks import NotTaken
from topics.testing import FakeDisk, ManualClock


class Stage:
    """Subscriptions whose calls and timers are kept instead of made."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.calls: list[tuple[dict[str, Any], Callable[[Any], None]]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.service = Subscriptions(streams, self._deliver, self._later, allow_loopback=True)
        self.service.start()

    def _deliver(self, url: str, body: bytes, signature: str, done: Callable[[Any], None]) -> None:
        assert signature.startswith("t=")
        self.calls.append((msgspec.json.decode(body), done))

    def _later(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        timer = (seconds, function)
        self.timers.append(timer)
        return lambda: self.timers.remove(timer) if timer in self.timers else None

    def fire(self) -> None:
        self.timers.pop(0)[1]()

    def put(self, **request: object) -> Subscription:
        made: list[Subscription] = []
        requested = SubscriptionRequest(**request)  # type: ignore[arg-type]
        self.service.put("s", requested, "http://x/v1/stream/", lambda found, new: made.append(found), _raise)
        return made[0]

    def claim(self, worker: str = "w") -> Granted:
        granted: list[Granted | TopicsError] = []
        self.service.claim("s", worker, granted.append)
        assert isinstance(granted[0], Granted)
        return granted[0]

    def ack(self, granted: Granted, name: str, done: bool = True) -> bool:
        answers: list[bool | TopicsError] = []
        offset = tail_offset(self.streams.topic(name))
        said = Acks(wake_id=granted.wake_id, generation=granted.generation, acks=[Ack(name, offset)], done=done)
        self.service.ack("s", granted.token, said, answers.append)
        assert isinstance(answers[0], bool)
        return answers[0]


def _raise(error: TopicsError) -> None:
    raise error


@pytest.fixture
def stage(streams: Streams) -> Stage:
    return Stage(streams)


def pull(stage: Stage, **more: object) -> Subscription:
    create(stage.streams, "wake", "application/json")
    return stage.put(type="pull-wake", pattern="jobs/*", wake_stream="wake", **more)


def test_what_was_there_before_wakes_nobody_and_what_comes_does(stage: Stage) -> None:
    create(stage.streams, "jobs/old", body=b"x")
    found = pull(stage)
    with pytest.raises(NoPendingWorkError):
        stage.claim()
    append(stage.streams, "jobs/old", b"y")
    create(stage.streams, "jobs/new", body=b"z")
    create(stage.streams, "other", body=b"z")
    assert found.pending == {"jobs/old", "jobs/new"}
    assert text(stage.streams, "wake").count('"type":"wake"') == 1, "until somebody comes, once is enough"


def test_one_worker_at_a_time(stage: Stage) -> None:
    pull(stage)
    create(stage.streams, "jobs/a", body=b"x")
    granted = stage.claim("first")
    with pytest.raises(AlreadyClaimedError):
        stage.claim("second")
    assert not stage.ack(granted, "jobs/a")
    with pytest.raises(NoPendingWorkError):
        stage.claim()


def test_a_lease_that_ends_is_fenced(stage: Stage) -> None:
    pull(stage, lease_ttl_ms=100)
    create(stage.streams, "jobs/a", body=b"x")
    granted = stage.claim()
    (timer,) = stage.timers
    assert timer[0] == 0.1
    stage.fire()
    with pytest.raises(FencedError):
        stage.ack(granted, "jobs/a")
    assert stage.claim().generation == granted.generation + 1


def test_an_acknowledgement_renews_the_lease_and_only_moves_forward(stage: Stage) -> None:
    found = pull(stage)
    create(stage.streams, "jobs/a", body=b"x")
    granted = stage.claim()
    stage.ack(granted, "jobs/a", done=False)
    acked = found.links["jobs/a"].acked
    answers: list[bool | TopicsError] = []
    back = Acks(wake_id=granted.wake_id, generation=granted.generation, acks=[Ack("jobs/a", "0" * 26)])
    stage.service.ack("s", granted.token, back, answers.append)
    assert found.links["jobs/a"].acked == acked
    assert len(stage.timers) == 1, "one lease, one timer"


@pytest.mark.parametrize("offset", ["7" + "Z" * 25, "z" * 26, "-1", "now", ""])
def test_what_was_never_there_cannot_be_acknowledged(stage: Stage, offset: str) -> None:
    found = pull(stage)
    create(stage.streams, "jobs/a", body=b"x")
    granted = stage.claim()
    ahead = Acks(wake_id=granted.wake_id, generation=granted.generation, acks=[Ack("jobs/a", offset)], done=True)
    with pytest.raises(InvalidRequestError):
        stage.service.ack("s", granted.token, ahead, _ignore)
    assert found.links["jobs/a"].acked == START
    assert not stage.ack(granted, "jobs/a"), "and nothing is in the way of what is there"


def test_an_entry_that_is_not_there_yet_cannot_be_acknowledged(stage: Stage) -> None:
    pull(stage)
    create(stage.streams, "jobs/a", body=b"x")
    granted = stage.claim()
    epoch, counter, _ = decode_offset(tail_offset(stage.streams.topic("jobs/a")))
    next_one = [Ack("jobs/a", encode_offset(epoch, counter + 1))]
    with pytest.raises(InvalidRequestError, match="beyond the end"):
        said = Acks(wake_id=granted.wake_id, generation=granted.generation, acks=next_one)
        stage.service.ack("s", granted.token, said, _ignore)


def test_offsets_may_be_acknowledged_in_any_spelling(stage: Stage) -> None:
    found = pull(stage)
    create(stage.streams, "jobs/a", body=b"x")
    for number in range(40):
        append(stage.streams, "jobs/a", b"%d" % number)
    granted = stage.claim()
    tail = tail_offset(stage.streams.topic("jobs/a"))
    said = Acks(wake_id=granted.wake_id, generation=granted.generation, acks=[Ack("jobs/a", tail.lower())], done=True)
    stage.service.ack("s", granted.token, said, _ignore)
    assert (found.links["jobs/a"].acked, found.pending) == (tail, set())


def test_what_is_stated_of_an_earlier_stream_of_that_name_does_not_count(stage: Stage) -> None:
    found = stage.put(type="pull-wake", streams=["jobs/a"], wake_stream="wake")
    create(stage.streams, "jobs/a", body=b"x")
    granted = stage.claim()
    old = [Ack("jobs/a", tail_offset(stage.streams.topic("jobs/a")))]
    delete(stage.streams, "jobs/a")
    create(stage.streams, "jobs/a", body=b"new")
    said = Acks(wake_id=granted.wake_id, generation=granted.generation, acks=old, done=True)
    stage.service.ack("s", granted.token, said, _ignore)
    assert (found.links["jobs/a"].acked, found.pending) == (START, {"jobs/a"})


def _ignore(outcome: object) -> None: ...


def test_a_webhook_that_fails_rests_longer_each_time(stage: Stage) -> None:
    found = stage.put(type="webhook", pattern="jobs/*", webhook=Webhook("https://a.example/hook"))
    create(stage.streams, "jobs/a", body=b"x")
    waits: list[float] = []
    for _ in range(4):
        body, done = stage.calls.pop()
        done(NotTaken(f"call {len(waits)}"))
        assert (found.failures, found.last_error) == (len(waits) + 1, f"call {len(waits)}")
        (timer,) = stage.timers
        waits.append(timer[0])
        stage.fire()
    assert waits == [1.0, 2.0, 4.0, 8.0]
    body, done = stage.calls.pop()
    assert body["generation"] == 5
    done({"done": True})
    assert not stage.timers and not stage.calls
    assert (found.failures, found.last_error) == (0, "")
    append(stage.streams, "jobs/a", b"y")
    assert [one["path"] for one in stage.calls.pop()[0]["streams"]] == ["jobs/a"]


def test_a_webhook_is_not_called_twice_at_once_however_short_its_lease_is(stage: Stage) -> None:
    found = stage.put(type="webhook", pattern="jobs/*", webhook=Webhook("https://a.example/hook"), lease_ttl_ms=100)
    create(stage.streams, "jobs/a", body=b"x")
    (_, first), stage.calls = stage.calls[0], []
    stage.fire()
    assert not stage.calls, "the lease ended, and nobody knows yet what the receiver says"
    first(NotTaken("too slow"))
    assert (found.failures, found.last_error, [wait for wait, _ in stage.timers]) == (1, "too slow", [1.0])
    stage.fire()
    (_, second), stage.calls = stage.calls[0], []
    stage.fire()
    second({})
    assert len(stage.calls) == 1, "it took the call and lost the lease: it is called again"
    assert found.failures == 0


def test_a_webhook_that_spoke_through_the_callback_took_the_call(stage: Stage) -> None:
    found = stage.put(type="webhook", pattern="jobs/*", webhook=Webhook("https://a.example/hook"))
    create(stage.streams, "jobs/a", body=b"x")
    (body, first), stage.calls = stage.calls[0], []
    acks = [Ack("jobs/a", tail_offset(stage.streams.topic("jobs/a")))]
    said = Acks(wake_id=body["wake_id"], generation=body["generation"], acks=acks, done=True)
    stage.service.ack("s", body["callback_token"], said, _ignore)
    append(stage.streams, "jobs/a", b"more")
    assert not stage.calls, "one call at a time"
    first(NotTaken("its connection broke"))
    assert (found.failures, len(stage.calls)) == (0, 1)


def test_a_webhook_that_is_deleted_while_it_is_called_stays_away(stage: Stage) -> None:
    stage.put(type="webhook", pattern="jobs/*", webhook=Webhook("https://a.example/hook"))
    create(stage.streams, "jobs/a", body=b"x")
    (_, done), stage.calls = stage.calls[0], []
    stage.service.drop("s", _ignore)
    done(NotTaken("gone"))
    assert (stage.calls, stage.timers) == ([], [])


def test_a_stream_that_goes_and_comes_back_begins_at_its_start(stage: Stage) -> None:
    found = pull(stage)
    create(stage.streams, "jobs/a", body=b"x")
    stage.ack(stage.claim(), "jobs/a")
    delete(stage.streams, "jobs/a")
    assert not found.pending and "jobs/a" not in found.links
    create(stage.streams, "jobs/a", body=b"new")
    assert found.pending == {"jobs/a"}


def test_everything_that_was_answered_is_there_after_a_kill(stage: Stage, disk: FakeDisk, clock: ManualClock) -> None:
    pull(stage)
    create(stage.streams, "jobs/a", body=b"x")
    create(stage.streams, "jobs/b", body=b"x")
    granted = stage.claim()
    stage.ack(granted, "jobs/a", done=False)
    key = stage.service.signer.key_id
    again = Stage(reopened(disk, clock))
    assert again.service.signer.key_id == key
    found = again.service.get("s")
    assert found.pending == {"jobs/b"}
    with pytest.raises(FencedError):
        again.ack(granted, "jobs/b")
    assert again.claim().generation > granted.generation


def test_old_changes_are_folded_and_nothing_is_forgotten(stage: Stage, disk: FakeDisk, clock: ManualClock) -> None:
    found = pull(stage)
    create(stage.streams, "jobs/a", body=b"x")
    for _ in range(600):
        append(stage.streams, "jobs/a", b"y")
        stage.ack(stage.claim(), "jobs/a")
    topic = stage.streams.engine.core.directory.load(NAME)
    assert topic.live_count < 1_100
    again = Stage(reopened(disk, clock)).service.get("s")
    assert (again.generation, again.links["jobs/a"].acked) == (found.generation, found.links["jobs/a"].acked)


@pytest.mark.parametrize("what", ["ack", "put", "drop", "link"])
def test_what_is_on_its_way_while_old_changes_are_folded_is_kept(
    stage: Stage, disk: FakeDisk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    pull(stage)
    create(stage.streams, "jobs/a", body=b"x")
    engine, service = stage.streams.engine, stage.service
    topic = engine.core.directory.load(NAME)
    for _ in range(50):
        granted = stage.claim()
        service.release("s", granted.token, granted.wake_id, granted.generation)
    granted = stage.claim() if what == "ack" else granted
    answers: list[object] = []
    hold(engine)
    monkeypatch.setattr(subscription_store, "_REWRITE_AT", 10)
    if what == "ack":
        offset = tail_offset(stage.streams.topic("jobs/a"))
        said = Acks(wake_id=granted.wake_id, generation=granted.generation, acks=[Ack("jobs/a", offset)])
        service.ack("s", granted.token, said, answers.append)
    elif what == "put":
        request = SubscriptionRequest(type="pull-wake", streams=["b"], wake_stream="wake")
        service.put("t", request, "http://x/v1/stream/", lambda found, new: answers.append(found), _raise)
    elif what == "drop":
        service.drop("s", answers.append)
    else:
        service.link("s", ["c"], answers.append)
    assert not answers
    flush(engine)
    flush(engine)
    assert len(answers) == 1
    assert topic.live_count < 50, "they were folded"
    kept, again = service._table.all, Stage(reopened(disk, clock)).service._table.all
    assert set(again) == set(kept) == {"ack": {"s"}, "put": {"s", "t"}, "drop": set(), "link": {"s"}}[what]
    for name, one in kept.items():
        assert again[name].generation == one.generation
        assert {n: (link.explicit, link.acked) for n, link in again[name].links.items()} == {
            n: (link.explicit, link.acked) for n, link in one.links.items()
        }


def test_of_two_that_come_at_once_the_second_is_decided_on_the_first(
    stage: Stage, disk: FakeDisk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state in memory equals the log, and a subscription that is being created cannot be taken over by another
    tenant."""
    write, held = stage.service._table.write, list[Callable[[], None]]()
    monkeypatch.setattr(stage.service._table, "write", lambda *change: held.append(lambda: write(*change)))
    reported: list[tuple[str, bool]] = []
    refused: list[TopicsError] = []

    def put(stream: str, owner: tuple[str, ...]) -> None:
        request = SubscriptionRequest(type="pull-wake", streams=[stream], wake_stream=stream)
        done = lambda found, created: reported.append((found.request.streams[0], created))  # noqa: E731
        stage.service.put("s", request, "http://x/", done, refused.append, owner)

    put("a:1", ("a:",))
    put("b:1", ("b:",))
    put("a:1", ("a:",))
    put("a:2", ("a:",))
    for one in held:
        one()
    assert reported == [("a:1", True), ("a:1", False)]
    assert [error.code for error in refused] == ["forbidden", "SUBSCRIPTION_CONFLICT"]
    assert len(held) == 1
    assert SubscriptionTable(reopened(disk, clock).engine).all["s"].request.streams == ["a:1"]


def test_a_token_that_was_never_given_out_reports_nothing(stage: Stage) -> None:
    pull(stage)
    create(stage.streams, "jobs/a", body=b"1")
    granted = stage.claim()
    for subscription, generation in (("s", 0), ("s", granted.generation), ("s", 99), ("absent", 0), ("absent", 1)):
        with pytest.raises(BadTokenError):
            stage.service.release(subscription, "guess.guess", granted.wake_id, generation)
    stage.service.release("s", granted.token, granted.wake_id, granted.generation)
    with pytest.raises(FencedError):
        stage.service.release("s", granted.token, granted.wake_id, granted.generation)
    stage.service.drop("s", lambda error: None)
    with pytest.raises(SubscriptionNotFoundError):
        stage.service.release("s", granted.token, granted.wake_id, granted.generation)


def test_nobody_sees_where_they_are_kept(stage: Stage) -> None:
    pull(stage)
    with pytest.raises(TopicNotFoundError):
        stage.streams.topic(NAME)
    with pytest.raises(TopicNotFoundError):
        stage.streams.engine.info(NAME)
    assert NAME not in [info.topic for info in stage.streams.engine.list_topics()]
    assert NAME not in [info.name for info in stage.streams.listed("", "", 0, ())]


def test_no_catalog_names_it(stage: Stage, disk: FakeDisk, clock: ManualClock) -> None:
    """The catalog gives sealed records to external readers of the files; the signing key must not be among them."""
    pull(stage)
    for _ in range(20):
        append(stage.streams, "wake", b"1", "application/json")
        create(stage.streams, f"jobs/{clock.now_ms()}", body=b"x")
        clock.advance(1)
    stage.claim()
    checkpoint(stage.streams.engine)
    engine = stage.streams.engine
    assert engine.core.directory.load(NAME).segments or engine.core.directory.load(NAME).tail
    data = read_whole(disk, engine.core.layout.catalog)
    assert data is not None and b"wake" in data and NAME.encode() not in data


def test_there_are_no_more_than_may_be(streams: Streams, disk: FakeDisk, clock: ManualClock) -> None:
    """Of one owner, so that it does not take the room of others, and in all; also after a restart."""

    def put(stage: Stage, name: str, owner: str) -> str:
        outcomes: list[str] = []
        request = SubscriptionRequest(type="pull-wake", streams=[f"{owner}s"], wake_stream=f"{owner}w")
        failed = lambda error: outcomes.append(error.code)  # noqa: E731
        try:
            stage.service.put(name, request, "", lambda found, new: outcomes.append("ok"), failed, (owner,))
        except ThrottledError as error:
            outcomes.append(str(error.detail["limit"]))
        return outcomes[0]

    def limited(streams: Streams) -> Stage:
        stage = Stage(streams)
        stage.service._limits = SubscriptionLimits(max_subscriptions=3, max_subscriptions_per_key=2)
        return stage

    stage = limited(streams)
    assert [put(stage, f"a{n}", "a:") for n in range(3)] == ["ok", "ok", "max_subscriptions_per_key"]
    assert put(stage, "a0", "a:") == "ok", "it is there"
    assert [put(stage, f"b{n}", "b:") for n in range(2)] == ["ok", "max_subscriptions"]
    again = limited(reopened(disk, clock))
    assert [put(again, "a9", "a:"), put(again, "c0", "c:")] == ["max_subscriptions"] * 2
    again.service.drop("a0", lambda error: None)
    assert put(again, "a9", "a:") == "ok"
    again.service.drop("b0", lambda error: None)
    assert put(again, "a8", "a:") == "max_subscriptions_per_key"


def test_streams_are_not_added_without_end(stage: Stage) -> None:
    stage.put(type="pull-wake", streams=["a"], wake_stream="w")
    names = [f"s{n}" for n in range(9_999)]
    stage.service.link("s", names, lambda error: None)
    stage.service.link("s", names, lambda error: None)
    with pytest.raises(InvalidRequestError):
        stage.service.link("s", ["one more"], lambda error: None)


def test_a_wake_stream_that_takes_nothing_for_now_is_notified_later(stage: Stage) -> None:
    found = stage.put(type="pull-wake", pattern="jobs/*", wake_stream="wake")
    create(stage.streams, "jobs/a", body=b"x")
    (timer,) = stage.timers
    assert timer[0] == 1
    stage.fire()
    (timer,) = stage.timers
    assert timer[0] == 2, "as for a webhook that fails"
    create(stage.streams, "wake", "application/json")
    stage.fire()
    assert text(stage.streams, "wake").count('"type":"wake"') == 1
    assert (found.failures, stage.timers) == (0, [])


def test_something_new_does_not_wait_for_the_next_try(stage: Stage) -> None:
    stage.put(type="pull-wake", pattern="jobs/*", wake_stream="wake")
    create(stage.streams, "jobs/a", body=b"x")
    create(stage.streams, "wake", "application/json")
    append(stage.streams, "jobs/a", b"y")
    assert text(stage.streams, "wake").count('"type":"wake"') == 1
    stage.fire()
    assert text(stage.streams, "wake").count('"type":"wake"') == 1


def test_a_claim_that_could_not_be_kept_holds_nothing_and_wakes_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull(stage)
    create(stage.streams, "jobs/a", body=b"x")

    def full(changes: object, done: object) -> None:
        raise DiskFullError()

    answers: list[Granted | TopicsError] = []
    with monkeypatch.context() as shortage:
        shortage.setattr(stage.service._table, "write", full)
        stage.service.claim("s", "w", answers.append)
    assert isinstance(answers[0], DiskFullError)
    assert text(stage.streams, "wake").count('"type":"wake"') == 2
    assert stage.claim("other")


def unlink(stage: Stage, name: str) -> None:
    answers: list[TopicsError | None] = []
    stage.service.unlink("s", name, answers.append)
    assert answers == [None]


@pytest.mark.parametrize("folded", [False, True])
def test_a_stream_that_was_taken_out_of_a_pattern_stays_out_over_a_restart(
    stage: Stage, disk: FakeDisk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, folded: bool
) -> None:
    found = pull(stage)
    for name in ("jobs/a", "jobs/again", "jobs/linked"):
        create(stage.streams, name, body=b"x")
        unlink(stage, name)
    assert not found.links
    delete(stage.streams, "jobs/again")
    create(stage.streams, "jobs/again", body=b"y")
    stage.service.link("s", ["jobs/linked"], lambda error: None)
    assert set(found.links) == {"jobs/again", "jobs/linked"}
    stage.ack(stage.claim(), "jobs/again")
    if folded:
        monkeypatch.setattr(subscription_store, "_REWRITE_AT", -100)
        stage.service.link("s", ["jobs/linked"], lambda error: None)
    append(stage.streams, "jobs/a", b"y")
    again = Stage(reopened(disk, clock)).service.get("s")
    assert set(again.links) == {"jobs/again", "jobs/linked"}
    assert {name: link.acked for name, link in again.links.items()} == {n: k.acked for n, k in found.links.items()}
    assert again.left_out == {"jobs/a": found.left_out["jobs/a"]}


def test_an_acknowledgement_behind_a_stream_that_is_taken_out_does_not_bring_it_back(
    stage: Stage, disk: FakeDisk, clock: ManualClock
) -> None:
    pull(stage)
    create(stage.streams, "jobs/a", body=b"x")
    granted = stage.claim()
    offset = tail_offset(stage.streams.topic("jobs/a"))
    said = Acks(wake_id=granted.wake_id, generation=granted.generation, acks=[Ack("jobs/a", offset)])
    answers: list[object] = []
    hold(stage.streams.engine)
    stage.service.unlink("s", "jobs/a", answers.append)
    stage.service.ack("s", granted.token, said, answers.append)
    flush(stage.streams.engine)
    assert len(answers) == 2 and not stage.service.get("s").links
    assert not Stage(reopened(disk, clock)).service.get("s").links


def test_so_many_webhooks_are_called_at_once_and_the_others_in_their_turn(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "CALLS_MAX", 4)
    monkeypatch.setattr(webhooks, "CALLS_OF_ONE_MAX", 3)
    stage = Stage(streams)
    create(streams, "chat/a")
    for number in range(12):
        owner = ("chat/",) if number < 8 else ("chat/a",)
        request = SubscriptionRequest(type="webhook", streams=["chat/a"], webhook=Webhook("http://127.0.0.1/"))
        stage.service.put(f"s{number}", request, "http://x/v1/stream/", lambda found, new: None, _raise, owner)
    append(streams, "chat/a", b"x")
    assert [call["subscription_id"] for call, _ in stage.calls] == ["s0", "s1", "s2", "s8"]
    assert len(stage.timers) == 4, "the lease of one that waits has not begun"
    stage.service.drop("s3", lambda error: None)
    answered = 0
    while answered < len(stage.calls):
        # One fails, and its place is free all the same.
        stage.calls[answered][1](NotTaken("no") if answered == 1 else {"done": True})
        answered += 1
        assert len(stage.calls) - answered <= 4
    assert sorted(call["subscription_id"] for call, _ in stage.calls) == sorted(f"s{n}" for n in range(12) if n != 3)
