"""A real process that commits transactions over three shards, killed with SIGKILL again and again.

Every answered step is there, every step is there as a whole or not at all, and none is there twice, although each run
repeats the unanswered steps of the run before.
"""

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from tests.crash import killed_transaction_child as child_program
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.log.posix import PosixFileSystem
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics.system.process import boot_id

Step = tuple[int, int]
"""A writer and a sequence."""


def live_and_die(folder: Path, run: int, last: int) -> set[Step]:
    """Runs the child and kills it after so many commits; returns its answers."""
    command = [sys.executable, child_program.__file__, str(folder), str(run)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert child.stdout is not None
    # Should it hang, this ends it and the test fails for want of lines.
    guard = threading.Timer(120.0, child.kill)
    guard.start()
    reported: set[Step] = set()
    try:
        for line in child.stdout:
            if not line.endswith(b"\n"):
                break
            answer = msgspec.json.decode(line)
            reported.add((answer["writer"], answer["sequence"]))
            if len(reported) == last:
                child.kill()
        assert len(reported) >= last, f"the child ended by itself after {len(reported)} commits"
    finally:
        guard.cancel()
        child.kill()
        child.wait()
        child.stdout.close()
    return reported


def check(folder: Path, reported: set[Step]) -> None:
    options = msgspec.convert({"data_dir": str(folder), **child_program.OPTIONS}, EngineOptions)
    engine = Engine.recover(PosixFileSystem(), options, SystemClock(), SystemEntropy(), boot_id=boot_id())
    found: dict[Step, list[tuple[str, str]]] = {}
    for topic in child_program.TOPICS:
        cursor, caught_up = 0, False
        while not caught_up:
            read = engine.read_now(topic, ReadRequest(from_seq=cursor, limit=1000))
            assert read.tombstone is None, (topic, read.tombstone)
            for record in read.records():
                value = str(record["data"])
                if value != "direct":
                    number, place, rest = value.split("/", 2)
                    found.setdefault((int(number), int(place)), []).append((topic, rest))
            cursor, caught_up = read.next_from_seq, read.caught_up
    assert reported <= found.keys()
    for (writer, sequence), records in found.items():
        runs = {rest.split("/")[0] for _, rest in records}
        assert len(runs) == 1, (writer, sequence, "is there twice", records)
        places, count = 1 + (writer + sequence) % len(child_program.TOPICS), 1 + sequence % 3
        requested = [
            (child_program.TOPICS[(writer + place) % len(child_program.TOPICS)], f"{min(runs)}/{place}/{number}")
            for place in range(places)
            for number in range(count)
        ]
        assert sorted(records) == sorted(requested), (writer, sequence)
    for writer in range(child_program.WRITERS):
        sequences = [sequence for other, sequence in found if other == writer]
        assert sorted(sequences) == list(range(1, len(sequences) + 1))
    engine.close_inline()


@pytest.mark.parametrize("runs", [4, pytest.param(25, marks=pytest.mark.slow)])
def test_transactions_are_atomic_after_a_process_kill(tmp_path: Path, seed: int, runs: int) -> None:
    chance = random.Random(seed)
    reported: set[Step] = set()
    for run in range(runs):
        reported |= live_and_die(tmp_path / "data", run, chance.choice((1, 5, 40, 200)))
        check(tmp_path / "data", reported)
