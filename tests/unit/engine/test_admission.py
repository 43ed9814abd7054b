"""Admission of appends under pressure. A committer that is held stands for a disk that stands still."""

import pytest

from tests.unit.conftest import EPHEMERAL, Answers, append, batch_of, flush, hold, one, open_engine, put, values
from topics.engine.backpressure import PATIENCE_S
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.model.errors import ReadOnlyError, ShuttingDownError, ThrottledError, TopicFullError, TopicsError
from topics.model.topic_config import Discard
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem, ManualClock

QUEUE_BYTES = 4096
LARGE = "x" * 3000


@pytest.fixture
def small(disk: FakeDisk, clock: ManualClock) -> Engine:
    """An engine whose log takes little at a time."""
    return open_engine(disk, clock, commit_queue_bytes=QUEUE_BYTES)


def ask(engine: Engine, name: str, *given: object, patient: bool = False) -> Answers:
    answers: Answers = []
    batch = batch_of(*given)
    if patient:
        batch = type(batch)(records=batch.records, disable_backpressure=True)
    engine.append(name, batch, answers.append)
    return answers


def refuse(engine: Engine, retry_after_ms: int = 700) -> None:
    engine.admission.set_policy(refusing=True, retry_after_ms=retry_after_ms)


def relent(engine: Engine) -> None:
    engine.admission.set_policy(refusing=False, retry_after_ms=0)


def fill(engine: Engine) -> None:
    """Leaves the log full: its writes are on their way and do not arrive."""
    hold(engine)
    ask(engine, "t", LARGE)
    ask(engine, "t", LARGE)


def refusal(answers: Answers) -> TopicsError:
    (error,) = answers
    assert isinstance(error, TopicsError)
    return error


# Refusing


def test_without_pressure_nobody_is_asked(engine: Engine) -> None:
    assert append(engine, "t", 1).throttle_wait_ms == 0.0
    assert one(ask(engine, "t", 2, patient=True), AppendResult).throttle_wait_ms == 0.0
    assert engine.admission.parked_total == 0


def test_under_pressure_an_append_is_refused_with_the_time_to_wait(engine: Engine) -> None:
    append(engine, "t", 1)
    refuse(engine, 700)
    with pytest.raises(ThrottledError) as refused:
        ask(engine, "t", 2)
    assert refused.value.detail == {"retry_after_ms": 700}
    assert engine.admission.refused_total == 1
    relent(engine)
    assert append(engine, "t", 3).last_seq == 2
    assert values(engine, "t") == [1, 3]


def test_under_pressure_the_highest_band_is_let_in(engine: Engine) -> None:
    put(engine, "vital", priority=1000)
    put(engine, "plain", priority=700)
    refuse(engine)
    assert append(engine, "vital", 1).last_seq == 1
    with pytest.raises(ThrottledError):
        ask(engine, "plain", 1)
    with pytest.raises(ThrottledError):
        ask(engine, "new", 1)


def test_a_full_log_refuses_also_the_highest_band(small: Engine) -> None:
    put(small, "t", priority=1000)
    fill(small)
    refuse(small)
    with pytest.raises(ThrottledError) as refused:
        ask(small, "t", 1)
    assert refused.value.detail == {"retry_after_ms": 100}


# Waiting instead


def test_who_would_rather_wait_is_let_in_when_pressure_goes(engine: Engine, clock: ManualClock) -> None:
    append(engine, "t", 1)
    refuse(engine)
    answers = ask(engine, "t", 2, patient=True)
    assert (answers, engine.admission.parked) == ([], 1)
    clock.advance(250)
    refuse(engine)
    assert answers == []
    relent(engine)
    result = one(answers, AppendResult)
    assert (result.last_seq, result.throttle_wait_ms) == (2, 250.0)
    assert (engine.admission.parked, engine.admission.wait_ms_total) == (0, 250.0)


def test_who_would_rather_wait_is_let_in_when_the_log_has_room(small: Engine, clock: ManualClock) -> None:
    append(small, "t", 1)
    fill(small)
    with pytest.raises(ThrottledError):
        ask(small, "t", 2)
    waiting = [ask(small, "t", value, patient=True) for value in ("a", "b")]
    assert waiting == [[], []]
    clock.advance(40)
    flush(small)
    assert [one(answers, AppendResult).throttle_wait_ms for answers in waiting] == [40.0, 40.0]
    assert values(small, "t") == [1, LARGE, LARGE, "a", "b"]


