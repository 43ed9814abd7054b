"""What Spark sees of the source, without a Spark."""

from pathlib import Path

import msgspec
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from tests.unit.spark.folders import Folder
from topics.spark.connector import origins
from topics.spark.connector.loss import DataLossError
from topics.spark.connector.source import TopicsDataSource
from topics.spark.segments import load_catalog
from topics.storage.layout import Layout
from topics.storage.posix import PosixFileSystem

SCHEMA = StructType([StructField("seq", LongType(), False)])


def test_what_a_crash_took_fails_a_read_of_the_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(str(tmp_path / "data"))
    folder = Folder(PosixFileSystem(), layout=layout)
    folder.append("orders", 1, 2, 3, 4)
    folder.seal()
    catalog = load_catalog(PosixFileSystem(), layout)
    [topic] = catalog.topics
    damaged = msgspec.structs.replace(catalog, topics=[msgspec.structs.replace(topic, lost=[(2, 3)])])
    monkeypatch.setattr(origins, "load_catalog", lambda fs, layout: damaged)
    given = {"mode": "segments", "path": layout.root, "topic": "orders"}
    with pytest.raises(DataLossError, match="records 2 to 3 are gone"):
        TopicsDataSource(given).reader(SCHEMA).partitions()
    assert len(TopicsDataSource({**given, "failOnDataLoss": "false"}).reader(SCHEMA).partitions()) == 1
    folder.engine.close_inline()
