"""Windows, cohorts, and workers that jobs are pushed to."""

import pytest

from tests.unit.conftest import delete, drop, flush, hold, one, open_engine
from tests.unit.queues.conftest import JOBS, Hands, ack, ask_claim, claim, counted, job_seqs, make_queue, nack, produce
from topics.engine.engine import Engine
from topics.model.errors import ReadOnlyError, ShuttingDownError, TopicNotFoundError
from topics.queues.leases import ClaimRequest, ClaimResult
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock


def run_to(engine: Engine, clock: ManualClock, ms: int) -> None:
    clock.advance(ms)
    engine.queues.alarms.run_due()


# Windows


def test_a_cohort_is_served_together_and_evenly(engine: Engine, clock: ManualClock) -> None:
    make_queue(engine, claim_jitter_ms=50)
    produce(engine, *range(50))
    answers = [ask_claim(engine, 10, node=f"n{number}") for number in range(10)]
    assert answers == [[]] * 10
    run_to(engine, clock, 49)
    assert answers == [[]] * 10
    run_to(engine, clock, 1)
    hands = [job_seqs(one(answer, ClaimResult).jobs) for answer in answers]
    assert [len(hand) for hand in hands] == [5] * 10
    assert sorted(seq for hand in hands for seq in hand) == list(range(1, 51))
    assert hands[0] == [1, 11, 21, 31, 41]


def test_jobs_are_divided_by_requested_number(engine: Engine, clock: ManualClock) -> None:
    make_queue(engine, claim_jitter_ms=50)
    produce(engine, *range(12))
    answers = [ask_claim(engine, requested, node=f"n{requested}") for requested in (6, 12, 18)]
    run_to(engine, clock, 50)
    assert [len(one(answer, ClaimResult).jobs) for answer in answers] == [2, 4, 6]


def test_each_of_a_cohort_has_its_own_lease(engine: Engine, clock: ManualClock) -> None:
    make_queue(engine, claim_jitter_ms=50)
    produce(engine, 1, 2)
    answers = [ask_claim(engine, 1, node="a", lease_ms=500), ask_claim(engine, 1, node="b")]
    run_to(engine, clock, 50)
    leases = [one(answer, ClaimResult).jobs[0].deadline - clock.now_ms() for answer in answers]
    assert leases == [500, 1000]


def test_the_window_is_opened_anew_by_the_next_claim(engine: Engine, clock: ManualClock) -> None:
    make_queue(engine, claim_jitter_ms=50)
    produce(engine, 1, 2)
    first = ask_claim(engine)
    run_to(engine, clock, 50)
    second = ask_claim(engine)
    assert first and not second
    run_to(engine, clock, 50)
    assert job_seqs(one(second, ClaimResult).jobs) == [2]


def test_a_claim_taken_back_gets_nothing(engine: Engine, clock: ManualClock) -> None:
    make_queue(engine, claim_jitter_ms=50)
    produce(engine, 1, 2)
    gone: list[object] = []
    cancel = engine.queues.claim(JOBS, ClaimRequest(node="gone", max=2), gone.append)
    there = ask_claim(engine, 2, node="there")
    cancel()
    run_to(engine, clock, 50)
    assert not gone and len(one(there, ClaimResult).jobs) == 2


def test_a_window_over_a_deleted_topic_is_reported(engine: Engine, clock: ManualClock) -> None:
    make_queue(engine, claim_jitter_ms=50)
    produce(engine, 1)
    answers = ask_claim(engine)
    drop(engine, JOBS)
    run_to(engine, clock, 50)
    assert isinstance(answers[0], TopicNotFoundError)


def test_stop_answers_waiting_claims(engine: Engine) -> None:
    make_queue(engine, claim_jitter_ms=50)
    produce(engine, 1)
    answers = ask_claim(engine)
    engine.close_inline()
    assert isinstance(answers[0], ShuttingDownError)


