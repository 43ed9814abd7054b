"""Dead letters, there and back."""

import pytest

from tests.unit.conftest import (
    DISK,
    EPHEMERAL,
    FSYNC,
    LOCAL,
    append,
    checkpoint,
    delete,
    drop,
    flush,
    hold,
    killed,
    move,
    one,
    open_engine,
    put,
    read,
    values,
)
from tests.unit.queues.conftest import (
    DEAD,
    JOBS,
    ack,
    ask_claim,
    claim,
    counted,
    job_seqs,
    make_queue,
    nack,
    produce,
    redrive,
)
from topics.engine.engine import Engine
from topics.model.errors import InvalidRequestError, NotAQueueError, TopicFullError, TopicNotFoundError
from topics.model.limits import Limits
from topics.model.records import Record
from topics.model.topic_config import Discard, Durability, TopicType
from topics.queues.leases import ClaimRequest, ClaimResult, NackRequest, RedriveRequest
from topics.testing import FakeDisk, ManualClock

shards = pytest.mark.parametrize("wal_shards", [1, 2])


def fail_once(engine: Engine, *seqs: int) -> None:
    """Has jobs delivered and given back; with `max_deliveries` of 1 the next claim finds them dead."""
    claim(engine, len(seqs))
    nack(engine, *seqs)


def open_queue(disk: FakeDisk, clock: ManualClock, wal_shards: int, **config: object) -> Engine:
    engine = open_engine(disk, clock, wal_shards=wal_shards)
    make_queue(engine, JOBS, **{"max_deliveries": 1, "dead_letter": DEAD, **config})
    return engine


@shards
def test_a_job_delivered_too_often_moves_with_all_it_is(disk: FakeDisk, clock: ManualClock, wal_shards: int) -> None:
    engine = open_queue(disk, clock, wal_shards, max_deliveries=2)
    produce(engine, Record.of({"x": 1}, tag="t", node="n", meta={"m": [1]}), "other")
    for deliveries in (1, 2):
        (job,) = claim(engine)
        assert (job.seq, job.deliveries) == (1, deliveries)
        nack(engine, 1)
    assert job_seqs(claim(engine)) == [2]
    (record,) = read(engine, DEAD, include_tags=True).records()
    assert record == {
        "$seq": 1, "$ts": clock.now_ms(), "$tag": "t", "$node": "n", "data": {"x": 1},
        "meta": {
            "$dead_letter_from": JOBS, "$dead_letter_deliveries": "2", "$dead_letter_src_seq": "1", "m": [1]
        },
    }  # fmt: skip
    assert values(engine, JOBS) == ["other"]
    assert counted(engine) == (0, 1, 0, 1)


@pytest.mark.parametrize(("most", "name"), [(0, DEAD), (3, None)])
def test_without_a_bound_or_a_place_jobs_come_back_for_ever(engine: Engine, most: int, name: str | None) -> None:
    make_queue(engine, max_deliveries=most, dead_letter=name)
    produce(engine, 1)
    for deliveries in range(1, 9):
        assert claim(engine)[0].deliveries == deliveries
        nack(engine, 1)
    assert DEAD not in engine.core.directory


@pytest.mark.parametrize("durability", LOCAL, ids=lambda durability: durability.value)
def test_the_dead_letter_topic_is_made_as_lasting_as_the_queue(
    disk: FakeDisk, clock: ManualClock, durability: Durability
) -> None:
    engine = open_queue(disk, clock, 1, durability=durability)
    produce(engine, 1)
    fail_once(engine, 1)
    assert claim(engine) == []
    info = engine.info(DEAD)
    assert (info.config.type, info.config.durability, info.count) == (TopicType.LOG, durability, 1)


@shards
def test_dead_letters_survive_a_restart_and_are_counted(disk: FakeDisk, clock: ManualClock, wal_shards: int) -> None:
    engine = open_queue(disk, clock, wal_shards)
    produce(engine, 1, 2, 3)
    fail_once(engine, 1, 2)
    claim(engine)
    for snapshot in (False, True):
        if snapshot:
            checkpoint(engine)
        disk = killed(disk)
        engine = open_engine(disk, clock, wal_shards=wal_shards)
        assert (values(engine, JOBS), values(engine, DEAD), counted(engine)[3]) == ([3], [1, 2], 2)


def test_expiry_counts_as_a_delivery(engine: Engine, clock: ManualClock) -> None:
    make_queue(engine, max_deliveries=1, dead_letter=DEAD)
    produce(engine, 1)
    claim(engine)
    clock.advance(1001)
    assert claim(engine) == []
    assert values(engine, DEAD) == [1]


