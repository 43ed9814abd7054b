"""What a table of a stream looks like to Iceberg. It needs pyiceberg, so no task imports it."""

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from topics.schema.columns import Column, ColumnKind
from topics.spark.table.schema import Shape
from topics.spark.typed.twins import BASE

_SEQ_ID, _TS_ID = 1, 2
_TYPES: dict[ColumnKind, IcebergType] = {
    "long": LongType(), "double": DoubleType(), "boolean": BooleanType(), "timestamp": TimestamptzType(),
    "string": StringType(), "json": StringType(),
}  # fmt: skip
_DOCS = {
    "_seq": "the entry's number in its stream",
    "_ts": "when it was committed",
    "_node": "who wrote it",
    "_tag": "its tag",
    "_meta": "its headers as JSON text",
    "_rest": "what of the entry is in no column, as JSON text",
}
_BASE = [
    NestedField(
        number, field.name, {"_seq": LongType(), "_ts": TimestamptzType()}.get(field.name, StringType()),
        required=not field.nullable, doc=_DOCS[field.name],
    )
    for number, field in enumerate(BASE, 1)
]  # fmt: skip
_SPEC = PartitionSpec(PartitionField(source_id=_TS_ID, field_id=1000, transform=DayTransform(), name="_day"))
_ORDER = SortOrder(SortField(source_id=_SEQ_ID, transform=IdentityTransform()))


def shape_of(columns: tuple[Column, ...]) -> Shape:
    """A table is made with what all of them have; the columns of its schema come and go by evolution."""
    typed = [
        NestedField(one.column_id, one.name, _TYPES[one.kind], required=False, doc=_doc(one.kind)) for one in columns
    ]
    return Shape(Schema(*_BASE, *typed), _SPEC, _ORDER, Schema(*_BASE), _SEQ_ID, _TS_ID, "_seq", shared=False)


def _doc(kind: ColumnKind) -> str | None:
    return "JSON text" if kind == "json" else None
