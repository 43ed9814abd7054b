"""Watchers of both clients in front of a server in a function: their requests, their results, and their resumption."""

import json
from typing import Any

import pytest

from tests.unit.client.fakes import Driver, Script, answered, lost, plain, refused, unsent
from topics_client import (
    CaughtUp,
    ClientOptions,
    ConnectionFailed,
    Forbidden,
    GapError,
    RetryPolicy,
    ShuttingDown,
    TopicFailed,
    TopicGap,
    TopicGone,
    TopicNotFound,
    TopicRecord,
)
from topics_client.transport.http1 import Response

both = pytest.mark.parametrize("kind", ["sync", "async"])
QUICK = ClientOptions(retry=RetryPolicy(deadline_s=0))


def session(wid: str = "w1", **cursors: int) -> Response:
    topics = {name: {"from_seq": at, "head_seq": 9, "earliest_seq": 1, "epoch": 7} for name, at in cursors.items()}
    body = {"wid": wid, "stream_url": f"/v0/watch/{wid}", "session_ttl_ms": 1, "topics": topics, "new_field": 1}
    return answered(body)


def stream(*events: str) -> Response:
    content = "retry: 2000\n\n: hb 1\n\n" + "".join(events)
    return plain(200, content.encode(), {"content-type": "text/event-stream"})


def event(name: str, id: str | None = None, **data: Any) -> str:
    return ("" if id is None else f"id: {id}\n") + f"event: {name}\ndata: {json.dumps(data)}\n\n"


def record(topic: str, *seqs: int, id: str = "", to: int | None = None) -> str:
    records = [{"$seq": seq, "$ts": 1, "data": seq * 10} for seq in seqs]
    to_seq = seqs[-1] if to is None else to
    return event(
        "record", id or f"{topic}{to_seq}", topic=topic, records=records, from_seq=0, to_seq=to_seq, head_seq=9
    )


def caught_up(topic: str, head: int) -> str:
    return event("caught-up", f"{topic}{head}", topic=topic, head_seq=head)


def deleted(topic: str) -> str:
    return event("topic-deleted", f"{topic}-", topic=topic, head_seq=3, reason="deleted")


def tombstone(topic: str, gap_from: int, gap_to: int, reason: str = "cap") -> str:
    reported = {"gap_from": gap_from, "gap_to": gap_to, "earliest_seq": gap_to + 1, "head_seq": 9}
    return event("tombstone", f"{topic}{gap_to}", topic=topic, reason=reason, **reported)


def reported(items: list[Any]) -> list[object]:
    """Items in short."""
    short: list[object] = []
    for item in items:
        match item:
            case TopicRecord():
                short.append((item.topic, item.record.seq, item.record.data))
            case TopicGap():
                short.append((item.topic, item.gap.gap_from, item.gap.gap_to, item.gap.reason))
            case CaughtUp():
                short.append((item.topic, "caught up", item.head_seq))
            case TopicGone():
                short.append((item.topic, "gone"))
            case TopicFailed():
                short.append((item.topic, type(item.error).__name__))
    return short


def asked(script: Script) -> list[tuple[str, str, object]]:
    """Requests in short: the POST with its topics, the GET with its Last-Event-ID."""
    return [
        (request.method, request.target, json.loads(request.content)["topics"])
        if request.method == "POST"
        else (request.method, request.path, request.headers.get("last-event-id"))
        for request in script.requests
    ]


@both
def test_every_kind_of_item_is_handed_out_in_order(kind: str) -> None:
    failed = event("error", code=500, error="damaged", topics=["b"])
    advice = event("error", code=429, error="paced", retry_after_ms=5, topics=["a"])
    newer = event("something-new", "a4", topic="a")
    script = Script([
        session(a=0, b=0),
        stream(
            tombstone("a", 1, 2), record("a", 3, 4), caught_up("a", 4), record("b", 1), advice, newer, failed,
            deleted("a"),
        ),
    ])  # fmt: skip
    items = Driver(kind, script, QUICK).collect("watch", ["a", "b"])
    assert reported(items) == [
        ("a", 1, 2, "cap"), ("a", 3, 30), ("a", 4, 40), ("a", "caught up", 4), ("b", 1, 10), ("b", "CorruptSegment"),
        ("a", "gone"),
    ]  # fmt: skip
    assert asked(script) == [
        ("POST", "/v0/watch", {"a": {"from_seq": 0}, "b": {"from_seq": 0}}), ("GET", "/v0/watch/w1", None),
    ]  # fmt: skip
    assert script.requests[1].headers["accept"] == "text/event-stream"
    assert script.requests[1].headers["authorization"] == "Bearer secret"


