"""The pipeline on a real Spark: beside a server, by hand, killed, and poisoned."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from tests.http.live import LiveServer
from tests.spark.waiting_for import checkpointed, of_diff, sealed_to, wait_until
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings
from topics.spark.archive.archive_reader import archived_records
from topics.spark.archive.ledger import ArchiveStore
from topics.spark.pipeline.executors import SparkExecutor
from topics.spark.pipeline.pipeline_worker import make_pipeline
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.task_packing import FrameRules
from topics.system.clock import SystemClock
from topics_client import Client

SOON = {"segment_max_events": "50", "snapshot_interval_ms": "200"}


@pytest.fixture
def archiving(tmp_path: Path) -> Iterator[LiveServer]:
    """A server with an archive, whose pipeline is run by the tests."""
    with LiveServer(tmp_path, **SOON, archive="1", pipeline="off") as live:
        yield live


def pipeline(spark: SparkSession, folder: Path, **settings: str) -> Pipeline:
    chosen = Settings(data_dir=str(folder / "data"), archive="1", **settings)  # type: ignore[arg-type]
    return make_pipeline(chosen, PosixFileSystem(), SparkExecutor(spark), SystemClock())


def run_all(made: Pipeline) -> None:
    while made.round():
        pass


def archived(spark: SparkSession, folder: Path, topic: str) -> dict[int, str]:
    rows = archived_records(spark, str(folder / "data" / "archive"), topic).collect()
    assert len({row.seq for row in rows}) == len(rows)
    return {row.seq: row.data for row in rows}


def tabled(folder: Path, topic: str) -> dict[int, str]:
    """The same by the table, and by a reader that has never heard of Spark or of this program."""
    rows = StaticTable.from_metadata(str(folder / "data" / "archive")).scan(f"topic = '{topic}'").to_arrow()
    assert len(set(rows["seq"].to_pylist())) == rows.num_rows
    return dict(zip(rows["seq"].to_pylist(), rows["data"].to_pylist(), strict=True))


def fill(client: Client, folder: Path, topic: str, count: int = 100) -> None:
    for first in range(0, count, 10):
        client.append_many(topic, [{"n": n} for n in range(first, first + 10)])
        client.append(topic, {"tagged": first}, tag=f"t{first}")
    wait_until(lambda: sealed_to(folder / "data", topic) >= count, f"{topic} is sealed")


def test_many_topics_are_archived_in_one_job_and_deletes_follow(
    spark: SparkSession, archiving: LiveServer, tmp_path: Path
) -> None:
    with Client(archiving.url) as client:
        for topic in ("a", "b", "c"):
            fill(client, tmp_path, topic)
        made = pipeline(spark, tmp_path)
        tracker = spark.sparkContext.statusTracker()
        before = len(tracker.getJobIdsForGroup(None))
        run_all(made)
        assert len(tracker.getJobIdsForGroup(None)) - before == 1
        for topic in ("a", "b", "c"):
            rows = {seq: data for seq, *_, data in of_diff(client, topic)}
            found = archived(spark, tmp_path, topic)
            assert found.items() <= rows.items()
            assert len(found) >= 100
            assert tabled(tmp_path, topic) == found
        client.delete("a", match="t0")
        client.delete("a", before_seq=5)
        client.delete_topic("b")
        checkpointed(client, tmp_path / "data")
        run_all(made)
        assert archived(spark, tmp_path, "a").keys() & {1, 2, 3, 4, 11} == set()
        assert archived(spark, tmp_path, "b") == tabled(tmp_path, "b") == {}
        assert archived(spark, tmp_path, "a") == tabled(tmp_path, "a")
        again = pipeline(spark, tmp_path)
        store = ArchiveStore(PosixFileSystem(), str(tmp_path / "data/archive"))
        before_again = store.load().topics
        run_all(again)
        assert store.load().topics == before_again


def test_a_long_round_is_one_job_and_is_published_while_it_runs(
    spark: SparkSession, archiving: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [f"t{number}" for number in range(12)]
    with Client(archiving.url) as client:
        for topic in topics:
            fill(client, tmp_path, topic)
    settings = Settings(data_dir=str(tmp_path / "data"), archive="1", search_families="off")
    rules = FrameRules(group_bytes=1, commit_bytes=1)
    made = make_pipeline(settings, PosixFileSystem(), SparkExecutor(spark), SystemClock(), frame=rules)
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    running: list[bool] = []
    inner = ArchiveStore.commit

    def commit(*arguments: Any) -> None:
        running.append(bool(tracker.getActiveJobsIds()))
        inner(*arguments)

    monkeypatch.setattr(ArchiveStore, "commit", commit)
    assert made.round()
    assert len(set(tracker.getJobIdsForGroup(None)) - before) == 1
    # It had more than twenty tasks, and the results of the first ones were published long before the last one began.
    assert sum(running) >= 3
    for topic in topics:
        assert len(archived(spark, tmp_path, topic)) >= 100


def test_a_batch_may_begin_with_what_only_the_archive_has(
    spark: SparkSession, archiving: LiveServer, tmp_path: Path
) -> None:
    with Client(archiving.url) as client:
        fill(client, tmp_path, "orders")
        rows = {seq: data for seq, *_, data in of_diff(client, "orders")}
        run_all(pipeline(spark, tmp_path))
        client.put_topic("orders", {"cap_records": 20})
        assert len(of_diff(client, "orders")) == 20
        given = {"url": archiving.url, "topic": "orders"}
        whole = spark.read.format("topics").options(**given, archive=str(tmp_path / "data/archive")).load().collect()
        assert {row.seq: row.data for row in whole} == rows
        assert len(whole) == len(rows)


def test_damaged_topic_is_quarantined_by_a_real_job(spark: SparkSession, archiving: LiveServer, tmp_path: Path) -> None:
    with Client(archiving.url) as client:
        fill(client, tmp_path, "bad")
        fill(client, tmp_path, "good")
    layout = Layout(str(tmp_path / "data"))
    # The two streams of the server itself came first.
    with open(layout.segment(3, 1) + ".idx", "r+b") as file:
        file.seek(60)
        file.write(b"????")
    made = pipeline(spark, tmp_path)
    run_all(made)
    assert [one.topic for one in made.status.quarantined] == ["bad"]
    assert len(archived(spark, tmp_path, "good")) >= 100
    assert made.status.lag_segments >= 1


def status(server: LiveServer) -> dict[str, object]:
    return dict(httpx.get(server.url + "/v0/pipeline").json())


def test_a_server_keeps_the_pipeline_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    # With the priority that it has by default it would wait for the tests that run beside this one.
    soon = {**SOON, "pipeline_poll_ms": "200", "pipeline_priority": "normal"}
    with LiveServer(tmp_path, **soon, archive="1", spark_memory="512m") as server:
        with Client(server.url) as client:
            assert status(server)["state"] == "idle"
            fill(client, tmp_path, "orders")
            wait_until(lambda: status(server)["records"] != 0, "the pipeline has archived something")
            reported = status(server)
            assert reported["state"] == "running"
            assert reported["failures"] == reported["restarts"] == 0
            metrics = client.metrics()
            assert metrics["topics_pipeline_records_total"] == reported["records"]
            assert metrics["topics_pipeline_running"] == 1
            assert (
                archived(spark, tmp_path, "orders").items() <= {s: d for s, *_, d in of_diff(client, "orders")}.items()
            )
        server.stop()
    assert not processes_of(tmp_path)


def processes_of(folder: Path) -> list[int]:
    """Pipelines that still run on a folder."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                command = Path(f"/proc/{name}/cmdline").read_bytes()
                environment = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            if b"topics.spark.pipeline" in command and str(folder).encode() in environment:
                found.append(int(name))
    return found


