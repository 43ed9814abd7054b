"""Connections without end take no descriptor that the log needs."""

import contextlib
import socket
from pathlib import Path

import httpx

from tests.http.live import LiveServer

LIMIT = 160
SERVE = (
    "-c",
    "import resource, sys; from topics.cli import main; "
    f"resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT})); sys.exit(main(['serve']))",
)


def test_idle_connections_leave_the_log_and_its_segments_alone(tmp_path: Path) -> None:
    """Log files are turned and sealed segments are read while more connections come than there are descriptors."""
    server = LiveServer(
        tmp_path, SERVE, wal_file_bytes="65536", segment_max_events="20", map_cache_bytes="1000000000", pipeline="off"
    )
    with server, contextlib.ExitStack() as idle, httpx.Client(base_url=server.url, timeout=60.0) as client:
        port = int(server.url.rpartition(":")[2])
        for _ in range(2 * LIMIT):
            idle.enter_context(socket.create_connection(("127.0.0.1", port)))
        for number in range(60):
            body = {"records": [{"data": "x" * 100}] * 20, "config": {"durability": "fsync"}}
            answer = client.post(f"/v0/topics/topic-{number % 3}", json=body)
            assert answer.status_code in (200, 201), answer.text
        for number in range(3):
            cursor = 0
            while cursor < 400:
                answer = client.post(f"/v0/topics/topic-{number}/diff", json={"from_seq": cursor, "limit": 20})
                assert answer.status_code == 200, answer.text
                cursor = answer.json()["next_from_seq"]
        ready = client.get("/v0/ready")
        assert ready.status_code == 200 and ready.json()["read_only_shards"] == []
        metrics = client.get("/v0/metrics", headers={"accept": "application/json"}).json()
        assert metrics["topics_http_connections"] <= 1 + metrics["topics_http_connections_max"]
        assert metrics["topics_http_connections_max"] == LIMIT // 2
        assert metrics["wal"]["rotations"] == 0 and len(list((tmp_path / "data/wal/shard-00").iterdir())) > 1
