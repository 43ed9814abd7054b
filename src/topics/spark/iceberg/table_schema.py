"""Iceberg table schema: columns, partition spec, sort order and properties of the archive's tables."""

from typing import NamedTuple

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import IcebergType, LongType, NestedField, StringType, TimestamptzType

from topics.spark.arrow_slices import FIELD_IDS
from topics.spark.segment_reader import BUCKETS

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
        desired = {field.field_id: field for field in self.schema.fields}
        return all(
            (field.name, field.field_type) == (desired[field.field_id].name, desired[field.field_id].field_type)
            for known in metadata.schemas
            for field in known.fields
            if field.field_id in desired
        )


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
