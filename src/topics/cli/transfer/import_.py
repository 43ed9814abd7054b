"""`topics import`."""

import os
import sys
from collections.abc import Iterator
from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.shared.amounts import counted
from topics.cli.shared.connection import HERE, PATIENT_S, Server, connected
from topics.cli.shared.failures import CommandError, UsageError
from topics.cli.shared.lines import BATCH_BYTES, BATCH_RECORDS, read_lines
from topics.cli.shared.needs import has_spark
from topics.cli.shared.output import line, note
from topics.cli.transfer.forms import FileForm, OnSpark
from topics.cli.transfer.spark import import_by_spark
from topics.client import NewRecord


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
