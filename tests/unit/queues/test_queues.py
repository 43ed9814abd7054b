"""Claiming, acknowledging, giving back, extending, listing: the answers to a worker's requests."""

from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest

from tests.unit.conftest import (
    EPHEMERAL,
    FSYNC,
    HOMES,
    append,
    ask_drop,
    checkpoint,
    delete,
    drop,
    eq,
    flush,
    hold,
    killed,
    logged,
    move,
    one,
    open_engine,
    open_with_cold,
    put,
    read,
    topic,
    values,
)
from tests.unit.queues.conftest import (
    JOBS,
    Hands,
    ack,
    ask_claim,
    claim,
    counted,
    extend,
    job_seqs,
    make_queue,
    nack,
    produce,
)
from topics.engine.engine import Engine
from topics.log.frame import FrameKind
from topics.model.errors import (
    BatchTooLargeError,
    CorruptSegmentError,
    InvalidRequestError,
    NotAQueueError,
    ReadOnlyError,
    ShuttingDownError,
    TopicNotFoundError,
)
from topics.model.limits import Limits
from topics.model.records import Record
from topics.queues import dispatch
from topics.queues.leases import (
    ClaimRequest,
    ClaimResult,
    ExtendRequest,
    HeldRequest,
    NackRequest,
    WorkerRequest,
)
from topics.queues.queues import Queues
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock

homes = pytest.mark.parametrize("home", HOMES)


# Claiming


def test_a_job_comes_with_its_lease_in_its_fragment(engine: Engine, clock: ManualClock) -> None:
    produce(engine, Record.of({"x": 1}, tag="t", node="n", meta={"m": 2}))
    (job,) = claim(engine)
    assert msgspec.json.decode(job.fragment) == {
        "$seq": 1, "$ts": clock.now_ms(), "$tag": "t", "$node": "n", "data": {"x": 1}, "meta": {"m": 2},
        "lease_id": job.lease_id, "deadline": clock.now_ms() + 1000, "deliveries": 1,
    }  # fmt: skip


def test_the_body_is_the_jobs_with_commas_between_them(engine: Engine) -> None:
    produce(engine, 1, 2)
    result = one(ask_claim(engine, 5), ClaimResult)
    assert [job["data"] for job in msgspec.json.decode(b"[" + result.body + b"]")] == [1, 2]
    assert one(ask_claim(engine, 5), ClaimResult).body == b""


@homes
def test_jobs_are_claimed_wherever_they_are(disk: FakeDisk, home: str) -> None:
    engine = open_with_cold(disk)
    make_queue(engine)
    for _ in range(3):
        produce(engine, "a", "b", "c")
    delete(engine, JOBS, before_seq=2)
    move(engine, JOBS, home)
    assert job_seqs(claim(engine, 4)) == [2, 3, 4, 5]
    ack(engine, 3, 5)
    nack(engine, 2)
    assert job_seqs(claim(engine, 4)) == [2, 6, 7, 8]
    assert [msgspec.json.decode(job.fragment)["data"] for job in claim(engine, 4)] == ["c"]
    assert counted(engine) == (0, 6, 0, 0)


def test_a_claim_asks_for_one_unless_it_states_more_and_for_no_more_than_allowed(disk: FakeDisk) -> None:
    engine = open_engine(disk, limits=Limits(max_claim=2))
    make_queue(engine)
    produce(engine, *range(5))
    assert [len(claim(engine, requested)) for requested in (0, 1, 9)] == [1, 1, 2]


@pytest.mark.parametrize(("wish", "granted"), [(None, 1000), (1, 100), (500, 500), (10**12, 86_400_000)])
def test_a_lease_is_as_long_as_asked_for_within_bounds(
    engine: Engine, clock: ManualClock, wish: int | None, granted: int
) -> None:
    produce(engine, 1)
    (job,) = claim(engine, lease_ms=wish)
    assert job.deadline == clock.now_ms() + granted


def test_ready_is_what_is_left(engine: Engine) -> None:
    produce(engine, *range(5))
    assert one(ask_claim(engine, 2), ClaimResult).ready == 3


def test_lease_ids_are_new_for_each_delivery_and_cannot_be_counted_up_to(engine: Engine, clock: ManualClock) -> None:
    produce(engine, *range(50))
    ids = [job.lease_id for job in claim(engine, 50)]
    clock.advance(1001)
    ids += [job.lease_id for job in claim(engine, 50)]
    numbers = sorted(int(lease_id.removeprefix("lease_"), 16) for lease_id in ids)
    assert len(set(ids)) == 100
    assert max(numbers) > 2**60 and min(b - a for a, b in pairwise(numbers)) > 2**32


