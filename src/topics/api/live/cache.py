"""Frames that were just made, for others who stand where the first one stood: after a restart, for example, when a
thousand clients come back with the same cursor."""

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from topics.api.live.frames import Cursor, Frame
from topics.engine.state.presence import removed_count

if TYPE_CHECKING:
    from topics.api.live.feed import Feed

CACHE_BYTES_MAX = 8 * 1024 * 1024


class Kin:
    """The feeds of one topic and one source, which make the same frames. Known by what it is: to compare sources takes
    longer than to find a frame."""

    __slots__ = ("feeds",)

    def __init__(self) -> None:
        self.feeds: list[Feed] = []


class _Entry(NamedTuple):
    frame: Frame
    filled: bool
    """Whether the batch ended because it was full."""
    state: tuple[object, ...]


class FrameCache:
    """Bounded by bytes, over all feeds; what was used least lately goes first."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[tuple[Kin, Cursor], _Entry] = OrderedDict()
        self.size = 0

    def put(self, feed: "Feed", frame: Frame, filled: bool) -> None:
        self._drop((feed.kin, frame.from_seq))
        self._entries[feed.kin, frame.from_seq] = _Entry(frame, filled, _state(feed))
        self.size += len(frame.data)
        while self.size > self._bytes_max:
            self._drop(next(iter(self._entries)))

    def find(self, feed: "Feed", cursor: Cursor, up_to: Cursor) -> Frame | None:
        """The frame from this cursor, if reading again up to a seq would give the same or less."""
        key = (feed.kin, cursor)
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.state != _state(feed):
            self._drop(key)
            return None
        end = entry.frame.cursor
        if end > up_to or not (entry.filled or end == up_to):
            return None
        self._entries.move_to_end(key)
        return entry.frame

    def forget(self, kin: Kin) -> None:
        """Nobody follows these feeds any more."""
        for key in [key for key in self._entries if key[0] is kin]:
            self._drop(key)

    def _drop(self, key: tuple[Kin, Cursor]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size -= len(entry.frame.data)


def _state(feed: "Feed") -> tuple[object, ...]:
    """What is the same for as long as only appends happen: the number of records that are gone, the config, and how
    records are shown."""
    topic = feed.topic
    return removed_count(topic), topic.config, feed.source.shape(topic)
