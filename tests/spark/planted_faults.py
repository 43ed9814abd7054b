"""Faults in the processes of a real pipeline: a module that every Python process loads first, and files that it obeys.

    hold          tasks wait in the middle of a build while it is there, and leave `held-<pid>`
    greedy        tasks of a stream of this name have no memory left
    deadly        tasks of a stream of this name are killed, as the system does with those that take too much of it

`retry` is how long, in ms, a stream is left out at first.
"""

from pathlib import Path

import pytest

_PLANTED = """
import os, signal, sys, time
from pathlib import Path

folder = Path(os.environ["PLANTED_FAULTS"])
if "topics.spark.pipeline" in sys.orig_argv:
    from topics.spark.pipeline import status

    status.FIRST_RETRY_MS = int((folder / "retry").read_text())
if "pyspark.daemon" in sys.orig_argv:
    from topics.spark.index_builds.index_tasks import IndexBuilder

    take = IndexBuilder.take

    def faulty(self, ref, contract, batches):
        while (folder / "hold").exists():
            (folder / f"held-{os.getpid()}").touch()
            time.sleep(0.02)
        if ref.topic == "greedy" and (folder / "greedy").exists():
            raise MemoryError("no memory is left")
        if ref.topic == "deadly" and (folder / "deadly").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        take(self, ref, contract, batches)

    IndexBuilder.take = faulty
"""


class Planted:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "retry").write_text("2000")
        (folder / "sitecustomize.py").write_text(_PLANTED)
        patch.setenv("PLANTED_FAULTS", str(folder))
        patch.setenv("PYTHONPATH", str(folder), prepend=":")

    def plant(self, *names: str) -> None:
        for name in names:
            (self._folder / name).touch()

    def lift(self, *names: str) -> None:
        for name in names:
            (self._folder / name).unlink()

    def is_held(self) -> bool:
        """Whether a task is in the middle of its work."""
        return any(not is_gone(int(path.name.partition("-")[2])) for path in self._folder.glob("held-*"))


def is_gone(pid: int) -> bool:
    """Whether a process has ended, also when its exit status was not read."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
