"""What of Spark's interface to sources is not the same in every version that we run on, in one place. Imports pyspark.

| | since |
|---|---|
| sources that are told where a micro-batch begins and how much it may hold | 4.2 |
| sources that know when a stream is to end with what is there | 4.2 |
| the time zone of a schema's times, as an argument | 4.2 |
| streams whose sinks are handed Arrow batches | 4.1 |

Before that Spark asks for the latest offset and nothing else, and hands rows to the sinks of streams.
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
            """Stands for what this Spark does not have."""

        class ReadAllAvailable(ReadLimit):
            """No limit, the only one there is."""

        class ReadMaxRows(ReadLimit):
            """Never made here."""

        class SupportsTriggerAvailableNow:
            """Spark itself takes what is there when the stream starts."""

        LIMITS = False
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriter

        ROWS = False
    except ImportError:
        from pyspark.sql.datasource import DataSourceStreamWriter as StreamWriter

        ROWS = True

__all__ = ["LIMITS", "ReadAllAvailable", "ReadLimit", "ReadMaxRows", "StreamWriter", "SupportsTriggerAvailableNow"]


def arrow_schema(schema: StructType) -> pa.Schema:
    """A schema of Spark as that of the batches it takes; times are in UTC."""
    if "timezone" in signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def as_batches(given: Iterable[Any], rows: bool = ROWS) -> Iterator[pa.RecordBatch]:
    """What a sink of a stream is handed, as Arrow batches. The columns that it writes are all strings."""
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
