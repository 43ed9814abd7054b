from collections.abc import Callable

import pytest

from tests.unit.conftest import open_engine
from tests.unit.streams.conftest import create, text
from topics.model.errors import ProducerGapError, TopicsError
from topics.streams.append import AHEAD_MAX, Appended, AppendRequest
from topics.streams.stream_frames import Producer
from topics.streams.streams import Streams, inline_streams


class Timers:
    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        self.waiting.append(function)
        return lambda: self.waiting.remove(function)


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def streams(timers: Timers) -> Streams:
    made = inline_streams(open_engine(), later=timers)
    create(made, "a")
    return made


def send(streams: Streams, seq: int) -> list[Appended | TopicsError]:
    answers: list[Appended | TopicsError] = []
    request = AppendRequest(body=b"<%d>" % seq, content_type="text/plain", producer=Producer("p", 0, seq))
    streams.append("a", request, answers.append)
    return answers


def test_batches_that_overtook_each_other_are_appended_in_order(streams: Streams, timers: Timers) -> None:
    late = [send(streams, seq) for seq in (3, 1, 2)]
    assert late == [[], [], []] and len(timers.waiting) == 3
    send(streams, 0)
    assert all(isinstance(answers[0], Appended) for answers in late)
    assert text(streams, "a") == "<0><1><2><3>"
    assert not timers.waiting


def test_a_batch_whose_predecessor_does_not_come_is_refused(streams: Streams, timers: Timers) -> None:
    answers = send(streams, 1)
    timers.waiting.pop()()
    assert isinstance(answers[0], ProducerGapError) and answers[0].expected == 0
    assert send(streams, 1) == []
    send(streams, 0)
    assert text(streams, "a") == "<0><1>"


def test_batch_far_ahead_or_held_twice_is_refused(streams: Streams) -> None:
    with pytest.raises(ProducerGapError):
        send(streams, AHEAD_MAX + 1)
    send(streams, 2)
    with pytest.raises(ProducerGapError):
        send(streams, 2)
