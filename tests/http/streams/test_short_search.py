"""Search fields in the short form, and their inference, on a real server."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.live import LiveServer, wait_until_ready
from tests.http.streams.conftest import append, create
from tests.unit.streams.describing import JSON, NUMBERED, RENAMED, lens, rename

FIELDS = {"msg": "text", "status": "integer", "time": "date", "user.name": "keyword", "ok": "bool", "ms": "float"}
LOGS: list[dict[str, Any]] = [
    {
        "msg": f"card {('paid', 'declined')[n % 2]} {n}", "status": 200 + n, "time": f"2026-03-25T10:00:0{n}Z",
        "user": {"name": f"u{n % 3}"}, "ok": n % 2 == 0, "ms": n / 2,
    }
    for n in range(8)
]  # fmt: skip


@pytest.fixture
def logs(http: httpx.Client, path: str) -> str:
    """A stream with entries and without a schema."""
    create(http, path, JSON)
    put(http, path, *LOGS)
    return path


def put(http: httpx.Client, path: str, *values: object) -> None:
    assert append(http, path, json.dumps(list(values)).encode(), JSON).status_code == 204


def install(http: httpx.Client, path: str, search: dict[str, Any]) -> dict[str, Any]:
    answer = http.post(f"{path}/_schema", json={"search": search})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def statuses(http: httpx.Client, path: str, q: str, *sort: str) -> list[int]:
    answer = http.post(f"{path}/_search", json={"q": q, "sort": sort or ["offset:asc"]})
    assert answer.status_code == 200, answer.text
    return [hit["source"]["status"] for hit in answer.json()["hits"]]


def refusal(answer: httpx.Response) -> str:
    assert answer.status_code == 400, answer.text
    message: str = answer.json()["error"]["message"]
    return message


def test_short_fields_search_entries_written_before_and_after(http: httpx.Client, logs: str) -> None:
    registry = install(http, logs, {"fields": FIELDS})
    assert (registry["currentVersion"], registry["search"]["primaryTimestampField"]) == (0, "time")
    assert registry["search"]["fields"]["user.name"]["bindings"] == [{"version": 1, "jsonPointer": "/user/name"}]
    put(http, logs, LOGS[0] | {"status": 300})
    assert statuses(http, logs, "declined") == [201, 203, 205, 207]
    assert statuses(http, logs, 'msg:"card declined" status:>203') == [205, 207]
    assert statuses(http, logs, "user.name:u1 OR user.name:u2*", "status:desc") == [207, 205, 204, 202, 201]
    assert statuses(http, logs, 'ok:true ms:>=2 time:<"2026-03-25T10:00:06Z"') == [204]
    assert statuses(http, logs, "contains:clin -status:201", "time:asc") == [203, 205, 207]
    assert statuses(http, logs, "card", "time:desc")[0] == 207
    assert statuses(http, logs, "status:300") == [300]
    filtered = http.get(f"{logs}?filter=status:>206").json()
    assert [entry["status"] for entry in filtered] == [207, 300]
    sums = {"measures": {"ms": {"kind": "summary", "field": "ms"}}, "group_by": ["user.name"]}
    body: dict[str, Any] = {"from": "2026-03-25T10:00:00Z", "to": "2026-03-25T10:01:00Z", "interval": "1m", **sums}
    (bucket,) = http.post(f"{logs}/_aggregate", json=body).json()["buckets"]
    assert {group["key"]["user.name"] for group in bucket["groups"]} == {"u0", "u1", "u2"}


def test_registry_with_short_fields_is_taken_back_as_it_is_shown(http: httpx.Client, logs: str) -> None:
    for fields in (FIELDS, {"status": "integer"}):
        shown = install(http, logs, {"fields": fields})["search"]
        assert install(http, logs, shown)["search"] == shown
    install(http, logs, {"fields": {"status": "integer"}})
    cleared = http.post(f"{logs}/_schema", json={"search": None}).json()
    assert "search" not in cleared


def test_short_and_long_fields_mix(http: httpx.Client, logs: str) -> None:
    code = {"kind": "integer", "bindings": [{"version": 1, "jsonPointer": "/status"}], "exact": True}
    search = {"fields": {"msg": "text", "code": code}, "aliases": {"m": "msg"}, "defaultFields": [{"field": "code"}]}
    shown = install(http, logs, search)["search"]
    assert shown["fields"]["code"] == code
    assert shown["fields"]["msg"]["analyzer"] == "unicode_word_v1"
    assert statuses(http, logs, "203") == [203]
    assert "is not a column" in refusal(http.post(f"{logs}/_search", json={"q": "code:>5"}))


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"fields": {"a": "int"}}, '"int" is not a kind of field. Use keyword, text, integer, float, date or bool'),
        ({"fields": {"a": ""}}, "is not a kind of field"),
        ({"fields": {"a": 5}}, "search.fields.a"),
        ({"fields": {"a b": "text"}}, "is not a name"),
        ({"fields": {}}, "search.primaryTimestampField"),
        ({"fields": {"a": "text"}, "primaryTimestampField": "a"}, "must name a declared field of kind date"),
        ({"fields": {"a": "text"}, "rollups": {"r": {"intervals": ["1m"], "measures": {"n": {"kind": "count"}}}}},
         "rollups.r.timestampField must name a declared field"),
        ({"fields": {f"f{n}": "text" for n in range(257)}}, "has more than 256 members"),
    ],
)  # fmt: skip
def test_bad_short_field_is_refused_and_changes_nothing(
    http: httpx.Client, logs: str, search: dict[str, Any], message: str
) -> None:
    before = http.get(f"{logs}/_schema").json()
    assert message in refusal(http.post(f"{logs}/_schema", json={"search": search}))
    assert http.get(f"{logs}/_schema").json() == before


def test_long_form_without_a_schema_is_refused_as_in_the_protocol(http: httpx.Client, logs: str) -> None:
    at = {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/time"}], "column": True}
    search = {"primaryTimestampField": "at", "fields": {"at": at}}
    assert "requires an installed schema version" in refusal(http.post(f"{logs}/_schema", json={"search": search}))
    assert "primaryTimestampField" in refusal(http.post(f"{logs}/_schema", json={"search": {"fields": {"at": at}}}))


def test_streams_with_and_without_a_time_are_searched_together(http: httpx.Client, path: str) -> None:
    for name, fields in (("a", {"n": "integer", "at": "date"}), ("b", {"n": "integer"}), ("c", {"n": "integer"})):
        create(http, f"{path}.{name}", JSON)
        install(http, f"{path}.{name}", {"fields": fields})
        put(http, f"{path}.{name}", {"n": 1, "at": "2026-01-01"}, {"n": 1, "at": "2026-01-02"})
    found: list[str] = []
    body: dict[str, Any] = {"streams": f"{path.removeprefix('/v1/stream/')}.*", "q": "n:1", "size": 2}
    while True:
        page = http.post("/v1/_search", json=body).json()
        found += [hit["stream"][-1] + hit["source"]["at"][-1] for hit in page["hits"]]
        if not page["next_search_after"]:
            break
        body["search_after"] = page["next_search_after"]
    # Null is the greatest value, so that entries without a time come first.
    assert found == ["b2", "b1", "c2", "c1", "a2", "a1"]


def test_aggregation_without_any_date_names_the_missing_field(http: httpx.Client, logs: str) -> None:
    install(http, logs, {"fields": {"status": "integer"}})
    body: dict[str, Any] = {"from": 0, "to": 10, "interval": "1m", "measures": {"n": {"kind": "count"}}}
    assert "timestamp_field must be given" in refusal(http.post(f"{logs}/_aggregate", json=body))


def test_short_fields_survive_a_restart(tmp_path: Path) -> None:
    path = "/v1/stream/shop/logs"
    with LiveServer(tmp_path) as server, httpx.Client(base_url=server.url, timeout=30.0) as http:
        create(http, path, JSON)
        put(http, path, *LOGS)
        install(http, path, {"fields": {"msg": "text", "status": "integer"}})
        for stop in (server.kill, server.stop):
            stop()
            server.start()
            wait_until_ready(server.url)
            assert statuses(http, path, "declined status:>=205") == [205, 207]


def test_inference_proposes_what_the_update_takes_and_changes_nothing(http: httpx.Client, logs: str) -> None:
    before = http.get(f"{logs}/_schema").json()
    answer = http.post(f"{logs}/_schema/infer")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["search"] == {"fields": FIELDS | {"user.name": "keyword"}, "primaryTimestampField": "time"}
    assert found["sampled"]["entries"] == found["sampled"]["objects"] == 8 and found["skipped"] == []
    assert http.get(f"{logs}/_schema").json() == before
    install(http, logs, found["search"])
    assert statuses(http, logs, "paid user.name:u0") == [200, 206]


def test_inference_looks_at_the_newest_entries(http: httpx.Client, path: str) -> None:
    create(http, path, JSON)
    put(http, path, *({"old": n} for n in range(50)))
    put(http, path, {"new": 1}, {"new": 2})
    assert http.post(f"{path}/_schema/infer", json={"entries": 2}).json()["search"] == {"fields": {"new": "integer"}}
    # Entries of half a megabyte each: one or two of them fit into a sample.
    for n in range(6):
        put(http, path, {f"large{n}": "x" * 500_000})
    found = http.post(f"{path}/_schema/infer", json={"entries": 1000}).json()
    assert found["sampled"]["bytes"] <= 1_100_000
    assert list(found["search"]["fields"])[-1] == "large5"


def test_inference_sees_entries_in_the_current_version(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, JSON)
    assert http.post(f"{path}/_schema", json={"schema": NUMBERED}).status_code == 200
    put(http, path, {"id": 1})
    evolved = {"schema": RENAMED, "lens": lens(name, 1, rename("/id", "/number"))}
    assert http.post(f"{path}/_schema", json=evolved).status_code == 200
    assert http.post(f"{path}/_schema/infer").json()["search"] == {"fields": {"number": "integer"}}


def test_inference_on_an_empty_stream_of_a_name_with_slashes_proposes_nothing(http: httpx.Client, path: str) -> None:
    create(http, f"{path}/a/b", JSON)
    found = http.post(f"{path}/a/b/_schema/infer").json()
    assert (found["search"], found["sampled"]) == ({"fields": {}}, {"entries": 0, "objects": 0, "bytes": 2})


def test_inference_refuses_what_it_cannot_do(http: httpx.Client, path: str, logs: str) -> None:
    assert http.post(f"{path}-none/_schema/infer").status_code == 404
    assert http.get(f"{logs}/_schema/infer").status_code == 405
    create(http, f"{path}-text")
    assert "application/json" in refusal(http.post(f"{path}-text/_schema/infer"))
    bad: list[object] = [0, 1001, "all", True, None, 1.5]
    for body in [*({"entries": count} for count in bad), {"first": 5}, []]:
        refusal(http.post(f"{logs}/_schema/infer", json=body))
    assert http.put(f"{path}/x/_schema/infer", headers={"content-type": JSON}).status_code == 405
