"""Iceberg manifests: lists of data files and delete files. Unchanged manifests are reused by the next snapshot.

Iceberg table schema: columns, partition spec, sort order and properties of the archive's tables.

Iceberg FileIO on a `FileSystem`, so that table files are stored where the archive is: folder or object store.
"""

import io
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    read_manifest_list,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, ListType, LongType, NestedField, StringType, StructType, TimestamptzType

from topics.log.fs import FileSystem, naming, read_whole
from topics.spark.archive.data_files import ArchiveFile, Ints, Mask, Run, TableFile, read_column
from topics.spark.arrow_slices import FIELD_IDS
from topics.spark.segment_reader import BUCKETS


class TableIO(FileIO):
    """Reads and writes whole files, because metadata files are small."""

    def __init__(self, fs: FileSystem) -> None:
        super().__init__({})
        self._fs = fs

    def new_input(self, location: str) -> InputFile:
        return _Input(self._fs, location)

    def new_output(self, location: str) -> OutputFile:
        return _Output(self._fs, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._fs.remove(location if isinstance(location, str) else location.location)


class _Input(InputFile):
    def __init__(self, fs: FileSystem, location: str) -> None:
        super().__init__(location)
        self._fs = fs

    def __len__(self) -> int:
        return len(self._whole())

    def exists(self) -> bool:
        return self._fs.exists(self.location)

    def open(self, seekable: bool = True) -> InputStream:
        return io.BytesIO(self._whole())

    def _whole(self) -> bytes:
        data = read_whole(self._fs, self.location)
        if data is None:
            raise FileNotFoundError(self.location)
        return data


class _Output(OutputFile):
    def __init__(self, fs: FileSystem, location: str) -> None:
        super().__init__(location)
        self._fs = fs
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def exists(self) -> bool:
        return self._fs.exists(self.location)

    def to_input_file(self) -> InputFile:
        return _Input(self._fs, self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        return _Stream(self)

    def put(self, data: bytes) -> None:
        write_synced(self._fs, self.location, data)
        self._length = len(data)


class _Stream:
    """Writes its bytes to the file when it is closed, and nothing after an exception."""

    def __init__(self, output: _Output) -> None:
        self._output = output
        self._pieces: list[bytes] | None = []

    def write(self, b: bytes) -> int:
        assert self._pieces is not None
        self._pieces.append(bytes(b))
        return len(b)

    def tell(self) -> int:
        return sum(map(len, self._pieces or ()))

    def close(self) -> None:
        pieces, self._pieces = self._pieces, None
        if pieces is not None:
            self._output.put(b"".join(pieces))

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._pieces = None
        self.close()


def write_synced(fs: FileSystem, path: str, data: bytes | memoryview) -> None:
    """Writes a new file and syncs it. The name is durable after the folder is synced."""
    file = fs.open(path, create=True)
    try:
        with naming(path):
            file.truncate(0)
            file.write_at(0, data)
            file.sync()
    finally:
        file.close()


FORMAT_VERSION = 2
"""Version 2: every reader applies its position deletes; few support version 3 yet."""
TOPIC, EPOCH, SEQ, TS = (FIELD_IDS[name] for name in ("topic", "epoch", "seq", "ts"))


def _field(name: str, kind: IcebergType, doc: str, required: bool = True) -> NestedField:
    return NestedField(FIELD_IDS[name], name, kind, required=required, doc=doc)


SCHEMA = Schema(
    _field("topic", StringType(), "the topic's name"),
    _field("epoch", LongType(), "tells the topic from a later one of the same name"),
    _field("seq", LongType(), "the record's number in its topic"),
    _field("ts", TimestamptzType(), "when it was committed"),
    _field("node", StringType(), "who wrote it", required=False),
    _field("tag", StringType(), "its tag", required=False),
    _field("meta", StringType(), "its headers as JSON text", required=False),
    _field("data", StringType(), "its payload as JSON text; of a binary one, base64 in a JSON string"),
    _field("content_type", StringType(), "application/json, or what the headers say"),
)

SPEC = PartitionSpec(
    PartitionField(source_id=TS, field_id=1000, transform=DayTransform(), name="day"),
    PartitionField(source_id=TOPIC, field_id=1001, transform=BucketTransform(BUCKETS), name="topic_bucket"),
)

ORDER = SortOrder(*[SortField(source_id=column, transform=IdentityTransform()) for column in (TOPIC, EPOCH, SEQ)])

ORDER_ID = 1
"""The id of the first sort order of a table."""


class Shape(NamedTuple):
    """The kind of a table: the archive's own (the default), or the typed table of one stream."""

    schema: Schema
    spec: PartitionSpec
    order: SortOrder
    created: Schema
    """The columns of a new table; the first commit evolves it to `schema`."""
    seq_id: int
    ts_id: int
    seq_column: str
    shared: bool
    """Whether topics share the table, and its files have one bucket of topics."""

    def fits(self, metadata: TableMetadata) -> bool:
        """Whether a table can evolve to this shape: no field id was ever used for another column."""
        if metadata.spec() != self.spec:
            return False
        if self.shared:
            return metadata.schema() == self.schema
        desired = _by_id(self.schema.fields)
        return all(
            desired.get(number, one) == one
            for known in metadata.schemas
            for number, one in _by_id(known.fields).items()
        )


def _by_id(fields: Iterable[NestedField]) -> dict[int, tuple[str, object]]:
    """Every field by its id, nested ones too: its name and its type, without the members of a struct."""
    found: dict[int, tuple[str, object]] = {}
    for field in fields:
        kind = field.field_type
        if isinstance(kind, StructType | ListType):
            inner = kind.fields if isinstance(kind, StructType) else (kind.element_field,)
            found |= _by_id(inner)
            found[field.field_id] = field.name, type(kind)
        else:
            found[field.field_id] = field.name, kind
    return found


RECORDS = Shape(SCHEMA, SPEC, ORDER, SCHEMA, SEQ, TS, "seq", shared=True)
"""The archive's own table: the records of all topics as they were written."""


def properties(file_bytes: int, schema: Schema = SCHEMA) -> dict[str, str]:
    """Table properties for other engines. Only this pipeline writes the table."""
    return {
        "format-version": str(FORMAT_VERSION),
        # Files without field ids are read by column name.
        "schema.name-mapping.default": create_mapping_from_schema(schema).model_dump_json(),
        "write.format.default": "parquet",
        "write.parquet.compression-codec": "zstd",
        "write.target-file-size-bytes": str(file_bytes),
        "write.delete.mode": "merge-on-read",
        "write.delete.granularity": "file",
        "write.metadata.previous-versions-max": "500",
    }


MANIFEST_FILES = 4096
"""The maximum number of files in one manifest."""
SMALL_FILES = 1024
SMALL_MANIFESTS_MAX = 16
"""More small manifests than this are merged, so that readers open few."""
_CODEC: AvroCompressionCodec = "deflate"
_DELETED = ManifestEntryStatus.DELETED


class ManifestMaker:
    """Writes the manifests of one snapshot. `names` returns unique file names."""

    def __init__(self, io: TableIO, snapshot_id: int, names: Callable[[], str], shape: Shape) -> None:
        self._shape = shape
        self._io = io
        self._snapshot_id = snapshot_id
        self._names = names
        self.made: dict[str, list[DataFile]] = {}
        """The live files of each written manifest."""

    def added(self, content: ManifestContent, files: Sequence[DataFile]) -> list[ManifestFile]:
        entries = [
            ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file)
            for file in files
        ]
        return self._written(content, entries)

    def without(self, manifest: ManifestFile, paths: Collection[str]) -> tuple[list[ManifestFile], list[DataFile]]:
        """A manifest without some files, and the entries of those."""
        entries, gone = [], []
        for entry in manifest.fetch_manifest_entry(self._io):
            if entry.data_file.file_path in paths:
                gone.append(entry.data_file)
                entries.append(self._as(entry, ManifestEntryStatus.DELETED, self._snapshot_id))
            else:
                entries.append(self._as(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id))
        return self._written(manifest.content, entries), gone

    def merged(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        """Merges small manifests where there are many, and drops empty ones."""
        live = [one for one in manifests if _files(one)]
        for content in (ManifestContent.DATA, ManifestContent.DELETES):
            # A snapshot must list its removals once, so its own manifests stay as they are.
            small = [one for one in live if one.content == content and self._mergeable(one)]
            if len(small) > SMALL_MANIFESTS_MAX:
                gone = set(small)
                entries = [entry for one in small for entry in one.fetch_manifest_entry(self._io)]
                whole = [self._as(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id) for entry in entries]
                live = [*self._written(content, whole), *(one for one in live if one not in gone)]
        return live

    def listed(self, manifests: Sequence[ManifestFile], parent: int | None, sequence: int) -> str:
        """Writes the manifest list of a snapshot; returns its path."""
        path = self._names()
        output = self._io.new_output(path)
        with write_manifest_list(2, output, self._snapshot_id, parent, sequence, _CODEC) as writer:
            writer.add_manifests(list(manifests))
        return path

    def _mergeable(self, manifest: ManifestFile) -> bool:
        return _files(manifest) < SMALL_FILES and manifest.added_snapshot_id != self._snapshot_id

    def _as(self, entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=status, snapshot_id=snapshot_id, sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number, data_file=entry.data_file,
        )  # fmt: skip

    def _written(self, content: ManifestContent, entries: Sequence[ManifestEntry]) -> list[ManifestFile]:
        found = []
        for at in range(0, len(entries), MANIFEST_FILES):
            output = self._io.new_output(self._names())
            with _Writer(content, output, self._snapshot_id, self._shape) as writer:
                for entry in entries[at : at + MANIFEST_FILES]:
                    writer.add_entry(entry)
            found.append(writer.to_manifest_file())
            live = [one.data_file for one in entries[at : at + MANIFEST_FILES] if one.status != _DELETED]
            self.made[output.location] = live
        return found


class _Writer(ManifestWriterV2):
    """A manifest writer for delete files, which pyiceberg reads but does not write."""

    def __init__(self, content: ManifestContent, output: object, snapshot_id: int, shape: Shape) -> None:
        super().__init__(shape.spec, shape.schema, output, snapshot_id, _CODEC)  # type: ignore[arg-type]
        self._content = content

    def content(self) -> ManifestContent:
        return self._content

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "data" if self._content == ManifestContent.DATA else "deletes"}


def manifests_at(io: TableIO, path: str) -> list[ManifestFile]:
    """The manifests of a list. pyiceberg's own function caches them for the whole process."""
    return list(read_manifest_list(io.new_input(path)))


def live_files(io: TableIO, manifests: Iterable[ManifestFile]) -> dict[str, list[DataFile]]:
    """The live files by the path of their manifest."""
    return {
        one.manifest_path: [entry.data_file for entry in one.fetch_manifest_entry(io)]
        for one in manifests
        if _files(one)
    }


def _files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


# Position deletes: the row numbers of deleted records in a data file.
#
# Every engine that reads version 2 of the format applies them. Each data file has at most one delete file, which has
# all deletes of it and is replaced when there are more; its name has a hash of them, so that a later process can
# compare them without opening the file.

PATH_ID, POS_ID = 2147483546, 2147483545
"""The field ids of the two columns of a position delete file."""

_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={b"PARQUET:field_id": b"%d" % PATH_ID}),
        pa.field("pos", pa.int64(), nullable=False, metadata={b"PARQUET:field_id": b"%d" % POS_ID}),
    ]
)


