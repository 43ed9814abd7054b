"""Schemas, lenses, routing keys and profiles over the wire, and their effect on both protocols."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.api.sockets import open_socket
from tests.http.live import LiveServer, wait_until_ready
from tests.http.streams.conftest import append, create, offset_of
from tests.http.streams.test_read import events
from tests.unit.streams.describing import JSON, NUMBERED, RENAMED, lens, rename

KEY = {"jsonPointer": "/key", "required": False}


@pytest.fixture
def described(http: httpx.Client, path: str) -> str:
    """A stream with the schema `NUMBERED`."""
    create(http, path, JSON)
    assert http.post(f"{path}/_schema", json={"schema": NUMBERED}).status_code == 200
    return path


def evolve(http: httpx.Client, path: str) -> httpx.Response:
    name = path.removeprefix("/v1/stream/")
    return http.post(f"{path}/_schema", json={"schema": RENAMED, "lens": lens(name, 1, rename("/id", "/number"))})


def put(http: httpx.Client, path: str, *values: object) -> httpx.Response:
    return append(http, path, json.dumps(list(values)).encode(), JSON)


def detail_of(response: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = response.json()["error"]["detail"]
    return found


def test_missing_schemas_and_invalid_updates(http: httpx.Client, path: str) -> None:
    for part in ("_schema", "_profile"):
        assert http.get(f"{path}/{part}").status_code == 404
        assert http.post(f"{path}/{part}", json={"schema": {}, "profile": {"kind": "generic"}}).status_code in (
            400,
            404,
        )
        assert http.put(f"{path}/{part}", json={}).status_code == 405
        assert http.delete(f"{path}/{part}").status_code == 405


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b"null", b"{}", b'{"schema":5}', b'{"schema":{"$ref":"#"}}', b'{"lens":{}}',
        b'{"schema":{"type":"nothing"}}', b'{"routingKey":{"jsonPointer":"k","required":true}}',
        b'{"routingKey":{"jsonPointer":"/k"}}', b'{"schema":{},"lenses":{}}', b'{"apiVersion":"v9","schema":{}}',
    ],
)  # fmt: skip
def test_updates_that_are_none_change_nothing(http: httpx.Client, path: str, body: bytes) -> None:
    create(http, path, JSON)
    before = http.get(f"{path}/_schema").json()
    assert http.post(f"{path}/_schema", content=body).status_code == 400
    assert http.get(f"{path}/_schema").json() == before


def test_the_parts_of_a_registry_are_changed_one_by_one(http: httpx.Client, described: str) -> None:
    search = {
        "primaryTimestampField": "at",
        "fields": {"at": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/at"}], "column": True}},
    }
    for part in ({"routingKey": KEY}, {"search": search}):
        assert http.post(f"{described}/_schema", json=part).status_code == 200
    found = evolve(http, described).json()
    assert (found["routingKey"], found["currentVersion"]) == (KEY, 2), "what an update does not mention stays"
    assert found["search"]["primaryTimestampField"] == "at"
    for name in ("routingKey", "search"):
        found = http.post(f"{described}/_schema", json={name: None}).json()
        assert name not in found
    assert http.get(f"{described}/_schema").json() == found


def test_a_stream_of_text_and_a_closed_one_take_no_schema(http: httpx.Client, path: str) -> None:
    create(http, path)
    assert http.post(f"{path}/_schema", json={"schema": {}}).status_code == 400
    create(http, f"{path}-closed", JSON, stream_closed="true")
    assert http.post(f"{path}-closed/_schema", json={"schema": {}}).status_code == 409
    assert http.post(f"{path}-closed/_profile", json={"profile": {"kind": "evlog"}}).status_code == 409


def test_a_wrong_place_of_a_lens(http: httpx.Client, described: str) -> None:
    name = described.removeprefix("/v1/stream/")
    for document, status in (
        (lens(name, 2, rename("/id", "/number")), 409),
        (lens("other", 1, rename("/id", "/number")), 400),
        (None, 400),
    ):
        body = {"schema": RENAMED, "lens": document}
        assert http.post(f"{described}/_schema", json=body).status_code == status


def test_the_other_protocol_meets_the_schema(http: httpx.Client, server: LiveServer, name: str, described: str) -> None:
    answer = http.post(f"/v0/topics/{name}", json={"records": [{"data": {"id": 1}}, {"data": {"id": "x"}}]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert detail_of(answer)["reason"] == "schema" and detail_of(answer)["index"] == 1
    assert http.get(described).json() == []
    with open_socket(server.url) as socket:
        reported = socket.refused(
            {"op": "publish", "topic": name, "records": [{"data": {"id": "x"}}]}, "invalid_request"
        )
        assert reported["reason"] == "schema" and reported["index"] == 0
        socket.ask({"op": "publish", "topic": name, "records": [{"data": {"id": 2}}]})
    assert http.post(f"/v0/topics/{name}", json={"records": [{"data": {"id": 3}}]}).status_code == 200
    assert http.get(described).json() == [{"id": 2}, {"id": 3}]


def test_a_refusal_of_this_protocol_states_the_same(http: httpx.Client, described: str) -> None:
    answer = put(http, described, {"id": 1}, {"id": None})
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], detail_of(answer)["reason"]) == ("bad_request", "schema")
    assert detail_of(answer)["index"] == 1
    assert append(http, described, b"text").status_code == 400


def test_keys_and_tags(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, JSON)
    http.post(f"{path}/_schema", json={"routingKey": KEY | {"required": True}})
    long = "k" * 1024
    put(http, path, {"key": long}, {"key": "b"})
    assert append(http, path, b'{"key":"b"}', JSON, stream_key="b").status_code == 400
    answer = http.post(f"/v0/topics/{name}", json={"records": [{"data": {"key": "b"}, "tag": "b"}]})
    assert (answer.status_code, detail_of(answer)["reason"]) == (400, "schema")
    http.post(f"/v0/topics/{name}", json={"records": [{"data": {"key": "b", "n": 2}}]})
    assert http.get(f"{path}/pk/b").json() == [{"key": "b"}, {"key": "b", "n": 2}]
    assert http.get(path, params={"key": long}).json() == [{"key": long}]
    records = http.post(f"/v0/topics/{name}/diff", json={"include_tags": True}).json()["records"]
    assert [record["$tag"] for record in records] == [long, "b", "b"]


def test_a_router_states_what_it_cannot_forward(http: httpx.Client, name: str, described: str) -> None:
    source = f"{name}-source"
    http.put(f"/v0/topics/{source}", json={})
    http.put(f"/v0/routers/{name}", json={"source": source, "dest": name})
    http.post(f"/v0/topics/{source}", json={"records": [{"data": {"id": 1}}, {"data": {"number": 2}}]})
    # The stream promises more than its source: it waits for a sync, and no API reports the moment of the sync.
    while not (state := http.get(f"/v0/routers/{name}").json())["blocked"]:
        pass
    assert http.get(described).json() == [{"id": 1}]
    assert (state["blocked"], state["blocked_by"], state["blocked_seq"]) == (True, "schema", 2)
    evolve(http, described)
    while len(http.get(described).json()) < 2:
        pass
    assert http.get(described).json() == [{"number": 1}, {"number": 2}]
    state = http.get(f"/v0/routers/{name}").json()
    assert not state["blocked"] and "blocked_by" not in state and "blocked_seq" not in state


# Reading


def test_every_read_shows_the_current_version(http: httpx.Client, name: str, described: str) -> None:
    http.post(f"{described}/_schema", json={"routingKey": KEY})
    put(http, described, {"id": 1, "key": "k"})
    evolve(http, described)
    put(http, described, {"number": 2, "key": "k"})
    requested = [{"number": 1, "key": "k"}, {"number": 2, "key": "k"}]
    assert http.get(described).json() == requested
    assert http.get(described, params={"offset": "-1"}).json() == requested
    assert http.get(f"{described}/pk/k").json() == requested
    assert http.get(described, params={"offset": "-1", "live": "long-poll"}).json() == requested
    with http.stream("GET", described, params={"offset": "-1", "live": "sse"}) as answer:
        kind, data = next(events(answer.iter_lines()))
        assert (kind, json.loads(data)) == ("data", requested)
    assert http.get(described, params={"format": "raw"}).text == '{"id": 1, "key": "k"}{"number": 2, "key": "k"}'
    records = http.post(f"/v0/topics/{name}/diff", json={}).json()["records"]
    assert [record["data"] for record in records] == [{"id": 1, "key": "k"}, {"number": 2, "key": "k"}]


def test_a_reader_that_follows_sees_entries_as_they_are_then(http: httpx.Client, described: str) -> None:
    put(http, described, {"id": 1})
    with http.stream("GET", described, params={"offset": "-1", "live": "sse"}) as answer:
        found = events(answer.iter_lines())
        assert json.loads(next(found)[1]) == [{"id": 1}]
        next(found)
        evolve(http, described)
        put(http, described, {"number": 2})
        assert json.loads(next(found)[1]) == [{"number": 2}]
    with http.stream("GET", described, params={"offset": "-1", "live": "sse"}) as answer:
        assert json.loads(next(events(answer.iter_lines()))[1]) == [{"number": 1}, {"number": 2}]


def test_etag_changes_with_the_schema_version(http: httpx.Client, described: str) -> None:
    first = put(http, described, *({"id": number} for number in range(1500)))
    assert first.status_code == 204
    begin = http.get(described, params={"offset": "-1"})
    middle = {"offset": offset_of(begin)}
    before = http.get(described, params=middle)
    for answer in (begin, before):
        assert "immutable" not in answer.headers["cache-control"]
        assert ":v" not in answer.headers["etag"]
    evolve(http, described)
    for params, known in (({"offset": "-1"}, begin), (middle, before)):
        after = http.get(described, params=params, headers={"if-none-match": known.headers["etag"]})
        assert after.status_code == 200 and after.headers["etag"] != known.headers["etag"]
        same = http.get(described, params=params, headers={"if-none-match": after.headers["etag"]})
        assert same.status_code == 304


# Profiles


def test_a_profile_is_shown_where_streams_are(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, JSON)
    answer = http.post(f"{path}/_profile", json={"profile": {"kind": "evlog"}})
    assert answer.json() == {"apiVersion": "durable.streams/profile/v1", "profile": {"kind": "evlog"}}
    (entry,) = http.get("/v1/streams", params={"prefix": name, "limit": 1}).json()
    assert (entry["name"], entry["profile"]) == (name, "evlog")
    assert http.get(f"{path}/_schema").json()["search"]["rollups"], "evlog comes with something to add up"


def test_entries_of_a_profile_through_both_protocols(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, JSON)
    http.post(f"{path}/_profile", json={"profile": {"kind": "metrics"}})
    value = {"metric": "m", "unit": "ms", "windowStart": 1, "windowEnd": 2, "count": 1, "sum": 3}
    put(http, path, value)
    http.post(f"/v0/topics/{name}", json={"records": [{"data": value}]})
    one, two = http.get(path).json()
    assert one == two and one["seriesKey"].startswith("summary|delta|m|ms")
    assert len(http.get(path, params={"key": one["seriesKey"]}).json()) == 2
    assert put(http, path, {"metric": "m"}).status_code == 400


def test_state_changes_are_checked_and_kept_as_they_came(http: httpx.Client, path: str) -> None:
    create(http, path, JSON)
    http.post(f"{path}/_profile", json={"profile": {"kind": "state-protocol"}})
    change = b'{"type":"t","key":"k","value":{"n":1.50},"headers":{"operation":"insert"}}'
    assert append(http, path, change, JSON).status_code == 204
    assert http.get(path).content == b"[%b]" % change
    for wrong in (b"1", b"{}", b'{"headers":{"operation":"insert"}}', b'{"headers":{"control":"stop"}}'):
        assert append(http, path, wrong, JSON).status_code == 400


def test_schemas_survive_a_kill(tmp_path: Path) -> None:
    path = "/v1/stream/a"
    with LiveServer(tmp_path) as server:
        with httpx.Client(base_url=server.url) as http:
            create(http, path, JSON)
            http.post(f"{path}/_schema", json={"schema": NUMBERED, "routingKey": KEY})
            put(http, path, {"id": 1, "key": "k"})
            known = evolve(http, path).json()
            create(http, "/v1/stream/log", JSON)
            http.post("/v1/stream/log/_profile", json={"profile": {"kind": "evlog", "redactKeys": ["Pin"]}})
        server.kill()
        server.start()
        wait_until_ready(server.url)
        with httpx.Client(base_url=server.url) as http:
            assert http.get(f"{path}/_schema").json() == known
            assert http.get(f"{path}/pk/k").json() == [{"number": 1, "key": "k"}]
            assert put(http, path, {"id": 1}).status_code == 400
            assert http.get("/v1/stream/log/_profile").json()["profile"] == {"kind": "evlog", "redactKeys": ["pin"]}


def test_a_repeated_key_is_compared_with_what_was_sent_where_that_is_known(
    http: httpx.Client, name: str, path: str
) -> None:
    """A profile stores its own form of an entry, with the time of then; to send the same again is not a mistake."""
    http.put(path, headers={"content-type": "application/json"})
    assert http.post(f"{path}/_profile", json={"profile": {"kind": "evlog"}}).status_code == 200
    records = [{"data": {"level": "info", "message": "hello"}}]
    body = {"records": records, "idempotency_key": "k"}
    assert http.post(f"/v0/topics/{name}", json=body).json()["deduped"] is False
    again = http.post(f"/v0/topics/{name}", json={**body, "idempotency_check": True})
    assert (again.status_code, again.json()["deduped"]) == (200, True)
    more = http.post(f"/v0/topics/{name}", json={**body, "records": records * 2, "idempotency_check": True})
    assert more.status_code == 409


def test_whole_exports_of_traces_are_taken_apart(http: httpx.Client, path: str) -> None:
    """One request is one batch: the spans of an export are there together, or none of them is."""
    create(http, path, JSON)
    assert http.post(f"{path}/_profile", json={"profile": {"kind": "otel-traces"}}).is_success
    trace = "5b8efff798038103d269b633813fc60c"

    def export(*ids: str) -> dict[str, Any]:
        spans = [
            {"traceId": trace, "spanId": span, "name": "n", "kind": 2, "startTimeUnixNano": "1772020800000000000",
             "endTimeUnixNano": "1772020800001000000"}
            for span in ids
        ]  # fmt: skip
        resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "checkout"}}]}
        return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "s"}, "spans": spans}]}]}

    assert http.post(path, json=export("00f067aa0ba902b7", "00f067aa0ba902b8")).status_code == 204
    stored = http.get(f"{path}/pk/{trace}").json()
    assert [(one["spanId"], one["service"]) for one in stored] == [
        ("00f067aa0ba902b7", "checkout"), ("00f067aa0ba902b8", "checkout"),
    ]  # fmt: skip
    bad = http.post(path, json=export("00f067aa0ba902b9", "no id"))
    assert bad.status_code == 400 and bad.json()["error"]["detail"]["index"] == 1
    assert http.post(path, json={"resourceSpans": []}).status_code == 400
    many = export(*[f"{number:016x}" for number in range(1, 3001)])
    assert http.post(path, json=many).status_code == 204, "larger than one entry may be"
    assert http.get(f"{path}/_details").json()["stream"]["next_offset"] == "3002"
