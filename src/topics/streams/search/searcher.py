"""Who is asked: the process beside the server, or the same work on the spot, for tests and for engines without a
server."""

from collections.abc import Callable, Sequence
from typing import Protocol

from topics.core.errors import SearchUnavailableError
from topics.searching.mapping import map_file
from topics.searching.messages import Answer, Head, Messages, Question, Result, encode_message

ResultDone = Callable[[Result | SearchUnavailableError], None]
Later = Callable[[float, Callable[[], None]], Callable[[], None]]
"""Calls a function after so many seconds; gives one that takes it back."""


def at_once(seconds: float, function: Callable[[], None]) -> Callable[[], None]:
    """Does now what should be done soon, and never what should be done later: nothing takes long without a server."""
    if not seconds:
        function()
    return lambda: None


class Searcher(Protocol):
    generation: int

    def send(self, head: Head, body: Sequence[bytes | memoryview] = ()) -> None: ...

    def ask(
        self, make: Callable[[int], Question], done: ResultDone, body: Sequence[bytes | memoryview] = ()
    ) -> None: ...

    @property
    def is_writable(self) -> bool: ...

    def when_writable(self, callback: Callable[[], None]) -> None: ...


class InlineSearcher:
    """Answers at once, on the caller's stack."""

    is_writable = True
    generation = 0

    def __init__(self, now: Callable[[], float], map_file: Callable[[str], memoryview] = map_file) -> None:
        self._now = now
        self._map_file = map_file
        self._worker: object = None
        self._messages = Messages()
        self._requests = 0

    def send(self, head: Head, body: Sequence[bytes | memoryview] = ()) -> None:
        self._take(head, body)

    def ask(self, make: Callable[[int], Question], done: ResultDone, body: Sequence[bytes | memoryview] = ()) -> None:
        self._requests += 1
        raw = self._take(make(self._requests), body)
        assert raw is not None
        (message,) = Messages().feed(raw)
        assert isinstance(message.head, Answer)
        done(message.head.result or SearchUnavailableError(message.head.problem))

    def when_writable(self, callback: Callable[[], None]) -> None:
        callback()

    def _take(self, head: Head, body: Sequence[bytes | memoryview]) -> bytes | None:
        # Imported here because it imports numpy, which a server's own process does without.
        from topics.searching.worker import Worker  # noqa: PLC0415

        if self._worker is None:
            self._worker = Worker(self._now, self._map_file)
        assert isinstance(self._worker, Worker)
        (message,) = self._messages.feed(encode_message(head, body))
        return self._worker.take(message)
