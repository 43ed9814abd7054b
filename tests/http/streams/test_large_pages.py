"""Pages of many or large hits over the wire: shown in turns, they are the answers that they always were."""

import json
from typing import Any

import httpx
import pytest

from tests.http.pipelined import pipeline
from tests.http.streams.test_search import described, find, put, sources


@pytest.fixture
def logs(http: httpx.Client, path: str) -> str:
    return described(http, path)


def topic_path(path: str) -> str:
    return "/v0/topics/" + path.removeprefix("/v1/stream/") + "/search?streams=true"


@pytest.mark.parametrize(("count", "nbytes"), [(460, 10), (40, 30_000)])
def test_a_large_page_is_all_of_its_small_ones(http: httpx.Client, logs: str, count: int, nbytes: int) -> None:
    entries = [{"eventTime": number, "status": number, "message": "x" * nbytes} for number in range(count)]
    for begin in range(0, count, 100):
        put(http, logs, *entries[begin : begin + 100])
    large = find(http, logs, "status:>=0", sort=["status:asc"], size=500)
    assert sources(large) == entries
    assert large["total"] == {"value": count, "relation": "eq"}
    hits: list[Any] = []
    after: dict[str, Any] = {}
    while True:
        part = find(http, logs, "status:>=0", sort=["status:asc"], size=7, **after)
        hits += part["hits"]
        if part["next_search_after"] is None:
            break
        after = {"search_after": part["next_search_after"]}
    assert hits == large["hits"]
    answer = http.post(topic_path(logs), json={"q": "status:>=0", "sort": ["status:asc"], "size": 500}).json()
    assert [hit["data"] for hit in answer["hits"]] == entries


def test_pipelined_request_is_answered_after_a_large_page(http: httpx.Client, logs: str) -> None:
    put(http, logs, *({"eventTime": number, "status": number, "message": "x" * 20_000} for number in range(60)))
    find(http, logs, "status:7")

    def request(body: dict[str, Any]) -> bytes:
        raw = json.dumps(body).encode()
        head = f"POST {logs}/_search HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(raw)}\r\n\r\n"
        return head.encode() + raw

    said = pipeline(str(http.base_url), [request({"size": 60}), request({"size": 60}), request({"q": "status:7"})])
    bodies = [part for part in said.split(b"HTTP/1.1 200 OK") if part]
    assert [part.count(b'"source":') for part in bodies] == [60, 60, 1]


def test_an_entry_that_is_large_alone_is_one_portion(http: httpx.Client, logs: str) -> None:
    put(http, logs, {"eventTime": 1, "message": "y" * 700_000}, {"eventTime": 2}, {"eventTime": 3, "message": "z"})
    found = sources(find(http, logs, ""))
    assert [len(entry.get("message", "")) for entry in found] == [1, 0, 700_000]
