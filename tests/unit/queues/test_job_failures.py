"""Failures of jobs: reasons of nacks, expired leases, jobs that failed for good, and the failures recorded in dead
letters."""

import pytest

from tests.unit.conftest import checkpoint, killed, one, open_engine, put, read, topic
from tests.unit.queues.conftest import DEAD, JOBS, Hands, ack, claim, counted, job_seqs, make_queue, nack, produce
from topics.engine.engine import Engine
from topics.model.errors import InvalidRequestError
from topics.model.limits import Limits
from topics.queues.leases import EXPIRED, NackRequest, NackResult
from topics.queues.queue_frames import JobFailure, JobHistory
from topics.queues.queue_state import find_queue
from topics.testing import FakeDisk, ManualClock


def failures(engine: Engine) -> dict[int, JobHistory]:
    queue = find_queue(topic(engine, JOBS))
    assert queue is not None
    engine.queues.counters(JOBS)
    return queue.lease_table.failures


def reasons(engine: Engine, seq: int) -> list[str]:
    return [failure.reason for failure in failures(engine)[seq].last]


def metas(engine: Engine) -> list[dict[str, object]]:
    found = []
    for record in read(engine, DEAD).records():
        assert isinstance(record["meta"], dict)
        found.append(record["meta"])
    return found


def test_a_reason_is_kept_with_its_delivery_node_and_time(engine: Engine, clock: ManualClock) -> None:
    produce(engine, 1, 2)
    claim(engine, 2)
    nack(engine, 1, reason="no such file")
    at_ms = clock.now_ms()
    assert failures(engine) == {1: JobHistory(at_ms, (JobFailure(1, at_ms, "a", "no such file"),))}
    nack(engine, 2)
    assert set(failures(engine)) == {1}


def test_the_last_three_reasons_and_the_first_failure_time_are_kept(engine: Engine, clock: ManualClock) -> None:
    produce(engine, 1)
    first_ms = clock.now_ms()
    for number in range(5):
        claim(engine)
        nack(engine, 1, reason=f"reason {number}")
        clock.advance(10)
    assert reasons(engine, 1) == ["reason 2", "reason 3", "reason 4"]
    assert failures(engine)[1].first_ms == first_ms
    queue = find_queue(topic(engine, JOBS))
    assert queue is not None and queue.lease_table.reason_bytes == 3 * len("reason 0")
    claim(engine)
    ack(engine, 1)
    assert failures(engine) == {} and queue.lease_table.reason_bytes == 0


def test_an_expired_lease_is_a_failure(engine: Engine, clock: ManualClock) -> None:
    produce(engine, 1)
    claim(engine, node="gone")
    deadline = clock.now_ms() + 1000
    clock.advance(5000)
    assert failures(engine)[1].last == (JobFailure(1, deadline, "gone", EXPIRED),)


def test_a_closed_connection_is_no_failure(engine: Engine) -> None:
    produce(engine, 1)
    hands = Hands(engine)
    assert hands.got == [1]
    hands.worker.close()
    assert failures(engine) == {}


def test_a_dead_letter_tells_why_and_when(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, max_deliveries=2, dead_letter=DEAD)
    produce(engine, 1, 2)
    first_ms = clock.now_ms()
    claim(engine, 2)
    nack(engine, 1, reason="first")
    nack(engine, 2)
    clock.advance(10)
    claim(engine, 2)
    nack(engine, 1, reason="second")
    nack(engine, 2)
    assert claim(engine, 2) == []
    told, plain = metas(engine)
    assert told["$dead_letter_reason"] == "second"
    times = told["$dead_letter_first_failure_ms"], told["$dead_letter_last_failure_ms"]
    assert times == (str(first_ms), str(first_ms + 10))
    assert set(plain) == {"$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq"}
    assert failures(engine) == {}


