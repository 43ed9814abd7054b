"""The members of entries as columns of a DataFrame, without a Spark and without a server."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from tests.unit.spark.test_source import Place
from tests.unit.spark.typed import NESTED, Described, entry_of, nested
from tests.unit.streams.describing import rename
from topics.spark.connector.options import OptionError
from topics.spark.connector.source import SchemaChangedError, TopicsDataSource, TopicsReader, TopicsStreamReader

NUMBERED: dict[str, Any] = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
RENAMED: dict[str, Any] = {"type": "object", "required": ["b"], "properties": {"b": {"type": "integer"}}}
CHOSEN = StructType([StructField("a", LongType()), StructField("_seq", LongType(), False)])


class TypedPlace(Place):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.described = Described(self.folder)
        self.described.create("orders")
        self.given["typed"] = "true"

    def load(self, **options: str) -> "Loaded":
        return Loaded({**self.given, **options})


class Loaded:
    """Does Spark's part of `load`: it asks for the schema, and takes the source along."""

    def __init__(self, given: dict[str, str], schema: StructType | None = None) -> None:
        self._source = TopicsDataSource(given)
        found = self._source.schema() if schema is None else schema
        assert isinstance(found, StructType)
        self.schema = found

    def rows(self) -> list[dict[str, Any]]:
        reader = self._source.reader(self.schema)
        assert isinstance(reader, TopicsReader)
        pieces = reader.partitions()
        return [row for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]

    def stream(self) -> TopicsStreamReader:
        reader = self._source.streamReader(self.schema)
        assert isinstance(reader, TopicsStreamReader)
        return reader


@pytest.fixture
def place(tmp_path: Path) -> TypedPlace:
    return TypedPlace(tmp_path)


def test_columns_and_rest_are_what_the_stream_shows(place: TypedPlace) -> None:
    order = {"id": 1, "total": 1.5, "paid": True, "at": "2026-03-01T10:00:00Z", "name": "ü", "lines": [1, {"x": None}]}
    entries = [order, {"id": 2, "more": 3}, {"id": 3, "paid": None}, {"id": 2**70}]
    place.described.append("orders", *entries, key="k")
    place.folder.seal()
    loaded = place.load()
    assert loaded.schema.simpleString() == (
        "struct<_seq:bigint,_ts:timestamp,_node:string,_tag:string,_meta:string,_rest:string,id:bigint,total:double,"
        "paid:boolean,at:timestamp,name:string,lines:string>"
    )
    rows = loaded.rows()
    assert [(row["_seq"], row["_tag"], entry_of(row)) for row in rows] == [
        (seq, "k", entry) for seq, entry in place.described.promoted("orders").items()
    ]
    assert [row["id"] for row in rows] == [1, 2, 3, None]


def test_nested_members_are_structs_and_lists(place: TypedPlace) -> None:
    place.described.create("nested", NESTED)
    place.described.append("nested", *[nested(n) for n in range(3)])
    place.folder.seal()
    loaded = place.load(topic="nested")
    struct = "struct<city:string,at:timestamp>"
    assert loaded.schema.simpleString().partition("_rest:string,")[2] == (
        f"id:bigint,price:decimal(38,2),place:{struct},tags:array<string>,stops:array<{struct}>>"
    )
    assert [entry_of(row) for row in loaded.rows()] == list(place.described.promoted("nested").values())


def test_entries_of_earlier_versions_are_promoted(place: TypedPlace) -> None:
    place.described.create("other", NUMBERED)
    place.described.append("other", {"a": 1}, {"a": 2})
    place.described.evolve("other", RENAMED, rename("/a", "/b"))
    place.described.append("other", {"b": 3})
    place.folder.seal()
    rows = place.load(topic="other").rows()
    assert [(row["_seq"], row["b"], row["_rest"]) for row in rows] == [(1, 1, None), (2, 2, None), (3, 3, None)]


def test_a_schema_that_changed_since_is_reported_and_a_stream_goes_on_anew(place: TypedPlace) -> None:
    place.described.create("other", NUMBERED)
    place.described.append("other", {"a": 1})
    place.folder.seal()
    given = {**place.given, "topic": "other"}
    loaded, chosen = place.load(topic="other"), Loaded(given, CHOSEN)
    assert [row["a"] for row in loaded.rows()] == [1] and chosen.rows() == [{"a": 1, "_seq": 1}]
    stream = loaded.stream()
    begin, end = stream.latestOffset(), stream.latestOffset()
    text = {"type": "string"}
    wider = {"type": "object", "required": ["a", "c"], "properties": {**NUMBERED["properties"], "c": text}}
    place.described.evolve("other", wider, {"op": "add", "path": "/c", "schema": text, "default": "then"})
    place.described.append("other", {"a": 2, "c": "x"})
    place.folder.seal()
    with pytest.raises(SchemaChangedError, match="the schema of other has changed since this was loaded"):
        loaded.rows()
    assert stream.partitions(begin, end) == []
    with pytest.raises(SchemaChangedError, match="load it again"):
        stream.partitions(begin, stream.latestOffset())
    reset = place.load(topic="other").stream()
    pieces = reset.partitions(begin, reset.latestOffset())
    assert [row["c"] for piece in pieces for batch in reset.read(piece) for row in batch.to_pylist()] == ["x"]
    # A reader with named columns keeps them for as long as they exist.
    assert [row["a"] for row in chosen.rows()] == [1, 2]
    renamed = {"type": "object", "required": ["b", "c"], "properties": {**RENAMED["properties"], "c": text}}
    place.described.evolve("other", renamed, rename("/a", "/b"))
    place.described.append("other", {"b": 3, "c": "y"})
    place.folder.seal()
    with pytest.raises(SchemaChangedError, match="other has no column a of that type"):
        chosen.rows()


def test_untyped_stream_is_refused(place: TypedPlace) -> None:
    place.folder.append("plain", 1)
    place.folder.seal()
    for topic in ("plain", "nowhere"):
        with pytest.raises(OptionError, match=f"{topic} has no schema"):
            place.load(topic=topic)
    with pytest.raises(OptionError, match="includeDeleted"):
        place.load(includeDeleted="true")
    del place.given["topic"]
    for many in ({"topics": "orders,plain"}, {"topicPattern": "*"}):
        with pytest.raises(OptionError, match="those of one stream"):
            place.load(**many)
    assert isinstance(TopicsDataSource({"topic": "orders", "typed": "false"}).schema(), str)


def test_a_stream_that_was_made_again_while_it_was_read_is_reported(place: TypedPlace) -> None:
    place.described.append("orders", {"id": 1})
    place.folder.seal()
    loaded = place.load()
    reader = loaded._source.reader(loaded.schema)
    assert isinstance(reader, TopicsReader)
    [piece] = reader.partitions()
    [(name, one)] = piece.versions.items()  # type: ignore[attr-defined]
    piece.versions = {name: one._replace(epoch=one.epoch + 1)}  # type: ignore[attr-defined]
    with pytest.raises(SchemaChangedError, match="orders was made again"):
        list(reader.read(piece))
