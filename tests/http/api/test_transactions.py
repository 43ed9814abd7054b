"""Transactions over HTTP: each field, status and refusal, permissions, and the visibility of records."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.live import LiveServer, wait_until_ready


def begin(api: httpx.Client, name: str, sequence: int = 1, **fields: object) -> httpx.Response:
    return api.post("/v0/transactions", json={"id": name, "sequence": sequence, **fields})


def stage(
    api: httpx.Client, name: str, topic: str, *values: object, part: str = "p", **fields: object
) -> httpx.Response:
    records = [{"data": value} for value in values]
    body = {"sequence": 1, "part": part, "topic": topic, "records": records, **fields}
    return api.post(f"/v0/transactions/{name}/stage", json=body)


def commit(api: httpx.Client, name: str, sequence: int = 1, **fields: object) -> httpx.Response:
    return api.post(f"/v0/transactions/{name}/commit", json={"sequence": sequence, **fields})


def values(api: httpx.Client, topic: str) -> list[Any]:
    answer = api.post(f"/v0/topics/{topic}/diff", json={}).json()
    return [record["data"] for record in answer.get("records", [])]


def without_performance(answer: httpx.Response) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    assert body.pop("performance")["server_total_ms"] >= 0
    return body


def test_from_the_beginning_to_the_commit_and_once_more(api: httpx.Client, name: str) -> None:
    one, two = f"{name}.1", f"{name}.2"
    begun = begin(api, name)
    assert begun.status_code == 201
    body = without_performance(begun)
    attempt = body.pop("attempt")
    assert body.pop("expires_ts") > 0
    assert body == {"id": name, "sequence": 1, "state": "open", "parts": 0, "records": 0, "bytes": 0}
    staged = stage(api, name, one, "x", {"y": 1}, attempt=attempt)
    assert without_performance(staged) == {
        "id": name, "sequence": 1, "attempt": attempt, "part": "p", "topic": one, "count": 2, "records": 2, "bytes": 10,
    }  # fmt: skip
    assert stage(api, name, two, 5, part="q").json()["records"] == 3
    assert api.get(f"/v0/topics/{one}").status_code == 404
    assert (values(api, one), values(api, two)) == ([], [])
    placed = [
        {"topic": one, "first_seq": 1, "last_seq": 2, "count": 2},
        {"topic": two, "first_seq": 1, "last_seq": 1, "count": 1},
    ]
    requested = {"id": name, "sequence": 1, "state": "committed", "records": 3, "deduped": False, "topics": placed}
    done = commit(api, name, attempt=attempt)
    assert (done.status_code, without_performance(done)) == (200, requested)
    assert (values(api, one), values(api, two)) == (["x", {"y": 1}], [5])
    again = {**requested, "deduped": True}
    api.delete(f"/v0/topics/{one}")
    for answer in (commit(api, name), begin(api, name), api.get(f"/v0/transactions/{name}")):
        assert (answer.status_code, without_performance(answer)) == (200, again)
    refused(begin(api, name, 0), 409, "transaction_sequence")
    refused(stage(api, name, one, 1), 409, "transaction_sequence")
    assert values(api, one) == []


def test_attempts_join_replace_and_end(api: httpx.Client, name: str) -> None:
    assert begin(api, name, attempt="one").status_code == 201
    assert begin(api, name, attempt="one").status_code == 200
    stage(api, name, name, 1, attempt="one")
    assert api.get(f"/v0/transactions/{name}").json()["parts"] == 1
    assert begin(api, name, attempt="two").status_code == 201
    refused(stage(api, name, name, 1, attempt="one"), 409, "transaction_fenced")
    refused(commit(api, name, 2), 409, "transaction_fenced")
    refused(commit(api, name, parts=["p"]), 409, "transaction_incomplete")
    aborted = api.post(f"/v0/transactions/{name}/abort", json={"sequence": 1, "attempt": "two"})
    assert without_performance(aborted) == {"id": name, "sequence": 1, "state": "aborted", "records": 0}
    refused(commit(api, name), 404, "transaction_not_found")
    refused(api.get(f"/v0/transactions/{name}"), 404, "transaction_not_found")


def test_the_commit_of_some_parts(api: httpx.Client, name: str) -> None:
    begin(api, name)
    for number in range(3):
        stage(api, name, name, number, part=f"p{number}")
    assert commit(api, name, parts=["p2", "p0"]).json()["records"] == 2
    assert values(api, name) == [2, 0]


@pytest.mark.parametrize(
    ("word", "body"),
    [
        ("", {"sequence": 1}),
        ("", {"id": "x"}),
        ("", {"id": "a/b", "sequence": 1}),
        ("", {"id": "x", "sequence": -1}),
        ("", {"id": "x", "sequence": 2**63}),
        ("", {"id": "x", "sequence": 1, "attempt": ""}),
        ("", {"id": "x", "sequence": 1, "timeout_ms": -1}),
        ("/t/stage", {"sequence": 1, "part": "p", "topic": "x"}),
        ("/t/stage", {"sequence": 1, "part": "p", "topic": "x", "records": []}),
        ("/t/stage", {"sequence": 1, "part": "p", "topic": "_x", "records": [{"data": 1}]}),
        ("/t/stage", {"sequence": 1, "part": "/", "topic": "x", "records": [{"data": 1}]}),
        ("/t/stage", {"sequence": 1, "topic": "x", "records": [{"data": 1}]}),
        ("/t/commit", {}),
        ("/t/commit", {"sequence": 1, "parts": "p"}),
        ("/t/abort", {"sequence": "1"}),
    ],
)
def test_invalid_transaction_requests_are_refused(api: httpx.Client, word: str, body: dict[str, object]) -> None:
    if word:
        begin(api, "t")
    refused(api.post(f"/v0/transactions{word}", json=body), 400, "invalid_request")


def test_a_large_body_of_parts_and_a_bad_method(api: httpx.Client, name: str) -> None:
    refused(api.get("/v0/transactions"), 405, "method_not_allowed")
    refused(api.post(f"/v0/transactions/{name}", json={}), 405, "method_not_allowed")
    begin(api, name)
    refused(stage(api, name, name, *range(10_001)), 400, "batch_too_large")
    refused(stage(api, name, name, "x" * 2**20), 400, "record_too_large")


# Keys


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    keys = "all,one:write:one.,uno:write:one.,both:write:one.|two.,reader:read"
    with LiveServer(tmp_path_factory.mktemp("keys"), api_keys=keys) as live:
        yield live


def as_key(server: LiveServer, key: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=30.0, headers={"authorization": f"Bearer {key}"})


def test_scopes_and_prefixes_hold_for_every_topic(guarded: LiveServer) -> None:
    with as_key(guarded, "one") as one, as_key(guarded, "uno") as uno, as_key(guarded, "reader") as reader:
        refused(begin(reader, "t"), 403, "forbidden")
        begin(one, "t")
        refused(stage(one, "t", "two.x", 1), 403, "forbidden")
        refused(stage(one, "t", "one.x", 1, config={"cap_records": 1}), 403, "forbidden")
        assert stage(one, "t", "one.x", 1).is_success
        # Another key of the same tenant meets the transaction, and may not touch it before it is committed.
        refused(stage(uno, "t", "one.x", 1), 403, "transaction_foreign")
        refused(commit(uno, "t"), 403, "transaction_foreign")
        assert commit(one, "t").is_success
        assert begin(uno, "t").json()["deduped"]


def test_each_tenant_has_ids_of_its_own(guarded: LiveServer) -> None:
    with as_key(guarded, "one") as one, as_key(guarded, "both") as both, as_key(guarded, "all") as anyone:
        for api, topic in ((one, "one.i"), (both, "two.i"), (anyone, "i")):
            assert begin(api, "shared").status_code == 201
            assert stage(api, "shared", topic, topic).is_success
        for api, topic in ((one, "one.i"), (both, "two.i"), (anyone, "i")):
            done = commit(api, "shared").json()
            assert (done["id"], [placed["topic"] for placed in done["topics"]]) == ("shared", [topic])
        refused(one.get("/v0/transactions/t%2Fshared"), 404, "transaction_not_found")


def test_a_key_keeps_its_transaction_over_a_kill(tmp_path: Path) -> None:
    with LiveServer(tmp_path, api_keys="one,two") as server:
        with as_key(server, "one") as one:
            begin(one, "t")
            assert stage(one, "t", "x", 1).is_success
        server.kill()
        # The place of a key among the keys has no information about it.
        server._settings["TOPICS_API_KEYS"] = "two,one"
        server.start()
        wait_until_ready(server.url)
        with as_key(server, "one") as one, as_key(server, "two") as two:
            refused(commit(two, "t"), 403, "transaction_foreign")
            assert commit(one, "t").json()["records"] == 1
            assert values(one, "x") == [1]
