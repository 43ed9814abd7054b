"""POST /v0/topics/:topic: stored records, answers, and all refusals."""

from typing import Any

import httpx
import pytest

from tests.http.api.conftest import Append, refused

ONE = {"records": [{"data": 1}]}


def test_the_answer_to_an_append(api: httpx.Client, name: str) -> None:
    answer = api.post(f"/v0/topics/{name}", json={"records": [{"data": 1}, {"data": 2}]})
    body = answer.json()
    performance = body.pop("performance")
    assert answer.status_code == 201
    assert body == {
        "topic": name, "first_seq": 1, "last_seq": 2, "seqs": [1, 2], "head_seq": 2, "count": 2, "created": True,
        "deduped": False,
    }  # fmt: skip
    assert {"server_total_ms", "wal_append_ms", "fsync_ms"} <= set(performance)
    assert api.post(f"/v0/topics/{name}", json=ONE).status_code == 200


def test_class_disk_does_not_wait_for_a_sync(append: Append, api: httpx.Client, name: str) -> None:
    append(1)
    assert append(2)["performance"]["fsync_ms"] == 0.0
    api.put(f"/v0/topics/{name}", json={"durability": "fsync"})
    assert append(3)["performance"]["fsync_ms"] > 0.0


def test_seqs_can_be_left_out(api: httpx.Client, name: str) -> None:
    body = api.post(f"/v0/topics/{name}?return_seqs=false", json=ONE).json()
    assert "seqs" not in body
    assert (body["first_seq"], body["last_seq"]) == (1, 1)


@pytest.mark.parametrize(
    "data", ['{"a": [1, 2.50, 1e3]}', "[]", '"\\u00e9\\n"', "null", "true", "-0.0", '"ünïcödé"', '{"$seq": 5}']
)
def test_data_comes_back_as_it_was_sent(api: httpx.Client, name: str, data: str) -> None:
    body = '{"records":[{"data":' + data + "}]}"
    sent = api.post(f"/v0/topics/{name}", content=body, headers={"content-type": "application/json"})
    assert sent.status_code == 201
    text = api.post(f"/v0/topics/{name}/diff", json={}).text
    assert f'"data":{data}}}' in text


def test_nodes_tags_and_meta(api: httpx.Client, name: str) -> None:
    records = [{"data": 1, "tag": "t", "node": "own", "meta": {"k": "v"}}, {"data": 2}]
    api.post(f"/v0/topics/{name}", json={"records": records, "node": "batch"})
    read = api.post(f"/v0/topics/{name}/diff", json={"include_tags": True}).json()["records"]
    assert [{k: v for k, v in record.items() if k != "$ts"} for record in read] == [
        {"$seq": 1, "$node": "own", "$tag": "t", "data": 1, "meta": {"k": "v"}},
        {"$seq": 2, "$node": "batch", "data": 2},
    ]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_request"),
        ({"records": []}, "invalid_request"),
        ({"records": None}, "invalid_request"),
        ({"records": {}}, "invalid_request"),
        ({"records": [1]}, "invalid_request"),
        ({"records": [{}]}, "invalid_request"),
        ({"records": [{"tag": "x"}]}, "invalid_request"),
        ({"records": [{"data": 1, "tag": 5}]}, "invalid_request"),
        ({"records": [{"data": 1, "node": 5}]}, "invalid_request"),
        ({"records": [{"data": 1, "meta": "x"}]}, "invalid_request"),
        ({"records": [{"data": 1, "meta": []}]}, "invalid_request"),
        ({"records": [{"data": 1, "tag": "x" * 257}]}, "invalid_request"),
        ({"records": [{"data": 1, "tag": "é" * 129}]}, "invalid_request"),
        ({"records": [{"data": 1, "node": "x" * 129}]}, "invalid_request"),
        ({"records": [{"data": 1}], "node": "x" * 129}, "invalid_request"),
        ({"records": [{"data": 1}], "node": 5}, "invalid_request"),
        ({"records": [{"data": 1, "meta": {"k": "x" * 16_384}}]}, "invalid_request"),
        ({"records": [{"data": 1, "meta": {str(n): "" for n in range(65)}}]}, "invalid_request"),
        ({"records": [{"data": 1}], "idempotency_key": "x" * 257}, "invalid_request"),
        ({"records": [{"data": 1}], "idempotency_key": 5}, "invalid_request"),
        ({"records": [{"data": 1}], "idempotency_key": ""}, "invalid_request"),
        ({"records": [{"data": 1}, {"data": 2}], "idempotency_key": ""}, "invalid_request"),
        ({"records": [{"data": 1}], "create": "yes"}, "invalid_request"),
        ({"records": [{"data": 1}], "config": {"ttl_ms": -1}}, "invalid_request"),
        ({"records": [{"data": 1}], "config": 5}, "invalid_request"),
        ({"records": [{"data": 1}], "disable_backpressure": 1}, "invalid_request"),
        ({"records": [{"data": 1}] * 10_001}, "batch_too_large"),
        ({"records": [{"data": "x" * 1_048_577}]}, "record_too_large"),
    ],
)
def test_a_bad_append_is_refused_and_creates_nothing(
    api: httpx.Client, name: str, body: dict[str, Any], code: str
) -> None:
    refused(api.post(f"/v0/topics/{name}", json=body), 400, code)
    refused(api.get(f"/v0/topics/{name}"), 404, "topic_not_found")


