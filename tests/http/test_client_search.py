"""Both clients on streams with schemas, profiles, searches and touches, against a real server."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.http.live import LiveServer
from tests.http.scripted import answers, http, resets, running
from tests.http.test_client import PATIENT, Caller
from topics_client import (
    ApiError,
    Client,
    ClientOptions,
    ConnectionFailed,
    InvalidRequest,
    Lens,
    NotFound,
    RequestTimeout,
    RetryPolicy,
    RoutingKey,
    StateRefused,
    StreamConflict,
    StreamProfile,
    TopicNotFound,
    TouchTemplate,
    UnexpectedAnswer,
)

PATIENCE_S = 60.0
V1 = {
    "type": "object",
    "required": ["id", "buyer"],
    "properties": {"id": {"type": "integer"}, "buyer": {"type": "string"}},
}
V2 = {
    "type": "object", "required": ["id", "customer"],
    "properties": {"id": {"type": "integer"}, "customer": {"type": "string"}},
}  # fmt: skip
RENAME = {"op": "rename", "from": "/buyer", "to": "/customer"}


def field(kind: str, pointer: str, **flags: Any) -> dict[str, Any]:
    return {"kind": kind, "bindings": [{"version": 1, "jsonPointer": pointer}], **flags}


SEARCH: dict[str, Any] = {
    "primaryTimestampField": "time",
    "fields": {
        "time": field("date", "/time", column=True, sortable=True),
        "service": field("keyword", "/service", exact=True, prefix=True),
        "ms": field("float", "/ms", column=True, sortable=True, aggregatable=True),
        "message": field("text", "/message", analyzer="unicode_word_v1", positions=True),
    },
    "rollups": {
        "load": {
            "dimensions": ["service"],
            "intervals": ["1m"],
            "measures": {"requests": {"kind": "count"}, "latency": {"kind": "summary", "field": "ms"}},
        }
    },
}
LOGS: list[dict[str, Any]] = [
    {"time": f"2026-03-25T10:0{n % 3}:0{n % 10}Z", "service": "ab"[n % 2], "ms": n * 10, "message": f"word{n} common"}
    for n in range(10)
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("server")) as running:
        with Client(running.url, options=PATIENT) as client:
            client.put_stream("shop/logs ü")
            client.update_schema("shop/logs ü", schema={"type": "object"}, search=SEARCH)
            client.append_stream("shop/logs ü", LOGS)
        yield running


@pytest.fixture(params=["sync", "async"])
def caller(request: pytest.FixtureRequest, server: LiveServer) -> Caller:
    return Caller(request.param, server.url)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, of the kind that only streams may have."""
    return f"a/ü {request.node.name}"


def test_a_schema_and_its_evolution(caller: Caller, name: str) -> None:
    caller.put_stream(name)
    empty = caller.get_schema(name)
    assert (empty.stream, empty.current_version, empty.current, empty.routing_key) == (name, 0, None, None)
    first = caller.update_schema(name, schema=V1, routing_key=RoutingKey("/id2"))
    assert (first.current_version, first.current, first.routing_key) == (1, V1, RoutingKey("/id2", False))
    caller.append_stream(name, [{"id": 1, "buyer": "ada"}])
    with pytest.raises(InvalidRequest) as refused:
        caller.append_stream(name, [{"id": 2, "buyer": "bob"}, {"id": "three"}])
    assert refused.value.detail is not None
    assert (refused.value.detail["reason"], refused.value.detail["index"]) == ("schema", 1)
    with pytest.raises(InvalidRequest, match="lens"):
        caller.update_schema(name, schema=V2)
    with pytest.raises(StreamConflict):
        caller.update_schema(name, schema=V2, lens=Lens(2, [RENAME]))
    second = caller.update_schema(name, schema=V2, lens=Lens(1, [RENAME], "buyers are customers"), routing_key=None)
    assert (second.current_version, second.routing_key) == (2, None)
    assert [(one.offset, one.version) for one in second.boundaries] == [(0, 1), (1, 2)]
    assert second.lenses[1]["description"] == "buyers are customers"
    assert second.schemas == {1: V1, 2: V2}
    assert caller.read_stream(name).values == [{"id": 1, "customer": "ada"}]
    assert caller.get_schema(name) == second


