"""The law of backups: after any operations, a restore to a moment that the backups cover gives the state of that
moment."""

import random
from collections.abc import Callable

import msgspec
import pytest

from tests.crash.harness import Dump, dump
from tests.unit.conftest import DISK, FSYNC, MEMORY, ask_append, ask_delete, ask_drop, ask_put, put
from tests.unit.ops.folders import OPTIONS, at, back_up, places, restore, start
from topics.engine.engine import Engine
from topics.model.records import Record
from topics.model.router_rules import RouterWish, TagMatch
from topics.model.topic_config import TopicType
from topics.queues.leases import ClaimRequest, HeldRequest, NackRequest
from topics.testing import FakeDisk, ManualClock, Survival

TOPICS = ("a", "b", "c", "d")


def do_something(engine: Engine, rng: random.Random) -> None:
    name = rng.choice(TOPICS)
    what = rng.random()
    if what < 0.6:
        records = [Record.of(rng.randrange(1000), tag=f"t{rng.randrange(3)}") for _ in range(rng.randrange(1, 6))]
        ask_append(engine, name, *records, key=f"k{rng.randrange(10**9)}" if rng.random() < 0.3 else None)
    elif what < 0.75 and name in engine.core.directory:
        ask_delete(engine, name, match=TagMatch(f"t{rng.randrange(3)}"))
    elif what < 0.8 and name in engine.core.directory:
        ask_delete(engine, name, before_seq=rng.randrange(1, engine.core.directory.load(name).head + 2))
    elif what < 0.9:
        ask_put(engine, name, durability=rng.choice((DISK, FSYNC, MEMORY)), cap_records=rng.choice((0, 5, 20)))
    elif what < 0.94:
        ask_drop(engine, name)


def move_something(engine: Engine, rng: random.Random) -> None:
    """Routers and queues: changes that concern two topics, which may be of two shards."""
    what = rng.random()
    if what < 0.4:
        ask_append(engine, rng.choice(("source", "jobs")), *range(rng.randrange(1, 5)))
    elif what < 0.5:
        wish = RouterWish(source="source", dest="copies", from_seq=0)
        engine.put_router("router", wish, lambda answer: None)
    elif what < 0.7:
        engine.queues.claim("jobs", ClaimRequest(node="w", max=3, lease_ms=3_600_000), lambda answer: None)
    elif what < 0.8:
        engine.queues.ack("jobs", HeldRequest(node="w", seqs=held(engine)[:2]), lambda answer: None)
    elif what < 0.95:
        engine.queues.nack("jobs", NackRequest(node="w", seqs=held(engine)[:2]), lambda answer: None)
    engine.catch_up(engine.core.directory.load("source"))


def held(engine: Engine) -> list[int]:
    return [lease.seq for lease in engine.queues.list_leases("jobs").leases]


def everything(engine: Engine) -> "State":
    routers = [(r.router, r.source, r.dest, r.cursor, r.forwarded_total) for r in engine.list_routers()]
    known = [name for name in ("jobs", "dead") if name in engine.core.directory]
    leases = {name: [(one.seq, one.node) for one in engine.queues.list_leases(name).leases] for name in known}
    return dump(engine), routers, (leases, {name: engine.info(name).queue for name in known})


def prepare_moving(engine: Engine) -> None:
    put(engine, "source", durability=DISK)
    put(engine, "dead", type=TopicType.QUEUE, durability=FSYNC)
    put(engine, "jobs", type=TopicType.QUEUE, dead_letter="dead", max_deliveries=2, leases_durable=True)


@pytest.mark.parametrize("number", range(4))
def test_routers_and_queues_come_back_as_they_were(seed: int, number: int) -> None:
    keep_the_law(random.Random(f"{seed} {number}"), prepare_moving, move_something)


@pytest.mark.parametrize("number", range(6))
def test_any_moment_is_restored_as_it_was(seed: int, number: int) -> None:
    keep_the_law(random.Random(f"{seed} {number}"), lambda engine: None, do_something)


State = tuple[Dump, object, object]
Doing = Callable[[Engine, random.Random], None]


def lost(disk: FakeDisk) -> FakeDisk:
    """Returns the content that remains after a loss of the machine with its disk, when the backup is elsewhere."""
    return disk.clone().crash(Survival.NOTHING)


def keep_the_law(rng: random.Random, prepare: Callable[[Engine], None], do: Doing) -> None:
    disk, clock = FakeDisk(), ManualClock()
    # Of few topics, too, some sleep in their snapshots.
    options = msgspec.structs.replace(OPTIONS, awake_topics=rng.choice((1, 10_000)))
    engine = start(disk, clock, options)
    prepare(engine)
    states: dict[int, State] = {}
    """The state at the end of each millisecond, from the first backup on."""
    unreachable: dict[int, State] = {}
    """Moments between a start and the first backup behind it: the decisions of recovery are in no frame. There the
    state is the last one of the run that the backup before is of.
    """
    last_of_run: State | None = None
    at_place: State | None = None
    """Returns the content that a loss of the machine would leave."""
    for _ in range(120):
        clock.advance(1)
        do(engine, rng)
        if rng.random() < 0.06:
            last_of_run = last_of_run or everything(engine)
            for _ in range(rng.choice((1, 1, 2))):
                engine = start(disk := disk.crash(Survival.EVERYTHING), clock, options, entropy=rng.randrange(10**6))
        if rng.random() < 0.1:
            back_up(engine)
            last_of_run, at_place = None, everything(engine)
        if rng.random() < 0.15:
            engine.backups.shipping.ship()
            if last_of_run is None and at_place is not None:
                at_place = everything(engine)
        if at_place is not None and rng.random() < 0.05:
            left, _ = restore(lost(disk), clock=clock)
            assert everything(left) == at_place
        if places(disk):
            states[clock.now_ms()] = everything(engine)
            if last_of_run is not None:
                unreachable[clock.now_ms()] = last_of_run
    clock.advance(1)
    back_up(engine)
    covered = [moment for moment in states if moment not in unreachable]
    assert covered
    for number, moment in enumerate(rng.sample(covered, min(12, len(covered)))):
        restored, reported = restore(disk, at(disk, moment), f"back{number}", clock=clock)
        assert reported.moment <= moment
        assert everything(restored) == states[moment], (moment, reported)
    for number, moment in enumerate(rng.sample([*unreachable], min(4, len(unreachable)))):
        restored, reported = restore(disk, at(disk, moment), f"run{number}", clock=clock)
        assert reported.moment <= moment
        assert everything(restored) == unreachable[moment], (moment, reported)
    newest, _ = restore(disk, clock=clock)
    assert everything(newest) == everything(engine)
