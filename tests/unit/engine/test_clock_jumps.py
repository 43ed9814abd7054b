"""An operator sets the clock of the machine, forward or back. Durations do not change, ages follow the clock, and a
jump that is undone leaves no trace."""

import pytest

from tests.unit.conftest import append, batch_of, checkpoint, killed, open_engine, put, seqs, times, topic
from tests.unit.queues.conftest import JOBS, ack, claim, counted, extend, job_seqs, make_queue, nack, produce
from topics.engine.engine import Engine
from topics.log.layout import Layout
from topics.model.topic_config import Durability
from topics.ops.repair.repair import verify
from topics.testing import FakeDisk, ManualClock

DAY = 86_400_000
MINUTES = 600_000
jumps = pytest.mark.parametrize("jump", [DAY, -MINUTES])


def restarted(engine: Engine, disk: FakeDisk, clock: ManualClock, through: str) -> Engine:
    if through == "snapshot":
        assert checkpoint(engine)
    return open_engine(killed(disk), clock)


def append_at(engine: Engine, name: str, value: object, ts: int) -> None:
    """As a stream's append with a `Stream-Timestamp` comes."""
    answers: list[object] = []
    engine.write(topic(engine, name), batch_of(value), answers.append, None, ts)
    assert len(answers) == 1


# Leases and delays


@jumps
def test_a_lease_lasts_as_long_as_it_was_given_for(disk: FakeDisk, clock: ManualClock, jump: int) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, lease_ms=1_000)
    produce(engine, 1)
    assert job_seqs(claim(engine)) == [1]
    clock.jump(jump)
    clock.advance(1_000)
    assert job_seqs(claim(engine, node="b")) == [], "not yet, whatever the clock says"
    clock.advance(1)
    assert job_seqs(claim(engine, node="b")) == [1]
    clock.advance(1_001)
    assert job_seqs(claim(engine, node="c")) == [1], "and neither is the next one any longer"


@jumps
def test_a_deadline_is_reported_by_the_clock_of_the_answer(disk: FakeDisk, clock: ManualClock, jump: int) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, lease_ms=1_000)
    produce(engine, 1)
    clock.jump(jump)
    (job,) = claim(engine)
    assert job.deadline == clock.now_ms() + 1_000
    clock.jump(-jump)
    assert [lease.deadline for lease in engine.queues.list_leases(JOBS).leases] == [clock.now_ms() + 1_000]
    assert extend(engine, 1, lease_ms=5_000).deadlines == {1: clock.now_ms() + 5_000}


@jumps
def test_a_delay_lasts_as_long_as_it_was_given_for(disk: FakeDisk, clock: ManualClock, jump: int) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine)
    produce(engine, 1)
    produce(engine, 2, delay_ms=500)
    claim(engine)
    nack(engine, 1, delay_ms=1_000)
    clock.jump(jump)
    assert job_seqs(claim(engine)) == []
    clock.advance(500)
    assert job_seqs(claim(engine)) == [2]
    clock.advance(500)
    assert job_seqs(claim(engine)) == [1]


@jumps
def test_a_worker_that_waits_is_served_when_the_lease_of_another_ends(
    disk: FakeDisk, clock: ManualClock, jump: int
) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, lease_ms=1_000)
    produce(engine, 1)
    claim(engine)
    clock.jump(jump)
    clock.advance(1_001)
    engine.queues.alarms.run_due()
    assert counted(engine)[:2] == (1, 0)


@pytest.mark.parametrize("through", ["log", "snapshot"])
def test_durable_leases_keep_what_was_left_of_them(disk: FakeDisk, clock: ManualClock, through: str) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, leases_durable=True, lease_ms=1_000)
    produce(engine, 1, 2)
    claim(engine)
    nack(engine, 1, delay_ms=2_000)
    clock.advance(10)
    claim(engine)
    clock.jump(-MINUTES)
    again = restarted(engine, disk, clock, through)
    clock.advance(1_001)
    assert job_seqs(claim(again, 9, "b")) == [2], "set back while it was down: no lease is longer for it"
    ack(again, 2, node="b")
    clock.advance(1_000)
    assert job_seqs(claim(again, 9, "b")) == [1]


