"""Keeps callers from queueing up behind a store that does not answer.

A call to a store that is gone may take as long as all its retries, and there are two threads for reads of cold
segments. So after a call that found the store unavailable, the next ones are refused at once, for a moment; then one
is let through to see.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from topics.storage.fs import BytesLike
from topics.storage.objects.store import Listing, ObjectStore, StoreUnavailable

PAUSE_S = 2.0

T = TypeVar("T")


class GuardedStore:
    """Passes every call on, except shortly after one that failed. `seconds` is a clock that never runs back."""

    def __init__(self, inner: ObjectStore, seconds: Callable[[], float], pause_s: float = PAUSE_S) -> None:
        self._inner = inner
        self._seconds = seconds
        self._pause_s = pause_s
        # Two threads may race to set it, and either value will do.
        self._failure: tuple[float, str] | None = None

    @property
    def paused(self) -> bool:
        """Whether calls are refused at the moment."""
        failure = self._failure
        return failure is not None and self._seconds() < failure[0]

    def get(self, name: str) -> memoryview:
        return self._call(lambda: self._inner.get(name))

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self._call(lambda: self._inner.get_range(name, offset, length))

    def get_tail(self, name: str, length: int) -> bytes:
        return self._call(lambda: self._inner.get_tail(name, length))

    def size(self, name: str) -> int:
        return self._call(lambda: self._inner.size(name))

    def put(self, name: str, pieces: Sequence[BytesLike]) -> None:
        self._call(lambda: self._inner.put(name, pieces))

    def remove(self, name: str) -> None:
        self._call(lambda: self._inner.remove(name))

    def copy(self, source: str, target: str) -> None:
        self._call(lambda: self._inner.copy(source, target))

    def list_folder(self, folder: str) -> Listing:
        return self._call(lambda: self._inner.list_folder(folder))

    def _call(self, call: Callable[[], T]) -> T:
        failure = self._failure
        if failure is not None and self._seconds() < failure[0]:
            raise StoreUnavailable(failure[1])
        try:
            answer = call()
        except StoreUnavailable as error:
            self._failure = (self._seconds() + self._pause_s, error.why)
            raise
        self._failure = None
        return answer
