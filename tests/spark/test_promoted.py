"""Both forms of a stream's entries on Spark: as they were written, and as the current version of its schema has them.

The server and Spark show the same fields, wherever the entries come from: the server, its files, the archive.
"""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.http.live import LiveServer
from tests.spark.test_pipeline import pipeline, run_all
from tests.spark.waiting_for import sealed_to, wait_until
from tests.unit.spark.typed import NESTED, nested
from tests.unit.streams.describing import lens, rename
from topics.spark.archive.archive_reader import archived_records
from topics.spark.promotion import ask_versions
from topics_client import Client

STREAM = "orders"


@pytest.fixture
def archiving(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(
        tmp_path, archive="1", pipeline="off", segment_max_events="50", snapshot_interval_ms="200"
    ) as live:  # fmt: skip
        evolve_twice(live.url)
        wait_until(lambda: sealed_to(tmp_path / "data", STREAM) >= 100, "most of it is sealed")
        yield live


def evolve_twice(url: str) -> None:
    """Fifty entries of each of three versions: `{"a":…}`, `{"b":…}`, `{"c":…}`."""
    path = f"{url}/v1/stream/{STREAM}"
    httpx.put(path, headers={"content-type": "application/json"}).raise_for_status()
    for version, member in enumerate("abc", 1):
        body: dict[str, Any] = {"schema": {"type": "object", "required": [member], "properties": {member: {}}}}
        if version > 1:
            before = "abc"[version - 2]
            body["lens"] = lens(STREAM, version - 1, rename(f"/{before}", f"/{member}"))
        httpx.post(f"{path}/_schema", json=body).raise_for_status()
        entries = json.dumps([{member: version * 100 + number} for number in range(50)])
        httpx.post(path, content=entries, headers={"content-type": "application/json"}).raise_for_status()


def as_the_server_shows(url: str) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = httpx.get(f"{url}/v1/stream/{STREAM}").json()
    return shown


def entries_of(frame: DataFrame) -> list[dict[str, Any]]:
    return [json.loads(row.data) for row in frame.orderBy("seq").collect()]


def load(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("topics").options(topic=STREAM, minPartitions="3", **options).load()


def test_both_forms_of_the_entries(spark: SparkSession, archiving: LiveServer, tmp_path: Path) -> None:
    shown, written = as_the_server_shows(archiving.url), [*"a" * 50, *"b" * 50, *"c" * 50]
    assert [*map("".join, shown)] == ["c"] * 150
    for place in ({"mode": "http"}, {"path": str(tmp_path / "data")}):
        raw = entries_of(load(spark, url=archiving.url, **place))
        assert [*map("".join, raw)] == written
        assert entries_of(load(spark, url=archiving.url, promoted="true", **place)) == shown
    frame = spark.readStream.format("topics").options(
        topic=STREAM, url=archiving.url, promoted="true", startingOffsets="earliest"
    )  # fmt: skip
    seen: list[dict[str, Any]] = []
    query = (
        frame.load()
        .writeStream.foreachBatch(lambda batch, number: seen.extend(entries_of(batch)))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert seen == shown


def test_the_archive_keeps_one_and_shows_both(spark: SparkSession, archiving: LiveServer, tmp_path: Path) -> None:
    run_all(pipeline(spark, tmp_path))
    place = str(tmp_path / "data" / "archive")
    shown = as_the_server_shows(archiving.url)
    raw = entries_of(archived_records(spark, place, STREAM))
    assert [*map("".join, raw)] == [*"a" * 50, *"b" * 50, *"c" * 50][: len(raw)]
    with Client(archiving.url) as client:
        versions = ask_versions(client, [STREAM, "not there"])
        assert entries_of(archived_records(spark, place, STREAM, versions)) == shown[: len(raw)]
        # Entries that the log no longer has are read from the archive, in the same form.
        client.put_topic(STREAM, {"cap_records": 60})
        client.append(STREAM, {"c": 1})
    whole = entries_of(load(spark, url=archiving.url, archive=place, promoted="true"))
    assert whole == [*shown, {"c": 1}]


def test_members_of_the_entries_are_columns(spark: SparkSession, archiving: LiveServer, tmp_path: Path) -> None:
    shown = as_the_server_shows(archiving.url)

    def entries(frame: DataFrame) -> list[dict[str, Any]]:
        return [{"c": json.loads(row.c)} for row in frame.orderBy("_seq").collect()]

    for place in ({"mode": "http"}, {"path": str(tmp_path / "data")}):
        frame = load(spark, url=archiving.url, typed="true", **place)
        assert frame.columns == ["_seq", "_ts", "_node", "_tag", "_meta", "_rest", "c"]
        assert entries(frame) == shown
    options = {"topic": STREAM, "url": archiving.url, "typed": "true", "startingOffsets": "earliest"}
    seen: list[dict[str, Any]] = []
    query = (
        spark.readStream.format("topics")
        .options(**options)
        .load()
        .writeStream.foreachBatch(lambda batch, number: seen.extend(entries(batch)))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert seen == shown
    chosen = spark.read.format("topics").schema("c string").options(**options).load()
    assert chosen.where("c = '301'").count() == 1
    # A DataFrame is a snapshot of its moment, columns included; a later load has the later columns.
    text = {"type": "string"}
    described = {"type": "object", "required": ["c", "d"], "properties": {"c": {}, "d": text}}
    added = lens(STREAM, 3, {"op": "add", "path": "/d", "schema": text, "default": "then"})
    path = f"{archiving.url}/v1/stream/{STREAM}/_schema"
    httpx.post(path, json={"schema": described, "lens": added}).raise_for_status()
    assert entries(frame) == shown
    assert load(spark, url=archiving.url, typed="true").columns[-2:] == ["c", "d"]


def test_objects_and_arrays_are_structs_and_lists(spark: SparkSession, archiving: LiveServer, tmp_path: Path) -> None:
    path = f"{archiving.url}/v1/stream/nested"
    httpx.put(path, headers={"content-type": "application/json"}).raise_for_status()
    httpx.post(f"{path}/_schema", json={"schema": NESTED}).raise_for_status()
    httpx.post(path, json=[nested(n) for n in range(100)]).raise_for_status()
    frame = spark.read.format("topics").options(topic="nested", url=archiving.url, typed="true").load()
    chosen = frame.where("place.city = 'c7'").selectExpr("id", "price", "tags[0] AS tag", "size(stops) AS stops")
    assert chosen.collect() == [(7, Decimal("7.25"), "t7", 3)]
    assert frame.selectExpr("explode(stops) AS stop").where("stop.city = 'x'").count() == 100
