"""The columns of records, once for Arrow and once for Spark; tests hold the two together."""

import pyarrow as pa

RECORD_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("node", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("meta", pa.string()),
        pa.field("data", pa.string(), nullable=False),
        pa.field("content_type", pa.string(), nullable=False),
        pa.field("deleted", pa.bool_(), nullable=False),
    ]
)

FIELD_IDS = {name: number for number, name in enumerate(RECORD_SCHEMA.names, 1)}
"""What Iceberg knows the columns by. Files have the numbers in them, so they are never given to anything else."""

RECORD_DDL = (
    "topic string not null, epoch bigint not null, seq bigint not null, ts timestamp not null, node string, "
    "tag string, meta string, data string not null, content_type string not null, deleted boolean not null"
)
"""The schema of a record in the words of Spark."""

JSON_TYPE = "application/json"
"""The content type of a record whose meta names none."""

CONTENT_TYPE_KEY = "content-type"
"""Where the meta of a binary record names its type; the data is then base64 in a JSON string."""
