"""`topics export`."""

import os
import re
import sys
from collections.abc import Iterator
from typing import IO, Annotated, Literal

import msgspec
from cyclopts import Parameter

from topics.cli.arguments import counted, has_spark, need_spark, shown_bytes
from topics.cli.failures import CommandError, UsageError
from topics.cli.output import BATCH_BYTES, BATCH_RECORDS, Line, encode, line, note, read_lines, told
from topics.cli.server_connection import HERE, PATIENT_S, Server, connected, resolve
from topics.log.layout import absolute, check_place
from topics.model.settings import Settings
from topics_client import Client, Gap, NewRecord

# What files may hold, and on what they are made.

Form = Literal["jsonl", "parquet"]
FileForm = Annotated[
    Form, Parameter(name="--format", help="What the files are: JSON lines, or Parquet, which is made on Spark.")
]
OnSpark = Annotated[
    bool | None,
    Parameter(
        negative="--no-spark",
        show_default=lambda _: "by size, where Spark is installed",
        help="Do it on Spark, in parallel and with a folder of files; or never.",
    ),
]


# Exports and imports on Spark: in parallel, into folders, and out of a data folder without a server.

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


# `topics import`.


class _Given(msgspec.Struct):
    data: msgspec.Raw
    node: str | None = None
    tag: str | None = None
    meta: dict[str, object] | None = None


_decode = msgspec.json.Decoder(_Given).decode


def import_(
    topic: str,
    source: Annotated[str, Parameter(allow_leading_hyphen=True)] = "-",
    /,
    *,
    format: FileForm = "jsonl",
    write_id: Annotated[
        str | None,
        Parameter(
            help="Makes an import that is repeated within the topic's idempotency_window_ms write nothing twice."
        ),
    ] = None,
    spark: OnSpark = None,
    server: Server = HERE,
) -> int:
    """Append the records of a file to a topic, in their order: the lines that an export writes.

    Of each line `data` is needed, and `tag`, `node` and `meta` are taken; seqs and times are given anew. A folder is
    read by Spark, where it is installed. One file is not, however large: its records are appended in their order, one
    request after the other, with or without Spark.

    Parameters
    ----------
    topic
        Its name.
    source
        A file or, on Spark, a folder of files; - is standard input.
    """
    if spark or format == "parquet" or (spark is None and os.path.isdir(source) and has_spark()):
        if source == "-":
            raise UsageError("Spark reads files: say which file or folder")
        return import_by_spark(topic, source, format, server, write_id)
    if os.path.isdir(source):
        raise UsageError(f"{source} is a folder: Spark reads the files in it (--spark), and `cat` makes one of them")
    descriptor = sys.stdin.fileno() if source == "-" else os.open(source, os.O_RDONLY)
    count = repeated = 0
    try:
        with connected(server, PATIENT_S) as client:
            for number, batch in enumerate(_batches(descriptor)):
                key = None if write_id is None else f"import/{write_id}/{number}"
                answer = client.append_many(topic, batch, idempotency_key=key, return_seqs=False)
                if answer.deduped:
                    repeated += len(batch)
                else:
                    count += len(batch)
    except BaseException:
        if count:
            note(f"{counted(count, 'record')} acknowledged before this")
        raise
    finally:
        if source != "-":
            os.close(descriptor)
    line(f"{counted(count, 'record')} appended to {topic}" + (f", {repeated} were there already" if repeated else ""))
    return 0


def _batches(descriptor: int) -> Iterator[list[NewRecord]]:
    """Full ones, so that the same file is cut at the same places each time: the keys depend on it."""
    batch: list[NewRecord] = []
    size = 0
    for numbered in read_lines(descriptor):
        for number, content in numbered:
            if batch and (len(batch) >= BATCH_RECORDS or size + len(content) > BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(_record(number, content))
            size += len(content)
    if batch:
        yield batch


def _record(number: int, content: bytes) -> NewRecord:
    try:
        content.decode("utf-8")
        given = _decode(content)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise CommandError(
            f"line {number} is no record ({error}): {content[:80].decode('utf-8', 'replace')!r}"
        ) from error
    # A copy: a slice of the line would keep all of it.
    return NewRecord(given.data.copy(), given.tag, given.node, given.meta)