def test_an_expired_lease_frees_the_job_and_counts_on(engine: Engine, clock: ManualClock) -> None:
    produce(engine, 1, 2)
    claim(engine)
    clock.advance(1000)
    assert job_seqs(claim(engine, node="b")) == [2]
    clock.advance(1)
    (job,) = claim(engine, node="b")
    assert (job.seq, job.deliveries) == (1, 2)


def test_records_lost_to_a_cap_are_no_jobs_any_more(engine: Engine) -> None:
    make_queue(engine, cap_records=3)
    produce(engine, *range(3))
    claim(engine, 2)
    produce(engine, 3)
    assert counted(engine) == (2, 1, 0, 0)
    assert ack(engine, 1, 2).skipped == [1]
    assert job_seqs(claim(engine, 9)) == [3, 4]


def test_records_that_are_too_old_are_no_jobs_any_more(engine: Engine, clock: ManualClock) -> None:
    make_queue(engine, ttl_ms=500, lease_ms=60_000)
    produce(engine, 1, 2)
    claim(engine)
    clock.advance(501)
    produce(engine, 3)
    assert counted(engine) == (1, 0, 0, 0)
    assert job_seqs(claim(engine, 9)) == [3]


def test_a_deleted_record_is_not_a_job_any_more(engine: Engine) -> None:
    produce(engine, Record.of(1, tag="x"), Record.of(2, tag="y"), Record.of(3, tag="x"))
    claim(engine, 2)
    delete(engine, JOBS, match=eq("x"))
    assert counted(engine) == (0, 1, 0, 0)
    assert ack(engine, 1).skipped == [1]
    assert claim(engine, 9) == []


def damage(disk: FakeDisk, ending: str, offset: int) -> None:
    file = disk.open(f"data/topics/{1:016x}/seg-{1:020d}{ending}", write=True)
    file.write_at(offset, b"\xff\xff\xff\xff")


def test_jobs_that_cannot_be_read_are_reported_and_do_not_stop_the_queue(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine)
    produce(engine, *["x" * 20_000 for _ in range(10)])
    move(engine, JOBS, "sealed")
    damage(disk, ".data", 150_000)
    answer = ask_claim(engine, 10)[0]
    assert isinstance(answer, CorruptSegmentError)
    first, last = answer.detail["from_seq"], answer.detail["to_seq"]
    assert isinstance(first, int) and isinstance(last, int) and first > 1
    damaged = last - first + 1
    assert counted(engine) == (10 - damaged, 0, damaged, 0)
    assert job_seqs(claim(engine, 20)) == [seq for seq in range(1, 11) if not first <= seq <= last]
    clock.advance(60_000)
    assert isinstance(ask_claim(engine, 20)[0], CorruptSegmentError)


