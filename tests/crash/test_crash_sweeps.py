"""The machine stops at every call, and any part of the disk survives: promised records are there.

Each test stops one scenario after every one of its file-system calls. Every stop is followed by every ending, a killed
process and power cuts that keep nothing, everything, a torn last write or a random part of what was not synced; and
every ending by a start, after which all of `tests.crash.promises` is checked, started twice more, and built on.
"""

from itertools import islice
from random import Random

import msgspec
import pytest

from tests.crash import scenarios
from tests.crash.harness import SMALL, World
from tests.crash.sweeps import (
    KILL,
    POWER_CUT,
    Ending,
    Scenario,
    count_calls,
    stop_at,
    sweep_starts,
    sweep_stops,
)
from tests.unit.conftest import ask_delete, checkpoint, delete, eq, open_engine, put
from topics.engine import apply as applying
from topics.engine import delete as deleting
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.model.records import Batch, Record
from topics.model.topic_config import Durability
from topics.testing import FakeDisk, PowerCut, Survival

SHOWN = 12
"""A broken promise causes many others; the first ones are enough for a diagnosis."""

each_number_of_shards = pytest.mark.parametrize("shards", [1, 2])


def options(shards: int, **changes: object) -> EngineOptions:
    return msgspec.structs.replace(SMALL, wal_shards=shards, **changes)


def assert_kept(scenario: Scenario, engine_options: EngineOptions) -> None:
    broken = list(islice(sweep_stops(scenario, engine_options), SHOWN))
    assert not broken, "\n".join(broken)


@each_number_of_shards
def test_an_acknowledged_append_is_there(shards: int) -> None:
    assert_kept(scenarios.appending, options(shards))


@each_number_of_shards
def test_a_group_commit_acknowledges_nothing_that_can_be_lost(shards: int) -> None:
    assert_kept(scenarios.appending_in_groups, options(shards))


def test_nothing_is_lost_between_two_log_files() -> None:
    assert_kept(scenarios.turning_log_files, options(1))


@each_number_of_shards
def test_a_deleted_record_stays_deleted(shards: int) -> None:
    assert_kept(scenarios.deleting, options(shards))


def test_sealing_loses_nothing() -> None:
    assert_kept(scenarios.sealing, options(1))


@each_number_of_shards
def test_a_fence_stands_with_its_records(shards: int) -> None:
    assert_kept(scenarios.fencing, options(shards))


@each_number_of_shards
def test_a_committed_cursor_is_there(shards: int) -> None:
    assert_kept(scenarios.consuming, options(shards))


@each_number_of_shards
def test_a_checkpoint_loses_nothing(shards: int) -> None:
    assert_kept(scenarios.checkpointing, options(shards))


def test_topics_that_sleep_in_snapshots_lose_nothing() -> None:
    assert_kept(scenarios.checkpointing, options(2, awake_topics=0))


def test_a_checkpoint_that_seals_every_tail_loses_nothing() -> None:
    assert_kept(scenarios.checkpointing, options(1, snapshot_inline_bytes=0))


def test_relocation_loses_nothing() -> None:
    assert_kept(scenarios.relocating, options(1))


@each_number_of_shards
def test_an_acknowledged_topic_is_there(shards: int) -> None:
    assert_kept(scenarios.creating, options(shards))


@each_number_of_shards
def test_an_acknowledged_config_holds(shards: int) -> None:
    assert_kept(scenarios.configuring, options(shards))


def test_the_loss_of_unlogged_records_is_reported() -> None:
    assert_kept(scenarios.forgetting, options(1))


def test_a_delete_of_many_records_is_whole_or_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (applying, deleting):
        monkeypatch.setattr(module, "MANY_RANGES", 1)
    assert_kept(scenarios.deleting_many, options(1))


def test_a_stop_within_a_long_delete_leaves_all_or_nothing() -> None:
    """Two thousand records that lie apart, in several segments, one of which a snapshot names."""

    def fill(disk: FakeDisk) -> Engine:
        engine = open_engine(disk, segment_max_events=1500)
        put(engine, "t", durability=Durability.FSYNC)
        for _ in range(4):
            tags = ["odd" if number % 2 else None for number in range(1000)]
            records = [Record.of(number, tag=tag) for number, tag in enumerate(tags)]
            engine.append("t", Batch(records=records), lambda outcome: None)
        checkpoint(engine)
        return engine

    calm = FakeDisk()
    engine = fill(calm)
    first = calm.call_count
    assert delete(engine, "t", match=eq("odd")).deleted == 2000
    seen = set()
    for call in range(first, calm.call_count + 2):
        disk = FakeDisk(stop_before=call)
        answers: list[object] = []
        try:
            engine = fill(disk)
            answers = ask_delete(engine, "t", match=eq("odd"))
            checkpoint(engine)
        except PowerCut:
            pass
        for ending in (KILL, POWER_CUT):
            found = open_engine(disk.clone().crash(ending.survival), boot_id="b" if ending.restarted else "a")
            count = found.info("t").count
            assert count == 2000 or (count == 4000 and not answers), (call, ending)
            seen.add(count)
    assert seen == {2000, 4000}


