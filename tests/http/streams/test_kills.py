"""A server that is killed again and again under writers, followers and forks of streams keeps every promise.

SIGKILL at random moments, also while it starts. In the end all acknowledged entries are present, exactly once where the
writer used an idempotence mechanism, and every follower has seen the content of the stream, in order, nothing twice.
"""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.http.live import LiveServer, wait_until_ready
from tests.http.streams.families import Families
from tests.http.streams.players import (
    JSON,
    PATIENCE_S,
    TEXT,
    CarefulWriter,
    Follower,
    IdempotentWriter,
    Kind,
    PipelinedWriter,
    PlainWriter,
    Stage,
    Writer,
    read_all,
    read_seqs,
)
from tests.http.streams.verdicts import broken, entries_before

SHOWN = 10
OFFSETS_READ = 30
# Small files and frequent checkpoints, so that kills hit seals and snapshots, too.
SETTINGS = {"segment_max_events": "40", "wal_file_bytes": "65536", "snapshot_interval_ms": "300"}


class Show:
    """One stream with all its clients."""

    def __init__(self, stage: Stage, kind: Kind, durability: str, seed: int) -> None:
        self.stage = stage
        self.name = f"{durability}-{seed}"
        self.path = f"/v1/stream/{self.name}"
        self.durability = durability
        self.kind = kind
        self.luck = random.Random(seed)
        cast = [IdempotentWriter, IdempotentWriter, PipelinedWriter, PlainWriter, CarefulWriter]
        self.writers: list[Writer] = [
            role(stage, self.path, kind, f"{role.__name__}-{number}", seed + number) for number, role in enumerate(cast)
        ]
        self.followers = [Follower(stage, self.path, kind, live) for live in ("long-poll", "sse")]

    def create(self) -> None:
        with self.stage.line() as line:
            line.expect(line.http.put(self.path, headers={"content-type": self.kind.content_type}), 201)
            line.expect(line.http.put(f"/v0/topics/{self.name}", json={"durability": self.durability}), 200)

    def close(self) -> None:
        with self.stage.line() as line:
            line.expect(line.http.post(self.path, headers={"stream-closed": "true"}), 204)

    def judge(self) -> list[str]:
        """Everything that is not as it was promised."""
        batches = [batch for writer in self.writers for batch in writer.batches]
        with self.stage.line() as line:
            entries, last = read_all(line, self.path, self.kind)
            seqs = read_seqs(line, self.name)
            print(f"{self.path}: {len(entries)} entries up to {max(seqs, default=0)}")
            wrong = list(broken(entries, batches, seqs))
            if len(seqs) != len(entries) or (self.durability == "fsync" and seqs != list(range(1, len(seqs) + 1))):
                wrong.append(f"{len(entries)} entries have {len(seqs)} places up to {max(seqs, default=0)}")
            if "stream-closed" not in last.headers:
                wrong.append("it is not closed")
            for follower in self.followers:
                if follower.seen != entries:
                    wrong.append(f"the follower by {follower.live} saw something else: {_parting(follower, entries)}")
                if any(entries_before(offset, seqs) != count for offset, count in follower.reported):
                    wrong.append(f"an offset that the follower by {follower.live} was told is somewhere else")
            for writer in self.writers:
                keyed, _ = read_all(line, f"{self.path}/pk/{writer.name}", self.kind)
                if keyed != [value for value in entries if value.startswith(f"{writer.name}/")]:
                    wrong.append(f"what has the key {writer.name} is not what {writer.name} wrote")
            offsets = [offset for batch in batches for offset in (batch.end, batch.floor) if offset]
            for offset in self.luck.sample(offsets, min(OFFSETS_READ, len(offsets))):
                if read_all(line, self.path, self.kind, offset)[0] != entries[entries_before(offset, seqs) :]:
                    wrong.append(f"behind {offset} is something else than was there")
        silent = [writer.name for writer in self.writers if not writer.batches]
        return [f"{self.path}: {text}" for text in (*wrong, *(f"{name} wrote nothing" for name in silent))]


def _parting(follower: Follower, entries: list[str]) -> str:
    pairs = zip(follower.seen, entries, strict=False)
    at = next((number for number, (saw, held) in enumerate(pairs) if saw != held), None)
    return f"{len(follower.seen)} entries instead of {len(entries)}, the first other one at {at}"


def kill_again_and_again(folder: Path, seed: int, kills: int, classes: tuple[str, str]) -> None:
    """Two streams, one of values and one of bytes, each of a class that loses nothing when its process is killed."""
    luck = random.Random(seed)
    with LiveServer(folder, wal_shards="2", **SETTINGS) as live:
        stage = Stage(live.url)
        shows = [Show(stage, JSON, classes[0], seed), Show(stage, TEXT, classes[1], seed + 100)]
        families = Families(stage, seed)
        for show in shows:
            show.create()
        writing = _start(stage, [families.run, *(writer.run for show in shows for writer in show.writers)])
        following = _start(stage, [follower.run for show in shows for follower in show.followers])
        try:
            for _ in range(kills):
                time.sleep(luck.uniform(0.1, 0.8))
                _kill(live, luck)
            time.sleep(0.3)
        finally:
            stage.over.set()
            _join(writing)
        for show in shows:
            show.close()
        _join(following)
        with stage.line() as line:
            for path in families.streams:
                families.look(line, path)
        wrong = [*stage.problems, *(text for show in shows for text in show.judge())]
        assert not wrong, "\n".join([*wrong[:SHOWN], f"{len(wrong)} in all"])
        assert any(known.closed for known in families.streams.values()), seed


def _kill(live: LiveServer, luck: random.Random) -> None:
    """Kills the server and starts it again; sometimes the next one dies while it replays the log."""
    live.kill()
    live.start()
    if luck.random() < 0.3:
        time.sleep(luck.random() * 0.2)
        live.kill()
        live.start()
    wait_until_ready(live.url)


def _start(stage: Stage, roles: list[Callable[[], None]]) -> list[threading.Thread]:
    def play(role: Callable[[], None]) -> None:
        try:
            role()
        except Exception as error:
            stage.problems.append(f"{role} failed: {error!r}")

    threads = [threading.Thread(target=play, args=(role,), daemon=True) for role in roles]
    for thread in threads:
        thread.start()
    return threads


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)


def test_streams_survive_a_few_kills(tmp_path: Path, seed: int) -> None:
    kill_again_and_again(tmp_path, seed, 3, ("fsync", "disk"))


@pytest.mark.slow
@pytest.mark.parametrize("classes", [("fsync", "fsync"), ("disk", "disk")], ids=str)
def test_streams_survive_many_kills(tmp_path: Path, classes: tuple[str, str], seed: int) -> None:
    kill_again_and_again(tmp_path, seed, 30, classes)
