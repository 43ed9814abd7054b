"""Records on their way into topics: chunks are the same whenever the rows are."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StringType, StructType

from topics.spark.connector.options import OptionError, write_options
from topics.spark.connector.sink import Chunks, check_schema

ROWS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9).map(str)), max_size=30)


def chunks(rows: list[tuple[str, str]], cuts: int, size: int) -> list[tuple[str, int, list[bytes]]]:
    """What comes out when the rows arrive in batches of `cuts`."""
    made = Chunks(write_options({"batchRecords": str(size)}))
    found = []
    for begin in range(0, len(rows), cuts):
        part = rows[begin : begin + cuts]
        batch = pa.RecordBatch.from_pydict({"topic": [row[0] for row in part], "data": [row[1] for row in part]})
        found += list(made.add(batch))
    found += list(made.rest())
    return [(topic, number, [bytes(record.data) for record in records]) for topic, number, records in found]


@given(ROWS, st.integers(1, 7), st.integers(1, 7), st.integers(1, 5))
def test_chunks_do_not_depend_on_how_the_rows_arrive(
    rows: list[tuple[str, str]], one: int, other: int, size: int
) -> None:
    found = chunks(rows, one, size)
    assert sorted(found) == sorted(chunks(rows, other, size))
    for topic in ("a", "b"):
        mine = [part for part in found if part[0] == topic]
        assert [number for _, number, _ in mine] == list(range(len(mine)))
        assert all(len(records) <= size for *_, records in mine)
        assert [data for *_, records in mine for data in records] == [
            row[1].encode() for row in rows if row[0] == topic
        ]


def test_a_row_without_data_or_topic_is_refused() -> None:
    made = Chunks(write_options({}))
    with pytest.raises(OptionError, match="needs data, and a topic"):
        list(made.add(pa.RecordBatch.from_pydict({"data": ["1"]})))
    with pytest.raises(OptionError, match="needs data, and a topic"):
        list(made.add(pa.RecordBatch.from_pydict({"topic": ["a"], "data": pa.array([None], pa.string())})))


def test_a_frame_is_checked_before_any_task_runs() -> None:
    text, number = StringType(), IntegerType()
    check_schema(StructType().add("data", text).add("other", number), write_options({"topic": "a"}))
    with pytest.raises(OptionError, match="column data"):
        check_schema(StructType().add("value", text), write_options({"topic": "a"}))
    with pytest.raises(OptionError, match="must be a string"):
        check_schema(StructType().add("data", text).add("tag", number), write_options({"topic": "a"}))
    with pytest.raises(OptionError, match="column topic"):
        check_schema(StructType().add("data", text), write_options({}))
