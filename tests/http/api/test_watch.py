"""Watching topics: every event, every field, every way to resume, over real sockets."""

import base64
import json
import re
import time
from typing import Any

import httpx
import pytest

from tests.http.api.conftest import Append, refused
from tests.http.api.events import Event, EventStream, Watch, watch
from tests.http.live import LiveServer

# Making a session


def test_a_session_reports_where_each_topic_stands(server: LiveServer, api: httpx.Client, name: str) -> None:
    api.put(f"/v0/topics/{name}-a", json={"cap_records": 3})
    for topic in ("a", "b", "c"):
        api.post(f"/v0/topics/{name}-{topic}", json={"records": [{"data": n} for n in range(10)]})
    body = {"topics": {f"{name}-a": {"from_seq": 4}, f"{name}-b": {"tail": True, "from_seq": 3}, f"{name}-c": None}}
    made = Watch(server.url, body).made
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", made["wid"])
    assert made["stream_url"] == f"/v0/watch/{made['wid']}"
    assert made["session_ttl_ms"] == 300_000
    for topic, position in made["topics"].items():
        assert position.pop("epoch") == api.get(f"/v0/topics/{topic}").json()["epoch"]
    assert made["topics"] == {
        f"{name}-a": {"from_seq": 4, "head_seq": 10, "earliest_seq": 8},
        f"{name}-b": {"from_seq": 10, "head_seq": 10, "earliest_seq": 1},
        f"{name}-c": {"from_seq": 0, "head_seq": 10, "earliest_seq": 1},
    }
    assert made["performance"]["server_total_ms"] >= 0
    assert made.keys() == {"wid", "stream_url", "session_ttl_ms", "topics", "performance"}


def test_a_write_of_several_events_ends_with_caught_up(server: LiveServer, append: Append, name: str) -> None:
    append("first")
    with Watch(server.url, {"topics": {name: {"tail": True}}, "limit": 2}).open() as stream:
        assert stream.event().name == "caught-up"
        append(*range(10))
        events = stream.events(6)
        assert [event.name for event in events] == ["record"] * 5 + ["caught-up"]
        assert events[-1].data == {"topic": name, "head_seq": 11} and events[-1].id == events[-2].id
        # A write of one event skips no waiter.
        append("one")
        append("another")
        assert [event.name for event in stream.events(2)] == ["record", "record"]


def test_two_sessions_never_have_the_same_word(server: LiveServer, append: Append, name: str) -> None:
    append(1)
    assert len({watch(server.url, name).made["wid"] for _ in range(50)}) == 50


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, None),
        ({"topics": {}}, "topics"),
        ({"topics": []}, None),
        ({"topics": {"t": 5}}, None),
        ({"topics": {f"t{n}": {} for n in range(257)}}, "topics"),
        ({"topics": {"t": {"from_seq": -1}}}, "from_seq"),
        ({"topics": {"t": {"from_seq": 2**64}}}, None),
        ({"topics": {"t": {"tail": 1}}}, None),
        ({"topics": {"t": {}}, "limit": -1}, "limit"),
        ({"topics": {"t": {}}, "max_batch_bytes": -1}, "max_batch_bytes"),
        ({"topics": {"t": {}}, "heartbeat_ms": -1}, "heartbeat_ms"),
        ({"topics": {"t": {}}, "heartbeat_ms": "15000"}, None),
        ({"topics": {"t": {}}, "include_data": "yes"}, None),
        ({"topics": {"t": {}}, "consistency": "none"}, None),
        ({"topics": {"t": {}}, "node": 5}, None),
        ({"topics": {"t": {}}, "cursor": "!!"}, "cursor"),
        ({"topics": {"t": {}}, "cursor": "eyJ0IjotMX0"}, "cursor"),
    ],
)
def test_invalid_watches_are_refused(server: LiveServer, body: Any, field: str | None) -> None:
    detail = refused(Watch(server.url, body).answer, 400, "invalid_request")
    assert field is None or detail["field"] == field


