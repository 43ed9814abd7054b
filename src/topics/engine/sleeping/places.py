"""Where the topics are that have a place in a snapshot: the index of those who sleep.

It is built for a million of them: a place is one number, and everything that is done for all of them at a start is done
by the thousand.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from topics.formats.frame import Frame
from topics.formats.snapshot import Directory
from topics.storage.snapshot_files import SnapshotFile, StoredTopic

SIZE_BITS, _OFFSET_BITS = 24, 44
_SIZE_MASK, OFFSET_MASK = (1 << SIZE_BITS) - 1, (1 << _OFFSET_BITS) - 1
FILE_SHIFT = SIZE_BITS + _OFFSET_BITS
SIZE_MAX = _SIZE_MASK


def place_of(number: int, offset: int, size: int) -> int:
    """A snapshot, an offset in it and a size as one number: as tuples, a million would weigh three times as much."""
    return number << FILE_SHIFT | offset << SIZE_BITS | size


class Listed(NamedTuple):
    """One topic of a directory."""

    topic_id: int
    place: int
    name: str
    durability: int
    live: int
    live_bytes: int
    written: int


class Stretch:
    """A directory that is left in its file."""

    __slots__ = ("at", "end", "number", "oldest")

    def __init__(self, number: int, at: int, end: int, oldest: int) -> None:
        self.number, self.at, self.end = number, at, end
        self.oldest = oldest
        """When the oldest block of a tail in it was written; 0 where there is none."""


class Places:
    def __init__(self) -> None:
        self.by_id: dict[int, int] = {}
        self.files: dict[int, SnapshotFile] = {}
        """The snapshots that places point into, by number."""
        self.stretches: list[Stretch] = []

    def add(self, number: int, at: int, end: int, directory: Directory, known: Collection[int]) -> Collection[int]:
        """Takes a directory in, but for topics of which something newer is known; the ids that were taken."""
        ids = directory.ids
        base = number << FILE_SHIFT
        found = [base | o << SIZE_BITS | s for o, s in zip(directory.offsets, directory.sizes, strict=True)]
        news = zip(ids, found, strict=True)
        if known:
            pairs = [pair for pair in news if pair[0] not in known]
            self.by_id.update(pairs)
            ids = [topic_id for topic_id, _ in pairs]
        else:
            self.by_id.update(news)
        self.note(number, at, end, directory.written)
        return ids

    def note(self, number: int, at: int, end: int, written: Collection[int]) -> None:
        self.stretches.append(Stretch(number, at, end, min(filter(None, written), default=0)))

    def stored(self, place: int) -> StoredTopic:
        """The topic at a place. Raises ValueError or OSError where it cannot be read."""
        return self.files[place >> FILE_SHIFT].topic(place >> SIZE_BITS & OFFSET_MASK, place & _SIZE_MASK)

    def state(self, place: int) -> Frame:
        """The same without its tail."""
        return self.files[place >> FILE_SHIFT].state(place >> SIZE_BITS & OFFSET_MASK)

    def path(self, place: int) -> str:
        return self.files[place >> FILE_SHIFT].path

    def listed(self, stretch: Stretch) -> Iterator[Listed]:
        """The topics of a stretch that are still there: no newer snapshot has them."""
        file, by_id, base = self.files[stretch.number], self.by_id, stretch.number << FILE_SHIFT
        one = file.directory(stretch.at, stretch.end)
        rows = zip(
            one.ids, one.offsets, one.sizes, one.names, one.classes, one.live, one.live_bytes, one.written, strict=True
        )
        for topic_id, offset, size, *rest in rows:
            place = base | offset << SIZE_BITS | size
            if by_id.get(topic_id) == place:
                yield Listed(topic_id, place, *rest)

    def keep(self, numbers: Collection[int]) -> None:
        """Lets go of all other snapshots: nothing is there any more."""
        self.files = {number: file for number, file in self.files.items() if number in numbers}
        self.stretches = [stretch for stretch in self.stretches if stretch.number in numbers]
