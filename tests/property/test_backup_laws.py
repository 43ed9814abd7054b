"""The law of backups: whatever was done, restored at any moment that the backups cover, the state is that of then."""

import random

import pytest

from tests.crash.harness import Dump, dump
from tests.unit.engine.backup.folders import OPTIONS, at, back_up, manifests, places, restore, start
from tests.unit.engine.conftest import DISK, FSYNC, MEMORY, ask_append, ask_delete, ask_drop, ask_put
from topics.core.records import Record
from topics.core.selectors import TagMatch
from topics.engine import Engine
from topics.testing import FakeDisk, ManualClock, Survival

TOPICS = ("a", "b", "c", "d")


def do_something(engine: Engine, dice: random.Random) -> None:
    name = dice.choice(TOPICS)
    what = dice.random()
    if what < 0.6:
        records = [Record.of(dice.randrange(1000), tag=f"t{dice.randrange(3)}") for _ in range(dice.randrange(1, 6))]
        ask_append(engine, name, *records, key=f"k{dice.randrange(10**9)}" if dice.random() < 0.3 else None)
    elif what < 0.75 and name in engine.core.by_name:
        ask_delete(engine, name, match=TagMatch(f"t{dice.randrange(3)}"))
    elif what < 0.8 and name in engine.core.by_name:
        ask_delete(engine, name, before_seq=dice.randrange(1, engine.core.by_name[name].head + 2))
    elif what < 0.9:
        ask_put(engine, name, durability=dice.choice((DISK, FSYNC, MEMORY)), cap_records=dice.choice((0, 5, 20)))
    elif what < 0.94:
        ask_drop(engine, name)


@pytest.mark.parametrize("number", range(6))
def test_any_moment_is_restored_as_it_was(seed: int, number: int) -> None:
    dice, disk, clock = random.Random(f"{seed} {number}"), FakeDisk(), ManualClock()
    engine = start(disk, clock)
    states: dict[int, Dump] = {}
    """The state at the end of each millisecond, from the first backup on."""
    unreachable: set[int] = set()
    """Moments between a start and the first backup behind it: what recovery decides is in no frame."""
    fresh = True
    for _ in range(120):
        clock.advance(1)
        do_something(engine, dice)
        if dice.random() < 0.06:
            engine = start(disk := disk.crash(Survival.EVERYTHING), clock, dice=dice.randrange(10**6))
            fresh = True
        if dice.random() < 0.1:
            back_up(engine)
            fresh = False
        if places(disk):
            states[clock.now_ms()] = dump(engine)
            if fresh:
                unreachable.add(clock.now_ms())
    back_up(engine)
    covered = [moment for moment in states if moment not in unreachable]
    assert covered
    for place_number, moment in enumerate(dice.sample(covered, min(12, len(covered)))):
        restored, told = restore(disk, at(disk, moment), f"back{place_number}", clock=clock)
        assert told.moment <= moment
        assert dump(restored) == states[moment], (moment, told)
    newest, _ = restore(disk, clock=clock)
    assert dump(newest) == dump(engine)
    (place,) = places(disk)
    assert manifests(place)[-1].records <= sum(len(topic.live) for topic in dump(engine).values())
    assert OPTIONS.wal_shards == 2
