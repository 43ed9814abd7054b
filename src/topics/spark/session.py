"""The one place where a Spark session gets its settings. Imports pyspark.

Without settings the session is embedded: `local[*]`, small memory, no port but the loopback ones that Spark's own
processes need, no Hive, errors only in its log. With `master` it is a driver of a cluster, with `remote` a client of
Spark Connect. A file with extra settings is read last, so an operator has the last word.
"""

import os
import re
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import SparkSession

from topics.spark.interpreter import worker_python
from topics.spark.java import java_home
from topics.spark.shipping import ship
from topics.system.machine import cpu_count

_CONF_LINE = re.compile(r"(?P<name>[^#\s=]+)(?:\s*=\s*|\s+)(?P<value>.*)")

if TYPE_CHECKING:
    from topics.config.settings import Settings


class SparkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where Spark runs; `topics.config` explains each setting."""

    master: str = "local[*]"
    """Empty where whoever started the program has said it, as spark-submit does."""
    remote: str | None = None
    conf_file: str | None = None
    memory: str = "1g"
    app_name: str = "topics"
    only_hands_out: bool = False
    """Whether Java does nothing but hand out tasks, as for the pipeline. Then it is compiled quickly rather than well,
    which saves half of the processor time that it takes."""

    @classmethod
    def of(cls, settings: "Settings", app_name: str = "topics", only_hands_out: bool = False) -> "SparkOptions":
        return cls(
            master=settings.spark_master,
            remote=settings.spark_remote,
            conf_file=settings.spark_conf,
            memory=settings.spark_memory,
            app_name=app_name,
            only_hands_out=only_hands_out,
        )

    @property
    def is_local(self) -> bool:
        return self.remote is None and self.master.startswith("local")


def open_session(options: SparkOptions | None = None) -> SparkSession:
    """The session for these options; in one process there is one, and a second call returns the first."""
    options = SparkOptions() if options is None else options
    if options.remote is not None:
        spark = _connect(options)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", worker_python() if options.is_local else sys.executable)
        if options.is_local:
            # The machine's own name may lead nowhere, and nothing outside it is needed.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["JAVA_HOME"] = str(java_home())
        builder = SparkSession.builder.appName(options.app_name)
        if options.master:
            builder = builder.master(options.master)
        for name, value in session_conf(options).items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
    if options.remote is not None or (options.master and not options.is_local):
        ship(spark)  # spark-submit has shipped it already.
    return spark


def session_conf(options: SparkOptions) -> dict[str, str]:
    """Every setting of a session that we start, in the order in which later ones win."""
    conf = {
        "spark.sql.session.timeZone": "UTC",
        # As INT96, the default, timestamps have no statistics and nothing can be skipped by time.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.catalogImplementation": "in-memory",
    }
    if options.is_local:
        conf |= _embedded_conf(options)
    if options.conf_file is not None:
        conf |= read_conf_file(Path(options.conf_file).read_text(encoding="utf-8"))
    return conf


def _embedded_conf(options: SparkOptions) -> dict[str, str]:
    java = f"-Dlog4j2.configurationFile=file:{files('topics.spark') / 'log4j2.properties'} -XX:+UseSerialGC -Xss4m"
    return {
        "spark.driver.memory": options.memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(2 * cpu_count()),
        # Driver and executor are one process, which cannot lose itself: one that got no processor time for two minutes,
        # because others wanted it or the machine slept, must not take its own silence for a death.
        "spark.network.timeout": "86400s",
        "spark.driver.extraJavaOptions": f"{java} -XX:TieredStopAtLevel=1" if options.only_hands_out else java,
        # Nothing here is kept between sessions, so nothing is left in the folder that the process runs in.
        "spark.sql.warehouse.dir": "/nonexistent/topics-warehouse",
    }


def read_conf_file(text: str) -> dict[str, str]:
    """Settings as in spark-defaults.conf: a name and a value a line, `#` for remarks."""
    conf = {}
    for line in text.splitlines():
        match = _CONF_LINE.fullmatch(line.strip())
        if match is not None:
            conf[match["name"]] = match["value"]
    return conf


def _connect(options: SparkOptions) -> SparkSession:
    builder = SparkSession.builder.appName(options.app_name).remote(options.remote or "")
    runtime: Mapping[str, str] = session_conf(options)
    for name, value in runtime.items():
        # Only settings of SQL belong to a session of a server that runs already.
        if name.startswith("spark.sql.") and name != "spark.sql.catalogImplementation":
            builder = builder.config(name, value)
    return builder.getOrCreate()
