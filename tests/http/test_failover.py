"""Failover of real servers through a real object store: primaries are killed, paused, stopped and demoted under load,
and the standby takes over without a loss in class remote."""

import os
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
from topics_client import Client, ClientOptions, RetryPolicy

_PATIENCE_S = 90.0
LEASE_MS = 2000


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with S3Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


class Pair:
    """Two servers at one place; the first one is the primary."""

    def __init__(self, tmp_path: Path, place: str) -> None:
        self.place = place
        self.servers = []
        for name in ("first", "second"):
            folder = tmp_path / name
            folder.mkdir()
            self.servers.append(
                LiveServer(
                    folder, backup_dir=place, primary_lease_ms=str(LEASE_MS), standby="1", backup_ship_ms="1000",
                    remote_flush_ms="20",
                )
            )  # fmt: skip
        for server in self.servers:
            server.start()
            if server is self.servers[0]:
                wait_for_primary([server])

    def close(self) -> None:
        for server in self.servers:
            if server._process is not None and server._process.poll() is None:
                server.kill()

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]


@pytest.fixture
def pair(tmp_path: Path, s3: S3Server) -> Iterator[Pair]:
    made = Pair(tmp_path, s3.make_bucket() + "/place")
    yield made
    made.close()


def ready(server: LiveServer) -> httpx.Response | None:
    try:
        return httpx.get(f"{server.url}/v0/ready", trust_env=False, timeout=_PATIENCE_S)
    except httpx.HTTPError:
        return None


def wait_for_primary(servers: list[LiveServer], above_term: int = 0) -> tuple[LiveServer, int]:
    """The server that is ready, and its term."""
    give_up = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up:
        for server in servers:
            answer = ready(server)
            if answer is not None and answer.status_code == 200 and answer.json()["primary_term"] > above_term:
                return server, answer.json()["primary_term"]
        time.sleep(0.02)
    raise AssertionError("no server became the primary:\n" + "\n".join(server.log() for server in servers))


def request(urls: list[str], method: str, path: str, body: object = None) -> httpx.Response:
    """The answer of the primary, whichever server that is; a request is sent again until there is one."""
    give_up = time.monotonic() + _PATIENCE_S
    at = 0
    while time.monotonic() < give_up:
        try:
            answer = httpx.request(method, urls[at % len(urls)] + path, json=body, trust_env=False, timeout=5)
            if answer.status_code < 400:
                return answer
            assert answer.status_code in (421, 503), answer.text
        except httpx.HTTPError:
            pass
        at += 1
        time.sleep(0.02)
    raise AssertionError(f"nobody answers {method} {path}")


class Writers:
    """Clients that append values with keys, and send each again until it is acknowledged."""

    def __init__(self, urls: list[str], count: int = 4) -> None:
        self.acked: list[str] = []
        self._urls = urls
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,), daemon=True) for number in range(count)]
        # One of them leaves the search for the primary to the client.
        self._threads.append(threading.Thread(target=self._write_with_client, daemon=True))
        for thread in self._threads:
            thread.start()

    def _write_with_client(self) -> None:
        options = ClientOptions(retry=RetryPolicy(deadline_s=_PATIENCE_S), timeout_s=5)
        with Client(",".join(self._urls), options=options, env={}) as client:
            number = 0
            while not self._stop.is_set():
                client.append("orders", f"client-{number}")
                self.acked.append(f"client-{number}")
                number += 1

    def _write(self, writer: int) -> None:
        number = 0
        while not self._stop.is_set():
            value = f"{writer}-{number}"
            body = {"records": [{"data": value}], "idempotency_key": value}
            request(self._urls, "POST", "/v0/topics/orders", body)
            self.acked.append(value)
            number += 1

    def wait_for(self, more: int) -> None:
        wanted, give_up = len(self.acked) + more, time.monotonic() + _PATIENCE_S
        while len(self.acked) < wanted:
            assert time.monotonic() < give_up, "nothing is acknowledged any more"
            time.sleep(0.02)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_PATIENCE_S)
            assert not thread.is_alive()


def everything(urls: list[str]) -> list[str]:
    found: list[str] = []
    cursor = 0
    while True:
        page = request(urls, "POST", "/v0/topics/orders/diff", {"from_seq": cursor, "limit": 1000}).json()
        if page["tombstone"] is not None:
            assert page["tombstone"]["reason"] == "failover"
        found += [record["data"] for record in page["records"]]
        if page["caught_up"]:
            return found
        cursor = page["next_from_seq"]


def make_topic(pair: Pair) -> None:
    request(pair.urls, "PUT", "/v0/topics/orders", {"durability": "remote"})


def check(pair: Pair, writers: Writers) -> None:
    writers.stop()
    found = everything(pair.urls)
    assert set(writers.acked) <= set(found), "acknowledged and lost"
    assert len(found) == len(set(found)), "a key was written twice"


