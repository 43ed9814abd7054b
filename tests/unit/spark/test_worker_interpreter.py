"""The Python of Spark's workers finds pyspark compiled."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from topics.spark.session import worker_python

PACKAGE = Path(pyspark.__file__).parent
ARCHIVES = [f"{PACKAGE}/python/lib/pyspark.zip", f"{PACKAGE}/jars/spark-core_2.13-4.3.0.jar"]


def reported(program: str, python_path: list[str]) -> list[str]:
    """Returns the place of pyspark and the path in a process that is started as Spark starts one."""
    look = (
        "import os, sys, pyspark; print(pyspark.__file__, os.environ['PYTHONPATH'], sys.prefix, sys.argv[1], sep='\\n')"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(python_path)}
    return subprocess.check_output([program, "-c", look, "two words"], env=env, text=True).splitlines()


def test_archives_of_spark_are_left_out_and_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / "a folder"
    file, path, prefix, word = reported(worker_python({}, place), [*ARCHIVES, "/mine/job.zip", "/a b/*"])
    assert Path(file).resolve().parent == PACKAGE.resolve()
    assert path == "/mine/job.zip:/a b/*" and word == "two words"
    assert Path(prefix).resolve() == Path(sys.prefix).resolve()
    # Without it the archive counts, which is the reason for the script.
    file, *_ = reported(sys.executable, ARCHIVES)
    assert "pyspark.zip" in file


def test_the_script_is_written_once_and_mended(tmp_path: Path) -> None:
    script = Path(worker_python({}, tmp_path))
    first = script.stat().st_mtime_ns
    assert Path(worker_python({}, tmp_path)) == script and script.stat().st_mtime_ns == first
    text = script.read_text()
    script.write_text("of an earlier version")
    worker_python({}, tmp_path)
    assert script.read_text() == text and [path.name for path in tmp_path.iterdir()] == ["python"]


def test_where_it_is_of_no_use_it_is_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_python({"SPARK_HOME": "/opt/another/spark"}, tmp_path) == sys.executable
    (tmp_path / "file").touch()
    assert worker_python({}, tmp_path / "file" / "below") == sys.executable
    monkeypatch.setattr("site.getsitepackages", lambda: ["/elsewhere"])
    assert worker_python({}, tmp_path) == sys.executable
    assert worker_python({"PYTHONPATH": str(PACKAGE.parent)}, tmp_path) != sys.executable
    monkeypatch.setattr("topics.spark.session.find_spec", lambda name: None)
    assert worker_python({}, tmp_path) == sys.executable
