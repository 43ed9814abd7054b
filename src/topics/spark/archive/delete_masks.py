"""Delete masks: the hidden seqs of archived files, as two numpy columns of range starts and ends.

An archive may have millions of scattered deletes. A mask is applied to all records of a file at once, and is restricted
to a file before it is sent to the task that reads it.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topics.model.seq_ranges import SeqRange

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

WORDS_A_CHUNK = 64
SEQS_A_CHUNK = 64 * WORDS_A_CHUNK


class Mask:
    """A set of seqs as ascending ranges that do not touch."""

    def __init__(self, firsts: Ints, lasts: Ints) -> None:
        self.firsts = firsts
        self.lasts = lasts

    @classmethod
    def of(cls, ranges: Sequence[SeqRange]) -> "Mask":
        pairs = np.array(ranges, dtype=np.int64).reshape(-1, 2)
        return cls(np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Mask":
        pairs = np.frombuffer(data, dtype=np.int64).reshape(2, -1)
        return cls(pairs[0], pairs[1])

    @classmethod
    def unpacked(cls, data: bytes) -> "Mask":
        """The inverse of `packed`. Raises ValueError for other bytes."""
        try:
            steps = np.frombuffer(zlib.decompress(data), dtype="<i8")
        except zlib.error as error:
            raise ValueError(f"the packed deletes cannot be read: {error}") from error
        ends = np.cumsum(steps).reshape(-1, 2)
        return cls(np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1]))

    def packed(self) -> bytes:
        """The range ends delta-encoded and compressed: a byte or two for a range."""
        ends = np.stack([self.firsts, self.lasts], axis=1).reshape(-1)
        return zlib.compress(np.diff(ends, prepend=0).astype("<i8").tobytes(), 1)

    def union(self, other: "Mask") -> "Mask":
        """The seqs in either mask."""
        if not len(self) or not len(other):
            return self if len(self) else other
        return self._combined(other, lambda mine, others: mine | others)

    def minus(self, other: "Mask") -> "Mask":
        """The seqs in this mask and not in the other."""
        return self._combined(other, lambda mine, others: mine & ~others) if len(self) and len(other) else self

    def intersection(self, other: "Mask") -> "Mask":
        """The seqs in both masks."""
        if not len(self) or not len(other):
            return Mask.of(())
        return self._combined(other, lambda mine, others: mine & others)

    def _combined(self, other: "Mask", combine: Callable[[Flags, Flags], Flags]) -> "Mask":
        """Combines two masks in one sweep over their edges; between two edges membership is constant."""
        edges = np.concatenate([self.firsts, self.lasts + 1, other.firsts, other.lasts + 1])
        steps = np.zeros((2, len(edges)), np.int64)
        mine, others = len(self.firsts), len(other.firsts)
        steps[0, :mine], steps[0, mine : 2 * mine] = 1, -1
        steps[1, 2 * mine : 2 * mine + others], steps[1, 2 * mine + others :] = 1, -1
        order = np.argsort(edges, kind="stable")
        edges, counts = edges[order], np.cumsum(steps[:, order], axis=1)
        last = np.flatnonzero(np.diff(edges, append=edges[-1] + 1))
        edges, kept = edges[last], combine(counts[0, last] > 0, counts[1, last] > 0)
        changes = np.diff(kept.astype(np.int8), prepend=0)
        return Mask(edges[changes == 1], edges[changes == -1] - 1)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Mask)
            and np.array_equal(self.firsts, other.firsts)
            and np.array_equal(self.lasts, other.lasts)
        )

    __hash__ = None  # type: ignore[assignment] # Not hashable.

    def __len__(self) -> int:
        return len(self.firsts)

    def to_bytes(self) -> bytes:
        return self.firsts.tobytes() + self.lasts.tobytes()

    def within(self, first: int, last: int) -> "Mask":
        """The mask restricted to `first` to `last`, both included."""
        begin, end = np.searchsorted(self.lasts, first), np.searchsorted(self.firsts, last, side="right")
        return Mask(np.maximum(self.firsts[begin:end], first), np.minimum(self.lasts[begin:end], last))

    def ranges(self) -> list[SeqRange]:
        return list(zip(self.firsts.tolist(), self.lasts.tolist(), strict=True))

    def count(self) -> int:
        """The number of seqs."""
        return int((self.lasts - self.firsts + 1).sum())

    def words(self) -> tuple[Ints, Ints]:
        """The mask as bitmap words of 64 seqs: the numbers of non-empty words, and the words."""
        first, last = self.firsts >> 6, self.lasts >> 6
        counts = last - first + 1
        if not len(counts):
            return first, first
        starts = np.cumsum(counts) - counts
        words = np.repeat(first - starts, counts) + np.arange(int(counts.sum()))
        low = np.where(words == np.repeat(first, counts), np.repeat(self.firsts & 63, counts), 0)
        high = np.where(words == np.repeat(last, counts), np.repeat(self.lasts & 63, counts), 63)
        full = np.uint64(0xFFFFFFFFFFFFFFFF)
        bits = (full >> (63 - high + low).astype(np.uint64)) << low.astype(np.uint64)
        # One range may end and the next begin in the same word.
        begins = np.flatnonzero(np.diff(words, prepend=words[0] - 1))
        return words[begins], np.bitwise_or.reduceat(bits, begins).view(np.int64)

    def chunks(self) -> tuple[Ints, Ints]:
        """The mask as bitmap chunks of 64 words (4096 seqs): the numbers of non-empty chunks, and their words."""
        words, bits = self.words()
        chunks = words // WORDS_A_CHUNK
        found, rows = np.unique(chunks, return_inverse=True)
        flags = np.zeros((len(found), WORDS_A_CHUNK), np.int64)
        flags[rows, words % WORDS_A_CHUNK] = bits
        return found, flags

    def hides(self, seqs: Ints) -> npt.NDArray[np.bool_]:
        """Whether each of the seqs is in the mask."""
        if not len(self.firsts):
            return np.zeros(len(seqs), dtype=np.bool_)
        place = np.searchsorted(self.lasts, seqs, side="left")
        hidden: npt.NDArray[np.bool_] = self.firsts[np.minimum(place, len(self.firsts) - 1)] <= seqs
        hidden &= place < len(self.firsts)
        return hidden

    def shown(self, table: pa.Table) -> pa.Table:
        """The records of a table that are not in the mask."""
        if not len(self.firsts) or not table.num_rows:
            return table
        hidden = self.hides(table["seq"].to_numpy())
        return table.filter(pa.array(~hidden)) if hidden.any() else table


def chunks_of(masks: Mapping[int, Mask]) -> tuple[Ints, Ints, Ints]:
    """`Mask.chunks` of many non-empty masks: the key, the chunk number and the words of each chunk.

    The masks are concatenated on one axis and processed together: there may be tens of thousands of few ranges each.
    """
    if not masks:
        nothing = np.empty(0, np.int64)
        return nothing, nothing, nothing
    sizes = np.array([int(mask.lasts[-1]) // SEQS_A_CHUNK + 1 for mask in masks.values()])
    begins = np.cumsum(sizes) - sizes
    offsets = np.repeat(begins * SEQS_A_CHUNK, [len(mask) for mask in masks.values()])
    firsts, lasts = (
        np.concatenate(ends) + offsets
        for ends in ([mask.firsts for mask in masks.values()], [mask.lasts for mask in masks.values()])
    )
    chunks, flags = Mask(firsts, lasts).chunks()
    places = np.searchsorted(begins, chunks, side="right") - 1
    return np.array(list(masks))[places], chunks - begins[places], flags
