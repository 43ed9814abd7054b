"""Priorities, delays and start times of jobs."""

from typing import Any

import msgspec
import pytest

from tests.unit.conftest import DISK, one, open_engine, put
from tests.unit.queues.conftest import (
    JOBS,
    Hands,
    ack,
    claim,
    counted,
    job_seqs,
    make_queue,
    nack,
    redrive,
)
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.model.errors import InvalidRequestError, NotAQueueError, ReadOnlyError
from topics.model.limits import MAX_RUN_AHEAD_MS
from topics.model.records import Batch, Record
from topics.queues.job_operations import JobPage
from topics.queues.job_order import JobPriorities
from topics.queues.queue_state import find_queue
from topics.testing import FakeDisk, ManualClock


def add(engine: Engine, count: int = 1, name: str = JOBS, **fields: Any) -> list[object]:
    answers: list[object] = []
    records = [Record.of(number, tag=f"t{number}") for number in range(count)]
    engine.append(name, Batch(records=records, **fields), answers.append)
    return answers


def restart(engine: Engine, disk: FakeDisk, clock: ManualClock) -> Engine:
    engine.close_inline()
    return open_engine(disk, clock)


def test_higher_priorities_are_claimed_first_and_jobs_of_one_priority_by_seq(engine: Engine) -> None:
    for priority in (0, -3, 7, 0, 7, 1000, -1000):
        one(add(engine, priority=priority), AppendResult)
    assert counted(engine) == (7, 0, 0, 0)
    assert job_seqs(claim(engine, 4)) == [6, 3, 5, 1]
    assert job_seqs(claim(engine, 9)) == [4, 2, 7]
    assert counted(engine) == (0, 7, 0, 0)


def test_claimed_jobs_carry_their_own_record_in_the_order_of_priority(engine: Engine) -> None:
    add(engine, 2)
    add(engine, 2, priority=5)
    jobs = claim(engine, 4)
    assert job_seqs(jobs) == [3, 4, 1, 2]
    for job in jobs:
        record = msgspec.json.decode(job.fragment)
        assert (record["$seq"], record["lease_id"]) == (job.seq, job.lease_id)
        assert record["data"] == (job.seq - 1) % 2


def test_returned_job_keeps_its_priority_and_its_place(engine: Engine) -> None:
    add(engine, 2, priority=5)
    add(engine, 1)
    assert job_seqs(claim(engine, 2)) == [1, 2]
    nack(engine, 2)
    assert job_seqs(claim(engine, 1)) == [2]
    nack(engine, 1)
    nack(engine, 2)
    assert job_seqs(claim(engine, 3)) == [1, 2, 3]
    ack(engine, 1, 2, 3)
    queue = find_queue(engine.core.existing(JOBS))
    assert queue is not None and not queue.lease_table.priorities


def test_expired_lease_returns_a_job_with_its_priority(engine: Engine, clock: ManualClock) -> None:
    add(engine, 1)
    add(engine, 1, priority=1)
    assert job_seqs(claim(engine, 1)) == [2]
    clock.advance(1001)
    assert job_seqs(claim(engine, 2)) == [2, 1]


def test_delayed_job_has_its_priority_once_it_is_ready(engine: Engine, clock: ManualClock) -> None:
    add(engine, 1)
    add(engine, 1, priority=1, delay_ms=100)
    assert counted(engine) == (1, 0, 1, 0)
    assert job_seqs(claim(engine, 1)) == [1]
    nack(engine, 1)
    clock.advance(100)
    assert job_seqs(claim(engine, 2)) == [2, 1]


def test_pushed_jobs_are_dealt_by_priority(engine: Engine) -> None:
    add(engine, 2, priority=-1)
    add(engine, 2)
    add(engine, 1, priority=1)
    hands = [Hands(engine, 2, "w"), Hands(engine, 2, "v")]
    assert [hand.got for hand in hands] == [[5, 3], [4, 1]]


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
@pytest.mark.parametrize("checkpoints", [False, True], ids=["log", "snapshot"])
def test_priorities_and_start_times_survive_a_restart(
    engine: Engine, disk: FakeDisk, clock: ManualClock, durable: bool, checkpoints: bool
) -> None:
    make_queue(engine, leases_durable=durable)
    add(engine, 2)
    add(engine, 1, priority=3)
    add(engine, 1, priority=9, run_at=clock.now_ms() + 500)
    claim(engine, 1)
    if checkpoints:
        engine.run_job(engine.checkpointer.job(full=True))
    for _ in range(2):
        engine = restart(engine, disk, clock)
    assert counted(engine) == ((2, 1, 1, 0) if durable else (3, 0, 1, 0))
    clock.advance(1500)
    assert job_seqs(claim(engine, 4)) == [4, 3, 1, 2]


