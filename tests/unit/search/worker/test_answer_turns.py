"""When answers of the searching process are handed on."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from topics.model.errors import SearchUnavailableError
from topics.search.service import backend
from topics.search.service.backend import AnswerTurns
from topics.search.worker.messages import Hits, Result

SHOWN = Result(hits=Hits([1]))
TOLD = Result(seqs=(1,))


class World:
    """Answers that are numbered, and commits that begin and end when told."""

    def __init__(self) -> None:
        self.committing = False
        self.asked = True
        self.seen: list[int] = []
        self.turns = AnswerTurns(lambda: self.committing, lambda: self.asked)

    def come(self, *numbers: int, result: Result = SHOWN) -> None:
        self.turns.add([(lambda _, number=number: self.seen.append(number), result) for number in numbers])  # type: ignore[misc]

    def commit(self) -> None:
        self.committing = False
        self.turns.committed()


def run(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def testing() -> None:
        await asyncio.wait_for(test(World()), 30)

    asyncio.run(testing())


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns off pauses in tests about something else."""
    monkeypatch.setattr(backend, "_APPENDING_S", 0.0)


@pytest.fixture
def resting(restless: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_APPENDING_S", 3600.0)
    monkeypatch.setattr(backend, "REST_S", 0.02)


@pytest.mark.usefixtures("resting")
def test_while_somebody_appends_the_loop_rests_behind_an_answer() -> None:
    async def test(world: World) -> None:
        world.come(1, 2)
        await turns(2)
        assert world.seen == [1, 2], "nobody has appended"
        world.commit()
        world.come(3, 4)
        assert world.seen == [1, 2, 3]
        await turns(5)
        assert world.seen == [1, 2, 3]
        await asyncio.sleep(0.03)
        assert world.seen == [1, 2, 3, 4]
        await asyncio.sleep(0.03)
        world.come(5)
        assert world.seen[-1] == 5, "it has rested"
        world.come(6)
        await turns(5)
        assert world.seen[-1] == 5, "and does again"

    run(test)


@pytest.mark.usefixtures("resting")
def test_behind_who_searches_alone_nobody_rests() -> None:
    async def test(world: World) -> None:
        world.asked = False
        for number in range(3):
            world.commit()
            world.come(number)
            assert world.seen[-1] == number
        world.come(3, 4)
        await turns(5)
        assert world.seen[-1] == 3, "two are two, whether they came together or not"

    run(test)


@pytest.mark.usefixtures("resting")
def test_behind_who_gets_places_alone_nobody_rests() -> None:
    async def test(world: World) -> None:
        world.commit()
        world.come(1, 2, 3, result=TOLD)
        await turns(2)
        assert world.seen == [1, 2, 3]
        world.come(4)
        await turns(3)
        world.come(5, result=TOLD)
        await turns(3)
        assert world.seen == [1, 2, 3, 4], "but they wait in line with the others"

    run(test)


@pytest.mark.usefixtures("resting")
def test_of_many_in_line_several_are_handed_on_between_two_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    left_at_rests: list[int] = []
    rested = AnswerTurns._rested

    def noted(turns: AnswerTurns) -> None:
        left_at_rests.append(len(turns._line))
        rested(turns)

    monkeypatch.setattr(backend, "REST_S", 0.001)
    monkeypatch.setattr(AnswerTurns, "_rested", noted)

    async def test(world: World) -> None:
        world.commit()
        world.come(*range(100))
        while len(world.seen) < 100:
            await asyncio.sleep(0.001)
        assert world.seen == list(range(100))
        # An eighth of all, then an eighth of the others, and so on.
        assert left_at_rests[:3] == [99, 86, 75]
        assert len(left_at_rests) < 30

    run(test)


@pytest.mark.usefixtures("resting")
def test_who_has_long_not_appended_is_waited_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_APPENDING_S", 0.01)

    async def test(world: World) -> None:
        world.commit()
        world.come(1)
        await asyncio.sleep(0.05)
        world.come(2, 3, 4)
        await turns(3)
        assert world.seen == [1, 2, 3, 4]

    run(test)


def test_one_is_handed_on_in_each_turn() -> None:
    async def test(world: World) -> None:
        world.come(1, 2, 3)
        assert world.seen == [1]
        world.come(4)
        await turns(1)
        assert world.seen == [1, 2]
        await turns(2)
        assert world.seen == [1, 2, 3, 4]
        world.come()
        world.come(5)
        assert world.seen == [1, 2, 3, 4, 5]

    run(test)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "PATIENCE_S", 3600.0)


@pytest.mark.usefixtures("patient")
def test_commit_waiters_precede_answers() -> None:
    async def test(world: World) -> None:
        world.committing = True
        world.come(1, 2)
        world.come(3)
        await turns(5)
        assert world.seen == []
        world.commit()
        assert world.seen == [], "those who were answered by the commit go on before"
        await turns(1)
        assert world.seen == [1]
        world.committing = True
        await turns(5)
        assert world.seen == [1], "the next commit goes before the next answer"
        world.commit()
        await turns(2)
        assert world.seen == [1, 2, 3]

    run(test)


@pytest.mark.usefixtures("patient")
def test_each_commit_lets_one_answer_through_though_others_are_on_their_way() -> None:
    async def test(world: World) -> None:
        world.committing = True
        world.come(1, 2, 3)
        for already in range(3):
            assert len(world.seen) == already
            world.turns.committed()
            world.turns.committed()
            await turns(2)
        assert world.seen == [1, 2, 3]

    run(test)


def test_an_answer_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "PATIENCE_S", 0.001)

    async def test(world: World) -> None:
        world.committing = True
        world.come(1, 2)
        while world.seen != [1, 2]:
            await asyncio.sleep(0.001)

    run(test)


def test_a_commit_without_answers_is_nobodys_business() -> None:
    async def test(world: World) -> None:
        world.commit()
        await turns(2)
        assert world.seen == []

    run(test)


def test_those_that_came_while_one_waited_have_waited_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "PATIENCE_S", 0.01)

    async def test(world: World) -> None:
        world.committing = True
        world.come(*range(64))
        while not world.seen:
            await asyncio.sleep(0.001)
        monkeypatch.setattr(backend, "PATIENCE_S", 3600.0)
        await turns(64)
        assert world.seen == list(range(64))
        world.come(64)
        await turns(5)
        assert world.seen[-1] == 63

    run(test)


@pytest.mark.parametrize("result", [Result(), Result(matched=7, scanned=9), SearchUnavailableError("gone")])
@pytest.mark.usefixtures("patient")
def test_a_step_that_shows_nothing_waits_for_nobody(result: Result | SearchUnavailableError) -> None:
    async def test(world: World) -> None:
        world.committing = True
        world.come(1)
        reported: list[object] = []
        world.turns.add([(reported.append, result)])
        await turns(1)
        assert (reported, world.seen) == ([result], [])
        world.commit()
        await turns(2)
        assert world.seen == [1]

    run(test)


@pytest.mark.parametrize(
    "result", [Result(is_final=True), Result(buckets=b"[1]"), Result(seqs=(1,)), Result(hits=Hits([1]))]
)
@pytest.mark.usefixtures("patient")
def test_an_answer_waits(result: Result) -> None:
    async def test(world: World) -> None:
        world.committing = True
        reported: list[object] = []
        world.turns.add([(reported.append, result)])
        await turns(3)
        assert reported == []

    run(test)
