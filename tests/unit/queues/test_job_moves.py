"""Moves between two topics: the frames in each log, and the effect of a checkpoint in between."""

import pytest

from tests.unit.conftest import (
    DISK,
    FSYNC,
    ask_drop,
    checkpoint,
    committers,
    delete,
    flush,
    hold,
    killed,
    logged,
    one,
    open_engine,
    put,
    topic,
    values,
)
from tests.unit.queues.conftest import DEAD, JOBS, ask_claim, claim, counted, make_queue, nack, produce
from topics.engine.engine import Engine
from topics.engine.results import DropResult
from topics.log.frame import FrameKind
from topics.queues.leases import RedriveRequest, RedriveResult
from topics.testing import FakeDisk, ManualClock

SHARDS = 2


def dying_jobs(disk: FakeDisk, clock: ManualClock, shards: int = SHARDS, count: int = 2, **config: object) -> Engine:
    """A queue whose jobs go to the dead letter topic with the next claim."""
    engine = open_engine(disk, clock, wal_shards=shards)
    make_queue(engine, JOBS, **{"max_deliveries": 1, "dead_letter": DEAD, **config})
    put(engine, DEAD, durability=config.get("durability", DISK))
    produce(engine, *range(count))
    claim(engine, count)
    nack(engine, *range(1, count + 1))
    if shards > 1:
        assert topic(engine, JOBS).shard != topic(engine, DEAD).shard
    return engine


def test_in_one_shard_both_halves_are_one_write(disk: FakeDisk, clock: ManualClock) -> None:
    engine = dying_jobs(disk, clock, shards=1, durability=FSYNC)
    writer = engine.core.shards[0].writer
    commits, before = writer.commits, len(logged(engine))
    ask_claim(engine)
    assert logged(engine)[before:] == [FrameKind.ARRIVAL, FrameKind.DEPARTURE]
    assert writer.commits == commits + 1


def test_in_two_shards_the_arrival_is_synced_before_the_departure(disk: FakeDisk, clock: ManualClock) -> None:
    engine = dying_jobs(disk, clock)
    hold(engine)
    ask_claim(engine)
    there, here = topic(engine, DEAD).shard, topic(engine, JOBS).shard
    assert values(engine, JOBS) == [0, 1]
    syncs = engine.core.shards[there].writer.syncs
    committers(engine)[there].flush()
    assert engine.core.shards[there].writer.syncs == syncs + 1
    assert values(engine, DEAD) == [0, 1]
    assert logged(engine, here)[-1] is not FrameKind.DEPARTURE
    assert counted(engine) == (0, 0, 2, 0)
    flush(engine)
    assert logged(engine, here)[-1] is FrameKind.DEPARTURE
    assert (values(engine, JOBS), counted(engine)) == ([], (0, 0, 0, 2))


def test_a_start_makes_up_for_a_missing_departure(disk: FakeDisk, clock: ManualClock) -> None:
    engine = dying_jobs(disk, clock)
    hold(engine)
    ask_claim(engine)
    committers(engine)[topic(engine, DEAD).shard].flush()
    again = open_engine(killed(disk), clock, wal_shards=SHARDS)
    assert (values(again, JOBS), values(again, DEAD), counted(again)) == ([], [0, 1], (0, 0, 0, 2))
    assert again.core.total_bytes == again.info(DEAD).bytes


def test_a_checkpoint_waits_for_the_second_half(disk: FakeDisk, clock: ManualClock) -> None:
    engine = dying_jobs(disk, clock)
    hold(engine)
    ask_claim(engine)
    closed: list[bool] = []
    engine.core.cross_shard_gate.close(lambda: closed.append(True))
    committers(engine)[topic(engine, DEAD).shard].flush()
    assert not closed
    committers(engine)[topic(engine, JOBS).shard].flush()
    assert closed
    engine.core.cross_shard_gate.reopen()


def test_a_move_that_comes_during_a_checkpoint_waits_for_it(disk: FakeDisk, clock: ManualClock) -> None:
    engine = dying_jobs(disk, clock)
    engine.core.cross_shard_gate.close(lambda: None)
    ask_claim(engine)
    assert (values(engine, JOBS), values(engine, DEAD)) == ([0, 1], [])
    assert claim(engine) == []
    engine.core.cross_shard_gate.reopen()
    assert (values(engine, JOBS), values(engine, DEAD)) == ([], [0, 1])
    assert checkpoint(engine)


def test_a_source_deleted_meanwhile_takes_nothing_with_it(disk: FakeDisk, clock: ManualClock) -> None:
    engine = dying_jobs(disk, clock)
    hold(engine)
    ask_claim(engine)
    dropped = ask_drop(engine, JOBS)
    committers(engine)[topic(engine, DEAD).shard].flush()
    flush(engine)
    assert one(dropped, DropResult).deleted
    assert values(engine, DEAD) == [0, 1]
    again = open_engine(killed(disk), clock, wal_shards=SHARDS)
    assert values(again, DEAD) == [0, 1]


def test_a_destination_deleted_before_it_began_is_a_move_that_failed(disk: FakeDisk, clock: ManualClock) -> None:
    engine = dying_jobs(disk, clock)
    engine.core.cross_shard_gate.close(lambda: None)
    ask_claim(engine)
    ask_drop(engine, DEAD)
    engine.core.cross_shard_gate.reopen()
    assert values(engine, JOBS) == [0, 1]
    assert counted(engine) == (0, 0, 2, 0)
    clock.advance(1000)
    ask_claim(engine)
    assert values(engine, DEAD) == [0, 1]


def test_records_deleted_meanwhile_are_moved_all_the_same_and_not_counted_twice(
    disk: FakeDisk, clock: ManualClock
) -> None:
    engine = dying_jobs(disk, clock)
    hold(engine)
    ask_claim(engine)
    answers: list[object] = []
    committers(engine)[topic(engine, DEAD).shard].flush()
    flush(engine)
    delete(engine, JOBS, before_seq=9)
    assert not answers
    assert counted(engine) == (0, 0, 0, 2)


@pytest.mark.parametrize("shards", [1, 2])
def test_two_redrives_at_once_move_nothing_twice(disk: FakeDisk, clock: ManualClock, shards: int) -> None:
    engine = dying_jobs(disk, clock, shards, count=4)
    ask_claim(engine)
    hold(engine)
    answers: list[object] = []
    for _ in range(2):
        engine.queues.redrive(JOBS, RedriveRequest(max=3), answers.append)
    flush(engine)
    flush(engine)
    moved = [answer.moved for answer in answers if isinstance(answer, RedriveResult)]
    assert sorted(moved) == [1, 3]
    assert (sorted(map(str, values(engine, JOBS))), values(engine, DEAD)) == (["0", "1", "2", "3"], [])


def test_a_job_is_not_claimed_while_it_is_on_its_way_out(disk: FakeDisk, clock: ManualClock) -> None:
    engine = dying_jobs(disk, clock)
    hold(engine)
    ask_claim(engine)
    clock.advance(100_000)
    assert claim(engine, 5) == []
    flush(engine)
    flush(engine)
    assert values(engine, DEAD) == [0, 1]