def test_invalid_schema_arguments_raise_before_the_request(caller: Caller) -> None:
    with pytest.raises(TypeError, match="at least one"):
        caller.update_schema("s")
    with pytest.raises(ValueError, match="JSON has no word"):
        caller.update_schema("s", schema={"maximum": float("inf")})
    with pytest.raises(TopicNotFound):
        caller.get_schema("no such stream")


def test_profiles(caller: Caller, name: str) -> None:
    caller.put_stream(name)
    assert caller.get_profile(name) == StreamProfile("generic")
    evlog = StreamProfile("evlog", {"redactKeys": ["pin"]})
    assert caller.set_profile(name, evlog) == evlog
    assert caller.get_profile(name) == evlog
    caller.append_stream(name, [{"requestId": "r1", "status": 503, "pin": 1234}])
    (event,) = caller.read_stream(name, key="r1").values
    assert event["context"] == {"pin": "[REDACTED]"}
    assert caller.search(name, "level:error").hits[0].source == event
    assert caller.list_streams(name)[0].profile == "evlog"
    assert caller.set_profile(name, "generic").kind == "generic"
    with pytest.raises(InvalidRequest):
        caller.set_profile(name, {"kind": "unheard of"})


def test_searches(caller: Caller) -> None:
    page = caller.search("shop/logs ü", "service:a ms:>=20", sort="ms:desc", size=2, fields=["ms"])
    assert [hit.source["ms"] for hit in page.hits] == [80, 60]
    assert [hit.fields for hit in page.hits] == [{"ms": 80}, {"ms": 60}]
    assert page.hits[0].decode(dict[str, str | float])["message"] == "word8 common"
    assert (page.total.relation, page.timed_out, page.coverage.complete) == ("gte", False, True)
    rest = caller.search(
        "shop/logs ü", "service:a ms:>=20", sort=["ms:desc"], size=2, search_after=page.next_search_after
    )
    assert [hit.source["ms"] for hit in rest.hits] == [40, 20]
    assert caller.search("shop/logs ü", "service:a", size=1, track_total=True).total.value == 5
    bare = caller.search("shop/logs ü", "word3", source=False, explain=True)
    assert [hit.source for hit in bare.hits] == [None] and bare.explain is not None
    ranked = caller.search("shop/logs ü", "common OR word3", rank="bm25", size=1)
    assert ranked.hits[0].source["message"] == "word3 common"
    rest = caller.search("shop/logs ü", "common OR word3", rank="bm25", search_after=ranked.next_search_after)
    assert len(rest.hits) == 9 and all(hit.score < ranked.hits[0].score for hit in rest.hits)
    with pytest.raises(InvalidRequest):
        caller.search("shop/logs ü", "nofield:1")


def test_several_streams_are_searched_at_once(caller: Caller, name: str) -> None:
    for part, services in (("one", "ab"), ("two", "ba"), ("poor", "")):
        caller.put_stream(f"{name}/{part}")
        search = SEARCH if services else {**SEARCH, "fields": {"time": SEARCH["fields"]["time"]}, "rollups": {}}
        caller.update_schema(f"{name}/{part}", schema={"type": "object"}, search=search)
        entries = [{"time": f"2026-03-25T10:00:0{n}Z", "service": one, "ms": n} for n, one in enumerate(services)]
        if entries:
            caller.append_stream(f"{name}/{part}", entries)
    pattern = f"{name}/*"
    page = caller.search_streams(pattern, "service:a", size=1, fields=["ms"])
    assert [(hit.stream, hit.source["ms"]) for hit in page.hits] == [(f"{name}/two", 1)]
    assert sorted(page.streams) == [f"{name}/one", f"{name}/two"] and not page.more_streams
    assert [one.stream for one in page.skipped] == [f"{name}/poor"] and "service" in page.skipped[0].reason
    rest = caller.search_streams([pattern], "service:a", search_after=page.next_search_after)
    assert [(hit.stream, hit.source["ms"]) for hit in rest.hits] == [(f"{name}/one", 0)]
    assert rest.next_search_after is None and rest.coverage.complete
    assert caller.search_streams(pattern, "ms:>=0", track_total=True, size=1).total.value == 4
    with pytest.raises(NotFound):
        caller.search_streams("no/such/stream/*", "x")


