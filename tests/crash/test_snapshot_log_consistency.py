"""Recovery from snapshots equals recovery from the log alone.

The same operations are done twice from the same clock and entropy, once with the checkpoints that the scenario takes
and once with none. So after a kill one engine starts from snapshots, segments and a short log, and the other from
nothing but the log. Both must find the same.

One thing may differ, and is left out: the head of a topic of class disk. A start without a clean stop raises it to the
ceiling that was reserved in the log, so that no seq is given out twice; a checkpoint lowers the ceiling to the head,
because by then everything below it is synced (`topics.engine.checkpoint`).

Class ephemeral is not compared. It is not in the log, so after a change of class a snapshot can only have more of it.
"""

import msgspec
import pytest

from tests.crash import scenarios
from tests.crash.harness import SMALL, Dump, TopicDump, World, dump
from tests.crash.scenarios import RandomLife
from tests.crash.sweeps import Scenario
from topics.engine.core import EngineOptions
from topics.testing import FakeDisk, Survival

SCENARIOS = [
    scenarios.appending_in_groups,
    scenarios.deleting,
    scenarios.sealing,
    scenarios.checkpointing,
    scenarios.relocating,
    scenarios.configuring,
    scenarios.dropping,
    scenarios.capping,
    scenarios.expiring,
]


class WithoutCheckpoints(World):
    """Does everything but checkpoints."""

    def checkpoint(self, full: bool = False) -> bool:
        return True


def found_after(world: World, scenario: Scenario) -> tuple[Dump, int]:
    """Returns the state after a kill and a start, and the number of log files it had to read."""
    scenario(world)
    assert isinstance(world.fs, FakeDisk)
    disk = world.fs.crash(Survival.EVERYTHING)
    files = sum(len(disk.list_dir(f"data/wal/{shard}")) for shard in disk.list_dir("data/wal"))
    after = World(disk, world.options, world.clock)
    after.start()
    return {name: _without_reserve(topic) for name, topic in dump(after.engine).items()}, files


def _without_reserve(topic: TopicDump) -> TopicDump:
    if not topic.config.durability.reserves_seqs:
        return topic
    # Where nothing is live, the first live seq and the ends of tombstones follow from the head.
    return topic._replace(head=0, earliest=min(topic.live, default=0), reported=[])


def assert_same(scenario: Scenario, options: EngineOptions) -> None:
    from_snapshots, few_files = found_after(World(FakeDisk(), options), scenario)
    from_the_log, many_files = found_after(WithoutCheckpoints(FakeDisk(), options), scenario)
    assert from_snapshots == from_the_log
    assert few_files <= many_files


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_recovery_from_snapshots_equals_recovery_from_the_log(scenario: Scenario, shards: int) -> None:
    assert_same(scenario, msgspec.structs.replace(SMALL, wal_shards=shards))


def check_random_lives(seeds: range) -> None:
    for seed in seeds:
        print(f"seed {seed}")
        options = msgspec.structs.replace(
            SMALL, wal_shards=1 + seed % 3, snapshot_inline_bytes=(0, 100, 1 << 18)[seed // 3 % 3]
        )
        assert_same(RandomLife(seed, 60, ("fsync", "disk", "memory"), restarts=False), options)


def test_recovery_from_snapshots_equals_recovery_from_the_log_whatever_happened() -> None:
    check_random_lives(range(40))


@pytest.mark.slow
def test_recovery_from_snapshots_equals_recovery_from_the_log_whatever_happened_in_many_lives(
    seed: int,
) -> None:
    check_random_lives(range(seed, seed + 1_460))
