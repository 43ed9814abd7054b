"""The part of `make bench-spark` about versions of Spark: the cost of the same work on each of them.

The versions besides the one that everything runs on are those that `make setup-versions` has put beside it; without
them there is one row. Each has its own process. `python -m bench.spark_versions FOLDER` measures it alone, on a data
folder with a sealed topic `orders`.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame

from topics.spark.connector.source import TopicsDataSource
from topics.spark.session import SparkOptions, open_session

ROOT = Path(__file__).parents[1]
_TRIES = 3
_PATIENCE_S = 600


@dataclass
class VersionCost:
    version: str
    start: float
    """Seconds until a session is there, Java included."""
    first: float
    """Seconds of the first read, which includes loading its modules."""
    read: float
    """Records a second, the median of the reads behind it."""


def version_costs(data: Path) -> list[VersionCost]:
    found = []
    for overlay in [*sorted((ROOT / ".venv").glob("spark-4.?")), None]:
        path = [str(overlay)] if overlay is not None else []
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, str(ROOT / "src"), str(ROOT)])}
        if overlay is not None:
            env["SPARK_HOME"] = str(overlay / "pyspark")
        command = [sys.executable, "-m", "bench.spark_versions", str(data), "--child"]
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, timeout=_PATIENCE_S, check=True)
        found.append(VersionCost(**json.loads(done.stdout.splitlines()[-1])))
    return found


def _cost(data: str) -> VersionCost:
    begun = time.perf_counter()
    spark = open_session(SparkOptions(app_name="bench"))
    spark.range(1).collect()
    start = time.perf_counter() - begun
    spark.dataSource.register(TopicsDataSource)

    def frame() -> DataFrame:
        return spark.read.format("topics").options(mode="segments", path=data, topic="orders").load()

    times = []
    for _ in range(_TRIES + 1):
        begun = time.perf_counter()
        frame().write.format("noop").mode("overwrite").save()
        times.append(time.perf_counter() - begun)
    found = VersionCost(spark.version, start, times[0], frame().count() / statistics.median(times[1:]))
    spark.stop()
    return found


def main() -> None:
    if "--child" in sys.argv:
        print(json.dumps(_cost(sys.argv[1]).__dict__))
        return
    for one in version_costs(Path(sys.argv[1])):
        print(
            f"Spark {one.version}: there in {one.start:.1f} s, first read {one.first:.1f} s, {one.read:,.0f} records/s"
        )


if __name__ == "__main__":
    main()
