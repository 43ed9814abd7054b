"""Entries that hits showed, for the next search that finds them.

Clients ask the same again and again, and other queries for the newest entries have the same hits. An entry never
changes, so its text is the same for as long as its stream is described alike, and so is what is shown of it. Whether
the entry is still there is no part of that: whoever has a hit finds that out each time.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from topics.engine.streams.description import Description
from topics.engine.topic import Topic

BYTES_MAX: Final = 8 * 1024 * 1024
"""What is kept of all streams. When it is more all is forgotten: what is asked again and again is soon back."""
_LONGEST: Final = 4096
"""Longer entries are copied each time."""
_OVERHEAD_BYTES: Final = 200
"""What an entry takes besides its text and what is shown of it."""


class Seen:
    """Those of one stream, as it is described now."""

    __slots__ = ("_shown", "_shows", "_store", "description", "epoch", "raws")

    def __init__(self, store: "SeenEntries", epoch: int, description: Description) -> None:
        self._store = store
        self.epoch = epoch
        self.description = description
        self.raws: dict[int, bytes] = {}
        """By their seqs, promoted."""
        self._shown: dict[int, msgspec.Raw | None] = {}
        self._shows: object = None

    def note(self, seq: int, raw: bytes) -> None:
        if len(raw) <= _LONGEST and self._store.has_room(len(raw) + _OVERHEAD_BYTES):
            self.raws[seq] = raw

    def shown_by(self, shows: object) -> dict[int, msgspec.Raw | None]:
        """How entries are shown by somebody, which is the same for as long as that is the same object. None for those
        that were shown once."""
        if self._shows is not shows:
            self._shows, self._shown = shows, {}
        return self._shown

    def note_shown(self, seq: int, encode: Callable[[], bytes]) -> None:
        """Notes that an entry was shown, and from the second time on how, as JSON: to encode it by itself takes longer
        than with others, and most are shown once."""
        if seq not in self.raws:
            return
        if seq not in self._shown:
            self._shown[seq] = None
            return
        encoded = encode()
        if self._store.has_room(len(encoded)):
            self._shown[seq] = msgspec.Raw(encoded)


class SeenEntries:
    """Those of all streams."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._streams: dict[int, Seen] = {}

    def of(self, topic: Topic, description: Description) -> Seen:
        known = self._streams.get(topic.id)
        if known is None or known.description is not description or known.epoch != topic.epoch:
            known = self._streams[topic.id] = Seen(self, topic.epoch, description)
        return known

    def has_room(self, size: int) -> bool:
        """Takes so much room, if there is any. Otherwise all is forgotten, and who came last as well."""
        self._bytes += size
        if self._bytes <= self._bytes_max:
            return True
        self._bytes = 0
        self._streams.clear()
        return False
