"""Files as the manifests of Iceberg name them, with the bounds by which engines leave files out."""

from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, StringType, TimestamptzType

from topics.spark.archive.files import DataFile as ArchiveFile
from topics.spark.table.files import Wanted
from topics.spark.table.positions import PATH_ID
from topics.spark.table.schema import EPOCH, ORDER_ID, TOPIC, Shape

_PART_CHARS = 64
"""Bounds of names may be shorter than the names, which may be long."""
_LONG, _TEXT, _TIME = LongType(), StringType(), TimestamptzType()


def data_entry(wanted: Wanted, shape: Shape) -> DataFile:
    file = wanted.file
    firsts, lasts = [run.first_seq for run in file.runs], [run.last_seq for run in file.runs]
    lower = {shape.seq_id: to_bytes(_LONG, min(firsts)), shape.ts_id: to_bytes(_TIME, file.first_ts * 1000)}
    upper = {shape.seq_id: to_bytes(_LONG, max(lasts)), shape.ts_id: to_bytes(_TIME, file.last_ts * 1000 + 999)}
    if shape.shared:
        _add_topics(file, lower, upper)
    return _entry(DataFileContent.DATA, wanted.path, wanted, file.rows, file.bytes, lower, upper, ORDER_ID, shape)


def _add_topics(file: ArchiveFile, lower: dict[int, bytes], upper: dict[int, bytes]) -> None:
    topics, epochs = [run.topic for run in file.runs], [run.epoch for run in file.runs]
    lower[TOPIC] = to_bytes(_TEXT, min(topics, key=str.encode)[:_PART_CHARS])
    lower[EPOCH], upper[EPOCH] = to_bytes(_LONG, min(epochs)), to_bytes(_LONG, max(epochs))
    last_topic = max(topics, key=str.encode)
    if len(last_topic) <= _PART_CHARS:
        # A shorter upper bound would be too low, and none is always right.
        upper[TOPIC] = to_bytes(_TEXT, last_topic)


def delete_entry(wanted: Wanted, path: str, rows: int, size: int, shape: Shape) -> DataFile:
    """A file of the places of deleted rows in one data file. Equal bounds say that it is about no other."""
    bounds = {PATH_ID: wanted.path.encode()}
    return _entry(DataFileContent.POSITION_DELETES, path, wanted, rows, size, bounds, dict(bounds), None, shape)


def _entry(
    content: DataFileContent, path: str, wanted: Wanted, rows: int, size: int, lower: dict[int, bytes],
    upper: dict[int, bytes], order: int | None, shape: Shape,
) -> DataFile:  # fmt: skip
    partition = Record(wanted.file.day, wanted.file.bucket) if shape.shared else Record(wanted.file.day)
    entry = DataFile.from_args(
        content=content, file_path=path, file_format=FileFormat.PARQUET, partition=partition,
        record_count=rows, file_size_in_bytes=size, column_sizes=None, value_counts=None, null_value_counts=None,
        nan_value_counts=None, lower_bounds=lower, upper_bounds=upper, key_metadata=None, split_offsets=None,
        equality_ids=None, sort_order_id=order,
    )  # fmt: skip
    entry.spec_id = shape.spec.spec_id
    return entry
