"""Lost ranges: exact while they are few, and few however many there were."""

import random

import pytest

from tests.unit.conftest import (
    MEMORY,
    after_power_cut,
    append,
    checkpoint,
    delete,
    engine,
    open_engine,
    put,
    read,
    topic,
)
from tests.unit.routers.conftest import clock, disk, go_on, route
from topics.engine.engine import Engine
from topics.engine.read import EXACT_MAX, forget_below, join, lost_from, remember
from topics.model.seq_ranges import LossReason, Tombstone
from topics.model.topic_config import Discard
from topics.testing import FakeDisk

__all__ = ["clock", "disk", "engine"]

TRIM, CRASH = LossReason.SOURCE_TRIM, LossReason.CRASH


def ranges(engine: Engine, name: str) -> list[tuple[int, int]]:
    return [(lost.from_seq, lost.to_seq) for lost in topic(engine, name).lost or ()]


def with_gaps(engine: Engine, count: int, reason: LossReason = TRIM) -> None:
    """A topic in which every second record is lost, from the first on."""
    put(engine, "t", durability=MEMORY)
    for _ in range(count):
        own = topic(engine, "t")
        engine.core.applier.gap(own, own.head + 1, own.head + 1, reason)
        own.staged_head = own.head
        append(engine, "t", "kept")


def test_ranges_that_touch_are_one_and_others_are_kept_in_order(engine: Engine) -> None:
    put(engine, "t")
    own = topic(engine, "t")
    for first, last, reason in ((5, 6, TRIM), (7, 9, TRIM), (10, 10, CRASH), (20, 20, CRASH), (1, 2, CRASH)):
        remember(own, first, last, reason)
    found = [(lost.from_seq, lost.to_seq, lost.reason) for lost in own.lost or ()]
    assert found == [(1, 2, CRASH), (5, 9, TRIM), (10, 10, CRASH), (20, 20, CRASH)]
    assert [lost.from_seq for lost in lost_from(own, 3)] == [5, 10, 20]
    assert [lost.from_seq for lost in lost_from(own, 9)] == [5, 10, 20]
    assert [lost.from_seq for lost in lost_from(own, 10)] == [10, 20]
    assert list(lost_from(own, 21)) == []
    forget_below(own, 9)
    assert [lost.from_seq for lost in own.lost or ()] == [5, 10, 20]
    forget_below(own, 100)
    assert own.lost is None and list(lost_from(own, 0)) == []


def test_live_records_keep_ranges_apart(engine: Engine) -> None:
    with_gaps(engine, 3 * EXACT_MAX)
    join(topic(engine, "t"), engine.core.reader)
    assert ranges(engine, "t") == [(seq, seq) for seq in range(1, 6 * EXACT_MAX, 2)]


def test_few_ranges_are_kept_as_they_were_lost(engine: Engine) -> None:
    with_gaps(engine, EXACT_MAX)
    delete(engine, "t", before_seq=2 * EXACT_MAX)
    join(topic(engine, "t"), engine.core.reader)
    assert len(ranges(engine, "t")) == EXACT_MAX


def test_many_ranges_with_nothing_live_between_them_are_one(engine: Engine) -> None:
    with_gaps(engine, 2 * EXACT_MAX)
    head = 4 * EXACT_MAX
    # One in the middle stays.
    delete(engine, "t", before_seq=2 * EXACT_MAX)
    for seq in range(2 * EXACT_MAX + 2, head, 2):
        engine.core.applier.delete(topic(engine, "t"), 0, [(seq, seq)])
    join(topic(engine, "t"), engine.core.reader)
    assert ranges(engine, "t") == [(1, 2 * EXACT_MAX - 1), (2 * EXACT_MAX + 1, head - 1)]
    reported = read(engine, "t").tombstone
    assert reported is not None and (reported.gap_from, reported.gap_to) == (1, 2 * EXACT_MAX - 1)
    assert read(engine, "t", from_seq=2 * EXACT_MAX - 1).count == 1


def test_a_gap_behind_live_records_ends_before_the_next_live_one(engine: Engine) -> None:
    append(engine, "t", 1, 2, 3)
    own = topic(engine, "t")
    engine.core.applier.gap(own, 4, 15, TRIM)
    own.staged_head = own.head
    append(engine, "t", 16, 17)
    reported = read(engine, "t", from_seq=3).tombstone
    assert reported == Tombstone(4, 15, TRIM, 12, 16, 17)
    # Deletes behind the gap belong to it: `earliest_seq` is live.
    engine.core.applier.delete(own, 0, [(16, 16)])
    reported = read(engine, "t", from_seq=3).tombstone
    assert reported == Tombstone(4, 16, TRIM, 12, 17, 17)
    assert own.earliest == 1


