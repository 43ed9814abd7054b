"""Archived files as the work of tasks: small values that travel, and what is read where they arrive."""

from collections.abc import Callable, Iterable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from topics.spark.archive.manifest import ArchivedFile, Manifest
from topics.spark.archive.masks import Mask
from topics.spark.archive.store import ArchiveStore
from topics.spark.archive.tasks import ARCHIVE_SCHEMA
from topics.storage.fs import FileSystem

_ALL = 2**63 - 1


class FilePart(msgspec.Struct, frozen=True):
    """One archived file, and what of it is to be shown."""

    path: str
    size: int
    deleted: bytes
    """A `Mask` of what must not be shown."""
    below: int = _ALL
    """Only records with lower seqs are wanted."""


def parts_of(
    store: ArchiveStore,
    manifest: Manifest,
    mask: Mask,
    below: int = _ALL,
    wanted: Callable[[ArchivedFile], bool] = lambda _: True,
) -> list[FilePart]:
    """The files of a topic, each with its own part of the deletes."""
    folder = store.topic_folder(manifest.topic_id)
    return [
        FilePart(f"{folder}/{file.path}", file.bytes, mask.within(file.first_seq, file.last_seq).to_bytes(), below)
        for file in manifest.files
        if wanted(file)
    ]


def pack_parts(parts: Iterable[FilePart], most_bytes: int) -> list[list[FilePart]]:
    """Neither a task for each small file nor one for everything."""
    groups: list[list[FilePart]] = []
    size = most_bytes
    for part in parts:
        if size + part.size > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.size
    return groups


def read_file(fs: FileSystem, path: str) -> pa.Table:
    """All records of a file, deleted ones included."""
    file = fs.open(path)
    try:
        return pq.read_table(pa.BufferReader(file.map()), schema=ARCHIVE_SCHEMA, partitioning=None)
    finally:
        file.close()


def read_part(fs: FileSystem, part: FilePart) -> pa.Table:
    """The records of a file that are to be shown."""
    table = read_file(fs, part.path)
    if part.below < _ALL:
        table = table.filter(pc.less(table["seq"], part.below))
    return Mask.from_bytes(part.deleted).shown(table)
