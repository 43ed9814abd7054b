"""A standby that serves reads, through a real object store: both protocols, watches, searches and refusals, while its
primary writes, is restarted and fails."""

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.live import LiveServer
from tests.s3 import S3Server
from topics_client import Client

_PATIENCE_S = 90.0
LEASE_MS = 2000


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with S3Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


class Pair:
    def __init__(self, tmp_path: Path, place: str, **settings: str) -> None:
        self.servers = []
        for name in ("primary", "standby"):
            (tmp_path / name).mkdir()
            self.servers.append(
                LiveServer(
                    tmp_path / name, backup_dir=place, primary_lease_ms=str(LEASE_MS), standby="1", standby_reads="1",
                    standby_poll_ms="20", backup_ship_ms="200", remote_flush_ms="20", **settings,
                )
            )  # fmt: skip
            self.servers[-1].start()
            self.wait_for("primary", self.servers[:1])
        self.primary, self.standby = self.servers
        self.wait_for("standby", [self.standby])

    def wait_for(self, role: str, servers: list[LiveServer]) -> LiveServer:
        give_up = time.monotonic() + _PATIENCE_S
        while time.monotonic() < give_up:
            for server in servers:
                try:
                    answer = ask(server, "GET", f"/v0/ready?role={role}")
                except httpx.HTTPError:
                    continue
                if answer.status_code == 200:
                    assert answer.json()["role"] == role
                    return server
            time.sleep(0.02)
        raise AssertionError(f"no {role}:\n" + "\n".join(server.log() for server in servers))

    def close(self) -> None:
        for server in self.servers:
            if server._process is not None and server._process.poll() is None:
                server.kill()


@pytest.fixture
def pair(tmp_path: Path, s3: S3Server) -> Iterator[Pair]:
    made = Pair(tmp_path, s3.make_bucket() + "/place")
    yield made
    made.close()


def ask(server: LiveServer, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
    return httpx.request(
        method, server.url + path, json=body, trust_env=False, timeout=_PATIENCE_S,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )  # fmt: skip


def append(server: LiveServer, value: object) -> None:
    """Appends a record of class remote, once the first backup is there."""
    body = {"records": [{"data": value}], "idempotency_key": f"key-{value}"}
    give_up = time.monotonic() + _PATIENCE_S
    while (answer := ask(server, "POST", "/v0/topics/orders", body)).status_code == httpx.codes.SERVICE_UNAVAILABLE:
        assert time.monotonic() < give_up, answer.text
    assert answer.status_code == httpx.codes.OK, answer.text


def until(server: LiveServer, method: str, path: str, expected: object, body: object = None) -> httpx.Response:
    """The answer of the standby once it has what was written."""
    give_up = time.monotonic() + _PATIENCE_S
    answer = None
    while time.monotonic() < give_up:
        try:
            answer = ask(server, method, path, body)
        except httpx.HTTPError:
            continue
        if answer.status_code == 200 and found_in(answer) == expected:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"{answer and answer.text}\n{server.log()}")


def found_in(answer: httpx.Response) -> object:
    value: Any = answer.json()
    if isinstance(value, list):
        return value
    if "records" in value:
        return [record["data"] for record in value["records"]]
    return [hit["source"]["status"] for hit in value["hits"]] if "hits" in value else value.get("ready")


