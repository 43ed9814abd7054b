"""Bounded caches: for values that depend on their key only, and for values that objects can recompute."""

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
        """Returns the value of a key, computed by `make` if it is not cached. Errors of `make` are not cached."""
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
    """An object with a large value that it can recompute."""

    def forget(self) -> None:
        """Drops the value."""
        ...


class HolderCache:
    """Bounds the estimated bytes of holders: the least recently used drop their values first (LRU eviction)."""

    __slots__ = ("_holders", "bytes", "max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        """The estimated bytes of all holders."""
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
        """Notes that a holder has used its value."""
        self._holders.move_to_end(holder)
