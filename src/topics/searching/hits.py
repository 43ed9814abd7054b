"""The hits of a search on their way: column by column, because a page has many and they are shown all together.

A search that is sorted by nothing but the offset has one column: its places are its seqs, and its scores are all 0.
"""

from collections.abc import Container, Iterator
from itertools import compress
from typing import Any

import msgspec


class Hit(msgspec.Struct, array_like=True, frozen=True):
    place: list[Any]
    seq: int
    score: float


class Hits(msgspec.Struct, array_like=True, frozen=True):
    """Hits, the first one first."""

    seqs: list[int] = []
    scores: list[float] = []
    """None at all where each is 0."""
    keys: list[list[Any] | None] = []
    """The values of each key of the sort; None for the offset, whose values are the seqs."""

    def __len__(self) -> int:
        return len(self.seqs)

    def __iter__(self) -> Iterator[Hit]:
        return map(self.__getitem__, range(len(self.seqs)))

    def __getitem__(self, index: int) -> Hit:
        return Hit(self.place(index), self.seqs[index], self.scores[index] if self.scores else 0.0)

    def place(self, index: int) -> list[Any]:
        """The values of the keys of one hit."""
        return [self.seqs[index] if values is None else values[index] for values in self.keys]

    def between(self, begin: int, end: int) -> "Hits":
        """From one of them up to another."""
        if begin == 0 and end >= len(self.seqs):
            return self
        keys = [None if values is None else values[begin:end] for values in self.keys]
        return Hits(self.seqs[begin:end], self.scores[begin:end], keys)

    def only(self, wanted: Container[int]) -> "Hits":
        """Those of some seqs, in the same order."""
        chosen = [seq in wanted for seq in self.seqs]
        keys = [None if values is None else list(compress(values, chosen)) for values in self.keys]
        return Hits(list(compress(self.seqs, chosen)), list(compress(self.scores, chosen)), keys)
