"""Traces go through the server: into answers, webhooks and the collector that they are exported to."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.http.collector import Collector, attributes
from tests.http.live import LiveServer
from tests.http.streams.receivers import Receiver

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
TRACED = {"traceparent": PARENT, "tracestate": "vendor=7"}
JSON = {"content-type": "application/json"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


def wake(api: httpx.Client, receiver: Receiver) -> dict[str, str]:
    """Headers of the webhook that a traced append to a stream ends in."""
    api.put("/v1/stream/rooms/1", headers=JSON).raise_for_status()
    body = {"type": "webhook", "streams": ["rooms/1"], "webhook": {"url": receiver.url}}
    api.put("/v1/stream/__ds/subscriptions/s", json=body).raise_for_status()
    api.post("/v1/stream/rooms/1", json=[{"n": 1}], headers=TRACED).raise_for_status()
    receiver.call()
    return {name.lower(): value for name, value in receiver.received_headers[-1].items()}


def test_a_trace_is_passed_on_to_answers_and_webhooks(tmp_path: Path, receiver: Receiver) -> None:
    with LiveServer(tmp_path) as live, httpx.Client(base_url=live.url) as api:
        for path, body in (("/v0/topics/a", {"records": [{"data": 1}]}), ("/v0/topics/a/diff", {})):
            assert api.post(path, json=body, headers=TRACED).headers["traceresponse"] == PARENT
            assert api.post(path, json=body, headers=TRACED).headers["traceresponse"] == PARENT
            assert "traceresponse" not in api.post(path, json=body).headers
            assert "traceresponse" not in api.post(path, json=body, headers={"traceparent": "00-x"}).headers
        page = {**TRACED, "origin": live.url}
        assert api.get("/v0/topics", headers=page).headers["traceresponse"] == PARENT
        watch = api.post("/v0/watch", json={"topics": {"a": {}}}).json()["stream_url"]
        with api.stream("GET", watch, headers=TRACED) as events:
            assert events.headers["traceresponse"] == PARENT
        called = wake(api, receiver)
        assert (called["traceparent"], called["tracestate"]) == (PARENT, "vendor=7")


def test_where_traces_are_left_alone_nothing_is_stated(tmp_path: Path, receiver: Receiver) -> None:
    with LiveServer(tmp_path, tracing="off") as live, httpx.Client(base_url=live.url) as api:
        assert "traceresponse" not in api.get("/v0/topics", headers=TRACED).headers
        assert "traceparent" not in wake(api, receiver)


def test_spans_are_exported(tmp_path: Path, receiver: Receiver, collector: Collector) -> None:
    settings = {"tracing": "export", "otel_endpoint": collector.endpoint, "api_keys": "span-secret"}
    headers = {"authorization": "Bearer span-secret"}
    with (
        LiveServer(tmp_path, **settings, streams_webhook_loopback="1") as live,
        httpx.Client(base_url=live.url, headers=headers) as api,
    ):
        answer = api.post("/v0/topics/a", json={"records": [{"data": 1}]}, headers=TRACED)
        reported = re.fullmatch(rf"00-{TRACE}-([0-9a-f]{{16}})-01", answer.headers["traceresponse"])
        assert reported is not None and reported[1] != SPAN
        api.post("/v0/topics/a/diff", json={"from_seq": "wrong"})
        httpx.get(f"{live.url}/v0/topics", headers={"authorization": "Bearer nobody"})
        called = wake(api, receiver)
        not_sampled = {"traceparent": f"00-{TRACE[::-1]}-{SPAN}-00"}
        assert api.get("/v0/routers", headers=not_sampled).headers["traceresponse"].endswith("-00")
        live.stop()  # It sends the remaining frames.
        written = collector.wait_for("POST /v0/topics/{topic}")
        assert (written.trace_id.hex(), written.parent_span_id.hex(), written.span_id.hex()) == (
            TRACE,
            SPAN,
            reported[1],
        )
        assert written.trace_state == "vendor=7"
        assert written.end_time_unix_nano > written.start_time_unix_nano
        assert attributes(written) == {
            "http.request.method": "POST", "http.route": "/v0/topics/{topic}", "http.response.status_code": 201,
            "messaging.destination.name": "a", "network.protocol.version": "1.1",
        }  # fmt: skip
        read = collector.wait_for("POST /v0/topics/{topic}/diff")
        assert attributes(read)["http.response.status_code"] == 400
        assert read.parent_span_id == b""
        assert 0 < read.end_time_unix_nano - read.start_time_unix_nano < 60e9
        refused = [span for span in collector.spans if attributes(span).get("http.response.status_code") == 401]
        assert len(refused) == 1
        # The webhook is a child of the append that it follows from, and carries its own span.
        append, call = collector.wait_for("POST /v1/stream/{stream}"), collector.wait_for("POST webhook")
        assert call.parent_span_id == append.span_id
        assert called["traceparent"] == f"00-{TRACE}-{call.span_id.hex()}-01"
        assert "GET /v0/routers" not in [span.name for span in collector.spans], "its caller did not want it sampled"
        assert {one["service.name"] for one in collector.resources} == {"topics"}
        assert "span-secret" not in str(collector.spans)


def test_a_collector_that_is_away_is_nobodys_problem(tmp_path: Path) -> None:
    """Nothing listens there. Requests are answered, and the server stops."""
    with LiveServer(tmp_path, tracing="export", otel_endpoint="http://127.0.0.1:9/v1/traces") as live:
        for _ in range(20):
            httpx.post(f"{live.url}/v0/topics/a", json={"records": [{"data": 1}]}).raise_for_status()
        live.stop()
