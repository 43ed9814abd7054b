"""The searching process beside a server, with real processes."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from topics.model.errors import SearchUnavailableError
from topics.schema.registry import Registry, encode_registry
from topics.search.service.backend import SearchProcess
from topics.search.worker.messages import (
    Add,
    Answer,
    AskMessage,
    Filter,
    Finish,
    KeysQuery,
    Open,
    Piece,
    Result,
    encode_message,
)

NOTHING = encode_registry(Registry())


def run(test: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def keys(process: SearchProcess, index: int = 1) -> "asyncio.Future[Result | SearchUnavailableError]":
    answered: asyncio.Future[Result | SearchUnavailableError] = asyncio.get_running_loop().create_future()
    process.ask(
        lambda number: AskMessage(number, index, time.monotonic() + 60, 1, 9, (), KeysQuery(None, 5)),
        answered.set_result,
    )
    return answered


async def begun() -> tuple[SearchProcess, int]:
    """A process that has answered, and its number."""
    process = SearchProcess()
    process.send(Open(1, NOTHING))
    assert isinstance(await keys(process), Result)
    assert process.child_pid is not None
    return process, process.child_pid


def test_it_begins_with_the_first_message_and_ends_with_its_server() -> None:
    async def test() -> None:
        process, child = await begun()
        await process.close()
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
        assert isinstance(await keys(process), SearchUnavailableError)

    run(test)


def test_it_goes_behind_its_server_and_a_terminal_does_not_end_it() -> None:
    async def test() -> None:
        process, child = await begun()
        mine, its = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, child))
        assert its == min(mine + 10, 19)
        assert os.getpgid(child) == child != os.getpgid(0)
        assert os.getsid(child) == os.getsid(0), "priorities count within a session only"
        await process.close()

    run(test)


def test_who_waits_for_a_process_that_dies_is_notified_and_the_next_one_begins_anew() -> None:
    async def test() -> None:
        process = SearchProcess()
        process.send(Open(1, NOTHING))
        assert isinstance(await keys(process), Result)
        assert process.child_pid is not None
        os.kill(process.child_pid, signal.SIGSTOP)
        waiting = keys(process)
        os.kill(process.child_pid, signal.SIGKILL)
        assert isinstance(await waiting, SearchUnavailableError)
        assert process.generation == 1
        # It knows of no index any more, which is an answer and not an end.
        assert isinstance(await keys(process), SearchUnavailableError)
        process.send(Open(1, NOTHING))
        assert isinstance(await keys(process), Result)
        await process.close()

    run(test)


@pytest.mark.parametrize("command", [("/nowhere/python",), (sys.executable, "-c", "raise SystemExit(3)")])
def test_a_process_that_cannot_run_is_reported(command: tuple[str, ...]) -> None:
    async def test() -> None:
        process = SearchProcess(command)
        assert isinstance(await keys(process), SearchUnavailableError)
        await process.close()

    run(test)


def test_a_query_that_fails_fails_alone() -> None:
    async def test() -> None:
        process = SearchProcess()
        process.send(Open(1, NOTHING))
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        process.ask(lambda number: Filter(number, 1, "a:1", ()), answered.set_result)
        assert isinstance(await answered, SearchUnavailableError)
        assert isinstance(await keys(process), Result)
        await process.close()

    run(test)


def test_who_has_much_to_send_waits_for_room() -> None:
    async def test() -> None:
        process = SearchProcess()
        process.send(Open(1, NOTHING))
        await keys(process)
        assert process.child_pid is not None
        os.kill(process.child_pid, signal.SIGSTOP)
        text = b'{"$seq":1,"$ts":1,"data":' + b"1" * (4 << 20) + b"}"
        rows = (0).to_bytes(4, "little") + bytes(4) + bytes(2) + (25).to_bytes(2, "little")
        process.send(Add(1, (Piece(1, 1, 0, 12, len(text)),)), (rows, text))
        assert not process.is_writable
        room = asyncio.Event()
        process.when_writable(room.set)
        os.kill(process.child_pid, signal.SIGCONT)
        await room.wait()
        result = await keys(process)
        assert isinstance(result, Result) and result.looked_at == 1
        await process.close()

    run(test)


def test_answers_that_come_together_are_handed_on_in_turns() -> None:
    """Simultaneous answers are delivered one by one, and other work has a turn in between."""

    async def test() -> None:
        process, loop = SearchProcess(), asyncio.get_running_loop()
        seen: list[str] = []
        sent: list[bytes] = []
        process.send = lambda head, body=(): sent.append(b"")  # type: ignore[method-assign]
        for number in range(3):
            process.ask(
                lambda request: Finish(request, 1),
                lambda result, number=number: seen.append(f"answer {number}"),  # type: ignore[misc]
            )
        assert process.is_asked
        together = b"".join(encode_message(Answer(request, Result(is_final=True))) for request in (1, 2, 3))
        loop.call_soon(process.data_received, together)
        for number in range(4):
            await asyncio.sleep(0)
            seen.append(f"turn {number}")
        assert seen[:6] == ["answer 0", "turn 0", "answer 1", "turn 1", "answer 2", "turn 2"]
        process.data_received(b"")
        assert len(seen) == 7, "there is nothing left"
        assert not process.is_asked

    run(test)


def test_an_answer_that_cannot_be_taken_keeps_nobody_from_theirs() -> None:
    async def test() -> None:
        process, loop = SearchProcess(), asyncio.get_running_loop()
        problems: list[object] = []
        loop.set_exception_handler(lambda _, context: problems.append(context["exception"]))
        process.send = lambda head, body=(): None  # type: ignore[method-assign]
        taken: list[object] = []

        def fail(result: object) -> None:
            raise ValueError("not this one")

        for done in (taken.append, fail, taken.append):
            process.ask(lambda request: Finish(request, 1), done)
        process.data_received(b"".join(encode_message(Answer(request, Result())) for request in (1, 2, 3)))
        for _ in range(3):
            await asyncio.sleep(0)
        assert taken == [Result(), Result()]
        assert [str(problem) for problem in problems] == ["not this one"]

    run(test)
