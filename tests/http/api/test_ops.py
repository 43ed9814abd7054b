"""Health, readiness, metrics, the description of the API, and routes that do not exist."""

import gzip
import json
from pathlib import Path

import httpx
import pytest

from tests.http.api.conftest import Append, refused
from tests.http.live import LiveServer
from topics import __version__
from topics.api.metrics_history import SERIES

# Every name the specification lists, as Prometheus exposes it.
SPECIFIED = (
    "topics_topics", "topics_topics_by_class", "topics_routers", "topics_records_live", "topics_bytes_live",
    "topics_queue_topics", "topics_queue_leases_in_flight", "topics_sse_connections", "topics_watch_sessions",
    "topics_ready", "topics_recovery_progress", "topics_uptime_ms", "topics_topic_head_seq",
    "topics_topic_earliest_seq", "topics_topic_records_live", "topics_topic_bytes_live",
    "topics_topic_queue_ready", "topics_topic_queue_in_flight",
    "topics_topic_metrics_truncated", "topics_wal_frames_total", "topics_wal_batches_total",
    "topics_wal_fsyncs_total", "topics_wal_bytes_written_total", "topics_wal_rotations_total",
    "topics_wal_queue_depth", "topics_wal_queue_depth_peak", "topics_wal_submit_full_total", "topics_wal_read_only",
    "topics_wal_fsync_latency_us_bucket", "topics_wal_fsync_latency_us_sum", "topics_wal_fsync_latency_us_count",
)  # fmt: skip


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_health(api: httpx.Client, path: str) -> None:
    body = api.get(path).json()
    assert (body["status"], body["version"]) == ("ok", __version__)
    assert body["uptime_ms"] >= 0


def test_health_for_clients_of_durable_streams(api: httpx.Client) -> None:
    answer = api.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"ok": True})


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_ready(api: httpx.Client, path: str) -> None:
    body = api.get(path).json()
    assert (body["status"], body["wal_replay_complete"]) == ("ready", True)
    assert body["topics"] >= 0