@pytest.mark.parametrize("through", ["log", "snapshot"])
def test_a_lease_given_on_a_wrong_day_ends_in_time_after_a_restart(
    disk: FakeDisk, clock: ManualClock, through: str
) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, leases_durable=True, lease_ms=1_000)
    clock.jump(DAY)
    produce(engine, 1)
    claim(engine)
    clock.jump(-DAY)
    again = restarted(engine, disk, clock, through)
    clock.advance(1_001)
    assert job_seqs(claim(again, node="b")) == [1]


# Timestamps


def test_times_of_a_topic_never_run_back_and_no_other_topic_pays_for_it(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    start = clock.now_ms()
    clock.jump(DAY)
    append(engine, "t", 1)
    clock.jump(-DAY)
    append(engine, "t", 2)
    append(engine, "other", 1)
    assert times(engine, "t") == [start + DAY, start + DAY]
    assert times(engine, "other") == [start]
    assert topic(engine, "t").last_write_ts == start
    clock.advance(DAY + 1)
    append(engine, "t", 3)
    assert times(engine, "t")[2] == start + DAY + 1


# Ages


@pytest.mark.parametrize("through", ["memory", "log", "snapshot", "segments"])
def test_records_written_on_a_wrong_day_grow_old_with_those_behind_them(
    disk: FakeDisk, clock: ManualClock, through: str
) -> None:
    engine = open_engine(disk, clock)
    put(engine, "t", ttl_ms=1_000)
    clock.jump(DAY)
    append(engine, "t", 1)
    append(engine, "t", 2)
    if through == "segments":
        engine.core.applier.cut_due.emit(topic(engine, "t"))
        assert checkpoint(engine)
    clock.jump(-DAY)
    clock.advance(100)
    append(engine, "t", 3)
    clock.advance(500)
    append(engine, "t", 4)
    if through != "memory":
        engine = restarted(engine, disk, clock, through)
    clock.advance(500)
    assert seqs(engine, "t") == [1, 2, 3, 4]
    clock.advance(1)
    assert seqs(engine, "t") == [4], "those before the clock was mended are no younger than the first behind it"
    clock.advance(500)
    assert seqs(engine, "t") == []


def test_ages_inside_a_sealed_segment_are_counted_from_the_writing(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    put(engine, "t", ttl_ms=1_000)
    start = clock.now_ms()
    for number in range(4):
        append_at(engine, "t", number, start + DAY)
        clock.advance(100)
    engine.core.applier.cut_due.emit(topic(engine, "t"))
    assert checkpoint(engine)
    assert len(topic(engine, "t").segments) == 1 and topic(engine, "t").segments[0].blocks is None
    clock.advance(701)
    assert seqs(engine, "t") == [3, 4]
    disk = killed(disk)
    assert verify(disk.clone(), Layout("data", None), "a").sound
    again = open_engine(disk, clock)
    clock.advance(100)
    assert seqs(again, "t") == [4]


@jumps
def test_an_idempotency_key_is_known_for_its_window_of_real_time(disk: FakeDisk, clock: ManualClock, jump: int) -> None:
    engine = open_engine(disk, clock)
    put(engine, "t", idempotency_window_ms=1_000)
    clock.jump(jump)
    append(engine, "t", 1, key="a")
    clock.jump(-jump)
    append(engine, "t", 2, key="b")
    clock.advance(1_001)
    append(engine, "t", 3, key="c")
    assert list(topic(engine, "t").keys or {}) == ["c"], "a key of tomorrow keeps no other from being forgotten"


@pytest.mark.parametrize("durability", [Durability.DISK, Durability.FSYNC])
def test_what_time_took_stays_away_when_the_clock_is_set_back(
    disk: FakeDisk, clock: ManualClock, durability: Durability
) -> None:
    engine = open_engine(disk, clock)
    put(engine, "t", ttl_ms=1_000, durability=durability)
    append(engine, "t", 1)
    clock.jump(DAY)
    assert seqs(engine, "t") == []
    clock.jump(-DAY)
    assert seqs(engine, "t") == []
    assert seqs(open_engine(killed(disk), clock), "t") == []
