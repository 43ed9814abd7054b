"""What the searching process holds of a stream: its description, and its newest entries as columns, chunk by chunk."""

from collections.abc import Iterator

from topics.core.ranges import SeqRange
from topics.indexing.companions.identity import plan_of
from topics.indexing.entries import EntryReader
from topics.indexing.fresh.index import FreshIndex, FreshPart
from topics.indexing.parts import Entry, Span
from topics.schema.registry import Registry
from topics.searching.messages import Piece, views
from topics.wire.cuts import data_parts, tag_texts, tag_value


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

    def add(self, pieces: tuple[Piece, ...], body: memoryview, new: bool) -> None:
        if new or not self._chunks:
            self._chunks.append(FreshIndex(self.config, self.version))
        for entries in self.entries(pieces, body):
            self._chunks[-1].add(entries)

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

    def entries(self, pieces: tuple[Piece, ...], body: memoryview) -> Iterator[list[Entry]]:
        """The entries of each piece. A stream that is searched for its keys alone is not parsed."""
        for first_seq, view in views(pieces, body):
            keys: dict[int, str] = {index: tag_value(text) for index, text in tag_texts(view, 0, view.count)}
            yield [
                Entry(
                    first_seq + index,
                    None if self.config is None else self._reader.value(first_seq + index, raw),
                    len(raw),
                    key,
                )
                for index, raw in enumerate(data_parts(view, 0, view.count))
                for key in (keys.get(index),)
            ]
