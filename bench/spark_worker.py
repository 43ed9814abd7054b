"""The part of `make bench-spark` about the worker that a server supervises: its start and its memory.

The process is started as a server starts it, on a folder that has everything to do, and ends when it is done. Ways to
make Java smaller or sooner are tried one after the other. `python -m bench.spark_worker FOLDER` measures it alone.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.spark_load import archiving
from topics.spark.session import SparkOptions, session_conf

_LOOK_S = 0.2
_PATIENCE_S = 60.0
_OURS = session_conf(SparkOptions(light=True))["spark.driver.extraJavaOptions"]
_ARCHIVED = f"{_OURS} -XX:SharedArchiveFile={{archive}} -Xshare:auto"


@dataclass(frozen=True)
class _Way:
    name: str
    java: str = _OURS
    env: dict[str, str] = field(default_factory=dict)


_WAYS = (
    _Way("as it is"),
    _Way("pyspark out of its archive of sources", env={"PYSPARK_PYTHON": sys.executable}),
    _Way("Java's usual collector", _OURS.replace("-XX:+UseSerialGC", "-XX:+UseG1GC")),
    _Way("both of Java's compilers", _OURS.replace("-XX:TieredStopAtLevel=1", "")),
    _Way("half the heap", env={"TOPICS_SPARK_MEMORY": "512m"}),
    _Way("classes from an archive", _ARCHIVED),
)


@dataclass
class WorkerCost:
    name: str
    start_s: float = 0.0
    """Until Spark is there."""
    whole_s: float = 0.0
    cpu_s: float = 0.0
    java_mb: float = 0.0
    python_mb: float = 0.0


def worker_costs(data: Path) -> Iterator[WorkerCost]:
    """Measures each way once: processor time and memory differ little from run to run."""
    with tempfile.TemporaryDirectory(prefix="topics-bench-java-") as folder:
        archive = f"{folder}/classes.jsa"
        _run(_Way("", f"{_OURS} -XX:ArchiveClassesAtExit={archive}"), data, archive, folder)
        give_up = time.monotonic() + _PATIENCE_S
        while not os.path.exists(archive) and time.monotonic() < give_up:
            time.sleep(_LOOK_S)
        for way in _WAYS:
            yield _run(way, data, archive, folder)


def _run(way: _Way, data: Path, archive: str, folder: str) -> WorkerCost:
    conf = Path(folder) / "spark.conf"
    conf.write_text(f"spark.driver.extraJavaOptions {way.java.format(archive=archive)}\n", encoding="utf-8")
    cost = WorkerCost(way.name)
    used: dict[int, float] = {}
    begun = time.monotonic()
    with archiving(data, TOPICS_SPARK_CONF=str(conf), **way.env) as process:
        while process.poll() is None:
            java, python = _look(process.pid, used)
            cost.java_mb, cost.python_mb = max(cost.java_mb, java), max(cost.python_mb, python)
            time.sleep(_LOOK_S)
        cost.whole_s = time.monotonic() - begun
    # Nothing waits for all of them, so the last reading of each counts.
    cost.cpu_s = sum(used.values())
    cost.start_s = _told_start_s(data)
    return cost


def _told_start_s(data: Path) -> float:
    from topics.log.layout import Layout
    from topics.log.posix import PosixFileSystem
    from topics.spark.pipeline.status import load_status

    worker = load_status(PosixFileSystem(), Layout(str(data))).worker
    return worker.start_ms / 1000 if worker is not None else 0.0


def _look(root: int, used: dict[int, float]) -> tuple[float, float]:
    """The memory of Java and of Python below a process, in MB; `used` receives the processor time of each process in
    seconds."""
    java = python = 0.0
    parents: dict[int, list[int]] = {}
    stats: dict[int, list[str]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stats[int(entry.name)] = (
                (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            )
        except OSError:
            continue
        parents.setdefault(int(stats[int(entry.name)][1]), []).append(int(entry.name))
    waiting = [root]
    while waiting:
        process = waiting.pop()
        waiting += parents.get(process, [])
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
            name = Path(f"/proc/{process}/comm").read_text(encoding="ascii").strip()
        except OSError:
            continue
        used[process] = (int(stats[process][11]) + int(stats[process][12])) / os.sysconf("SC_CLK_TCK")
        size = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000
        if name == "java":
            java += size
        else:
            python += size
    return java, python


def main() -> None:
    for one in worker_costs(Path(sys.argv[1])):
        print(
            f"{one.name}: Spark there in {one.start_s:.1f} s, done in {one.whole_s:.1f} s, {one.cpu_s:.1f} s of CPU, "
            f"{one.java_mb:.0f} MB Java, {one.python_mb:.0f} MB Python",
            flush=True,
        )


if __name__ == "__main__":
    main()
