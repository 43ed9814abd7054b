"""An acknowledged write is answered again after a restart, however the server ended."""

import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.live import LiveServer, wait_until_ready

CLASSES = ("ephemeral", "memory", "disk", "fsync")


def records(client: httpx.Client, name: str) -> list[Any]:
    found, cursor = [], 0
    while True:
        page = client.post(f"/v0/topics/{name}/diff", json={"from_seq": cursor}).json()
        found += [record["data"] for record in page["records"]]
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            return found


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_acknowledged_appends_deletes_and_keys_are_there_again(tmp_path: Path, ending: str) -> None:
    live = LiveServer(tmp_path, wal_shards="2", segment_max_events="50")
    with live:
        with httpx.Client(base_url=live.url, timeout=30.0) as client:
            for durability in CLASSES:
                client.put(f"/v0/topics/{durability}", json={"durability": durability})
                for batch in range(20):
                    body: dict[str, Any] = {"records": [{"data": [batch, n], "tag": f"n{n}"} for n in range(10)]}
                    body |= {"idempotency_key": f"{batch}"}
                    assert client.post(f"/v0/topics/{durability}", json=body).is_success
                client.post(f"/v0/topics/{durability}/delete", json={"match": "n3"})
        getattr(live, ending)()
        live.start()
        wait_until_ready(live.url)
        expected = [[batch, n] for batch in range(20) for n in range(10) if n != 3]
        with httpx.Client(base_url=live.url, timeout=30.0) as client:
            # A killed process leaves the page cache to the kernel, so written data is there as well.
            for durability in ("memory", "disk", "fsync"):
                assert records(client, durability) == expected
                again = client.post(f"/v0/topics/{durability}", json={"records": [{"data": 0}], "idempotency_key": "7"})
                assert (again.json()["deduped"], again.json()["first_seq"]) == (True, 71)
                fresh = client.post(f"/v0/topics/{durability}", json={"records": [{"data": 0}]}).json()
                assert fresh["first_seq"] > 200
            gone = client.post("/v0/topics/ephemeral/diff", json={}).json()
            assert (gone["records"], gone["tombstone"]["reason"]) == ([], "crash")
            assert gone["tombstone"]["gap_from"] == 1
            assert gone["tombstone"]["gap_to"] >= 200 or ending == "kill"
            # Lost records count as never appended: a writer that repeats itself gets the same answers.
            again = client.post("/v0/topics/ephemeral", json={"records": [{"data": 0}], "idempotency_key": "7"})
            assert again.json()["deduped"] is False
            assert records(client, "ephemeral") == [0]


def test_stopping_server_answers_waiting_requests(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, httpx.Client(base_url=live.url, timeout=60.0) as client:
        client.post("/v0/topics/t", json={"records": [{"data": 1}]})
        answers: list[httpx.Response] = []

        def wait() -> None:
            answers.append(client.post("/v0/topics/t/diff", json={"from_seq": 1, "wait_ms": 30_000}))

        waiting = threading.Thread(target=wait)
        waiting.start()
        with httpx.Client(base_url=live.url) as other:
            # A read leaves this mark, so the waiting one has arrived.
            while other.get("/v0/topics/t?touch=false").json()["last_read_ts"] is None:
                pass
        live.stop()
        waiting.join(60.0)
    assert (answers[0].status_code, answers[0].json()["records"], answers[0].json()["caught_up"]) == (200, [], True)


def test_a_stop_finishes_an_accepted_upload_and_refuses_new_connections_by_name(tmp_path: Path) -> None:
    body = b'{"records":[{"data":"uploaded"}]}'
    with LiveServer(tmp_path, drain_ms="60000") as live:
        host, port = live.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 30) as upload:
            head = b"POST /v0/topics/t HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            upload.sendall(head % (host.encode(), len(body)) + b"expect: 100-continue\r\n\r\n")
            assert upload.recv(100).startswith(b"HTTP/1.1 100")
            upload.sendall(body[:10])
            os.kill(live.pid, signal.SIGTERM)
            for _ in range(100_000):
                answer = httpx.get(f"{live.url}/v0/topics", trust_env=False)
                if answer.status_code != 200:
                    break
            # For as long as the last answer is not sent.
            for _ in range(20):
                refused(httpx.get(f"{live.url}/v0/topics", trust_env=False), 503, "shutting_down")
            upload.sendall(body[10:])
            assert upload.recv(100).startswith(b"HTTP/1.1 201")
        live.stop()
        live.start()
        wait_until_ready(live.url)
        found = httpx.post(f"{live.url}/v0/topics/t/diff", json={}, trust_env=False).json()
        assert [record["data"] for record in found["records"]] == ["uploaded"]