def test_run_at_in_the_past_is_ready_at_once(engine: Engine, clock: ManualClock) -> None:
    add(engine, run_at=clock.now_ms() - 1)
    add(engine, run_at=0)
    assert counted(engine) == (2, 0, 0, 0)


def test_run_at_may_be_further_than_the_longest_delay(engine: Engine, clock: ManualClock) -> None:
    days = 40 * 86_400_000
    add(engine, run_at=clock.now_ms() + days)
    clock.advance(days - 1)
    assert counted(engine) == (0, 0, 1, 0)
    clock.advance(1)
    assert counted(engine) == (1, 0, 0, 0)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"priority": 1001}, "priority"),
        ({"priority": -1001}, "priority"),
        ({"run_at": 2**63}, "run_at"),
        ({"run_at": 1, "delay_ms": 1}, "run_at"),
    ],
)
def test_invalid_order_is_refused_and_nothing_is_appended(engine: Engine, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        add(engine, **fields)
    assert refused.value.detail["field"] == field
    assert engine.core.existing(JOBS).head == 0


def test_run_at_is_bounded(engine: Engine, clock: ManualClock) -> None:
    one(add(engine, run_at=clock.now_ms() + MAX_RUN_AHEAD_MS), AppendResult)
    with pytest.raises(InvalidRequestError):
        add(engine, run_at=clock.now_ms() + MAX_RUN_AHEAD_MS + 1)


@pytest.mark.parametrize("fields", [{"priority": 1}, {"run_at": 5}])
def test_only_queues_have_an_order(engine: Engine, fields: dict[str, Any]) -> None:
    put(engine, "log", durability=DISK)
    with pytest.raises(NotAQueueError):
        add(engine, name="log", **fields)


def test_failed_append_leaves_no_priority(engine: Engine, disk: FakeDisk) -> None:
    add(engine)
    engine.core.shards[0].writer.poison = ReadOnlyError(0, "broken")
    with pytest.raises(ReadOnlyError):
        add(engine, priority=4)
    queue = find_queue(engine.core.existing(JOBS))
    assert queue is None or not queue.lease_table.priorities


def test_a_claim_passes_a_long_stretch_of_delayed_jobs(engine: Engine) -> None:
    add(engine, 5000, delay_ms=1000)
    add(engine, 3)
    assert job_seqs(claim(engine, 1)) == [5001]
    assert job_seqs(claim(engine, 5)) == [5002, 5003]


def test_listed_job_tells_its_priority(engine: Engine) -> None:
    add(engine, priority=4)
    add(engine)
    pages: list[object] = []
    engine.queues.list_jobs(JOBS, "ready", pages.append)
    jobs = msgspec.json.decode(b"[%b]" % one(pages, JobPage).body)
    assert [job.get("priority") for job in jobs] == [4, None]


def test_deleted_jobs_do_not_stay_in_the_heap() -> None:
    priorities = JobPriorities()
    for seq in range(1, 5000):
        priorities.set([seq], 1)
        priorities.push(seq)
        priorities.forget(seq)
    assert len(priorities._ready) < 1100 and not priorities


def test_redriven_job_has_priority_0(engine: Engine) -> None:
    make_queue(engine, max_deliveries=1, dead_letter="dead")
    add(engine, 1, priority=4)
    add(engine, 1)
    claim(engine, 1)
    nack(engine, 1)
    assert job_seqs(claim(engine, 1)) == [2]
    assert redrive(engine).moved == 1
    nack(engine, 2)
    queue = find_queue(engine.core.existing(JOBS))
    assert queue is not None and not queue.lease_table.priorities