def test_unreadable_segment_is_reported_and_skipped(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    make_queue(engine)
    produce(engine, 1, 2, 3)
    delete(engine, JOBS, before_seq=2)
    move(engine, JOBS, "sealed")
    checkpoint(engine)
    delete(engine, JOBS, match=eq("none"))
    produce(engine, 4)
    damage(disk, ".idx", 0)
    engine.core.store._cache.clear()
    answers = [ask_claim(engine, 1)[0] for _ in range(3)]
    assert any(isinstance(answer, CorruptSegmentError) for answer in answers)
    assert [job_seqs(answer.jobs) for answer in answers if isinstance(answer, ClaimResult)].count([4]) == 1


def test_a_claim_of_many_large_jobs_is_answered_with_fewer(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_CLAIM_BYTES", 10_000)
    monkeypatch.setattr(dispatch, "_PUSH_BYTES", 1_000)
    produce(engine, *["x" * 998 for _ in range(30)])
    assert len(claim(engine, 30)) == 10
    produce(engine, *["x" * 99_998 for _ in range(3)])
    assert len(claim(engine, 30)) == 1


# Acknowledging


def test_an_acknowledged_job_is_deleted_for_good(engine: Engine, disk: FakeDisk, clock: ManualClock) -> None:
    produce(engine, 1, 2, 3)
    claim(engine, 2)
    result = ack(engine, 1, 2)
    assert (result.acked, result.skipped, result.ready, result.in_flight) == (2, [], 1, 0)
    assert values(engine, JOBS) == [3]
    assert read(engine, JOBS).tombstone is None
    assert values(open_engine(killed(disk), clock), JOBS) == [3]


def test_an_acknowledgement_is_one_frame_whatever_it_names(engine: Engine) -> None:
    produce(engine, *range(6))
    claim(engine, 6)
    before = len(logged(engine))
    ack(engine, 1, 3, 4, 6)
    assert logged(engine)[before:] == [FrameKind.DELETE]


def test_ack_without_the_lease_is_refused(engine: Engine, clock: ManualClock) -> None:
    produce(engine, 1, 2)
    claim(engine, node="a")
    assert ack(engine, 1, 2, 77, node="b").skipped == [1, 2, 77]
    clock.advance(1001)
    assert ack(engine, 1, node="a").skipped == [1]
    claim(engine, node="b")
    assert ack(engine, 1, node="a").skipped == [1]
    assert ack(engine, 1, node="b").acked == 1
    assert ack(engine, 1, node="b").skipped == [1]


def test_a_stale_lease_id_fences_its_worker_out(engine: Engine, clock: ManualClock) -> None:
    produce(engine, 1)
    (old,) = claim(engine)
    clock.advance(1001)
    (new,) = claim(engine)
    assert ack(engine, 1, lease_ids=[old.lease_id]).skipped == [1]
    assert ack(engine, 1, lease_ids=[new.lease_id]).acked == 1


def test_a_job_on_its_way_out_is_acknowledged_once(engine: Engine, clock: ManualClock) -> None:
    produce(engine, 1)
    claim(engine)
    hold(engine)
    answers: list[object] = []
    for _ in range(2):
        engine.queues.ack(JOBS, HeldRequest(node="a", seqs=[1]), answers.append)
    clock.advance(5000)
    assert claim(engine, node="b") == []
    flush(engine)
    assert [(answer.acked, answer.skipped) for answer in answers] == [(0, [1]), (1, [])]  # type: ignore[attr-defined]


def test_an_acknowledgement_of_class_fsync_waits_for_its_sync(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    make_queue(engine, durability=FSYNC)
    produce(engine, 1)
    claim(engine)
    syncs = engine.core.shards[0].writer.syncs
    ack(engine, 1)
    assert engine.core.shards[0].writer.syncs == syncs + 1


def test_an_ephemeral_queue_logs_nothing(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    make_queue(engine, durability=EPHEMERAL, leases_durable=True)
    produce(engine, 1, 2)
    before = logged(engine)
    claim(engine, 2)
    nack(engine, 1)
    ack(engine, 2)
    assert logged(engine) == before
    assert counted(engine) == (1, 0, 0, 0)


# Giving back


def test_a_job_that_was_given_back_can_be_claimed_at_once(engine: Engine) -> None:
    produce(engine, 1, 2)
    claim(engine, 2)
    result = nack(engine, 2, 9)
    assert (result.nacked, result.skipped, result.ready, result.in_flight) == (1, [9], 1, 1)
    (job,) = claim(engine, 5, node="b")
    assert (job.seq, job.deliveries) == (2, 2)


def test_a_job_that_was_given_back_with_a_delay_waits_for_it(engine: Engine, clock: ManualClock) -> None:
    produce(engine, 1)
    claim(engine)
    nack(engine, 1, delay_ms=300)
    assert counted(engine) == (0, 0, 1, 0)
    clock.advance(299)
    assert claim(engine) == []
    clock.advance(1)
    assert counted(engine) == (1, 0, 0, 0)
    assert job_seqs(claim(engine)) == [1]


def test_a_delay_is_at_most_a_day(engine: Engine, clock: ManualClock) -> None:
    produce(engine, 1)
    claim(engine)
    nack(engine, 1, delay_ms=10**12)
    clock.advance(86_400_000)
    assert job_seqs(claim(engine)) == [1]


# Extending


def test_an_extension_sets_the_deadline(engine: Engine, clock: ManualClock) -> None:
    produce(engine, 1, 2)
    claim(engine)
    clock.advance(600)
    result = extend(engine, 1, 2, lease_ms=700)
    assert (result.extended, result.skipped, result.deadlines) == (1, [2], {1: clock.now_ms() + 700})
    clock.advance(700)
    assert counted(engine)[1] == 1
    clock.advance(1)
    assert extend(engine, 1).skipped == [1]


# Appending with a delay


def test_delayed_jobs_are_there_for_readers_and_not_for_workers(engine: Engine, clock: ManualClock) -> None:
    produce(engine, 1, 2, delay_ms=400)
    produce(engine, 3)
    assert values(engine, JOBS) == [1, 2, 3]
    assert counted(engine) == (1, 0, 2, 0)
    assert job_seqs(claim(engine, 9)) == [3]
    clock.advance(400)
    assert job_seqs(claim(engine, 9)) == [1, 2]


def test_only_a_queue_delays(engine: Engine) -> None:
    append(engine, "log", 1)
    with pytest.raises(NotAQueueError):
        produce(engine, 2, name="log", delay_ms=5)
    with pytest.raises(NotAQueueError):
        produce(engine, 2, name="new", delay_ms=5)
    assert "new" not in engine.core.directory


# Looking


def test_leases_are_listed_by_page_and_by_node(engine: Engine, clock: ManualClock) -> None:
    produce(engine, *range(6))
    claim(engine, 4, node="a")
    claim(engine, 2, node="b")
    page = engine.queues.list_leases(JOBS, limit=3)
    assert ([lease.seq for lease in page.leases], page.next_after) == ([1, 2, 3], 3)
    page = engine.queues.list_leases(JOBS, after=3, limit=3)
    assert ([lease.seq for lease in page.leases], page.next_after) == ([4, 5, 6], None)
    assert [lease.seq for lease in engine.queues.list_leases(JOBS, node="b").leases] == [5, 6]
    lease = page.leases[0]
    assert (lease.node, lease.deadline, lease.deliveries) == ("a", clock.now_ms() + 1000, 1)
    clock.advance(1001)
    assert engine.queues.list_leases(JOBS).leases == []


def test_the_state_of_a_topic_has_its_counters(engine: Engine) -> None:
    assert engine.info(JOBS).queue is not None
    produce(engine, 1, 2)
    claim(engine)
    found = engine.info(JOBS).queue
    assert found is not None and (found.ready, found.in_flight) == (1, 1)
    append(engine, "log", 1)
    assert engine.info("log").queue is None
    assert engine.queues.in_flight() == 1


def test_jobs_in_flight_are_known_over_all_queues(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, leases_durable=True)
    make_queue(engine, "others", leases_durable=True)
    produce(engine, *range(6))
    produce(engine, *range(3), name="others")
    claim(engine, 4)
    engine.queues.claim("others", ClaimRequest(node="b", max=2), lambda answer: None)
    assert engine.queues.in_flight() == 6
    ack(engine, 1)
    nack(engine, 2)
    assert engine.queues.in_flight() == 4
    again = open_engine(killed(disk), clock)
    assert again.queues.in_flight() == 4
    drop(again, "others")
    assert again.queues.in_flight() == 2
    clock.advance(1001)
    again.queues.counters(JOBS)
    assert again.queues.in_flight() == 0


def test_a_queue_that_the_log_deletes_is_not_counted_by_a_start(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    make_queue(engine, leases_durable=True)
    produce(engine, *range(4))
    claim(engine, 3)
    # The delete makes the replay look at the leases, before it comes to the queue's end.
    delete(engine, JOBS, before_seq=2)
    drop(engine, JOBS)
    assert engine.queues.in_flight() == 0
    assert open_engine(killed(disk)).queues.in_flight() == 0


def test_unclaimed_queue_has_no_state(engine: Engine) -> None:
    produce(engine, *range(100))
    assert topic(engine, JOBS).parts is None
    assert counted(engine) == (100, 0, 0, 0)
    assert engine.queues.list_leases(JOBS).leases == []


def test_reading_a_queue_changes_nothing(engine: Engine) -> None:
    produce(engine, 1, 2, 3)
    claim(engine)
    before = counted(engine)
    assert values(engine, JOBS) == [1, 2, 3]
    assert counted(engine) == before


# Refusing


@pytest.mark.parametrize(
    "call",
    [
        lambda queues, name: queues.claim(name, ClaimRequest(node="a"), print),
        lambda queues, name: queues.ack(name, HeldRequest(node="a", seqs=[1]), print),
        lambda queues, name: queues.nack(name, NackRequest(node="a", seqs=[1]), print),
        lambda queues, name: queues.extend(name, ExtendRequest(node="a", seqs=[1], lease_ms=5), print),
        lambda queues, name: queues.open_worker(name, WorkerRequest(node="a"), print, print),
        lambda queues, name: queues.counters(name),
        lambda queues, name: queues.list_leases(name),
    ],
)
def test_only_queues_have_jobs(engine: Engine, call: Callable[[Queues, str], object]) -> None:
    append(engine, "log", 1)
    with pytest.raises(NotAQueueError):
        call(engine.queues, "log")
    with pytest.raises(TopicNotFoundError):
        call(engine.queues, "none")


@pytest.mark.parametrize("node", ["", "n" * 129, "é" * 65])
def test_a_node_has_a_name_that_is_not_too_long(engine: Engine, node: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        claim(engine, node=node)
    assert refusal.value.detail["field"] == "node"
    with pytest.raises(InvalidRequestError):
        ack(engine, 1, node=node)


def test_too_many_seqs_are_refused(engine: Engine) -> None:
    with pytest.raises(BatchTooLargeError) as refusal:
        ack(engine, *range(1001))
    assert refusal.value.detail == {"seqs": 1001, "max": 1000}


def test_lease_ids_must_be_as_many_as_seqs_and_lease_ids(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError):
        ack(engine, 1, 2, lease_ids=["lease_1"])
    with pytest.raises(InvalidRequestError):
        ack(engine, 1, lease_ids=["nonsense"])


def test_no_seqs_is_nothing_to_do(engine: Engine) -> None:
    assert (ack(engine).acked, nack(engine).nacked, extend(engine).extended) == (0, 0, 0)


def test_a_stopped_engine_hands_out_nothing(engine: Engine) -> None:
    produce(engine, 1)
    engine.close_inline()
    with pytest.raises(ShuttingDownError):
        claim(engine)
    with pytest.raises(ShuttingDownError):
        ack(engine, 1)


def test_the_queue_of_a_new_topic_knows_nothing_of_the_old_one(engine: Engine) -> None:
    produce(engine, 1)
    claim(engine)
    drop(engine, JOBS)
    make_queue(engine)
    produce(engine, 2)
    (job,) = claim(engine)
    assert (job.seq, job.deliveries) == (1, 1)


def test_a_topic_on_its_way_out_takes_no_more_frames(engine: Engine, disk: FakeDisk, clock: ManualClock) -> None:
    make_queue(engine, leases_durable=True)
    produce(engine, 1, 2)
    claim(engine)
    hands = Hands(engine)
    hold(engine)
    ask_drop(engine, JOBS)
    for call in (lambda: ack(engine, 1), lambda: nack(engine, 1), lambda: claim(engine), lambda: extend(engine, 1)):
        with pytest.raises(TopicNotFoundError):
            call()
    hands.worker.close()
    flush(engine)
    assert JOBS not in open_engine(killed(disk), clock).core.directory


# When the log takes no more writes


def test_a_poisoned_log_refuses_acknowledgements_and_the_lease_holds(clock: ManualClock) -> None:
    fs = FaultyFileSystem(FakeDisk())
    engine = open_engine(fs, clock)
    make_queue(engine)
    produce(engine, 1, 2)
    claim(engine, 2)
    fs.plan = FaultPlan(len(fs.trace) + 1, Fault.EIO, lasting=True)
    with pytest.raises(ReadOnlyError):
        ack(engine, 1)
    assert counted(engine) == (0, 2, 0, 0)
    with pytest.raises(ReadOnlyError):
        ack(engine, 1)
    assert nack(engine, 1).nacked == 1
    assert job_seqs(claim(engine)) == [1]


def test_with_durable_leases_a_poisoned_log_hands_out_nothing(clock: ManualClock) -> None:
    fs = FaultyFileSystem(FakeDisk())
    engine = open_engine(fs, clock)
    make_queue(engine, leases_durable=True)
    produce(engine, 1, 2)
    claim(engine)
    fs.plan = FaultPlan(len(fs.trace) + 1, Fault.EIO, lasting=True)
    with pytest.raises(ReadOnlyError):
        claim(engine)
    assert counted(engine) == (1, 1, 0, 0)
    for call in (lambda: claim(engine), lambda: nack(engine, 1), lambda: extend(engine, 1)):
        with pytest.raises(ReadOnlyError):
            call()


def test_configs_apply_from_now_on(engine: Engine, clock: ManualClock) -> None:
    produce(engine, 1, 2)
    claim(engine)
    put(engine, JOBS, lease_ms=5000)
    claim(engine)
    deadlines = [lease.deadline - clock.now_ms() for lease in engine.queues.list_leases(JOBS).leases]
    assert deadlines == [1000, 5000]


# Being consumed


def test_claims_and_workers_consume_their_queue(engine: Engine, clock: ManualClock) -> None:
    def consumed() -> tuple[int | None, int]:
        info = engine.info(JOBS, touch=False)
        return info.last_read_ts, info.effective_priority

    produce(engine, 1)
    assert consumed() == (None, 0), "to append is not to consume"
    for step in (
        lambda: claim(engine, lease_ms=86_400_000),
        lambda: claim(engine),  # There is nothing left, and it looked.
        lambda: Hands(engine),
        lambda: produce(engine, 2),  # Which is pushed to the worker at once.
    ):
        clock.advance(60_000)
        assert consumed()[1] <= 125
        step()
        assert consumed() == (clock.now_ms(), 500)
