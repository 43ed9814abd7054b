"""Index families on a real Spark: sealed entries get companions, and the answers stay the same."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from tests.http.live import LiveServer, wait_until_ready
from tests.spark.waiting_for import checkpointed, sealed_to, wait_until
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.search.file_index.manifest import IndexManifest, IndexStore
from topics.spark.index_builds.index_plan import IndexRules
from topics.spark.pipeline.executors import SparkExecutor
from topics.spark.pipeline.index_product import IndexProduct
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.task_packing import FrameRules
from topics.system.clock import SystemClock
from topics.testing import SeededEntropy
from topics_client import Client

JSON = {"content-type": "application/json"}
SOON = {"segment_max_events": "50", "snapshot_interval_ms": "200"}


def bound(kind: str, pointer: str, **flags: Any) -> dict[str, Any]:
    more = {"analyzer": "unicode_word_v1"} if kind == "text" else {}
    return {"kind": kind, "bindings": [{"version": 1, "jsonPointer": pointer}], **more, **flags}


SEARCH: dict[str, Any] = {
    "primaryTimestampField": "time",
    "fields": {
        "time": bound("date", "/time", column=True, sortable=True),
        "service": bound("keyword", "/service", exact=True, prefix=True, sortable=True),
        "status": bound("integer", "/status", exact=True, column=True, sortable=True),
        "ms": bound("float", "/ms", column=True, sortable=True, aggregatable=True),
        "message": bound("text", "/message", positions=True),
    },
    "rollups": {
        "load": {
            "dimensions": ["service"],
            "intervals": ["1m"],
            "measures": {
                "requests": {"kind": "count"},
                "latency": {"kind": "summary", "field": "ms", "histogram": "log2_v1"},
            },
        }
    },
}
SCHEMA = {"type": "object", "required": ["status"], "properties": {"status": {"type": "integer"}}}
QUESTIONS: list[dict[str, Any]] = [
    {"q": "service:s-3"},
    {"q": "service:s-1*", "sort": ["ms:asc"]},
    {"q": "status:>=500 -service:s-2", "sort": ["time:desc"]},
    {"q": 'message:"card declined"'},
    {"q": "declined", "size": 7},
    {"q": "", "sort": ["offset:asc"], "size": 5},
    {"q": "has:message", "sort": ["service:asc", "ms:desc"], "track_total": True},
]
AGGREGATES = [
    {"rollup": "load", "from": 0, "to": 10_000_000, "interval": "1m"},
    {"rollup": "load", "from": 30_000, "to": 900_000, "interval": "1m", "group_by": ["service"]},
    {"rollup": "load", "from": 0, "to": 10_000_000, "interval": "1m", "q": "status:500"},
]


class Stream:
    """A stream over HTTP, and everything that is asked about it."""

    def __init__(self, url: str, name: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=60)
        self.path = f"/v1/stream/{name}"

    def close(self) -> None:
        self._http.close()

    def create(self) -> None:
        assert self._http.put(self.path, headers=JSON).status_code == 201
        self.describe({"schema": SCHEMA, "routingKey": {"jsonPointer": "/service", "required": True}, "search": SEARCH})

    def describe(self, document: dict[str, Any]) -> None:
        answer = self._http.post(f"{self.path}/_schema", json=document)
        assert answer.status_code == 200, answer.text

    def append(self, first: int, count: int, **more: Any) -> None:
        entries = [
            {
                "time": number * 1000,
                "service": f"s-{number % 13}",
                "status": (200, 404, 500)[number % 3],
                "ms": number / 4,
                "message": "card declined" if number % 5 else f"declined card {number}",
                "more": "x" * 1000,
                **more,
            }
            for number in range(first, first + count)
        ]
        # A segment ends with a request, so these are several.
        for begin in range(0, count, 25):
            body = json.dumps(entries[begin : begin + 25])
            assert self._http.post(self.path, content=body, headers=JSON).status_code == 204

    def answers(self) -> dict[str, Any]:
        """Returns its answers to every question, without the counts of the work done."""
        found: dict[str, Any] = {}
        for body in QUESTIONS:
            answer = self._http.post(f"{self.path}/_search", json=body)
            assert answer.status_code == 200, answer.text
            reported = answer.json()
            assert reported["coverage"]["complete"]
            found[json.dumps(body)] = (reported["hits"], reported["total"], reported["next_search_after"])
        for body in AGGREGATES:
            answer = self._http.post(f"{self.path}/_aggregate", json=body)
            assert answer.status_code == 200, answer.text
            found[json.dumps(body)] = answer.json()["buckets"]
        found["keys"] = self._http.get(f"{self.path}/_routing_keys?limit=500").json()["keys"]
        return found

    def coverage(self, body: dict[str, Any]) -> dict[str, Any]:
        return dict(self._http.post(f"{self.path}/_search", json=body).json()["coverage"])

    def sums(self, body: dict[str, Any]) -> dict[str, Any]:
        return dict(self._http.post(f"{self.path}/_aggregate", json=body).json()["coverage"])

    def status(self) -> dict[str, Any]:
        return dict(self._http.get(f"{self.path}/_index_status").json())


def pipeline(spark: SparkSession, folder: Path, rules: FrameRules | None = None) -> Pipeline:
    layout = Layout(str(folder / "data"))
    files = PosixFileSystem()
    product = IndexProduct(files, layout, IndexRules(fan_out=2), SeededEntropy(7))
    return Pipeline(files, layout, [product], SparkExecutor(spark), SystemClock(), rules, acks_deletes=False)


def run_all(made: Pipeline) -> None:
    while made.round():
        pass


def manifest_of(folder: Path) -> IndexManifest:
    store = IndexStore(PosixFileSystem(), Layout(str(folder / "data")))
    (topic_id,) = store.topic_ids()
    found = store.load(topic_id)
    assert found is not None
    return found


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveServer]:
    """A server that holds little of a stream in memory, so that queries need companions, or a scan."""
    with LiveServer(tmp_path, **SOON, pipeline="off", search_stream_bytes="65536") as server:
        yield server


def evolve(stream: Stream) -> None:
    """Another version: old entries are judged by their new names, before and after all is indexed anew."""
    lens = {"apiVersion": "durable.lens/v1", "schema": "logs", "from": 1, "to": 2}
    ops = [{"op": "rename", "from": "/status", "to": "/code"}]
    renamed = {"type": "object", "required": ["code"], "properties": {"code": {"type": "integer"}}}
    stream.describe({"schema": renamed, "lens": {**lens, "ops": ops}})
    search = json.loads(json.dumps(SEARCH))
    search["fields"]["status"]["bindings"].append({"version": 2, "jsonPointer": "/code"})
    stream.describe({"search": search})


def test_search_results_are_the_same_after_index_builds(spark: SparkSession, live: LiveServer, tmp_path: Path) -> None:
    stream = Stream(live.url, "logs")
    data = tmp_path / "data"
    with Client(live.url) as client:
        stream.create()
        stream.append(0, 330)
        wait_until(lambda: sealed_to(data, "logs") >= 300, "it is sealed")
        before = stream.answers()
        assert stream.coverage(QUESTIONS[0])["indexed_segments"] == 0
        made = pipeline(spark, tmp_path)
        run_all(made)
        assert made.status.quarantined == ()
        wait_until(lambda: stream.coverage(QUESTIONS[2])["indexed_segments"] >= 4, "companions are asked")
        assert stream.answers() == before
        assert stream.coverage(QUESTIONS[2])["index_families_used"] == ["col", "exact"]
        assert stream.sums(AGGREGATES[0])["used_rollups"]
        # Deletes are masked at once, before any checkpoint and any round.
        client.delete("logs", before_seq=40)
        client.delete("logs", match="s-3")
        deleted = stream.answers()
        assert not any(hit["fields"]["service"] == "s-3" for hits, *_ in list(deleted.values())[:7] for hit in hits)
        checkpointed(client, data)
        run_all(made)
        assert stream.answers() == deleted
        evolve(stream)
        evolved = stream.answers()
        assert [len(hits) for hits, *_ in list(evolved.values())[:7]] == [
            len(hits) for hits, *_ in list(deleted.values())[:7]
        ]
        stream.append(330, 100, code=500)
        wait_until(lambda: sealed_to(data, "logs") >= 400, "the rest is sealed")
        grown = stream.answers()
        run_all(made)
        wait_until(lambda: stream.status()["search_families"][0]["stale_segment_count"] == 0, "all is indexed anew")
        assert stream.answers() == grown
        assert stream.status()["search_families"][0]["fully_indexed_uploaded_segments"]
        for first in (430, 490):
            stream.append(first, 60, code=404)
            wait_until(lambda first=first: sealed_to(data, "logs") >= first + 10, "more is sealed")  # type: ignore[misc]
            grown = stream.answers()
            run_all(made)
            assert stream.answers() == grown
        assert any(file.level for file in manifest_of(tmp_path).files)
        assert stream.answers() == grown
        stream.close()
    live.kill()
    live.start()
    stream = Stream(live.url, "logs")
    wait_until_ready(live.url)
    assert stream.answers() == grown
    assert stream.coverage(QUESTIONS[2])["indexed_segments"] > 0
    stream.close()


def test_the_routing_key_alone_is_indexed(spark: SparkSession, live: LiveServer, tmp_path: Path) -> None:
    stream = Stream(live.url, "keyed")
    assert httpx.put(live.url + stream.path, headers=JSON).status_code == 201
    stream.describe({"routingKey": {"jsonPointer": "/service", "required": True}})
    stream.append(0, 120)
    wait_until(lambda: sealed_to(tmp_path / "data", "keyed") >= 100, "it is sealed")
    run_all(pipeline(spark, tmp_path))
    answer = httpx.get(f"{live.url}{stream.path}/_routing_keys?limit=500").json()
    assert answer["keys"] == sorted(f"s-{number}" for number in range(13))
    wait_until(
        lambda: httpx.get(f"{live.url}{stream.path}/_routing_keys").json()["coverage"]["indexed_segments"] >= 1,
        "companions are asked",
    )
    stream.close()


def test_a_damaged_segment_leaves_its_stream_out_and_no_other(
    spark: SparkSession, live: LiveServer, tmp_path: Path
) -> None:
    streams = [Stream(live.url, name) for name in ("bad", "good")]
    for stream, name in zip(streams, ("bad", "good"), strict=True):
        stream.create()
        stream.append(0, 120)
        wait_until(lambda name=name: sealed_to(tmp_path / "data", name) >= 100, "it is sealed")  # type: ignore[misc]
    good = streams[1].answers()
    # The two streams of the server itself came first.
    with open(Layout(str(tmp_path / "data")).segment(3, 1) + ".idx", "r+b") as file:
        file.seek(60)
        file.write(b"????")
    made = pipeline(spark, tmp_path)
    run_all(made)
    assert [(one.topic, one.product) for one in made.status.quarantined] == [("bad", "families")]
    assert made.status.lag_segments >= 1
    wait_until(lambda: streams[1].coverage(QUESTIONS[2])["indexed_segments"] >= 1, "companions are asked")
    assert streams[1].answers() == good
    for stream in streams:
        stream.close()


@pytest.mark.slow
def test_a_server_makes_them_by_itself(tmp_path: Path) -> None:
    soon = {**SOON, "pipeline_poll_ms": "200", "pipeline_priority": "normal", "spark_memory": "512m"}
    with LiveServer(tmp_path, **soon, search_families="auto", search_stream_bytes="65536") as server:
        with Client(server.url) as client:
            client.append_many("plain", [{"n": number} for number in range(120)])
            wait_until(lambda: sealed_to(tmp_path / "data", "plain") >= 100, "it is sealed")
            assert httpx.get(server.url + "/v0/pipeline").json()["state"] == "idle"
        stream = Stream(server.url, "logs")
        stream.create()
        stream.append(0, 120)
        wait_until(lambda: stream.coverage(QUESTIONS[2])["indexed_segments"] >= 1, "companions are asked")
        reported = httpx.get(server.url + "/v0/pipeline").json()
        assert (reported["failures"], reported["restarts"]) == (0, 0)
        stream.close()
        server.stop()


def test_many_small_streams_and_a_large_one_are_one_job_a_round(
    spark: SparkSession, live: LiveServer, tmp_path: Path
) -> None:
    """However many tasks it has, and however often it is published; and so are rounds that merge and read at once."""
    names = [f"small-{number}" for number in range(24)]
    streams = {name: Stream(live.url, name) for name in (*names, "large")}
    for name, stream in streams.items():
        stream.create()
        stream.append(0, 50 if name in names else 600)
    data = tmp_path / "data"
    for name in streams:
        wait_until(lambda name=name: sealed_to(data, name) >= (50 if name in names else 600), "it is sealed")  # type: ignore[misc]
    made = pipeline(spark, tmp_path, FrameRules(group_bytes=20_000, commit_bytes=40_000))
    jobs = jobs_of(spark)
    assert made.round()
    [first] = jobs_of(spark) - jobs
    assert re.fullmatch(
        r"topics pipeline round 1: families of 25 topics, 0 chores, \d MB in \d+ tasks", reported(spark, first)
    )
    store = IndexStore(PosixFileSystem(), Layout(str(data)))
    manifests = [store.load(topic_id) for topic_id in store.topic_ids()]
    rows = {one.topic: sum(file.rows for file in one.files) for one in manifests if one is not None}
    assert rows == {**dict.fromkeys(names, 50), "large": 600}
    # A task takes many streams, and publishing while the job goes on costs no stream a file more.
    assert all(len(one.files) == 1 for one in manifests if one is not None and one.topic != "large")
    streams["small-0"].append(50, 50)
    wait_until(lambda: sealed_to(data, "small-0") >= 100, "it is sealed")
    jobs = jobs_of(spark)
    assert made.round()
    [second] = jobs_of(spark) - jobs
    assert re.match(r"topics pipeline round 2: families of 1 topics, [1-9]", reported(spark, second))
    for stream in streams.values():
        stream.close()


def jobs_of(spark: SparkSession) -> set[int]:
    return set(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def reported(spark: SparkSession, job: int) -> str:
    """The description of a job, as Spark's pages show it."""
    return str(spark.sparkContext._jsc.sc().statusStore().job(job).description().get())
