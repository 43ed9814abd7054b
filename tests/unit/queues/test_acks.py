"""Acknowledgements of one tick share a delete, and neither the answers nor the remaining jobs show it."""

import pytest

from tests.unit.conftest import (
    DISK,
    FSYNC,
    Answers,
    ask_append,
    ask_delete,
    ask_drop,
    ask_put,
    checkpoint,
    committers,
    flush,
    killed,
    logged,
    one,
    open_engine,
    seqs,
    topic,
)
from tests.unit.queues.conftest import JOBS, ack, ask_claim, claim, counted, job_seqs, make_queue, nack, produce
from topics.engine.engine import Engine
from topics.engine.results import DropResult
from topics.log.frame import FrameKind
from topics.log.wal import Submission
from topics.model.errors import ReadOnlyError
from topics.model.limits import Limits
from topics.queues.leases import AckResult, ClaimRequest, HeldRequest
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem, ManualClock


def gather(engine: Engine) -> None:
    """From now on acknowledgements wait for `flush`, together."""
    for committer in committers(engine):
        committer.hold = committer.coalesces = True


def ask_ack(engine: Engine, *seqs: int, node: str = "a", name: str = JOBS) -> Answers:
    answers: Answers = []
    engine.queues.ack(name, HeldRequest(node=node, seqs=seqs), answers.append)
    return answers


def working(engine: Engine, workers: str = "abc", each: int = 2) -> None:
    """Workers that hold some jobs each, and from now on acknowledge together."""
    produce(engine, *range(len(workers) * each))
    for worker in workers:
        claim(engine, each, node=worker)
    gather(engine)


def behind(engine: Engine, count: int) -> list[FrameKind]:
    """The kinds of the last frames."""
    return list(filter(FrameKind.CEILING.__ne__, logged(engine)))[-count:]


@pytest.mark.parametrize("durability", [DISK, FSYNC])
def test_acknowledgements_of_a_tick_are_one_frame_and_each_has_its_own_answer(
    clock: ManualClock, durability: object
) -> None:
    engine = open_engine(FakeDisk(), clock)
    make_queue(engine, durability=durability)
    working(engine)
    before = logged(engine).count(FrameKind.DELETE)
    answers = [ask_ack(engine, *pair, node=node) for node, pair in (("a", (1, 2)), ("b", (3, 99)), ("c", (5, 6)))]
    assert answers == [[], [], []]
    flush(engine)
    results = [one(each, AckResult) for each in answers]
    assert [(result.acked, result.skipped) for result in results] == [(2, []), (1, [99]), (2, [])]
    assert {(result.ready, result.in_flight) for result in results} == {(0, 1)}
    assert seqs(engine, JOBS) == [4]
    assert logged(engine).count(FrameKind.DELETE) == before + 1


def test_a_job_is_acknowledged_once_however_often_the_tick_names_it(engine: Engine) -> None:
    working(engine)
    first, second = ask_ack(engine, 1, 2), ask_ack(engine, 2)
    flush(engine)
    assert [one(each, AckResult).acked for each in (first, second)] == [2, 0]


def test_nothing_else_becomes_of_a_job_whose_acknowledgement_waits(engine: Engine, clock: ManualClock) -> None:
    working(engine)
    waiting = ask_ack(engine, 1, 2)
    assert nack(engine, 1).skipped == [1]
    clock.advance(60_000)
    found: list[object] = ask_claim(engine, 10, node="z")
    assert [job.seq for result in found for job in getattr(result, "jobs", [])] == [3, 4, 5, 6]
    flush(engine)
    assert one(waiting, AckResult).acked == 2


def test_an_append_may_come_before_acknowledgements_and_whatever_else_comes_behind_them(engine: Engine) -> None:
    working(engine)
    ask_ack(engine, 1, 2)
    ask_append(engine, JOBS, "x", "y")
    ask_ack(engine, 3, 4, node="b")
    flush(engine)
    assert behind(engine, 2) == [FrameKind.APPEND, FrameKind.DELETE]
    gather(engine)
    ask_ack(engine, 5, 6, node="c")
    ask_put(engine, JOBS, cap_records=1)
    flush(engine)
    assert behind(engine, 2) == [FrameKind.DELETE, FrameKind.CONFIG]
    assert seqs(engine, JOBS) == [8]


def test_a_delete_and_a_drop_come_behind_acknowledgements_before_them(engine: Engine) -> None:
    working(engine)
    first = ask_ack(engine, 1, 2)
    ask_delete(engine, JOBS, before_seq=5)
    second = ask_ack(engine, 5, node="c")
    dropped = ask_drop(engine, JOBS)
    flush(engine)
    assert [one(each, AckResult).acked for each in (first, second)] == [2, 1]
    assert one(dropped, DropResult).deleted
    assert behind(engine, 4) == [FrameKind.DELETE, FrameKind.DELETE, FrameKind.DELETE, FrameKind.DROP]


