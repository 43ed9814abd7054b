"""What the searching process holds of a stream: its description, and its newest entries as columns, chunk by chunk."""

from topics.core.ranges import SeqRange
from topics.indexing.companions.identity import plan_of
from topics.indexing.entries import EntryReader
from topics.indexing.fresh.batches import Decoder
from topics.indexing.fresh.index import FreshIndex, FreshPart
from topics.indexing.parts import Span
from topics.schema.registry import Registry
from topics.searching.messages import Piece, views
from topics.wire.cuts import View, data_parts, tag_texts, tag_value

_DECODERS = 64
"""Sets of fields whose decoders are remembered."""
_KNOWN_KEYS = 4096
"""Routing keys that are remembered as they are written: entries that come together have few."""


class Held:
    """One index with what makes entries of stored text.

    Its chunks follow each other, so that the oldest entries can be forgotten without indexing the others anew.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.config = registry.search_config
        self.version = registry.current_version
        self._reader = EntryReader(registry)
        self.plan = plan_of(registry)
        self._chunks: list[FreshIndex] = []
        self._decoder = FreshIndex(self.config, self.version).decoder()
        self._decoders: dict[tuple[str, ...] | None, Decoder] = {}
        self._known_keys: dict[bytes, str] = {}

    def add(self, pieces: tuple[Piece, ...], body: memoryview, new: bool) -> None:
        if new or not self._chunks:
            self._chunks.append(FreshIndex(self.config, self.version))
        self._fill(self._chunks[-1], self._decoder, pieces, body, with_keys=True)

    def columns(
        self, names: tuple[str, ...] | None, pieces: tuple[Piece, ...], body: memoryview, with_keys: bool = False
    ) -> tuple[FreshIndex, int]:
        """An index over some entries alone, with the fields that somebody asks for (None is all), and the bytes of the
        entries. To look at entries this way takes half as long as one by one."""
        index = FreshIndex(self.config, self.version, names)
        decoder = self._decoders.get(names)
        if decoder is None:
            if len(self._decoders) >= _DECODERS:
                self._decoders.clear()
            decoder = self._decoders[names] = index.decoder()
        return index, self._fill(index, decoder, pieces, body, with_keys)

    def _fill(
        self, index: FreshIndex, decoder: Decoder, pieces: tuple[Piece, ...], body: memoryview, with_keys: bool
    ) -> int:
        """Adds all entries at once: they may have been appended one by one, and each step costs more than an entry."""
        numbers: list[int] = []
        raws: list[bytes | memoryview] = []
        keys: list[str | None] = []
        for first_seq, view in views(pieces, body):
            numbers += range(first_seq, first_seq + view.count)
            raws += data_parts(view, 0, view.count)
            keys += self._keys_in(view, with_keys)
        self._reader.fill(index, decoder, numbers, raws, keys)
        return sum(map(len, raws))

    def _keys_in(self, view: View, wanted: bool) -> list[str | None]:
        keys: list[str | None] = [None] * view.count
        known = self._known_keys
        for index, text in tag_texts(view, 0, view.count) if wanted else ():
            key = known.get(text)
            if key is None:
                key = known[text] = tag_value(text)
            keys[index] = key
        if len(known) > _KNOWN_KEYS:
            known.clear()
        return keys

    def trim(self, first: int) -> None:
        self._chunks = [chunk for chunk in self._chunks if chunk.last >= first]

    def parts(self, first: int, last: int, removed: tuple[SeqRange, ...]) -> list[FreshPart]:
        """The chunks that have entries of a range, the newest first."""
        parts = []
        for chunk in reversed(self._chunks):
            rows = chunk.count_between(first, last)
            if rows:
                span = Span(max(first, int(chunk.numbers[0])), min(last, chunk.last), rows)
                parts.append(FreshPart(chunk, span, removed))
        return parts

    @property
    def memory_bytes(self) -> int:
        return sum(chunk.memory_bytes for chunk in self._chunks)
