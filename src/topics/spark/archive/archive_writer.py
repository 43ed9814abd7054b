"""Archive writer: the task code that copies segments into Parquet files and rewrites files (compaction, erasure).

A file is written under its final name, synced with its folder, and does not count until the ledger names it. Names are
unique, so a retried task, or a run after a killed one, never overwrites a file. A failed task removes its files at
once, because on a full disk their space is needed.
"""

import contextlib
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate, groupby
from typing import Protocol, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from topics.log.fs import FileSystem, naming
from topics.spark.archive.archive_plan import Rewrite, Source, SourceRun
from topics.spark.archive.archive_state import ArchiveState, Covered, Event
from topics.spark.archive.data_files import (
    ARCHIVE_SCHEMA,
    ArchiveFile,
    Mask,
    ParquetBytes,
    Run,
    by_day,
    folder_of,
    is_tagged,
    run_of,
    tail_of,
)
from topics.spark.segment_reader import SegmentRef, bucket_of
from topics.system.entropy import SystemEntropy


class Outcome(msgspec.Struct, array_like=True):
    """The result of a task."""

    files: list[ArchiveFile] = []
    covered: list[Covered] = []
    replaced: list[str] = []
    applied: list[tuple[int, bytes]] = []
    """By topic, packed: the seqs that a rewrite left out."""
    rows: int = 0
    text_bytes: int = 0
    segments: int = 0


class SegmentCopier:
    """Copies segments into one file for each day and bucket."""

    def __init__(self, fs: FileSystem, root: str, run: str) -> None:
        self._files = _Files(fs, root, run)
        self._outcome = Outcome()
        self._covered: dict[int, Covered] = {}
        self._range_numbers: dict[int, int] = {}
        """By topic, the number of the current contiguous range: seqs between two ranges may be in another file."""
        self._pending: dict[tuple[int, int], list[tuple[tuple[int, int], pa.RecordBatch]]] = {}

    def take(self, ref: SegmentRef, batches: Sequence[pa.RecordBatch]) -> None:
        first = ref.deleted_from or max(ref.from_seq, ref.first_seq)
        last = min(ref.to_seq, ref.first_seq + ref.count - 1)
        covered = self._covered.setdefault(ref.topic_id, Covered(ref.topic_id, ref.epoch, ref.topic, []))
        if covered.ranges and covered.ranges[-1][1] + 1 != first:
            self._range_numbers[ref.topic_id] = self._range_numbers.get(ref.topic_id, 0) + 1
        covered.ranges.append((first, last))
        run = (ref.topic_id, self._range_numbers.get(ref.topic_id, 0))
        for batch in batches:
            for day, part in by_day(batch):
                self._pending.setdefault((day, bucket_of(ref.topic)), []).append((run, part))
        self._outcome.text_bytes += ref.text_bytes
        self._outcome.segments += 1

    def finish(self) -> Outcome:
        outcome = self._outcome
        with self._files as files:
            for (day, bucket), parts in sorted(self._pending.items()):
                target = ParquetBytes(is_tagged(part for _, part in parts))
                runs = []
                for (topic_id, _), group in groupby(parts, key=lambda part: part[0]):
                    batches = [batch for _, batch in group]
                    runs.append(run_of(topic_id, batches))
                    for batch in batches:
                        target.add(batch)
                outcome.files.append(files.put(day, bucket, runs, target.finish()))
        outcome.covered = list(self._covered.values())
        outcome.rows = sum(file.rows for file in outcome.files)
        return outcome


def rewrite(fs: FileSystem, root: str, run: str, work: Rewrite) -> Outcome:
    """Merges files of a day and bucket without deleted records. Memory: the new file and a row group of each source."""
    outcome = Outcome(replaced=[source.path for source in work.sources])
    with ExitStack() as stack:
        files = stack.enter_context(_Files(fs, root, run))
        sources = [
            stack.enter_context(RowReader(fs, f"{root}/{source.path}", source.bytes, source.tail))
            for source in work.sources
        ]
        target = ParquetBytes(any(source.is_tagged() for source in sources))
        runs = []
        for source, part in _in_order(work.sources):
            mask = Mask.unpacked(part.hidden)
            table = mask.shown(sources[source].rows(part.first_row, part.rows))
            shown = [batch for batch in table.to_batches() if batch.num_rows]
            if len(mask):
                outcome.applied.append((part.topic_id, part.hidden))
            if shown:
                runs.append(run_of(part.topic_id, shown))
            for batch in shown:
                target.add(batch)
        if runs:
            outcome.files = [files.put(work.day, work.bucket, runs, target.finish())]
    return outcome