def test_highlights(caller: Caller) -> None:
    (hit,) = caller.search("shop/logs ü", "word3", highlight=True).hits
    (found,) = hit.highlights["message"]
    assert [found.text[begin:end] for begin, end in found.spans] == ["word3"]
    (hit,) = caller.search_topic("shop/logs ü", "word3", highlight=["message"], streams=True).hits
    assert hit.highlights["message"] == [found]
    assert caller.search("shop/logs ü", "word3").hits[0].highlights == {}


def test_aggregation_without_a_rollup(caller: Caller) -> None:
    whole = caller.aggregate("shop/logs ü", group_by=["service"], measures={"ms": {"kind": "summary", "field": "ms"}})
    assert (whole.rollup, whole.interval) == (None, None)
    (bucket,) = whole.buckets
    assert {group.key["service"]: group.measures["ms"]["sum"] for group in bucket.groups} == {"a": 200, "b": 250}
    best = caller.aggregate("shop/logs ü", group_by=["service"], top=1, interval="1m", q="ms:<=20", end=1774432860000)
    assert [group.key for bucket in best.buckets for group in bucket.groups] == [{"service": "a"}]
    with pytest.raises(InvalidRequest):
        caller.aggregate("shop/logs ü", "load", top=1, start=0, end=1, interval="1m")


def test_a_topic_is_searched_by_its_seqs(caller: Caller) -> None:
    page = caller.search_topic("shop/logs ü", "service:a ms:>=20", sort="ms:desc", size=2, fields=["ms"], streams=True)
    assert [(hit.seq, hit.data["ms"], hit.fields) for hit in page.hits] == [(9, 80, {"ms": 80}), (7, 60, {"ms": 60})]
    assert (page.topic, page.head_seq, page.timed_out, page.coverage.complete) == ("shop/logs ü", 10, False, True)
    rest = caller.search_topic(
        "shop/logs ü", "service:a ms:>=20", sort=["ms:desc"], search_after=page.next_search_after, source=False,
        streams=True,
    )  # fmt: skip
    assert [(hit.seq, hit.data) for hit in rest.hits] == [(5, None), (3, None)]
    with pytest.raises(TopicNotFound):
        caller.search_topic("nothing", "x")


def test_pages_of_a_search_join_without_gap_or_repeat(caller: Caller) -> None:
    pages = caller.collect("search_pages", "shop/logs ü", "common", sort="time", page_size=3)
    assert sorted(hit.source["ms"] for page in pages for hit in page.hits) == [one["ms"] for one in LOGS]
    assert [len(page.hits) for page in pages][:3] == [3, 3, 3]


def test_sums(caller: Caller) -> None:
    found = caller.aggregate(
        "shop/logs ü", "load", start=datetime(2026, 3, 25, 10, tzinfo=UTC), end="2026-03-25T10:02:00Z", interval="1m",
        group_by=["service"], measures=["requests"], q="ms:<90",
    )  # fmt: skip
    assert found.coverage.complete and found.start == "2026-03-25T10:00:00.000Z"
    counted = {
        (bucket.start[14:16], group.key["service"]): group.measures["requests"]["count"]
        for bucket in found.buckets
        for group in bucket.groups
    }
    requested: dict[tuple[str, str], int] = {}
    for one in LOGS[:9]:
        place = (str(one["time"])[14:16], str(one["service"]))
        if place[0] < "02":
            requested[place] = requested.get(place, 0) + 1
    assert counted == requested
    milliseconds = 1774432800000
    whole = caller.aggregate("shop/logs ü", "load", start=milliseconds, end=milliseconds + 60_000, interval="1m")
    assert whole.buckets[0].groups[0].measures["latency"]["max"] == 90
    with pytest.raises(ValueError, match="zone"):
        caller.aggregate("shop/logs ü", "load", start=datetime(2026, 1, 1), end=0, interval="1m")


