"""What the searching process holds of a stream: its description, and its newest entries as columns, chunk by chunk."""

from bisect import bisect_right
from typing import Any

from topics.core.ranges import SeqRange
from topics.indexing.fresh.batches import Batch, Decoder, PlainBatch, read_value
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
        self._promoter = registry.promoter if registry.current_version > 1 else None
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
        promoter, begin = self._promoter, 0
        if promoter is not None and numbers and numbers[0] <= promoter.current_from:
            begin = bisect_right(numbers, promoter.current_from)
            values = [self._value(*entry) for entry in zip(numbers[:begin], raws, strict=False)]
            index.add_batch(PlainBatch(numbers[:begin], values, keys[:begin]))
        if begin < len(numbers):
            index.add_batch(self._batch(decoder, numbers[begin:], raws[begin:], keys[begin:]))
        return sum(map(len, raws))

    def _batch(
        self, decoder: Decoder, numbers: list[int], raws: list[bytes | memoryview], keys: list[str | None]
    ) -> Batch:
        """Entries of the current version. A stream that is searched for its keys alone is not parsed."""
        if self.config is None:
            return PlainBatch(numbers, [None] * len(raws), keys)
        return decoder.batch(numbers, raws, keys)

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

    def _value(self, seq: int, raw: bytes | memoryview) -> Any:
        """An entry of an earlier version, promoted."""
        if self.config is None:
            return None
        value = read_value(raw)
        promoter = self._promoter
        assert promoter is not None
        # Seqs begin with 1, and a registry counts entries from 0.
        if promoter.is_current(promoter.version_of(seq - 1)):
            return value
        try:
            return promoter.chain(promoter.version_of(seq - 1)).apply(value, len(raw))
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            # As a read does: an entry that cannot be promoted stays as it is. The attempt may have changed it.
            return read_value(raw)