def hash_of(desired: TableFile) -> str:
    """A hash of the deletes in a file; empty when there are none."""
    state = None
    for place, mask in enumerate(desired.hidden):
        if len(mask):
            state = state or xxhash.xxh3_64()
            data = mask.to_bytes()
            state.update(b"%d:%d:" % (place, len(data)))
            state.update(data)
    return state.hexdigest() if state is not None else ""


def hidden_positions(fs: FileSystem, desired: TableFile) -> Ints:
    """The row numbers of the deleted rows of a file, ascending. The file is opened only where seqs have gaps."""
    seqs: Ints | None = None
    found = [np.empty(0, np.int64)]
    for (start, run), mask in zip(desired.file.starts(), desired.hidden, strict=False):
        if not len(mask):
            continue
        places = _computed(run, mask)
        if places is None:
            seqs = read_column(fs, desired.path, desired.seq_column).to_numpy() if seqs is None else seqs
            places = np.flatnonzero(mask.hides(seqs[start : start + run.rows]))
        found.append(places + start)
    return np.concatenate(found)


def _computed(run: Run, mask: Mask) -> Ints | None:
    """The row numbers in a run by arithmetic, where no seq is missing in it or all of it is deleted."""
    if mask.firsts[0] <= run.first_seq and mask.lasts[0] >= run.last_seq:
        return np.arange(run.rows)
    if run.rows != run.last_seq - run.first_seq + 1:
        return None
    counts = mask.lasts - mask.firsts + 1
    starts = np.cumsum(counts) - counts
    places: Ints = np.repeat(mask.firsts - run.first_seq - starts, counts) + np.arange(int(counts.sum()))
    return places


