"""Processes of Spark that are not ours: a master, a worker, a server of Spark Connect; from the pip package."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyspark

import topics
from topics.spark.java import java_home

_PATIENCE_S = 120.0
_SPARK = Path(pyspark.__file__).parent / "bin"


def without_topics(folder: Path) -> str:
    """A folder for PYTHONPATH that hides this package from the caller that has it: the code must come with the job."""
    package = folder / "hidden" / "topics"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text('raise ImportError("the code must come with the job")\n')
    return str(package.parent)


def install(folder: Path) -> None:
    """Makes the package importable for the processes that it was hidden from."""
    package = folder / "hidden" / "topics"
    shutil.rmtree(package)
    package.symlink_to(Path(topics.__file__).parent)


class Daemon:
    """A process of Spark whose log reports when it is ready."""

    def __init__(
        self, folder: Path, name: str, program: str, *arguments: str, within: Sequence[str] = (), **env: str
    ) -> None:
        """`within` is a command that runs the program, such as one that opens a namespace."""
        self._log = folder / f"{name}.log"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        own = {
            "JAVA_HOME": str(java_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": without_topics(folder),
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*within, str(_SPARK / program), *arguments],
                env={**inherited, **own, **env},
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def reported(self, pattern: re.Pattern[str]) -> re.Match[str]:
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            text = self._log.read_text(errors="replace")
            match = pattern.search(text)
            if match is not None:
                return match
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise AssertionError(f"it never told {pattern.pattern}:\n{text}")
            time.sleep(0.1)

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def last_words(text: str) -> str:
    """Returns the last lines of the output without Spark's log."""
    return "\n".join(line for line in text.splitlines() if " INFO " not in line)[-4000:]
