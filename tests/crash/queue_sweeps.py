"""Stops or fails a queue's life at every file-system call, starts again, and looks for every job everywhere."""

from collections.abc import Iterator

import msgspec

from tests.crash.harness import SMALL
from tests.crash.queue_scenarios import Scenario
from tests.crash.queue_world import Dump, QueueWorld, broken, look, nothing_is_stranded
from tests.crash.sweeps import KILL, POWER_CUT, SHORTAGES, Ending, crashes, usual_endings
from topics.engine.core import EngineOptions
from topics.log.layout import Layout
from topics.model.errors import ReadOnlyError, RetryLaterError
from topics.ops.repair.repair import verify
from topics.testing import NO_FAULTS, FakeDisk, Fault, FaultPlan, FaultyFileSystem, PowerCut, Survival


def options(shards: int) -> EngineOptions:
    return msgspec.structs.replace(SMALL, wal_shards=shards, cold_dir=None)


def sweep_stops(scenario: Scenario, shards: int, **config: object) -> Iterator[str]:
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


def sweep_faults(
    scenario: Scenario, shards: int, fault: Fault = Fault.EIO, step: int = 1, **config: object
) -> Iterator[str]:
    """Fails every call once, or every `step`-th; every other one fails for good. A temporary shortage fails only the
    calls that need the resource."""
    fs = FaultyFileSystem(FakeDisk(), NO_FAULTS)
    scenario(QueueWorld(fs, options(shards), **config))
    only = SHORTAGES.get(fault, frozenset())
    for call in range(1, len(fs.trace) + 1, step):
        if only and fs.trace[call - 1][0] not in only:
            continue
        inner = FakeDisk()
        faulty = FaultyFileSystem(inner, FaultPlan(call, fault, lasting=bool(call // step % 2), only=only))
        world = QueueWorld(faulty, options(shards), **config)
        try:
            scenario(world)
        except (OSError, ReadOnlyError):
            assert world.starting, "only a start may fail with an error of the system"
        except RetryLaterError:
            assert not world.stories, "only the making of the queue is not told of by an answer"
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
        if "jobs" in twin.engine.core.directory:
            yield from nothing_is_stranded(twin)
    except Exception as error:  # An engine that does not start is one more finding of the sweep.
        yield f"fails: {error!r}"


def _changes(what: str, before: Dump, world: QueueWorld, disk: FakeDisk, restarted: bool) -> Iterator[str]:
    world.start(disk, restarted=restarted)
    after = look(world.engine)
    if (before.jobs, before.counters, before.reported) != (after.jobs, after.counters, after.reported):
        yield f"{what} after recovery changes {before} to {after}"