def test_those_who_wait_keep_their_order(engine: Engine) -> None:
    append(engine, "t", 0)
    refuse(engine)
    waiting = [ask(engine, "t", number, patient=True) for number in range(1, 20)]
    relent(engine)
    assert [one(answers, AppendResult).last_seq for answers in waiting] == list(range(2, 21))
    assert values(engine, "t") == list(range(20))


def test_nobody_overtakes_those_who_wait_by_being_patient_too(small: Engine) -> None:
    put(small, "free", durability=EPHEMERAL)
    append(small, "t", 1)
    fill(small)
    first = ask(small, "t", 2, patient=True)
    second = ask(small, "free", 1, patient=True)
    assert (first, second) == ([], [])
    flush(small)
    assert one(first, AppendResult).last_seq == 4
    assert one(second, AppendResult).last_seq == 1


def test_a_topic_without_a_log_does_not_wait_for_one(small: Engine) -> None:
    put(small, "free", durability=EPHEMERAL)
    append(small, "t", 1)
    fill(small)
    assert one(ask(small, "free", 1, patient=True), AppendResult).throttle_wait_ms == 0.0


def test_a_new_topic_can_be_waited_for(engine: Engine) -> None:
    refuse(engine)
    answers = ask(engine, "new", 1, patient=True)
    relent(engine)
    assert one(answers, AppendResult).created


def test_who_waits_learns_what_goes_wrong_later(engine: Engine) -> None:
    put(engine, "t", cap_records=1, discard=Discard.REJECT)
    refuse(engine)
    first, second = (ask(engine, "t", number, patient=True) for number in range(2))
    relent(engine)
    assert one(first, AppendResult).last_seq == 1
    assert isinstance(refusal(second), TopicFullError)


def test_who_waits_for_a_disk_that_then_fails_is_notified(disk: FakeDisk, clock: ManualClock) -> None:
    faulty = FaultyFileSystem(disk)
    engine = open_engine(faulty, clock, commit_queue_bytes=QUEUE_BYTES)
    append(engine, "t", 1)
    fill(engine)
    answers = ask(engine, "t", 2, patient=True)
    faulty.plan = FaultPlan(call=faulty.calls + 1)
    flush(engine)
    assert isinstance(refusal(answers), ReadOnlyError)


def test_waiting_has_an_end(engine: Engine, clock: ManualClock) -> None:
    append(engine, "t", 1)
    refuse(engine, 5000)
    answers = ask(engine, "t", 2, patient=True)
    clock.advance(round(PATIENCE_S * 1000) - 1)
    refuse(engine, 5000)
    assert answers == []
    clock.advance(1)
    refuse(engine, 5000)
    assert refusal(answers).detail == {"retry_after_ms": 5000}
    assert (engine.admission.parked, engine.admission.refused_total) == (0, 1)


def test_those_who_wait_hold_bounded_memory(small: Engine) -> None:
    append(small, "t", 1)
    refuse(small, 700)
    waiting = [ask(small, "t", LARGE, patient=True)]
    with pytest.raises(ThrottledError) as refused:
        ask(small, "t", LARGE, patient=True)
    assert refused.value.detail == {"retry_after_ms": 700}
    waiting.append(ask(small, "t", "small", patient=True))
    relent(small)
    assert [one(answers, AppendResult).last_seq for answers in waiting] == [2, 3]
    refuse(small)
    assert ask(small, "t", LARGE, patient=True) == []


def test_a_single_write_larger_than_the_bound_can_wait(small: Engine) -> None:
    append(small, "t", 1)
    refuse(small)
    answers = ask(small, "t", "x" * (2 * QUEUE_BYTES), patient=True)
    relent(small)
    assert one(answers, AppendResult).last_seq == 2


def test_who_waits_when_the_engine_closes_was_not_accepted(engine: Engine) -> None:
    append(engine, "t", 1)
    refuse(engine)
    answers = ask(engine, "t", 2, patient=True)
    engine.close_inline()
    assert isinstance(refusal(answers), ShuttingDownError)
    with pytest.raises(ShuttingDownError):
        ask(engine, "t", 3, patient=True)
