"""PUT, GET, list and DELETE of topics: each field, default, clamp, status and refusal."""

import base64
import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.http.api.conftest import Append, refused
from topics.api.v0.request_parsing import read_cursor, write_cursor

DEFAULTS: dict[str, Any] = {
    "type": "log", "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "discard": "old", "durable": False,
    "durability": "disk", "priority": None, "auto_priority": True, "auto_create": True,
    "idempotency_window_ms": 120000, "dedupe_node": True, "lease_ms": 30000, "claim_jitter_ms": 0,
    "max_deliveries": 0, "dead_letter": None, "leases_durable": False, "retain_for_consumers": 0,
    "max_per_second": 0, "max_leased": 0, "fair_tags": False, "result_retention_ms": 0,
}  # fmt: skip


def put(api: httpx.Client, name: str, **config: object) -> httpx.Response:
    return api.put(f"/v0/topics/{name}", json=config)


def test_a_new_topic_is_created_with_every_default(api: httpx.Client, name: str) -> None:
    answer = put(api, name)
    body = answer.json()
    assert answer.status_code == 201
    assert (body["topic"], body["created"], body["config"]) == (name, True, DEFAULTS)
    assert body["performance"]["server_total_ms"] >= 0


def test_an_empty_body_needs_no_content_type(api: httpx.Client, name: str) -> None:
    assert api.put(f"/v0/topics/{name}").status_code == 201


def test_the_same_put_again_changes_nothing(api: httpx.Client, name: str) -> None:
    put(api, name, ttl_ms=5)
    answer = put(api, name, ttl_ms=5)
    assert (answer.status_code, answer.json()["created"]) == (200, False)


def test_a_put_replaces_the_whole_config(api: httpx.Client, name: str) -> None:
    put(api, name, ttl_ms=5, cap_records=9)
    assert put(api, name, cap_records=7).json()["config"] == {**DEFAULTS, "cap_records": 7}


def test_a_put_without_a_type_keeps_a_queue_a_queue(api: httpx.Client, name: str) -> None:
    put(api, name, type="queue")
    answer = put(api, name)
    assert (answer.status_code, answer.json()["config"]["type"]) == (200, "queue")


def test_a_type_never_changes(api: httpx.Client, name: str) -> None:
    put(api, name, type="queue")
    detail = refused(put(api, name, type="log"), 409, "topic_exists_incompatible")
    assert detail == {"topic": name, "existing_type": "queue", "requested_type": "log"}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"lease_ms": 1}, {"lease_ms": 100}),
        ({"lease_ms": 10**12}, {"lease_ms": 86_400_000}),
        ({"claim_jitter_ms": 9999}, {"claim_jitter_ms": 5000}),
        ({"priority": 5000}, {"priority": 5000}),
        ({"durable": True}, {"durable": True, "durability": "fsync"}),
        ({"durable": True, "durability": "disk"}, {"durable": False, "durability": "disk"}),
        ({"durability": "fsync"}, {"durable": True, "durability": "fsync"}),
        ({"durability": "memory"}, {"durable": False, "durability": "memory"}),
        ({"durability": "ephemeral"}, {"durable": False, "durability": "ephemeral"}),
        ({"dead_letter": "elsewhere", "max_deliveries": 3}, {"dead_letter": "elsewhere", "max_deliveries": 3}),
        ({"ttl_ms": 2**64 - 1}, {"ttl_ms": 2**64 - 1}),
        ({"nobody_knows": 1}, {}),
    ],
)
def test_what_is_kept_of_a_config(api: httpx.Client, name: str, given: dict[str, Any], kept: dict[str, Any]) -> None:
    config = put(api, name, **given).json()["config"]
    assert config == {**DEFAULTS, **kept}


_NUMBERS = (
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "idempotency_window_ms",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
)
_SWITCHES = ("durable", "auto_priority", "auto_create", "dedupe_node", "leases_durable")
_NO_NUMBERS: tuple[Any, ...] = (-1, 2**64, 1.5, "1", True, None, [])
_NO_SWITCHES: tuple[Any, ...] = (0, "true", None, {})
_BAD_FIELDS: list[tuple[str, Any]] = [
    *((field, value) for field in _NUMBERS for value in _NO_NUMBERS),
    *((field, value) for field in _SWITCHES for value in _NO_SWITCHES),
    *((field, value) for field in ("type", "discard", "durability") for value in ("other", 1, None)),
    *(("priority", value) for value in (2**31, -(2**31) - 1, "high", 1.5)),
    *(("dead_letter", value) for value in (5, "", "no spaces", "-dash")),
]


@pytest.mark.parametrize(("field", "value"), _BAD_FIELDS)
def test_a_bad_field_is_refused_and_creates_nothing(api: httpx.Client, name: str, field: str, value: object) -> None:
    refused(put(api, name, **{field: value}), 400, "invalid_request")
    refused(api.get(f"/v0/topics/{name}"), 404, "topic_not_found")


def test_a_topic_is_not_its_own_dead_letter(api: httpx.Client, name: str) -> None:
    assert refused(put(api, name, type="queue", dead_letter=name), 400, "invalid_request")["dead_letter"] == name


