"""Requests that wait: they follow a topic like everyone else, are answered once, and leave nothing behind."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from tests.unit.api.live.rig import Rig
from topics.api.app import Call
from topics.api.live import LongPoll, SlowLimits
from topics.api.live.transports import found_frame
from topics.api.v0.records import DiffSource
from topics.api.v0.watch import SHARED
from topics.engine.read import ReadRequest, ReadResult
from topics.model.errors import TopicNotFoundError


class FakeLive:
    def __init__(self, rig: Rig) -> None:
        self.run_queue, self.feeds, self.slow_limits = rig.run_queue, rig.feeds, SlowLimits()


class FakeCall:
    def __init__(self, rig: Rig) -> None:
        self.engine, self.live = rig.engine, FakeLive(rig)
        self.waits: set[Any] = set()
        self.gone: Callable[[], None] = lambda: None

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        self.gone = callback


class Poll:
    """One request, and its answer."""

    def __init__(self, rig: Rig, topic: str, cursor: int = 0, wait_s: float = 60.0, **wishes: Any) -> None:
        self.call = FakeCall(rig)
        self.answers: list[Any] = []
        found, source = rig.engine.core.existing(topic), DiffSource(framing=SHARED, **wishes)
        poll = LongPoll(cast(Call, self.call), found, source, wait_s, lambda outcome, _: self.answers.append(outcome))
        poll.begin(cursor)

    @property
    def answer(self) -> ReadResult:
        [answer] = self.answers
        assert isinstance(answer, ReadResult)
        return answer

    def seqs(self) -> list[object]:
        return [record["$seq"] for record in self.answer.records()]


def play(scene: Callable[[Rig], Coroutine[Any, Any, None]]) -> Rig:
    """Checks that no waiters and no followers are left when a scene is over."""
    rig = Rig()
    rig.put("t")
    asyncio.run(asyncio.wait_for(scene(rig), 30))
    rig.run_until_idle()
    assert len(rig.feeds) == 0
    return rig


def test_available_records_are_answered_immediately() -> None:
    async def scene(rig: Rig) -> None:
        rig.append("t", 3)
        poll = Poll(rig, "t", 1)
        assert poll.seqs() == [2, 3]
        assert not poll.call.waits

    play(scene)


def test_requests_at_one_position_share_a_read() -> None:
    async def scene(rig: Rig) -> None:
        rig.append("t")
        polls = [Poll(rig, "t", 1) for _ in range(50)]
        rig.run_until_idle()
        read, reads = rig.engine.read, []

        def counted(name: str, request: ReadRequest, done: Callable[[Any], None]) -> None:
            reads.append(request)
            read(name, request, done)

        rig.read_with(counted)
        assert not any(poll.answers for poll in polls)
        rig.append("t", 2)
        rig.run_until_idle()
        assert [poll.seqs() for poll in polls] == [[2, 3]] * 50
        assert len(reads) == 1
        assert not any(poll.call.waits for poll in polls)

    play(scene)


def test_records_of_ones_own_node_move_the_cursor_and_do_not_end_the_wait() -> None:
    async def scene(rig: Rig) -> None:
        rig.append("t", 600, node="me")
        poll = Poll(rig, "t", 0, limit=100, nodes=("me",))
        rig.run_until_idle()
        rig.append("t", 7, node="me")
        rig.run_until_idle()
        assert not poll.answers
        rig.append("t", 1, node="other")
        rig.run_until_idle()
        assert poll.seqs() == [608]

    play(scene)


def test_the_end_of_the_time_is_answered_with_the_place_that_was_reached() -> None:
    async def scene(rig: Rig) -> None:
        poll = Poll(rig, "t", 0, wait_s=0.0, nodes=("me",))
        rig.append("t", 5, node="me")
        rig.run_until_idle()
        while not poll.answers:
            await asyncio.sleep(0)
        assert (poll.answer.count, poll.answer.next_from_seq) == (0, 5)
        assert not poll.call.waits

    play(scene)


def test_a_client_that_is_gone_is_not_answered() -> None:
    async def scene(rig: Rig) -> None:
        poll = Poll(rig, "t")
        rig.run_until_idle()
        poll.call.gone()
        rig.append("t")
        rig.run_until_idle()
        assert not poll.answers
        assert not poll.call.waits

    play(scene)


def test_a_stopping_server_answers_with_what_there_is() -> None:
    async def scene(rig: Rig) -> None:
        poll = Poll(rig, "t")
        rig.run_until_idle()
        [waiting] = poll.call.waits
        waiting.end()
        waiting.end()
        assert (poll.answer.count, poll.answer.next_from_seq) == (0, 0)

    play(scene)


def test_the_end_of_the_topic_is_an_answer() -> None:
    async def scene(rig: Rig) -> None:
        poll = Poll(rig, "t")
        rig.run_until_idle()
        rig.drop("t")
        rig.run_until_idle()
        [answer] = poll.answers
        assert isinstance(answer, TopicNotFoundError)

    play(scene)


def test_a_loss_is_an_answer() -> None:
    async def scene(rig: Rig) -> None:
        rig.put("small", cap_records=2)
        rig.append("small", 5)
        poll = Poll(rig, "small", 1)
        assert poll.answer.tombstone is not None
        assert poll.seqs() == [4, 5]

    play(scene)


def test_what_is_kept_for_others_is_counted_as_large_as_it_is() -> None:
    source = DiffSource(framing=SHARED)
    whole = ReadResult(
        body=b"x" * 10_000, count=1, next_from_seq=1, head_seq=1, earliest_seq=1, tombstone=None, scanned=1
    )
    assert len(found_frame(source, whole, 0).data) == 10_000
    nothing = ReadResult(body=b"", count=0, next_from_seq=1, head_seq=1, earliest_seq=1, tombstone=None, scanned=1)
    assert found_frame(source, nothing, 0).data == b""
