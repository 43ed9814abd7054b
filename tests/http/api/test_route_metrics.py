"""Answers are counted by route and status, and logged when that is configured."""

import json
import re
from pathlib import Path
from typing import Any

import httpx

from tests.http.live import LiveServer, wait_until_ready
from tests.http.pipelined import pipeline

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def counted(live: LiveServer, **headers: str) -> dict[tuple[str, str, str], int]:
    text = httpx.get(f"{live.url}/v0/metrics", params={"topics": "false"}, headers=headers).text
    found = re.findall(
        r'^topics_http_route_requests_total\{method="(\w*)",route="([^"]*)",status="(\d+)"\} (\S+)$', text, re.M
    )
    return {(method, route, status): int(float(count)) for method, route, status, count in found}


def test_every_way_of_answering_is_counted_once(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live:
        with httpx.Client(base_url=live.url) as api:
            for _ in range(3):
                api.post("/v0/topics/a", json={"records": [{"data": 1}]}).raise_for_status()
            api.get("/v0/topics/nothing")
            api.get("/nowhere")
            api.post("/v0/topics/a/diff", json={"from_seq": "x"})
            api.put("/v1/stream/s/1", headers={"content-type": "text/plain"})
            api.head("/v1/stream/s/1")
            made = api.post("/v0/watch", json={"topics": {"a": {}}}).json()
            with api.stream("GET", made["stream_url"]) as stream:
                assert next(stream.iter_bytes())
            big = "x" * 200_000
            api.post("/v0/topics/a", json={"records": [{"data": big}]}).raise_for_status()
            api.post("/v0/topics/a/diff", json={}, headers={"accept-encoding": "gzip"}).raise_for_status()
        body = b'{"records":[{"data":2}]}'
        head = b"POST /v0/topics/b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        request = head + b"content-length: %d\r\n\r\n%b" % (len(body), body)
        assert pipeline(live.url, [request] * 40).count(b"HTTP/1.1 20") == 40
        now = counted(live)
        of = {key[1:]: count for key, count in now.items()}
        assert of["/v0/topics/{topic}", "201"] == 2
        assert of["/v0/topics/{topic}", "200"] == 3 + 39
        assert of["/v0/topics/{topic}", "404"] == 1
        assert of["", "404"] == 1
        assert of["/v0/topics/{topic}/diff", "400"] == of["/v0/topics/{topic}/diff", "200"] == 1
        assert now["PUT", "/v1/stream/{stream}", "201"] == 1
        assert of["/v0/watch", "200"] == of["/v0/watch/{wid}", "200"] == 1
        text = httpx.get(f"{live.url}/v0/metrics").text
        line = 'topics_http_request_duration_seconds_count{method="POST",route="/v0/topics/{topic}"} 44.0'
        assert line in text
        assert (
            'topics_http_request_duration_seconds_bucket{le="+Inf",method="POST",route="/v0/topics/{topic}"} 44.0'
            in text
        )
        assert re.search(r"^process_resident_memory_bytes \d", text, re.M)


def lines(live: LiveServer) -> list[dict[str, Any]]:
    said = [json.loads(line) for line in live.log().splitlines() if line.startswith("{")]
    return [line for line in said if line["logger"] == "topics.access"]


def test_the_access_log_has_every_answer_and_no_secret(tmp_path: Path) -> None:
    with LiveServer(tmp_path, access_log="1", api_keys="hush-secret,other-secret:read") as live:
        headers = {"authorization": "Bearer hush-secret", "traceparent": f"00-{TRACE}-{SPAN}-01"}
        with httpx.Client(base_url=live.url) as api:
            wait_until_ready(live.url)
            ready = len(lines(live))
            api.post("/v0/topics/a", json={"records": [{"data": 1}]}, headers=headers).raise_for_status()
            token = api.post("/v0/tokens", headers=headers).json()["token"]
            api.get("/v1/stream/a", params={"token": token})
            api.get("/v0/topics")
        live.stop()
        first, _, by_token, refused = lines(live)[ready:]
        assert (first["method"], first["path"], first["status"], first["key"]) == ("POST", "/v0/topics/a", 201, "#1")
        assert (first["trace_id"], first["span_id"]) == (TRACE, SPAN)
        assert first["took_ms"] > 0
        assert first["peer"].startswith("127.0.0.1:")
        assert by_token["path"] == "/v1/stream/a"
        assert refused["status"] == 401
        assert "trace_id" not in refused
        assert token not in live.log()
        assert "hush-secret" not in live.log()


def test_the_level_states_how_much_is_logged(tmp_path: Path) -> None:
    with LiveServer(tmp_path, log_level="error", access_log="1") as live:
        live.stop()
        assert live.log() == ""
