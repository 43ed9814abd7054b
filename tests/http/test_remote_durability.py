"""Class `remote` on a real server and a real object store: machines are lost, and nothing acknowledged is lost."""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.http.live import LiveServer
from tests.s3 import S3Server

_PATIENCE_S = 60.0
_WRITERS = 8


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with S3Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


class Writers:
    """Clients that append to one topic and to one stream with keys, until they are stopped."""

    def __init__(self, url: str, life: int) -> None:
        self.acked: list[str] = []
        self.duplicates = 0
        self._stop = threading.Event()
        self._url = url
        self._threads = [
            threading.Thread(target=self._write, args=(f"{life}-{number}",), daemon=True) for number in range(_WRITERS)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, name: str) -> None:
        with httpx.Client(base_url=self._url, trust_env=False, timeout=_PATIENCE_S) as client:
            number = 0
            while not self._stop.is_set():
                value = f"{name}-{number}"
                body = {"records": [{"data": value}], "idempotency_key": value}
                try:
                    answer = client.post("/v0/topics/orders", json=body)
                except httpx.HTTPError:
                    return
                if answer.status_code in (200, 201):
                    self.acked.append(value)
                    number += 1
                elif answer.json()["error"]["code"] != "remote_unavailable":
                    return

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_PATIENCE_S)


def restored(place: str, folder: Path) -> None:
    command = [sys.executable, "-m", "topics", "backup", "restore", str(folder / "data"), "--at", place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr


def everything(client: httpx.Client) -> list[object]:
    found: list[object] = []
    cursor = 0
    while True:
        page = client.post("/v0/topics/orders/diff", json={"from_seq": cursor, "limit": 1000}).json()
        found += [record["data"] for record in page["records"]]
        if page["caught_up"]:
            return found
        cursor = page["next_from_seq"]


def make_topic(client: httpx.Client) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up:
        answer = client.put("/v0/topics/orders", json={"durability": "remote"})
        if answer.status_code in (200, 201):
            assert answer.json()["config"]["durable"] is True
            return
        assert answer.json()["error"]["code"] == "remote_unavailable", answer.text
        time.sleep(0.1)
    raise AssertionError("no topic of class remote was made")


def test_machines_are_lost_under_load_and_no_acknowledged_record_is(tmp_path: Path, s3: S3Server) -> None:
    bucket = s3.make_bucket()
    acked: list[str] = []
    for life in range(3):
        folder, place = tmp_path / f"machine-{life}", f"{bucket}/life-{life}"
        folder.mkdir()
        if life:
            restored(f"{bucket}/life-{life - 1}", folder)
        with (
            LiveServer(folder, backup_dir=place, backup_ship_ms="0", wal_shards="2", remote_flush_ms="20") as server,
            httpx.Client(base_url=server.url, trust_env=False, timeout=_PATIENCE_S) as client,
        ):
            make_topic(client)
            writers = Writers(server.url, life)
            give_up = time.monotonic() + _PATIENCE_S
            while len(writers.acked) < 60 and time.monotonic() < give_up:
                time.sleep(0.02)
            if life == 1:
                client.post("/v0/backups").raise_for_status()
                more = len(writers.acked) + 60
                while len(writers.acked) < more and time.monotonic() < give_up:
                    time.sleep(0.02)
            server.kill()
            writers.stop()
        assert len(writers.acked) >= 60
        acked += writers.acked
        shutil.rmtree(folder)
    last = tmp_path / "last"
    last.mkdir()
    restored(f"{bucket}/life-2", last)
    with (
        LiveServer(last) as server,
        httpx.Client(base_url=server.url, trust_env=False) as client,
    ):
        found = everything(client)
    assert set(acked) <= set(found)
    assert len(found) == len(set(found)), "a key was written twice"


def test_an_unreachable_store_refuses_the_class_and_nothing_else(tmp_path: Path, s3: S3Server) -> None:
    place = s3.make_bucket() + "/backups"
    with (
        LiveServer(tmp_path, backup_dir=place, remote_timeout_ms="1000") as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=_PATIENCE_S) as client,
    ):
        make_topic(client)
        s3.down()
        body = {"records": [{"data": 1}], "idempotency_key": "k"}
        answer = client.post("/v0/topics/orders", json=body)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "remote_unavailable"
        assert answer.json()["error"]["detail"]["in_doubt"] is True
        other = client.post("/v0/topics/local", json={"records": [{"data": 1}], "config": {"durability": "fsync"}})
        assert other.status_code == 201
        s3.up()
        give_up = time.monotonic() + _PATIENCE_S
        while (answer := client.post("/v0/topics/orders", json=body)).status_code != 200:
            assert answer.json()["error"]["code"] == "remote_unavailable"
            assert time.monotonic() < give_up
            time.sleep(0.1)
        assert answer.json()["deduped"] is True
        assert everything(client) == [1]


def test_a_server_without_a_backup_storage_names_the_setting(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as server, httpx.Client(base_url=server.url, trust_env=False) as client:
        answer = client.put("/v0/topics/orders", json={"durability": "remote"})
        assert answer.json()["error"]["code"] == "no_backup_place"
        assert "TOPICS_BACKUP_DIR" in answer.json()["error"]["message"]
        assert client.get("/v0/topics/orders").status_code == 404