def test_a_body_must_be_sent_and_be_json(api: httpx.Client) -> None:
    refused(api.post("/v0/watch"), 400, "invalid_request")
    refused(api.post("/v0/watch", content=b"{}"), 415, "unsupported_media_type")


def test_an_unknown_topic_is_refused_or_left_out(server: LiveServer, append: Append, name: str) -> None:
    append(1)
    body: Any = {"topics": {name: {}, f"{name}-missing": {}}}
    assert refused(Watch(server.url, body).answer, 404, "topic_not_found") == {"topic": f"{name}-missing"}
    lenient = Watch(server.url, body, query="?lenient=true")
    assert lenient.made["topics"].keys() == {name}
    with lenient.open() as stream:
        assert [event.name for event in stream.events(2)] == ["record", "caught-up"]


def test_with_nothing_left_a_lenient_watch_only_beats(tmp_path: Any, server: LiveServer, name: str) -> None:
    lenient = Watch(server.url, {"topics": {name: {}}, "heartbeat_ms": 1000}, query="?lenient=1")
    assert lenient.made["topics"] == {}
    with lenient.open() as stream:
        assert stream.next().name == "comment"


# The stream


def test_the_stream_has_exactly_the_headers_that_proxies_need(server: LiveServer, append: Append, name: str) -> None:
    append(1)
    with watch(server.url, name).open() as stream:
        headers = dict(stream.headers)
    assert headers.pop("date")
    assert headers == {
        "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", "connection": "keep-alive",
        "x-accel-buffering": "no", "transfer-encoding": "chunked",
    }  # fmt: skip


def test_records_come_in_batches_and_then_one_by_one(server: LiveServer, append: Append, name: str) -> None:
    append(1, [2], None)
    with watch(server.url, name).open() as stream:
        first, caught_up = stream.events(2)
        assert first.name == "record"
        records = first.data["records"]
        assert [(r["$seq"], r["data"]) for r in records] == [(1, 1), (2, [2]), (3, None)]
        assert all(set(r) == {"$seq", "$ts", "data"} for r in records)
        assert {key: first.data[key] for key in first.data if key != "records"} == {
            "topic": name, "from_seq": 0, "to_seq": 3, "head_seq": 3,
        }  # fmt: skip
        assert first.cursors == {name: 3}
        assert caught_up == Event("caught-up", {"topic": name, "head_seq": 3}, first.id)
        append("new")
        live = stream.event()
        assert (live.seqs, live.cursors, live.data["from_seq"], live.data["to_seq"]) == ([4], {name: 4}, 3, 4)


def test_payloads_are_verbatim_also_with_line_ends(server: LiveServer, api: httpx.Client, name: str) -> None:
    body = b'{"records":[{"data":{"a" :\r\n [1,\n\n 2],"b":"x\\ny\\u0000\xc3\xa9"\r}},{"data": 1.50}]}'
    api.post(f"/v0/topics/{name}", content=body, headers={"content-type": "application/json"})
    with watch(server.url, name).open() as stream:
        assert stream.event().data["records"][0]["data"] == {"a": [1, 2], "b": "x\ny\0é"}
    with watch(server.url, name).open() as stream:
        raw = b"\n".join(next(stream._lines) for _ in range(9))
        assert b'"data":1.50}' in raw


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({}, {"$seq", "$ts", "$node", "data", "meta"}),
        ({"include_tags": True}, {"$seq", "$ts", "$node", "$tag", "data", "meta"}),
        ({"include_meta": False}, {"$seq", "$ts", "$node", "data"}),
        ({"include_data": False}, {"$seq", "$ts", "$node"}),
        ({"include_data": False, "include_tags": True}, {"$seq", "$ts", "$node", "$tag"}),
        ({"include_data": False, "include_meta": True}, {"$seq", "$ts", "$node", "meta"}),
        ({"include_tags": True, "include_meta": False}, {"$seq", "$ts", "$node", "$tag", "data"}),
    ],
)
def test_a_watch_carries_what_it_asks_for(
    server: LiveServer, api: httpx.Client, name: str, fields: Any, keys: set[str]
) -> None:
    record = {"data": {"x": 1}, "meta": {"m": 2}, "tag": "t", "node": "n"}
    api.post(f"/v0/topics/{name}", json={"records": [record, record]})
    with watch(server.url, name, **fields).open() as stream:
        backlog, _ = stream.events(2)
        api.post(f"/v0/topics/{name}", json={"records": [record]})
        records = [*backlog.data["records"], *stream.event().data["records"]]
    assert [r["$seq"] for r in records] == [1, 2, 3]
    assert all(set(r) == keys for r in records)
    assert all(r.get("meta", {"m": 2}) == {"m": 2} for r in records)
    assert all((r.get("$tag", "t"), r["$node"], r.get("data", {"x": 1})) == ("t", "n", {"x": 1}) for r in records)