def test_both_protocols_are_read_from_the_standby_and_writes_name_the_primary(pair: Pair) -> None:
    primary, standby = pair.servers
    assert ask(primary, "POST", "/v0/topics/orders", {"records": [{"data": 1}, {"data": 2}]}).status_code == 201
    ask(primary, "PUT", "/v0/topics/jobs", {"type": "queue"})
    ask(primary, "POST", "/v0/topics/jobs", {"records": [{"data": "job"}]})
    headers = {"content-type": "application/json"}
    httpx.put(f"{primary.url}/v1/stream/chat", headers=headers, trust_env=False)
    httpx.post(f"{primary.url}/v1/stream/chat", headers=headers, content=b'{"n":1}', trust_env=False)
    answer = until(standby, "POST", "/v0/topics/orders/diff", [1, 2], {"from_seq": 0})
    assert answer.headers["topics-role"] == "standby"
    assert int(answer.headers["topics-lag-ms"]) >= 0
    until(standby, "GET", "/v1/stream/chat?offset=-1", [{"n": 1}])
    assert ask(standby, "GET", "/v0/topics/jobs").json()["queue"]["ready"] == 1
    writes = [
        ("POST", "/v0/topics/orders", {"records": [{"data": 3}]}), ("DELETE", "/v0/topics/orders", None),
        ("PUT", "/v0/topics/new", {}), ("POST", "/v0/topics/jobs/claim", {"node": "n"}),
        ("POST", "/v1/stream/chat", {"n": 2}), ("PUT", "/v0/topics/orders/consumers/c", {}),
        ("POST", "/v0/backups", None),
    ]  # fmt: skip
    for method, path, body in writes:
        answer = ask(standby, method, path, body)
        assert answer.status_code == 421, (path, answer.text)
        assert answer.json()["error"]["detail"]["primary"] == primary.url if path.startswith("/v0") else True
        answer = ask(standby, method, path, body, topics_primary="redirect")
        assert (answer.status_code, answer.headers["location"]) == (307, primary.url + path)
    assert ask(standby, "GET", "/v0/topics/orders", topics_primary="require").status_code == 421
    assert ask(primary, "GET", "/v0/topics/orders", topics_primary="require").status_code == 200
    assert [ask(server, "GET", "/v0/ready?role=standby").status_code for server in pair.servers] == [503, 200]
    assert [ask(server, "GET", "/v0/ready?role=primary").status_code for server in pair.servers] == [200, 421]
    answer = ask(standby, "GET", "/v0/ready").json()
    assert (answer["role"], answer["primary"], answer["primary_term"]) == ("standby", primary.url, None)
    command = [sys.executable, "-m", "topics", "status", "--url", f"{primary.url},{standby.url}", "-o", "json"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [(row["role"], row["state"], row["term"]) for row in rows] == [
        ("primary", "ready", 1), ("standby", "ready", None),
    ]  # fmt: skip
    assert rows[1]["primary"] == primary.url
    with Client(f"{standby.url},{primary.url}", env={}) as client:
        client.append("orders", 3)
        assert [record.data for record in client.diff("orders", 0).records] == [1, 2, 3], "of the primary"
    metrics = ask(standby, "GET", "/v0/metrics").text
    assert "topics_standby_objects" in metrics
    assert "topics_standby_lag_ms -1" in ask(primary, "GET", "/v0/metrics").text


def test_an_event_stream_and_a_long_poll_of_the_standby_get_new_records(pair: Pair) -> None:
    primary, standby = pair.servers
    ask(primary, "POST", "/v0/topics/orders", {"records": [{"data": 1}]})
    until(standby, "POST", "/v0/topics/orders/diff", [1], {"from_seq": 0})
    found: list[object] = []

    def poll() -> None:
        body = {"from_seq": 1, "wait_ms": 60_000}
        found.extend(found_in(ask(standby, "POST", "/v0/topics/orders/diff", body)))  # type: ignore[arg-type]

    waiting = threading.Thread(target=poll, daemon=True)
    waiting.start()
    address = f"{standby.url}/v1/stream/orders?offset=now&live=sse"
    with httpx.stream("GET", address, trust_env=False, timeout=_PATIENCE_S) as events:
        ask(primary, "POST", "/v0/topics/orders", {"records": [{"data": "new"}]})
        assert any('"new"' in line for line in events.iter_lines())
    waiting.join(_PATIENCE_S)
    assert found == ["new"]


def test_entries_are_found_by_searches_of_the_standby(pair: Pair) -> None:
    primary, standby = pair.servers
    headers = {"content-type": "application/json"}
    httpx.put(f"{primary.url}/v1/stream/weblog", headers=headers, trust_env=False)
    answer = ask(primary, "POST", "/v1/stream/weblog/_profile", {"profile": {"kind": "evlog"}})
    assert answer.status_code < 300, answer.text
    httpx.post(f"{primary.url}/v1/stream/weblog", headers=headers, content=b'{"status":402}', trust_env=False)
    until(standby, "POST", "/v1/stream/weblog/_search", [402], {"q": "status:>=400"})


def test_a_standby_follows_restarts_of_its_primary_and_takes_over(pair: Pair) -> None:
    primary, standby = pair.servers
    ask(primary, "PUT", "/v0/topics/orders", {"durability": "remote"})
    append(primary, 1)
    until(standby, "POST", "/v0/topics/orders/diff", [1], {"from_seq": 0})
    primary.kill()
    taken = pair.wait_for("primary", [standby])
    assert taken is standby
    assert "topics-role" not in ask(standby, "GET", "/v0/topics/orders").headers
    append(standby, 2)
    give_up = time.monotonic() + _PATIENCE_S
    while list(standby._folder.glob("data.standby-*")):
        assert time.monotonic() < give_up, "the folder of the follower is never removed"
        time.sleep(0.02)
    primary.start()
    pair.wait_for("standby", [primary])
    until(primary, "POST", "/v0/topics/orders/diff", [1, 2], {"from_seq": 0})
    standby.stop()
    pair.wait_for("primary", [primary])
    standby.start()
    pair.wait_for("standby", [standby])
    append(primary, 3)
    until(standby, "POST", "/v0/topics/orders/diff", [1, 2, 3], {"from_seq": 0})


NAMES = [f"t{number}" for number in range(12)]


def work(server: LiveServer, seed: int, ends: float) -> None:
    """Requests of all kinds, some of which are refused."""
    chosen, number = random.Random(seed), 0
    with httpx.Client(base_url=server.url, trust_env=False, timeout=_PATIENCE_S) as client:
        while time.monotonic() < ends:
            number += 1
            name, kind = chosen.choice(NAMES), chosen.random()
            if kind < 0.6:
                records = [
                    {"data": [seed, number, at], "tag": chosen.choice("ab")} for at in range(chosen.randint(1, 30))
                ]
                client.post(f"/v0/topics/{name}", json={"records": records})
            elif kind < 0.66:
                client.post(f"/v0/topics/{name}/delete", json={"match": "a"})
            elif kind < 0.7:
                client.put(f"/v0/topics/{name}", json={"cap_records": chosen.choice([0, 50, 1000])})
            elif kind < 0.72:
                client.delete(f"/v0/topics/{name}")
            elif kind < 0.78:
                dest = {"source": name, "dest": chosen.choice(NAMES)}
                client.put(f"/v0/routers/r{chosen.randint(0, 5)}", json=dest)
            elif kind < 0.8:
                client.delete(f"/v0/routers/r{chosen.randint(0, 5)}")
            elif kind < 0.86:
                transaction = {"id": f"x{seed}", "sequence": number}
                client.post("/v0/transactions", json=transaction)
                for part in chosen.sample(NAMES, 3):
                    staged = {"sequence": number, "topic": part, "records": [{"data": number}], "part": part}
                    client.post(f"/v0/transactions/x{seed}/records", json=staged)
                client.post(f"/v0/transactions/x{seed}/commit", json={"sequence": number})
            else:
                client.put("/v0/topics/jobs", json={"type": "queue", "leases_durable": True})
                client.post("/v0/topics/jobs", json={"records": [{"data": number}]})
                jobs = client.post("/v0/topics/jobs/claim", json={"node": "n", "max": 3}).json().get("jobs", [])
                client.post("/v0/topics/jobs/ack", json={"node": "n", "seqs": [job["$seq"] for job in jobs[:2]]})


def everything(server: LiveServer) -> dict[str, object]:
    found: dict[str, object] = {"routers": ask(server, "GET", "/v0/routers?limit=1000").json()["routers"]}
    for topic in ask(server, "GET", "/v0/topics?limit=1000").json()["topics"]:
        name, cursor, records = topic["topic"], 0, []
        while True:
            body = {"from_seq": cursor, "limit": 1000, "include_tags": True}
            page = ask(server, "POST", f"/v0/topics/{name}/diff", body).json()
            records += [page["tombstone"], *page["records"]]
            cursor = page["next_from_seq"]
            if page["caught_up"]:
                break
        found[name] = [topic["head_seq"], topic["earliest_seq"], topic["count"], records]
    return found


@pytest.mark.slow
def test_a_standby_equals_its_primary_after_mixed_load_and_many_backups(tmp_path: Path, seed: int) -> None:
    pair = Pair(
        tmp_path, str(tmp_path / "place"), backup_interval_ms="1500", snapshot_interval_ms="700",
        segment_max_events="500", wal_file_bytes="262144", awake_topics="10", wal_shards="4",
    )  # fmt: skip
    try:
        ends = time.monotonic() + 10
        threads = [threading.Thread(target=work, args=(pair.primary, seed + at, ends)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        give_up, expected = time.monotonic() + _PATIENCE_S, everything(pair.primary)
        while everything(pair.standby) != expected:
            assert time.monotonic() < give_up, f"seed {seed}"
            time.sleep(0.2)
            expected = everything(pair.primary)
        metrics = ask(pair.standby, "GET", "/v0/metrics?topics=false").text
        assert "topics_standby_restores_total 1" in metrics, "backups cost no restore"
    finally:
        pair.close()
