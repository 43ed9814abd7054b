"""Stored text as entries: parsed and promoted as a read does it, for whoever fills an index."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from topics.indexing.fresh.batches import Batch, Decoder, PlainBatch, read_value
from topics.indexing.fresh.index import FreshIndex
from topics.schema.registry import Registry


class EntryReader:
    """Fills indexes with the entries of one stream, as it is described now."""

    def __init__(self, registry: Registry) -> None:
        self._is_searched = registry.search_config is not None
        self._promoter = registry.promoter if registry.current_version > 1 else None

    def fill(
        self,
        index: FreshIndex,
        decoder: Decoder,
        numbers: Sequence[int],
        raws: Sequence[bytes | memoryview],
        keys: Sequence[str | None],
    ) -> None:
        """Adds entries as they are stored, in the order of their numbers, behind all that are there."""
        promoter, begin = self._promoter, 0
        if promoter is not None and numbers and numbers[0] <= promoter.current_from:
            begin = bisect_right(numbers, promoter.current_from)
            values = [self._value(*entry) for entry in zip(numbers[:begin], raws, strict=False)]
            index.add_batch(PlainBatch(numbers[:begin], values, keys[:begin]))
        if begin < len(numbers):
            index.add_batch(self._batch(decoder, numbers[begin:], raws[begin:], keys[begin:]))

    def _batch(
        self,
        decoder: Decoder,
        numbers: Sequence[int],
        raws: Sequence[bytes | memoryview],
        keys: Sequence[str | None],
    ) -> Batch:
        """Entries of the current version. A stream that is searched for its keys alone is not parsed."""
        if not self._is_searched:
            return PlainBatch(numbers, [None] * len(raws), keys)
        return decoder.batch(numbers, raws, keys)

    def _value(self, seq: int, raw: bytes | memoryview) -> Any:
        """An entry of an earlier version, promoted."""
        if not self._is_searched:
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
