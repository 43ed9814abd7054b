"""A real process with routers, killed with SIGKILL again and again, against an oracle of the records its readers saw.

A killed process leaves the page cache to the kernel: every copy that a reader saw must be there, with the same seq, and
once; and every record of a source must have arrived when the routers have gone on.
"""

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.crash import killed_router_child as child_module
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.log.posix import PosixFileSystem
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics.system.process import boot_id

Found = dict[int, str]


class Oracle:
    def __init__(self) -> None:
        self.seen: dict[str, Found] = {name: {} for name in child_module.DESTINATIONS}
        self.deleted_below = 0
        self.written: dict[str, set[str]] = {"a": set(), "b": set(), "v": set()}
        self.even: set[str] = set()

    def learn(self, line: bytes) -> None:
        reported = msgspec.json.decode(line)
        if "seen" in reported:
            seen = self.seen[reported["topic"]]
            for seq, value in reported["seen"]:
                # A seq is given out once, over all lives of the process.
                assert seen.setdefault(seq, value) == value, (reported["topic"], seq, value, seen[seq])
        elif "deleted_below" in reported:
            self.deleted_below = max(self.deleted_below, reported["deleted_below"])
        elif "written" in reported:
            self.written[reported["topic"]].update(reported["written"])
            self.even.update(reported["written"] if reported["even"] else ())


def live_and_die(folder: Path, run: int, chance: random.Random, oracle: Oracle) -> None:
    command = [sys.executable, child_module.__file__, str(folder), str(run)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert child.stdout is not None
    last, lines = chance.choice((1, 20, 200, 1500)), 0
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
        assert lines >= last, f"the child ended by itself after {lines} lines"
    finally:
        guard.cancel()
        child.kill()
        child.wait()
        child.stdout.close()


def read_all(engine: Engine, name: str) -> Found:
    found: Found = {}
    cursor, caught_up = 0, False
    while not caught_up:
        result = engine.read_now(name, ReadRequest(from_seq=cursor, limit=1000))
        assert result.tombstone is None, (name, result.tombstone)
        found.update({record["$seq"]: record["data"] for record in result.records()})  # type: ignore[misc]
        cursor, caught_up = result.next_from_seq, result.caught_up
    return found


def check(folder: Path, oracle: Oracle) -> None:
    options = msgspec.convert({"data_dir": str(folder), **child_module.OPTIONS}, EngineOptions)
    engine = Engine.recover(PosixFileSystem(), options, SystemClock(), SystemEntropy(), boot_id=boot_id())
    for name, seen in oracle.seen.items():
        if name in engine.core.directory:
            found = read_all(engine, name)
            floor = oracle.deleted_below if name == "b" else 0
            for seq, value in seen.items():
                # A delete without an answer may have gone further than the last answered one.
                assert found.get(seq, value) == value, (name, seq, value, found[seq])
                assert seq in found or name == "b", (name, seq, value)
            assert not [seq for seq in found if seq < floor], f"deleted records of {name} are back"
            assert engine.info(name).head_seq >= max(seen, default=0)
    engine.routing.kick()
    engine.housekeeper.tick()
    for router in engine.routing.registry.by_name.values():
        assert router.cursor == router.source.head, router.name
    held = {name: read_all(engine, name) for name in engine.core.directory.resident}
    twice = {name: [v for v, n in Counter(found.values()).items() if n > 1] for name, found in held.items()}
    assert not any(twice.values()), f"copied twice: {twice}"
    if "d" in held:
        arrived = set(held["c"].values())
        assert {value for value in held["a"].values() if value in oracle.even} <= arrived
        # Records that were deleted in b may have been deleted before they were forwarded from there.
        assert set(held["b"].values()) <= set(held["d"].values())
        assert oracle.written["a"] <= set(held["a"].values())
        assert set(held["d"].values()) == set(held["e"].values())
    engine.close_inline()


def repeat(folder: Path, seed: int, kills: int) -> None:
    chance, oracle = random.Random(seed), Oracle()
    for run in range(kills):
        live_and_die(folder, run, chance, oracle)
        if chance.random() < 0.6:
            check(folder, oracle)
    check(folder, oracle)
    assert oracle.seen["d"]


def test_six_kills(tmp_path: Path, seed: int) -> None:
    repeat(tmp_path / "data", seed, 6)


@pytest.mark.slow
def test_a_hundred_kills(tmp_path: Path, seed: int) -> None:
    repeat(tmp_path / "data", seed, 100)
