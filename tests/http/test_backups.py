"""Backups of a real server that is written to all the time, by both protocols, and the way back by the command line."""

import json
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.http.live import LiveServer
from tests.s3 import S3Server
from tests.unit.docs.pages import read

_PATIENCE_S = 60.0
LAST = {"from_seq": 0, "limit": 1000}


def topics(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "topics", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False, cwd=cwd)


def wait_for_backup(client: httpx.Client, number: int) -> dict[str, object]:
    give_up = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up:
        answer = client.get("/v0/backups").json()
        assert answer["failures"] == 0, answer
        if answer["completed"] >= number and not answer["running"]:
            return dict(answer)
        time.sleep(0.02)
    raise AssertionError("no backup was taken")


class Writers:
    """Clients that write by both protocols until they are stopped; `acked` has the acknowledged values."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self.acked: list[list[tuple[int, str]]] = [[], []]
        self.done: list[str] = []
        """Jobs whose end was acknowledged."""
        self.deleted = 0
        """Records of `trimmed` below this seq were deleted."""
        work = (self._topics, self._streams, self._jobs, self._trims)
        with httpx.Client(base_url=url, trust_env=False) as client:
            router = {"source": "orders", "dest": "copies", "from_seq": 0, "guarantee": "exactly_once"}
            client.put("/v0/topics/orders", json={"durability": "fsync"}).raise_for_status()
            client.put("/v0/routers/copying", json=router).raise_for_status()
            client.put("/v0/topics/jobs", json={"type": "queue", "durability": "fsync"}).raise_for_status()
        self._threads = [threading.Thread(target=one, daemon=True) for one in work]
        for thread in self._threads:
            thread.start()

    def _topics(self) -> None:
        with httpx.Client(base_url=self._url, trust_env=False) as client:
            while not self._stop.is_set():
                value = f"t{len(self.acked[0])}"
                body = {"records": [{"data": value}], "config": {"durability": "fsync"}}
                answer = client.post("/v0/topics/orders", json=body)
                assert answer.status_code in (200, 201), answer.text
                self.acked[0].append((round(time.time() * 1000), value))

    def _streams(self) -> None:
        with httpx.Client(base_url=self._url, trust_env=False) as client:
            client.put("/v1/stream/chat", headers={"content-type": "application/json"})
            while not self._stop.is_set():
                value = f"s{len(self.acked[1])}"
                answer = client.post("/v1/stream/chat", json=[value])
                assert answer.status_code in (200, 204), answer.text
                self.acked[1].append((round(time.time() * 1000), value))

    def _jobs(self) -> None:
        with httpx.Client(base_url=self._url, trust_env=False) as client:
            for number in range(100_000):
                if self._stop.is_set():
                    return
                client.post("/v0/topics/jobs", json={"records": [{"data": f"j{number}"}]}).raise_for_status()
                claimed = client.post("/v0/topics/jobs/claim", json={"node": "w", "max": 1}).json()["claimed"]
                seqs = [job["$seq"] for job in claimed]
                client.post("/v0/topics/jobs/ack", json={"node": "w", "seqs": seqs}).raise_for_status()
                self.done += [job["data"] for job in claimed]

    def _trims(self) -> None:
        with httpx.Client(base_url=self._url, trust_env=False) as client:
            while not self._stop.is_set():
                body = {"records": [{"data": 1}] * 5, "config": {"durability": "fsync"}}
                head = client.post("/v0/topics/trimmed", json=body).json()["last_seq"]
                client.post("/v0/topics/trimmed/delete", json={"before_seq": max(head - 7, 1)}).raise_for_status()
                self.deleted = head - 7

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_PATIENCE_S)


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def values(client: httpx.Client) -> list[list[str]]:
    orders, cursor = [], 0
    while True:
        page = client.post("/v0/topics/orders/diff", json={"from_seq": cursor, "limit": 1000}).json()
        orders += [record["data"] for record in page["records"]]
        if page["caught_up"]:
            break
        cursor = page["next_from_seq"]
    entries: list[str] = []
    offset = "-1"
    while True:
        answer = client.get("/v1/stream/chat", params={"offset": offset})
        entries += answer.json()
        if answer.headers.get("stream-up-to-date") == "true":
            return [orders, entries]
        offset = answer.headers["stream-next-offset"]


def test_a_server_under_load_is_restored_at_any_point(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    place = tmp_path / "place"
    (tmp_path / "one").mkdir()
    with LiveServer(tmp_path / "one", backup_dir=str(place), wal_shards="2", segment_max_events="50") as server:
        writers = Writers(server.url)
        with httpx.Client(base_url=server.url, trust_env=False) as client:
            taken = []
            for number in range(1, 5):
                time.sleep(0.2)
                before = [len(acked) for acked in writers.acked]
                done, deleted = list(writers.done), writers.deleted
                assert client.post("/v0/backups").status_code == 202
                taken.append((before, wait_for_backup(client, number)))
        writers.stop()
    newest, _ = taken[-1]
    drill(tmp_path, place)

    def look(client: httpx.Client) -> None:
        jobs = client.post("/v0/topics/jobs/claim", json={"node": "w", "max": 1000}).json()["claimed"]
        assert not {job["data"] for job in jobs} & set(done)
        left = client.post("/v0/topics/trimmed/diff", json={"from_seq": 0}).json()["records"]
        assert all(record["$seq"] >= deleted for record in left)
        [orders, copies] = [
            [record["data"] for record in client.post(f"/v0/topics/{name}/diff", json=LAST).json()["records"]]
            for name in ("orders", "copies")
        ]
        assert orders == copies

    check(tmp_path / "newest", place, [], writers, at_least=newest, look=look)
    moments = [found["backups"][-1]["moment_ms"] for _, found in taken]  # type: ignore[index]
    for number in range(2):
        moment = rng.randint(moments[0], moments[-1])
        until = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(moment / 1000))}.{moment % 1000:03d}+00:00"
        # The client received answers for the records logged up to then, and perhaps for a few less: answers take their
        # time.
        heard = [sum(ms < moment - 1 for ms, _ in acked) for acked in writers.acked]
        reported = check(tmp_path / f"at{number}", place, ["--until", until], writers, at_least=[0, 0], answered=heard)
        assert reported["moment"] <= moment


def drill(folder: Path, place: Path) -> None:
    """Runs the monthly drill from the page for operators."""
    text = read("docs/operations/backup.md").split("## Drill")[1]
    commands = re.findall(r"^\d\. `?(topics [^`]+)`", text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        words = [str(place) if word == "PLACE" else word for word in command.split()[1:]]
        done = subprocess.run(
            [sys.executable, "-m", "topics", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
    assert (folder / "drill" / "meta").is_dir()


def check(
    folder: Path, place: Path | str, options: list[str], writers: Writers, at_least: list[int],
    answered: list[int] | None = None, look: Callable[[httpx.Client], None] = lambda client: None,
) -> dict[str, int]:  # fmt: skip
    """Restores, starts a server on it, and compares: a prefix of the written records, with all promised ones."""
    folder.mkdir()
    done = topics("backup", "restore", str(folder / "data"), "--at", str(place), "--gap", "0", "-o", "json", *options)
    assert done.returncode == 0, done.stderr
    assert topics("verify", str(folder / "data")).returncode == 0
    with LiveServer(folder) as server, httpx.Client(base_url=server.url, trust_env=False) as client:
        found = values(client)
        look(client)
    for got, acked, least in zip(found, writers.acked, answered or at_least, strict=True):
        written = [value for _, value in acked]
        # One more may have been logged whose answer the writer did not wait for.
        assert got[: len(written)] == written[: len(got)]
        assert len(got) >= least
    return dict(json.loads(done.stdout))


def test_an_object_store_is_a_place(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"{s3.make_bucket()}/backups"
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "one").mkdir()
    with LiveServer(tmp_path / "one", backup_dir=place) as server:
        writers = Writers(server.url)
        with httpx.Client(base_url=server.url, trust_env=False) as client:
            time.sleep(0.2)
            before = [len(acked) for acked in writers.acked]
            client.post("/v0/backups")
            wait_for_backup(client, 1)
        writers.stop()
    check(tmp_path / "back", place, [], writers, at_least=before)


def test_without_a_place_it_is_refused(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as server:
        answer = httpx.post(f"{server.url}/v0/backups", trust_env=False)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_backup_place")


def test_a_cursor_beyond_the_restored_head_gets_a_tombstone(tmp_path: Path) -> None:
    """One reader stopped where the backup was taken, the other has seen more than the restored records."""
    place, behind = tmp_path / "place", tmp_path / "behind"
    (tmp_path / "one").mkdir()
    behind.mkdir()
    with (
        LiveServer(tmp_path / "one", backup_dir=str(place)) as server,
        httpx.Client(base_url=server.url, trust_env=False) as client,
    ):
        client.put("/v1/stream/chat", headers={"content-type": "application/json"}).raise_for_status()
        at_backup = client.post("/v1/stream/chat", json=["kept"]).headers["stream-next-offset"]
        client.post("/v0/backups")
        wait_for_backup(client, 1)
        beyond = client.post("/v1/stream/chat", json=["lost", "lost"]).headers["stream-next-offset"]
    restored = topics("backup", "restore", str(behind / "data"), "--at", str(place))
    assert restored.returncode == 0, restored.stderr
    with LiveServer(behind) as server, httpx.Client(base_url=server.url, trust_env=False) as client:
        client.post("/v1/stream/chat", json=["new"] * 3).raise_for_status()
        answers = [client.get("/v1/stream/chat", params={"offset": offset}) for offset in (at_backup, beyond)]
        tombstone = client.post("/v0/topics/chat/diff", json={"from_seq": 3}).json()["tombstone"]
    assert [answer.status_code for answer in answers] == [200, 410]
    assert answers[0].json() == ["new"] * 3
    assert answers[0].headers["stream-gap"].endswith("reason=restored")
    assert tombstone["reason"] == "restored"


def test_a_lost_machine_costs_what_was_not_shipped_yet(tmp_path: Path) -> None:
    place = tmp_path / "place"
    (tmp_path / "one").mkdir()
    with LiveServer(tmp_path / "one", backup_dir=str(place), backup_ship_ms="1", wal_shards="2") as server:
        with httpx.Client(base_url=server.url, trust_env=False) as client:
            client.post("/v0/backups")
            wait_for_backup(client, 1)
            writers = Writers(server.url)
            give_up = time.monotonic() + _PATIENCE_S
            while min(heard := [len(acked) for acked in writers.acked]) < 5 and time.monotonic() < give_up:
                time.sleep(0.05)
            wait_for_shipping(client, round(time.time() * 1000))
        writers.stop()
        server.kill()
    assert topics("backup", "verify", "--at", str(place)).returncode == 0
    assert "the log after backup" in topics("backup", "list", "--at", str(place)).stderr
    check(tmp_path / "back", place, [], writers, at_least=heard)
    part = sorted(place.rglob("ship/*/*.log"))[0]
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    damaged = topics("backup", "verify", "--at", str(place))
    assert damaged.returncode == 1
    assert part.name in damaged.stdout
    refused = topics("backup", "restore", str(tmp_path / "never"), "--at", str(place))
    assert refused.returncode != 0
    assert part.name in refused.stderr
    assert not (tmp_path / "never").exists() or not list((tmp_path / "never").iterdir())


def test_a_place_is_sound_where_the_log_of_pruned_backups_is_gone(tmp_path: Path) -> None:
    """Nothing is logged behind the newest backup, so the last shipped log belongs to a backup that is pruned."""
    place = tmp_path / "place"
    (tmp_path / "one").mkdir()
    with (
        LiveServer(tmp_path / "one", backup_dir=str(place), backup_ship_ms="1") as server,
        httpx.Client(base_url=server.url, trust_env=False) as client,
    ):
        client.post("/v0/backups")
        wait_for_backup(client, 1)
        client.post("/v0/topics/orders", json={"records": [{"data": 1}], "config": {"durability": "fsync"}})
        wait_for_shipping(client, round(time.time() * 1000))
        client.post("/v0/backups")
        wait_for_backup(client, 2)
        server.kill()
    assert topics("backup", "prune", "--keep", "1", "--yes", "--at", str(place)).returncode == 0
    verified = topics("backup", "verify", "--at", str(place))
    assert (verified.returncode, verified.stdout) == (0, "")


def test_prune_removes_unfinished_first_backups(tmp_path: Path) -> None:
    lineage = tmp_path / "place" / "0123456789abcdef"
    stray = lineage / "segments" / "0000000000000001" / "00000000000000000001-1.data"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"cut short")
    prune = ("backup", "prune", "--keep", "1", "--yes", "--at", str(tmp_path / "place"))
    assert topics(*prune).returncode != 0
    writing = json.loads((lineage / "writing").read_bytes())
    assert time.time() * 1000 - writing["at_ms"] < _PATIENCE_S * 1000
    # As if the first look had been yesterday; without its checksum, which is right only for the written file.
    writing["at_ms"] -= 24 * 3600 * 1000
    del writing["checksum"]
    (lineage / "writing").write_text(json.dumps(writing))
    done = topics(*prune)
    assert (done.returncode, done.stderr) == (0, "topics: removed 1 unfinished backup(s)\n")
    assert not lineage.exists()


def wait_for_shipping(client: httpx.Client, moment: int) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up:
        answer = client.get("/v0/backups").json()
        assert answer["ship_error"] is None
        if answer["shipped_moment_ms"] > moment:
            assert client.get("/v0/ready").json()["backup_lag_ms"] < _PATIENCE_S * 1000
            return
        time.sleep(0.05)
    raise AssertionError("the log was not shipped")
