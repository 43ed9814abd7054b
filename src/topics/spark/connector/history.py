"""Archived records that the log no longer has: what a batch that begins at the earliest reads first.

The log stands for everything from its first live record on, the archive for what lies below, so no record is read
twice and none that was deleted is shown. What neither of them has is told: the manifest knows exactly which seqs it
covers. A read begins with the first record that the archive was ever given, as one without an archive begins with the
first that the log still has.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from topics.core.ranges import Ranges, difference, intersection
from topics.spark.archive.manifest import ArchivedFile, Manifest
from topics.spark.archive.masks import Mask
from topics.spark.archive.reading import manifests_of
from topics.spark.archive.store import ArchiveStore
from topics.spark.archive.tasks import ARCHIVE_SCHEMA
from topics.spark.columns import RECORD_SCHEMA
from topics.spark.connector.loss import Losses
from topics.spark.connector.options import ReadOptions
from topics.spark.connector.origins import Origin, Position
from topics.spark.connector.reading import filtered
from topics.storage.objects.tiers import guest_files

_log = logging.getLogger(__name__)


class ArchivePart(msgspec.Struct, frozen=True):
    """One archived file, and the first seq of it that the log has."""

    path: str
    below: int
    size: int
    deleted: bytes
    """A `Mask` of what of the file must not be shown."""


def plan_history(
    options: ReadOptions, positions: Mapping[str, Position], origin: Origin, losses: Losses
) -> list[list[ArchivePart]]:
    """The archived files that hold anything older than the log, a list for each task."""
    if options.archive is None or options.starting.word != "earliest" or options.ending.word == "earliest":
        return []
    store = ArchiveStore(guest_files(options.archive), options.archive)
    wanted = {name: one for name, one in positions.items() if name not in options.starting.by_topic}
    parts: list[ArchivePart] = []
    found = set()
    for manifest in manifests_of(store):
        position = wanted.get(manifest.topic)
        if position is None or position.epoch != manifest.epoch:
            continue
        found.add(manifest.topic)
        for first, last in _gaps(manifest, position, origin, options):
            losses.met(manifest.topic, first, last, "neither the archive nor the log has them")
        parts += _parts(store, manifest, position, options)
    for name in sorted(wanted.keys() - found):
        _log.warning("the archive has nothing of a topic", extra={"topic": name})
    return _packed(parts, options.bytes_per_partition)


def _gaps(manifest: Manifest, position: Position, origin: Origin, options: ReadOptions) -> Ranges:
    """What was lost between the first archived record and the first that the log has, and was never archived."""
    if not manifest.covered or position.earliest <= manifest.covered[0][0]:
        return []
    first, last = manifest.covered[0][0], position.earliest - 1
    # Whoever asks for a time is not told what lies outside of it.
    first = max([first, *(file.last_seq + 1 for file in manifest.files if file.last_ts < options.from_ts)])
    last = min([last, *(file.first_seq - 1 for file in manifest.files if file.first_ts >= options.to_ts)])
    missing = difference([(first, last)], manifest.covered) if first <= last else []
    return intersection(missing, origin.lost_before(position)) if missing else []


def _parts(store: ArchiveStore, manifest: Manifest, position: Position, options: ReadOptions) -> list[ArchivePart]:
    def wanted(file: ArchivedFile) -> bool:
        older = file.first_seq < position.earliest
        return older and file.last_ts >= options.from_ts and file.first_ts < options.to_ts

    folder, mask = store.topic_folder(manifest.topic_id), Mask.of(manifest.deleted)
    return [
        ArchivePart(
            f"{folder}/{file.path}",
            position.earliest,
            file.bytes,
            mask.within(file.first_seq, file.last_seq).to_bytes(),
        )
        for file in manifest.files
        if wanted(file)
    ]


def _packed(parts: Iterable[ArchivePart], most_bytes: int) -> list[list[ArchivePart]]:
    """Neither a task for each small file nor one for everything."""
    groups: list[list[ArchivePart]] = []
    size = most_bytes
    for part in parts:
        if size + part.size > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.size
    return groups


def read_history(part: ArchivePart, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records of a file that are neither deleted nor in the log."""
    file = guest_files(options.archive).open(part.path)
    try:
        table = pq.read_table(pa.BufferReader(file.map()), schema=ARCHIVE_SCHEMA, partitioning=None)
    finally:
        file.close()
    table = Mask.from_bytes(part.deleted).shown(table.filter(pc.less(table["seq"], part.below)))
    table = table.append_column(RECORD_SCHEMA.field("deleted"), pa.repeat(pa.scalar(False), table.num_rows))
    for batch in table.to_batches(max_chunksize=20_000):
        yield filtered(pa.RecordBatch.from_arrays(batch.columns, schema=RECORD_SCHEMA), options)
