"""One query over several streams."""

import itertools
from typing import Any

import httpx
import pytest

from tests.http.streams.conftest import code_of, create
from tests.http.streams.test_search import described, put
from tests.unit.streams.describing import JSON

_groups = itertools.count(1)


def search(http: httpx.Client, streams: Any, **body: Any) -> dict[str, Any]:
    while (answer := http.post("/v1/_search", json={"streams": streams, **body})).status_code == 408:
        assert answer.json()["coverage"]["complete"] is False
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture
def group(http: httpx.Client) -> str:
    """Three streams whose entries follow each other in turn, and a stream that cannot be searched."""
    group = f"many{next(_groups)}"
    for place, name in enumerate("abc"):
        path = described(http, f"/v1/stream/{group}/{name}")
        values = [{"eventTime": 3 * n + place, "status": n, "message": f"{name} card"} for n in range(5)]
        put(http, path, *values)
    create(http, f"/v1/stream/{group}/plain", JSON)
    return group


def shown(answer: dict[str, Any]) -> list[tuple[str, int]]:
    return [(hit["stream"].rpartition("/")[2], hit["source"]["status"]) for hit in answer["hits"]]


ORDER = [(name, n) for n in range(4, -1, -1) for name in "cba"]


def test_hits_of_all_streams_are_in_one_order(http: httpx.Client, group: str) -> None:
    answer = search(http, f"{group}/*")
    assert shown(answer) == ORDER
    assert answer["streams"] == [f"{group}/{name}" for name in "abc"]
    assert answer["total"] == {"value": 15, "relation": "eq"}
    assert (answer["coverage"]["complete"], answer["next_search_after"], answer["more_streams"]) == (True, None, False)
    assert shown(search(http, f"{group}/*", q="status:>=3", sort=["status:asc"])) == [
        (name, status) for status in (3, 4) for name in "abc"
    ]
    assert shown(search(http, [f"{group}/a", f"{group}/c"], q="status:2")) == [("c", 2), ("a", 2)]
    hit = search(http, f"{group}/b", q="card", size=1, highlight=True, fields=["status"])["hits"][0]
    assert hit["highlights"]["message"][0]["spans"] == [[2, 6]]
    assert hit["fields"] == {"status": 4} and hit["score"] > 0


@pytest.mark.parametrize("size", [1, 2, 4, 7, 15])
def test_pages_over_streams_join(http: httpx.Client, group: str, size: int) -> None:
    found: list[tuple[str, int]] = []
    after: dict[str, Any] = {}
    for _ in range(20):
        answer = search(http, f"{group}/*", size=size, search_after=after, track_total=True)
        found += shown(answer)
        after = answer["next_search_after"]
        if after is None:
            break
    assert found == ORDER


def test_a_stream_that_cannot_answer_is_notified(http: httpx.Client, group: str) -> None:
    create(http, f"/v1/stream/{group}/d", JSON)
    fields = {"eventTime": {"kind": "date", "column": True, "bindings": [{"version": 1, "jsonPointer": "/at"}]}}
    body = {"schema": {}, "search": {"primaryTimestampField": "eventTime", "fields": fields}}
    assert http.post(f"/v1/stream/{group}/d/_schema", json=body).status_code == 200
    answer = search(http, f"{group}/*", q="status:1")
    assert [part["stream"] for part in answer["skipped"]] == [f"{group}/d"]
    assert "status" in answer["skipped"][0]["reason"]
    assert len(answer["hits"]) == 3


def test_invalid_multi_stream_searches_are_refused(http: httpx.Client, group: str) -> None:
    assert code_of(http.post("/v1/_search", json={"streams": f"{group}/none*"})) == "not_found"
    assert code_of(http.post("/v1/_search", json={"streams": f"{group}/plain"})) == "not_found"
    bodies: list[dict[str, Any]] = [
        {}, {"streams": []}, {"streams": ["x"] * 17}, {"streams": 5}, {"streams": f"{group}/*", "q": "nothing:1"},
        {"streams": f"{group}/*", "size": 0}, {"streams": "*" + "x" * 2000}, {"streams": f"{group}/*", "more": 1},
        {"streams": f"{group}/*", "search_after": [1]}, {"streams": f"{group}/*", "search_after": {f"{group}/a": [1]}},
        {"streams": f"{group}/a", "track_total_hits": True},
    ]  # fmt: skip
    for body in bodies:
        assert http.post("/v1/_search", json=body).status_code == 400, body
    assert http.get("/v1/_search").status_code == 405
    late = http.post("/v1/_search", json={"streams": f"{group}/*", "timeout_ms": 0})
    assert (late.status_code, late.json()["coverage"]["possible_missing_events_upper_bound"]) == (408, 15)