def test_claims_and_workers_are_one_cohort(engine: Engine, clock: ManualClock) -> None:
    make_queue(engine, claim_jitter_ms=50)
    hands = Hands(engine, most=4)
    produce(engine, *range(6))
    polled = ask_claim(engine, 8, node="poll")
    run_to(engine, clock, 50)
    assert (len(hands.got), len(one(polled, ClaimResult).jobs)) == (2, 4)


def test_a_job_that_a_worker_waits_for_opens_the_window(engine: Engine, clock: ManualClock) -> None:
    make_queue(engine, claim_jitter_ms=50)
    both = [Hands(engine, most=4, node=node) for node in ("a", "b")]
    produce(engine, *range(4))
    assert [hands.got for hands in both] == [[], []]
    run_to(engine, clock, 50)
    assert [hands.got for hands in both] == [[1, 3], [2, 4]]


# Workers


def test_a_worker_gets_what_it_can_hold_and_more_as_it_is_done(engine: Engine) -> None:
    produce(engine, *range(5))
    hands = Hands(engine, most=2)
    assert hands.pushes == [[1, 2]]
    ack(engine, 1, node="w")
    assert hands.pushes == [[1, 2], [3]]
    ack(engine, 2, 3, node="w")
    assert hands.pushes == [[1, 2], [3], [4, 5]]
    assert counted(engine) == (0, 2, 0, 0)


def test_a_waiting_worker_sees_an_append_at_once(engine: Engine) -> None:
    hands = Hands(engine, most=3)
    produce(engine, 1, 2)
    produce(engine, 3, 4)
    assert hands.got == [1, 2, 3]


def test_a_waiting_worker_sees_a_freed_lease_at_once(engine: Engine) -> None:
    produce(engine, 1)
    claim(engine, node="other")
    hands = Hands(engine)
    nack(engine, 1, node="other")
    assert hands.got == [1]


def test_a_waiting_worker_sees_an_expired_lease_at_its_moment(engine: Engine, clock: ManualClock) -> None:
    produce(engine, 1)
    claim(engine, node="other")
    hands = Hands(engine)
    run_to(engine, clock, 1000)
    assert hands.got == []
    run_to(engine, clock, 1)
    assert hands.got == [1]


def test_a_waiting_worker_sees_a_delayed_job_at_its_moment(engine: Engine, clock: ManualClock) -> None:
    hands = Hands(engine)
    produce(engine, 1, delay_ms=300)
    run_to(engine, clock, 299)
    assert hands.got == []
    run_to(engine, clock, 1)
    assert hands.got == [1]


def test_a_worker_whose_lease_expired_gets_the_next_job(engine: Engine, clock: ManualClock) -> None:
    produce(engine, 1, 2)
    hands = Hands(engine)
    run_to(engine, clock, 1001)
    assert hands.got == [1, 1]


def test_a_worker_whose_job_was_deleted_gets_another(engine: Engine) -> None:
    produce(engine, 1, 2)
    hands = Hands(engine)
    delete(engine, JOBS, before_seq=2)
    assert hands.got == [1, 2]


def test_jobs_of_other_claims_do_not_fill_a_worker(engine: Engine) -> None:
    produce(engine, *range(4))
    claim(engine, 2, node="w")
    hands = Hands(engine, most=2, node="w")
    assert hands.got == [3, 4]
    hands.worker.close()
    assert counted(engine) == (2, 2, 0, 0)
    assert [lease.seq for lease in engine.queues.list_leases(JOBS).leases] == [1, 2]


def test_a_closed_worker_gives_its_jobs_to_the_others_at_once(engine: Engine) -> None:
    produce(engine, 1, 2)
    gone = Hands(engine, most=2, node="gone")
    other = Hands(engine, most=2, node="other")
    gone.worker.close()
    assert other.got == [1, 2]
    gone.worker.close()
    assert gone.errors == []


