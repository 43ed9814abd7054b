"""A writer that did not ask for a sync does not wait for one: the classes ephemeral, memory and disk, for every size of
batch.

Each reading of the clock advances it, so a sync that was waited for shows in `fsync_ms`. The log reports the same from
its side: how many commits were synced between a write and its answer, or the appearance of its copy.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.effort import effort
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.log.group_commit import InlineCommitter
from topics.model.records import Batch, Record
from topics.model.router_rules import RouterWish
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival

LARGEST = 10_000
RECORDS = [Record.of(number) for number in range(LARGEST)]
SOURCE, NAME = "source", "t"


class TickingClock(ManualClock):
    """Nothing takes no time at all."""

    def monotonic(self) -> float:
        self.advance(1)
        return super().monotonic()


class Step(NamedTuple):
    """A batch of so many records, and the event before it."""

    records: int
    before: str
    pause_ms: int


# Sizes around a topic's reservation, and any other; the large ones are seldom, because they take their time.
counts = st.integers(1, 600) | st.sampled_from([1, 2, 255, 256, 257, 512, 513]) | st.integers(601, LARGEST)
befores = st.sampled_from(["", "", "", "sync", "checkpoint", "kill"])
steps = st.lists(st.builds(Step, counts, befores, st.sampled_from([0, 10, 999, 1001, 60_000])), min_size=1, max_size=5)


class Scene:
    """An engine whose shards are all written by the caller, and a topic of the class that is looked at."""

    def __init__(self, durability: Durability, made_by: str, copied: bool, shards: int) -> None:
        self.disk = FakeDisk()
        self.clock = TickingClock()
        self._options = EngineOptions(data_dir="data", wal_shards=shards, wal_file_bytes=1 << 20)
        self._open()
        patch = TopicConfigPatch(durability=durability)
        if made_by == "put":
            self.engine.put_topic(NAME, patch, _ignore)
        else:
            # That the topic is there is promised as for every change of topics, so the append that makes it waits.
            self.engine.append(NAME, Batch(records=RECORDS[:1], config=patch), _ignore)
        if copied:
            # Of a class without waits for syncs as well.
            self.engine.put_topic(SOURCE, TopicConfigPatch(durability=Durability.MEMORY), _ignore)
            self.engine.put_router("router", RouterWish(source=SOURCE, dest=NAME), _ignore)

    def _open(self) -> None:
        self.engine = Engine.recover(self.disk, self._options, self.clock, SeededEntropy(1), boot_id="a")
        self.engine.routing.kick()

    def happens(self, what: str) -> None:
        if what == "sync":
            for shard in self.engine.core.shards:
                shard.writer.sync()
        elif what == "checkpoint":
            self.engine.run_job(self.engine.checkpointer.job(full=False, then=_ignore))
        elif what == "kill":
            self.disk = self.disk.crash(Survival.EVERYTHING)
            self._open()

    def syncs(self) -> int:
        """The number of synced commits. A file that is turned or made is synced as well, by the caller that needs
        it."""
        return sum([shard.writer.syncs for shard in self.engine.core.shards])

    def lone(self, gathers: bool) -> None:
        for shard in self.engine.core.shards:
            assert isinstance(shard.committer, InlineCommitter)
            shard.committer.coalesces = gathers


def _ignore(outcome: object) -> None:
    assert not isinstance(outcome, Exception), outcome


classes = [
    pytest.param(durability, id=durability.value)
    for durability in (Durability.EPHEMERAL, Durability.MEMORY, Durability.DISK)
]
each_class = pytest.mark.parametrize("durability", classes)
each_beginning = pytest.mark.parametrize("made_by", ["put", "append"])


def check(scene: Scene, step: Step, watch: Callable[[Scene, list[int]], None], name: str) -> None:
    """Writes a batch; it is answered, and seen, before anything of the log is synced."""
    scene.happens(step.before)
    scene.clock.advance(step.pause_ms)
    seen: list[int] = []
    watch(scene, seen)
    answers: list[object] = []
    before = scene.syncs()

    def answered(outcome: object) -> None:
        answers.append(outcome)
        if name == NAME:
            seen.append(scene.syncs())

    scene.engine.append(name, Batch(records=RECORDS[: step.records]), answered)
    (answer,) = answers
    assert isinstance(answer, AppendResult)
    assert answer.fsync_ms == 0
    assert seen and seen[0] == before, f"{seen[0] - before} syncs came first"


@each_class
@each_beginning
@given(steps, st.booleans(), st.integers(1, 2))
@effort(15)
def test_no_append_waits_for_a_sync(
    durability: Durability, made_by: str, history: list[Step], gathers: bool, shards: int
) -> None:
    scene = Scene(durability, made_by, copied=False, shards=shards)
    for step in history:
        scene.lone(gathers)
        check(scene, step, lambda scene, seen: None, NAME)


@each_class
@each_beginning
@given(steps, st.integers(1, 2))
@effort(15)
def test_no_copy_waits_for_a_sync(durability: Durability, made_by: str, history: list[Step], shards: int) -> None:
    """From the append to the source until readers of the destination see the first of its copies."""
    scene = Scene(durability, made_by, copied=True, shards=shards)

    def watch(scene: Scene, seen: list[int]) -> None:
        scene.engine.watch(NAME, lambda: seen.append(scene.syncs()))

    for step in history:
        check(scene, step, watch, SOURCE)
        assert scene.engine.router("router").lag == 0