@pytest.mark.parametrize("node", ["me", ["me", "also-me"]])
def test_a_node_never_gets_its_own_records(server: LiveServer, append: Append, name: str, node: Any) -> None:
    append(1, 2, node="me")
    append(3, node="you")
    with watch(server.url, name, node=node).open() as stream:
        first, caught_up = stream.events(2)
        assert (first.seqs, first.data["from_seq"], first.data["to_seq"]) == ([3], 0, 3)
        assert caught_up.data["head_seq"] == 3
        append(4, node="me")
        append(5)
        assert stream.event().seqs == [5]


def test_a_batch_ends_at_the_limit(server: LiveServer, append: Append, name: str) -> None:
    append(*range(10))
    with watch(server.url, name, limit=4).open() as stream:
        assert [event.seqs for event in stream.events(3)] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
        assert stream.event().name == "caught-up"
        append(*range(5))
        assert [event.seqs for event in stream.events(2)] == [[11, 12, 13, 14], [15]]


def test_a_batch_ends_at_the_byte_budget_but_holds_at_least_one(server: LiveServer, append: Append, name: str) -> None:
    append(*["x" * 1000] * 5)
    with watch(server.url, name, max_batch_bytes=2500).open() as stream:
        assert [event.seqs for event in stream.events(3)] == [[1, 2], [3, 4], [5]]
    with watch(server.url, name, max_batch_bytes=10).open() as stream:
        assert [event.seqs for event in stream.events(5)] == [[1], [2], [3], [4], [5]]


def test_several_topics_share_a_stream_and_every_id_holds_them_all(
    server: LiveServer, api: httpx.Client, name: str
) -> None:
    a, b = f"{name}-a", f"{name}-b"
    for topic, count in ((a, 2), (b, 1)):
        api.post(f"/v0/topics/{topic}", json={"records": [{"data": n} for n in range(count)]})
    with watch(server.url, a, b).open() as stream:
        events = stream.events(4)
        assert {(e.name, e.data["topic"]) for e in events} == {
            ("record", a), ("caught-up", a), ("record", b), ("caught-up", b),
        }  # fmt: skip
        assert all(event.cursors.keys() == {a, b} for event in events)
        assert events[-1].cursors == {a: 2, b: 1}
        api.post(f"/v0/topics/{b}", json={"records": [{"data": 1}]})
        event = stream.event()
        assert (event.data["topic"], event.cursors) == (b, {a: 2, b: 2})


@pytest.mark.parametrize("consistency", ["eventual", "strong"])
@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_every_class_is_delivered_with_either_consistency(
    server: LiveServer, api: httpx.Client, append: Append, name: str, durability: str, consistency: str
) -> None:
    api.put(f"/v0/topics/{name}", json={"durability": durability})
    append(1)
    with watch(server.url, name, consistency=consistency).open() as stream:
        assert [event.name for event in stream.events(2)] == ["record", "caught-up"]
        for number in range(5):
            append(number)
        assert [r["$seq"] for r in stream.records(5)] == [2, 3, 4, 5, 6]


