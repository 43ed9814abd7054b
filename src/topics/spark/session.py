"""Spark session: starts or reuses a session with the settings of this program. Imports pyspark.

Without settings the session is embedded: `local[*]`, small memory, no port but the loopback ones that Spark's own
processes need, no Hive, errors only in its log. With `master` it is a driver of a cluster, with `remote` a client of
Spark Connect. A file with extra settings is read last, so an operator has the last word.
"""

import os
import re
import shlex
import site
import sys
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import SparkSession

from topics.spark.java import java_home
from topics.spark.package_zip import ship
from topics.system.process import cpu_count

if TYPE_CHECKING:
    from topics.model.settings import Settings


# Worker interpreter: the Python that an embedded Spark starts its processes with.
#
# Spark puts the archive of its sources, `python/lib/pyspark.zip`, in front of the path of each Python process that it
# starts. There is no bytecode cache for an archive, so each of them compiles pyspark again: 0.7 s of processor time
# instead of 0.15 s, for each kind of worker and for each stream. And Spark gives the process of a stream ten seconds to
# start, also on a busy machine. A pip installation has the same modules compiled beside the archive. So processes are
# started through a script that leaves the archives out.

_SCRIPT = """#!/bin/sh
# Starts Python for Spark, with the pyspark that is installed in place of the archive of its sources.
set -f
IFS=:
kept=
for place in $PYTHONPATH; do
  case "$place" in
    */pyspark/python/lib/*.zip | */pyspark/jars/*.jar) ;;
    *) kept="$kept${{kept:+:}}$place" ;;
  esac
done
export PYTHONPATH="$kept"
exec {python} "$@"
"""


def worker_python(env: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """The program that starts workers on this machine: the script, or this Python if the script would not help."""
    env = os.environ if env is None else env
    if not _finds_pyspark(env):
        return sys.executable
    try:
        return str(_script(folder or Path(sys.prefix) / "share" / "topics-python"))
    except OSError:
        # A read-only environment: everything works, with a slower start.
        return sys.executable


def _finds_pyspark(env: Mapping[str, str]) -> bool:
    """Whether a Python without the archive on its path finds the installed pyspark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return False
    package = Path(spec.origin).resolve().parent
    if "SPARK_HOME" in env and Path(env["SPARK_HOME"]).resolve() != package:
        return False
    places = [*site.getsitepackages(), *env.get("PYTHONPATH", "").split(os.pathsep)]
    return package.name == "pyspark" and package.parent in [Path(place).resolve() for place in places if place]


def _script(folder: Path) -> Path:
    script = folder / "python"
    # The real folder of the environment: all processes that share it write the same script.
    python = Path(sys.executable).parent.resolve() / Path(sys.executable).name
    text = _SCRIPT.format(python=shlex.quote(str(python)))
    if not script.exists() or script.read_text(encoding="utf-8") != text:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"python.{os.getpid()}"
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o755)
        temporary.replace(script)
    return script


_CONF_LINE = re.compile(r"(?P<name>[^#\s=]+)(?:\s*=\s*|\s+)(?P<value>.*)")


class SparkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of Spark; `topics.model` explains each."""

    master: str = "local[*]"
    """Empty if the launcher sets it, such as spark-submit."""
    remote: str | None = None
    conf_file: str | None = None
    memory: str = "1g"
    app_name: str = "topics"
    light: bool = False
    """Whether the tasks are Python, so that Java does little: it then uses only the first JIT tier, which saves a
    quarter of the processor time of a job of some seconds. Spark's own queries would be slower."""

    @classmethod
    def of(cls, settings: "Settings", app_name: str = "topics", light: bool = False) -> "SparkOptions":
        return cls(
            master=settings.spark_master,
            remote=settings.spark_remote,
            conf_file=settings.spark_conf,
            memory=settings.spark_memory,
            app_name=app_name,
            light=light,
        )

    @property
    def is_local(self) -> bool:
        return self.remote is None and self.master.startswith("local")


def open_session(options: SparkOptions | None = None) -> SparkSession:
    """The session for these options. A process has one session: a second call returns the first."""
    options = SparkOptions() if options is None else options
    if options.remote is not None:
        spark = _connect(options)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", worker_python() if options.is_local else sys.executable)
        if options.is_local:
            # The host name may not resolve, and only local connections are needed.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["JAVA_HOME"] = str(java_home())
        builder = SparkSession.builder.appName(options.app_name)
        if options.master:
            builder = builder.master(options.master)
        for name, value in session_conf(options).items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
    if options.remote is not None or (options.master and not options.is_local):
        ship(spark)  # spark-submit has sent it already.
    return spark


def session_conf(options: SparkOptions) -> dict[str, str]:
    """Every setting of a new session; later ones override earlier ones."""
    conf = {
        "spark.sql.session.timeZone": "UTC",
        # INT96, the default, has no statistics, so readers could not prune by time.
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
    log4j = files("topics.spark") / "log4j2.properties"
    java = ["-XX:+UseSerialGC", "-Xss4m", *(["-XX:TieredStopAtLevel=1"] if options.light else [])]
    return {
        "spark.driver.memory": options.memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(2 * cpu_count()),
        # Driver and executor are one process: after two minutes without processor time, because the machine was busy or
        # suspended, a missed heartbeat must not end it.
        "spark.network.timeout": "86400s",
        "spark.driver.extraJavaOptions": " ".join([f"-Dlog4j2.configurationFile=file:{log4j}", *java]),
        # Nothing is kept between sessions, so nothing is written to the working directory.
        "spark.sql.warehouse.dir": "/nonexistent/topics-warehouse",
    }


def read_conf_file(text: str) -> dict[str, str]:
    """Parses settings as in spark-defaults.conf: a name and a value a line, `#` for comments."""
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
        # Only SQL settings can be set on a session of a running server.
        if name.startswith("spark.sql.") and name != "spark.sql.catalogImplementation":
            builder = builder.config(name, value)
    return builder.getOrCreate()