def test_primaries_are_killed_under_load_and_no_acknowledged_record_is_lost(pair: Pair) -> None:
    make_topic(pair)
    writers, term = Writers(pair.urls), 1
    for _ in range(3):
        writers.wait_for(20)
        primary, term = wait_for_primary(pair.servers, term - 1)
        primary.kill()
        primary.start()
    writers.wait_for(20)
    assert wait_for_primary(pair.servers)[1] > 2
    check(pair, writers)


def test_a_primary_that_was_paused_adds_nothing_to_the_history_and_ends(pair: Pair) -> None:
    make_topic(pair)
    writers = Writers(pair.urls)
    writers.wait_for(20)
    paused, standby = pair.servers
    with paused.held():
        wait_for_primary([standby])
        writers.wait_for(20)
    give_up = time.monotonic() + _PATIENCE_S
    body = {"records": [{"data": "to the paused one"}], "node": "late"}
    while paused._process is not None and paused._process.poll() is None:
        assert time.monotonic() < give_up, "it goes on without the lease"
        try:
            answer = httpx.post(f"{paused.url}/v0/topics/orders", json=body, trust_env=False, timeout=5)
            assert answer.status_code in (421, 503), answer.text
        except httpx.HTTPError:
            pass
        time.sleep(0.05)
    assert "primary lease lost" in paused.log()
    check(pair, writers)
    assert "to the paused one" not in everything(pair.urls)
    paused.kill()
    paused.start()
    assert request([standby.url], "GET", "/v0/topics/orders").status_code == 200
    while (found := ready(paused)) is None or found.status_code == 503:
        assert time.monotonic() < give_up, "it never finds the primary"
        time.sleep(0.02)
    assert (found.status_code, found.json()["error"]["detail"]["primary"]) == (421, standby.url)


def test_a_clean_stop_and_promote_hand_over_at_once_and_lose_nothing(pair: Pair) -> None:
    first, second = pair.servers
    make_topic(pair)
    request([first.url], "POST", "/v0/topics/local", {"records": [{"data": 1}]})
    first.stop()
    wait_for_primary([second])
    page = request([second.url], "POST", "/v0/topics/local/diff", {"from_seq": 0}).json()
    assert [record["data"] for record in page["records"]] == [1], "the rest of the log was shipped by the stop"
    first.start()
    body = {"records": [{"data": "kept"}]}
    request([second.url], "POST", "/v0/topics/orders", body)
    command = [sys.executable, "-m", "topics", "promote", "--at", pair.place, "--yes"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "term 2" in done.stdout
    wait_for_primary([first], above_term=2)
    assert everything([first.url]) == ["kept"]
    shown = subprocess.run(
        [sys.executable, "-m", "topics", "primary", "--at", pair.place, "-o", "json"],
        capture_output=True, text=True, timeout=_PATIENCE_S, check=False, env=os.environ,
    )  # fmt: skip
    assert f'"address":"{first.url}"' in shown.stdout


def test_a_primary_without_its_storage_refuses_writes_and_goes_on_when_it_is_back(tmp_path: Path, s3: S3Server) -> None:
    with LiveServer(
        tmp_path, backup_dir=s3.make_bucket(), primary_lease_ms=str(LEASE_MS), remote_timeout_ms="2000"
    ) as server:
        body = {"records": [{"data": 1}]}
        assert httpx.post(f"{server.url}/v0/topics/local", json=body, trust_env=False).status_code == 201
        s3.down()
        give_up = time.monotonic() + _PATIENCE_S
        while (answer := httpx.post(f"{server.url}/v0/topics/local", json=body, trust_env=False)).status_code == 200:
            assert time.monotonic() < give_up
            time.sleep(0.05)
        assert answer.json()["error"]["code"] == "lease_ended"
        assert httpx.get(f"{server.url}/v0/topics/local", trust_env=False).status_code == 200
        found = ready(server)
        assert found is not None
        assert found.status_code == 503
        s3.up()
        request([server.url], "POST", "/v0/topics/local", body)


def test_a_standby_without_a_lease_or_a_place_does_not_start(tmp_path: Path) -> None:
    for settings, missing in (
        ({"TOPICS_STANDBY": "1"}, "TOPICS_PRIMARY_LEASE_MS"),
        ({"TOPICS_PRIMARY_LEASE_MS": "5000"}, "TOPICS_BACKUP_DIR"),
        ({"TOPICS_PRIMARY_LEASE_MS": "5", "TOPICS_BACKUP_DIR": str(tmp_path / "place")}, "1000 or more"),
    ):
        command = [sys.executable, "-m", "topics", "serve", "--data-dir", str(tmp_path / "data"), "--port", "0"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False, env={**os.environ, **settings}
        )
        assert done.returncode == 2, done.stderr
        assert missing in done.stderr
