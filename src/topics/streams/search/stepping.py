"""Steps that follow each other, some later and some at once, without one being called from within another."""

from collections.abc import Callable


class Steps:
    """Does not keep what a step is: whoever takes steps has this, and together they would be a circle that only the
    garbage collector undoes, with everybody waiting."""

    __slots__ = ("_due", "_stepping")

    def __init__(self) -> None:
        self._due = self._stepping = False

    def next(self, step: Callable[[], None]) -> None:
        """Takes a step, now or as soon as the one that is being taken ends: a loop and no recursion."""
        self._due = True
        while self._due and not self._stepping:
            self._due, self._stepping = False, True
            try:
                step()
            finally:
                self._stepping = False