def test_a_queue_can_be_watched_like_a_log(server: LiveServer, api: httpx.Client, append: Append, name: str) -> None:
    api.put(f"/v0/topics/{name}", json={"type": "queue"})
    append("job")
    with watch(server.url, name).open() as stream:
        assert stream.event().seqs == [1]


def test_heartbeats_come_when_nothing_else_does(server: LiveServer, append: Append, name: str) -> None:
    append(1)
    before = time.time_ns() // 1_000_000
    with watch(server.url, name, heartbeat_ms=1).open() as stream:
        stream.events(2)
        beat = stream.next()
    word, stamp = beat.data.split()
    assert (beat.name, word) == ("comment", "hb")
    assert before <= int(stamp) <= time.time_ns() // 1_000_000


# Loss


def test_a_cursor_that_fell_off_gets_a_tombstone_at_once(
    server: LiveServer, api: httpx.Client, append: Append, name: str
) -> None:
    api.put(f"/v0/topics/{name}", json={"cap_records": 3})
    append(*range(10))
    with Watch(server.url, {"topics": {name: {"from_seq": 2}}}).open() as stream:
        lost, records, _ = stream.events(3)
    assert lost.name == "tombstone"
    assert lost.data == {
        "topic": name, "reason": "from_seq_too_old", "gap_from": 3, "gap_to": 7, "earliest_seq": 8, "head_seq": 10,
    }  # fmt: skip
    assert lost.cursors == {name: 7}
    assert (records.seqs, records.data["from_seq"]) == ([8, 9, 10], 7)


def test_loss_met_while_following_has_the_topics_reason(
    server: LiveServer, api: httpx.Client, append: Append, name: str
) -> None:
    api.put(f"/v0/topics/{name}", json={"cap_records": 3})
    append(1)
    with watch(server.url, name).open() as stream:
        stream.events(2)
        append(*range(10))
        lost, records = stream.events(2)
    assert (lost.data["reason"], lost.data["gap_from"], lost.data["gap_to"]) == ("cap", 2, 8)
    assert records.seqs == [9, 10, 11]


def test_deletes_are_silent(server: LiveServer, api: httpx.Client, append: Append, name: str) -> None:
    append(*range(10))
    api.post(f"/v0/topics/{name}/delete", json={"before_seq": 6})
    with watch(server.url, name).open() as stream:
        first, _ = stream.events(2)
        assert (first.seqs, first.data["from_seq"]) == ([6, 7, 8, 9, 10], 0)
        api.post(f"/v0/topics/{name}/delete", json={"before_seq": 11})
        append("next")
        assert stream.event().seqs == [11]


def test_a_cursor_from_the_future_learns_that_the_topic_began_again(
    server: LiveServer, append: Append, name: str
) -> None:
    append(1, 2)
    with Watch(server.url, {"topics": {name: {"from_seq": 500}}}).open() as stream:
        lost, records = stream.events(2)
    assert (lost.data["reason"], lost.data["gap_from"], lost.data["gap_to"]) == ("recreated", 1, 2)
    assert lost.cursors == {name: 0}
    assert records.seqs == [1, 2]


# The end of topics


def test_a_deleted_topic_is_reported_and_the_others_go_on(server: LiveServer, api: httpx.Client, name: str) -> None:
    a, b = f"{name}-a", f"{name}-b"
    for topic in (a, b):
        api.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}, {"data": 2}]})
    with watch(server.url, a, b).open() as stream:
        stream.events(4)
        api.delete(f"/v0/topics/{a}")
        gone = stream.event()
        assert (gone.name, gone.data) == ("topic-deleted", {"topic": a, "head_seq": 2, "reason": "deleted"})
        assert gone.cursors == {a: 2, b: 2}
        api.post(f"/v0/topics/{a}", json={"records": [{"data": "another"}]})
        api.post(f"/v0/topics/{b}", json={"records": [{"data": 3}]})
        assert stream.event().data["topic"] == b
        api.delete(f"/v0/topics/{b}")
        assert stream.event().name == "topic-deleted"
        stream.ended()


