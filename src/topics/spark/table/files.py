"""What the table is told: which data files count, and which of their rows are deleted. Plain values, no Iceberg."""

import msgspec

from topics.spark.archive.files import DataFile
from topics.spark.archive.masks import Mask


class Wanted(msgspec.Struct, frozen=True):
    """A data file as readers are to see it."""

    path: str
    """The whole path or URL. It is never used again for other bytes."""
    file: DataFile
    hidden: tuple[Mask, ...] = ()
    """The deleted seqs of each of its runs; none at all where nothing of it is deleted."""
    seq_column: str = "seq"
