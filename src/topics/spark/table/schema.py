"""The table as Iceberg describes it: columns, partitions, order, properties."""

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import IcebergType, LongType, NestedField, StringType, TimestamptzType

from topics.spark.columns import FIELD_IDS
from topics.spark.placement import BUCKETS

FORMAT_VERSION = 2
"""The one whose deletes every reader honours; those of version 3 few do yet."""
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
"""The number that a table gives its first order."""


def properties(file_bytes: int) -> dict[str, str]:
    """What other engines go by. Whoever writes is this pipeline; the properties are for tools that look."""
    return {
        "format-version": str(FORMAT_VERSION),
        # Files of before the table have no ids of columns in them, and are read by names.
        "schema.name-mapping.default": create_mapping_from_schema(SCHEMA).model_dump_json(),
        "write.format.default": "parquet",
        "write.parquet.compression-codec": "zstd",
        "write.target-file-size-bytes": str(file_bytes),
        "write.delete.mode": "merge-on-read",
        "write.delete.granularity": "file",
        "write.metadata.previous-versions-max": "500",
    }
