"""A segment on its way into an object store, or changed or removed there, is never without a complete copy.

The store is a folder of the disk that crashes, so the process stops, or a call fails, at every step of every call to
it as well as between them: before an upload, in the middle of it, after it and before anybody heard of it. What is
kept nearby is on the same disk. Every stop is followed by starts after which all promises are checked.
"""

from itertools import islice

import msgspec
import pytest

from tests.crash import scenarios
from tests.crash.harness import SMALL, World
from tests.crash.sweeps import Scenario, sweep_faults, sweep_stops

OPTIONS = msgspec.structs.replace(SMALL, cold_dir="s3://bucket/cold")
SHOWN = 12


def flipping(world: World) -> None:
    """Segments in the store lose some records, which their objects are told; then one its last, and one its topic."""
    world.start()
    for tag in ("a", "b", "a", "b"):
        world.append("sure", 3, tag=tag, durability="fsync")
        world.append("sure", 3, tag="c", durability="fsync")
    world.append("gone", 6, tag="a")
    world.append("gone", 6, tag="b")
    world.checkpoint()
    world.relocate("sure")
    world.relocate("gone")
    world.checkpoint()
    world.delete("sure", tag="b")
    world.delete("gone", before=3)
    world.checkpoint()
    world.delete("sure", before=7)
    world.drop("gone")
    world.checkpoint()
    world.engine.housekeeper.tick()
    world.append("sure", 2)


SCENARIOS = [scenarios.relocating, flipping, scenarios.living]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: str(scenario.__name__))
def test_whatever_step_the_process_stops_at(scenario: Scenario) -> None:
    broken = list(islice(sweep_stops(scenario, OPTIONS), SHOWN))
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("scenario", [scenarios.relocating, flipping], ids=lambda scenario: str(scenario.__name__))
def test_whatever_step_fails(scenario: Scenario) -> None:
    broken = list(islice(sweep_faults(scenario, OPTIONS), SHOWN))
    assert not broken, "\n".join(broken)
