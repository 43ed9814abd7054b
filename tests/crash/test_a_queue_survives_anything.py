"""Whatever call the machine stops at, or fails at: a job is in one place, what was promised of it holds, none is lost.

Each test stops one life of a queue after every one of its file-system calls, and lets every stop end in every way. In
the start that follows each job is looked for everywhere; then it is started twice more, and everything is claimed.
"""

from collections.abc import Iterator
from itertools import islice

import msgspec
import pytest

from tests.crash import queue_scenarios
from tests.crash.harness import SMALL
from tests.crash.queue_world import Dump, QueueWorld, broken, look, nothing_is_stranded
from tests.crash.sweeps import KILL, POWER_CUT, Ending, crashes, usual_endings
from topics.core.durability import Durability
from topics.engine import EngineOptions
from topics.engine.repair import verify
from topics.storage.layout import Layout
from topics.testing import NO_FAULTS, FakeDisk, Fault, FaultPlan, FaultyFileSystem, PowerCut, Survival

SHOWN = 8
SCENARIOS = [
    queue_scenarios.working,
    queue_scenarios.delaying,
    queue_scenarios.burying,
    queue_scenarios.redriving,
]

each_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
each_number_of_shards = pytest.mark.parametrize("shards", [1, 2])
durable_or_not = pytest.mark.parametrize("leases_durable", [True, False], ids=["durable leases", "plain leases"])
each_class = pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.DISK], ids=["fsync", "disk"])


def options(shards: int) -> EngineOptions:
    return msgspec.structs.replace(SMALL, wal_shards=shards, cold_dir=None)


@each_class
@durable_or_not
@each_number_of_shards
@each_scenario
def test_every_call_may_be_the_last(
    scenario: queue_scenarios.Scenario, shards: int, leases_durable: bool, durability: Durability
) -> None:
    found = sweep_stops(scenario, shards, leases_durable=leases_durable, durability=durability)
    assert not (texts := list(islice(found, SHOWN))), "\n".join(texts)


@durable_or_not
@each_number_of_shards
@each_scenario
def test_every_call_may_fail(scenario: queue_scenarios.Scenario, shards: int, leases_durable: bool) -> None:
    found = sweep_faults(scenario, shards, leases_durable=leases_durable)
    assert not (texts := list(islice(found, SHOWN))), "\n".join(texts)


@pytest.mark.parametrize(
    ("queue_class", "dead_class"),
    [
        (Durability.FSYNC, Durability.DISK),
        (Durability.DISK, Durability.FSYNC),
        (Durability.FSYNC, Durability.MEMORY),
    ],
    ids=lambda durability: durability.value,
)
@each_number_of_shards
@pytest.mark.parametrize("scenario", [queue_scenarios.burying, queue_scenarios.redriving], ids=lambda s: s.__name__)
def test_a_move_between_classes_loses_nothing(
    scenario: queue_scenarios.Scenario, shards: int, queue_class: Durability, dead_class: Durability
) -> None:
    found = sweep_stops(scenario, shards, durability=queue_class, dead_class=dead_class)
    assert not (texts := list(islice(found, SHOWN))), "\n".join(texts)


def sweep_stops(scenario: queue_scenarios.Scenario, shards: int, **config: object) -> Iterator[str]:
    disk = FakeDisk()
    scenario(QueueWorld(disk, options(shards), **config))
    last = disk.call_count
    for call in range(1, last + 2):
        disk = FakeDisk(stop_before=call)
        world = QueueWorld(disk, options(shards), **config)
        try:
            scenario(world)
        except PowerCut:
            pass
        for ending, crashed in crashes(disk, usual_endings(call)):
            where = f"stopped after call {call - 1} of {last} {disk.trace[-1:]}, {ending}"
            yield from (f"{where}: {text}" for text in examine(world, crashed, ending))


def sweep_faults(scenario: queue_scenarios.Scenario, shards: int, **config: object) -> Iterator[str]:
    fs = FaultyFileSystem(FakeDisk(), NO_FAULTS)
    scenario(QueueWorld(fs, options(shards), **config))
    for call in range(1, len(fs.trace) + 1):
        inner = FakeDisk()
        faulty = FaultyFileSystem(inner, FaultPlan(call, Fault.EIO, lasting=bool(call % 2)))
        world = QueueWorld(faulty, options(shards), **config)
        try:
            scenario(world)
        except OSError:
            assert world.starting, "only a start may fail with an error of the system"
        for ending, crashed in crashes(inner, (KILL, POWER_CUT, Ending(Survival.SCATTERED, call))):
            where = f"call {call} {fs.trace[call - 1]} failed, {ending}"
            yield from (f"{where}: {text}" for text in examine(world, crashed, ending))


def examine(world: QueueWorld, disk: FakeDisk, ending: Ending) -> Iterator[str]:
    twin = world.fork()
    report = verify(disk.clone(), Layout("data", None), "" if ending.restarted else f"boot-{world.boot}")
    yield from (f"verify takes the crash for damage: {finding}" for finding in report.findings)
    try:
        twin.start(disk, restarted=ending.restarted)
        yield from broken(twin, ending.restarted)
        found = look(twin.engine)
        yield from _changes("a power cut", found, twin, disk.clone().crash(Survival.NOTHING), restarted=True)
        yield from _changes("a kill", found, twin, disk.crash(Survival.EVERYTHING), restarted=False)
        if "jobs" in twin.engine.core.by_name:
            yield from nothing_is_stranded(twin)
    except Exception as error:  # An engine that does not start is one more finding of the sweep.
        yield f"fails: {error!r}"


def _changes(what: str, before: Dump, world: QueueWorld, disk: FakeDisk, restarted: bool) -> Iterator[str]:
    world.start(disk, restarted=restarted)
    after = look(world.engine)
    if (before.jobs, before.counters, before.told) != (after.jobs, after.counters, after.told):
        yield f"{what} after recovery changes {before} to {after}"