@pytest.mark.parametrize("wal_shards", [1, 3])
@pytest.mark.parametrize("leases_durable", [True, False])
def test_a_fatal_nack_moves_the_jobs_at_once(
    disk: FakeDisk, clock: ManualClock, wal_shards: int, leases_durable: bool
) -> None:
    engine = open_engine(disk, clock, wal_shards=wal_shards)
    make_queue(engine, dead_letter=DEAD, leases_durable=leases_durable)
    produce(engine, 1, 2, 3)
    claim(engine, 3)
    answer = nack(engine, 1, 3, reason="hopeless", fatal=True)
    assert (answer.nacked, answer.dead_lettered, answer.ready, answer.in_flight) == (2, 2, 0, 1)
    assert [(meta["$dead_letter_reason"], meta["$dead_letter_deliveries"]) for meta in metas(engine)] == [
        ("hopeless", "1"), ("hopeless", "1"),
    ]  # fmt: skip
    assert counted(engine) == (0, 1, 0, 2)
    again = open_engine(killed(disk), clock, wal_shards=wal_shards)
    assert counted(again) == ((0, 1, 0, 2) if leases_durable else (1, 0, 0, 2))


def test_jobs_that_fail_for_good_in_any_order_keep_their_payloads(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, dead_letter=DEAD)
    produce(engine, "one", "two", "three")
    claim(engine, 3)
    nack(engine, 3, 1, 2, fatal=True)
    data = [letter["data"] for letter in read(engine, DEAD).records()]
    assert data == ["one", "two", "three"]
    assert [meta["$dead_letter_src_seq"] for meta in metas(engine)] == ["1", "2", "3"]


def test_a_fatal_nack_without_a_dead_letter_topic_is_refused(engine: Engine) -> None:
    produce(engine, 1)
    claim(engine)
    with pytest.raises(InvalidRequestError, match="no dead letter topic"):
        nack(engine, 1, fatal=True)
    assert counted(engine) == (0, 1, 0, 0)


@pytest.mark.parametrize("reason", ["x" * 1025, "é" * 513])
def test_a_reason_of_more_than_a_kibibyte_is_refused(engine: Engine, reason: str) -> None:
    produce(engine, 1)
    claim(engine)
    with pytest.raises(InvalidRequestError, match="1024 bytes"):
        nack(engine, 1, reason=reason)
    assert nack(engine, 1, reason="é" * 512).nacked == 1


def test_a_fatal_job_that_cannot_move_is_tried_again(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, dead_letter=DEAD, auto_create=False)
    produce(engine, 1)
    claim(engine)
    answer = nack(engine, 1, fatal=True)
    assert (answer.nacked, answer.dead_lettered) == (1, 0)
    assert counted(engine) == (0, 0, 1, 0)
    put(engine, DEAD)
    clock.advance(1000)
    assert claim(engine) == []
    assert counted(engine) == (0, 0, 0, 1)


@pytest.mark.parametrize("snapshot", [True, False])
def test_reasons_of_durable_leases_survive_a_restart(disk: FakeDisk, clock: ManualClock, snapshot: bool) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, leases_durable=True, dead_letter=DEAD)
    produce(engine, 1, 2, 3, 4)
    claim(engine, 3)
    nack(engine, 1, reason="why")
    nack(engine, 2, reason="wait", delay_ms=500)
    clock.advance(1001)
    assert job_seqs(claim(engine, 2)) == [1, 2]
    if snapshot:
        assert checkpoint(engine)
    nack(engine, 1, reason="again")
    clock.advance(1001)
    before = dict(failures(engine))
    assert [failure.reason for failure in before[3].last] == [EXPIRED]
    assert [failure.reason for failure in before[2].last] == ["wait", EXPIRED]
    for _ in range(2):
        disk = killed(disk)
        engine = open_engine(disk, clock)
        assert failures(engine) == before


def test_jobs_come_back_without_their_reason_when_the_memory_is_used_up(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock, limits=Limits(max_memory_bytes=1700))
    make_queue(engine)
    produce(engine, *range(4))
    claim(engine, 4)
    assert nack(engine, 1, 2, 3, 4, reason="x" * 1024).nacked == 4
    assert reasons(engine, 1) == [""]


def test_a_fatal_nack_of_jobs_of_others_changes_nothing(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, dead_letter=DEAD)
    produce(engine, 1)
    claim(engine, node="b")
    answers: list[object] = []
    engine.queues.nack(JOBS, NackRequest(node="a", seqs=[1, 7], reason="no", fatal=True), answers.append)
    answer = one(answers, NackResult)
    assert (answer.nacked, answer.skipped, answer.dead_lettered) == (0, [1, 7], 0)
    assert failures(engine) == {}
