"""The names of the topics in order, by the million.

One sorted list would be moved by half its length for every name that comes or goes, which at a million names costs more
than all the rest of creating a topic. Here it is cut into parts of bounded length: a change moves one part, a search
finds the part first and then the place in it, and going to the n-th name steps over whole parts.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

PART_NAMES_MAX = 1024


class SortedNames(Collection[str]):
    def __init__(self, names: Iterable[str] = ()) -> None:
        whole = sorted(names)
        half = PART_NAMES_MAX // 2
        self._parts = [whole[at : at + half] for at in range(0, len(whole), half)]
        self._lasts = [part[-1] for part in self._parts]
        """The last name of each part, to find a name's part by."""
        self._count = len(whole)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return self.at(0)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        return next(self.from_(name), None) == name

    def add(self, name: str) -> None:
        """Adds a name that is not there yet."""
        self._count += 1
        if not self._parts:
            self._parts, self._lasts = [[name]], [name]
            return
        number = min(bisect_left(self._lasts, name), len(self._parts) - 1)
        part = self._parts[number]
        insort(part, name)
        if len(part) > PART_NAMES_MAX:
            half = len(part) // 2
            self._parts[number : number + 1] = [part[:half], part[half:]]
            self._lasts.insert(number, part[half - 1])
            number += 1
        self._lasts[number] = self._parts[number][-1]

    def discard(self, name: str) -> None:
        """Removes a name, if it is there."""
        number = bisect_left(self._lasts, name)
        if number == len(self._parts):
            return
        part = self._parts[number]
        place = bisect_left(part, name)
        if part[place] != name:
            return
        del part[place]
        self._count -= 1
        if part:
            self._lasts[number] = part[-1]
        else:
            del self._parts[number], self._lasts[number]

    def at(self, place: int) -> Iterator[str]:
        """The names from the one at a place on, counted from 0."""
        for number, part in enumerate(self._parts):
            if place < len(part):
                return self._walk(number, place)
            place -= len(part)
        return iter(())

    def from_(self, name: str) -> Iterator[str]:
        """The names from this one on, or from where it would be."""
        number = bisect_left(self._lasts, name)
        return self._walk(number, bisect_left(self._parts[number], name)) if number < len(self._parts) else iter(())

    def behind(self, name: str) -> Iterator[str]:
        """The names behind this one, or behind where it would be."""
        number = bisect_right(self._lasts, name)
        return self._walk(number, bisect_right(self._parts[number], name)) if number < len(self._parts) else iter(())

    def _walk(self, number: int, place: int) -> Iterator[str]:
        yield from islice(self._parts[number], place, None)
        for following in range(number + 1, len(self._parts)):
            yield from self._parts[following]
