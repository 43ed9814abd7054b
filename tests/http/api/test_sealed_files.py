"""Segments over HTTP, for Spark tasks on machines without the data folder."""

from pathlib import Path

import httpx
import pytest

from tests.http.live import LiveServer
from topics_client import Client

_KEYS = "boss,acme::acme:,reader:read"


def test_parts_of_a_segment_join_to_the_file(tmp_path: Path) -> None:
    with LiveServer(tmp_path, segment_max_events="10", snapshot_interval_ms="200") as server:
        with Client(server.url) as client:
            client.append_many("orders", [{"n": n} for n in range(40)])
        server.stop()
        server.start()
        [file, *_] = sorted((tmp_path / "data/topics").rglob("seg-*.data"))
        whole, path = file.read_bytes(), str(file.relative_to(tmp_path / "data"))
        url, found = f"{server.url}/v0/pipeline/files", b""
        while len(found) < len(whole):
            answer = httpx.get(url, params={"path": path, "offset": len(found), "length": 100_000})
            assert answer.status_code == 200
            assert answer.headers["topics-file-bytes"] == str(len(whole))
            assert answer.headers["content-type"] == "application/octet-stream"
            found += answer.content
        assert found == whole
        beyond = httpx.get(url, params={"path": path, "offset": len(whole) + 5})
        assert (beyond.status_code, beyond.content) == (200, b"")
        gone = httpx.get(url, params={"path": path.replace("topics/0", "topics/f")})
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "topics/../.topics.lock", "machine", "wal/shard-00/x.wal", "families/a/../../x"]
)
def test_other_files_are_refused(tmp_path: Path, path: str) -> None:
    with LiveServer(tmp_path) as server:
        answer = httpx.get(f"{server.url}/v0/pipeline/files", params={"path": path})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
        bad = httpx.get(f"{server.url}/v0/pipeline/files", params={"path": "meta/catalog", "offset": "-1"})
        assert bad.status_code == 400


@pytest.mark.parametrize(("key", "status"), [("boss", 404), ("acme", 403), ("reader", 403), ("", 401)])
def test_files_need_the_scope_admin_and_a_key_without_prefixes(tmp_path: Path, key: str, status: int) -> None:
    with LiveServer(tmp_path, api_keys=_KEYS) as server:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        asked = {"path": f"topics/{1:016x}/seg-{1:020d}.data"}
        assert httpx.get(f"{server.url}/v0/pipeline/files", params=asked, headers=headers).status_code == status
