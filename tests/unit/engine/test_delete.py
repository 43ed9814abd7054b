"""A delete of many ranges is prepared in steps, and is one moment for a caller that reads."""

from collections.abc import Callable

import pytest

from tests.unit.conftest import (
    append,
    ask_delete,
    checkpoint,
    delete,
    drop,
    eq,
    flush,
    hold,
    killed,
    logged,
    one,
    open_engine,
    put,
    read,
    seqs,
    topic,
)
from topics.engine import apply as applying
from topics.engine import delete as deleting
from topics.engine.disk_threads import outcome_of
from topics.engine.engine import Engine
from topics.engine.results import DeleteResult
from topics.log.frame import FrameKind
from topics.model.errors import TopicNotFoundError
from topics.model.records import Batch, Record
from topics.model.topic_config import Durability, TopicType
from topics.queues.leases import ClaimRequest
from topics.testing import FakeDisk, Survival


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleting, "MANY_RANGES", 3)
    monkeypatch.setattr(applying, "MANY_RANGES", 3)


def fill(engine: Engine) -> None:
    """Twenty records, every second of them tagged."""
    tags = ["odd" if number % 2 else None for number in range(20)]
    engine.append("t", Batch(records=[Record.of(n, tag=tag) for n, tag in enumerate(tags)]), lambda outcome: None)


@pytest.mark.parametrize("sealed", [False, True])
def test_it_is_answered_once_with_all_it_removed(disk: FakeDisk, sealed: bool) -> None:
    engine = open_engine(disk, segment_max_events=8 if sealed else 10_000)
    fill(engine)
    if sealed:
        checkpoint(engine)
    assert delete(engine, "t", match=eq("odd")).deleted == 10
    assert seqs(engine, "t") == list(range(1, 21, 2))
    assert logged(engine).count(FrameKind.DELETE) == 1
    assert seqs(open_engine(killed(disk)), "t") == list(range(1, 21, 2))


def test_what_is_appended_while_a_delete_is_prepared_stays(engine: Engine) -> None:
    fill(engine)
    hold(engine)
    answers = ask_delete(engine, "t", match=eq("odd"))
    later = Batch(records=[Record.of("new", tag="odd")])
    engine.append("t", later, lambda outcome: None)
    flush(engine)
    assert one(answers, DeleteResult).deleted == 10
    assert seqs(engine, "t") == [*range(1, 21, 2), 21]


class Steps:
    """The work that an engine would do off the loop, done one piece at a time."""

    def __init__(self, engine: Engine) -> None:
        self._waiting: list[tuple[Callable[[], object], Callable[[object], None]]] = []
        engine._deleter._background = lambda work, then, name: self._waiting.append((work, then))

    def run(self, between: Callable[[], object] = lambda: None) -> int:
        """Does everything; how many pieces there were."""
        count = 0
        while self._waiting:
            between()
            work, then = self._waiting.pop(0)
            then(outcome_of(work))
            count += 1
        return count


def state(engine: Engine) -> tuple[int, int, int, int, list[int]]:
    own = topic(engine, "t")
    return own.live_count, own.live_bytes, own.earliest, engine.core.totals.records, seqs(engine, "t")


def with_segments(disk: FakeDisk) -> Engine:
    """Forty records, every second of them tagged, in segments of ten."""
    engine = open_engine(disk, segment_max_events=10)
    for _ in range(4):
        tags = ["odd" if number % 2 else None for number in range(10)]
        engine.append("t", Batch(records=[Record.of(n, tag=tag) for n, tag in enumerate(tags)]), lambda outcome: None)
    return engine


def test_nothing_of_a_delete_is_seen_before_all_of_it(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleting, "_RUNS_A_STEP", 1)
    engine = with_segments(disk)
    before, steps = state(engine), Steps(engine)
    answers = ask_delete(engine, "t", match=eq("odd"))

    def unchanged() -> None:
        assert state(engine) == before and not answers

    assert steps.run(unchanged) == 5
    assert one(answers, DeleteResult).deleted == 20
    after = state(engine)
    assert after[0] == 20 and after[4] == list(range(1, 41, 2))
    assert after[1] == sum(len(str(record["data"])) for record in read(engine, "t", limit=100).records())
    assert logged(engine).count(FrameKind.DELETE) == 1
    assert state(open_engine(disk.clone().crash(Survival.EVERYTHING))) == after
    checkpoint(engine)
    assert state(open_engine(killed(disk))) == after


def test_what_goes_meanwhile_is_counted_once(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleting, "_RUNS_A_STEP", 1)
    engine = with_segments(disk)
    steps = Steps(engine)
    answers = ask_delete(engine, "t", match=eq("odd"))
    done: list[int] = []

    def remove() -> None:
        if not done:
            done.append(delete(engine, "t", before_seq=13).deleted)
            engine.core.applier.delete(topic(engine, "t"), 0, [(22, 22), (31, 40)])

    steps.run(remove)
    # Six in the delete at the front, one more, and five in the last segment.
    assert one(answers, DeleteResult).deleted == 20 - 6 - 1 - 5
    assert seqs(engine, "t") == [13, 15, 17, 19, 21, 23, 25, 27, 29]
    own = topic(engine, "t")
    assert own.live_bytes == sum(len(str(record["data"])) for record in read(engine, "t", limit=100).records())


def test_two_deletes_of_the_same_records_follow_each_other(disk: FakeDisk) -> None:
    engine = with_segments(disk)
    steps = Steps(engine)
    answers = [ask_delete(engine, "t", match=eq("odd")) for _ in range(3)]
    steps.run()
    assert [one(each, DeleteResult).deleted for each in answers] == [20, 0, 0]
    assert not engine._deleter._long


def test_a_topic_that_goes_while_a_delete_is_prepared_ends_it(disk: FakeDisk) -> None:
    engine = with_segments(disk)
    steps = Steps(engine)
    answers = [ask_delete(engine, "t", match=eq("odd")) for _ in range(2)]
    drop(engine, "t")
    steps.run()
    assert [type(answer) for each in answers for answer in each] == [TopicNotFoundError] * 2


def test_many_records_of_an_ephemeral_topic_are_deleted_at_one_moment(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=Durability.EPHEMERAL)
    for number in range(30):
        append(engine, "t", Record.of(number, tag="odd" if number % 2 else "even"))
    before, steps = state(engine), Steps(engine)
    answers = ask_delete(engine, "t", match=eq("odd"))
    assert state(engine) == before
    steps.run()
    assert one(answers, DeleteResult).deleted == 15
    assert state(engine)[0] == 15 and seqs(engine, "t") == list(range(1, 30, 2))


def test_a_queue_forgets_the_leases_of_deleted_jobs(disk: FakeDisk) -> None:
    engine = with_segments(disk)
    put(engine, "q", type=TopicType.QUEUE)
    for number in range(20):
        append(engine, "q", Record.of(number, tag="odd" if number % 2 else None))
    engine.queues.claim("q", ClaimRequest(node="w", max=10), lambda outcome: None)
    assert delete(engine, "q", match=eq("odd")).deleted == 10
    counts = engine.info("q").queue
    assert counts is not None and (counts.ready, counts.in_flight) == (5, 5)


def test_a_topic_that_is_not_there_is_reported_as_ever(engine: Engine) -> None:
    append(engine, "t", 1)
    drop(engine, "t")
    with pytest.raises(TopicNotFoundError):
        ask_delete(engine, "t", match=eq("odd"))
