"""What the table is told: which data files count, and which of their rows are deleted. Plain values, no Iceberg."""

from collections.abc import Mapping

import msgspec

from topics.spark.archive.masks import Mask


class Run(msgspec.Struct, frozen=True):
    """The rows of one topic in a file. They stand together, in the order of their seqs."""

    topic: str
    epoch: int
    first_seq: int
    last_seq: int
    rows: int


class TableFile(msgspec.Struct, frozen=True):
    """A data file of one day and one bucket."""

    path: str
    """The whole path or URL. It is never used again for other bytes."""
    day: int
    bucket: int
    rows: int
    bytes: int
    first_ts: int
    last_ts: int
    runs: tuple[Run, ...]
    """In the order in which they stand in the file."""


class Wanted(msgspec.Struct, frozen=True):
    """A data file as readers are to see it."""

    file: TableFile
    hidden: Mapping[int, Mask] = {}
    """The deleted seqs of each epoch."""
