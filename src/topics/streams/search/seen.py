"""Entries that hits showed, for the next search that finds them.

Clients ask the same again and again, and other queries for the newest entries have the same hits. An entry never
changes, so its text is the same for as long as its stream is described alike, and so is what is shown of it. Whether
the entry is still there is no part of that: whoever has a hit finds that out each time.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from topics.engine.streams.description import Description
from topics.engine.topic import Topic

BYTES_MAX: Final = 8 * 1024 * 1024
"""What is kept of all streams. When it is more all is forgotten: what is asked again and again is soon back."""
_LONGEST: Final = 4096
"""Longer entries are copied each time."""
_STREAM_BYTES: Final = 1000
_MET_BYTES: Final = 64
_OVERHEAD_BYTES: Final = 200
"""What an entry takes besides its text and what is shown of it."""


_encode = msgspec.json.Encoder().encode


class Seen:
    """Those of one stream, as it is described now."""

    __slots__ = ("_met", "_shown", "_shows", "_store", "description", "epoch", "raws")

    def __init__(self, store: "SeenEntries", epoch: int, description: Description) -> None:
        self._store = store
        self.epoch = epoch
        self.description = description
        self._met: set[int] = set()
        self.raws: dict[int, bytes] = {}
        """By their seqs, promoted."""
        self._shown: dict[int, msgspec.Raw] = {}
        self._shows: object = None

    def note(self, raws: dict[int, bytes]) -> bool:
        """Entries that are not known; whether any is from now on. That is what was met before: most entries are found
        once and never again, and to keep them would cost memory that is not in any cache."""
        again = {seq: raw for seq, raw in raws.items() if seq in self._met and len(raw) <= _LONGEST}
        if self._store.has_room(_MET_BYTES * (len(raws) - len(again))):
            self._met.update(raws)
        if again and self._store.has_room(sum(map(len, again.values())) + _OVERHEAD_BYTES * len(again)):
            self.raws.update(again)
        return bool(again)

    def shown_by(self, shows: object) -> dict[int, msgspec.Raw]:
        """How entries are shown by somebody, which is the same for as long as that is the same object."""
        if self._shows is not shows:
            self._shows, self._shown = shows, {}
        return self._shown

    def note_shown(self, seqs: Sequence[int], fields: Sequence[Any]) -> None:
        """Notes how those entries are shown, as JSON, that are known: to encode one by itself takes longer than with
        others."""
        for seq, value in zip(seqs, fields, strict=True):
            if seq in self.raws:
                encoded = _encode(value)
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
            self.has_room(_STREAM_BYTES)
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
