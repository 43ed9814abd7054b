"""The audit log: refused requests, removals and changes with their key; never a secret."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.api.sockets import open_socket
from tests.http.live import LiveServer

# Only to fail instead of hanging.
_PATIENCE_S = 30.0
ONE = {"records": [{"data": 1}]}


def until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.01)


class Site:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "audit.jsonl"
        self.live = LiveServer(
            folder, api_keys="secret-boss,secret-acme::acme:,secret-reader:read", audit_file=str(self.file),
            pipeline="off",
        )  # fmt: skip

    def client(self, key: str | None) -> httpx.Client:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.live.url, headers=headers, timeout=30.0)

    def entries(self, path: str, count: int = 1) -> list[dict[str, Any]]:
        """Returns the audit entries of a path, once there are so many."""

        def found() -> list[dict[str, Any]]:
            return [entry for entry in map(json.loads, self.file.read_text().splitlines()) if entry.get("path") == path]

        until(lambda: len(found()) >= count)
        return found()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("audit"))
    with made.live:
        yield made


def shape(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(entry.get(name) for name in ("event", "status", "code", "method"))


def test_refused_requests_are_in_the_audit_log(site: Site) -> None:
    with site.client(None) as nobody, site.client("wrong") as stranger, site.client("secret-acme") as acme:
        nobody.get("/v0/topics/a1")
        stranger.get("/v0/topics/a1?token=secret-boss")
        acme.get("/v0/topics/a1")
        acme.post("/v1/stream/a1", json=[1])
    with site.client("secret-reader") as reader:
        reader.post("/v0/topics/a1", json=ONE)
    entries = site.entries("/v0/topics/a1", 4)
    assert [shape(entry) for entry in entries] == [
        ("refused", 401, "unauthorized", "GET"), ("refused", 401, "unauthorized", "GET"),
        ("refused", 403, "forbidden", "GET"), ("refused", 403, "forbidden", "POST"),
    ]  # fmt: skip
    assert [bool(entry.get("key")) for entry in entries] == [False, False, True, True]
    assert entries[2]["key"] != entries[3]["key"]
    assert all(entry["peer"].startswith("127.0.0.1:") and entry["ts"] > 1_500_000_000_000 for entry in entries)
    assert shape(site.entries("/v1/stream/a1")[0])[:2] == ("refused", 403)


def test_refusals_by_the_body_are_in_the_audit_log(site: Site) -> None:
    with site.client("secret-acme") as acme:
        answer = acme.put("/v0/routers/acme:r", json={"source": "acme:1", "dest": "other"})
        assert answer.status_code == 403
        assert acme.post("/v0/watch", json={"topics": {"other": {}}}).status_code == 403
    assert shape(site.entries("/v0/routers/acme:r")[0])[:2] == ("refused", 403)
    assert shape(site.entries("/v0/watch")[0])[:2] == ("refused", 403)
    with open_socket(site.live.url, "secret-acme") as socket:
        socket.refused({"op": "publish", "topic": "other", **ONE}, "forbidden")
    assert shape(site.entries("/v0/ws")[0])[:2] == ("refused", 403)


def test_audit_log_has_deletes_and_changes_only(site: Site) -> None:
    with site.client("secret-boss") as boss:
        boss.post("/v0/topics/b1", json=ONE).raise_for_status()
        boss.post("/v0/topics/b1/diff", json={}).raise_for_status()
        boss.put("/v0/topics/b1", json={"cap_records": 5}).raise_for_status()
        boss.post("/v0/topics/b1/delete", json={"before_seq": 2}).raise_for_status()
        boss.delete("/v0/topics/b1").raise_for_status()
        boss.put("/v1/stream/b2", headers={"content-type": "application/json"}).raise_for_status()
        boss.delete("/v1/stream/b2").raise_for_status()
    changed = [shape(entry)[0::3] for entry in site.entries("/v0/topics/b1", 2)]
    assert changed == [
        ("called", "PUT"),
        ("called", "DELETE"),
    ]
    assert shape(site.entries("/v0/topics/b1/delete")[0])[:2] == ("called", 200)
    assert [shape(entry)[1::2] for entry in site.entries("/v1/stream/b2")] == [(204, "DELETE")]


def test_forced_commits_and_fences_are_noted_and_plain_commits_are_not(site: Site) -> None:
    with site.client("secret-boss") as boss:
        boss.post("/v0/topics/b3", json=ONE).raise_for_status()
        path = "/v0/topics/b3/consumers/c"
        boss.put(path, json={}).raise_for_status()
        for body in ({"seq": 1}, {"seq": 0, "force": True}):
            boss.post(f"{path}/commit", json=body).raise_for_status()
        boss.put("/v0/topics/b3/fence", json={"new_fence": "w"}).raise_for_status()
        boss.delete(path).raise_for_status()
    assert [shape(entry)[:2] for entry in site.entries("/v0/topics/b3/fence")] == [("called", 200)]
    assert [shape(entry)[:2] for entry in site.entries(f"{path}/commit")] == [("called", 200)]
    assert [shape(entry)[3] for entry in site.entries(path)] == ["DELETE"]


def test_changes_of_schedules_are_noted(site: Site) -> None:
    with site.client("secret-boss") as boss:
        boss.post("/v0/topics/b4", json=ONE).raise_for_status()
        boss.put("/v0/schedules/b4", json={"topic": "b4", "cron": "0 3 * * *"}).raise_for_status()
        boss.get("/v0/schedules/b4").raise_for_status()
        boss.delete("/v0/schedules/b4").raise_for_status()
    assert [shape(entry)[3] for entry in site.entries("/v0/schedules/b4", 2)] == ["PUT", "DELETE"]


def test_no_secret_is_in_it(site: Site) -> None:
    with site.client("secret-boss") as boss, site.client(None) as nobody:
        wid = boss.post("/v0/watch", json={"topics": {"t": {}}}).json().get("wid") or "x"
        token = boss.post("/v0/tokens", json={}).json()["token"]
        nobody.get(f"/v1/stream/c1?token={token}x")
        nobody.delete(f"/v0/watch/{wid}")
        nobody.get("/v0/topics/c1", headers={"authorization": "Bearer secret-guess"})
        site.entries("/v0/topics/c1")
    text = site.file.read_text()
    assert all(secret not in text for secret in ("secret-", token, f"/watch/{wid}"))
    assert site.file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_moved_away_is_opened_anew(site: Site) -> None:
    with site.client(None) as nobody:
        nobody.get("/v0/topics/d1")
        site.entries("/v0/topics/d1")
        moved = site.file.rename(site.file.with_suffix(".old"))
        os.kill(site.live.pid, signal.SIGHUP)
        until(site.file.exists)
        nobody.get("/v0/topics/d2")
        site.entries("/v0/topics/d2")
        assert "/v0/topics/d2" not in moved.read_text() and "/v0/topics/d1" not in site.file.read_text()


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    made = Site(tmp_path)
    made.file.symlink_to("/dev/full")
    with made.live, made.client(None) as nobody, made.client("secret-boss") as boss:
        for number in range(50):
            assert nobody.get(f"/v0/topics/{number}").status_code == 401
        assert boss.post("/v0/topics/t", json=ONE).status_code == 201
        until(lambda: "audit log write failed" in made.live.log())
        assert made.live.log().count("audit log write failed") == 1
        made.live.stop()
