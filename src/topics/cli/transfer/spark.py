"""Exports and imports on Spark: in parallel, into folders, and out of a data folder without a server."""

import os
import re

from topics.cli.shared.connection import Server, resolve
from topics.cli.shared.failures import CommandError
from topics.cli.shared.needs import need_spark
from topics.cli.shared.output import line
from topics.cli.transfer.forms import Form
from topics.config.settings import Settings
from topics.storage.places import absolute, check_place

_NO_RECORD = re.compile(r"BadLineError: (.*)")
_NO_PARQUET = re.compile(r"(?:file:)?(\S+ is not a Parquet file)")


def export_by_spark(
    topic: str, target: str, form: Form, server: Server, data_dir: str | None, *, skip_lost: bool
) -> int:
    """Writes a folder that is not there yet."""
    need_spark("an export on Spark")
    if os.path.exists(target):
        raise FileExistsError(f"{target} is there already")
    access = _server(server) if data_dir is None else folder_access(data_dir)
    access["failOnDataLoss"] = "false" if skip_lost else "true"
    from topics.spark.session import SparkOptions, open_session  # noqa: PLC0415 - Spark takes seconds to import
    from topics.spark.transfer import export_topic  # noqa: PLC0415

    spark = open_session(SparkOptions.of(Settings.from_env(os.environ), "topics export"))
    try:
        count = export_topic(spark, topic, os.path.abspath(target), form, _given(access))
    finally:
        spark.stop()
    line(f"{count} records written to {target}")
    return 0


def import_by_spark(topic: str, source: str, form: Form, server: Server, write_id: str | None) -> int:
    """Reads a file, or a folder of files."""
    need_spark("an import on Spark")
    if not os.path.exists(source):
        raise FileNotFoundError(f"{source} is not there")
    from topics.spark.session import SparkOptions, open_session  # noqa: PLC0415
    from topics.spark.transfer import import_topic  # noqa: PLC0415

    access = {**_server(server), "writeId": write_id}
    spark = open_session(SparkOptions.of(Settings.from_env(os.environ), "topics import"))
    # What fails is raised, and told below in a line: its log would put pages of a stack around that.
    spark.sparkContext.setLogLevel("OFF")
    try:
        count = import_topic(spark, topic, os.path.abspath(source), form, _given(access))
    except Exception as error:
        problem = wrong_file(str(error))
        if problem is None:
            raise
        raise CommandError(f"{problem}; nothing but files of records may be in {source}") from error
    finally:
        spark.stop()
    line(f"{count} records appended to {topic}")
    return 0


def wrong_file(failure: str) -> str | None:
    """What a failure of Spark says of a file that holds something else, out of all the rest; None where it does not."""
    found = _NO_RECORD.search(failure) or _NO_PARQUET.search(failure)
    return found[1] if found is not None else None


def folder_access(data_dir: str) -> dict[str, str | None]:
    """How the connector reads a data folder."""
    cold = Settings.from_env(os.environ).cold_dir
    return {"mode": "segments", "path": os.path.abspath(data_dir), "coldDir": absolute(check_place(cold))}


def _server(server: Server) -> dict[str, str | None]:
    where = resolve(server, os.environ)
    return {"url": where.url, "apiKey": where.api_key}


def _given(access: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in access.items() if value is not None}