def test_keys(caller: Caller, name: str) -> None:
    caller.put_stream(name)
    with pytest.raises(InvalidRequest):
        caller.list_routing_keys(name)
    caller.update_schema(name, routing_key={"jsonPointer": "/cart", "required": True})
    carts = [f"cart {n:02}/ü" for n in range(7)]
    caller.append_stream(name, [{"cart": cart} for cart in [*carts, *carts]])
    page = caller.list_routing_keys(name, limit=3)
    assert (page.keys, page.next_after) == (carts[:3], carts[2])
    assert page.coverage.complete
    assert caller.list_routing_keys(name, after=carts[4]).keys == carts[5:]
    assert caller.collect("all_routing_keys", name, page_size=2) == carts
    assert caller.read_stream(name, key=carts[6]).values == [{"cart": carts[6]}] * 2


def test_filtered_reads(caller: Caller) -> None:
    page = caller.read_stream("shop/logs ü", filter="service:a -ms:<40")
    assert [one["ms"] for one in page.values] == [40, 60, 80]
    assert page.up_to_date and not page.scan_limited
    with pytest.raises(InvalidRequest):
        caller.read_stream("shop/logs ü", filter="word3")
    with pytest.raises(ValueError, match="long-poll"):
        caller.collect("tail_stream", "shop/logs ü", filter="service:a", live="sse")


def test_a_filtered_tail_waits_for_what_matches(caller: Caller, name: str) -> None:
    caller.put_stream(name)
    caller.update_schema(name, schema={"type": "object"}, search=SEARCH)
    caller.append_stream(name, LOGS)
    seen: list[Any] = []

    def tail() -> None:
        for page in caller.collect("tail_stream", name, filter="service:b ms:>=50"):
            seen.extend(one["ms"] for one in page.values)

    tailing = threading.Thread(target=tail)
    tailing.start()
    caller.append_stream(name, [{"service": "b", "ms": 1}, {"service": "b", "ms": 1000}], close=True)
    tailing.join(PATIENCE_S)
    assert not tailing.is_alive()
    assert seen == [50, 70, 90, 1000]


def test_details_and_waiting_for_news_of_a_stream(caller: Caller, name: str) -> None:
    caller.put_stream(name, [1, 2])
    details = caller.get_stream_details(name)
    stream = details.stream
    assert (stream.name, stream.next_offset, stream.ttl_seconds, stream.closed) == (name, "2", None, False)
    assert details.profile == StreamProfile("generic") and details.schema.current_version == 0
    assert caller.get_stream_details(name, etag=details.etag) is None
    assert caller.get_stream_details(name, etag=details.etag, wait_ms=1) is None
    status = caller.get_index_status(name)
    assert (status.stream, status.segments["total_count"], status.search_families) == (name, 0, [])
    news: list[Any] = []
    waiting = threading.Thread(
        target=lambda: news.append(caller.get_stream_details(name, etag=details.etag, wait_ms=25_000))
    )
    waiting.start()
    caller.append_stream(name, [3])
    waiting.join(PATIENCE_S)
    assert [one.stream.next_offset for one in news] == ["3"]
    assert caller.get_index_status(name, etag=status.etag) is None
    with pytest.raises(TypeError, match="etag"):
        caller.get_stream_details(name, wait_ms=5)
    caller.delete_stream(name)
    with pytest.raises(TopicNotFound):
        caller.get_stream_details(name, etag=details.etag, wait_ms=25_000)


def test_details_of_the_server(caller: Caller) -> None:
    assert "configured_limits" in caller.server_details()
    assert "process" in caller.server_memory()


TEMPLATE = TouchTemplate("posts", {"userId": "string", "tenantId": "int64"})


