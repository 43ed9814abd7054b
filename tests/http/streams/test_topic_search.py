"""Searching topics with a search description over /v0."""

from typing import Any

import httpx

from tests.http.api.conftest import refused
from tests.http.streams.test_search import described, find, put


def search(http: httpx.Client, name: str, **body: Any) -> dict[str, Any]:
    while True:
        answer = http.post(f"/v0/topics/{name}/search", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        if not found["timed_out"]:
            return found


def test_a_topic_is_searched_in_the_words_of_v0(http: httpx.Client) -> None:
    path = described(http, "/v1/stream/topic-search")
    put(http, path, *({"status": n % 3, "message": f"word{n} card", "eventTime": n} for n in range(6)))
    found = search(http, "topic-search", q="status:1", track_total=True)
    assert [hit["$seq"] for hit in found["hits"]] == [5, 2]
    assert found["hits"][0] == {
        "$seq": 5, "score": 0, "sort": [5], "fields": {"status": 1, "message": "word4 card", "eventTime": 4},
        "data": {"status": 1, "message": "word4 card", "eventTime": 4},
    }  # fmt: skip
    assert found["total"] == {"value": 2, "relation": "eq"}
    assert (found["topic"], found["head_seq"], found["next_search_after"]) == ("topic-search", 6, None)
    assert found["coverage"]["complete"] is True and found["coverage"]["missing_at_most"] == 0
    assert found["performance"]["server_total_ms"] > 0
    first = search(http, "topic-search", q="card", size=4, _source=False, fields=["status"], explain=True)
    assert set(first["hits"][0]) == {"$seq", "score", "sort", "fields"}
    assert first["explain"]["parts"][0]["last_seq"] == 6
    rest = search(http, "topic-search", q="card", size=4, search_after=first["next_search_after"])
    both = [hit["$seq"] for hit in (*first["hits"], *rest["hits"])]
    assert sorted(both) == [1, 2, 3, 4, 5, 6] and len(rest["hits"]) == 2
    assert [hit["source"]["message"] for hit in find(http, path, "card", size=6)["hits"]] == [
        f"word{seq - 1} card" for seq in both
    ]


def test_the_time_of_a_search_over_v0(http: httpx.Client) -> None:
    path = described(http, "/v1/stream/topic-search-late")
    put(http, path, {"status": 1})
    late = http.post("/v0/topics/topic-search-late/search", json={"q": "status:1", "timeout_ms": 0})
    assert late.status_code == 200
    assert late.json()["timed_out"] is True
    assert late.json()["coverage"]["missing_at_most"] == 1
    assert late.json()["coverage"]["first_missing_seq"] == 1


def test_invalid_searches_over_v0_are_refused(http: httpx.Client) -> None:
    http.post("/v0/topics/topic-search-bare", json={"records": [{"data": 1}]})
    refused(http.post("/v0/topics/topic-search-bare/search", json={"q": ""}), 400, "invalid_request")
    refused(http.post("/v0/topics/topic-search-none/search", json={"q": ""}), 404, "topic_not_found")
    described(http, "/v1/stream/topic-search-strict")
    for body in (
        {"q": "nothing:1"}, {"size": 0}, {"size": 501}, {"more": 1}, {"track_total_hits": True}, {"q": 5},
        {"search_after": ["x"]}, {"search_after": [True]}, {"search_after": [-1]}, {"sort": ["message"]},
    ):  # fmt: skip
        refused(http.post("/v0/topics/topic-search-strict/search", json=body), 400, "invalid_request")
