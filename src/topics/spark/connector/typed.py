"""The members of a stream's entries as columns of a DataFrame, by the functions that fill its typed table.

Which columns there are is settled when a DataFrame is loaded, by the version of the schema that counts then. Entries
of a later version cannot be shown as ones of an earlier, so a plan that finds another version is refused, that of a
stream's next batch above all: started anew it has the new columns, and goes on from its checkpoint. Who names columns
with `.schema(...)` has chosen them for good, and is refused only once one of them is not there any longer.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from topics.schema.columns import columns_of
from topics.schema.registry import decode_registry
from topics.spark.connector.options import OptionError, ReadOptions
from topics.spark.connector.reading import versions_of
from topics.spark.promotion import StreamVersions, Versions
from topics.spark.typed.twins import Subject, typed_rows, written_schema


class SchemaChangedError(RuntimeError):
    """The stream's schema is not the one that the DataFrame was loaded with."""


def typed_columns(options: ReadOptions) -> tuple[str, StructType]:
    """What the columns of a stream are now: a word that tells them from any others, and their types."""
    subject = _subject(_only(options, versions_of(options, options.topics)))
    return subject.columns.generation, from_arrow_schema(written_schema(subject.columns.columns).remove_metadata())


def check_typed(options: ReadOptions, versions: Versions, generation: str | None, wanted: pa.Schema) -> None:
    """Refuses to read into columns that are not, or no longer, those of the stream."""
    columns = _subject(_only(options, versions)).columns
    [name] = options.topics
    if generation is not None and columns.generation != generation:
        raise SchemaChangedError(f"the schema of {name} has changed since this was loaded: load it again")
    there = written_schema(columns.columns)
    wrong = [one.name for one in wanted if one.name not in there.names or there.field(one.name).type != one.type]
    if wrong:
        told = ", ".join(f"{field.name} {field.type}" for field in there)
        raise SchemaChangedError(f"{name} has no column {', '.join(wrong)} of that type; there are {told}")


def in_columns(batches: Iterable[pa.RecordBatch], versions: Versions) -> Iterator[pa.RecordBatch]:
    """Records of the one stream of `versions` as rows with a column for each member."""
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
