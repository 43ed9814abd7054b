"""Runs by hand as an operator meets them: priority, the script for spark-submit, errors without a traceback."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from tests.http.live import LiveServer
from tests.spark.waiting_for import sealed_to, wait_until
from topics.cli import main
from topics_client import Client

_RUN = (
    "import os, sys; from topics.cli import main; code = main(['pipeline', 'run']);"
    "print('idle', os.sched_getscheduler(0) == os.SCHED_IDLE, flush=True); os._exit(code)"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with LiveServer(
        tmp_path, segment_max_events="10", snapshot_interval_ms="200", archive="1", pipeline="off"
    ) as server:
        with Client(server.url) as client:
            client.append_many("orders", [{"n": n} for n in range(40)])
            wait_until(lambda: sealed_to(tmp_path / "data", "orders") >= 40, "the records are sealed")
        server.stop()
    return tmp_path


def started(folder: Path, **env: str) -> "subprocess.Popen[str]":
    own = {"TOPICS_DATA_DIR": str(folder / "data"), "TOPICS_SPARK_MEMORY": "512m", "TOPICS_SEARCH_FAMILIES": "off"}
    return subprocess.Popen(
        [sys.executable, "-c", _RUN], env={**os.environ, **own, **env}, cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize(("priority", "idle"), [("idle", True), ("normal", False)])
def test_hand_run_has_the_priority_of_the_pipeline(folder: Path, priority: str, idle: bool) -> None:
    with started(folder, TOPICS_PIPELINE_PRIORITY=priority) as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert f"idle {idle}" in out


def test_server_shows_lag_progress_rows_and_failures_of_hand_runs(tmp_path: Path) -> None:
    # Without the stream of metrics, whose segments would count as lag while a slow run goes on.
    with LiveServer(
        tmp_path, segment_max_events="10", snapshot_interval_ms="200", archive="1", pipeline="off", streams_metrics="0"
    ) as server:
        with Client(server.url) as client:
            client.append_many("orders", [{"n": n} for n in range(40)])
            wait_until(lambda: sealed_to(tmp_path / "data", "orders") >= 40, "the records are sealed")

        def now() -> dict[str, Any]:
            return dict(httpx.get(server.url + "/v0/pipeline").json())

        found = now()
        assert (found["state"], found["lag_records"], found["rows"]) == ("off", 40, None)
        seen = []
        with started(tmp_path, TOPICS_PIPELINE_PRIORITY="normal") as process:
            while process.poll() is None:
                seen.append(now())
                time.sleep(0.05)
            out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert "40 rows in the table" in out
        running = [one for one in seen if one["state"] == "running"]
        assert {one["run"]["by"] for one in running} == {f"topics pipeline run, process {process.pid}"}
        assert [one for one in running if one["run"]["job"] is not None]
        wait_until(lambda: now()["state"] == "off", "the end of the run is seen")
        found = now()
        assert (found["rows"], found["records"], found["lag_records"], found["lag_ms"]) == (40, 40, 0, 0)
        assert (found["run"]["records"], found["run"]["error"]) == (40, None)
        assert found["products"][0]["rows"] == 40
        with Client(server.url) as client:
            client.append_many("orders", [{"n": n} for n in range(20)])
            client.delete("orders", before_seq=11)
        wait_until(lambda: now()["lag_records"] == 20, "new segments are behind")
        # A run works on the segments of the catalog, which a checkpoint writes.
        wait_until(lambda: sealed_to(tmp_path / "data", "orders") >= 60, "the new segments are listed")
        with started(tmp_path, TOPICS_SPARK_MASTER="no-master") as process:
            _, err = process.communicate(timeout=300)
        assert process.returncode != 0, err
        wait_until(lambda: now()["failures"] == 1, "the failure is seen")
        found = now()
        assert found["error"] is not None
        assert found["run"]["error"] == found["error"]
        text = httpx.get(server.url + "/v0/metrics").text
        told = [
            line for line in text.splitlines() if line.startswith(("topics_pipeline_lag_rec", "topics_pipeline_rows"))
        ]
        # The first ten rows were hidden before Spark was needed.
        assert told == ["topics_pipeline_lag_records 20.0", "topics_pipeline_rows 30.0"]


def test_killed_java_ends_the_run_with_a_sentence(folder: Path) -> None:
    with started(folder, TOPICS_PIPELINE_PRIORITY="normal") as process:
        # Java is killed as soon as it is there: before or in the first job.
        wait_until(lambda: bool(children(process.pid)) or process.poll() is not None, "Java was started")
        wait_until(
            lambda: any((folder / "data/archive").glob("nonce")) or process.poll() is not None, "a job was begun"
        )
        for pid in children(process.pid):
            os.kill(pid, signal.SIGKILL)
        _, err = process.communicate(timeout=300)
    if process.returncode == 0:
        pytest.skip("the job was done before Java was killed")
    assert process.returncode == 1, err
    assert "Spark's Java process ended" in err
    assert "Traceback" not in err


def children(pid: int) -> list[int]:
    """The Java processes that a process has started."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                status = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            if int(status.rpartition(")")[2].split()[1]) == pid and "(java)" in status:
                found.append(int(name))
    return found


def test_zip_writes_the_script_that_spark_submit_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "zip", str(tmp_path)]) == 0
    archive = capsys.readouterr().out.strip()
    told = subprocess.run(
        [sys.executable, str(tmp_path / "submit.py"), "--help"], env={**os.environ, "PYTHONPATH": archive},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert "--reconfigure" in told.stdout


def test_save_without_a_mode_is_refused_and_says_append(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([("1",)], "data string")
    with pytest.raises(Exception, match=r"(?i)append"):
        frame.write.format("topics").options(topic="orders", url="http://127.0.0.1:9").save()


def test_requests_and_pauses_reach_the_worker_of_a_running_server(tmp_path: Path) -> None:
    with LiveServer(
        tmp_path, segment_max_events="10", snapshot_interval_ms="200", archive="1", search_families="off",
        pipeline_poll_ms="100", pipeline_priority="normal", spark_memory="512m",
    ) as server:  # fmt: skip
        data = str(tmp_path / "data")

        def now() -> dict[str, Any]:
            return dict(httpx.get(server.url + "/v0/pipeline").json())

        def files() -> set[str]:
            return {str(path) for path in (tmp_path / "data/archive/data").rglob("*.parquet")}

        with Client(server.url) as client:
            client.append_many("orders", [{"n": n} for n in range(40)])
            wait_until(lambda: now()["rows"] == 40, "everything is archived")
            client.delete("orders", before_seq=3)
            wait_until(lambda: now()["rows"] == 38, "two rows are hidden")
        before = files()
        # The worker has the pipeline meanwhile.
        assert now()["state"] == "running"
        assert main(["pipeline", "erase", "--data-dir", data]) == 0
        wait_until(lambda: bool(before) and not before & files(), "the files with deleted records are gone")
        wait_until(lambda: now()["requests"] == [], "the request is done")
        assert (now()["rows"], now()["restarts"]) == (38, 0)
        assert main(["pipeline", "pause", "--data-dir", data]) == 0
        wait_until(lambda: now()["state"] == "paused", "the pipeline is paused")
        assert main(["pipeline", "backfill", "--data-dir", data]) == 0
        wait_until(lambda: [one["kind"] for one in now()["requests"]] == ["backfill"], "the request waits")
        assert main(["pipeline", "resume", "--data-dir", data]) == 0
        wait_until(lambda: now()["requests"] == [], "the request is done after the pause")
        assert now()["restarts"] == 0
