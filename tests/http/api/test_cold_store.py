"""A server whose old segments are in an object store, over HTTP on both sides: the effects of that store for
callers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

from tests.http.live import LiveServer
from tests.s3 import S3Server
from topics.log.object_store.obstore_client import RemoteStore

_PATIENCE_S = 60.0


def wait_until(holds: Callable[[], bool]) -> None:
    give_up = monotonic() + _PATIENCE_S
    while not holds():
        assert monotonic() < give_up
        sleep(0.05)


def moved(client: httpx.Client, folder: Path) -> bool:
    """Whether three segments are in the store only. Without writes there would be no checkpoint."""
    assert client.post("/v0/topics/busy", json={"records": [{"data": 1}], "config": {"cap_records": 1}}).is_success
    near = list(folder.glob("data/near/topics/0000000000000001/seg-*.idx"))
    return len(near) == 3 and not list(folder.glob("data/topics/0000000000000001/seg-*.data"))


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with S3Server() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield store


def live(folder: Path, url: str) -> LiveServer:
    return LiveServer(
        folder,
        cold_dir=url,
        hot_retain_segments="0",
        segment_max_events="10",
        snapshot_interval_ms="100",
        streams_registry="0",
        streams_metrics="0",
    )


def diff(client: httpx.Client, from_seq: int = 0) -> httpx.Response:
    return client.post("/v0/topics/t/diff", json={"from_seq": from_seq, "limit": 1000})


def ready(client: httpx.Client) -> bool:
    return client.get("/readyz").status_code == 200


def sample(client: httpx.Client, name: str, **labels: str) -> float:
    """A number of the metrics."""
    found = client.get("/v0/metrics", headers={"accept": "application/json"}).json()[name]
    if not labels:
        return float(found)
    (value,) = [one["value"] for one in found if one["labels"] == labels]
    return float(value)


def test_a_store_that_is_away_is_reported_as_such_and_loses_nothing(s3: S3Server, tmp_path: Path) -> None:
    url = s3.make_bucket() + "/cold"
    with live(tmp_path, url) as server, httpx.Client(base_url=server.url, timeout=_PATIENCE_S) as client:
        for number in range(35):
            assert client.post("/v0/topics/t", json={"records": [{"data": number}]}).is_success
        wait_until(lambda: moved(client, tmp_path))
        whole = diff(client).json()
        assert [record["data"] for record in whole["records"]] == list(range(35))
        assert sample(client, "topics_cold_store_requests_total", kind="put", outcome="ok") >= 6
        assert sample(client, "topics_cold_store_sent_bytes_total") > 0
        assert sample(client, "topics_cold_store_received_bytes_total") > 0
        assert sample(client, "topics_cold_cache_misses_total") >= 3
        assert sample(client, "topics_cold_cache_bytes") > 0
        assert sample(client, "topics_cold_store_paused") == 0

        # A start fetches no segment, so from here on they are in the store only; and it needs no store.
        server.stop()
        s3.down()
        server.start()
        wait_until(lambda: ready(client))
        refused = diff(client)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "cold_store_unavailable"
        assert int(refused.headers["Retry-After"]) >= 1
        # The first request reached the store; the following ones were answered without it.
        kinds = ("get", "put", "delete", "list")
        unanswered = [sample(client, "topics_cold_store_requests_total", kind=k, outcome="unavailable") for k in kinds]
        assert sum(unanswered) >= 1
        assert sample(client, "topics_cold_store_requests_total", kind="get", outcome="missing") == 0
        assert "a-secret" not in refused.text + server.log()
        assert "tombstone" not in refused.text
        assert [record["data"] for record in diff(client, 30).json()["records"]] == [30, 31, 32, 33, 34]
        stream = client.get("/v1/stream/t")
        assert stream.status_code == 503

        # Writes, deletes and checkpoints go on.
        assert client.post("/v0/topics/t", json={"records": [{"data": 35}]}).is_success
        assert client.post("/v0/topics/t/delete", json={"before_seq": 6}).json()["deleted"] == 5

        s3.up()
        wait_until(lambda: diff(client).status_code == 200)
        answer = diff(client).json()
        assert [record["data"] for record in answer["records"]] == list(range(5, 36))
        assert not answer.get("tombstone")
        server.stop()


def stored_objects(url: str, folder: str) -> dict[str, int]:
    """The bytes of the objects in a folder of the store."""
    store = RemoteStore(url)
    return {name: store.size(f"{folder}/{name}") for name in store.list_folder(folder).objects}


def details(client: httpx.Client, name: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/v1/stream/{name}/_details").raise_for_status().json()
    return found


def test_requests_and_bytes_in_the_store_are_reported_by_stream(s3: S3Server, tmp_path: Path) -> None:
    url = s3.make_bucket() + "/cold"
    with live(tmp_path, url) as server, httpx.Client(base_url=server.url, timeout=_PATIENCE_S) as client:
        for number in range(35):
            assert client.post("/v0/topics/t", json={"records": [{"data": number}]}).is_success
        wait_until(lambda: moved(client, tmp_path))
        found = details(client, "t")
        requests, stored = found["object_store_requests"], found["storage"]["object_storage"]
        of_kind = {row["artifact"]: row for row in requests["by_artifact"]}
        assert {kind: row["puts"] for kind, row in of_kind.items()} == {"segment": "3", "segment_index": "3"}
        assert requests["puts"] == "6"
        assert requests["reads"] == str(sum(int(requests[name]) for name in ("gets", "heads", "lists")))
        objects = stored_objects(url, "topics/0000000000000001")
        for field, ending in (("segments_bytes", ".data"), ("indexes_bytes", ".idx")):
            mine = [size for name, size in objects.items() if name.endswith(ending)]
            assert (len(mine), stored[field]) == (3, str(sum(mine)))
        local = client.get("/v1/server/_mem").json()["top_streams"]["local_storage_bytes"]
        assert [one["segment_cache_bytes"] for one in local if one["stream"] == "t"] in ([], [0])
        # A read of cold segments fetches them, once, and keeps copies.
        cached, gets = found["storage"]["local_storage"]["segment_cache_bytes"], int(requests["gets"])
        assert len(diff(client).json()["records"]) == 35
        assert len(diff(client).json()["records"]) == 35
        after = details(client, "t")
        assert int(after["object_store_requests"]["gets"]) == gets + 3
        assert after["storage"]["local_storage"]["segment_cache_bytes"] == str(
            int(cached) + int(stored["segments_bytes"])
        )
        # Another stream has its own numbers.
        client.post("/v0/topics/other", json={"records": [{"data": 1}]})
        assert details(client, "other")["object_store_requests"]["by_artifact"] == []


def test_a_server_with_nothing_of_its_own_waits_for_the_store(s3: S3Server, tmp_path: Path) -> None:
    url = s3.make_bucket() + "/cold"
    s3.down()
    server = live(tmp_path, url).start()
    try:
        wait_until(lambda: "cold_store_unavailable" in server.log() or "does not answer" in server.log())
    finally:
        server.kill()
