"""The WebSocket: every command, every frame, every refusal, over real sockets."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.http.api.conftest import Append
from tests.http.api.sockets import Socket, open_socket
from tests.http.live import LiveServer


@pytest.fixture
def socket(server: LiveServer) -> Iterator[Socket]:
    with open_socket(server.url) as opened:
        yield opened


def publish(topic: str, *values: object, **fields: object) -> dict[str, Any]:
    return {"op": "publish", "topic": topic, "records": [{"data": value} for value in values], **fields}


def subscribe(topic: str, **fields: object) -> dict[str, Any]:
    return {"op": "subscribe", "topic": topic, **fields}


# Publishing


def test_publish_appends_and_reports_the_seqs(socket: Socket, name: str, diff: Append) -> None:
    ack = socket.ask(publish(name, {"packet": 1}, "two", None, request_id="p1"))
    performance = ack.pop("performance")
    assert ack == {
        "op": "ack", "request_id": "p1", "topic": name, "first_seq": 1, "last_seq": 3, "seqs": [1, 2, 3],
        "head_seq": 3, "count": 3, "created": True, "deduped": False,
    }  # fmt: skip
    assert set(performance) == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    assert [record["data"] for record in diff()["records"]] == [{"packet": 1}, "two", None]


def test_every_field_of_an_append_can_be_published(socket: Socket, name: str, api: httpx.Client, diff: Append) -> None:
    command = {
        "op": "publish", "request_id": 7, "topic": name, "return_seqs": False, "node": "n1", "create": True,
        "config": {"durability": "fsync", "cap_records": 10}, "idempotency_key": "k", "disable_backpressure": True,
        "records": [{"data": 1.50, "tag": "t", "node": "n2", "meta": {"a": "b"}}, {"data": 2}], "unknown": {},
    }  # fmt: skip
    first = socket.ask(command)
    assert (first["request_id"], first["last_seq"], first["created"], first["deduped"]) == (7, 2, True, False)
    assert "seqs" not in first
    again = socket.ask(command)
    assert (again["first_seq"], again["created"], again["deduped"]) == (1, False, True)
    assert "differs" not in again
    other = {**command, "records": [{"data": 1.50}]}
    assert socket.ask(other)["differs"] is True
    reported = socket.ask({**other, "idempotency_check": True})
    assert (reported["op"], reported["code"], reported["detail"]["last_seq"]) == ("error", "idempotency_conflict", 2)
    assert api.get(f"/v0/topics/{name}").json()["config"]["durability"] == "fsync"
    records = diff(include_tags=True)["records"]
    assert [(record["$node"], record.get("$tag"), record.get("meta")) for record in records] == [
        ("n2", "t", {"a": "b"}), ("n1", None, None),
    ]  # fmt: skip
    # Bytes are kept as they were sent.
    socket.ask('{"op":"publish","topic":"NAME","records":[{"data":{"b": 1.50,  "a":1}}]}'.replace("NAME", name))
    assert '{"b": 1.50,  "a":1}' in api.post(f"/v0/topics/{name}/diff", json={}).text


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"records": []}, "invalid_request"),
        ({"records": [{}]}, "invalid_request"),
        ({"records": [{"data": 1}] * 10_001}, "batch_too_large"),
        ({"records": [{"data": "x" * 1_100_000}]}, "record_too_large"),
        ({"records": [{"data": 1, "tag": "x" * 300}]}, "invalid_request"),
        ({"create": False}, "topic_not_found"),
        ({"topic": "bad name"}, "invalid_request"),
        ({"topic": 5}, "invalid_request"),
        ({"config": {"durability": "eternal"}}, "invalid_request"),
        ({"idempotency_key": "x" * 257}, "invalid_request"),
        ({"node": 5}, "invalid_request"),
    ],
)
def test_a_publish_is_refused_like_an_append(socket: Socket, name: str, fields: dict[str, Any], code: str) -> None:
    frame = socket.ask(publish(name, 1, request_id="p") | fields)
    assert (frame["op"], frame["code"], frame["request_id"]) == ("error", code, "p")
    assert socket.ask(publish(name, 1))["op"] == "ack"


def test_a_full_topic_refuses_and_states_where_it_stands(socket: Socket, name: str, api: httpx.Client) -> None:
    api.put(f"/v0/topics/{name}", json={"cap_records": 1, "discard": "reject"})
    socket.ask(publish(name, 1))
    assert socket.refused(publish(name, 2), "topic_full")["cap_records"] == 1


def test_answers_come_in_the_order_of_the_commands(socket: Socket, name: str, api: httpx.Client) -> None:
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        api.put(f"/v0/topics/{name}-{durability}", json={"durability": durability})
    commands: list[Any] = []
    for number in range(300):
        durability = ("fsync", "ephemeral", "disk", "memory")[number % 4]
        if number % 7 == 6:
            commands.append({"op": "ping", "request_id": number})
        elif number % 11 == 10:
            commands.append(publish(f"{name}-{durability}", request_id=number))
        elif number % 13 == 12:
            commands.append({"op": "unsubscribe", "topic": "x", "request_id": number})
        elif number % 17 == 16:
            commands.append(subscribe("no-such-topic", request_id=number))
        else:
            commands.append(publish(f"{name}-{durability}", number, request_id=number))
    socket.send(*commands)
    answers = socket.frames(300)
    assert [answer["request_id"] for answer in answers] == list(range(300))
    kinds = {answer["op"] for answer in answers}
    assert kinds == {"ack", "error", "pong", "unsubscribed"}


def test_a_subscribe_begins_behind_the_publishes_before_it(socket: Socket, name: str, api: httpx.Client) -> None:
    api.put(f"/v0/topics/{name}", json={"durability": "fsync"})
    socket.send(*[publish(name, number) for number in range(50)], subscribe(name, tail=True), publish(name, "after"))
    assert [socket.frame()["op"] for _ in range(50)] == ["ack"] * 50
    assert socket.frame()["topics"][name]["from_seq"] == 50
    seen = {frame["op"]: frame for frame in socket.frames(3)}
    assert set(seen) == {"ack", "record", "caught_up"}
    assert [record["data"] for record in seen["record"]["records"]] == ["after"]


# Following


def test_subscribe_reports_where_it_begins_then_the_backlog_then_what_is_new(
    socket: Socket, name: str, append: Append
) -> None:
    append("a", "b")
    subscribed = socket.ask(subscribe(name, request_id="s1"))
    assert isinstance(subscribed["topics"][name].pop("epoch"), int)
    assert subscribed == {
        "op": "subscribed", "request_id": "s1", "topics": {name: {"from_seq": 0, "head_seq": 2, "earliest_seq": 1}},
    }  # fmt: skip
    record = socket.frame()
    assert {key: record[key] for key in ("op", "topic", "from_seq", "to_seq", "head_seq")} == {
        "op": "record", "topic": name, "from_seq": 0, "to_seq": 2, "head_seq": 2,
    }  # fmt: skip
    assert [(one["$seq"], one["data"], isinstance(one["$ts"], int)) for one in record["records"]] == [
        (1, "a", True), (2, "b", True),
    ]  # fmt: skip
    assert socket.frame() == {"op": "caught_up", "topic": name, "head_seq": 2}
    append("c")
    frame = socket.frame()
    assert (frame["from_seq"], frame["to_seq"], frame["records"][0]["data"]) == (2, 3, "c")
    socket.quiet()


def test_a_write_of_several_frames_ends_with_caught_up(socket: Socket, name: str, append: Append) -> None:
    append("first")
    socket.ask(subscribe(name, tail=True, limit=2))
    assert socket.frame()["op"] == "caught_up"
    append(*range(10))
    frames = [socket.frame() for _ in range(6)]
    assert [frame["op"] for frame in frames] == ["record"] * 5 + ["caught_up"]
    assert frames[-1]["head_seq"] == 11
    append("one")
    assert [record["$seq"] for record in socket.records(1)] == [12]
    socket.quiet()


def test_from_seq_and_tail(socket: Socket, name: str, append: Append) -> None:
    append(*range(10))
    assert socket.ask(subscribe(name, from_seq=8))["topics"][name]["from_seq"] == 8
    assert [record["$seq"] for record in socket.records(2)] == [9, 10]
    assert socket.frame()["op"] == "caught_up"
    # Once more: the new subscription takes the place of the old one.
    assert socket.ask(subscribe(name, from_seq=3, tail=True))["topics"][name]["from_seq"] == 10
    assert socket.frame() == {"op": "caught_up", "topic": name, "head_seq": 10}
    append("new")
    assert [record["$seq"] for record in socket.records(1)] == [11]
    socket.quiet()


def test_several_topics_at_once(socket: Socket, name: str, api: httpx.Client) -> None:
    for letter in "abc":
        api.post(f"/v0/topics/{name}-{letter}", json={"records": [{"data": letter}] * 2})
    topics = {f"{name}-a": {"from_seq": 1}, f"{name}-b": {"tail": True}, f"{name}-c": {}}
    subscribed = socket.ask({"op": "subscribe", "topics": topics, "topic": f"{name}-a", "from_seq": 2})
    assert {topic: at["from_seq"] for topic, at in subscribed["topics"].items()} == {
        f"{name}-a": 2, f"{name}-b": 2, f"{name}-c": 0,
    }  # fmt: skip
    frames = socket.frames(4)
    assert sorted(frame["topic"] for frame in frames if frame["op"] == "caught_up") == sorted(topics)
    [record] = [frame for frame in frames if frame["op"] == "record"]
    assert (record["topic"], len(record["records"])) == (f"{name}-c", 2)


def test_subscribe_selects_record_fields(server: LiveServer, name: str, api: httpx.Client) -> None:
    record = {"data": 1, "tag": "t", "node": "n", "meta": {"m": "1"}}
    api.post(f"/v0/topics/{name}", json={"records": [record]})
    for fields, keys in (
        ({}, {"$node", "data", "meta"}),
        ({"include_tags": True}, {"$node", "$tag", "data", "meta"}),
        ({"include_meta": False}, {"$node", "data"}),
        ({"include_data": False}, {"$node"}),
        ({"include_data": False, "include_meta": True}, {"$node", "meta"}),
        ({"include_data": False, "include_tags": True, "include_meta": False}, {"$node", "$tag"}),
    ):
        with open_socket(server.url) as socket:
            # Frames without data are not among the typed ones, which always have data.
            socket.send(subscribe(name, **fields))
            texts = [json.loads(socket.connection.recv(30.0)) for _ in range(2)]
            assert set(texts[1]["records"][0]) == {"$seq", "$ts", *keys}, fields


def test_a_node_never_gets_its_own_records_back(socket: Socket, name: str, append: Append) -> None:
    append(1, node="me")
    socket.ask(subscribe(name, node="me"))
    assert socket.frame()["op"] == "caught_up"
    append(2, node="me")
    append(3, node="you")
    assert [record["data"] for record in socket.records(1)] == [3]
    socket.ask({"op": "subscribe", "topic": name, "node": ["me", "you"], "from_seq": 0})
    assert socket.frame()["op"] == "caught_up"
    append(4)
    assert [record["data"] for record in socket.records(1)] == [4]


def test_limit_and_max_batch_bytes_bound_a_frame(server: LiveServer, socket: Socket, name: str, append: Append) -> None:
    append(*["x" * 100] * 50)
    socket.ask(subscribe(name, limit=7))
    sizes = [len(frame["records"]) for frame in socket.frames(8)]
    assert sizes == [7] * 7 + [1]
    with open_socket(server.url) as other:
        other.ask(subscribe(name, max_batch_bytes=1))
        assert [len(frame["records"]) for frame in other.frames(50)] == [1] * 50


def test_a_loss_is_reported_before_what_follows_it(
    socket: Socket, name: str, api: httpx.Client, append: Append
) -> None:
    api.put(f"/v0/topics/{name}", json={"cap_records": 2})
    append(1, 2, 3, 4)
    socket.ask(subscribe(name))
    assert socket.frame() == {
        "op": "tombstone", "topic": name, "reason": "cap", "gap_from": 1, "gap_to": 2,
        "earliest_seq": 3, "head_seq": 4,
    }  # fmt: skip
    assert [record["$seq"] for record in socket.records(2)] == [3, 4]


def test_a_cursor_from_before_a_recreation_gets_a_tombstone(
    socket: Socket, name: str, api: httpx.Client, append: Append
) -> None:
    append(1, 2, 3)
    api.delete(f"/v0/topics/{name}")
    append("again")
    assert socket.ask(subscribe(name, from_seq=3))["op"] == "subscribed"
    tombstone = socket.frame()
    assert (tombstone["op"], tombstone["reason"], tombstone["gap_to"]) == ("tombstone", "recreated", 1)
    assert [record["data"] for record in socket.records(1)] == ["again"]


def test_a_cursor_with_its_epoch_is_never_taken_for_one_of_another_topic(
    server: LiveServer, name: str, api: httpx.Client, append: Append
) -> None:
    append(1, 2)
    with open_socket(server.url) as socket:
        epoch = socket.ask(subscribe(name, tail=True))["topics"][name]["epoch"]
    with open_socket(server.url) as socket:
        assert socket.ask(subscribe(name, from_seq=1, epoch=epoch))["topics"][name]["from_seq"] == 1
        assert [record["$seq"] for record in socket.records(1)] == [2]
    api.delete(f"/v0/topics/{name}")
    append("a", "b", "c")
    with open_socket(server.url) as socket:
        # Without its epoch the cursor fits the new topic as well as the old one.
        assert socket.ask(subscribe(name, from_seq=2))["topics"][name]["epoch"] != epoch
        assert [record["data"] for record in socket.records(1)] == ["c"]
    with open_socket(server.url) as socket:
        socket.ask({"op": "subscribe", "topics": {name: {"from_seq": 2, "epoch": epoch}}})
        tombstone = socket.frame()
        assert (tombstone["op"], tombstone["reason"]) == ("tombstone", "recreated")
        assert [record["data"] for record in socket.records(3)] == ["a", "b", "c"]
    with open_socket(server.url) as socket:
        assert socket.ask(subscribe(name, from_seq=2, epoch=epoch, tail=True))["topics"][name]["from_seq"] == 3
        assert socket.frame()["op"] == "caught_up"


def test_a_deletion_of_the_topic_is_reported_and_ends_its_subscription(
    socket: Socket, name: str, api: httpx.Client, append: Append
) -> None:
    append(1, 2)
    socket.ask(subscribe(name, tail=True))
    socket.frame()
    api.delete(f"/v0/topics/{name}")
    deleted = socket.frame()
    assert (deleted["op"], deleted["topic"], deleted["reason"]) == ("topic_deleted", name, "deleted")
    append("a topic of the same name")
    socket.quiet()
    assert socket.ask({"op": "unsubscribe", "topic": name}) == {"op": "unsubscribed", "topics": []}


def test_unsubscribe_ends_the_records_of_a_topic(socket: Socket, name: str, append: Append) -> None:
    append(1)
    socket.ask(subscribe(name, tail=True))
    socket.frame()
    assert socket.ask({"op": "unsubscribe", "request_id": "u1", "topic": name}) == {
        "op": "unsubscribed", "request_id": "u1", "topics": [name],
    }  # fmt: skip
    append(2)
    socket.quiet()
    answer = socket.ask({"op": "unsubscribe", "topics": [name, "other"], "topic": name})
    assert answer == {"op": "unsubscribed", "topics": []}
    socket.ask(subscribe(name))
    assert len(socket.records(2)) == 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "no-such-topic"}, "topic_not_found"),
        ({"topic": None}, "invalid_request"),
        ({"topic": None, "topics": {}}, "invalid_request"),
        ({"topics": {"no-such-topic": {}}}, "topic_not_found"),
        ({"topics": ["t"]}, "invalid_request"),
        ({"from_seq": -1}, "invalid_request"),
        ({"from_seq": "1"}, "invalid_request"),
        ({"from_seq": 2**64}, "invalid_request"),
        ({"limit": -1}, "invalid_request"),
        ({"max_batch_bytes": -1}, "invalid_request"),
        ({"node": 5}, "invalid_request"),
        ({"tail": "yes"}, "invalid_request"),
        ({"topics": {f"t{number}": {} for number in range(300)}}, "invalid_request"),
    ],
)
def test_a_bad_subscribe_changes_nothing(
    socket: Socket, name: str, append: Append, fields: dict[str, Any], code: str
) -> None:
    append(1)
    socket.refused(subscribe(name) | fields, code)
    append(2)
    socket.quiet()


# Messages that are not commands


@pytest.mark.parametrize(
    ("message", "code", "request_id"),
    [
        ("", "invalid_json", None),
        ("{", "invalid_json", None),
        ("[]", "invalid_json", None),
        ('"ping"', "invalid_json", None),
        ("[" * 100_000, "invalid_json", None),
        ('{"op":"dance","request_id":"r"}', "invalid_json", "r"),
        ('{"op":5,"request_id":"r"}', "invalid_json", "r"),
        ('{"request_id":9}', "invalid_json", 9),
        ('{"op":"ping","request_id":[1]}', "invalid_request", None),
        ('{"op":"ping","request_id":"%s"}' % ("x" * 257), "invalid_request", None),
        ('{"op":"publish","request_id":"r"}', "invalid_request", "r"),
        ('{"op":"publish","request_id":"r","topic":"t","records":{}}', "invalid_request", "r"),
        ('{"op":"unsubscribe","request_id":"r"}', "invalid_request", "r"),
        (b"\x00\x01", "unsupported_message", None),
    ],
)
def test_a_bad_message_is_answered_and_the_socket_lives(
    socket: Socket, message: str | bytes, code: str, request_id: object
) -> None:
    socket.connection.send(message)
    frame = socket.frame()
    assert (frame["op"], frame["code"], frame.get("request_id")) == ("error", code, request_id)
    assert frame["message"].isprintable() and len(frame["message"]) < 500
    socket.quiet()


def test_a_message_may_come_in_fragments(socket: Socket, name: str) -> None:
    text = json.dumps(publish(name, "grüße" * 1000, request_id="f"))
    socket.connection.send(text[at : at + 100] for at in range(0, len(text), 100))
    assert socket.frame()["request_id"] == "f"


def test_ping(socket: Socket) -> None:
    assert socket.ask({"op": "ping", "request_id": "ping-1"}) == {"op": "pong", "request_id": "ping-1"}
    assert socket.ask({"op": "ping"}) == {"op": "pong"}
    assert socket.connection.ping("x").wait(30.0)


def test_a_client_that_closes_gets_its_answers_first(server: LiveServer, name: str, api: httpx.Client) -> None:
    api.put(f"/v0/topics/{name}", json={"durability": "fsync"})
    with open_socket(server.url, max_queue=None) as socket:
        socket.send(*[publish(name, number) for number in range(100)])
        socket.connection.close()
    assert api.get(f"/v0/topics/{name}").json()["head_seq"] == 100


# The way in


def test_without_a_websocket_there_is_nothing_to_see(api: httpx.Client) -> None:
    answer = api.get("/v0/ws")
    assert (answer.status_code, answer.json()["error"]["code"]) == (426, "upgrade_required")
    assert answer.headers["upgrade"] == "websocket"
    handshake = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "8"}
    answer = api.get("/v0/ws", headers={**handshake, "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="})
    assert (answer.status_code, answer.headers["sec-websocket-version"]) == (426, "13")
    answer = api.get("/v0/ws", headers={**handshake, "sec-websocket-key": "short"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert api.post("/v0/ws", json={}).status_code == 405


@pytest.mark.parametrize(
    ("origin", "admitted"),
    [
        ("http://localhost:3000", True), ("http://127.0.0.1", True), ("https://[::1]:1", True),
        ("https://evil.example", False), ("null", False), ("http://localhost.evil.example", False), ("", False),
    ],
)  # fmt: skip
def test_without_keys_pages_of_other_hosts_stay_out(server: LiveServer, origin: str, admitted: bool) -> None:
    if admitted:
        with open_socket(server.url, headers={"origin": origin}) as socket:
            socket.quiet()
        return
    with pytest.raises(InvalidStatus) as refused, open_socket(server.url, headers={"origin": origin}):
        pass
    assert refused.value.response.status_code == 403
