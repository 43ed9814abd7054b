"""Connector source: Spark's reader interfaces for batches and streams. Imports pyspark.

A batch is planned once, when `load` is called: the DataFrame is a snapshot of that moment. Filters are not pushed down,
because Spark 4.3 gives wrong results when a Python source does that and a DataFrame is used twice; options prune
instead.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from topics.schema.registry import decode_registry
from topics.schema.typed_columns import columns_of
from topics.spark.archive.archive_reader import FilePart
from topics.spark.arrow_slices import RECORD_DDL, RECORD_SCHEMA
from topics.spark.connector.options import (
    Bound,
    Losses,
    Offsets,
    OptionError,
    ReadOptions,
    from_checkpoint,
    read_options,
    to_checkpoint,
    write_options,
)
from topics.spark.connector.origins import (
    Origin,
    PieceSize,
    SegmentOrigin,
    SeqSpan,
    found_positions,
    limited,
    origin_of,
    packed,
    records_between,
    resolve,
    spans,
)
from topics.spark.connector.progress import ConsumerCommits
from topics.spark.connector.record_reader import (
    SpanReader,
    as_map,
    plan_history,
    read_history,
    read_schema,
    versions_of,
)
from topics.spark.connector.sink import BatchSink, StreamSink
from topics.spark.connector.spark_versions import (
    LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    arrow_schema,
)
from topics.spark.iceberg.typed_files import Subject, typed_rows, written_schema
from topics.spark.promotion import StreamVersions, Versions, promoted
from topics.spark.segment_reader import ScanOptions, SegmentRef, pack, plan_scan
from topics.system.clock import Clock, SystemClock

# Typed columns: the members of a stream's entries as columns of a DataFrame, by the functions that fill typed tables.
#
# The columns are fixed when a DataFrame is loaded, by the schema version at that time. Entries of a later version
# cannot be converted to an earlier one, so a plan that finds another version raises SchemaChangedError, above all in
# the next batch of a stream: restarted it has the new columns, and continues from its checkpoint. Columns chosen with
# `.schema(...)` stay fixed, and fail only once one of them no longer exists.


class SchemaChangedError(RuntimeError):
    """The schema of the stream has changed since the DataFrame was loaded."""


def typed_columns(options: ReadOptions) -> tuple[str, StructType]:
    """The current columns of a stream: their generation and types."""
    subject = _subject(_only(options, versions_of(options, options.topics)))
    return subject.columns.generation, from_arrow_schema(written_schema(subject.columns.columns).remove_metadata())


def check_typed(options: ReadOptions, versions: Versions, generation: str | None, requested: pa.Schema) -> None:
    """Raises SchemaChangedError if the requested columns differ from the stream's."""
    columns = _subject(_only(options, versions)).columns
    [name] = options.topics
    if generation is not None and columns.generation != generation:
        raise SchemaChangedError(f"the schema of {name} has changed since this was loaded: load it again")
    there = written_schema(columns.columns)
    wrong = [one.name for one in requested if one.name not in there.names or there.field(one.name).type != one.type]
    if wrong:
        reported = ", ".join(f"{field.name} {field.type}" for field in there)
        raise SchemaChangedError(f"{name} has no column {', '.join(wrong)} of that type; there are {reported}")


def in_columns(batches: Iterable[pa.RecordBatch], versions: Versions) -> Iterator[pa.RecordBatch]:
    """The records of the single stream of `versions` with a column for each member."""
    [(name, one)] = versions.items()
    subject = _subject(one)
    schema = written_schema(subject.columns.columns)
    for batch in batches:
        if not pc.all(pc.equal(batch["epoch"], one.epoch)).as_py():
            raise SchemaChangedError(f"{name} was made again while it was read: load it again")
        yield typed_rows(pa.Table.from_batches([batch]), subject, schema)


def _only(options: ReadOptions, versions: Versions) -> StreamVersions:
    [name] = options.topics
    if name not in versions:
        raise OptionError(f"{name} has no schema that could name its columns: leave the option typed out")
    return versions[name]


def _subject(one: StreamVersions) -> Subject:
    registry = decode_registry(one.registry)
    return Subject(registry, columns_of(registry))


_group_codec = msgspec.msgpack


class Piece(InputPartition):
    """The input of one task: seq spans, segments, or archive files, as plain values that can be pickled."""

    def __init__(
        self, spans_: list[SeqSpan] | None = None, group: bytes = b"", history: list[FilePart] | None = None
    ) -> None:
        self.spans = spans_ or []
        self.group = group
        self.history = history or []
        self.versions: Versions = {}
        """The schema versions to promote records by; empty for records as written."""