@pytest.mark.parametrize("delay_s", [0.0, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.3, 1.0))])
def test_a_killed_run_leaves_the_archive_valid_and_the_next_one_finishes(
    spark: SparkSession, archiving: LiveServer, tmp_path: Path, delay_s: float
) -> None:
    """Kills a real run with SIGKILL, at its first file and a little later."""
    with Client(archiving.url) as client:
        for number in range(6):
            fill(client, tmp_path, f"topic-{number}")
        expected = {f"topic-{n}": {s: d for s, *_, d in of_diff(client, f"topic-{n}")} for n in range(6)}
    data = tmp_path / "data"
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; from topics.cli import main; sys.exit(main(['pipeline', 'run']))"],
        env={**os.environ, "TOPICS_DATA_DIR": str(data), "TOPICS_SPARK_MEMORY": "512m"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        archive = data / "archive"
        wait_until(
            lambda: any(archive.glob("data/day=*/topic_bucket=*/*.parquet")) or child.poll() is not None,
            "a file was written",
        )
        time.sleep(delay_s)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for topic, rows in expected.items():
        assert archived(spark, tmp_path, topic).items() <= rows.items()
    made = pipeline(spark, tmp_path)
    run_all(made)
    for topic, rows in expected.items():
        found = archived(spark, tmp_path, topic)
        assert found.items() <= rows.items()
        assert found.keys() == set(range(1, sealed_to(data, topic) + 1))


def test_export_and_import_bring_a_topic_back(spark: SparkSession, archiving: LiveServer, tmp_path: Path) -> None:
    from topics.spark.transfer import export_topic, import_topic

    access = {"url": archiving.url}
    with Client(archiving.url) as client:
        client.append("orders", {"n": 0}, tag="t", node="n", meta={"k": [1]})
        client.append_many("orders", [{"n": n, "text": 'ä "quoted"\n'} for n in range(1, 30)])
        before = [rest for _, _, *rest in of_diff(client, "orders")]
        for form in ("parquet", "jsonl"):
            target = str(tmp_path / form)
            assert export_topic(spark, "orders", target, form, access) == 30
            assert import_topic(spark, f"copy-{form}", target, form, access) == 30
            assert [rest for _, _, *rest in of_diff(client, f"copy-{form}")] == before
        lines = tmp_path / "lines.jsonl"
        lines.write_text('{"data": 1, "tag": "x"}\n\n{"data": {"a": [2]}}\n')
        assert import_topic(spark, "lines", str(lines), "jsonl", access) == 2
        assert [(tag, data) for _, _, _, tag, _, data in of_diff(client, "lines")] == [("x", "1"), (None, '{"a": [2]}')]
        several = tmp_path / "several"
        several.mkdir()
        # Spark itself would begin with the largest.
        (several / "1.jsonl").write_text('{"data": "first"}\n')
        (several / "2.jsonl").write_text("".join(f'{{"data": {n}}}\n' for n in range(2000)))
        (several / "3.jsonl").write_text('{"data": "last"}\n' * 2)
        assert import_topic(spark, "several", str(several), "jsonl", access) == 2003
        assert [data for *_, data in of_diff(client, "several")] == ['"first"', *map(str, range(2000)), *['"last"'] * 2]


_LONG_ROUND = """
import os
from topics.model.settings import Settings
from topics.spark.pipeline.pipeline_worker import LazySpark, make_pipeline
from topics.spark.pipeline.pipeline_settings import files_of
from topics.spark.pipeline.task_packing import FrameRules
from topics.system.clock import SystemClock

settings = Settings.from_env(os.environ)
rules = FrameRules(group_bytes=1, commit_bytes=1)
make_pipeline(settings, files_of(settings), LazySpark(settings), SystemClock(), frame=rules).round()
"""


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_long_round_costs_only_what_was_not_published(
    spark: SparkSession, archiving: LiveServer, tmp_path: Path
) -> None:
    """One round of many jobs, each a task; killed once some of them are published and most are not."""
    with Client(archiving.url) as client:
        for number in range(40):
            fill(client, tmp_path, f"topic-{number}")
        expected = {f"topic-{n}": {s: d for s, *_, d in of_diff(client, f"topic-{n}")} for n in range(40)}
    data = tmp_path / "data"
    store = ArchiveStore(PosixFileSystem(), str(data / "archive"))
    child = subprocess.Popen(
        [sys.executable, "-c", _LONG_ROUND],
        env={**os.environ, "TOPICS_DATA_DIR": str(data), "TOPICS_ARCHIVE": "1", "TOPICS_SPARK_MEMORY": "512m"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: store.load().number >= 3 or child.poll() is not None, "some of it is published")
        assert child.poll() is None
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    state = store.load()
    published = {one.name: sum(run.rows for run in state.runs_of(one.topic_id)) for one in state.topics.values()}
    assert 0 < sum(published.values()) < sum(len(rows) for rows in expected.values())
    for topic, count in published.items():
        found = archived(spark, tmp_path, topic)
        assert len(found) == count
        assert found.items() <= expected[topic].items()
    made = pipeline(spark, tmp_path)
    run_all(made)
    # Files published before are not built again.
    assert made.status.last_run is not None
    assert made.status.last_run.records + sum(published.values()) == sum(sealed_to(data, topic) for topic in expected)
    for topic, rows in expected.items():
        found = archived(spark, tmp_path, topic)
        assert found.items() <= rows.items()
        assert found.keys() == set(range(1, sealed_to(data, topic) + 1))
