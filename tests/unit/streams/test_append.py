"""An append on its way: the conditions it waits for, the reasons to refuse it, and the state after a failure."""

from typing import Any

import pytest

from tests.unit.conftest import flush, hold, open_engine
from tests.unit.streams.conftest import append, create, produce, slice_of, text
from topics.engine.topic import Topic
from topics.model.errors import (
    InvalidRequestError,
    ReadOnlyError,
    SequenceConflictError,
    StreamClosedError,
    ThrottledError,
    TopicFullError,
    TopicsError,
)
from topics.model.router_rules import DeleteSelector
from topics.model.topic_config import Discard, TopicConfigPatch
from topics.streams.append import Appended, AppendRequest
from topics.streams.stream_frames import Producer, StreamMark
from topics.streams.stream_state import PRODUCERS_MAX, stream_of
from topics.streams.streams import Streams, inline_streams
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem


def ask(streams: Streams, body: bytes, seq: int) -> list[Appended | TopicsError]:
    """A producer's append whose answer comes later."""
    answers: list[Appended | TopicsError] = []
    request = AppendRequest(body=body, content_type="text/plain", producer=Producer("p", 0, seq))
    streams.append("a", request, answers.append)
    return answers


def test_a_repetition_is_answered_when_what_it_repeats_is_safe(streams: Streams) -> None:
    create(streams, "a")
    hold(streams.engine)
    first, second, again = ask(streams, b"1", 0), ask(streams, b"2", 1), ask(streams, b"1", 0)
    assert first == second == again == []
    flush(streams.engine)
    assert isinstance(first[0], Appended) and not first[0].duplicate
    assert isinstance(again[0], Appended) and again[0].duplicate and again[0].producer == Producer("p", 0, 1)
    assert text(streams, "a") == "12"
    state = stream_of(streams.topic("a"))
    assert state is not None and state.staged is None


def test_a_repetition_is_not_reported_of_what_may_still_fail(streams: Streams) -> None:
    create(streams, "a")
    hold(streams.engine)
    ask(streams, b"1", 0)
    again, second = ask(streams, b"1", 0), ask(streams, b"2", 1)
    flush(streams.engine)
    assert isinstance(again[0], Appended) and again[0].producer == Producer("p", 0, 0)
    assert isinstance(second[0], Appended) and second[0].producer == Producer("p", 0, 1)


def test_a_repetition_of_what_failed_fails_too() -> None:
    disk = FakeDisk()
    fs = FaultyFileSystem(disk, FaultPlan(None, Fault.EIO, lasting=True))
    streams = inline_streams(open_engine(fs))
    create(streams, "a")
    hold(streams.engine)
    first, again = ask(streams, b"1", 0), ask(streams, b"1", 0)
    fs.plan = FaultPlan(len(fs.trace) + 1, Fault.EIO, lasting=True)
    flush(streams.engine)
    assert isinstance(first[0], ReadOnlyError) and isinstance(again[0], ReadOnlyError)
    assert text(streams, "a") == ""


def test_a_topic_at_its_cap_takes_the_batch_once_there_is_room(streams: Streams) -> None:
    create(streams, "a")
    patch = TopicConfigPatch(cap_records=1, discard=Discard.REJECT)
    streams.engine.put_topic("a", patch, lambda answer: None)
    produce(streams, "a", b"1", 0, 0)
    with pytest.raises(TopicFullError):
        produce(streams, "a", b"2", 0, 1)
    streams.engine.delete_records("a", DeleteSelector(2, None), lambda answer: None)
    assert not produce(streams, "a", b"2", 0, 1).duplicate
    assert text(streams, "a") == "2"


def test_a_stream_remembers_so_many_producers(streams: Streams) -> None:
    create(streams, "a")
    state = streams.engine.streams.state(streams.topic("a"))
    for number in range(PRODUCERS_MAX + 3):
        state.apply(StreamMark(0, producer=Producer(str(number), 0, 0)))
    assert state.producers is not None
    assert len(state.producers) == PRODUCERS_MAX
    assert next(iter(state.producers)) == "3"


@pytest.mark.parametrize("long", [{"producer": Producer("ü" * 257, 0, 0)}, {"seq": "ü" * 257}], ids=["producer", "seq"])
def test_what_is_remembered_of_writers_has_bounds(streams: Streams, long: dict[str, Any]) -> None:
    create(streams, "a")
    with pytest.raises(InvalidRequestError, match="at most 256 characters"):
        streams.append("a", AppendRequest(body=b"x", content_type="text/plain", **long), lambda outcome: None)
    assert text(streams, "a") == ""


def test_sequences_are_compared_as_bytes(streams: Streams) -> None:
    create(streams, "a")
    append(streams, "a", b"1", seq="9")
    with pytest.raises(SequenceConflictError):
        append(streams, "a", b"2", seq="10")
    append(streams, "a", b"2", seq="é")


def test_an_append_on_its_way_decides_about_the_next(streams: Streams) -> None:
    create(streams, "a")
    hold(streams.engine)
    answers: list[Appended | TopicsError] = []
    request = AppendRequest(body=b"end", content_type="text/plain", close=True, seq="5")
    streams.append("a", request, answers.append)
    with pytest.raises(StreamClosedError):
        append(streams, "a", b"late")
    assert answers == []
    flush(streams.engine)
    assert isinstance(answers[0], Appended)


def test_a_pressed_server_refuses_and_states_when_to_come_back(streams: Streams) -> None:
    create(streams, "a")
    streams.engine.admission.set_policy(True, 700)
    with pytest.raises(ThrottledError) as refused:
        produce(streams, "a", b"1", 0, 0)
    assert refused.value.detail == {"retry_after_ms": 700}
    streams.engine.admission.set_policy(False, 0)
    assert not produce(streams, "a", b"1", 0, 0).duplicate


def test_append_and_read_resolve_the_stream_once(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    create(streams, "a")
    lookups: list[str] = []
    find = streams.engine.find

    def counted(name: str) -> Topic | None:
        lookups.append(name)
        return find(name)

    monkeypatch.setattr(streams.engine, "find", counted)
    produce(streams, "a", b"1", 0, 0)
    assert lookups == ["a"]
    lookups.clear()
    assert slice_of(streams, "a", as_json=False).body == b"1"
    assert lookups == ["a"]
