"""Records whose segments are in an object store: Spark's tasks read them there, and the rows equal the records of
diff."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.http.live import LiveServer
from tests.s3 import S3Server
from tests.spark.waiting_for import all_cold, of_diff, of_frame, wait_until
from topics.cli import main
from topics.log.layout import Layout
from topics.log.object_store.tiered_fs import guest_files
from topics.model.settings import Settings
from topics.spark.archive.archive_reader import archived_records
from topics.spark.archive.ledger import ArchiveStore
from topics.spark.pipeline.executors import SparkExecutor
from topics.spark.pipeline.pipeline_settings import files_of
from topics.spark.pipeline.pipeline_worker import make_pipeline
from topics.system.clock import SystemClock
from topics_client import Client, NewRecord

SOON = {"segment_max_events": "50", "snapshot_interval_ms": "200", "hot_retain_segments": "0", "pipeline": "off"}


def test_rows_from_an_object_store_are_those_of_diff(
    spark: SparkSession, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.make_bucket("spark") + "/cold"
    data = str(tmp_path / "data")
    with LiveServer(tmp_path, **SOON, cold_dir=url, archive="1") as server, Client(server.url) as client:
        for first in range(0, 200, 10):
            client.append_many("orders", [NewRecord({"n": n}, f"t{n % 3}") for n in range(first, first + 10)])
        wait_until(lambda: all_cold(client, tmp_path, 4), "every segment is in the store")
        client.delete("orders", match="t1")
        client.delete("orders", before_seq=60)
        # The effect of the checkpoint of a clean stop: deletes in the objects, one segment less.
        server.stop()
        server.start()
        expected = of_diff(client, "orders")
        assert 0 < len(expected) < 200
        server.stop()

        options = {"path": data, "coldDir": url, "topic": "orders", "mode": "segments"}
        frame = spark.read.format("topics").options(**options).option("minPartitions", 2).load()
        assert of_frame(frame) == expected

        settings = Settings(data_dir=data, cold_dir=url, archive="1")
        made = make_pipeline(settings, guest_files(url), SparkExecutor(spark, url), SystemClock())
        while made.round():
            pass
        rows = archived_records(spark, f"{data}/archive", "orders").collect()
        assert sorted((row.seq, row.data) for row in rows) == [(row[0], row[5]) for row in expected]

        s3.down()
        try:
            with pytest.raises(PySparkException, match="not available"):
                spark.read.format("topics").options(**options).load().collect()
        finally:
            s3.up()


def test_an_archive_may_be_in_an_object_store(spark: SparkSession, s3: S3Server, tmp_path: Path) -> None:
    bucket, data = s3.make_bucket("archive"), str(tmp_path / "data")
    cold, archive = f"{bucket}/cold", f"{bucket}/kept/archive"
    settings = Settings(data_dir=data, cold_dir=cold, archive="1", archive_dir=archive)
    with (
        LiveServer(tmp_path, **SOON, cold_dir=cold, archive="1", archive_dir=archive) as server,
        Client(server.url) as client,
    ):
        for first in range(0, 200, 10):
            client.append_many("orders", [NewRecord({"n": n}, f"t{n % 3}") for n in range(first, first + 10)])
        wait_until(lambda: all_cold(client, tmp_path, 4), "every segment is in the store")
        executor = SparkExecutor(spark, cold, archive)

        def archived() -> list[tuple[int, str]]:
            made = make_pipeline(settings, files_of(settings), executor, SystemClock())
            while made.round():
                pass
            assert made.status.quarantined == ()
            return sorted((row.seq, row.data) for row in archived_records(spark, archive, "orders").collect())

        assert archived() == [(n + 1, f'{{"n":{n}}}') for n in range(200)]
        client.delete("orders", match="t1")
        client.put_topic("orders", {"cap_records": 30})
        client.append("orders", {"n": 200})
        server.stop()
        server.start()
        expected = [(n + 1, f'{{"n":{n}}}') for n in range(200) if n % 3 != 1]
        assert archived() == expected
        options = {"url": server.url, "topic": "orders", "archive": archive}
        whole = spark.read.format("topics").options(**options).load().collect()
        assert sorted((row.seq, row.data) for row in whole) == [*expected, (201, '{"n":200}')]
        assert not (tmp_path / "s3:").exists()
        client.delete_topic("orders")
        server.stop()
        assert archived() == []
        # Unreferenced files are removed ten minutes later.
        state = ArchiveStore(files_of(settings), archive).load()
        assert (state.topics, state.files) == ({}, {})
        assert all(files_of(settings).exists(f"{archive}/{path}") for path in state.retired)


def test_verify_and_repair_work_on_an_object_store(
    s3: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, data = s3.make_bucket("tools") + "/cold", str(tmp_path / "data")
    with LiveServer(tmp_path, **SOON, cold_dir=url) as server, Client(server.url) as client:
        client.append_many("orders", [{"n": n} for n in range(100)])
        wait_until(lambda: all_cold(client, tmp_path, 1), "the segment is in the store")
        server.stop()
        assert main(["verify", data, "--cold-dir", url]) == 0
        assert "sound" in capsys.readouterr().out
        s3.down()
        try:
            for command in ("verify", "repair"):
                assert main([command, data, "--cold-dir", url]) == 1
                assert "the object store is not available" in capsys.readouterr().err
        finally:
            s3.up()
        fs = guest_files(url)
        # The two streams of the server itself came first.
        path = Layout(data, url).segment(3, 1, cold=True) + ".data"
        file = fs.open(path, write=True)
        file.write_at(200, b"#")
        file.sync()
        assert main(["verify", data, "--cold-dir", url]) == 1
        assert main(["repair", data, "--cold-dir", url]) == 0
        assert main(["verify", data, "--cold-dir", url]) == 0
        assert fs.exists(f"{url}/damaged-1")
        server.start()
        page = client.diff("orders", 0)
        assert page.tombstone is not None and page.tombstone.gap_from == 1
