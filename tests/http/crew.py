"""Many tasks that end together, in bounded time, whether they succeed, fail or hang.

A `TaskGroup` cancels its tasks once and then waits for them for as long as it takes. A task that loses the cancellation
keeps it waiting for ever, and a caller that limits the time of the whole by `wait_for` waits with it: `wait_for` itself
loses a cancellation in the same tick as the result. So this asks again, and gives up loudly.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

_ATTEMPTS = 5
_PATIENCE_S = 5.0
_TELL_MAX = 5


class Crew:
    """Tasks that work until the first of them fails, or until a leading one is through."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._done)
        self._tasks.add(task)
        return task

    async def until(self, lead: Coroutine[Any, Any, None], guard_s: float) -> None:
        """Runs the leading one to its end, then ends all others. Raises the first error, or an error for a missing
        end."""
        leading = self.start(lead)
        try:
            both: set[asyncio.Future[Any]] = {leading, self._failed}
            await asyncio.wait(both, timeout=guard_s, return_when=asyncio.FIRST_COMPLETED)
            failure = self._failed.result() if self._failed.done() else None
            in_time = leading.done()
        finally:
            await self._end()
        if failure is not None:
            raise failure
        assert in_time, f"no end after {guard_s:g} s"

    def _done(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_result(error)

    async def _end(self) -> None:
        left: Iterable[asyncio.Task[Any]] = self._tasks
        for _ in range(_ATTEMPTS):
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=_PATIENCE_S)
            if not left:
                # Connections that they closed at their end are gone after the next tick.
                await asyncio.sleep(0.1)
                return
        stacks = [[f"{frame.f_code.co_qualname}:{frame.f_lineno}" for frame in task.get_stack()] for task in left]
        raise AssertionError(f"{len(stacks)} tasks do not end: {stacks[:_TELL_MAX]}")
