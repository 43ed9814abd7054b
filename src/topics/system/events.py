"""Typed events: observers subscribe once, when the server is put together, and are called in that order."""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Event(Generic[P]):
    """Something that happens many times. `Event[Topic]` tells a topic each time, `Event[[]]` nothing.

    An exception of a listener reaches whoever emits, and the listeners behind it are not called: listeners do their own
    error handling.
    """

    __slots__ = ("listeners",)

    def __init__(self) -> None:
        self.listeners: list[Callable[P, object]] = []
        """Public for hot paths, which loop over it themselves and save the call of `emit`."""

    def subscribe(self, listener: Callable[P, object]) -> None:
        """Calls the listener each time from now on."""
        self.listeners.append(listener)

    def emit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for listener in self.listeners:
            listener(*args, **kwargs)