@pytest.mark.parametrize(
    "text", ["", "{", "nul", '{"records":[{"data":1}]', "[]", b"\xff", b'{"records":[{"data":"\xff"}]}']
)
def test_body_that_is_not_json_is_refused(api: httpx.Client, name: str, text: str | bytes) -> None:
    answer = api.post(f"/v0/topics/{name}", content=text, headers={"content-type": "application/json"})
    refused(answer, 400, "invalid_request")


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/xml"])
def test_another_content_type_is_refused(api: httpx.Client, name: str, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    answer = api.post(f"/v0/topics/{name}", content=b'{"records":[{"data":1}]}', headers=headers)
    refused(answer, 415, "unsupported_media_type")


def test_a_charset_may_be_stated(api: httpx.Client, name: str) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    assert api.post(f"/v0/topics/{name}", content=b'{"records":[{"data":1}]}', headers=headers).is_success


def test_a_typo_creates_nothing_when_reported_so(api: httpx.Client, name: str) -> None:
    detail = refused(api.post(f"/v0/topics/{name}", json={**ONE, "create": False}), 404, "topic_not_found")
    assert detail == {"topic": name}
    refused(api.post("/v0/topics/no%20name", json={**ONE, "create": False}), 404, "topic_not_found")


def test_auto_create_of_the_inline_config_is_the_default(api: httpx.Client, name: str) -> None:
    body = {**ONE, "config": {"auto_create": False}}
    refused(api.post(f"/v0/topics/{name}", json=body), 404, "topic_not_found")
    assert api.post(f"/v0/topics/{name}", json={**body, "create": True}).status_code == 201


def test_an_inline_config_counts_only_for_a_new_topic(api: httpx.Client, name: str, append: Append) -> None:
    append(1, config={"cap_records": 5})
    append(2, config={"cap_records": 9})
    assert api.get(f"/v0/topics/{name}").json()["config"]["cap_records"] == 5


def test_the_same_key_appends_once(append: Append) -> None:
    first = append("a", "b", idempotency_key="k")
    append("other")
    again = append("a", "b", idempotency_key="k")
    assert again["seqs"] == first["seqs"] == [1, 2]
    assert (again["deduped"], again["created"], again["head_seq"]) == (True, False, 2)
    assert append("c", idempotency_key="k2")["seqs"] == [4]
    assert "differs" not in again


@pytest.mark.parametrize("as_header", [False, True])
def test_a_key_that_was_used_for_something_else_is_reported_or_refused(
    api: httpx.Client, name: str, as_header: bool
) -> None:
    key = {} if as_header else {"idempotency_key": "k"}
    headers = {"idempotency-key": "k"} if as_header else {}

    def send(records: list[dict[str, object]], **more: object) -> httpx.Response:
        return api.post(f"/v0/topics/{name}", json={"records": records, **key, **more}, headers=headers)

    written: list[dict[str, object]] = [{"data": {"a": 1}, "tag": "t", "meta": {"m": 1}}]
    assert send(written).json()["deduped"] is False
    assert send(written, idempotency_check=True).json()["deduped"] is True
    others: list[list[dict[str, object]]] = [
        [{"data": {"a": 1}}], [{**written[0], "node": "n"}], written * 2, [{**written[0], "data": {"a": 2}}],
    ]  # fmt: skip
    for other in others:
        reported = send(other).json()
        assert (reported["deduped"], reported["differs"], reported["seqs"]) == (True, True, [1])
        detail = refused(send(other, idempotency_check=True), 409, "idempotency_conflict")
        assert detail == {"topic": name, "first_seq": 1, "last_seq": 1}
    assert api.get(f"/v0/topics/{name}").json()["count"] == 1


def test_the_key_may_come_as_a_header_and_the_body_wins(api: httpx.Client, name: str) -> None:
    def send(body_key: str | None, header: str) -> list[int]:
        body = {**ONE, **({} if body_key is None else {"idempotency_key": body_key})}
        answer = api.post(f"/v0/topics/{name}", json=body, headers={"idempotency-key": header})
        seqs: list[int] = answer.json()["seqs"]
        return seqs

    assert send(None, "h") == [1]
    assert send(None, "h") == [1]
    assert send("b", "h") == [2]
    assert send("b", "other") == [2]


def test_a_topic_that_rejects_is_full(api: httpx.Client, name: str, append: Append) -> None:
    append(1, 2, config={"cap_records": 2, "discard": "reject"})
    answer = api.post(f"/v0/topics/{name}", json=ONE)
    detail = refused(answer, 422, "topic_full")
    assert detail == {"topic": name, "cap_records": 2, "cap_bytes": 0, "head_seq": 2, "earliest_seq": 1}
    too_large = api.post(f"/v0/topics/{name}", json={"records": [{"data": 1}] * 3})
    refused(too_large, 400, "record_too_large")
    api.post(f"/v0/topics/{name}/delete", json={"before_seq": 2})
    assert append(3)["seqs"] == [3]


def test_a_topic_that_drops_keeps_the_newest(append: Append, diff: Append) -> None:
    append(1, 2, 3, 4, 5, config={"cap_records": 2})
    read = diff()
    assert [record["data"] for record in read["records"]] == [4, 5]
    assert read["tombstone"] == {
        "gap_from": 1, "gap_to": 3, "reason": "cap", "missed_estimate": 3, "earliest_seq": 4, "head_seq": 5,
    }  # fmt: skip


def test_unknown_fields_are_ignored(api: httpx.Client, name: str) -> None:
    body = {"records": [{"data": 1, "colour": "red"}], "mood": "good"}
    assert api.post(f"/v0/topics/{name}", json=body).status_code == 201
