"""Jobs as people see and change them: lists by state, retry, cancel, promote, release, and a queue that is paused."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.unit.conftest import append, checkpoint, drop, killed, one, open_engine, put, read, topic
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
)
from topics.engine.engine import Engine
from topics.model.errors import JobNotFoundError, NotAQueueError, TopicNotFoundError, TopicsError
from topics.model.records import Record
from topics.queues import job_operations
from topics.queues.job_operations import STATES, JobChanged, JobPage, QueuePausedResult
from topics.queues.leases import ClaimRequest
from topics.queues.queue_state import TopicJobs, find_queue
from topics.testing import FakeDisk, ManualClock


def page(engine: Engine, state: str, **options: Any) -> tuple[list[dict[str, Any]], int | None]:
    answers: list[object] = []
    engine.queues.list_jobs(JOBS, state, answers.append, **options)
    found = one(answers, JobPage)
    return msgspec.json.decode(b"[%b]" % found.body), found.next_seq


def listed(engine: Engine, state: str, **options: Any) -> list[int]:
    """The seqs of all pages."""
    seqs: list[int] = []
    after: int | None = 0
    while after is not None:
        jobs, after = page(engine, state, after=after, **options)
        seqs += [job["$seq"] for job in jobs]
    return seqs


def change(engine: Engine, verb: str, seq: int, dead: bool = False) -> JobChanged:
    answers: list[object] = []
    engine.queues.change_job(JOBS, seq, verb, answers.append, dead)
    if isinstance(answers[0], TopicsError):
        raise answers[0]
    return one(answers, JobChanged)


def pause(engine: Engine, paused: bool = True) -> None:
    answers: list[object] = []
    engine.queues.pause(JOBS, paused, answers.append)
    assert one(answers, QueuePausedResult).paused is paused


@pytest.fixture
def busy(disk: FakeDisk, clock: ManualClock) -> Engine:
    """Jobs 1 leased, 2 and 5 delayed, 3 failed and ready, 4 and 6 fresh, one dead letter."""
    engine = open_engine(disk, clock)
    make_queue(engine, dead_letter=DEAD)
    produce(engine, *[Record.of(number, tag="odd" if number % 2 else "even") for number in range(4)])
    produce(engine, "later", delay_ms=900)
    produce(engine, "last", "hopeless")
    claim(engine, 3)
    nack(engine, 2, delay_ms=500, reason="wait")
    nack(engine, 3, reason="no")
    claim(engine, 9, node="b")
    nack(engine, 7, node="b", reason="hopeless", fatal=True)
    nack(engine, 3, 4, 6, node="b")
    return engine


def test_jobs_are_listed_by_state(busy: Engine, clock: ManualClock) -> None:
    assert {state: listed(busy, state) for state in STATES} == {
        "ready": [3, 4, 6], "leased": [1], "delayed": [2, 5], "dead": [1],
    }  # fmt: skip
    [leased], _ = page(busy, "leased")
    assert (leased["worker"], leased["deadline"], leased["deliveries"]) == ("a", clock.now_ms() + 1000, 1)
    assert (leased["data"], leased["$tag"], leased["state"]) == (0, "even", "leased")
    retried, later = page(busy, "delayed")[0]
    assert (retried["ready_at"], later["ready_at"]) == (clock.now_ms() + 500, clock.now_ms() + 900)
    assert retried["failures"] == [{"delivery": 1, "at": clock.now_ms(), "worker": "a", "reason": "wait"}]
    assert "failures" not in later and "deliveries" not in later
    [dead], _ = page(busy, "dead")
    assert (dead["data"], dead["deliveries"], dead["failures"]) == (
        "hopeless", 1, [{"delivery": 1, "at": clock.now_ms(), "reason": "hopeless"}],
    )  # fmt: skip


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_pages_follow_each_other(busy: Engine, limit: int) -> None:
    assert listed(busy, "ready", limit=limit) == [3, 4, 6]
    assert listed(busy, "delayed", limit=limit) == [2, 5]


def test_jobs_are_listed_by_tag(busy: Engine) -> None:
    assert listed(busy, "ready", tag="odd") == [4]
    assert listed(busy, "ready", tag="even") == [3]
    assert listed(busy, "leased", tag="odd") == []


@pytest.mark.parametrize("state", STATES)
def test_a_page_of_many_jobs_looks_at_a_bounded_number(
    busy: Engine, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    expected = listed(busy, state)
    monkeypatch.setattr(job_operations, "_SORTED_MAX", 0)
    monkeypatch.setattr(job_operations, "_LOOKED_MAX", 2)
    monkeypatch.setattr(job_operations, "_READ_MAX", 2)
    assert listed(busy, state) == expected


def test_a_page_holds_a_bounded_number_of_bytes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_operations, "_PAGE_BYTES", 250)
    produce(engine, *["x" * 98] * 5)
    assert [job["$seq"] for job in page(engine, "ready")[0]] == [1, 2]
    assert listed(engine, "ready") == [1, 2, 3, 4, 5]


def test_dead_letters_of_other_queues_are_not_listed(busy: Engine) -> None:
    append(busy, DEAD, "own")
    assert listed(busy, "dead") == [1]
    with pytest.raises(JobNotFoundError):
        change(busy, "retry", 2)
    with pytest.raises(JobNotFoundError):
        change(busy, "cancel", 2, dead=True)


def test_a_queue_without_dead_letter_topic_has_no_dead_jobs(engine: Engine) -> None:
    produce(engine, 1)
    assert page(engine, "dead") == ([], None)
    with pytest.raises(JobNotFoundError):
        change(engine, "retry", 1)


def test_lists_are_of_queues(engine: Engine) -> None:
    put(engine, "log")
    with pytest.raises(NotAQueueError):
        engine.queues.list_jobs("log", "ready", lambda answer: None)
    with pytest.raises(TopicNotFoundError):
        engine.queues.list_jobs("none", "ready", lambda answer: None)


def test_a_delayed_job_is_promoted(busy: Engine, disk: FakeDisk, clock: ManualClock) -> None:
    claim(busy, 9)
    hands = Hands(busy, most=2)
    for seq in (2, 5):
        assert change(busy, "promote", seq).changed
    assert hands.got == [2, 5]
    assert counted(busy)[2] == 0
    assert not change(busy, "promote", 5).changed


@pytest.mark.parametrize("leases_durable", [True, False])
@pytest.mark.parametrize("snapshot", [True, False])
def test_a_promotion_survives_a_restart(
    disk: FakeDisk, clock: ManualClock, leases_durable: bool, snapshot: bool
) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, leases_durable=leases_durable)
    produce(engine, 1, 2, delay_ms=900)
    assert change(engine, "promote", 2) == JobChanged(JOBS, 2, True, "ready")
    if snapshot:
        assert checkpoint(engine)
    again = open_engine(killed(disk), clock)
    assert counted(again) == (1, 0, 1, 0)
    assert job_seqs(claim(again, 9)) == [2]


def test_a_released_job_can_be_claimed_and_its_worker_has_lost_it(busy: Engine) -> None:
    answer = change(busy, "release", 1)
    assert (answer.changed, answer.state) == (True, "ready")
    assert ack(busy, 1).skipped == [1]
    assert 1 in job_seqs(claim(busy, 9, node="c"))
    assert not change(busy, "release", 2).changed


@pytest.mark.parametrize("seq", [1, 2, 3, 4, 5])
def test_a_job_of_any_state_is_cancelled(busy: Engine, disk: FakeDisk, clock: ManualClock, seq: int) -> None:
    assert change(busy, "cancel", seq) == JobChanged(JOBS, seq, True, None)
    assert seq not in [job for state in STATES[:3] for job in listed(busy, state)]
    assert ack(busy, 1).acked == (seq != 1)
    with pytest.raises(JobNotFoundError):
        change(busy, "cancel", seq)
    again = open_engine(killed(disk), clock)
    assert seq not in listed(again, "ready")


def test_a_dead_letter_is_retried_with_a_new_seq(busy: Engine) -> None:
    answer = change(busy, "retry", 1)
    assert answer == JobChanged(JOBS, 8, True, "ready")
    assert listed(busy, "dead") == []
    [*_, job] = page(busy, "ready")[0]
    assert (job["$seq"], job["data"]) == (8, "hopeless") and "meta" not in job and "failures" not in job
    with pytest.raises(JobNotFoundError):
        change(busy, "retry", 1)


def test_a_dead_letter_is_cancelled(busy: Engine) -> None:
    assert change(busy, "cancel", 1, dead=True).changed
    assert listed(busy, "dead") == [] and list(read(busy, DEAD).records()) == []
    assert listed(busy, "leased") == [1]


@pytest.mark.parametrize("verb", ["retry", "cancel", "promote", "release"])
def test_a_job_that_is_not_there_is_refused(busy: Engine, verb: str) -> None:
    for seq in (0, 7, 99, 2**64 - 1):
        with pytest.raises(JobNotFoundError):
            change(busy, verb, seq)


# Pause


def test_a_paused_queue_hands_out_nothing_and_all_else_works(busy: Engine, clock: ManualClock) -> None:
    pause(busy)
    assert claim(busy, 9) == []
    hands = Hands(busy, most=9)
    produce(busy, "new")
    assert hands.got == [] and busy.queues.counters(JOBS).paused
    assert ack(busy, 1).acked == 1
    clock.advance(2000)
    busy.queues.alarms.run_due()
    assert hands.got == []
    pause(busy, False)
    assert hands.got == [2, 3, 4, 5, 6, 8]


def test_claims_of_a_window_get_nothing_of_a_paused_queue(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, claim_jitter_ms=50)
    produce(engine, 1)
    answers: list[Any] = []
    engine.queues.claim(JOBS, ClaimRequest(node="a"), answers.append)
    pause(engine)
    clock.advance(50)
    engine.queues.alarms.run_due()
    assert answers[0].jobs == [] and answers[0].ready == 1


@pytest.mark.parametrize("snapshot", [True, False])
@pytest.mark.parametrize("leases_durable", [True, False])
def test_a_pause_survives_a_restart_and_not_a_new_queue(
    disk: FakeDisk, clock: ManualClock, snapshot: bool, leases_durable: bool
) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, leases_durable=leases_durable)
    produce(engine, 1)
    pause(engine)
    # A worker puts the same config again when it starts.
    make_queue(engine, leases_durable=leases_durable)
    if snapshot:
        assert checkpoint(engine)
    for _ in range(2):
        disk = killed(disk)
        engine = open_engine(disk, clock)
        assert engine.queues.counters(JOBS).paused and claim(engine) == []
    drop(engine, JOBS)
    make_queue(engine)
    produce(engine, 1)
    assert job_seqs(claim(engine)) == [1]


def test_a_page_of_a_large_queue_sorts_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a page is that of the jobs it looks at, and not of all there are."""
    produce(engine, *range(3000))
    claim(engine, 1000)
    queue = find_queue(topic(engine, JOBS))
    assert queue is not None
    looked: list[int] = []
    live_from: Callable[..., tuple[list[int], int]] = TopicJobs.live_from

    def counted_live_from(self: Any, seq: int, requested: int) -> tuple[list[int], int]:
        found = live_from(self, seq, requested)
        looked.append(len(found[0]))
        return found

    monkeypatch.setattr(TopicJobs, "live_from", counted_live_from)
    jobs, after = page(engine, "ready", limit=10, after=1000)
    assert [job["$seq"] for job in jobs] == list(range(1001, 1011)) and after == 1010
    assert sum(looked) <= 1000
