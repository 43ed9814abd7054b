"""The part of `make bench-spark` about the archive's table: the cost of a commit as the table grows.

A commit opens no data file, so none is created: the table gets the file entries that the ledger would give it.
Snapshots are kept for ten minutes of rounds five seconds apart, as a busy pipeline has them. `python -m
bench.spark_table FILES...` measures it alone.
"""

import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from bench.spark_many import seconds
from topics.log.posix import PosixFileSystem
from topics.spark.archive.data_files import ArchiveFile, Mask, Run, TableFile
from topics.spark.iceberg.catalogs import FolderPointer
from topics.spark.iceberg.table import ArchiveTable
from topics.spark.segment_reader import BUCKETS
from topics.system.entropy import SystemEntropy

FILES_A_COMMIT = BUCKETS
COMMITS = 40
KEEP_MS = 600_000
ROUND_MS = 5_000
_DAY_MS = 86_400_000
_ROWS = 100_000


@dataclass
class TableCost:
    files: int
    first: float = 0.0
    """Seconds in which a table of so many files is made out of a ledger."""
    opened: float = 0.0
    commits: list[float] = field(default_factory=list)
    deletes: list[float] = field(default_factory=list)

    @property
    def commit_ms(self) -> float:
        return 1000 * statistics.median(self.commits)

    @property
    def delete_ms(self) -> float:
        return 1000 * statistics.median(self.deletes)


def table_cost(root: Path, files: int) -> TableCost:
    """Measures a table with this many files: creating, opening, appending, and deleting."""
    found = TableCost(files)
    now = 1_800_000_000_000
    known = [_entry_of(root, number) for number in range(files)]
    table = _table(root)
    found.first = seconds(lambda: table.follow({one.path: one for one in known}, now, whole=True))
    table = _table(root)
    requested = {one.path: one for one in known}
    found.opened = seconds(lambda: table.follow(requested, now, whole=True))
    for number in range(COMMITS):
        now += ROUND_MS
        first = files + number * FILES_A_COMMIT
        fresh = {one.path: one for one in (_entry_of(root, first + more) for more in range(FILES_A_COMMIT))}
        found.commits.append(seconds(lambda fresh=fresh, now=now: table.follow(fresh, now)))  # type: ignore[misc]
    for number in range(COMMITS):
        now += ROUND_MS
        spoiled = _entry_of(root, number * (files // COMMITS), ((number, number + 4),))
        found.deletes.append(seconds(lambda one=spoiled, now=now: table.follow({one.path: one}, now)))  # type: ignore[misc]
    return found


def _table(root: Path) -> ArchiveTable:
    fs = PosixFileSystem()
    return ArchiveTable(fs, str(root), FolderPointer(fs, str(root)), SystemEntropy(), KEEP_MS)


def _entry_of(root: Path, number: int, deleted: tuple[tuple[int, int], ...] = ()) -> TableFile:
    """The ledger's entry for a file: one day, one bucket, ten topics."""
    bucket, day = number % BUCKETS, 20_000 + number // (64 * BUCKETS)
    rows, ts = _ROWS // 10, day * _DAY_MS
    runs = tuple(Run(n, n, f"topic-{bucket}-{n}", 1, rows, rows, ts, ts + 1000) for n in range(1, 11))
    path = f"data/day={day}/topic_bucket={bucket}/{number:08d}.parquet"
    file = ArchiveFile(path, day, bucket, 16_000_000, runs, 1 if deleted else 0)
    return TableFile(f"{root}/{path}", file, (Mask.of(deleted),) if deleted else ())


def table_costs(folder: Path, sizes: tuple[int, ...]) -> list[TableCost]:
    found = []
    for size in sizes:
        root = folder / f"table-{size}"
        root.mkdir(parents=True)
        found.append(table_cost(root, size))
        shutil.rmtree(root)
    return found


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="topics-bench-table-"))
    try:
        for one in table_costs(folder, tuple(int(word) for word in sys.argv[1:]) or (1000,)):
            print(
                f"{one.files} files: made in {one.first:.2f} s, opened in {one.opened:.2f} s, "
                f"{one.commit_ms:.1f} ms a commit, {one.delete_ms:.1f} ms a delete"
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