@pytest.mark.parametrize("bad", ["-x", ".x", "a b", "a/b", "é", "x" * 256, "a\n", "a*"])
def test_a_bad_name_is_refused(api: httpx.Client, bad: str) -> None:
    path = "/v0/topics/" + "".join(f"%{byte:02x}" for byte in bad.encode())
    refused(api.put(path, json={}), 400, "invalid_request")
    refused(api.post(path, json={"records": [{"data": 1}]}), 400, "invalid_request")
    refused(api.get(path), 404, "topic_not_found")


@pytest.mark.parametrize("good", ["a", "9", "x" * 255, "render-queue:tenantA", "A.b_c:d-e"])
def test_a_good_name_is_taken_also_when_encoded(api: httpx.Client, good: str) -> None:
    encoded = "".join(f"%{byte:02X}" for byte in good.encode())
    assert api.put(f"/v0/topics/{encoded}", json={}).json()["topic"] == good
    assert api.get(f"/v0/topics/{good}").status_code == 200


def test_the_state_of_a_fresh_topic(api: httpx.Client, name: str) -> None:
    put(api, name)
    body = api.get(f"/v0/topics/{name}?touch=false").json()
    body.pop("performance")
    assert body.pop("epoch") > 0
    assert body == {
        "topic": name, "type": "log", "head_seq": 0, "earliest_seq": 1, "next_seq": 1, "count": 0, "bytes": 0,
        "config": DEFAULTS, "effective_priority": 0, "last_write_ts": None, "last_read_ts": None,
    }  # fmt: skip


def test_touching_counts_as_consuming(api: httpx.Client, name: str) -> None:
    put(api, name)
    assert api.get(f"/v0/topics/{name}").json()["effective_priority"] == 500
    assert api.get(f"/v0/topics/{name}?touch=false").json()["last_read_ts"] is not None


def test_a_manual_priority_is_clamped_where_it_counts(api: httpx.Client, name: str) -> None:
    put(api, name, priority=5000)
    assert api.get(f"/v0/topics/{name}").json()["effective_priority"] == 1000


def test_a_queue_reports_its_counters(api: httpx.Client, name: str, append: Append) -> None:
    put(api, name, type="queue")
    append(1, 2)
    body = api.get(f"/v0/topics/{name}").json()
    assert (body["type"], body["queue"]) == ("queue", {"ready": 2, "in_flight": 0, "delayed": 0, "dead_lettered": 0})


def test_the_state_counts_records_and_bytes(api: httpx.Client, name: str, append: Append) -> None:
    append("ab", [1, 2])
    body = api.get(f"/v0/topics/{name}").json()
    assert (body["head_seq"], body["earliest_seq"], body["next_seq"], body["count"]) == (2, 1, 3, 2)
    # The client of this test sends compact JSON: "ab" and [1,2].
    assert body["bytes"] == 4 + 5
    assert body["last_write_ts"] is not None


def test_pages_of_topics_by_name(api: httpx.Client, name: str) -> None:
    for number in range(5):
        put(api, f"{name}:{number}")
    first = api.get("/v0/topics", params={"prefix": f"{name}:", "page_size": 2}).json()
    assert [topic["topic"] for topic in first["topics"]] == [f"{name}:0", f"{name}:1"]
    assert set(first["topics"][0]) == {
        "topic", "head_seq", "earliest_seq", "count", "bytes", "durable", "effective_priority", "epoch",
    }  # fmt: skip
    seen, cursor = [], ""
    while True:
        params: dict[str, str | int] = {"prefix": f"{name}:", "page_size": 2, "cursor": cursor}
        page = api.get("/v0/topics", params=params).json()
        seen += [topic["topic"] for topic in page["topics"]]
        if "next_cursor" not in page:
            break
        cursor = page["next_cursor"]
        assert quote(cursor, safe="") == cursor
    assert seen == [f"{name}:{number}" for number in range(5)]


@pytest.mark.parametrize("after", ["a>", "a?>>", "ab", "abc", "a" * 255])
def test_a_list_cursor_is_safe_in_a_url_and_one_of_an_earlier_release_is_read(after: str) -> None:
    cursor = write_cursor(after)
    assert quote(cursor, safe="") == cursor and read_cursor(cursor) == after
    earlier = base64.b64encode(json.dumps({"after": after}).encode()).decode()
    assert read_cursor(earlier) == read_cursor(earlier.replace("+", " ")) == after


@pytest.mark.parametrize(("size", "count"), [("0", 1), ("1", 1), ("2000", 3), ("", 3)])
def test_the_page_size_is_clamped(api: httpx.Client, name: str, size: str, count: int) -> None:
    for number in range(3):
        put(api, f"{name}:{number}")
    page = api.get("/v0/topics", params={"prefix": f"{name}:", "page_size": size}).json()
    assert len(page["topics"]) == count


@pytest.mark.parametrize("size", ["-1", "x", "1.5"])
def test_a_bad_page_size_is_refused(api: httpx.Client, size: str) -> None:
    refused(api.get("/v0/topics", params={"page_size": size}), 400, "invalid_request")


