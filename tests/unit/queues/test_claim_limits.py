"""Limits of a queue: jobs per second, and jobs leased at once."""

import random

import pytest

from tests.unit.conftest import FSYNC, open_engine
from tests.unit.queues.conftest import (
    JOBS,
    Hands,
    ack,
    ask_claim,
    claim,
    counted,
    job_seqs,
    make_queue,
    nack,
    produce,
)
from topics.engine.engine import Engine
from topics.queues.claim_limits import RateWindow
from topics.queues.leases import ClaimResult
from topics.queues.queue_state import find_queue
from topics.testing import FakeDisk, ManualClock

SECOND = 1000


def limited(engine: Engine, clock: ManualClock, **config: object) -> None:
    """A queue with limits, when its process has run for a second."""
    make_queue(engine, **config)
    clock.advance(SECOND)
    produce(engine, *range(20))


def run_to(engine: Engine, clock: ManualClock, ms: int) -> None:
    clock.advance(ms)
    engine.queues.alarms.run_due()


def test_no_more_jobs_are_leased_at_once_than_the_limit(engine: Engine, clock: ManualClock) -> None:
    limited(engine, clock, max_leased=3)
    assert job_seqs(claim(engine, 2)) == [1, 2]
    assert job_seqs(claim(engine, 5, "b")) == [3]
    assert claim(engine, 5, "b") == []
    assert counted(engine)[:2] == (17, 3)
    ack(engine, 1)
    assert job_seqs(claim(engine, 5, "b")) == [4]
    nack(engine, 2)
    assert job_seqs(claim(engine, 5, "b")) == [2]
    clock.advance(1001)
    assert job_seqs(claim(engine, 5)) == [2, 3, 4]


@pytest.mark.parametrize("durable", [False, True])
def test_a_waiting_worker_gets_the_next_job_when_a_lease_ends(
    engine: Engine, clock: ManualClock, durable: bool
) -> None:
    limited(engine, clock, max_leased=2, leases_durable=durable)
    hands = Hands(engine, most=5)
    assert hands.got == [1, 2]
    ack(engine, 1, node="w")
    assert hands.got == [1, 2, 3]
    run_to(engine, clock, 1001)
    assert hands.got == [1, 2, 3, 2, 3]


def test_a_limit_is_shared_by_claims_of_a_window(engine: Engine, clock: ManualClock) -> None:
    limited(engine, clock, max_leased=4, claim_jitter_ms=50)
    answers = [ask_claim(engine, 10, "a"), ask_claim(engine, 10, "b")]
    run_to(engine, clock, 50)
    sizes = [len(answer[0].jobs) for answer in answers if isinstance(answer[0], ClaimResult)]
    assert sizes == [2, 2]


def test_leases_of_before_a_restart_count_if_they_are_durable(
    engine: Engine, disk: FakeDisk, clock: ManualClock
) -> None:
    limited(engine, clock, max_leased=2, leases_durable=True, durability=FSYNC)
    claim(engine, 2)
    engine.close_inline()
    engine = open_engine(disk, clock)
    assert claim(engine, 5, "b") == []
    clock.advance(1001)
    assert job_seqs(claim(engine, 5, "b")) == [1, 2]


def test_no_more_jobs_are_handed_out_in_any_second_than_the_limit(engine: Engine, clock: ManualClock) -> None:
    limited(engine, clock, max_per_second=3)
    assert job_seqs(claim(engine, 2)) == [1, 2]
    clock.advance(400)
    assert job_seqs(claim(engine, 2)) == [3]
    assert claim(engine, 2) == []
    clock.advance(599)
    assert claim(engine, 2) == []
    clock.advance(1)
    assert job_seqs(claim(engine, 9)) == [4, 5]
    ack(engine, 4, 5)
    clock.advance(400)
    assert job_seqs(claim(engine, 9)) == [1]


def test_returned_jobs_count_each_time_they_are_handed_out(engine: Engine, clock: ManualClock) -> None:
    limited(engine, clock, max_per_second=2)
    claim(engine)
    nack(engine, 1)
    assert job_seqs(claim(engine)) == [1]
    nack(engine, 1)
    assert claim(engine) == []


def test_a_waiting_worker_gets_jobs_as_the_second_passes(engine: Engine, clock: ManualClock) -> None:
    limited(engine, clock, max_per_second=2, lease_ms=60_000)
    hands = Hands(engine, most=5)
    assert hands.got == [1, 2]
    run_to(engine, clock, 999)
    assert hands.got == [1, 2]
    run_to(engine, clock, 1)
    assert hands.got == [1, 2, 3, 4]
    run_to(engine, clock, 1000)
    assert hands.got == [1, 2, 3, 4, 5]


def test_a_restart_hands_out_nothing_for_a_second(engine: Engine, disk: FakeDisk, clock: ManualClock) -> None:
    limited(engine, clock, max_per_second=2)
    claim(engine, 2)
    engine.close_inline()
    engine = open_engine(disk, clock)
    hands = Hands(engine, most=5)
    run_to(engine, clock, 999)
    assert hands.got == []
    run_to(engine, clock, 1)
    assert len(hands.got) == 2


def test_a_raised_limit_serves_waiting_workers(engine: Engine, clock: ManualClock) -> None:
    limited(engine, clock, max_leased=1, max_per_second=1)
    hands = Hands(engine, most=5)
    assert hands.got == [1]
    make_queue(engine, max_leased=3)
    assert hands.got == [1, 2, 3]
    queue = find_queue(engine.core.existing(JOBS))
    assert queue is not None and queue.rate is None


def test_large_jobs_under_a_limit_do_not_spin(engine: Engine, clock: ManualClock) -> None:
    make_queue(engine, max_leased=1)
    produce(engine, *["x" * 600_000] * 4)
    hands = Hands(engine, most=3)
    assert hands.got == [1]
    ack(engine, 1, node="w")
    assert hands.got == [1, 2]


@pytest.mark.parametrize("jump", [86_400_000, -600_000])
def test_a_jump_of_the_clock_does_not_change_the_rate(engine: Engine, clock: ManualClock, jump: int) -> None:
    limited(engine, clock, max_per_second=1)
    assert job_seqs(claim(engine, 2)) == [1]
    clock.jump(jump)
    clock.advance(999)
    assert claim(engine) == []
    clock.advance(1)
    assert job_seqs(claim(engine)) == [2]


def test_random_rates_keep_every_second(seed: int) -> None:
    chance = random.Random(seed)
    most = chance.randint(1, 9)
    window, now, handed_out = RateWindow(-SECOND), 0, list[int]()
    for _ in range(2000):
        now += chance.choice([0, 0, 1, 90, 333, 1000])
        jobs = min(window.room(now, most), chance.randint(0, 4))
        window.add(now, jobs)
        handed_out += [now] * jobs
        if window.room(now, most) == 0:
            # The time at which there is room again is exact.
            assert window.room(window.next_room() - 1, most) == 0
    for place, moment in enumerate(handed_out[most:]):
        assert moment - handed_out[place] >= SECOND
    assert len(window._handed_out) <= SECOND