def encoded_positions(path: str, positions: Ints) -> bytes:
    """The position delete file, as Parquet bytes."""
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(positions), np.int32)), pa.array([path]))
    table = pa.Table.from_arrays([names.cast(pa.string()), pa.array(positions)], schema=_SCHEMA)
    target = io.BytesIO()
    pq.write_table(table, target, compression="zstd", use_dictionary=["file_path"])
    return target.getvalue()


# Manifest entries, with the column bounds by which engines prune files.

_PART_CHARS = 64
"""Bounds of strings may be truncated."""
_LONG, _TEXT, _TIME = LongType(), StringType(), TimestamptzType()


def data_entry(desired: TableFile, shape: Shape) -> DataFile:
    file = desired.file
    firsts, lasts = [run.first_seq for run in file.runs], [run.last_seq for run in file.runs]
    lower = {shape.seq_id: to_bytes(_LONG, min(firsts)), shape.ts_id: to_bytes(_TIME, file.first_ts * 1000)}
    upper = {shape.seq_id: to_bytes(_LONG, max(lasts)), shape.ts_id: to_bytes(_TIME, file.last_ts * 1000 + 999)}
    if shape.shared:
        _add_topics(file, lower, upper)
    for number, least, greatest in desired.bounds:
        lower[number], upper[number] = to_bytes(_TIME, least), to_bytes(_TIME, greatest)
    return _entry(DataFileContent.DATA, desired.path, desired, file.rows, file.bytes, lower, upper, ORDER_ID, shape)