@shards
def test_a_job_on_its_way_to_the_dead_letters_counts_as_held_back(
    disk: FakeDisk, clock: ManualClock, wal_shards: int
) -> None:
    engine = open_queue(disk, clock, wal_shards)
    put(engine, DEAD)
    produce(engine, 1, 2)
    fail_once(engine, 1)
    hold(engine)
    # The first job is neither claimed nor claimable any more. The claim is answered when it is buried.
    answers = ask_claim(engine, 2)
    assert not answers
    assert (counted(engine), engine.queues.in_flight()) == ((0, 1, 1, 0), 1)
    assert engine.queues.list_leases(JOBS).leases[0].seq == 2
    flush(engine)
    assert job_seqs(one(answers, ClaimResult).jobs) == [2]
    assert (counted(engine), engine.queues.in_flight()) == ((0, 1, 0, 1), 1)


def test_a_dead_letter_on_its_way_back_counts_as_held_back(engine: Engine) -> None:
    make_queue(engine, max_deliveries=1, dead_letter=DEAD)
    make_queue(engine, DEAD)
    produce(engine, 1)
    fail_once(engine, 1)
    assert claim(engine) == []
    assert counted(engine, DEAD) == (1, 0, 0, 0)
    hold(engine)
    engine.queues.redrive(JOBS, RedriveRequest(), lambda outcome: None)
    assert counted(engine, DEAD) == (0, 0, 1, 0)
    claimed: list[object] = []
    engine.queues.claim(DEAD, ClaimRequest(node="a"), claimed.append)
    assert isinstance(claimed[0], ClaimResult) and not claimed[0].jobs
    flush(engine)
    assert (counted(engine, DEAD), counted(engine)) == ((0, 0, 0, 0), (1, 0, 0, 1))


def test_a_full_destination_keeps_the_job_in_its_queue_until_there_is_room(engine: Engine, clock: ManualClock) -> None:
    make_queue(engine, max_deliveries=1, dead_letter=DEAD)
    put(engine, DEAD, cap_records=1, discard=Discard.REJECT)
    produce(engine, 1, 2)
    fail_once(engine, 1, 2)
    assert claim(engine, 5) == []
    assert (values(engine, JOBS), values(engine, DEAD)) == ([1, 2], [])
    assert counted(engine) == (0, 0, 2, 0)
    put(engine, DEAD, cap_records=2, discard=Discard.REJECT)
    assert claim(engine, 5) == []
    clock.advance(1000)
    assert claim(engine, 5) == []
    assert (values(engine, JOBS), values(engine, DEAD), counted(engine)) == ([], [1, 2], (0, 0, 0, 2))


def test_at_the_cap_of_topics_the_job_stays(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock, limits=Limits(max_topics=1))
    make_queue(engine, max_deliveries=1, dead_letter=DEAD)
    produce(engine, 1)
    fail_once(engine, 1)
    assert claim(engine) == []
    assert values(engine, JOBS) == [1]


def test_many_dead_letters_move_in_portions(engine: Engine) -> None:
    make_queue(engine, max_deliveries=1, dead_letter=DEAD)
    for _ in range(6):
        produce(engine, "x" * 1_000_000)
    fail_once(engine, *range(1, 7))
    assert claim(engine, 6) == []
    assert engine.info(DEAD).count == 6
    assert counted(engine) == (0, 0, 0, 6)


def test_a_dead_letter_of_a_dead_letter_queue_names_the_last(engine: Engine) -> None:
    make_queue(engine, max_deliveries=1, dead_letter=DEAD)
    make_queue(engine, DEAD, max_deliveries=1, dead_letter="last")
    produce(engine, Record.of(1, meta={"own": True}))
    fail_once(engine, 1)
    claim(engine)
    for _ in range(2):
        answers: list[object] = []
        engine.queues.claim(DEAD, ClaimRequest(node="a"), answers.append)
        if isinstance(answers[0], ClaimResult) and answers[0].jobs:
            engine.queues.nack(DEAD, NackRequest(node="a", seqs=[1]), answers.append)
    (record,) = read(engine, "last").records()
    meta = record["meta"]
    assert isinstance(meta, dict)
    assert (meta["$dead_letter_from"], meta["own"]) == (DEAD, True)


# And back


