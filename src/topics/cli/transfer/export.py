"""`topics export`."""

import os
import sys
from typing import IO, Annotated

from cyclopts import Parameter

from topics.cli.shared.amounts import counted, shown_bytes
from topics.cli.shared.connection import HERE, PATIENT_S, Server, connected
from topics.cli.shared.failures import CommandError, UsageError
from topics.cli.shared.lines import Line, told
from topics.cli.shared.needs import has_spark
from topics.cli.shared.output import encode, line, note
from topics.cli.transfer.forms import FileForm, OnSpark
from topics.cli.transfer.spark import export_by_spark
from topics.client import Client, Gap

_LARGE_BYTES = 1024**3


def export(
    topic: str,
    target: Annotated[str, Parameter(allow_leading_hyphen=True)] = "-",
    /,
    *,
    format: FileForm = "jsonl",
    skip_lost: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="Go on behind records that are lost, with a word, instead of failing."
        ),
    ] = False,
    spark: OnSpark = None,
    data_dir: Annotated[
        str | None, Parameter(help="Read sealed records out of this data folder, on Spark; no server is needed.")
    ] = None,
    server: Server = HERE,
) -> int:
    """Write a topic's records to one file of JSON lines; on Spark, to a folder of files.

    More than 1 GiB goes to Spark where it is installed, unless it goes to standard output.

    Parameters
    ----------
    topic
        Its name.
    target
        A file or, on Spark, a folder that is not there yet; - is standard output.
    """
    if spark or format == "parquet" or data_dir is not None:
        if target == "-":
            raise UsageError("Spark writes a folder of files: say which folder")
        return export_by_spark(topic, target, format, server, data_dir, skip_lost=skip_lost)
    if target != "-" and os.path.exists(target):
        raise CommandError(f"{target} is there already: nothing was written")
    with connected(server, PATIENT_S) as client:
        size = client.get_topic(topic, touch=False).bytes
        if size > _LARGE_BYTES and spark is None and target != "-":
            if has_spark():
                note(f"{topic} holds {shown_bytes(size)}: Spark writes a folder of files; --no-spark writes one file")
                return export_by_spark(topic, target, format, server, None, skip_lost=skip_lost)
            note(f"{topic} holds {shown_bytes(size)}: Spark, which is not installed, writes that much in parallel")
        if target == "-":
            _write(client, topic, sys.stdout.buffer, skip_lost)
            return 0
        # Under its own name only when it is whole.
        unfinished = f"{target}.unfinished"
        try:
            with open(unfinished, "wb") as file:
                count = _write(client, topic, file, skip_lost)
            os.rename(unfinished, target)
        finally:
            if os.path.exists(unfinished):
                os.unlink(unfinished)
    line(f"{counted(count, 'record')} written to {target}")
    return 0


def _write(client: Client, topic: str, file: IO[bytes], skip_lost: bool) -> int:
    """The records of this moment: a topic that grows while it is exported does not keep it going for ever."""
    head = client.get_topic(topic, touch=False).head_seq
    count = 0
    for item in client.follow(topic, wait_ms=0, include_tags=True):
        if isinstance(item, Gap):
            if not skip_lost:
                raise CommandError(f"{told(topic, item)}: --skip-lost goes on behind them")
            note(told(topic, item))
            continue
        if item.seq > head:
            break
        file.write(encode(Line.of(item)) + b"\n")
        count += 1
    return count
