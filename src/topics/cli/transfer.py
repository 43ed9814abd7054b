"""`topics export` and `topics import`: topics to files and back, directly or on Spark."""

import os
import re
import sys
from collections.abc import Iterator
from typing import IO, Annotated, Literal

import msgspec
from cyclopts import Parameter

from topics.cli.arguments import counted, has_spark, need_spark, shown_bytes
from topics.cli.failures import CommandError, UsageError
from topics.cli.output import BATCH_BYTES, BATCH_RECORDS, Line, describe_gap, encode, line, note, read_lines
from topics.cli.server_connection import HERE, PATIENT_S, Server, connected, resolve
from topics.log.layout import absolute, check_place
from topics.model.settings import Settings
from topics_client import Client, Gap, NewRecord

Form = Literal["jsonl", "parquet"]
FileForm = Annotated[
    Form, Parameter(name="--format", help="The file format: JSON lines, or Parquet, which needs Spark.")
]
OnSpark = Annotated[
    bool | None,
    Parameter(
        negative="--no-spark",
        show_default=lambda _: "by size, if Spark is installed",
        help="Use Spark, in parallel and with a folder of files.",
    ),
]


# On Spark: in parallel, with folders of files, and from a data folder without a server.

_NO_RECORD = re.compile(r"BadLineError: (.*)")
_NO_PARQUET = re.compile(r"(?:file:)?(\S+ is not a Parquet file)")


def export_by_spark(
    topic: str, target: str, form: Form, server: Server, data_dir: str | None, *, skip_lost: bool
) -> int:
    """Exports to a new folder."""
    need_spark("an export on Spark")
    if os.path.exists(target):
        raise FileExistsError(f"{target} exists already")
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
    """Imports a file or a folder of files."""
    need_spark("an import on Spark")
    if not os.path.exists(source):
        raise FileNotFoundError(f"{source} does not exist")
    from topics.spark.session import SparkOptions, open_session  # noqa: PLC0415
    from topics.spark.transfer import import_topic  # noqa: PLC0415

    access = {**_server(server), "writeId": write_id}
    spark = open_session(SparkOptions.of(Settings.from_env(os.environ), "topics import"))
    # The error is reported below in one line; Spark's log would add pages of stack traces.
    spark.sparkContext.setLogLevel("OFF")
    try:
        count = import_topic(spark, topic, os.path.abspath(source), form, _given(access))
    except Exception as error:
        problem = wrong_file(str(error))
        if problem is None:
            raise
        raise CommandError(f"{problem}; {source} may only contain files of records") from error
    finally:
        spark.stop()
    line(f"{count} records appended to {topic}")
    return 0


def wrong_file(failure: str) -> str | None:
    """The part of a Spark error about a file that has no records; None for other errors."""
    found = _NO_RECORD.search(failure) or _NO_PARQUET.search(failure)
    return found[1] if found is not None else None


def folder_access(data_dir: str) -> dict[str, str | None]:
    """The connector options to read a data folder."""
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
            negative="", show_default=False, help="Continue after lost records with a message instead of failing."
        ),
    ] = False,
    spark: OnSpark = None,
    data_dir: Annotated[
        str | None, Parameter(help="Read sealed records from this data folder on Spark, without a server.")
    ] = None,
    server: Server = HERE,
) -> int:
    """Export the records of a topic to a file of JSON lines, or on Spark to a folder of files.

    More than 1 GiB is exported on Spark if it is installed, unless the target is standard output.

    Parameters
    ----------
    topic
        The name of the topic.
    target
        A new file or, on Spark, a new folder; - for standard output.
    """
    if spark or format == "parquet" or data_dir is not None:
        if target == "-":
            raise UsageError("Spark writes a folder of files: give a folder")
        return export_by_spark(topic, target, format, server, data_dir, skip_lost=skip_lost)
    if target != "-" and os.path.exists(target):
        raise CommandError(f"{target} exists already: nothing was written")
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
        # Renamed when it is complete.
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
    """Writes the records up to the current head, so that a growing topic does not keep the export running."""
    head = client.get_topic(topic, touch=False).head_seq
    count = 0
    for item in client.follow(topic, wait_ms=0, include_tags=True):
        if isinstance(item, Gap):
            if not skip_lost:
                raise CommandError(f"{describe_gap(topic, item)}: --skip-lost continues after them")
            note(describe_gap(topic, item))
            continue
        if item.seq > head:
            break
        file.write(encode(Line.of(item)) + b"\n")
        count += 1
    return count


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
            help="The idempotency id: an import repeated within the topic's idempotency_window_ms writes nothing twice."
        ),
    ] = None,
    spark: OnSpark = None,
    server: Server = HERE,
) -> int:
    """Import the records of a file into a topic, in order. The format is that of an export.

    A line must have `data`, and may have `tag`, `node` and `meta`; seqs and times are assigned again. A folder is read
    on Spark if it is installed. A single file is not, however large: its records are appended in order, one request
    after the other.

    Parameters
    ----------
    topic
        The name of the topic.
    source
        A file or, on Spark, a folder of files; - for standard input.
    """
    if spark or format == "parquet" or (spark is None and os.path.isdir(source) and has_spark()):
        if source == "-":
            raise UsageError("Spark reads files: give a file or folder")
        return import_by_spark(topic, source, format, server, write_id)
    if os.path.isdir(source):
        raise UsageError(f"{source} is a folder: read it on Spark with --spark, or join its files with `cat`")
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
    line(f"{counted(count, 'record')} appended to {topic}" + (f", {repeated} existed already" if repeated else ""))
    return 0


def _batches(descriptor: int) -> Iterator[list[NewRecord]]:
    """Full batches, so that the same file always has the same batches: the idempotency keys depend on it."""
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
            f"line {number} is not a record ({error}): {content[:80].decode('utf-8', 'replace')!r}"
        ) from error
    # A copy: a slice would keep the whole line in memory.
    return NewRecord(given.data.copy(), given.tag, given.node, given.meta)