def test_metrics_as_text(api: httpx.Client, name: str, append: Append) -> None:
    append(1, 2)
    api.put(f"/v0/topics/{name}-queue", json={"type": "queue"})
    answer = api.get("/v0/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    exposed = {line.split("{")[0].split(" ")[0] for line in answer.text.splitlines() if not line.startswith("#")}
    assert set(SPECIFIED) - exposed == set()
    assert f'topics_topic_head_seq{{topic="{name}"}} 2.0' in answer.text


@pytest.mark.parametrize("step", ["1s", "1m"])
def test_the_history_of_metrics_ends_now(api: httpx.Client, step: str) -> None:
    answer = api.get("/v0/metrics/history", params={"step": step})
    body = answer.json()
    assert (answer.status_code, body["step_ms"]) == (200, {"1s": 1000, "1m": 60_000}[step])
    assert body["series"].keys() == set(SERIES)
    assert {len(values) for values in body["series"].values()} != {0}
    newest = api.get("/v0/metrics/history", params={"step": step, "points": 1}).json()
    assert [len(values) for values in newest["series"].values()] == [1] * len(SERIES)


@pytest.mark.parametrize("query", ["step=2s", "points=x", "points=-1"])
def test_a_bad_history_request_is_refused(api: httpx.Client, query: str) -> None:
    refused(api.get(f"/v0/metrics/history?{query}"), 400, "invalid_request")


def test_dead_letters_that_wait_are_counted_until_they_are_redriven(api: httpx.Client, name: str) -> None:
    def waiting() -> int:
        metrics = api.get("/v0/metrics", headers={"accept": "application/json"}).json()
        return int(metrics["topics_dead_letters_waiting"])

    before = waiting()
    queue = {"type": "queue", "max_deliveries": 1, "dead_letter": f"{name}-dead"}
    for copy in ("a", "b"):
        # Two queues with one dead-letter topic: its records count once.
        api.put(f"/v0/topics/{name}-{copy}", json=queue).raise_for_status()
    api.post(f"/v0/topics/{name}-a", json={"records": [{"data": 1}]}).raise_for_status()
    leases = api.post(f"/v0/topics/{name}-a/claim", json={"node": "w"}).json()["claimed"]
    api.post(f"/v0/topics/{name}-a/nack", json={"node": "w", "seqs": [leases[0]["$seq"]]}).raise_for_status()
    assert api.post(f"/v0/topics/{name}-a/claim", json={"node": "w"}).json()["claimed"] == []
    assert waiting() == before + 1
    api.post(f"/v0/topics/{name}-a/redrive", json={}).raise_for_status()
    assert waiting() == before
    api.delete(f"/v0/topics/{name}-a")
    api.delete(f"/v0/topics/{name}-b")


def test_dead_letters_are_overdue_from_the_age_of_the_setting_on(tmp_path: Path) -> None:
    def metrics(api: httpx.Client) -> tuple[int, ...]:
        found = api.get("/v0/metrics", headers={"accept": "application/json"}).json()
        return tuple(int(found[f"topics_dead_letters_{name}"]) for name in ("waiting", "oldest_ms", "overdue"))

    queue = {"type": "queue", "dead_letter": "failed"}
    again = tmp_path / "again"
    again.mkdir()
    with LiveServer(tmp_path, dead_letter_attention_ms="3600000") as live, httpx.Client(base_url=live.url) as api:
        api.put("/v0/topics/jobs", json=queue).raise_for_status()
        api.post("/v0/topics/jobs", json={"records": [{"data": 1}, {"data": 2}]}).raise_for_status()
        assert metrics(api) == (0, 0, 0)
        api.post("/v0/topics/jobs/claim", json={"node": "w", "max": 2}).raise_for_status()
        api.post("/v0/topics/jobs/nack", json={"node": "w", "seqs": [1, 2], "fatal": True}).raise_for_status()
        waiting, age_ms, overdue = metrics(api)
        assert (waiting, overdue) == (2, 0) and age_ms < 3_600_000
    settings = {"data_dir": str(tmp_path / "data"), "dead_letter_attention_ms": "1"}
    with LiveServer(again, **settings) as live, httpx.Client(base_url=live.url) as api:
        waiting, again_ms, overdue = metrics(api)
        assert (waiting, overdue) == (2, 1) and again_ms > age_ms
        api.post("/v0/topics/jobs/jobs/1/cancel", json={"dead": True}).raise_for_status()
        api.post("/v0/topics/jobs/redrive", json={}).raise_for_status()
        assert metrics(api) == (0, 0, 0)


def test_metrics_as_json(api: httpx.Client) -> None:
    answer = api.get("/v0/metrics", headers={"accept": "application/json"})
    body = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert body["topics_ready"] == 1.0
    assert body["topics_wal_frames_total"] > 0
    assert {sample["labels"]["class"] for sample in body["topics_topics_by_class"]} == {
        "ephemeral", "memory", "disk", "fsync", "remote",
    }  # fmt: skip


def test_metrics_as_json_have_short_names_too(api: httpx.Client, name: str, append: Append) -> None:
    append(1, 2)
    api.put(f"/v0/topics/{name}-queue", json={"type": "queue", "durability": "fsync"})
    api.put(f"/v0/routers/{name}", json={"source": name, "dest": f"{name}-copy"})
    body = api.get("/v0/metrics", headers={"accept": "application/json"}).json()
    assert body["ready"] is True
    assert body["replay_progress"] == 1.0
    for word in ("topics", "routers", "records_live", "bytes_live", "queue_topics", "sse_connections",
                 "watch_sessions", "queue_leases_in_flight"):  # fmt: skip
        assert (word, body[word]) == (word, body[f"topics_{word}"])
        assert isinstance(body[word], int)
    assert min(body["topics"], body["routers"], body["records_live"], body["bytes_live"], body["queue_topics"]) > 0
    classes = {sample["labels"]["class"]: sample["value"] for sample in body["topics_topics_by_class"]}
    assert {word: body[f"topics_{word}"] for word in classes} == classes
    for word in ("frames", "batches", "fsyncs", "bytes_written", "rotations"):
        assert (word, body["wal"][word]) == (word, body[f"topics_wal_{word}_total"])
    for word in ("queue_depth", "queue_depth_peak", "read_only"):
        assert (word, body["wal"][word]) == (word, body[f"topics_wal_{word}"])
    assert body["wal"]["submit_full_total"] == body["topics_wal_submit_full_total"]
    assert body["wal"]["frames"] > 0
    spent = {sample["name"]: sample["value"] for sample in body["topics_wal_fsync_latency_us"]}
    assert body["wal"]["fsync_count"] == spent["topics_wal_fsync_latency_us_count"]
    assert body["wal"]["fsync_micros_total"] == spent["topics_wal_fsync_latency_us_sum"]


@pytest.mark.parametrize(
    "path", ["/", "/v0", "/v1/x", "/v0/topics/", "/v0/topics/a/b", "/v0/topics/a/diff/c", "/V0/health"]
)
def test_there_is_nothing_elsewhere(api: httpx.Client, path: str) -> None:
    refused(api.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v0/topics/nowhere", None),
        ("POST", "/v0/topics/nowhere", {"records": []}),
        ("POST", "/v0/topics/nowhere", {"records": [{"data": 1}], "create": False}),
        ("POST", "/v0/topics/nowhere/diff", {}),
        ("POST", "/v0/topics/nowhere/delete", {}),
        ("POST", "/v0/topics/nowhere/claim", {"node": "w"}),
        ("PUT", "/v0/routers/nowhere", {"source": "a", "dest": "a"}),
        ("POST", "/v0/watch", {"topics": {"nowhere": {}}}),
    ],
)
def test_an_error_reports_its_time_too(api: httpx.Client, method: str, path: str, body: object) -> None:
    answer = api.request(method, path, json=body)
    assert answer.status_code in (400, 404)
    assert set(answer.json()) == {"error", "performance"}
    assert answer.json()["performance"]["server_total_ms"] >= 0


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/v0/topics/a", "DELETE, GET, HEAD, POST, PUT"),
        ("POST", "/v0/topics", "GET, HEAD"),
        ("GET", "/v0/topics/a/diff", "POST"),
        ("PUT", "/v0/topics/a/delete", "POST"),
        ("DELETE", "/v0/health", "GET, HEAD"),
        ("OPTIONS", "/v0/ready", "GET, HEAD"),
    ],
)
def test_another_method_is_refused(api: httpx.Client, method: str, path: str, allowed: str) -> None:
    answer = api.request(method, path)
    refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allowed


def test_head_is_get_without_a_body(api: httpx.Client) -> None:
    answer = api.head("/v0/health")
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["content-length"]) > 0


def test_large_answers_are_compressed_when_asked(api: httpx.Client, name: str, append: Append) -> None:
    append(*["x" * 100] * 50)
    plain = api.post(f"/v0/topics/{name}/diff", json={}, headers={"accept-encoding": "identity"})
    packed = api.post(f"/v0/topics/{name}/diff", json={}, headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.json()["records"] == plain.json()["records"]


def test_compressed_requests_are_understood(api: httpx.Client, name: str) -> None:
    body = gzip.compress(json.dumps({"records": [{"data": "x" * 5000}]}).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert api.post(f"/v0/topics/{name}", content=body, headers=headers).status_code == 201


def test_the_page_of_the_api_needs_nothing_from_elsewhere(api: httpx.Client) -> None:
    answer = api.get("/docs/plain")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "/v0/topics/{topic}/diff" in answer.text
    assert "<script" not in answer.text
    assert "http://" not in answer.text
    assert "https://" not in answer.text