def _in_order(sources: Sequence[Source]) -> list[tuple[int, SourceRun]]:
    """The runs of all sources in the order of the new file, each with the number of its source."""
    runs = [(number, run) for number, source in enumerate(sources) for run in source.runs]
    return sorted(runs, key=lambda one: (one[1].topic, one[1].epoch, one[1].first_seq))


class RowReader:
    """Reads rows of a file by number. In ascending order every row group is read once."""

    def __init__(self, fs: FileSystem, path: str, size: int = 0, tail: int = 0) -> None:
        """`size` and `tail` come from the ledger; 0 if it has none. Raises ValueError for another file."""
        self._file = fs.open(path)
        data = self._file.map()
        if (size and len(data) != size) or (tail and tail_of(data) != tail):
            self._file.close()
            raise ValueError(f"{path} is not the file that the ledger names. Run `topics archive repair`")
        self._parquet = pq.ParquetFile(pa.BufferReader(data))
        counts = [self._group(place).num_rows for place in range(self._parquet.num_row_groups)]
        self._ends = list(accumulate(counts))
        self._read: tuple[int, pa.Table] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def rows(self, first: int, count: int) -> pa.Table:
        """Raises ValueError if the file has fewer rows."""
        tables = [ARCHIVE_SCHEMA.empty_table()]
        place, left = bisect_right(self._ends, first), count
        while left:
            if place >= len(self._ends):
                raise ValueError(f"the file has {self._ends[-1] if self._ends else 0} rows, not {first + count}")
            begin = self._ends[place] - self._group(place).num_rows
            tables.append(self._row_group(place).slice(first + count - left - begin, left))
            left -= tables[-1].num_rows
            place += 1
        return pa.concat_tables(tables)

    def is_tagged(self) -> bool:
        column = ARCHIVE_SCHEMA.get_field_index("tag")
        groups = [self._group(place) for place in range(self._parquet.num_row_groups)]
        known = [(group.num_rows, group.column(column).statistics) for group in groups]
        return any(found is None or found.null_count < rows for rows, found in known)

    def _row_group(self, place: int) -> pa.Table:
        if self._read is None or self._read[0] != place:
            table = self._parquet.read_row_group(place, columns=ARCHIVE_SCHEMA.names)
            self._read = place, pa.Table.from_arrays(table.columns, schema=ARCHIVE_SCHEMA)
        return self._read[1]

    def _group(self, place: int) -> pq.RowGroupMetaData:
        return self._parquet.metadata.row_group(place)


class _Files:
    """Writes files; an exception in the `with` block removes all of them."""

    def __init__(self, fs: FileSystem, root: str, run: str) -> None:
        self._fs = fs
        self._root = root
        self._run = run
        self._entropy = SystemEntropy()
        self._begun: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        try:
            for path in self._begun if isinstance(error, Exception) else ():
                with contextlib.suppress(FileNotFoundError):
                    self._fs.remove(path)
        except OSError:
            # The next run removes the rest: an unavailable store is not tried again for each file.
            return

    def put(self, day: int, bucket: int, runs: Sequence[Run], data: memoryview) -> ArchiveFile:
        folder = folder_of(day, bucket)
        # Two attempts of one task may run at the same time, so names are random.
        name = f"{folder}/{self._run}-{self._entropy.token(8).hex()}.parquet"
        self._fs.make_dirs(f"{self._root}/{folder}")
        self._begun.append(f"{self._root}/{name}")
        file = self._fs.open(self._begun[-1], create=True)
        try:
            with naming(self._begun[-1]):
                file.truncate(0)
                file.write_at(0, data)
                file.sync()
        finally:
            file.close()
        self._fs.sync_dir(f"{self._root}/{folder}")
        return ArchiveFile(name, day, bucket, len(data), tuple(runs), tail=tail_of(data))


class Follower(Protocol):
    """A view of the archive that is updated after each commit, such as the Iceberg table."""

    def follow(self, state: ArchiveState, events: Sequence[Event], now_ms: int) -> bool:
        """Makes the view equal to the state. Returns whether anything changed.

        The events are those of the commit that led to the state, or none. The first call of a process, a call after a
        failed one, and one that missed a commit compare the whole state.
        """
        ...

    def pinned(self, now_ms: int) -> frozenset[str]:
        """Files of the archive that external references name, such as tags. They must stay."""
        ...

    def rows(self) -> int | None:
        """The rows that it shows; None before it has followed the archive."""
        ...

    def expire(self, now_ms: int) -> None:
        """Drops references to retired files that are about to be removed."""
        ...