def change(user: str, tenant: int, text: str) -> dict[str, Any]:
    value = {"userId": user, "tenantId": tenant, "text": text}
    return {"type": "posts", "key": "1", "value": value, "headers": {"operation": "insert"}}


def test_touches(caller: Caller, name: str) -> None:
    caller.put_stream(name)
    with pytest.raises(NotFound):
        caller.get_touch_state(name)
    caller.set_profile(name, {"kind": "state-protocol", "touch": {"enabled": True}})
    assert caller.activate_templates(name, [TEMPLATE]).active == [TEMPLATE.id]
    state = caller.get_touch_state(name, settle=True)
    assert state.settled and state.active_templates == 1
    key = TEMPLATE.watch_key(userId="ann", tenantId=7)
    caller.append_stream(name, [change("bob", 7, "x")])
    other = caller.wait_for_touch(name, [key], cursor=state.cursor, templates=[TEMPLATE], timeout_ms=0)
    caller.get_touch_state(name, settle=True)
    other = caller.wait_for_touch(name, [key], cursor=state.cursor, templates=[TEMPLATE], timeout_ms=0)
    assert (other.touched, other.stale) == (False, False)
    caller.append_stream(name, [change("ann", 7, "x")])
    touched = caller.wait_for_touch(name, [key], cursor=other.cursor, templates=[TEMPLATE], timeout_ms=60_000)
    assert touched.touched and touched.cursor != other.cursor
    assert caller.wait_for_touch(name, tables=["posts"], cursor=state.cursor, timeout_ms=0).touched
    assert caller.wait_for_touch(name, [key], cursor="0" * 16 + ":5", timeout_ms=0).stale


def test_the_keys_of_touches_are_those_of_the_server() -> None:
    """The checked values of the protocol's notes."""
    template = TouchTemplate("posts", {"tenantId": "string", "userId": "string"})
    assert template.id == "940145c39e0c6eca"
    assert TouchTemplate("posts", {"userId": "string", "tenantId": "string"}).id == template.id
    key = template.watch_key(userId="123", tenantId="t1")
    assert key == template.watch_key(tenantId="t1", userId="123") == "c385bc18a683a909"
    todos = TouchTemplate("public.todos", {"tenantId": "string", "status": "string"})
    assert todos.watch_key(tenantId="t1", status="open") == "0af6023939b30f26"
    assert todos.membership_key(tenantId="t1", status="open") == "a7b1b1fd3cfa6ed1"
    assert todos.projection_key("title", tenantId="t1", status="open") == "0848fb073b348b65"
    with pytest.raises(TypeError, match="tenantId, userId"):
        template.watch_key(tenantId="t")
    with pytest.raises(ValueError, match="int64"):
        TEMPLATE.watch_key(userId="ann", tenantId="seven")


def test_a_subscription_from_its_creation_to_its_end(caller: Caller, name: str) -> None:
    id = f"sub {name}"
    caller.put_stream(f"{name}/wakes")
    caller.put_stream(f"{name}/a", [1])
    made = caller.put_subscription(id, streams=[f"{name}/a"], wake_stream=f"{name}/wakes", lease_ttl_ms=60_000)
    assert (made.id, made.type, made.status, made.lease_ttl_ms) == (id, "pull-wake", "idle", 60_000)
    with pytest.raises(StateRefused) as nothing:
        caller.claim_wake(id)
    assert nothing.value.code == "NO_PENDING_WORK"
    caller.put_stream(f"{name}/b")
    caller.link_streams(id, [f"{name}/b"])
    caller.append_stream(f"{name}/a", [2])
    wake = caller.claim_wake(id, "me")
    assert caller.get_subscription(id).status == "claimed"
    ends = {one.path: one.tail_offset for one in wake.streams if one.has_pending}
    assert set(ends) == {f"{name}/a"}
    caller.release_wake(id, wake)
    with pytest.raises(ApiError):
        caller.ack_wake(id, wake, ends)
    again = caller.claim_wake(id)
    assert again.generation > wake.generation
    assert not caller.ack_wake(id, again, ends, done=True).next_wake
    caller.unlink_stream(id, f"{name}/b")
    assert [one.path for one in caller.get_subscription(id).streams] == [f"{name}/a"]
    caller.delete_subscription(id)
    with pytest.raises(StateRefused):
        caller.get_subscription(id)
    with pytest.raises(TypeError, match="one of them"):
        caller.put_subscription(id, pattern="x/*")


