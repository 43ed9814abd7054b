"""`python -m bench.families_shuffle`: rollups of companions merged in a task, beside the same merge as a shuffle.

Companions of one stream are built, and their hourly sums are made one in two ways, in turns and in one Spark session:
by a task that reads the sorted groups of all of them and adds up, as the pipeline does, and by DataFrames that group
the rows of all of them by their keys and sort them. Reports the processor time of the whole tree of processes, Java
with it, and the elapsed time; of several turns the least.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bench.families import build_once
from bench.history_backlog import fill
from topics.search.file_index.file_format import SectionFile
from topics.search.file_index.rollups import merge_groups, read_rollup
from topics.search.query.aggregate_arrays import Counts, Sums
from topics.spark.session import SparkOptions, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOUR_MS = 3_600_000
_TICKS = os.sysconf("SC_CLK_TCK")
_SUMS = "start bigint, carrier string, flights bigint, counts bigint, sums bigint, least bigint, most bigint"
_TIMES = "start bigint, carrier string, power int, times bigint"


def _stored(path: str) -> Any:
    found = read_rollup(SectionFile(Path(path).read_bytes()), "load", _HOUR_MS, "all")
    assert found is not None
    return found


def in_a_task(spark: "SparkSession", paths: list[str]) -> int:
    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            merged = merge_groups([_stored(path) for path in paths], _HOUR_MS, 1 << 40)
            assert merged is not None
            yield pa.RecordBatch.from_pydict({"groups": [len(merged)]})

    [row] = spark.range(0, 1, 1, 1).mapInArrow(merge, "groups bigint").collect()
    return int(row.groups)


def by_a_shuffle(spark: "SparkSession", paths: list[str]) -> int:
    """The sums and the histograms, each grouped, then sorted into one partition that would write them."""
    from pyspark.sql import functions as f

    numbered = spark.range(0, len(paths), 1, len(paths))
    sums = numbered.mapInArrow(lambda batches: _rows(batches, paths, _sum_rows), _SUMS)
    added = sums.groupBy("start", "carrier").agg(
        f.sum("flights"), f.sum("counts"), f.sum("sums"), f.min("least"), f.max("most")
    )
    times = numbered.mapInArrow(lambda batches: _rows(batches, paths, _time_rows), _TIMES)
    counted = times.groupBy("start", "carrier", "power").agg(f.sum("times"))
    groups = 0
    for frame in (added, counted):
        sorted_ = frame.repartition(1).sortWithinPartitions(*frame.columns[: 2 if frame is added else 3])
        [row] = sorted_.mapInArrow(_counted, "groups bigint").collect()
        groups = groups or int(row.groups)
    return groups


def _counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"groups": [sum(batch.num_rows for batch in batches)]})


def _rows(
    batches: Iterator[pa.RecordBatch], paths: list[str], rows: Callable[[Any], dict[str, Any]]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for place in batch.column(0).to_pylist():
            yield pa.RecordBatch.from_pydict(rows(_stored(paths[place]).all()))


def _keys(groups: Any) -> tuple[Any, Any]:
    [(codes, names)] = groups.dimensions
    return groups.starts, np.array(names, object)[codes]


def _sum_rows(groups: Any) -> dict[str, Any]:
    flights, delays = groups.measures
    assert isinstance(flights, Counts)
    assert isinstance(delays, Sums)
    starts, carriers = _keys(groups)
    return {
        "start": starts, "carrier": carriers, "flights": flights.numbers, "counts": delays.counts,
        "sums": delays.sums, "least": delays.least, "most": delays.most,
    }  # fmt: skip


def _time_rows(groups: Any) -> dict[str, Any]:
    buckets = groups.measures[1].buckets
    lengths = np.diff(buckets.ends, prepend=0)
    starts, carriers = (np.repeat(keys, lengths) for keys in _keys(groups))
    powers = buckets.exponents.astype(np.int32)
    return {"start": starts, "carrier": carriers, "power": powers, "times": buckets.counts}


def _tree_s(pid: int) -> float:
    """The processor time of a process and its descendants, ended ones included."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [task.read_text().split() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return 0.0
    return sum(map(int, stat[11:15])) / _TICKS + sum(_tree_s(int(child)) for some in children for child in some)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=320_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="topics-bench-shuffle-"))
    try:
        fill(folder, 0, arguments.entries)
        build_once(folder)
        paths = sorted(str(path) for path in (folder / "families").rglob("*.companion"))
        spark = open_session(SparkOptions(master="local[2]", memory="1g", app_name="bench"))
        ways = {"in a task": in_a_task, "by a shuffle": by_a_shuffle}
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(arguments.rounds + 2):
            for name, way in ways.items():
                used, begun = _tree_s(os.getpid()), time.monotonic()
                groups = way(spark, paths)
                took[name].append((_tree_s(os.getpid()) - used, time.monotonic() - begun))
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(f"{len(paths)} companions, {groups:,} groups\n")
    for name, turns in took.items():
        # The first two turns load the modules and caches.
        cpu, wall = (min(turn[place] for turn in turns[2:]) for place in (0, 1))
        sys.stdout.write(f"{name:<14} {1000 * cpu:8.0f} ms of processor time, {1000 * wall:8.0f} ms\n")


if __name__ == "__main__":
    main()