def test_a_topic_deleted_meanwhile_is_reported_on_the_next_stream(
    server: LiveServer, api: httpx.Client, append: Append, name: str
) -> None:
    append(1, 2)
    session = watch(server.url, name)
    with session.open() as stream:
        stream.events(2)
    api.delete(f"/v0/topics/{name}")
    with session.open() as stream:
        gone = stream.event()
        assert (gone.name, gone.data["head_seq"], gone.cursors) == ("topic-deleted", 2, {name: 2})
        stream.ended()


def test_a_topic_recreated_meanwhile_is_reported_although_its_seqs_look_right(
    server: LiveServer, api: httpx.Client, append: Append, name: str
) -> None:
    append(1, 2)
    session = watch(server.url, name)
    with session.open() as stream:
        assert stream.event().cursors == {name: 2}
    api.delete(f"/v0/topics/{name}")
    append(*range(5))
    with session.open() as stream:
        lost, records, _ = stream.events(3)
        assert (lost.data["reason"], lost.cursors[name]) == ("recreated", 0)
        assert records.seqs == [1, 2, 3, 4, 5]


def test_with_its_epoch_a_cursor_is_never_taken_for_one_of_another_topic(
    server: LiveServer, api: httpx.Client, append: Append, name: str
) -> None:
    append(1, 2)
    epoch = watch(server.url, name).made["topics"][name]["epoch"]
    start = {"from_seq": 2, "epoch": epoch}
    with Watch(server.url, {"topics": {name: start}}).open() as stream:
        assert stream.event().name == "caught-up"
    api.delete(f"/v0/topics/{name}")
    append(*range(5))
    session = Watch(server.url, {"topics": {name: start}})
    assert session.made["topics"][name]["epoch"] != epoch
    with session.open() as stream:
        lost, records, _ = stream.events(3)
        assert (lost.data["reason"], records.seqs) == ("recreated", [1, 2, 3, 4, 5])


@pytest.mark.parametrize("others", [0, 1, 70])
def test_that_a_topic_began_again_is_reported_until_the_client_has_seen_it(
    server: LiveServer, api: httpx.Client, append: Append, name: str, others: int
) -> None:
    more = [f"{name}-{number}" for number in range(others)]
    for topic in more:
        api.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}]})
    append(1, 2)
    session = watch(server.url, name, *more)
    with session.open() as stream:
        *_, last = stream.events(2 * (1 + others))
    api.delete(f"/v0/topics/{name}")
    append(*range(9))
    for _ in range(2):
        with session.open(last.id) as stream:
            events = [event for event in stream.events(3 + others) if event.data["topic"] == name]
            assert [event.name for event in events] == ["tombstone", "record", "caught-up"]
            assert events[0].data["reason"] == "recreated"
            assert events[1].seqs == list(range(1, 10))
    with session.open(events[0].id) as stream:
        [records, *_] = [event for event in stream.events(2 + others) if event.data["topic"] == name]
        assert records.seqs == list(range(1, 10))


# Resuming


def test_a_client_that_saw_nothing_can_report_it(server: LiveServer, append: Append, name: str) -> None:
    append(1, 2)
    session = Watch(server.url, {"topics": {name: {"from_seq": 1}}})
    with session.open() as stream:
        assert stream.opening is not None
        assert stream.opening.cursors == {name: 1}
        # Sent by the server, and never dealt with.
        assert stream.event().seqs == [2]
    with session.open(stream.opening.id) as stream:
        assert stream.event().seqs == [2]


def test_the_next_stream_goes_on_where_the_last_one_was(server: LiveServer, append: Append, name: str) -> None:
    append(1, 2)
    session = watch(server.url, name)
    with session.open() as stream:
        stream.events(2)
    append(3)
    with session.open() as stream:
        assert stream.event().seqs == [3]


