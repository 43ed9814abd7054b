"""Steps that follow each other, some later and some at once, without one being called from within another."""

from collections.abc import Callable


class Steps:
    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._due = self._stepping = False

    def next(self) -> None:
        """Takes a step, now or as soon as the one that is being taken ends: a loop and no recursion."""
        self._due = True
        while self._due and not self._stepping:
            self._due, self._stepping = False, True
            try:
                self._step()
            finally:
                self._stepping = False
