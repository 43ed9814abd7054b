"""Independent readers open only the files of a typed table that may have rows of a range of times.

The other files are damaged, so that a reader which opens one fails. DuckDB 1.5 prunes by `_seq` and `_ts`, not by the
bounds of event times, which polars and Spark use.
"""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.readers import INSTALL_EXTENSIONS, run_reading
from tests.spark.iceberg_runtime import begin_with, environment_of
from tests.unit.docs.pages import read
from tests.unit.spark.folders import Folder
from tests.unit.spark.typed import Described
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.pipeline_worker import make_pipeline
from topics.spark.pipeline.task_packing import FrameRules
from topics.testing import ManualClock

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
LATE = range(50, 60)

_READ = (
    INSTALL_EXTENSIONS
    + """
import json, sys
import polars as pl
from datetime import datetime

root, begin, end, seq = sys.argv[1:]
duckdb.sql("LOAD iceberg")
one = duckdb.sql(f"SELECT id FROM iceberg_scan('{root}') WHERE _seq >= {seq} AND _seq < {seq} + 10").fetchall()
begin, end = datetime.fromisoformat(begin), datetime.fromisoformat(end)
rows = pl.scan_iceberg(root).filter((pl.col("at") >= begin) & (pl.col("at") < end)).select("id").collect()
print(json.dumps([sorted(row[0] for row in one), sorted(rows["id"].to_list())]))
"""
)
_READ_BY_SPARK = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.config("spark.jars.packages", {runtime!r}).getOrCreate()
table = spark.read.format("iceberg").load({root!r})
rows = table.where("at >= timestamp '{begin}' AND at < timestamp '{end}'").select("id").collect()
print(json.dumps(sorted(row.id for row in rows)))
"""


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A typed table of seven files, of which one has the late entries and the others cannot be read."""
    folder = Folder(PosixFileSystem(), ManualClock(), Layout(str(tmp_path / "data")))
    described = Described(folder)
    described.create("orders")
    for first in range(0, 70, 10):
        times = [(BEGIN + timedelta(hours=n)).isoformat() for n in range(first, first + 10)]
        described.append("orders", *[{"id": first + n, "at": at} for n, at in enumerate(times)])
        folder.seal()
    settings = Settings(data_dir=folder.layout.root, archive="1", archive_typed="orders", search_families="off")
    rules = FrameRules(group_bytes=1)
    pipeline = make_pipeline(settings, folder.disk, InlineExecutor(folder.disk), folder.clock, False, rules)
    while pipeline.round():
        pass
    place = tmp_path / "data" / "archive" / "typed" / "orders"
    kept = 0
    for file in (place / "data").glob("*.parquet"):
        if LATE[0] in pq.read_table(file)["id"].to_pylist():
            kept += 1
        else:
            file.write_bytes(bytes(file.stat().st_size))
    assert kept == 1
    folder.engine.close_inline()
    return str(place)


def bounds() -> tuple[str, str]:
    begin, end = (BEGIN + timedelta(hours=n) for n in (LATE[0], LATE[-1] + 1))
    return begin.isoformat(), end.isoformat()


def test_duckdb_prunes_files_by_seq_and_polars_by_event_time(root: str, tmp_path: Path) -> None:
    found = json.loads(run_reading(_READ, tmp_path, [root, *bounds(), str(LATE[0] + 1)]).splitlines()[-1])
    assert found == [list(LATE), list(LATE)]


@pytest.mark.slow
def test_spark_prunes_files_by_event_time(root: str, tmp_path: Path, spark_home: Path) -> None:
    [runtime] = set(re.findall(r"org\.apache\.iceberg:iceberg-spark-runtime[\w.:-]+", read("docs/spark/tables.md")))
    begin, end = (text.replace("T", " ") for text in bounds())
    code = begin_with(spark_home) + _READ_BY_SPARK.format(runtime=runtime, root=root, begin=begin, end=end)
    reported = run_reading(code, tmp_path, environment=environment_of(spark_home, tmp_path), patience_s=900)
    assert json.loads(reported.splitlines()[-1]) == list(LATE)
