"""A segment on its way into an object store, or changed or removed there, is never without a complete copy.

The store is a folder of the disk that crashes, so the process stops, or a call fails, at every step of every call to it
as well as between them: before an upload, in the middle of it, after it and before its answer. The local cache is on
the same disk. Every stop is followed by starts after which all promises are checked.
"""

import contextlib
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
import pytest

from tests.crash import scenarios
from tests.crash.harness import SMALL, World, dump
from tests.crash.promises import unlike_what_was_acknowledged
from tests.crash.sweeps import (
    KILL,
    POWER_CUT,
    Ending,
    Scenario,
    examine,
    sweep_faults,
    sweep_starts,
    sweep_stops,
)
from topics.engine.core import EngineOptions
from topics.log.fs import FileSystem
from topics.log.object_store.local_cache import LocalCopies
from topics.log.object_store.tiered_fs import tiered
from topics.model.errors import ColdStoreUnavailableError
from topics.testing import FakeDisk, Fault, FolderStore, Survival

OPTIONS = msgspec.structs.replace(SMALL, cold_dir="s3://bucket/cold")
SHOWN = 12


def flipping(world: World) -> None:
    """Segments in the store lose some records, and their objects are updated; then one loses its last, and one its
    topic."""
    world.start()
    for tag in ("a", "b", "a", "b"):
        world.append("sure", 3, tag="c", durability="fsync")
        world.append("sure", 3, tag=tag, durability="fsync")
    world.append("gone", 6, tag="a")
    world.append("gone", 6, tag="b")
    world.checkpoint()
    world.relocate("sure")
    world.relocate("gone")
    world.checkpoint()
    with contextlib.suppress(OSError):  # After failed calls there may be none.
        for folder in world.fs.list_dir("data/near/topics"):
            world.fs.sync_dir(f"data/near/topics/{folder}")  # As the kernel does by itself, after a while.
    world.delete("sure", tag="b")
    world.delete("gone", before=3)
    world.checkpoint()
    world.delete("sure", before=7)
    world.drop("gone")
    world.checkpoint()
    world.engine.housekeeper.tick()
    world.append("sure", 2)


each_scenario = pytest.mark.parametrize(
    "scenario", [scenarios.relocating, flipping], ids=lambda scenario: str(scenario.__name__)
)


def of_the_store(path: str) -> bool:
    """Whether a call of the disk is a step of a call to the store, or is about a copy. Other sweeps do the others."""
    return "bucket/" in path or "/near" in path


def assert_none(broken: Iterator[str]) -> None:
    found = list(islice(broken, SHOWN))
    assert not found, "\n".join(found)


def some_endings(call: int) -> tuple[Ending, ...]:
    return KILL, POWER_CUT, Ending(Survival.TORN, call), Ending(Survival.SCATTERED, call)


@each_scenario
def test_object_store_recovers_after_a_crash_at_every_step(scenario: Scenario) -> None:
    assert_none(sweep_stops(scenario, OPTIONS, some_endings))


@each_scenario
def test_object_store_recovers_after_an_io_error_at_every_step(scenario: Scenario) -> None:
    # To the store and to the copies one failure is like the other.
    assert_none(sweep_faults(scenario, OPTIONS, lambda plan, path: plan.fault is Fault.EIO and of_the_store(path)))


def test_a_start_that_fetches_what_is_missing_may_be_cut_short() -> None:
    disk = FakeDisk()
    world = World(disk, OPTIONS)
    flipping(world)
    for folder in disk.list_dir("data/near/topics"):
        for name in disk.list_dir(f"data/near/topics/{folder}"):
            disk.remove(f"data/near/topics/{folder}/{name}")
    assert_none(sweep_starts(world, disk, KILL, (KILL, POWER_CUT)))


class Flaky:
    """Gives every start of a world a store whose calls fail by the plan `fails`; they are counted over all starts."""

    def __init__(self, fails: Callable[[int], bool]) -> None:
        self._fails = fails
        self.calls = 0
        self.mended = False

    def files(self, fs: FileSystem, options: EngineOptions) -> FileSystem:
        assert options.cold_dir is not None
        store = FolderStore(fs, "bucket")
        store.fails = self._failing
        return tiered(fs, options.cold_dir, store, LocalCopies(fs, "data/near", 10_000))

    def _failing(self, call: int) -> bool:
        self.calls += 1
        return not self.mended and self._fails(self.calls)


def fails_from(number: int, lasting: bool) -> Flaky:
    return Flaky(lambda call: call >= number if lasting else call == number)


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "for good"])
@each_scenario
def test_object_store_outage_at_every_call_is_retried(scenario: Scenario, lasting: bool) -> None:
    """Reading ones, too. When the store is back, everything acknowledged is there, and nothing is reported as lost."""
    counting = fails_from(0, False)
    world = World(FakeDisk(), OPTIONS)
    world.files = counting.files
    scenario(world)
    assert counting.calls > 10
    for failing in range(1, counting.calls + 1):
        flaky, disk = fails_from(failing, lasting), FakeDisk()
        world = World(disk, OPTIONS)
        world.files = flaky.files
        try:
            scenario(world)
        except ColdStoreUnavailableError:
            assert world.starting
        flaky.mended = True
        where = f"call {failing} of {counting.calls} failed"
        if not world.starting:
            assert not world.poisoned, where
            assert_none(f"{where}: {text}" for text in unlike_what_was_acknowledged(world, dump(world.engine)))
        for ending in (KILL, POWER_CUT):
            crashed = disk.clone().crash(ending.survival)
            assert_none(f"{where}, {ending}: {text}" for text in examine(world, crashed, ending))
