"""Stops or fails a scenario at every file-system call there is, recovers, and checks every promise.

Stopping before call n + 1 is stopping after call n: the disk holds the same bytes, and the engine had the time to give
every answer that call n allowed, which makes the strictest case. So one sweep over n covers both.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tests.crash.harness import SMALL, Dump, World, dump
from tests.crash.promises import Evidence, broken_promises, unlike_what_was_acknowledged
from topics.engine.core import EngineOptions
from topics.engine.results import AppendResult
from topics.model.errors import ColdStoreUnavailableError, ReadOnlyError, TopicsError
from topics.model.records import Batch, Record
from topics.testing import (
    LACK_OF_DESCRIPTORS,
    LACK_OF_ROOM,
    NO_FAULTS,
    FakeDisk,
    Fault,
    FaultPlan,
    FaultyFileSystem,
    PowerCut,
    Survival,
)

Scenario = Callable[[World], None]
"""Does operations on a world, from its start on."""


class Ending(NamedTuple):
    """How the machine went down."""

    survival: Survival
    seed: int = 0
    restarted: bool = True

    def __str__(self) -> str:
        return f"{self.survival.name} with seed {self.seed}, {'restarted' if self.restarted else 'killed'}"


KILL = Ending(Survival.EVERYTHING, restarted=False)
LUCKY = Ending(Survival.EVERYTHING)
"""A power cut that every write survived: nothing is missing, but the server cannot know that."""
POWER_CUT = Ending(Survival.NOTHING)


def usual_endings(call: int) -> tuple[Ending, ...]:
    """How a stop at a call may end. The seeds follow the call, so that a sweep tears and scatters in many ways."""
    return (
        KILL,
        LUCKY,
        POWER_CUT,
        Ending(Survival.TORN, call),
        Ending(Survival.SCATTERED, call),
        Ending(Survival.SCATTERED, call + 1000),
    )


def count_calls(scenario: Scenario, options: EngineOptions) -> int:
    disk = FakeDisk()
    scenario(World(disk, options))
    return disk.call_count


def stop_at(scenario: Scenario, options: EngineOptions, call: int) -> tuple[World, FakeDisk]:
    """Runs a scenario up to, not including, one call."""
    disk = FakeDisk(stop_before=call)
    world = World(disk, options)
    try:
        scenario(world)
    except PowerCut:
        pass
    return world, disk


def sweep_stops(
    scenario: Scenario,
    options: EngineOptions = SMALL,
    endings: Callable[[int], tuple[Ending, ...]] = usual_endings,
    calls: Iterable[int] | None = None,
) -> Iterator[str]:
    """Every promise that a stop at some call of a scenario breaks, in some ending. All calls, unless told which."""
    last = count_calls(scenario, options)
    for call in range(1, last + 2) if calls is None else calls:
        world, disk = stop_at(scenario, options, call)
        for ending, crashed in crashes(disk, endings(call)):
            where = f"stopped after call {call - 1} of {last} {_last_call(disk)}, {ending}"
            yield from (f"{where}: {text}" for text in examine(world, crashed, ending))


def sweep_starts(world: World, disk: FakeDisk, ending: Ending, endings: tuple[Ending, ...]) -> Iterator[str]:
    """Lets a world end, stops the start that follows at every call, and starts once more."""
    crashed = disk.clone().crash(ending.survival, ending.seed)
    whole = world.fork()
    whole.start(calm := crashed.clone(), restarted=ending.restarted)
    expected = dump(whole.engine)
    for call in range(1, calm.call_count + 2):
        stopped, twin = crashed.clone(), world.fork()
        stopped.stop_before = call
        try:
            twin.start(stopped, restarted=ending.restarted)
        except PowerCut:
            pass
        twin.starting = True
        for second, again in crashes(stopped, endings):
            where = f"{ending}; the start stopped after call {call - 1} {_last_call(stopped)}, {second}"
            # After a power cut nothing waits for a sync any more: the same is found in every case.
            same = None if ending.survival is Survival.EVERYTHING else expected
            yield from (f"{where}: {text}" for text in examine(twin, again, second, same))


class Failure(NamedTuple):
    """The result of a run with an injected fault."""

    world: World
    inner: FakeDisk
    fs: FaultyFileSystem


def fail_at(scenario: Scenario, options: EngineOptions, plan: FaultPlan) -> Failure:
    """Runs a scenario on a file system that fails as planned."""
    inner = FakeDisk()
    fs = FaultyFileSystem(inner, plan)
    world = World(fs, options)
    try:
        scenario(world)
    except (OSError, ColdStoreUnavailableError):
        assert world.starting, "only a start may fail with an error of the system"
    return Failure(world, inner, fs)


def plans(
    scenario: Scenario, options: EngineOptions, requested: Callable[[FaultPlan, str], bool] = lambda plan, path: True
) -> Iterator[FaultPlan]:
    """Every call of a scenario failing in every way, once and for good; only the given faults, if any are given."""
    trace = fail_at(scenario, options, NO_FAULTS).fs.trace
    for call, (operation, path) in enumerate(trace, start=1):
        for fault in Fault:
            if fault is Fault.SHORT and operation != "write":
                continue  # Anything but a write fails then as it does with EIO.
            for plan in _ways(call, fault, operation):
                if requested(plan, path):
                    yield plan


SHORTAGES = {Fault.ENOSPC: LACK_OF_ROOM, Fault.EMFILE: LACK_OF_DESCRIPTORS, Fault.ENOMEM: frozenset[str]()}
"""A temporary fault, and the calls that it affects; no names mean all calls."""
_PASSES_AFTER = 7


def _ways(call: int, fault: Fault, operation: str) -> Iterator[FaultPlan]:
    """Once; for a while, where it passes; and for good, where it may."""
    only = SHORTAGES.get(fault, frozenset())
    if only and operation not in only:
        if fault is Fault.ENOSPC:
            # No disk answers so, but then none may be taken at its word.
            yield FaultPlan(call, fault)
        return
    yield FaultPlan(call, fault)
    if fault in SHORTAGES:
        yield FaultPlan(call, fault, lasting=True, until=call + _PASSES_AFTER, only=only)
    if fault in (Fault.EIO, Fault.ENOSPC, Fault.SHORT):
        yield FaultPlan(call, fault, lasting=True)


def sweep_faults(
    scenario: Scenario,
    options: EngineOptions = SMALL,
    requested: Callable[[FaultPlan, str], bool] = lambda plan, path: True,
) -> Iterator[str]:
    """Every promise that a failing call of a scenario breaks, while the engine runs on and after it ended."""
    for plan in plans(scenario, options, requested):
        failure = fail_at(scenario, options, plan)
        assert failure.fs.failed, "up to the call that fails, every run is the same"
        where = f"{plan} {failure.fs.trace[(plan.call or 1) - 1]}"
        yield from (f"{where}: {text}" for text in _examine_failure(failure))


def _examine_failure(failure: Failure) -> Iterator[str]:
    world, inner, fs = failure
    if not world.starting:
        yield from unlike_what_was_acknowledged(world, dump(world.engine))
        yield from _poison_is_visible(world, fs)
    for ending, crashed in crashes(inner, (KILL, POWER_CUT, Ending(Survival.SCATTERED, fs.plan.call or 0))):
        for text in examine(world, crashed, ending):
            yield f"{ending}: {text}"
    if (fs.plan.lasting and not fs.plan.until) or world.starting or world.broken or world.engine.core.closed:
        return
    fs.plan = NO_FAULTS
    world.heal()
    if world.poisoned or world.engine.core.room.short is not None:
        yield "what is over is not over for the engine"
    # The next attempt repairs a single failure.
    if not world.checkpoint():
        yield "no checkpoint succeeds any more"
    for text in examine(world, inner.crash(Survival.NOTHING), POWER_CUT):
        yield f"after the next checkpoint, {POWER_CUT}: {text}"


def _poison_is_visible(world: World, fs: FaultyFileSystem) -> Iterator[str]:
    """A shard refuses writes after a failed one, reports that to every client, and only then."""
    answers = [op.answer for timeline in world.timelines.values() for op in timeline.operations]
    errors = [answer for answer in answers if isinstance(answer, TopicsError)]
    if any(not isinstance(error, ReadOnlyError) for error in errors):
        yield f"operations failed with {errors}"
    if errors and not world.poisoned:
        yield "an operation failed, and the shard goes on"
    if world.broken and fs.plan.fault in (Fault.EMFILE, Fault.ENOMEM, Fault.EINTR):
        yield "a shortage that passed broke a shard"
    if world.broken and fs.plan.fault is Fault.ENOSPC and fs.plan.only:
        yield "a full disk broke a shard"
    if world.poisoned and not fs.plan.lasting and "/wal/" not in fs.trace[(fs.plan.call or 1) - 1][1]:
        yield "a shard was poisoned by a failure outside of the log"
    core = world.engine.core
    for name, topic in core.directory.resident.items():
        if not core.shards[topic.shard].writer.broken or not topic.config.durability.logged or core.closed:
            continue
        try:
            world.engine.append(name, Batch(records=[Record.of("refused")]), lambda answer: None)
            yield f"{name} is on a poisoned shard and takes a write"
        except ReadOnlyError:
            pass


def _last_call(disk: FakeDisk) -> tuple[str, str]:
    return disk.trace[-1] if disk.trace else ("nothing", "")


def crashes(disk: FakeDisk, endings: tuple[Ending, ...]) -> Iterator[tuple[Ending, FakeDisk]]:
    """The disks that different endings leave behind; of power cuts that leave the same bytes only the first."""
    seen = []
    for ending in endings:
        crashed = disk.clone().crash(ending.survival, ending.seed)
        if ending.survival is not Survival.EVERYTHING:
            found = contents(crashed)
            if found in seen:
                continue
            seen.append(found)
        yield ending, crashed


def contents(disk: FakeDisk, folder: str = "") -> dict[str, bytes | None]:
    """The bytes of every file, and None for every folder."""
    found: dict[str, bytes | None] = {}
    for name in disk.list_dir(folder):
        path = f"{folder}/{name}"
        try:
            file = disk.open(path)
        except IsADirectoryError:
            found |= {path: None, **contents(disk, path)}
        else:
            found[path] = file.read_at(0, file.size())
    return found


def examine(world: World, crashed: FakeDisk, ending: Ending, expected: Dump | None = None) -> Iterator[str]:
    """Restarts after an ending and checks everything; yields broken promises."""
    try:
        yield from _examine(world.fork(), crashed, ending.restarted, expected)
    except Exception as error:  # An engine that does not start, or cannot be read, is one more finding of the sweep.
        yield f"fails: {error!r}"


def _examine(world: World, disk: FakeDisk, restarted: bool, expected: Dump | None) -> Iterator[str]:
    interrupted = world.starting
    world.start(disk, restarted=restarted)
    found = dump(world.engine)
    yield from broken_promises(Evidence(world, found, interrupted))
    if expected is not None:
        yield from _changes("an interrupted start", expected, found)

    # The state that was found is durable, and reading it changed nothing: not for a power cut, and not for a kill.
    twin = world.fork()
    twin.start(disk.clone().crash(Survival.NOTHING), restarted=True)
    yield from _changes("a power cut after recovery", found, dump(twin.engine))
    disk = disk.crash(Survival.EVERYTHING)
    world.start(disk)
    yield from _changes("a kill after recovery", found, dump(world.engine))

    # And it can be built on.
    world.rebase(found)
    yield from _go_on(world, found)
    world.start(disk.crash(Survival.NOTHING), restarted=True)
    for text in broken_promises(Evidence(world, dump(world.engine))):
        yield f"went on, then lost power: {text}"


def _changes(what: str, before: Dump, after: Dump) -> Iterator[str]:
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name):
            yield f"{what} changes {name} from {before.get(name)} to {after.get(name)}"


def _go_on(world: World, found: Dump) -> Iterator[str]:
    """Uses every name again: seqs and epochs are new, and a key that is known is answered as it was."""
    epochs, highest = dict(world.epochs), dict(world.highest)
    for name in sorted(found.keys() | epochs.keys()):
        for key, (first, count, _) in found[name].keys.items() if name in found else ():
            answer = world.append(name, key=key)
            if not isinstance(answer, AppendResult) or not answer.deduped or answer.first_seq != first:
                yield f"{name}: the key {key} of records {first} to {first + count - 1} is answered with {answer}"
        answer = world.append(name, durability="fsync")
        if not isinstance(answer, AppendResult):
            yield f"{name}: cannot be written to any more: {answer}"
            continue
        epoch = world.engine.info(name).epoch
        if name not in found and epoch <= epochs.get(name, 0):
            yield f"{name}: its epoch {epoch} was given out before"
        if answer.first_seq <= highest.get((name, epoch), 0):
            yield f"{name}: seq {answer.first_seq} was given out before, the highest was {highest[name, epoch]}"