@shards
def test_jobs_come_back_with_the_meta_they_had(disk: FakeDisk, clock: ManualClock, wal_shards: int) -> None:
    engine = open_queue(disk, clock, wal_shards)
    produce(engine, Record.of(1, tag="t", meta={"m": 1}), Record.of(2, node="n"), 3)
    fail_once(engine, 1, 2)
    claim(engine)
    result = redrive(engine)
    assert (result.topic, result.source, result.moved, result.more) == (JOBS, DEAD, 2, False)
    assert values(engine, DEAD) == []
    records = read(engine, JOBS, include_tags=True).records()
    assert [(r["data"], r.get("meta"), r.get("$tag"), r.get("$node")) for r in records] == [
        (3, None, None, None), (1, {"m": 1}, "t", None), (2, None, None, "n"),
    ]  # fmt: skip
    assert [r["$seq"] for r in records[1:]] == [result.first_seq, result.last_seq]
    jobs = claim(engine, 5, node="b")
    assert [(job.seq, job.deliveries) for job in jobs] == [(result.first_seq, 1), (result.last_seq, 1)]
    again = open_engine(killed(disk), clock, wal_shards=wal_shards)
    assert (values(again, JOBS), values(again, DEAD)) == ([3, 1, 2], [])


def test_as_many_come_back_as_asked_for_the_oldest_first(engine: Engine) -> None:
    make_queue(engine, max_deliveries=1, dead_letter=DEAD)
    produce(engine, *range(5))
    fail_once(engine, *range(1, 6))
    claim(engine)
    first = redrive(engine, 2)
    assert (first.moved, first.more, values(engine, JOBS)) == (2, True, [0, 1])
    assert (redrive(engine, 100).moved, values(engine, JOBS)) == (3, [0, 1, 2, 3, 4])
    last = redrive(engine)
    assert (last.moved, last.first_seq, last.last_seq, last.more) == (0, 0, 0, False)


def test_only_jobs_of_this_queue_come_back(engine: Engine) -> None:
    make_queue(engine, max_deliveries=1, dead_letter=DEAD)
    append(engine, DEAD, "plain")
    foreign = {"$dead_letter_from": "another", "$dead_letter_deliveries": "1", "$dead_letter_src_seq": "1"}
    append(engine, DEAD, Record.of("foreign", meta=foreign))
    produce(engine, "own")
    fail_once(engine, 1)
    claim(engine)
    assert redrive(engine).moved == 1
    assert values(engine, DEAD) == ["plain", "foreign"]


def test_jobs_that_a_worker_of_the_source_holds_stay(engine: Engine) -> None:
    make_queue(engine, max_deliveries=1, dead_letter=DEAD)
    make_queue(engine, DEAD)
    produce(engine, 1, 2, 3)
    fail_once(engine, 1, 2, 3)
    claim(engine)
    answers: list[object] = []
    engine.queues.claim(DEAD, ClaimRequest(node="a"), answers.append)
    assert redrive(engine).moved == 2
    assert (values(engine, DEAD), values(engine, JOBS)) == ([1], [2, 3])
    assert counted(engine, DEAD) == (0, 1, 0, 0)


@pytest.mark.parametrize("home", ["tail", "sealed"])
def test_they_are_found_wherever_they_are(disk: FakeDisk, clock: ManualClock, home: str) -> None:
    engine = open_queue(disk, clock, 1)
    produce(engine, *range(4))
    fail_once(engine, 1, 2, 3, 4)
    claim(engine)
    delete(engine, DEAD, before_seq=2)
    move(engine, DEAD, home)
    assert redrive(engine).moved == 3
    assert values(engine, JOBS) == [1, 2, 3]


def test_a_full_queue_takes_nothing_back(engine: Engine) -> None:
    make_queue(engine, max_deliveries=1, dead_letter=DEAD, cap_records=2, discard=Discard.REJECT)
    produce(engine, 1)
    fail_once(engine, 1)
    claim(engine)
    produce(engine, 2, 3)
    with pytest.raises(TopicFullError):
        redrive(engine)
    assert values(engine, DEAD) == [1]
    ack(engine, *job_seqs(claim(engine)))
    assert redrive(engine).moved == 1


def test_another_source_may_be_named(engine: Engine) -> None:
    make_queue(engine, max_deliveries=1, dead_letter=DEAD)
    produce(engine, 1)
    fail_once(engine, 1)
    claim(engine)
    make_queue(engine)
    with pytest.raises(InvalidRequestError):
        redrive(engine)
    assert redrive(engine, source=DEAD).moved == 1


