"""Archived records that the log no longer has: what a batch that begins at the earliest reads first.

The log stands for everything from its first live record on, the archive for what lies below, so no record is read
twice and none that was deleted is shown. What neither of them has is told: the ledger knows exactly which seqs it
covers. A read begins with the first record that the archive was ever given, as one without an archive begins with the
first that the log still has.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from topics.core.ranges import Ranges, difference, intersection
from topics.spark.archive.files import Run
from topics.spark.archive.parts import FilePart, pack_parts, parts_of, read_part
from topics.spark.archive.state import ArchivedTopic
from topics.spark.archive.store import ArchiveStore
from topics.spark.columns import RECORD_SCHEMA
from topics.spark.connector.loss import Losses
from topics.spark.connector.options import ReadOptions
from topics.spark.connector.origins import Origin, Position
from topics.spark.connector.reading import filtered
from topics.storage.objects.tiers import guest_files

_log = logging.getLogger(__name__)


def plan_history(
    options: ReadOptions, positions: Mapping[str, Position], origin: Origin, losses: Losses
) -> list[list[FilePart]]:
    """The archived files that hold anything older than the log, a list for each task."""
    if options.archive is None or options.starting.word != "earliest" or options.ending.word == "earliest":
        return []
    store = ArchiveStore(guest_files(options.archive), options.archive)
    wanted = {name: one for name, one in positions.items() if name not in options.starting.by_topic}
    parts: list[FilePart] = []
    found = set()
    state = store.load()
    for topic in state.topics.values():
        position = wanted.get(topic.name)
        if position is None or position.epoch != topic.epoch:
            continue
        found.add(topic.name)
        runs = state.runs_of(topic.topic_id)
        for first, last in _gaps(topic, runs, position, origin, options):
            losses.met(topic.name, first, last, "neither the archive nor the log has them")
        below = position.earliest
        parts += parts_of(store, state, topic.topic_id, below, lambda run, below=below: _is_wanted(run, below, options))  # type: ignore[misc]
    for name in sorted(wanted.keys() - found):
        _log.warning("the archive has nothing of a topic", extra={"topic": name})
    return pack_parts(parts, options.bytes_per_partition)


def _is_wanted(run: Run, below: int, options: ReadOptions) -> bool:
    return run.first_seq < below and run.last_ts >= options.from_ts and run.first_ts < options.to_ts


def _gaps(
    topic: ArchivedTopic, runs: Sequence[Run], position: Position, origin: Origin, options: ReadOptions
) -> Ranges:
    """What was lost between the first archived record and the first that the log has, and was never archived."""
    if not topic.covered or position.earliest <= topic.covered[0][0]:
        return []
    first, last = topic.covered[0][0], position.earliest - 1
    # Whoever asks for a time is not told what lies outside of it.
    first = max([first, *(run.last_seq + 1 for run in runs if run.last_ts < options.from_ts)])
    last = min([last, *(run.first_seq - 1 for run in runs if run.first_ts >= options.to_ts)])
    missing = difference([(first, last)], topic.covered) if first <= last else []
    return intersection(missing, origin.lost_before(position)) if missing else []


def read_history(part: FilePart, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records of a file that are neither deleted nor in the log."""
    table = read_part(guest_files(options.archive), part)
    table = table.append_column(RECORD_SCHEMA.field("deleted"), pa.repeat(pa.scalar(False), table.num_rows))
    for batch in table.to_batches(max_chunksize=20_000):
        yield filtered(pa.RecordBatch.from_arrays(batch.columns, schema=RECORD_SCHEMA), options)
