"""Queues as the ends of routers: a forwarded record is a job, and moves are forwarded like appends."""

import pytest

from tests.unit.conftest import append, checkpoint, killed, open_engine, values
from tests.unit.queues.conftest import (
    DEAD,
    JOBS,
    Hands,
    ack,
    claim,
    counted,
    job_seqs,
    make_queue,
    nack,
    produce,
    redrive,
)
from tests.unit.routers.conftest import route
from topics.testing import FakeDisk, ManualClock

shards = pytest.mark.parametrize("wal_shards", [1, 3])


@shards
def test_a_job_acknowledged_in_a_queue_that_a_router_feeds_stays_acknowledged(
    disk: FakeDisk, clock: ManualClock, wal_shards: int
) -> None:
    engine = open_engine(disk, clock, wal_shards=wal_shards)
    make_queue(engine, leases_durable=True)
    route(engine, "in", JOBS)
    append(engine, "in", 1, 2, 3)
    assert job_seqs(claim(engine, 2)) == [1, 2]
    ack(engine, 1)
    for snapshot in (False, True):
        if snapshot:
            checkpoint(engine)
        disk = killed(disk)
        engine = open_engine(disk, clock, wal_shards=wal_shards)
        assert values(engine, JOBS) == [2, 3]
        assert counted(engine) == (1, 1, 0, 0)


def test_a_worker_sees_what_a_router_brings(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine)
    route(engine, "in", JOBS)
    hands = Hands(engine, most=5)
    append(engine, "in", 1, 2)
    assert hands.got == [1, 2]


@shards
def test_dead_letters_and_jobs_that_come_back_are_forwarded_and_found_again(
    disk: FakeDisk, clock: ManualClock, wal_shards: int
) -> None:
    engine = open_engine(disk, clock, wal_shards=wal_shards)
    make_queue(engine, max_deliveries=1, dead_letter=DEAD)
    route(engine, DEAD, "dead-copy")
    route(engine, JOBS, "copy")
    produce(engine, 1, 2)
    claim(engine, 2)
    nack(engine, 1, 2)
    claim(engine)
    redrive(engine, 1)
    for _ in range(2):
        assert values(engine, "dead-copy") == [1, 2]
        assert values(engine, "copy") == [1, 2, 1]
        disk = killed(disk)
        engine = open_engine(disk, clock, wal_shards=wal_shards)