class TopicsDataSource(DataSource):
    """`format("topics")`."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    _generation: str | None = None
    """The generation of the typed columns. Spark pickles it from the schema to the readers."""

    def schema(self) -> str | StructType:
        if not any(name in self.options for name in ("typed", "columns", "metaAs")):
            return RECORD_DDL
        options = read_options(self.options, streaming=False)
        if not options.typed:
            return record_ddl(options)
        self._generation, columns = typed_columns(options)
        return columns

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicsReader(read_options(self.options, streaming=False), schema, self._generation)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TopicsStreamReader(read_options(self.options, streaming=True), schema, self._generation)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise OptionError("a topic is only ever appended to: use mode append")
        return BatchSink(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        if overwrite:
            raise OptionError("a topic is only ever appended to: use output mode append")
        return StreamSink(write_options(self.options), schema)


def record_ddl(options: ReadOptions) -> str:
    """Returns the schema of the chosen columns of records, with `meta` as a map if requested."""
    fields = dict(field.split(" ", 1) for field in RECORD_DDL.split(", "))
    if options.meta_map:
        fields["meta"] = "map<string, string>"
    return ", ".join(f"{name} {fields[name]}" for name in options.columns or fields)


class _Columns:
    """The requested columns: those of the options `columns` and `typed`, or of `.schema(...)`, in any order. Columns
    that nobody requested are not read."""

    def __init__(self, schema: StructType, options: ReadOptions, generation: str | None) -> None:
        unknown = [name for name in schema.names if name not in RECORD_SCHEMA.names]
        if unknown and not options.typed:
            raise OptionError(f"there is no column {', '.join(unknown)}; there are {', '.join(RECORD_SCHEMA.names)}")
        self._requested = arrow_schema(schema)
        self._options = options
        self._generation = generation
        self._read = read_schema(self._requested.names, options)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return self.of(_read(partition, self._options, self._read))

    def shown(self, pieces: list[Piece], versions: Versions) -> Sequence[InputPartition]:
        """The pieces with their schema versions."""
        if self._options.typed and pieces:
            check_typed(self._options, versions, self._generation, self._requested)
        for piece in pieces:
            piece.versions = versions
        return pieces

    def of(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self._requested == RECORD_SCHEMA:
            return batches
        # Spark compares schemas exactly, nullability included.
        return (
            pa.RecordBatch.from_arrays(
                [_as(batch[field.name], field) for field in self._requested], schema=self._requested
            )
            for batch in batches
        )


def _as(column: pa.Array, field: pa.Field) -> pa.Array:
    return as_map(column, field.type) if field.name == "meta" and pa.types.is_map(field.type) else column


class TopicsReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType, generation: str | None = None) -> None:
        self._options = options
        self._columns = _Columns(schema, options, generation)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        origin = origin_of(options.access)
        losses = Losses(options.fail_on_loss)
        positions = found_positions(origin, options)
        versions = versions_of(options, positions)
        history = [Piece(history=parts) for parts in plan_history(options, positions, origin, losses)]
        start = resolve(options.starting, options, positions, origin, start=True)
        end = resolve(options.ending, options, positions, origin, start=False)
        found = spans(start, end, losses)
        _report_losses(origin, found, losses)
        by_topic = (options.starting, options.ending, options.from_ts_by, options.to_ts_by)
        if isinstance(origin, SegmentOrigin) and not any(_is_by_topic(one) for one in by_topic):
            return self._columns.shown([*history, *self._segment_pieces(origin)], versions)
        sizes = {name: position.record_bytes for name, position in positions.items()}
        pieces = [Piece(piece) for piece in packed(found, _size(options), sizes)]
        return self._columns.shown([*history, *pieces], versions)

    def _segment_pieces(self, origin: SegmentOrigin) -> list[Piece]:
        """Partitions of whole topics as groups of segments, so that no segment is opened twice."""
        options = self._options
        if options.starting.word == "latest" or options.ending.word == "earliest":
            return []
        requested = ScanOptions(
            topics=options.topics, pattern=options.pattern, from_ts=options.from_ts, to_ts=options.to_ts,
            tag_prefix=options.tag_prefix, include_deleted=options.include_deleted,
        )  # fmt: skip
        assert origin.catalog is not None
        refs = plan_scan(origin.catalog, requested, SystemClock().now_ms())
        groups = pack(refs, options.bytes_per_partition, options.partitions_min)
        return [Piece(group=_group_codec.encode(group)) for group in groups]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return self._columns.read(partition)


class TopicsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches between offsets. Everything but `read` runs in one process beside the driver."""

    def __init__(self, options: ReadOptions, schema: StructType, generation: str | None = None) -> None:
        limits = {"maxRecordsPerTrigger": options.max_records, "minRecordsPerTrigger": options.min_records}
        given = [name for name, limit in limits.items() if limit]
        if given and not LIMITS:
            raise OptionError(f"{given[0]} needs Spark 4.2: {pyspark.__version__} does not pass limits to a source")
        self._options = options
        self._columns = _Columns(schema, options, generation)
        self._origin = origin_of(options.access)
        self._target: Offsets | None = None
        self._clock: Clock = SystemClock()
        self._waits_since: float | None = None
        """The time since which fewer records than `minRecordsPerTrigger` wait."""
        self._record_bytes: dict[str, int] = {}
        """The average record length of each topic, as last read."""
        self._commits = ConsumerCommits(options) if options.consumer is not None else None

    def initialOffset(self) -> dict[str, Any]:
        options = self._options
        positions = found_positions(self._origin, options)
        return to_checkpoint(resolve(options.starting, options, positions, self._origin, start=True))

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_records
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """Spark before 4.2 does not pass the start of the batch."""
        begin = from_checkpoint(start) if start is not None else {}
        if self._commits is not None and begin:
            # The batch before this one is in the sink. Spark calls `commit` for it only when it plans another batch.
            self._commits.commit(begin)
        end = self._target if self._target is not None else self._heads()
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        forward = _not_behind(begin, end)
        if start is not None and self._waits(records_between(begin, forward)):
            return start
        return to_checkpoint(limited(begin, forward, rows))

    def _waits(self, behind: int) -> bool:
        """Whether a micro-batch waits for more records. A query that reads only the records present at its start never
        waits."""
        options, now = self._options, self._clock.monotonic()
        if self._target is not None or not 0 < behind < options.min_records:
            self._waits_since = None
            return False
        since = self._waits_since = now if self._waits_since is None else self._waits_since
        if (now - since) * 1000 < options.trigger_delay_ms:
            return True
        self._waits_since = None
        return False

    def reportLatestOffset(self) -> dict[str, Any]:
        return to_checkpoint(self._heads())

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._heads()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        losses = Losses(self._options.fail_on_loss)
        found = spans(from_checkpoint(start), from_checkpoint(end), losses)
        _report_losses(self._origin, found, losses)
        if found and not self._record_bytes:
            self._heads()  # A restarted query repeats a batch before it asks for the latest offset.
        # A repeated batch may be partitioned differently: sinks commit the batch, not its partitions.
        pieces = [Piece(piece) for piece in packed(found, _size(self._options), self._record_bytes)]
        return self._columns.shown(pieces, versions_of(self._options, {one.topic for one in found}))

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return self._columns.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark calls it when the sink has committed everything up to `end`."""
        if self._commits is not None:
            self._commits.commit(from_checkpoint(end))

    def _heads(self) -> Offsets:
        positions = self._origin.positions(self._options)
        self._record_bytes = {name: one.record_bytes for name, one in positions.items()}
        return {name: {"epoch": one.epoch, "seq": one.head} for name, one in positions.items()}


def _is_by_topic(given: Bound | Mapping[str, int]) -> bool:
    return bool(given.by_topic if isinstance(given, Bound) else given)


def _size(options: ReadOptions) -> PieceSize:
    return PieceSize(options.records_per_partition, options.bytes_per_partition, options.partitions_min)


def _report_losses(origin: Origin, found: Sequence[SeqSpan], losses: Losses) -> None:
    for topic, (first, last), reason in origin.report((one.topic, one.epoch, one.after, one.to) for one in found):
        losses.record_loss(topic, first, last, reason)


def _not_behind(start: Offsets, end: Offsets) -> Offsets:
    """Offsets never decrease: a head before the cursor means that the topic lost its end, which the read reports."""
    forward = {}
    for name, to in end.items():
        before = start.get(name)
        behind = before is not None and before["epoch"] == to["epoch"] and before["seq"] > to["seq"]
        forward[name] = before if behind and before is not None else to
    return forward


def _read(piece: InputPartition | None, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if not isinstance(piece, Piece):
        return  # Spark asks for one partition of nothing when there are none.
    show = in_columns if options.typed else promoted
    yield from show(_read_written(piece, options, schema), piece.versions)


def _read_written(piece: Piece, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for part in piece.history:
        yield from read_history(part, options)
    with SpanReader(options, schema) as reader:
        if piece.group:
            yield from reader.read_group(_decode_group(piece.group))
        yield from reader.read(piece.spans)


def _decode_group(group: bytes) -> list[SegmentRef]:
    return _group_codec.decode(group, type=list[SegmentRef])
