"""Spark with the runtime of Iceberg, which comes from Maven: an independent reader of the archive's table."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.readers import Row, run_reading
from tests.unit.docs.pages import read

SPARK = "4.1.4"
"""The newest Spark that the runtime of Iceberg of the page is for."""
_PATIENCE_S = 900
_READ = """
import json
from pyspark.sql import SparkSession, functions as f
spark = SparkSession.builder.config("spark.jars.packages", {runtime!r}).getOrCreate()
table = spark.read.format("iceberg").load({root!r}).withColumn("ts", f.unix_millis("ts"))
print(json.dumps([list(row) for row in table.collect()]))
"""


def bring_spark() -> Path:
    """Where that Spark is, in its own folder beside the packages."""
    home = Path(sys.prefix) / f"spark-{SPARK}"
    if not (home / "pyspark" / "jars").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(home), f"pyspark=={SPARK}"]
        subprocess.run(command, check=True, timeout=_PATIENCE_S)
    return home


def begin_with(spark_home: Path) -> str:
    """The line by which a program finds that Spark before any other."""
    return f"import sys; sys.path.insert(0, {str(spark_home)!r})\n"


def environment_of(spark_home: Path, folder: Path, master: str = "local[1]", **conf: str) -> dict[str, str]:
    chosen = {
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.jars.ivy": f"{folder}/ivy", **conf,
    }  # fmt: skip
    words = " ".join(f"--conf {name}={value}" for name, value in chosen.items())
    return {
        "PYSPARK_SUBMIT_ARGS": f"--master {master} {words} pyspark-shell",
        "SPARK_HOME": str(spark_home / "pyspark"),
    }


def read_by_spark(root: str, folder: Path, spark_home: Path) -> list[Row]:
    """All rows of the table at a place, in the order of topic, epoch and seq."""
    [runtime] = set(re.findall(r"org\.apache\.iceberg:iceberg-spark-runtime[\w.:-]+", read("docs/spark/tables.md")))
    code = begin_with(spark_home) + _READ.format(runtime=runtime, root=root)
    environment = environment_of(spark_home, folder)
    reported = run_reading(code, folder, environment=environment, patience_s=_PATIENCE_S)
    return sorted(tuple(row) for row in json.loads(reported.splitlines()[-1]))
