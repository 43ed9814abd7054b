"""A real process with many writers, killed with SIGKILL again and again, against an oracle of the acknowledged
operations.

A killed process leaves the page cache to the kernel, so class disk has to keep everything as well as class fsync.
"""

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from tests.crash import killed_child
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.engine.results import AppendResult
from topics.log.posix import PosixFileSystem
from topics.model.records import Batch, Record
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics.system.process import boot_id


class Oracle:
    """The acknowledged records, which must be found; and the last known seq of each topic."""

    def __init__(self) -> None:
        self.records: dict[str, dict[int, str]] = {topic: {} for topic in killed_child.TOPICS}
        self.deleted: dict[str, set[str]] = {topic: set() for topic in killed_child.TOPICS}
        self.keys: dict[str, tuple[str, int]] = {}
        self.numbers: dict[tuple[str, str], int] = {}
        """For each run and writer, its last acknowledged batch; a writer waits for one before it sends the next."""

    def learn(self, line: bytes) -> None:
        reported = msgspec.json.decode(line)
        if "ready" in reported:
            return
        topic = reported["topic"]
        if "deleted" in reported:
            self.deleted[topic].add(reported["deleted"])
            return
        for seq, value in enumerate(reported["values"], reported["first"]):
            # A seq is given out once, over all lives of the process.
            assert seq not in self.records[topic], (topic, seq)
            self.records[topic][seq] = value
        run, writer, number, _ = reported["values"][0].split("/")
        self.numbers[run, writer] = int(number)
        if reported["key"] is not None:
            self.keys[topic] = (reported["key"], reported["first"])


def live_and_die(folder: Path, run: int, chance: random.Random, oracle: Oracle) -> None:
    """Runs the child, kills it after a random number of acknowledgements or while it starts, and learns all it said."""
    command = [sys.executable, killed_child.__file__, str(folder), str(run)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert child.stdout is not None
    last = chance.choice((0, 1, 10, 100, 1000, 4000))
    lines = 0
    if last == 0:
        # Anywhere between the first import and the first acknowledgements, the recovery of the run before included.
        time.sleep(chance.random() * 0.6)
        child.kill()
    # Should it hang, this ends it and the test fails for want of lines.
    guard = threading.Timer(120.0, child.kill)
    guard.start()
    try:
        for line in child.stdout:
            if not line.endswith(b"\n"):
                break
            oracle.learn(line)
            lines += 1
            if lines == last:
                child.kill()
        assert lines >= last, f"the child ended by itself after {lines} acknowledgements"
    finally:
        guard.cancel()
        child.kill()
        child.wait()
        child.stdout.close()


def check(folder: Path, oracle: Oracle) -> None:
    options = msgspec.convert({"data_dir": str(folder), **killed_child.OPTIONS}, EngineOptions)
    engine = Engine.recover(PosixFileSystem(), options, SystemClock(), SystemEntropy(), boot_id=boot_id())
    for topic in killed_child.TOPICS:
        if topic not in engine.core.directory:
            assert not oracle.records[topic]
            continue
        found: dict[int, str] = {}
        cursor, caught_up = 0, False
        while not caught_up:
            read = engine.read_now(topic, ReadRequest(from_seq=cursor, limit=1000))
            assert read.tombstone is None, (topic, read.tombstone)
            found.update({record["$seq"]: record["data"] for record in read.records()})  # type: ignore[misc]
            cursor, caught_up = read.next_from_seq, read.caught_up
        gone = oracle.deleted[topic]
        for seq, value in oracle.records[topic].items():
            if value not in gone:
                assert found.get(seq, value) == value, (topic, seq, value, found[seq])
                # It may have been deleted without that having been acknowledged; only first values ever are.
                assert seq in found or value.endswith("/0"), (topic, seq, value)
        assert not gone & set(found.values())
        for value in found.values():
            run, writer, number, place = map(int, value.split("/"))
            batch = oracle.numbers.get((str(run), str(writer)), 0)
            assert number <= batch + 1 and place <= number % 4, f"{value} was never written"
        assert len(set(found.values())) == len(found), "a record is there twice"
        assert engine.info(topic).head_seq >= max(oracle.records[topic], default=0)
        if topic in oracle.keys:
            key, first = oracle.keys[topic]
            outcomes: list[object] = []
            engine.append(topic, Batch(records=[Record.of("again")], idempotency_key=key), outcomes.append)
            assert isinstance(outcomes[0], AppendResult)
            assert (outcomes[0].deduped, outcomes[0].first_seq) == (True, first)
    engine.close_inline()


def repeat(folder: Path, seed: int, kills: int) -> None:
    chance, oracle = random.Random(seed), Oracle()
    for run in range(kills):
        live_and_die(folder, run, chance, oracle)
        if chance.random() < 0.7:
            check(folder, oracle)
    check(folder, oracle)
    assert sum(map(len, oracle.records.values())) > 0


def test_ten_kills(tmp_path: Path, seed: int) -> None:
    repeat(tmp_path / "data", seed, 10)


@pytest.mark.slow
def test_a_hundred_kills(tmp_path: Path, seed: int) -> None:
    repeat(tmp_path / "data", seed, 100)
