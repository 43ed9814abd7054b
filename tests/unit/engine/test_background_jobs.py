import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator

import pytest

from topics.engine.background_jobs import FairBackground, InlineRunner, Job, OffLoop, ThreadRunner, Until
from topics.engine.disk_threads import outcome_of


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


def fair() -> tuple[FairBackground, list[str], Callable[[], None]]:
    """Fair background work, the names of what has begun, and a function that ends the oldest work in progress."""
    begun: list[str] = []
    running: deque[Callable[[], None]] = deque()

    def run(work: Callable[[], object], then: Callable[[object], None]) -> None:
        outcome = outcome_of(work)
        running.append(lambda: then(outcome))

    def submitted(name: str) -> Callable[[], object]:
        return lambda: begun.append(name)

    background = FairBackground(run, 3)
    for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        background.add((name[0],), submitted(name), lambda outcome: None)

    def end_one() -> None:
        running.popleft()()

    return background, begun, end_one


def test_background_work_of_one_owner_leaves_a_thread_to_the_others() -> None:
    _, begun, end_one = fair()
    assert begun == ["a1", "a2", "b1"]
    for _ in range(4):
        end_one()
    assert begun == ["a1", "a2", "b1", "a3", "b2", "c1", "a4"]


def test_background_work_of_one_owner_alone_has_all_threads_but_one() -> None:
    begun: list[int] = []
    background = FairBackground(lambda work, then: begun.append(0), 3)
    for _ in range(5):
        background.add(("a",), lambda: None, lambda outcome: None)
    assert len(begun) == 2
    background.flush()
    assert len(begun) == 5


def test_work_that_submits_more_work_as_it_ends_waits_for_its_turn() -> None:
    order: list[str] = []
    ends: deque[Callable[[], None]] = deque()
    background = FairBackground(lambda work, then: ends.append(lambda: then(work())), 1)

    def again(name: str, left: int) -> None:
        def then(outcome: object) -> None:
            if left:
                again(name, left - 1)

        background.add((name[0],), lambda: order.append(name), then)

    again("a", 3)
    again("b", 3)
    while ends:
        ends.popleft()()
    assert order == ["a", "b"] * 4


def test_failing_callback_does_not_lose_the_thread() -> None:
    ends: deque[Callable[[], None]] = deque()
    background = FairBackground(lambda work, then: ends.append(lambda: then(work())), 1)

    def fail(outcome: object) -> None:
        raise ValueError

    background.add(("a",), lambda: None, fail)
    background.add(("a",), lambda: None, lambda outcome: None)
    with pytest.raises(ValueError):
        ends.popleft()()
    assert len(ends) == 1