def test_refusals(engine: Engine) -> None:
    make_queue(engine, dead_letter="missing")
    append(engine, "log", 1)
    with pytest.raises(TopicNotFoundError):
        redrive(engine)
    with pytest.raises(InvalidRequestError):
        redrive(engine, source=JOBS)
    with pytest.raises(NotAQueueError):
        engine.queues.redrive("log", RedriveRequest(source=JOBS), print)


def test_a_move_out_of_an_ephemeral_queue_is_logged_where_it_goes(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_queue(disk, clock, 2, durability=EPHEMERAL)
    put(engine, DEAD, durability=FSYNC)
    produce(engine, 1)
    fail_once(engine, 1)
    claim(engine)
    assert (values(engine, JOBS), values(engine, DEAD)) == ([], [1])
    assert values(open_engine(killed(disk), clock, wal_shards=2), DEAD) == [1]


def test_a_move_into_an_ephemeral_topic_is_as_lasting_as_that(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_queue(disk, clock, 1, durability=DISK)
    put(engine, DEAD, durability=EPHEMERAL)
    produce(engine, 1)
    fail_once(engine, 1)
    claim(engine)
    assert (values(engine, JOBS), values(engine, DEAD)) == ([], [1])
    again = open_engine(killed(disk), clock)
    assert (values(again, JOBS), values(again, DEAD)) == ([], [])
    assert read(again, DEAD).tombstone is not None


def test_a_dead_letter_topic_that_was_deleted_is_made_again(engine: Engine) -> None:
    make_queue(engine, max_deliveries=1, dead_letter=DEAD)
    for value in (1, 2):
        produce(engine, value)
        fail_once(engine, value)
        claim(engine)
        assert values(engine, DEAD) == [value]
        drop(engine, DEAD)
    assert counted(engine) == (0, 0, 0, 2)


@shards
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("durability", [DISK, FSYNC])
@pytest.mark.parametrize("leases_durable", [False, True])
def test_a_claim_is_answered_when_the_jobs_it_found_dead_are_buried(
    disk: FakeDisk, clock: ManualClock, wal_shards: int, exists: bool, durability: Durability, leases_durable: bool
) -> None:
    engine = open_queue(disk, clock, wal_shards, durability=durability, leases_durable=leases_durable)
    if exists:
        put(engine, DEAD, durability=durability)
    produce(engine, "dead", "alive")
    fail_once(engine, 1)
    answers: list[tuple[object, list[object], int, int, int]] = []

    def answered(outcome: object) -> None:
        counts = engine.info(JOBS)
        assert counts.queue is not None
        answers.append((outcome, values(engine, DEAD), counts.count, counts.queue.ready, counts.queue.in_flight))

    hold(engine)
    engine.queues.claim(JOBS, ClaimRequest(node="a", max=2), answered)
    assert not answers
    while not answers:
        flush(engine)
        hold(engine)
    flush(engine)
    ((outcome, dead, count, ready, in_flight),) = answers
    assert isinstance(outcome, ClaimResult) and [job.seq for job in outcome.jobs] == [2]
    assert (dead, count, ready, in_flight, outcome.ready) == (["dead"], 1, 0, 1, 0)


def test_a_claim_that_is_taken_back_while_jobs_are_buried_gives_its_jobs_back(engine: Engine) -> None:
    make_queue(engine, max_deliveries=1, dead_letter=DEAD)
    produce(engine, "dead", "alive")
    fail_once(engine, 1)
    hold(engine)
    answers: list[object] = []
    cancel = engine.queues.claim(JOBS, ClaimRequest(node="a", max=2), answers.append)
    cancel()
    while read_or_none(engine) is None:
        flush(engine)
        hold(engine)
    flush(engine)
    assert not answers
    info = engine.info(JOBS).queue
    assert info is not None and (info.ready, info.in_flight) == (1, 0)


def read_or_none(engine: Engine) -> list[object] | None:
    try:
        return values(engine, DEAD) or None
    except TopicNotFoundError:
        return None


def test_dead_letters_respect_auto_create(engine: Engine, clock: ManualClock) -> None:
    make_queue(engine, max_deliveries=1, dead_letter=DEAD, auto_create=False)
    produce(engine, "dead")
    fail_once(engine, 1)
    assert claim(engine) == []
    with pytest.raises(TopicNotFoundError):
        read(engine, DEAD)
    assert engine.info(JOBS).count == 1
    put(engine, DEAD)
    clock.advance(1000)
    claim(engine)
    assert values(engine, DEAD) == ["dead"]
