"""A session without a connection: its requests, the handling of answers, and the requests after a break."""

import json
from typing import Any

import pytest

from topics.testing import SeededEntropy
from topics_client import (
    ApiError,
    Appended,
    CaughtUp,
    ConnectionFailed,
    Forbidden,
    InvalidRequest,
    TopicFailed,
    TopicGap,
    TopicGone,
    TopicRecord,
)
from topics_client.requests import append, append_many
from topics_client.ws_session import WsSession, subscription_options


class Talker:
    def __init__(self, idempotent: bool = True) -> None:
        self.talk = WsSession(SeededEntropy(1), idempotent=idempotent, raise_on_gap=False)
        self.answers: list[Any] = []

    def publish(self, topic: str = "t", value: object = 1, **fields: Any) -> dict[str, Any]:
        return self._said(self.talk.publish(append(topic, value, **fields), self.answers.append))

    def subscribe(self, topics: Any, **options: Any) -> dict[str, Any]:
        return self._said(self.talk.subscribe(topics, subscription_options(**options), self.answers.append))

    def hear(self, op: str, **fields: Any) -> bool:
        return self.talk.take(json.dumps({"op": op, **fields}))

    def follow(self, topic: str, cursor: int = 0) -> None:
        """Subscribes and waits for the confirmation."""
        said = self.subscribe({topic: cursor})
        self.hear("subscribed", request_id=said["request_id"], topics={topic: position(cursor)})

    def records(self, topic: str, *seqs: int, to: int | None = None) -> None:
        records = [{"$seq": seq, "$ts": 1, "data": seq} for seq in seqs]
        self.hear("record", topic=topic, records=records, from_seq=0, to_seq=to or seqs[-1], head_seq=9)

    def items(self) -> list[Any]:
        found = []
        while (item := self.talk.inbox.next_item()) is not None:
            found.append(item)
        return found

    def resume(self) -> list[dict[str, Any]]:
        self.talk.broke()
        return [self._said(text) for text in self.talk.resume()]

    def _said(self, text: str) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(text)
        return said


def position(cursor: int, epoch: int = 7) -> dict[str, int]:
    return {"from_seq": cursor, "head_seq": 9, "earliest_seq": 1, "epoch": epoch}


ACK = {"topic": "t", "first_seq": 5, "last_seq": 5, "head_seq": 5, "count": 1, "created": False, "deduped": False}


def test_a_publish_states_what_an_append_would() -> None:
    talker = Talker()
    said = talker.publish("t", {"a": 1}, tag="x", node="n", meta={"m": 1}, create=False, config={"ttl_ms": 5})
    key = said.pop("idempotency_key")
    assert len(key) == 20
    assert said.pop("idempotency_check") is True
    assert said == {
        "op": "publish", "request_id": 1, "topic": "t", "return_seqs": True, "create": False, "config": {"ttl_ms": 5},
        "records": [{"data": {"a": 1}, "tag": "x", "node": "n", "meta": {"m": 1}}],
    }  # fmt: skip
    again = talker.talk.publish(append_many("t", [1, 2], idempotency_key="mine", return_seqs=False), print)
    assert json.loads(again)["idempotency_key"] == "mine"
    assert json.loads(again)["request_id"] == 2
    assert talker.talk.owed == 2


def test_answers_find_who_asked() -> None:
    talker = Talker()
    first, second, third = talker.publish(), talker.publish(), talker.subscribe("a")
    assert talker.hear("ack", request_id=first["request_id"], performance={"fsync_ms": 1.0}, **ACK)
    assert talker.hear(
        "error", request_id=second["request_id"], code="forbidden", message="no", detail={"scope": "write"}
    )
    assert talker.hear("subscribed", request_id=third["request_id"], topics={"a": position(0)})
    appended, refusal, topics = talker.answers
    assert isinstance(appended, Appended) and appended.last_seq == 5 and appended.performance == {"fsync_ms": 1.0}
    assert isinstance(refusal, Forbidden) and (refusal.status, refusal.detail) == (0, {"scope": "write"})
    assert str(refusal) == "forbidden: no"
    assert topics == {"a": position(0)}
    assert talker.talk.owed == 0
    assert talker.hear("ack", request_id=99, **ACK)


def test_every_kind_of_item() -> None:
    talker = Talker()
    talker.follow("a")
    talker.follow("b")
    talker.records("a", 1, 2, to=4)
    talker.hear("tombstone", topic="a", reason="cap", gap_from=5, gap_to=6, earliest_seq=7, head_seq=9)
    talker.hear("caught_up", topic="a", head_seq=9)
    talker.hear("topic_deleted", topic="a", head_seq=9, reason="deleted")
    talker.hear("error", topic="b", code="corrupt_segment", message="damaged")
    talker.hear("record", topic="never asked for", records=[], from_seq=0, to_seq=1, head_seq=1)
    talker.hear("tombstone", topic="never asked for", reason="cap", gap_from=5, gap_to=6, earliest_seq=7, head_seq=9)
    talker.hear("of a newer server", topic="b")
    kinds = [type(item) for item in talker.items()]
    assert kinds == [TopicRecord, TopicRecord, TopicGap, CaughtUp, TopicGone, TopicFailed]
    assert talker.talk.inbox.cursors == {"a": 9, "b": 0}
    assert talker.resume() == []