def test_a_reader_that_goes_on_from_earliest_seq_comes_to_the_end(engine: Engine) -> None:
    with_gaps(engine, 5)
    with_gaps(engine, 5, CRASH)
    cursor, seen = 0, []
    for _ in range(2 * topic(engine, "t").head):
        answer = read(engine, "t", from_seq=cursor)
        if answer.tombstone is not None:
            assert answer.tombstone.gap_to == answer.tombstone.earliest_seq - 1 >= cursor
            if not answer.count:
                cursor = answer.tombstone.earliest_seq - 1
                continue
        seen += [record["$seq"] for record in answer.records()]
        cursor = answer.next_from_seq
        if answer.caught_up:
            break
    assert seen == list(range(2, 21, 2))


def test_neighbouring_losses_of_different_reasons_are_one_gap(engine: Engine) -> None:
    append(engine, "t", 1)
    own = topic(engine, "t")
    engine.core.applier.gap(own, 2, 3, TRIM)
    engine.core.applier.gap(own, 4, 6, CRASH)
    own.staged_head = own.head
    append(engine, "t", 7)
    assert read(engine, "t", from_seq=1).tombstone == Tombstone(2, 6, LossReason.MIXED, 5, 7, 7)


def test_different_reasons_stay_apart(engine: Engine) -> None:
    with_gaps(engine, 2 * EXACT_MAX)
    with_gaps(engine, 2 * EXACT_MAX, CRASH)
    delete(engine, "t", before_seq=8 * EXACT_MAX)
    join(topic(engine, "t"), engine.core.reader)
    assert [lost.reason for lost in topic(engine, "t").lost or ()] == [TRIM, CRASH]


class Lagging:
    """A source that keeps little, and a queue behind it that rejects and is worked off at random."""

    def __init__(self, disk: FakeDisk, seed: int, patient: bool) -> None:
        self.disk = disk
        self.rng = random.Random(seed)
        self.patient = patient
        """Whether one old job is never done, so that nothing ever moves in front."""
        self.engine = open_engine(disk)
        put(self.engine, "source", cap_records=2)
        put(self.engine, "dest", cap_records=6, discard=Discard.REJECT)
        route(self.engine, "source", "dest")
        self.copied: set[int] = set()
        self.most = 0

    def step(self) -> None:
        engine, rng = self.engine, self.rng
        append(engine, "source", *range(rng.choice([1, 3, 4])))
        live = self.live()
        self.copied.update(live)
        doable = live[1:] if self.patient else live
        for seq in rng.sample(doable, min(len(doable), rng.choice([0, 1, 2]))):
            engine.core.applier.delete(topic(engine, "dest"), 0, [(seq, seq)])
            engine.core.wake(topic(engine, "dest"))
        self.copied.update(self.live())
        self.most = max(self.most, len(ranges(engine, "dest")))

    def live(self) -> list[int]:
        own, found = topic(self.engine, "dest"), []
        for run in own.runs_from(own.earliest):
            flags = self.engine.core.reader.flags(own.id, run)
            found += [
                run.first_seq + index
                for index in range(run.count)
                if not (flags is not None and flags[index]) and run.first_seq + index >= own.earliest
            ]
        return found

    def check(self) -> None:
        """Every loss is reported, nothing live is, and every range begins and ends with a real loss."""
        lost = ranges(self.engine, "dest")
        reported = {seq for first, last in lost for seq in range(first, last + 1)}
        real = set(range(1, topic(self.engine, "dest").head + 1)) - self.copied
        assert real <= reported
        assert not reported & set(self.live())
        assert all({first, last} <= real for first, last in lost)


@pytest.mark.parametrize("patient", [False, True])
def test_a_lagging_router_leaves_few_ranges_and_every_loss_is_reported(
    disk: FakeDisk, patient: bool, seed: int
) -> None:
    world = Lagging(disk, seed, patient)
    for number in range(1, 601):
        world.step()
        if number % 100 == 0:
            checkpoint(world.engine)
            assert len(ranges(world.engine, "dest")) <= max(EXACT_MAX, len(world.live()) + 1)
            world.check()
    assert len(world.copied) > 3 * EXACT_MAX
    assert world.most <= EXACT_MAX + 100, "between two checkpoints there are no more than were lost since"
    if not patient:
        assert world.most <= EXACT_MAX + 7, "in front of the first live record they are joined at once"
    before = ranges(world.engine, "dest")
    world.engine = go_on(open_engine(after_power_cut(disk)))
    assert ranges(world.engine, "dest") == before