def test_last_event_id_goes_back_and_never_forward(server: LiveServer, append: Append, name: str) -> None:
    append(*range(6))
    session = watch(server.url, name, limit=2)
    with session.open() as stream:
        first, *_ = stream.events(4)
    ids = (first.id, "", "no id at all", "e30", encode({name: -1}), encode({f"{name}-other": 1}))
    for head, last_event_id in enumerate(ids, 7):
        with session.open(last_event_id) as stream:
            append("more")
            expected = 3 if last_event_id == first.id else None
            event = stream.event()
            assert expected is None or event.seqs[0] == expected
            # It may have caught up before it heard of the record just appended.
            while event.name != "record" or head not in event.seqs:
                event = stream.event()
    with session.open(encode({name: 10**6})) as stream:
        assert stream.event().name == "caught-up"


def test_last_event_id_restores_all_topics_at_once(server: LiveServer, api: httpx.Client, name: str) -> None:
    topics = [f"{name}-{n}" for n in range(3)]
    for topic in topics:
        api.post(f"/v0/topics/{topic}", json={"records": [{"data": n} for n in range(4)]})
    session = watch(server.url, *topics, limit=2)
    seen: dict[str, list[int]] = {topic: [] for topic in topics}
    last = None
    with session.open() as stream:
        for event in stream.events(4):
            seen[event.data["topic"]] += event.seqs if event.name == "record" else []
            last = event.id
        # The server has sent more than the client has read by now, and the client goes away.
        stream.events(3)
    with session.open(last) as stream:
        while any(len(seqs) < 4 for seqs in seen.values()):
            event = stream.event()
            seen[event.data["topic"]] += event.seqs if event.name == "record" else []
    assert all(seqs == [1, 2, 3, 4] for seqs in seen.values())


def test_the_id_of_a_watch_of_many_topics_is_opaque_and_resumes_it(
    server: LiveServer, api: httpx.Client, name: str
) -> None:
    topics = [f"{name}-{n}" for n in range(65)]
    for topic in topics:
        api.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}, {"data": 2}]})
    session = watch(server.url, *topics, limit=1)
    seen: dict[str, list[int]] = {topic: [] for topic in topics}
    with session.open() as stream:
        last = None
        for event in stream.events(70):
            last = event.id
            seen[event.data["topic"]] += event.seqs if event.name == "record" else []
        assert last is not None
        assert not base64.urlsafe_b64decode(last + "=" * (-len(last) % 4)).startswith(b"{")
        stream.events(20)
    with session.open(last) as stream:
        while any(len(seqs) < 2 for seqs in seen.values()):
            event = stream.event()
            seen[event.data["topic"]] += event.seqs if event.name == "record" else []
    assert all(seqs == [1, 2] for seqs in seen.values())
    resumed = Watch(server.url, {"topics": {topic: {} for topic in topics}, "cursor": last})
    assert {topic["from_seq"] for topic in resumed.made["topics"].values()} > {1}
    refused(Watch(server.url, {"topics": {topics[0]: {}}, "cursor": last}).answer, 400, "invalid_request")


def test_an_id_resumes_a_new_session(server: LiveServer, append: Append, name: str) -> None:
    append(*range(5))
    with watch(server.url, name, limit=2).open() as stream:
        last = stream.event().id
    session = Watch(server.url, {"topics": {name: {"tail": True}}, "cursor": last})
    assert session.made["topics"][name]["from_seq"] == 2
    with session.open() as stream:
        assert stream.event().seqs == [3, 4, 5]


