"""Spark version differences in the data source interface, in one place. Imports pyspark.

| feature | since |
|---|---|
| admission control: the start and the read limit of a micro-batch | 4.2 |
| `Trigger.AvailableNow` in sources | 4.2 |
| the time zone of a schema's times, as an argument | 4.2 |
| Arrow batches in stream sinks | 4.1 |

Earlier versions only ask for the latest offset, and pass rows to the sinks of streams.
"""

from collections.abc import Iterable, Iterator
from inspect import signature
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_ROWS_A_BATCH = 10_000

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    LIMITS, ROWS = True, False
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        LIMITS = True
    except ImportError:

        class ReadLimit:
            """A stand-in for a class that this Spark does not have."""

        class ReadAllAvailable(ReadLimit):
            """No limit, the only one before 4.2."""

        class ReadMaxRows(ReadLimit):
            """Never instantiated."""

        class SupportsTriggerAvailableNow:
            """Spark itself fixes the end when the stream starts."""

        LIMITS = False
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriter

        ROWS = False
    except ImportError:
        from pyspark.sql.datasource import DataSourceStreamWriter as StreamWriter

        ROWS = True

__all__ = ["LIMITS", "ReadAllAvailable", "ReadLimit", "ReadMaxRows", "StreamWriter", "SupportsTriggerAvailableNow"]


def arrow_schema(schema: StructType) -> pa.Schema:
    """A Spark schema as an Arrow schema; times are in UTC."""
    if "timezone" in signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def as_batches(given: Iterable[Any], rows: bool = ROWS) -> Iterator[pa.RecordBatch]:
    """The input of a stream sink as Arrow batches. Its columns are all strings."""
    if not rows:
        yield from given
        return
    waiting = iter(given)
    while part := [row.asDict() for row in islice(waiting, _ROWS_A_BATCH)]:
        columns = {name: [row[name] for row in part] for name in part[0]}
        text = {name: values for name, values in columns.items() if all(_is_text(value) for value in values)}
        yield pa.RecordBatch.from_pydict(text, pa.schema([(name, pa.string()) for name in text]))


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str)
