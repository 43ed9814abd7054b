"""Bounded caches: of values that depend on their key alone, and of values that objects can compute again."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class Memo(Generic[_K, _V]):
    """A bounded map. When it is full, all values are dropped: frequent ones soon return, and rare ones are not worth an
    LRU order."""

    __slots__ = ("_known", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[_K, _V] = {}

    def get(self, key: _K, make: Callable[[], _V]) -> _V:
        """The value of a key, made if it is not known. Errors of `make` are not cached."""
        found = self._known.get(key)
        if found is None:
            found = make()
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[key] = found
        return found

    def __len__(self) -> int:
        return len(self._known)


class Holder(Protocol):
    """An object that keeps something large that it can make again."""

    def forget(self) -> None:
        """Lets go of it."""
        ...


class HolderCache:
    """Bounds what holders keep, by estimated bytes: the least recently used forget first (LRU eviction)."""

    __slots__ = ("_holders", "bytes", "max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        """Estimated bytes of all holders."""
        self._holders: OrderedDict[Holder, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def keep(self, holder: Holder, nbytes: int) -> None:
        """Records that a holder has computed its values. Evicts the values of others if the bound is exceeded; the
        newest always stays."""
        self.bytes += nbytes - self._holders.pop(holder, 0)
        self._holders[holder] = nbytes
        while self.bytes > self.max_bytes and len(self._holders) > 1:
            oldest, size = self._holders.popitem(last=False)
            self.bytes -= size
            oldest.forget()

    def used(self, holder: Holder) -> None:
        """A holder that keeps something has used it."""
        self._holders.move_to_end(holder)
