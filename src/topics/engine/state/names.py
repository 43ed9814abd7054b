"""The names of the topics in order, by the million.

A sorted list in parts of bounded length: a change moves one part. One plain list would be moved by half its length for
every name that comes or goes, which at a million names costs more than all the rest of creating a topic.
"""

from collections.abc import Collection, Iterable, Iterator

from sortedcontainers import SortedList

_LAST = 0x10FFFF


class SortedNames(Collection[str]):
    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = SortedList(names)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._names

    def add(self, name: str) -> None:
        """Adds a name that is not there yet."""
        self._names.add(name)

    def discard(self, name: str) -> None:
        """Removes a name, if it is there."""
        self._names.discard(name)

    def count(self, prefix: str) -> int:
        """How many begin so."""
        if not prefix:
            return len(self._names)
        # The first text behind all that begin so; there is none behind the last character there is.
        last = ord(prefix[-1])
        end = len(self._names) if last == _LAST else self._names.bisect_left(prefix[:-1] + chr(last + 1))
        found: int = end - self._names.bisect_left(prefix)
        return found

    def at(self, place: int) -> Iterator[str]:
        """The names from the one at a place on, counted from 0."""
        found: Iterator[str] = self._names.islice(place)
        return found

    def from_(self, name: str) -> Iterator[str]:
        """The names from this one on, or from where it would be."""
        found: Iterator[str] = self._names.irange(name)
        return found

    def behind(self, name: str) -> Iterator[str]:
        """The names behind this one, or behind where it would be."""
        found: Iterator[str] = self._names.irange(name, inclusive=(False, True))
        return found