def test_a_paused_worker_gets_nothing_until_it_goes_on(engine: Engine) -> None:
    hands = Hands(engine, most=5)
    hands.worker.pause()
    produce(engine, 1)
    assert hands.got == []
    hands.worker.resume()
    assert hands.got == [1]


def test_workers_share_what_comes(engine: Engine) -> None:
    workers = [Hands(engine, most=10, node=f"w{number}") for number in range(5)]
    produce(engine, *range(25))
    assert [len(hands.got) for hands in workers] == [5] * 5


def test_the_one_job_too_few_is_not_always_missed_by_the_same(engine: Engine) -> None:
    workers = [Hands(engine, most=10, node=f"w{number}") for number in range(3)]
    for _ in range(9):
        produce(engine, 1)
    assert [len(hands.got) for hands in workers] == [3, 3, 3]


def test_the_workers_of_a_deleted_topic_are_notified(engine: Engine) -> None:
    hands = Hands(engine)
    drop(engine, JOBS)
    assert [type(error) for error in hands.errors] == [TopicNotFoundError]
    hands.worker.close()


def test_a_stop_ends_the_workers(engine: Engine) -> None:
    produce(engine, 1)
    hands = Hands(engine)
    engine.close_inline()
    assert [type(error) for error in hands.errors] == [ShuttingDownError]
    hands.worker.close()


def test_a_worker_gone_while_its_claim_is_logged_gives_the_job_back(engine: Engine) -> None:
    make_queue(engine, leases_durable=True)
    produce(engine, 1)
    hold(engine)
    hands = Hands(engine)
    hands.worker.close()
    flush(engine)
    assert hands.got == []
    assert counted(engine) == (1, 0, 0, 0)


def test_with_durable_leases_a_push_waits_for_its_frame(engine: Engine) -> None:
    make_queue(engine, leases_durable=True)
    produce(engine, 1)
    hold(engine)
    hands = Hands(engine)
    assert hands.got == []
    flush(engine)
    assert hands.got == [1]


def test_a_log_that_takes_no_writes_ends_workers_with_durable_leases(clock: ManualClock) -> None:
    fs = FaultyFileSystem(FakeDisk())
    engine = open_engine(fs, clock)
    make_queue(engine, leases_durable=True)
    produce(engine, 1, 2)
    fs.plan = FaultPlan(len(fs.trace) + 1, Fault.EIO, lasting=True)
    with pytest.raises(ReadOnlyError):
        claim(engine)
    hands = Hands(engine)
    assert [type(error) for error in hands.errors] == [ReadOnlyError]


def test_only_one_alarm_waits_for_a_queue(engine: Engine, clock: ManualClock) -> None:
    produce(engine, *range(100))
    hands = Hands(engine, most=50)
    for seq in range(1, 41):
        clock.advance(5)
        ack(engine, seq, node="w")
    alarms = [alarm for _, _, alarm in engine.queues.alarms._heap if alarm.action is not None]
    assert len(alarms) == 1
    assert len(hands.got) == 90


def test_a_claim_that_waits_for_its_cohort_learns_of_the_end_of_its_topic_at_once(engine: Engine) -> None:
    make_queue(engine, claim_jitter_ms=5000)
    answers = ask_claim(engine)
    assert not answers
    drop(engine, JOBS)
    assert [type(answer) for answer in answers] == [TopicNotFoundError]


def test_expiry_of_a_lease_that_was_logged_after_the_pass_wakes_a_worker(engine: Engine, clock: ManualClock) -> None:
    make_queue(engine, leases_durable=True)
    produce(engine, 1)
    hold(engine)
    hands = [Hands(engine, 1, "a"), Hands(engine, 1, "b")]
    flush(engine)
    assert [hand.got for hand in hands] == [[1], []]
    clock.advance(1001)
    engine.queues.alarms.run_due()
    assert sorted(hand.got for hand in hands) in ([[1], [1]], [[], [1, 1]])