@both
def test_every_wish_is_sent(kind: str) -> None:
    script = Script([session(a=5), stream(deleted("a"))])
    Driver(kind, script, QUICK).collect(
        "watch", {"a": 5, "b": None}, node=["n"], limit=7, max_batch_bytes=9, heartbeat_ms=1000, include_tags=True,
        include_meta=False, include_data=False, consistency="strong", lenient=True,
    )  # fmt: skip
    assert json.loads(script.requests[0].content) == {
        "topics": {"a": {"from_seq": 5}, "b": {"tail": True}}, "node": ["n"], "limit": 7, "max_batch_bytes": 9,
        "heartbeat_ms": 1000, "include_tags": True, "include_meta": False, "include_data": False,
        "consistency": "strong",
    }  # fmt: skip
    assert script.requests[0].query == {"lenient": "true"}
    assert script.requests[1].read_timeout_s == 7.0


@both
def test_a_break_is_resumed_from_the_last_event_that_arrived(kind: str) -> None:
    half = record("a", 3)[:-1]
    script = Script([
        session(a=0, b=2), stream(record("a", 1, id="x1"), record("a", 2, id="x2"), half),
        unsent(), stream(record("a", 3, id="x3")), lost(),
        stream(deleted("a"), deleted("b")),
    ])  # fmt: skip
    driver = Driver(kind, script)
    assert reported(driver.collect("watch", ["a", "b"])) == [
        ("a", 1, 10), ("a", 2, 20), ("a", 3, 30), ("a", "gone"), ("b", "gone"),
    ]  # fmt: skip
    assert [one[2] for one in asked(script)[1:]] == [None, "x2", "x2", "x3", "x3"]
    assert len(driver.sleeps) == 4


@both
def test_a_session_that_the_server_forgot_is_made_again_from_the_cursors(kind: str) -> None:
    script = Script([
        session(a=0, b=7), stream(record("a", 1, 2, to=5)), refused(404, "not_found"),
        session("w2", a=5, b=7), stream(deleted("a"), deleted("b")),
    ])  # fmt: skip
    assert reported(Driver(kind, script).collect("watch", {"a": 0, "b": None})) == [
        ("a", 1, 10), ("a", 2, 20), ("a", "gone"), ("b", "gone"),
    ]  # fmt: skip
    assert asked(script)[3] == (
        "POST",
        "/v0/watch",
        {"a": {"from_seq": 5, "epoch": 7}, "b": {"from_seq": 7, "epoch": 7}},
    )
    assert asked(script)[4] == ("GET", "/v0/watch/w2", None)


@both
def test_a_cursor_keeps_the_epoch_that_it_came_with_until_the_loss_is_notified(kind: str) -> None:
    script = Script([session(a=4), stream(), session("w2", a=4), stream(deleted("a"))])
    assert reported(Driver(kind, script).collect("watch", {"a": (4, 6)})) == [("a", "gone")]
    # The server said that the topic is of epoch 7 by now; its tombstone did not arrive, so that is not taken over.
    start = {"a": {"from_seq": 4, "epoch": 6}}
    assert asked(script)[0] == ("POST", "/v0/watch", start)
    assert asked(script)[2] == ("POST", "/v0/watch", start)