def test_who_asks(caller: Caller) -> None:
    mine = caller.whoami()
    assert (mine.keys_required, mine.key.prefixes) == (False, []) and mine.limits["max_topics"] > 0


def test_a_token_stands_for_a_key(tmp_path: Path) -> None:
    with (
        LiveServer(tmp_path, api_keys="boss,reader:read:shop.") as server,
        Client(server.url, api_key="reader", options=PATIENT) as client,
    ):
        assert client.whoami().key.prefixes == ["shop."]
        assert client.create_token(ttl_ms=1000).token


PARTIAL = {
    "stream": "s", "took_ms": 3, "timed_out": True, "timeout_ms": 3, "coverage": {"complete": False},
    "total": {"value": 0, "relation": "gte"}, "hits": [], "next_search_after": None,
}  # fmt: skip


def test_time_that_ran_out_is_a_page_and_a_late_server_an_error() -> None:
    refused = {"error": {"code": "request_timeout", "message": "late"}}
    with running([answers(http(PARTIAL, status="408 Request Timeout"))]) as server, Client(server.url) as client:
        page = client.search("s", "a")
        assert page.timed_out and not page.coverage.complete
    for body, error in ((refused, RequestTimeout), (["?"], UnexpectedAnswer)):
        acts = [answers(http(body, status="408 Request Timeout"))]
        with running(acts) as server, Client(server.url) as client, pytest.raises(error):
            client.search("s", "a")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_questions_are_asked_again_when_the_answer_is_lost(kind: str) -> None:
    quick = ClientOptions(retry=RetryPolicy(deadline_s=30, backoff_min_s=0.001))
    page = http({**PARTIAL, "timed_out": False})
    with running([resets, answers(page[: len(page) // 2]), answers(page)]) as server:
        assert not Caller(kind, server.url, options=quick).search("s", "a").timed_out
        assert len(server.asked) == 3
    unavailable = http(
        {"error": {"code": "unavailable", "message": "later", "detail": {"reason": "search_unavailable"}}},
        status="503 Service Unavailable",
    )
    with running([answers(unavailable, page)]) as server:
        assert Caller(kind, server.url, options=quick).search("s", "a").hits == []


def test_an_update_of_unknown_fate_is_sent_again_only_where_that_does_no_harm() -> None:
    quick = ClientOptions(retry=RetryPolicy(deadline_s=30, backoff_min_s=0.001))
    registry = {"schema": "s", "currentVersion": 1}
    with running([resets, answers(http(registry))]) as server, Client(server.url, options=quick) as client:
        with pytest.raises(ConnectionFailed) as failed:
            client.update_schema("s", schema={"type": "object"})
        assert failed.value.maybe_done
    with running([resets, answers(http(registry))]) as server, Client(server.url, options=quick) as client:
        assert client.update_schema("s", routing_key=None).current_version == 1


def test_search_is_inferred_and_installed(caller: Caller, name: str) -> None:
    caller.put_stream(name)
    caller.append_stream(
        name, [{"msg": "card declined", "user": {"id": n}, "mixed": (n, "x")[n % 2]} for n in range(4)]
    )
    found = caller.infer_search(name, entries=3)
    assert found.search == {"fields": {"msg": "text", "user.id": "integer"}}
    assert found.sampled["entries"] == 3
    assert [(one.pointer, one.reason) for one in found.skipped] == [("/mixed", "is keyword and integer")]
    assert caller.update_schema(name, search=found.search).current_version == 0
    assert [
        hit.source["user"]["id"] for hit in caller.search(name, "declined user.id:>1", sort=["user.id:asc"]).hits
    ] == [
        2,
        3,
    ]
