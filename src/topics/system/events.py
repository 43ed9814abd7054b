"""Typed events: listeners subscribe once, when the server is assembled, and are called in that order."""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Event(Generic[P]):
    """An event with listeners. `Event[Topic]` passes a topic to each listener, `Event[[]]` nothing.

    An exception of a listener propagates to the emitter, and later listeners are not called: listeners handle their own
    errors.
    """

    __slots__ = ("listeners",)

    def __init__(self) -> None:
        self.listeners: list[Callable[P, object]] = []
        """Public for hot paths, which loop over it themselves and save the call of `emit`."""

    def subscribe(self, listener: Callable[P, object]) -> None:
        """Adds a listener."""
        self.listeners.append(listener)

    def emit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for listener in self.listeners:
            listener(*args, **kwargs)
