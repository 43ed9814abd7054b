"""The oldest Spark that the extra `spark` allows, and every minor version up to the one of all other tests.

`make setup-versions` installs them beside each other, into folders that are put in front of the environment's own.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.http.live import LiveServer
from tests.spark.described_stream import IN_COLUMNS, LATER, describe
from tests.spark.waiting_for import of_diff, sealed_to, wait_until
from topics_client import Client

ROOT = Path(__file__).parents[2]
PINS = sorted((ROOT / "requirements").glob("spark-4.*.txt"))
_PATIENCE_S = 600


def test_every_version_that_the_extra_allows_has_its_pins() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [allowed] = [one for one in project["optional-dependencies"]["spark"] if one.startswith("pyspark")]
    newest = (ROOT / "requirements" / "spark.txt").read_text(encoding="utf-8")
    assert allowed == "pyspark>=4.0,<4.4"
    assert "pyspark==4.3." in newest
    assert [pins.stem for pins in PINS] == ["spark-4.0", "spark-4.1", "spark-4.2"]
    for pins in PINS:
        assert f"pyspark=={pins.stem.removeprefix('spark-')}." in pins.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("pins", PINS, ids=lambda pins: pins.stem)
def test_the_connector_and_the_pipeline_run_on_it(pins: Path, tmp_path: Path) -> None:
    overlay = ROOT / ".venv" / pins.stem
    if not overlay.exists():
        pytest.skip("make setup-versions installs it")
    settings = {"segment_max_events": "50", "snapshot_interval_ms": "200", "archive": "1", "pipeline": "off"}
    with LiveServer(tmp_path, **settings) as server, Client(server.url) as client:
        for first in range(0, 200, 50):
            client.append_many("orders", [{"n": n} for n in range(first, first + 50)])
        client.append("orders", {"n": 200})
        describe(server.url, "described")
        wait_until(lambda: sealed_to(tmp_path / "data", "orders") >= 200, "the records are sealed")
        wait_until(lambda: sealed_to(tmp_path / "data", "described") >= 50, "the entries are sealed")
        reported = run(overlay, server.url, str(tmp_path / "data"))
        assert reported["version"].startswith(pins.stem.removeprefix("spark-") + ".")
        assert reported["http"] == reported["auto"] == list(range(1, 202))
        assert set(range(1, 201)) <= set(reported["segments"])
        assert reported["quarantined"] == []
        assert set(range(1, 201)) <= set(reported["archived"]) <= set(range(1, 202))
        check_columns(reported["typed"])
        copied = sorted(json.loads(data)["n"] for *_, data in of_diff(client, "copy"))
        assert copied == list(range(201))
        assert [data for *_, data in of_diff(client, "written")] == ["1", "2"]


def check_columns(reported: dict[str, Any]) -> None:
    assert reported["http"] == reported["auto"] == IN_COLUMNS
    assert reported["segments"][:50] == IN_COLUMNS[:50]
    assert reported["chosen"] == [[total, number] for _, number, total, *_ in IN_COLUMNS]
    assert "the schema of described has changed since this was loaded" in reported["refused"]
    assert reported["streamed"] == [*IN_COLUMNS, LATER]


def run(overlay: Path, url: str, data: str) -> dict[str, Any]:
    path = os.pathsep.join([str(overlay), str(ROOT / "src"), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "SPARK_HOME": str(overlay / "pyspark")}
    # Spark waits ten seconds for the process of a stream; on a busy machine compiling takes most of them.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("version_child.py")), url, data],
        env=env,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