@each_number_of_shards
def test_a_deleted_topic_stays_deleted(shards: int) -> None:
    assert_kept(scenarios.dropping, options(shards))


def test_records_evicted_by_cap_do_not_return_after_a_crash() -> None:
    assert_kept(scenarios.capping, options(1))


def test_records_expired_by_ttl_do_not_return_after_a_crash() -> None:
    assert_kept(scenarios.expiring, options(1))


@each_number_of_shards
def test_a_clean_stop_loses_nothing_and_a_start_after_it_neither(shards: int) -> None:
    assert_kept(scenarios.stopping, options(shards))


def test_changing_the_number_of_shards_loses_nothing() -> None:
    assert_kept(scenarios.resharding, options(1))


@each_number_of_shards
@pytest.mark.parametrize("ending", [KILL, POWER_CUT, Ending(Survival.SCATTERED, 3)], ids=str)
def test_recovery_may_be_cut_short_anywhere(shards: int, ending: Ending) -> None:
    """Every call of the start is stopped at, with every way in which that start can end."""
    world = World(disk := FakeDisk(), options(shards))
    scenarios.living(world)
    endings = (KILL, POWER_CUT, Ending(Survival.SCATTERED, 7))
    broken = list(islice(sweep_starts(world, disk, ending, endings), SHOWN))
    assert not broken, "\n".join(broken)


def check_random_lives(seeds: range, steps: int, stops: int) -> None:
    """Longer lives than a hand-written scenario, each stopped at a few random calls."""
    for seed in seeds:
        print(f"seed {seed}")
        life = scenarios.RandomLife(seed, steps, ("fsync", "disk", "memory", "ephemeral"))
        engine_options = options(1 + seed % 3, snapshot_inline_bytes=(0, 100, 1 << 18)[seed // 3 % 3])
        calls = Random(seed).choices(range(1, count_calls(life, engine_options) + 2), k=stops)
        broken = list(islice(sweep_stops(life, engine_options, calls=calls), SHOWN))
        assert not broken, "\n".join(broken)


def test_a_random_life_may_end_at_any_call() -> None:
    check_random_lives(range(12), steps=30, stops=10)


@pytest.mark.slow
def test_many_random_lives_may_end_at_any_call(seed: int) -> None:
    check_random_lives(range(seed, seed + 400), steps=60, stops=30)


@each_number_of_shards
def test_a_start_after_any_stop_may_be_cut_short_anywhere(shards: int) -> None:
    """Two stops, as below, in a life short enough: the data that the first start reads may be in the page cache alone,
    and the segments it makes of that must not outlive it."""
    sealing = options(shards, segment_max_events=2, snapshot_inline_bytes=0)
    for call in range(1, count_calls(scenarios.beginning, sealing) + 2):
        world, disk = stop_at(scenarios.beginning, sealing, call)
        broken = list(islice(sweep_starts(world, disk, KILL, (KILL, POWER_CUT)), SHOWN))
        assert not broken, f"stopped after call {call - 1}: " + "\n".join(broken)


@pytest.mark.slow
@each_number_of_shards
@pytest.mark.parametrize("scenario", [scenarios.living, scenarios.deleting, scenarios.capping, scenarios.relocating])
def test_recovery_from_any_stop_may_be_cut_short_anywhere(scenario: Scenario, shards: int) -> None:
    """Two stops: one at every call of the scenario, and for each of them one at every call of the start after it."""
    for call in range(1, count_calls(scenario, options(shards)) + 2):
        world, disk = stop_at(scenario, options(shards), call)
        for ending in (KILL, Ending(Survival.SCATTERED, call)):
            endings = (KILL, POWER_CUT, Ending(Survival.SCATTERED, call))
            broken = list(islice(sweep_starts(world, disk, ending, endings), SHOWN))
            assert not broken, f"stopped after call {call - 1}: " + "\n".join(broken)


@pytest.mark.slow
@each_number_of_shards
def test_no_way_of_scattering_writes_breaks_a_promise(shards: int, seed: int) -> None:
    """The same stops with many more ways to tear and scatter unsynced data."""
    ways = (Survival.TORN, Survival.SCATTERED)
    endings = tuple(Ending(survival, number) for survival in ways for number in range(seed, seed + 30))
    broken = list(islice(sweep_stops(scenarios.living, options(shards), lambda call: endings), SHOWN))
    assert not broken, "\n".join(broken)