@pytest.mark.parametrize("config", [{"cap_records": 6}, {"cap_bytes": 1 << 20}], ids=["records", "bytes"])
def test_where_a_cap_counts_room_is_made_before_it_is_taken(
    disk: FakeDisk, clock: ManualClock, config: dict[str, object]
) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, **config)
    working(engine)
    waiting = ask_ack(engine, 3, 4, node="b")
    ask_append(engine, JOBS, "x", "y")
    flush(engine)
    assert one(waiting, AckResult).acked == 2
    assert seqs(engine, JOBS) == [1, 2, 5, 6, 7, 8]


def test_how_much_is_deleted_at_once_is_bounded(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock, limits=Limits(max_claim=1000))
    make_queue(engine)
    produce(engine, *range(2000))
    held = [(node, job_seqs(claim(engine, 400, node=node))) for node in "abcde"]
    gather(engine)
    answers = [ask_ack(engine, *jobs, node=node) for node, jobs in held]
    flush(engine)
    assert [one(each, AckResult).acked for each in answers] == [400] * 5
    assert behind(engine, 2) == [FrameKind.DELETE, FrameKind.DELETE]
    assert seqs(engine, JOBS) == []


def test_queues_of_different_shards_are_gathered_apart(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock, wal_shards=2)
    for number in range(8):
        make_queue(engine, f"q{number}")
        produce(engine, 1, name=f"q{number}")
        engine.queues.claim(f"q{number}", ClaimRequest(node="a"), lambda outcome: None)
    gather(engine)
    answers = {number: ask_ack(engine, 1, name=f"q{number}") for number in range(8)}
    assert {topic(engine, f"q{number}").shard for number in answers} == {0, 1}
    committers(engine)[1].flush()
    assert {number for number, each in answers.items() if each} == {
        number for number in answers if topic(engine, f"q{number}").shard == 1
    }
    flush(engine)
    assert [one(each, AckResult).acked for each in answers.values()] == [1] * 8


def test_acknowledgements_that_waited_survive_a_kill_only_together(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine)
    working(engine)
    ask_ack(engine, 1, 2)
    ask_ack(engine, 5, node="c")
    assert seqs(open_engine(killed(disk.clone())), JOBS) == [1, 2, 3, 4, 5, 6]
    flush(engine)
    assert seqs(open_engine(killed(disk)), JOBS) == [3, 4, 6]


def test_a_checkpoint_has_the_acknowledgements_before_it(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine)
    working(engine)
    ask_ack(engine, 1, 2)
    checkpoint(engine)
    flush(engine)
    assert seqs(open_engine(killed(disk)), JOBS) == [3, 4, 5, 6]


def test_when_the_log_fails_everybody_is_notified_and_keeps_the_jobs(disk: FakeDisk, clock: ManualClock) -> None:
    fs = FaultyFileSystem(disk)
    engine = open_engine(fs, clock)
    make_queue(engine)
    working(engine)
    answers = [ask_ack(engine, 1, 2), ask_ack(engine, 3, node="b")]
    fs.plan = FaultPlan(call=fs.calls + 1)
    flush(engine)
    assert [type(answer) for each in answers for answer in each] == [ReadOnlyError] * 2
    assert counted(engine) == (0, 6, 0, 0)
    assert seqs(engine, JOBS) == [1, 2, 3, 4, 5, 6]


def test_a_broken_callback_keeps_no_answer_from_the_others(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    working(engine)

    def broken(outcome: object) -> None:
        raise RuntimeError("broken")

    engine.queues.ack(JOBS, HeldRequest(node="a", seqs=(1, 2)), broken)
    answers = ask_ack(engine, 3, 4, node="b")
    flush(engine)
    assert one(answers, AckResult).acked == 2
    assert "commit callback failed" in caplog.text


def test_a_cohort_is_counted_by_those_who_wait(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    working(engine)
    shard, callers = engine.core.shards[0], []
    whole = shard.submit

    def counting(submission: Submission) -> None:
        callers.append(submission.callers)
        whole(submission)

    monkeypatch.setattr(shard, "submit", counting)
    for node, job in (("a", 1), ("b", 3), ("c", 5)):
        ask_ack(engine, job, node=node)
    flush(engine)
    assert callers == [3]


def test_without_a_tick_an_acknowledgement_is_logged_at_once(engine: Engine) -> None:
    produce(engine, 1, 2)
    claim(engine, 2)
    assert ack(engine, 1, 2).acked == 2
    assert behind(engine, 1) == [FrameKind.DELETE]
