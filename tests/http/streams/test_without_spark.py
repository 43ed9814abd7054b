"""A server on a machine without Spark: everything is answered, and it names the command to run for quicker answers."""

from pathlib import Path

import httpx

from tests.http.live import LiveServer
from tests.http.searched import UNPRESSED, Searched
from topics_client import Client

_WITHOUT_SPARK = (
    "-c",
    "import sys; sys.modules['pyspark'] = None; from topics.cli import main; sys.exit(main(['serve']))",
)
_INSTALL = "make setup-spark"


def test_missing_spark_is_reported_with_the_install_command(tmp_path: Path) -> None:
    soon = {"segment_max_events": "50", "snapshot_interval_ms": "200", "search_stream_bytes": "65536"}
    with LiveServer(tmp_path, _WITHOUT_SPARK, **soon, **UNPRESSED, search_families="auto") as server:
        with Searched(server.url, "logs") as stream, Client(server.url) as client:
            for _ in range(3):
                stream.append(110)
                stream.check()
            # Sealed entries are not in memory any more: the segments are searched.
            assert stream.status()["segments"]["total_count"] >= 6
            assert stream.indexed_segments() == 0
            assert stream.held_up()["reason"] == "pyspark is not installed"
            assert stream.held_up()["install"] == _INSTALL
            reported = httpx.get(server.url + "/v0/pipeline").json()
            assert (reported["state"], reported["reason"]) == ("unavailable", "pyspark is not installed")
            assert client.metrics()["topics_pipeline_running"] == 0
        server.stop()
        [line] = [line for line in server.log().splitlines() if "the pipeline cannot run" in line]
        assert _INSTALL in line and "pyspark is not installed" in line
