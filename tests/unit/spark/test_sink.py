"""Records on their way into topics."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import IntegerType, StringType, StructType

from topics.spark.connector.options import OptionError, write_options
from topics.spark.connector.sink import Chunks, StreamSink, check_schema
from topics.spark.connector.spark_versions import as_batches

ROWS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9).map(str)), max_size=30)


def chunks(rows: list[tuple[str, str]], cuts: int, size: int) -> list[tuple[str, list[bytes]]]:
    """Returns the chunks for rows that arrive in batches of `cuts`."""
    made = Chunks(write_options({"batchRecords": str(size)}))
    batches = [
        pa.RecordBatch.from_pydict({"topic": [row[0] for row in part], "data": [row[1] for row in part]})
        for part in (rows[begin : begin + cuts] for begin in range(0, len(rows), cuts))
    ]
    return [(topic, [bytes(record.data) for record in records]) for topic, records in made.all(batches)]


@given(ROWS, st.integers(1, 7), st.integers(1, 5))
def test_chunks_hold_every_row_once_in_its_order(rows: list[tuple[str, str]], cuts: int, size: int) -> None:
    found = chunks(rows, cuts, size)
    assert all(0 < len(records) <= size for _, records in found)
    for topic in ("a", "b"):
        assert [data for name, records in found if name == topic for data in records] == [
            row[1].encode() for row in rows if row[0] == topic
        ]


@pytest.mark.parametrize("given", ["", "a/b", "-x", "x" * 201])
def test_a_write_id_is_a_name(given: str) -> None:
    with pytest.raises(OptionError, match="writeId"):
        write_options({"writeId": given})


def test_a_stream_is_never_written_in_pieces() -> None:
    with pytest.raises(OptionError, match="atomic"):
        StreamSink(write_options({"topic": "a", "atomic": "false"}), StructType().add("data", StringType()))


def test_a_row_without_data_or_topic_is_refused() -> None:
    made = Chunks(write_options({}))
    with pytest.raises(OptionError, match="needs data, and a topic"):
        list(made.add(pa.RecordBatch.from_pydict({"data": ["1"]})))
    with pytest.raises(OptionError, match="needs data, and a topic"):
        list(made.add(pa.RecordBatch.from_pydict({"topic": ["a"], "data": pa.array([None], pa.string())})))


@pytest.mark.parametrize("text", ['1},{"data":2', '1,"tag":"a"', "", "x", "[1", "1 2", '"\\x"'])
@pytest.mark.parametrize("column", ["data", "meta"])
def test_invalid_json_value_is_refused(column: str, text: str) -> None:
    """Sent as it stands, text that ends a record and begins another would be two of them."""
    rows = {"data": ["1", "1"], "meta": ["{}", "{}"]}
    rows[column][1] = text
    with pytest.raises(OptionError, match=f"column {column} has .*, which is not JSON text"):
        list(Chunks(write_options({"topic": "a"})).all([pa.RecordBatch.from_pydict(rows)]))


def test_a_request_is_bounded_by_all_of_its_bytes() -> None:
    """Headers count as payloads do, and letters by the bytes that they take."""
    rows = {"data": [f'"{"ü" * 10_000}"'] * 1000, "meta": [f'{{"a":"{"x" * 10_000}"}}'] * 1000}
    found = list(Chunks(write_options({"topic": "a"})).all([pa.RecordBatch.from_pydict(rows)]))
    sizes = [sum(len(record.data) + len(record.meta or b"") for record in records) for _, records in found]
    assert sum(len(records) for _, records in found) == 1000
    assert len(sizes) > 1 and max(sizes) < 9 * 1024 * 1024


def test_a_frame_is_checked_before_any_task_runs() -> None:
    text, number = StringType(), IntegerType()
    check_schema(StructType().add("data", text).add("other", number), write_options({"topic": "a"}))
    with pytest.raises(OptionError, match="column data"):
        check_schema(StructType().add("value", text), write_options({"topic": "a"}))
    with pytest.raises(OptionError, match="must be a string"):
        check_schema(StructType().add("data", text).add("tag", number), write_options({"topic": "a"}))
    with pytest.raises(OptionError, match="column topic"):
        check_schema(StructType().add("data", text), write_options({}))


def test_rows_of_an_older_spark_become_batches() -> None:
    """A column that is never written may be anything; a written one is text, or nothing."""
    rows = [Row(data=str(n), tag=None if n % 2 else "even", n=n) for n in range(25_000)]
    batches = list(as_batches(iter(rows), rows=True))
    assert [batch.num_rows for batch in batches] == [10_000, 10_000, 5_000]
    assert [data for batch in batches for data in batch["data"].to_pylist()] == [str(n) for n in range(25_000)]
    assert batches[0]["tag"].to_pylist()[:2] == ["even", None]
    assert batches[0].schema.names == ["data", "tag"]
    assert list(as_batches(iter([]), rows=True)) == []
    assert list(as_batches(iter(batches), rows=False)) == batches
