"""The settings of a session, without starting one."""

import zipfile
from pathlib import Path

from topics.model.settings import Settings
from topics.spark.package_zip import package_zip
from topics.spark.session import SparkOptions, read_conf_file, session_conf


def test_an_embedded_session_is_small_quiet_and_closed_to_others() -> None:
    conf = session_conf(SparkOptions(memory="2g"))
    assert conf["spark.driver.memory"] == "2g"
    assert conf["spark.ui.enabled"] == "false"
    assert conf["spark.driver.bindAddress"] == conf["spark.driver.host"] == "127.0.0.1"
    assert conf["spark.network.timeout"] == "86400s"
    assert conf["spark.sql.catalogImplementation"] == "in-memory"
    assert conf["spark.sql.parquet.outputTimestampType"] == "TIMESTAMP_MICROS"
    java = conf["spark.driver.extraJavaOptions"].split()
    assert "log4j2.properties" in java[0] and java[1:] == ["-XX:+UseSerialGC", "-Xss4m"]


def test_where_tasks_are_python_java_compiles_once_and_quickly() -> None:
    conf = session_conf(SparkOptions.of(Settings(), "topics pipeline", light=True))
    assert conf["spark.driver.extraJavaOptions"].split()[-1] == "-XX:TieredStopAtLevel=1"


def test_a_cluster_keeps_its_own_ways_and_a_file_has_the_last_word(tmp_path: Path) -> None:
    file = tmp_path / "spark.conf"
    file.write_text("# a remark\n\nspark.executor.memory   3g\nspark.sql.session.timeZone=Europe/Oslo\n")
    options = SparkOptions.of(Settings(spark_master="spark://host:7077", spark_conf=str(file)))
    assert not options.is_local
    conf = session_conf(options)
    assert "spark.driver.memory" not in conf
    assert conf["spark.executor.memory"] == "3g"
    assert conf["spark.sql.session.timeZone"] == "Europe/Oslo"


def test_a_file_of_settings_is_read_in_both_spellings() -> None:
    text = "spark.a 1\nspark.b=2\nspark.c   -Dx=y -Dz\n  # no\nspark.d\t4\n"
    assert read_conf_file(text) == {"spark.a": "1", "spark.b": "2", "spark.c": "-Dx=y -Dz", "spark.d": "4"}


def test_the_package_travels_as_one_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(package_zip(tmp_path)) as archive:
        names = archive.namelist()
    assert "topics/spark/session.py" in names
    assert "topics/spark/log4j2.properties" in names
    assert {"topics_client/_sync/client.py", "topics_protocol/v0.py"} <= set(names)
    assert not any("__pycache__" in name for name in names)
