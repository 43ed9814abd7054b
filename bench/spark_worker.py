"""The part of `make bench-spark` that is about the worker that a server supervises: its start and what it takes.

The process is started as a server starts it, on a folder that has everything to do, and ends when it is done. Ways to
make Java smaller or sooner are tried one after the other. `python -m bench.spark_worker FOLDER` measures it alone.
"""

import os
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.spark_load import archiving

_LOOK_S = 0.2
_PATIENCE_S = 60.0
_OURS = "-XX:+UseSerialGC -Xss4m"
_WAYS = {
    "as it is (serial collector)": _OURS,
    "first compiler only": f"{_OURS} -XX:TieredStopAtLevel=1",
    "classes from an archive": f"{_OURS} -XX:SharedArchiveFile={{archive}} -Xshare:auto",
    "both": f"{_OURS} -XX:TieredStopAtLevel=1 -XX:SharedArchiveFile={{archive}} -Xshare:auto",
}


@dataclass
class WorkerCost:
    name: str
    start_s: float = 0.0
    """Until Spark is there."""
    whole_s: float = 0.0
    cpu_s: float = 0.0
    java_mb: float = 0.0
    python_mb: float = 0.0


def worker_costs(data: Path) -> list[WorkerCost]:
    """Each way once: what is looked at is the processor's time and the memory, which differ little from run to run."""
    with tempfile.TemporaryDirectory(prefix="topics-bench-java-") as folder:
        archive = f"{folder}/classes.jsa"
        _run("", data, f"{_OURS} -XX:ArchiveClassesAtExit={archive}", folder)
        give_up = time.monotonic() + _PATIENCE_S
        while not os.path.exists(archive) and time.monotonic() < give_up:
            time.sleep(_LOOK_S)
        return [_run(name, data, options.format(archive=archive), folder) for name, options in _WAYS.items()]


def _run(name: str, data: Path, options: str, folder: str) -> WorkerCost:
    conf = Path(folder) / "spark.conf"
    conf.write_text(f"spark.driver.extraJavaOptions {options}\n", encoding="utf-8")
    os.environ["TOPICS_SPARK_CONF"] = str(conf)
    cost = WorkerCost(name)
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    java_cpu = 0.0
    with archiving(data) as process:
        while process.poll() is None:
            java, python, cpu = _look(process.pid)
            cost.java_mb, cost.python_mb = max(cost.java_mb, java), max(cost.python_mb, python)
            java_cpu = max(java_cpu, cpu)
            time.sleep(_LOOK_S)
        cost.whole_s = time.monotonic() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Java is no child that is waited for: what it has used is what was last seen of it.
    cost.cpu_s = java_cpu + after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    del os.environ["TOPICS_SPARK_CONF"]
    cost.start_s = _told_start_s(data)
    return cost


def _told_start_s(data: Path) -> float:
    from topics.spark.pipeline.status import load_status
    from topics.storage.layout import Layout
    from topics.storage.posix import PosixFileSystem

    worker = load_status(PosixFileSystem(), Layout(str(data))).worker
    return worker.start_ms / 1000 if worker is not None else 0.0


def _look(root: int) -> tuple[float, float, float]:
    """The memory of Java and of Python below a process, in MB, and the processor time of Java, in seconds."""
    java = python = cpu = 0.0
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
        size = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000
        if name == "java":
            java += size
            cpu += (int(stats[process][11]) + int(stats[process][12])) / os.sysconf("SC_CLK_TCK")
        else:
            python += size
    return java, python, cpu


def main() -> None:
    for one in worker_costs(Path(sys.argv[1])):
        print(
            f"{one.name}: Spark there in {one.start_s:.1f} s, done in {one.whole_s:.1f} s, {one.cpu_s:.1f} s of CPU, "
            f"{one.java_mb:.0f} MB Java, {one.python_mb:.0f} MB Python"
        )


if __name__ == "__main__":
    main()