@both
def test_a_stream_of_which_nothing_arrived_is_begun_anew(kind: str) -> None:
    """The server may have sent events into the broken connection, and counts them as read."""
    script = Script([session(a=4), stream(), session("w2", a=4), stream(deleted("a"))])
    assert reported(Driver(kind, script).collect("watch", {"a": None})) == [("a", "gone")]
    assert asked(script)[2] == ("POST", "/v0/watch", {"a": {"from_seq": 4, "epoch": 7}})


@both
def test_a_topic_that_was_deleted_meanwhile_is_notified(kind: str) -> None:
    script = Script([
        session(a=0, b=0), stream(record("a", 1)), refused(404, "not_found"),
        refused(404, "topic_not_found", {"topic": "a"}), session("w2", b=0), stream(deleted("b")),
    ])  # fmt: skip
    assert reported(Driver(kind, script).collect("watch", ["a", "b"])) == [("a", 1, 10), ("a", "gone"), ("b", "gone")]
    assert asked(script)[4] == ("POST", "/v0/watch", {"b": {"from_seq": 0, "epoch": 7}})


@both
def test_a_stopping_server_is_left_alone_for_as_long_as_it_asks(kind: str) -> None:
    stopping = event("error", code=503, error="the server is shutting down", retry_after_ms=2000)
    script = Script([
        session(a=0), stream(record("a", 1), stopping), refused(503, "not_ready", headers={"retry-after": "1"}),
        stream(deleted("a")),
    ])  # fmt: skip
    driver = Driver(kind, script)
    assert reported(driver.collect("watch", "a")) == [("a", 1, 10), ("a", "gone")]
    assert driver.sleeps[0] >= 2.0 and driver.sleeps[1] >= 1.0


@both
@pytest.mark.parametrize("code", [408, 409, 410])
def test_a_stream_that_the_server_ends_is_begun_anew(kind: str, code: int) -> None:
    script = Script([
        session(a=0), stream(record("a", 1), event("error", code=code, error="over")), session("w2", a=1),
        stream(deleted("a")),
    ])  # fmt: skip
    assert reported(Driver(kind, script).collect("watch", "a")) == [("a", 1, 10), ("a", "gone")]


@both
def test_a_first_refusal_is_raised(kind: str) -> None:
    for outcome, error in ((refused(404, "topic_not_found", {"topic": "a"}), TopicNotFound),
                           (refused(403, "forbidden"), Forbidden)):  # fmt: skip
        with pytest.raises(error):
            Driver(kind, Script([outcome])).collect("watch", "a")


@both
def test_a_watcher_gives_up_at_its_deadline(kind: str) -> None:
    stopping = event("error", code=503, error="bye")
    driver = Driver(kind, lambda request: session(a=0) if request.method == "POST" else stream(stopping))
    with pytest.raises(ShuttingDown):
        driver.collect("watch", "a", deadline_s=10.0)
    assert 5 <= sum(driver.sleeps) <= 10
    with pytest.raises(ConnectionFailed):
        Driver(kind, Script([session(a=0), stream()]), QUICK).collect("watch", "a", deadline_s=0)


@both
def test_a_gap_is_raised_where_that_was_asked_for(kind: str) -> None:
    script = Script([session(a=0), stream(tombstone("a", 1, 2), record("a", 3))])
    with pytest.raises(GapError) as caught:
        Driver(kind, script).collect("watch", "a", raise_on_gap=True)
    assert (caught.value.topic, caught.value.gap.gap_to, caught.value.gap.missed_estimate) == ("a", 2, 2)


def test_cursors_stand_behind_what_was_handed_out() -> None:
    script = Script([
        session(a=0, b=3),
        stream(record("a", 1, 2, to=6), tombstone("b", 4, 5), caught_up("b", 8), tombstone("a", 1, 9, "recreated")),
    ])  # fmt: skip
    with Driver("sync", script).client() as client, client.watch(["a", "b"]) as watcher:
        seen = [(next(watcher), watcher.cursors)[1] for _ in range(5)]
    assert seen == [
        {"a": 1, "b": 3}, {"a": 6, "b": 3}, {"a": 6, "b": 5}, {"a": 6, "b": 8}, {"a": 9, "b": 8},
    ]  # fmt: skip
