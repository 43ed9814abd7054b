"""Bounded cache of values that depend on their key alone."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class Memo(Generic[_K, _V]):
    """Values by keys, so many at most. When there are too many all are forgotten: what is asked again and again is soon
    back, and what is asked once was never worth an order."""

    __slots__ = ("_known", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[_K, _V] = {}

    def get(self, key: _K, make: Callable[[], _V]) -> _V:
        """The value of a key, made if it is not known. What `make` raises is not remembered."""
        found = self._known.get(key)
        if found is None:
            found = make()
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[key] = found
        return found

    def __len__(self) -> int:
        return len(self._known)