@pytest.mark.parametrize("others", [0, 1, 70])
def test_an_id_in_a_new_session_notices_that_its_topic_was_recreated(
    server: LiveServer, api: httpx.Client, append: Append, name: str, others: int
) -> None:
    more = [f"{name}-{number}" for number in range(others)]
    for topic in more:
        api.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}]})
    append(1, 2)
    with watch(server.url, name, *more).open() as stream:
        *_, last = stream.events(2 * (1 + others))
    again: dict[str, Any] = {"topics": {topic: {} for topic in (name, *more)}, "cursor": last.id}
    with Watch(server.url, again).open() as stream:
        assert {event.name for event in stream.events(1 + others)} == {"caught-up"}
    api.delete(f"/v0/topics/{name}")
    append(*range(5))
    with Watch(server.url, again).open() as stream:
        events = stream.events(3 + others)
    mine = [event for event in events if event.data["topic"] == name]
    assert [event.name for event in mine] == ["tombstone", "record", "caught-up"]
    assert (mine[0].data["reason"], mine[1].seqs) == ("recreated", [1, 2, 3, 4, 5])
    assert {event.name for event in events if event.data["topic"] != name} <= {"caught-up"}
    # An id without the mark, as earlier releases wrote it, is taken at its word.
    if not others:
        with Watch(server.url, {"topics": {name: {}}, "cursor": encode({name: 2})}).open() as stream:
            assert stream.event().seqs == [3, 4, 5]


def test_the_newest_stream_of_a_session_wins(server: LiveServer, append: Append, name: str) -> None:
    append(1)
    session = watch(server.url, name)
    with session.open() as old:
        old.events(2)
        with session.open() as new:
            assert new.event().name == "caught-up"
            reported = old.event()
            assert (reported.name, reported.data["code"], reported.id) == ("error", 409, None)
            old.ended()
            append(2)
            assert new.event().seqs == [2]


def test_a_client_of_http_1_0_gets_plain_bytes(
    server: LiveServer, api: httpx.Client, append: Append, name: str
) -> None:
    append(1)
    with watch(server.url, name).open(version="1.0") as stream:
        assert "transfer-encoding" not in stream.headers
        assert stream.headers["connection"] == "close"
        first, caught_up = stream.events(2)
        assert (first.seqs, first.cursors, caught_up.name) == ([1], {name: 1}, "caught-up")
        api.delete(f"/v0/topics/{name}")
        assert stream.event().name == "topic-deleted"
        stream.ended()


def test_head_reports_the_headers_and_follows_nothing(
    server: LiveServer, api: httpx.Client, append: Append, name: str
) -> None:
    append(1)
    session = watch(server.url, name)
    answer = api.head(session.made["stream_url"])
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    with session.open() as stream:
        assert stream.event().seqs == [1]


# Refusals of the stream


def test_the_stream_of_no_session_is_not_found(server: LiveServer) -> None:
    for wid in ("wid_AAAAAAAAAAAAAAAAAAAAAA", "x", "%20", "wid_%C3%A9"):
        with EventStream(server.url, f"/v0/watch/{wid}") as stream:
            refused(stream.refusal, 404, "not_found")


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("text/event-stream", 200), ("*/*", 200), ("text/*", 200), ("", 200), ("TEXT/EVENT-STREAM; q=1", 200),
        ("application/json, text/event-stream;q=0.5", 200), ("application/json", 406), ("text/html", 406),
        ("text/event-stream;q=0", 406), ("text/event-stream; q=0.0, */*", 406), ("text/*;q=0, */*;q=1", 406),
        ("text/event-stream; charset=utf-8; q=0.1, text/*;q=0, */*;q=0", 200), ("*/*;q=0", 406), (" , ", 200),
        ("text/event-stream;q=x", 406),
    ],
)  # fmt: skip
def test_accept_must_allow_events(server: LiveServer, append: Append, name: str, accept: str, status: int) -> None:
    append(1)
    with EventStream(server.url, watch(server.url, name).made["stream_url"], {"accept": accept}) as stream:
        assert stream.status == status
        if status == 406:
            refused(stream.refusal, 406, "not_acceptable")


def test_a_stream_is_only_got(api: httpx.Client, server: LiveServer, append: Append, name: str) -> None:
    append(1)
    refused(api.delete(watch(server.url, name).made["stream_url"]), 405, "method_not_allowed")
    refused(api.get("/v0/watch"), 405, "method_not_allowed")


def encode(cursors: dict[str, int]) -> str:
    return base64.urlsafe_b64encode(json.dumps(cursors).encode()).rstrip(b"=").decode()
