import asyncio
import threading
from collections.abc import Callable, Generator

import pytest

from topics.engine.background_jobs import InlineRunner, Job, OffLoop, ThreadRunner, Until


def job_of(log: list[object], *steps: OffLoop | Until) -> Job:
    """Runs its steps and records the result, or the error, of each."""
    for step in steps:
        try:
            log.append((yield step))
        except OSError as error:
            log.append(error)


def failing() -> object:
    raise OSError("no")


def at_once(value: object) -> Until:
    return Until(lambda resume: resume(value))


# Inline


def test_inline_runs_a_job_to_its_end() -> None:
    log: list[object] = []
    InlineRunner().start(job_of(log, OffLoop(lambda: 1), at_once(2), OffLoop(lambda: 3)))
    assert log == [1, 2, 3]


def test_inline_raises_a_failure_inside_the_job() -> None:
    log: list[object] = []
    InlineRunner().start(job_of(log, OffLoop(failing), OffLoop(lambda: "after")))
    assert isinstance(log[0], OSError)
    assert log[1] == "after"


def test_an_exception_as_outcome_is_raised_inside_the_job() -> None:
    log: list[object] = []
    InlineRunner().start(job_of(log, at_once(OSError("told")), at_once("after")))
    assert isinstance(log[0], OSError)
    assert log[1] == "after"


def test_inline_lets_out_what_a_job_does_not_handle() -> None:
    def job() -> Generator[OffLoop | Until, object, None]:
        yield OffLoop(failing)

    with pytest.raises(OSError, match="no"):
        InlineRunner().start(job())


def test_inline_refuses_to_wait_for_ever() -> None:
    with pytest.raises(RuntimeError, match="never do"):
        InlineRunner().start(job_of([], Until(lambda resume: None)))


def test_an_empty_job() -> None:
    InlineRunner().start(job_of([]))
    InlineRunner().close()


# On a thread


def on_loop(test: Callable[[ThreadRunner, asyncio.AbstractEventLoop, asyncio.Event], list[Job]]) -> None:
    """Starts the jobs that `test` makes and waits until the event is set."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        runner = ThreadRunner("test", loop.call_soon_threadsafe)
        done = asyncio.Event()
        try:
            for job in test(runner, loop, done):
                runner.start(job)
            async with asyncio.timeout(5):
                await done.wait()
        finally:
            runner.close()

    asyncio.run(run())


def finishing(job: Job, done: asyncio.Event) -> Job:
    try:
        yield from job
    finally:
        done.set()


def test_a_job_runs_on_the_loop_and_its_work_on_the_thread() -> None:
    log: list[object] = []

    def test(runner: ThreadRunner, loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> list[Job]:
        def job() -> Job:
            log.append(threading.current_thread().name)
            log.append((yield OffLoop(lambda: threading.current_thread().name)))
            log.append(threading.current_thread().name)

        return [finishing(job(), done)]

    on_loop(test)
    main = threading.current_thread().name
    assert log == [main, "test", main]


def test_a_job_may_wait_for_the_loop() -> None:
    log: list[object] = []

    def test(runner: ThreadRunner, loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> list[Job]:
        def later(resume: Callable[[object], None]) -> None:
            loop.call_later(0.001, resume, "later")

        return [finishing(job_of(log, Until(later), at_once("at once"), OffLoop(failing)), done)]

    on_loop(test)
    assert log[:2] == ["later", "at once"]
    assert isinstance(log[2], OSError)


def test_jobs_of_one_runner_never_interleave() -> None:
    log: list[object] = []

    def test(runner: ThreadRunner, loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> list[Job]:
        def next_tick(resume: Callable[[object], None]) -> None:
            loop.call_soon(resume, None)

        def job(name: str) -> Job:
            for number in range(3):
                log.append((name, number))
                yield OffLoop(lambda: None)
                yield Until(next_tick)

        return [job("a"), job("b"), finishing(job("c"), done)]

    on_loop(test)
    assert log == [(name, number) for name in "abc" for number in range(3)]


def test_a_job_that_fails_does_not_keep_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    log: list[object] = []

    def test(runner: ThreadRunner, loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> list[Job]:
        def job() -> Job:
            yield OffLoop(failing)

        return [job(), finishing(job_of(log, at_once("next")), done)]

    on_loop(test)
    assert log == ["next"]
    assert "background job failed" in caplog.text


def test_a_runner_states_when_it_is_idle() -> None:
    seen: list[bool] = []

    def test(runner: ThreadRunner, loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> list[Job]:
        seen.append(runner.idle)

        def job() -> Job:
            seen.append(runner.idle)
            yield OffLoop(lambda: None)
            loop.call_soon(ended)

        def ended() -> None:
            seen.append(runner.idle)
            done.set()

        return [job()]

    on_loop(test)
    assert seen == [True, False, True]


def test_a_job_started_by_a_job_comes_behind_it() -> None:
    log: list[object] = []

    def test(runner: ThreadRunner, loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> list[Job]:
        def first() -> Job:
            runner.start(finishing(job_of(log, at_once("second")), done))
            log.append((yield OffLoop(lambda: "first")))

        return [first()]

    on_loop(test)
    assert log == ["first", "second"]
