"""Families over HTTP with their segments in the cold tier: the same answers wherever the companions are."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from tests.http.live import LiveServer, wait_until_ready
from tests.s3 import S3Server
from tests.spark.waiting_for import wait_until
from topics.cli import main
from topics.log.catalog_files import read_catalog
from topics.log.layout import Layout
from topics.log.object_store.tiered_fs import guest_files
from topics.log.posix import PosixFileSystem
from topics.search.file_index.manifest import IndexManifest, IndexStore
from topics.spark.index_builds.index_plan import IndexRules
from topics.spark.pipeline.executors import InlineExecutor, SparkExecutor
from topics.spark.pipeline.index_product import IndexProduct
from topics.spark.pipeline.rounds import Executor, Pipeline
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics_client import Client

COLD = {
    "segment_max_events": "50",
    "snapshot_interval_ms": "200",
    "hot_retain_segments": "0",
    "pipeline": "off",
    "streams_registry": "0",
    "streams_metrics": "0",
}
ENTRIES = 300
_FIELDS: dict[str, dict[str, Any]] = {
    "time": {"kind": "date", "column": True, "sortable": True},
    "n": {"kind": "integer", "exact": True, "column": True, "sortable": True},
    "word": {"kind": "text", "analyzer": "unicode_word_v1", "positions": True},
}
SEARCH = {
    "primaryTimestampField": "time",
    "fields": {
        name: {**field, "bindings": [{"version": 1, "jsonPointer": f"/{name}"}]} for name, field in _FIELDS.items()
    },
}
QUERIES: list[dict[str, Any]] = [
    {"q": "n:>=290", "sort": ["offset:asc"], "size": 100},
    {"q": "word:seven", "sort": ["time:desc"], "size": 100},
    {"q": 'word:"number seven" n:<50', "sort": ["n:desc"], "size": 100},
    {"q": "n:17", "sort": ["offset:desc"], "size": 5},
]
SMALL_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven"]


class Cold:
    """A stream whose segments are in the cold tier, and a pipeline that is run by hand."""

    def __init__(self, folder: Path, url: str, executor: Executor) -> None:
        self.data, self.url = folder / "data", url
        self.layout = Layout(str(self.data), url)
        self._executor = executor

    def fill(self, server: LiveServer) -> None:
        path = f"{server.url}/v1/stream/logs"
        assert httpx.put(path, headers={"content-type": "application/json"}).status_code == 201
        described = httpx.post(f"{path}/_schema", json={"schema": {"type": "object"}, "search": SEARCH})
        assert described.status_code == 200, described.text
        for first in range(0, ENTRIES, 50):
            entries = [{"n": n, "time": n, "word": f"number {SMALL_WORDS[n % 8]}"} for n in range(first, first + 50)]
            assert httpx.post(path, json=entries).status_code == 204
        with Client(server.url) as client:
            wait_until(lambda: self._all_cold(client), "every segment is in the cold tier")

    def _all_cold(self, client: Client) -> bool:
        client.append("busy", 1)  # Without writes there would be no checkpoint.
        catalog = read_catalog(PosixFileSystem(), self.layout)
        known = catalog.by_name().get("logs") if catalog is not None else None
        return known is not None and len(known.segments) == 6 and all(segment.cold for segment in known.segments)

    def run(self) -> None:
        fs = guest_files(self.url)
        product = IndexProduct(fs, self.layout, IndexRules(retire_ms=0), SystemEntropy())
        made = Pipeline(fs, self.layout, [product], self._executor, SystemClock(), acks_deletes=False)
        while made.round():
            assert made.status.quarantined == ()

    @property
    def store(self) -> IndexStore:
        return IndexStore(guest_files(self.url), self.layout)

    def manifest(self) -> IndexManifest:
        (topic_id,) = self.store.topic_ids()
        manifest = self.store.load(topic_id)
        assert manifest is not None
        return manifest


def answers(server: LiveServer) -> tuple[list[list[int]], int]:
    """Returns the results of all queries, and how many segments the companions answered for in all of them."""
    found, indexed = [], 0
    for query in QUERIES:
        answer = httpx.post(f"{server.url}/v1/stream/logs/_search", json=query, timeout=60)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["coverage"]["complete"], body["coverage"]
        found.append([hit["source"]["n"] for hit in body["hits"]])
        indexed += body["coverage"]["indexed_segments"]
    return found, indexed


def expected() -> list[list[int]]:
    sevens = [n for n in range(ENTRIES) if n % 8 == 7]
    return [list(range(290, 300)), sevens[::-1], [n for n in sevens if n < 50][::-1], [17]]


def fetches(server: LiveServer) -> dict[str, int]:
    found = httpx.get(f"{server.url}/v0/metrics", headers={"accept": "application/json"}).json()
    samples = found["topics_search_companion_fetches_total"]
    return {one["labels"]["outcome"]: int(one["value"]) for one in samples if one["value"]}


def restart(server: LiveServer) -> None:
    server.stop()
    start(server)


def start(server: LiveServer) -> None:
    server.start()
    wait_until_ready(server.url)


def in_the_cold_tier(cold: Cold) -> None:
    """Every companion is there, and none in the data folder."""
    manifest = cold.manifest()
    assert manifest.files and all(file.cold for file in manifest.files)
    assert cold.store.files(manifest.topic_id) == []
    assert set(cold.store.files(manifest.topic_id, cold=True)) == {file.name for file in manifest.files}


def status(server: LiveServer) -> dict[str, Any]:
    body: dict[str, Any] = httpx.get(f"{server.url}/v1/stream/logs/_index_status").json()
    return body


def check_details(server: LiveServer, manifest: IndexManifest) -> None:
    """That uploads of the pipeline, fetches of the server, objects and local copies are reported."""
    details = httpx.get(f"{server.url}/v1/stream/logs/_details").json()
    requests = {one["artifact"]: one for one in details["object_store_requests"]["by_artifact"]}["bundled_companion"]
    assert int(requests["puts"]) == manifest.uploads >= len(manifest.files) <= int(requests["gets"])
    storage, nbytes = details["storage"], sum([file.bytes for file in manifest.files])
    assert storage["object_storage"]["bundled_companion_object_count"] == len(manifest.files)
    assert int(storage["object_storage"]["indexes_bytes"]) > nbytes
    assert storage["local_storage"]["companion_cache_bytes"] == str(nbytes)


def test_index_files_in_a_cold_folder_answer_as_those_in_the_data_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(tmp_path / "cold")
    cold = Cold(tmp_path, url, InlineExecutor(guest_files(url)))
    with LiveServer(tmp_path, **COLD, cold_dir=url) as server:
        cold.fill(server)
        assert answers(server)[0] == expected()
        cold.run()
        in_the_cold_tier(cold)
        assert answers(server)[0] == expected()
        restart(server)
        assert answers(server) == (expected(), 6 * len(QUERIES))
        assert status(server)["bundled_companions"]["object_count"] == len(cold.manifest().files)
        server.stop()
        assert main(["verify", str(cold.data), "--cold-dir", url]) == 0
        assert "families" not in capsys.readouterr().out
        start(server)
        httpx.delete(f"{server.url}/v1/stream/logs")
        server.stop()
        cold.run()
        assert cold.store.topic_ids() == cold.store.topic_ids(cold=True) == []


def test_index_files_in_an_object_store_answer_from_a_bounded_cache(
    spark: SparkSession, s3: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = s3.make_bucket("families") + "/cold"
    cold = Cold(tmp_path, url, SparkExecutor(spark, url))
    with LiveServer(tmp_path, **COLD, cold_dir=url) as server:
        cold.fill(server)
        assert answers(server)[0] == expected()
        cold.run()
        in_the_cold_tier(cold)
        count = len(cold.manifest().files)
        restart(server)
        assert answers(server) == (expected(), 6 * len(QUERIES))
        assert fetches(server) == {"ok": count}
        check_details(server, cold.manifest())
        # A cache that a start empties, so the store has to be asked for companions; entries that were read are nearby.
        restart(server)
        assert len(httpx.get(f"{server.url}/v1/stream/logs", timeout=60).json()) == ENTRIES
        s3.down()
        try:
            assert answers(server) == (expected(), 0)
            assert fetches(server) == {"unavailable": fetches(server)["unavailable"]}
        finally:
            s3.up()
        wait_until(lambda: answers(server) == (expected(), 6 * len(QUERIES)), "companions are fetched again")
        server.stop()
        assert main(["verify", str(cold.data), "--cold-dir", url]) == 0
        assert "families" not in capsys.readouterr().out
    for reported in tmp_path.glob("port-*"):
        reported.unlink()  # Another server reports its port there.
    with LiveServer(tmp_path, **COLD, cold_dir=url, search_cache_bytes="100") as server:
        assert answers(server) == (expected(), 0)
        assert fetches(server) == {}
        httpx.delete(f"{server.url}/v1/stream/logs")
        server.stop()
        cold.run()
        assert cold.store.topic_ids() == cold.store.topic_ids(cold=True) == []