def _add_topics(file: ArchiveFile, lower: dict[int, bytes], upper: dict[int, bytes]) -> None:
    topics, epochs = [run.topic for run in file.runs], [run.epoch for run in file.runs]
    lower[TOPIC] = to_bytes(_TEXT, min(topics, key=str.encode)[:_PART_CHARS])
    lower[EPOCH], upper[EPOCH] = to_bytes(_LONG, min(epochs)), to_bytes(_LONG, max(epochs))
    last_topic = max(topics, key=str.encode)
    if len(last_topic) <= _PART_CHARS:
        # A truncated upper bound would be too low; no bound is always valid.
        upper[TOPIC] = to_bytes(_TEXT, last_topic)


def delete_entry(desired: TableFile, path: str, rows: int, size: int, shape: Shape) -> DataFile:
    """The entry of a position delete file. Equal path bounds mean that it applies to one data file."""
    bounds = {PATH_ID: desired.path.encode()}
    return _entry(DataFileContent.POSITION_DELETES, path, desired, rows, size, bounds, dict(bounds), None, shape)


def _entry(
    content: DataFileContent, path: str, desired: TableFile, rows: int, size: int, lower: dict[int, bytes],
    upper: dict[int, bytes], order: int | None, shape: Shape,
) -> DataFile:  # fmt: skip
    partition = Record(desired.file.day, desired.file.bucket) if shape.shared else Record(desired.file.day)
    entry = DataFile.from_args(
        content=content, file_path=path, file_format=FileFormat.PARQUET, partition=partition,
        record_count=rows, file_size_in_bytes=size, column_sizes=None, value_counts=None, null_value_counts=None,
        nan_value_counts=None, lower_bounds=lower, upper_bounds=upper, key_metadata=None, split_offsets=None,
        equality_ids=None, sort_order_id=order,
    )  # fmt: skip
    entry.spec_id = shape.spec.spec_id
    return entry
