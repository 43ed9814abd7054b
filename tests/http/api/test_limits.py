"""Caps and limits: every one is a setting, refuses with its name, and leaves nothing behind."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.live import LiveServer

LIMITS = {
    "max_topics": "3", "max_total_bytes": "2000", "max_batch_records": "4", "max_record_bytes": "100",
    "max_body_bytes": "5000", "max_meta_bytes": "20", "max_meta_keys": "2", "max_tag_bytes": "5",
    "max_node_bytes": "6", "max_idempotency_key_chars": "7", "max_limit": "3", "max_batch_bytes": "300",
}  # fmt: skip


@pytest.fixture
def small(tmp_path: Path) -> Iterator[httpx.Client]:
    with LiveServer(tmp_path, **LIMITS) as live, httpx.Client(base_url=live.url, timeout=30.0) as client:
        yield client


def test_each_limit_is_a_setting(small: httpx.Client) -> None:
    def send(records: list[dict[str, object]], **fields: object) -> httpx.Response:
        return small.post("/v0/topics/t", json={"records": records, **fields})

    refused(send([{"data": 1}] * 5), 400, "batch_too_large")
    refused(send([{"data": "x" * 99}]), 400, "record_too_large")
    refused(send([{"data": 1, "meta": {"k": "x" * 20}}]), 400, "invalid_request")
    refused(send([{"data": 1, "meta": {"a": 1, "b": 1, "c": 1}}]), 400, "invalid_request")
    refused(send([{"data": 1, "tag": "x" * 6}]), 400, "invalid_request")
    refused(send([{"data": 1, "node": "x" * 7}]), 400, "invalid_request")
    refused(send([{"data": 1}], idempotency_key="x" * 8), 400, "invalid_request")
    refused(send([{"data": "x" * 5000}]), 413, "payload_too_large")
    refused(small.get("/v0/topics/t"), 404, "topic_not_found")
    assert send([{"data": 1, "tag": "x" * 5, "node": "x" * 6, "meta": {"k": "v"}}] * 4).status_code == 201
    assert len(small.post("/v0/topics/t/diff", json={"limit": 100}).json()["records"]) == 3
    long: list[dict[str, object]] = [{"data": "x" * 90}] * 3
    assert send(long).status_code == 200
    assert len(small.post("/v0/topics/t/diff", json={"from_seq": 4, "max_batch_bytes": 9999}).json()["records"]) == 2


def test_no_more_topics_than_allowed(small: httpx.Client) -> None:
    for name in ("a", "b", "c"):
        small.put(f"/v0/topics/{name}", json={})
    for answer in (small.put("/v0/topics/d", json={}), small.post("/v0/topics/d", json={"records": [{"data": 1}]})):
        assert refused(answer, 429, "throttled") == {"limit": "max_topics", "max": 3}
        assert int(answer.headers["retry-after"]) >= 1
    assert small.put("/v0/topics/a", json={"ttl_ms": 5}).status_code == 200
    small.delete("/v0/topics/b")
    assert small.put("/v0/topics/d", json={}).status_code == 201


def test_no_more_bytes_than_allowed(small: httpx.Client) -> None:
    batch = {"records": [{"data": "x" * 90}] * 4}
    for _ in range(5):
        assert small.post("/v0/topics/a", json=batch).is_success
    answer = small.post("/v0/topics/fresh", json=batch)
    assert refused(answer, 429, "throttled") == {"limit": "max_total_bytes", "max": 2000}
    refused(small.get("/v0/topics/fresh"), 404, "topic_not_found")
    small.post("/v0/topics/a/delete", json={"before_seq": 9})
    assert small.post("/v0/topics/fresh", json=batch).is_success


def test_no_more_connections_than_allowed(tmp_path: Path) -> None:
    with LiveServer(tmp_path, max_connections="2") as live, contextlib.ExitStack() as opened:
        for _ in range(2):
            client = opened.enter_context(httpx.Client(base_url=live.url, timeout=30.0))
            assert client.get("/v0/health").status_code == 200
        answer = httpx.get(f"{live.url}/v0/health", timeout=30.0)
        assert refused(answer, 429, "throttled") == {"limit": "max_connections", "max": 2}
        assert answer.headers["retry-after"] == "1"