def test_after_a_break_subscriptions_go_on_and_what_is_owed_is_stated_again() -> None:
    talker = Talker()
    said = talker.subscribe({"a": 0, "b": None}, node="n", limit=5, include_data=False)
    assert {key: said[key] for key in ("topics", "node", "limit", "include_data")} == {
        "topics": {"a": {"from_seq": 0}, "b": {"tail": True}}, "node": "n", "limit": 5, "include_data": False,
    }  # fmt: skip
    talker.hear("subscribed", request_id=1, topics={"a": position(0), "b": position(7)})
    talker.records("a", 1, 2, to=3)
    first, second = talker.publish(value=1), talker.publish(value=2)
    resumed = talker.resume()
    assert [[one[key] for key in ("op", "topic", "from_seq", "epoch", "node")] for one in resumed[:2]] == [
        ["subscribe", "a", 3, 7, "n"], ["subscribe", "b", 7, 7, "n"],
    ]  # fmt: skip
    assert resumed[2:] == [first, second]
    # The break comes again before anything is answered.
    assert [one["op"] for one in talker.resume()] == ["subscribe", "subscribe", "publish", "publish"]
    again = talker.resume()
    assert talker.talk.owed == 4
    talker.hear("subscribed", request_id=again[0]["request_id"], topics={"a": position(3)})
    talker.records("a", 4)
    assert [item.record.seq for item in talker.items()] == [1, 2, 4]
    assert talker.answers == [{"a": position(0), "b": position(7)}]


def test_a_cursor_keeps_the_epoch_that_it_came_with_until_the_loss_is_notified() -> None:
    talker = Talker()
    said = talker.subscribe({"a": (3, 6)})
    assert said["topics"] == {"a": {"from_seq": 3, "epoch": 6}}
    talker.hear("subscribed", request_id=said["request_id"], topics={"a": position(3)})
    [said] = talker.resume()
    assert (said["from_seq"], said["epoch"]) == (3, 6)


def test_another_topic_of_the_name_is_one_only_when_that_was_reported() -> None:
    talker = Talker()
    talker.follow("a", 3)
    for _ in range(2):
        # The server reports another instance id, and the connection breaks before the loss is reported.
        [said] = talker.resume()
        assert (said["from_seq"], said["epoch"]) == (3, 7)
        talker.hear("subscribed", request_id=said["request_id"], topics={"a": position(3, epoch=8)})
    talker.hear("tombstone", topic="a", reason="recreated", gap_from=1, gap_to=9, earliest_seq=1, head_seq=9)
    [said] = talker.resume()
    assert (said["from_seq"], said["epoch"]) == (0, 8)


def test_a_subscribe_that_was_never_answered_is_stated_again_as_it_was() -> None:
    talker = Talker()
    talker.follow("a", 3)
    said = talker.subscribe({"a": None, "b": 0})
    assert talker.resume() == [said]


def test_what_must_not_be_stated_twice_fails_with_the_connection() -> None:
    talker = Talker(idempotent=False)
    talker.publish()
    kept = talker.publish(idempotency_key="mine")
    assert talker.resume() == [kept]
    [error] = talker.answers
    assert isinstance(error, ConnectionFailed) and error.maybe_done


def test_a_stopping_server_leaves_its_commands_to_the_next() -> None:
    talker = Talker()
    said = talker.publish()
    talker.hear("error", request_id=1, code="shutting_down", message="bye")
    assert not talker.hear("error", code="shutting_down", message="bye")
    assert talker.answers == []
    assert talker.resume() == [said]


@pytest.mark.parametrize(("code", "kind"), [("topic_not_found", TopicGone), ("forbidden", TopicFailed)])
def test_a_subscription_that_cannot_be_taken_up_again_is_notified(code: str, kind: type) -> None:
    talker = Talker()
    talker.follow("a")
    [said] = talker.resume()
    talker.hear("error", request_id=said["request_id"], code=code, message="no")
    assert [type(item) for item in talker.items()] == [kind]
    assert talker.resume() == []


def test_following_anew_forgets_what_had_arrived() -> None:
    talker = Talker()
    talker.follow("a")
    talker.records("a", 1, 2)
    said = talker.subscribe({"a": 0})
    talker.hear("subscribed", request_id=said["request_id"], topics={"a": position(0)})
    talker.records("a", 1, 2)
    assert [item.record.seq for item in talker.items()] == [1, 2]


def test_unsubscribing_forgets_what_had_arrived() -> None:
    talker = Talker()
    talker.follow("a")
    talker.follow("b")
    talker.records("a", 1)
    talker.records("b", 1)
    assert json.loads(talker.talk.unsubscribe(["a"], print))["topics"] == ["a"]
    talker.records("a", 2)
    assert [item.topic for item in talker.items()] == ["b"]
    assert list(talker.talk.inbox.cursors) == ["b"]
    assert [one["op"] for one in talker.resume()] == ["subscribe", "unsubscribe"]


def test_giving_up_reports_everyone() -> None:
    talker = Talker()
    talker.publish()
    talker.subscribe("a")
    talker.talk.give_up(ConnectionFailed("over", maybe_done=True))
    assert [str(error) for error in talker.answers] == ["over", "over"]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"op":5}', '{"op":"ack"}', '{"op":"record","topic":"a","records":5}', "\xff"]
)
def test_a_frame_that_cannot_be_understood_is_a_broken_connection(text: str) -> None:
    talker = Talker()
    talker.follow("a")
    with pytest.raises(ConnectionFailed):
        talker.talk.take(text)


def test_a_first_refusal_of_a_subscribe_leaves_nothing_behind() -> None:
    talker = Talker()
    talker.subscribe(["a", "b"])
    talker.hear("error", request_id=1, code="invalid_request", message="no")
    [error] = talker.answers
    assert isinstance(error, InvalidRequest) and isinstance(error, ApiError)
    assert talker.items() == [] and talker.resume() == []
