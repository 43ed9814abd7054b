"""A loop without real waits: when nothing is left to do, its clock moves on to the next timer at once.

For scenes of timers alone. Another thread or process that shall do something meanwhile gets no time for it.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Impatient(selectors.DefaultSelector):
    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout and 0)
        if not found and timeout:
            self.skipped_s += timeout
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._impatient = _Impatient()
        super().__init__(self._impatient)

    def time(self) -> float:
        return super().time() + self._impatient.skipped_s


def run(scene: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(scene)
