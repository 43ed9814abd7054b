"""`topics export` and `topics import`: a topic to files and back."""

import os
from typing import Annotated, Literal

from cyclopts import Parameter

from topics.client.options import DEFAULT_URL
from topics.config.settings import Settings
from topics.storage.places import absolute, check_place

Form = Annotated[Literal["parquet", "jsonl"], Parameter(name="--format", help="What the files are.")]
Url = Annotated[str | None, Parameter(env_var="TOPICS_URL", help="The server's address.")]
ApiKey = Annotated[str | None, Parameter(env_var="TOPICS_API_KEY", help="The key, where the server wants one.")]
Path = Annotated[
    str | None, Parameter(name="--data-dir", help="Read sealed records out of this data folder; no server is needed.")
]
SkipLost = Annotated[
    bool, Parameter(negative="", help="Go on behind records that are lost, with a warning, instead of failing.")
]


def export(
    topic: str,
    target: str,
    /,
    *,
    format: Form = "parquet",
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: Path = None,
    skip_lost: SkipLost = False,
) -> int:
    """Write a topic's records to Parquet or JSON lines.

    Parameters
    ----------
    topic
        Its name.
    target
        A folder that is not there yet.
    """
    access = {"url": url or DEFAULT_URL, "apiKey": api_key} if data_dir is None else _folder(data_dir)
    access["failOnDataLoss"] = "false" if skip_lost else "true"
    if os.path.exists(target):
        raise FileExistsError(f"{target} is there already")
    from topics.spark.session import SparkOptions, open_session  # noqa: PLC0415 - Spark takes seconds to import
    from topics.spark.transfer import export_topic  # noqa: PLC0415

    spark = open_session(SparkOptions.of(Settings.from_env(os.environ), "topics export"))
    try:
        count = export_topic(spark, topic, os.path.abspath(target), format, _given(access))
    finally:
        spark.stop()
    print(f"{count} records written to {target}")
    return 0


def import_(
    topic: str, source: str, /, *, format: Form = "parquet", url: Url = None, api_key: ApiKey = None,
    write_id: Annotated[str | None, Parameter(help="Makes a repeated import write nothing twice.")] = None,
) -> int:  # fmt: skip
    """Append records from Parquet or JSON lines to a topic.

    Parameters
    ----------
    topic
        Its name.
    source
        A file, or a folder of files.
    """
    if not os.path.exists(source):
        raise FileNotFoundError(f"{source} is not there")
    from topics.spark.session import SparkOptions, open_session  # noqa: PLC0415
    from topics.spark.transfer import import_topic  # noqa: PLC0415

    access = {"url": url or DEFAULT_URL, "apiKey": api_key, "writeId": write_id}
    spark = open_session(SparkOptions.of(Settings.from_env(os.environ), "topics import"))
    try:
        count = import_topic(spark, topic, os.path.abspath(source), format, _given(access))
    finally:
        spark.stop()
    print(f"{count} records appended to {topic}")
    return 0


def _folder(data_dir: str) -> dict[str, str | None]:
    cold = Settings.from_env(os.environ).cold_dir
    return {"mode": "segments", "path": os.path.abspath(data_dir), "coldDir": absolute(check_place(cold))}


def _given(access: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in access.items() if value is not None}
