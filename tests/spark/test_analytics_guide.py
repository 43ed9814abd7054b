"""The guide to analytics runs as written: a server that archives, and DuckDB, polars and Spark that read."""

import re
from pathlib import Path

from tests.http.guide_runner import Guide
from tests.http.live import LiveServer
from tests.readers import INSTALL_EXTENSIONS, READERS_HOME, run_reading
from tests.spark.waiting_for import wait_until
from tests.unit.docs.pages import read

PAGE = "docs/guides/analytics.md"


def test_analytics_guide_runs_as_written(tmp_path: Path) -> None:
    [line] = re.findall(r"^(.*) make serve$", read(PAGE), re.MULTILINE)
    settings = {name.removeprefix("TOPICS_").lower(): value for name, value in re.findall(r"(\w+)=(\w+)", line)}
    folder = tmp_path / "server"
    folder.mkdir()
    # The orders are one batch, so the first version of the table has all of them.
    hint = folder / "data" / "archive" / "metadata" / "version-hint.text"

    with LiveServer(folder, **settings, pipeline_priority="normal") as server, Guide(tmp_path, server.url) as guide:
        (guide.folder / "topics-data").symlink_to(folder / "data")

        run_reading(INSTALL_EXTENSIONS, guide.folder)
        guide.skipped.add("pip install duckdb polars pyiceberg")
        guide.before["python revenue_duckdb.py"] = lambda: wait_until(hint.exists, "the orders are archived")
        for command in ("python revenue_duckdb.py", "POLARS_ICEBERG_PLANNER=pyiceberg python revenue_polars.py"):
            guide.python_paths[command] = str(READERS_HOME)
        assert guide.follow(PAGE) > 4