@pytest.mark.parametrize("cursor", ["!", "eA==", base64.b64encode(b'{"after":5}').decode(), "e30="])
def test_a_corrupt_cursor_is_refused(api: httpx.Client, cursor: str) -> None:
    refused(api.get("/v0/topics", params={"cursor": cursor}), 400, "invalid_request")


def _names(api: httpx.Client, **params: str | int) -> list[str]:
    """The names on all pages of a list."""
    seen, cursor = [], ""
    while True:
        page = api.get("/v0/topics", params={**params, "cursor": cursor}).json()
        seen += [topic["topic"] for topic in page["topics"]]
        if "next_cursor" not in page:
            return seen
        cursor = page["next_cursor"]


def test_topics_are_found_by_a_part_of_the_name(api: httpx.Client, name: str) -> None:
    for suffix in ("Alpha", "beta", "alphabet", "gamma"):
        put(api, f"{name}:{suffix}")
    found = [f"{name}:{suffix}" for suffix in ("Alpha", "alphabet")]
    assert _names(api, prefix=name, contains="ALPHA") == found
    assert _names(api, prefix=name, contains="alpha", page_size=1) == found
    page = api.get("/v0/topics", params={"prefix": name, "contains": "a", "total": "true", "page_size": 1}).json()
    assert page["total"] == {"value": 4, "relation": "eq"}
    assert "total" not in api.get("/v0/topics", params={"prefix": name, "contains": "a"}).json()


@pytest.mark.parametrize("sort", ["count", "bytes", "head_seq"])
@pytest.mark.parametrize("size", [1, 2, 10])
def test_topics_are_sorted_by_a_number_and_then_by_name(api: httpx.Client, name: str, sort: str, size: int) -> None:
    for suffix, records in (("a", 2), ("b", 0), ("c", 3), ("d", 2), ("e", 0)):
        put(api, f"{name}:{suffix}")
        if records:
            api.post(f"/v0/topics/{name}:{suffix}", json={"records": [{"data": 1}] * records}).raise_for_status()
    for order, expected in (("desc", "cadbe"), ("asc", "beadc")):
        found = _names(api, prefix=f"{name}:", sort=f"{sort}:{order}", page_size=size)
        assert [one.rpartition(":")[2] for one in found] == list(expected)


@pytest.mark.parametrize("sort", ["size", "count:up", ":desc", "name:desc"])
def test_an_unknown_sort_order_is_refused(api: httpx.Client, sort: str) -> None:
    refused(api.get("/v0/topics", params={"sort": sort}), 400, "invalid_request")


def test_system_streams_are_listed_on_request_only(api: httpx.Client) -> None:
    api.put("/v1/stream/any", headers={"content-type": "application/json"}).raise_for_status()
    for shown, params in ((False, {}), (False, {"streams": "true"}), (True, {"streams": "true", "system": "true"})):
        names = _names(api, **params, page_size=1000)
        assert ("__registry__" in names) == shown


def test_a_topic_used_as_a_stream_has_its_content_type(api: httpx.Client, name: str) -> None:
    put(api, f"{name}:plain")
    api.put(f"/v1/stream/{name}:stream", headers={"content-type": "image/png"}).raise_for_status()
    listed = {one["topic"]: one for one in api.get("/v0/topics", params={"prefix": name}).json()["topics"]}
    assert "content_type" not in listed[f"{name}:plain"]
    assert listed[f"{name}:stream"]["content_type"] == "image/png"
    assert api.get(f"/v0/topics/{name}:stream").json()["content_type"] == "image/png"


def test_listing_does_not_touch_unless_reported(api: httpx.Client, name: str) -> None:
    put(api, name)
    listed = api.get("/v0/topics", params={"prefix": name}).json()["topics"][0]
    assert listed["effective_priority"] == 0
    api.get("/v0/topics", params={"prefix": name, "touch": "true"})
    assert api.get(f"/v0/topics/{name}?touch=0").json()["effective_priority"] > 0


def test_deleting_a_topic_for_good(api: httpx.Client, name: str, append: Append) -> None:
    append(1)
    body = api.delete(f"/v0/topics/{name}").json()
    assert (body["topic"], body["deleted"], body["routers_removed"]) == (name, True, [])
    refused(api.get(f"/v0/topics/{name}"), 404, "topic_not_found")
    again = api.delete(f"/v0/topics/{name}")
    assert (again.status_code, again.json()["deleted"], again.json()["routers_removed"]) == (200, False, [])


def test_a_topic_made_again_starts_at_one(append: Append, api: httpx.Client, name: str) -> None:
    append(1, 2, 3)
    api.delete(f"/v0/topics/{name}")
    assert append("new")["seqs"] == [1]


def test_delete_only_if_empty(api: httpx.Client, name: str, append: Append) -> None:
    append(1)
    detail = refused(api.delete(f"/v0/topics/{name}?if_empty=true"), 409, "topic_not_empty")
    assert detail == {"topic": name, "count": 1}
    api.post(f"/v0/topics/{name}/delete", json={"before_seq": 2})
    assert api.delete(f"/v0/topics/{name}?if_empty=1").json()["deleted"] is True
