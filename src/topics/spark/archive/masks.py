"""Which records of archived files must not be shown: sets of seqs as two columns of numbers.

Deletes may be scattered over an archive by the million. A mask is looked up for all records of a file at once, and cut
to a file before it travels to the task that reads it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topics.core.ranges import SeqRange

Ints = npt.NDArray[np.int64]


class Mask:
    """Ascending ranges of seqs that are apart from each other."""

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

    def __len__(self) -> int:
        return len(self.firsts)

    def to_bytes(self) -> bytes:
        return self.firsts.tobytes() + self.lasts.tobytes()

    def within(self, first: int, last: int) -> "Mask":
        """What of it lies between two seqs, both included."""
        begin, end = np.searchsorted(self.lasts, first), np.searchsorted(self.firsts, last, side="right")
        return Mask(np.maximum(self.firsts[begin:end], first), np.minimum(self.lasts[begin:end], last))

    def count(self) -> int:
        """How many seqs it hides."""
        return int((self.lasts - self.firsts + 1).sum())

    def hides(self, seqs: Ints) -> npt.NDArray[np.bool_]:
        """Whether each of some seqs is in it."""
        if not len(self.firsts):
            return np.zeros(len(seqs), dtype=np.bool_)
        place = np.searchsorted(self.lasts, seqs, side="left")
        hidden: npt.NDArray[np.bool_] = self.firsts[np.minimum(place, len(self.firsts) - 1)] <= seqs
        hidden &= place < len(self.firsts)
        return hidden

    def shown(self, table: pa.Table) -> pa.Table:
        """The records of a table that it does not hide."""
        if not len(self.firsts) or not table.num_rows:
            return table
        hidden = self.hides(table["seq"].to_numpy())
        return table.filter(pa.array(~hidden)) if hidden.any() else table
