"""Records of several topics in one batch, shown as the versions of their streams show them now."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.streams.describing import lens, rename
from topics.log.catalog import CatalogTopic
from topics.schema.contract import Contract, encode_contract
from topics.schema.documents import encode
from topics.schema.registry import Registry, Version, encode_registry
from topics.spark.arrow_slices import RECORD_SCHEMA
from topics.spark.connector import record_reader
from topics.spark.connector.options import OptionError, ReadOptions, read_options
from topics.spark.connector.record_reader import versions_of
from topics.spark.promotion import StreamVersions, promoted, registry_of
from topics_client import Boundary, StreamSchema

LENSES = [lens("s", 1, rename("/a", "/b")), lens("s", 2, rename("/b", "/c"))]
REGISTRY = Registry(
    (
        Version(encode({"type": "object", "required": ["a"], "properties": {"a": {}}}), None, 0),
        Version(encode({"type": "object", "required": ["b"], "properties": {"b": {}}}), encode(LENSES[0]), 2),
        Version(encode({"type": "object", "required": ["c"], "properties": {"c": {}}}), encode(LENSES[1]), 3),
    )
)
VERSIONS = {"s": StreamVersions(7, encode_registry(REGISTRY))}


def batch(*rows: tuple[str, int, int, str, str]) -> pa.RecordBatch:
    """Rows of topic, epoch, seq, data and content type."""
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [[], [], [], [], []]
    count = len(rows)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(columns[0], pa.string()), pa.array(columns[1], pa.int64()), pa.array(columns[2], pa.int64()),
            pa.array([0] * count, pa.timestamp("us", tz="UTC")), pa.nulls(count, pa.string()),
            pa.nulls(count, pa.string()), pa.nulls(count, pa.string()), pa.array(columns[3], pa.string()),
            pa.array(columns[4], pa.string()), pa.array([False] * count),
        ],
        schema=RECORD_SCHEMA,
    )  # fmt: skip


JSON = "application/json"


def shown(*rows: tuple[str, int, int, str, str]) -> list[str]:
    (found,) = promoted([batch(*rows)], VERSIONS)
    assert found.schema == RECORD_SCHEMA
    data: list[str] = found["data"].to_pylist()
    return data


def test_each_record_goes_from_the_version_it_was_written_under() -> None:
    rows = [("s", 7, 1, '{"a":1}', JSON), ("s", 7, 2, '{"a":2}', JSON), ("s", 7, 3, '{"b":3}', JSON)]
    assert shown(*rows, ("s", 7, 4, '{"c":4}', JSON)) == ['{"c":1}', '{"c":2}', '{"c":3}', '{"c":4}']


def test_others_pass_as_they_are() -> None:
    rows = [
        ("other", 7, 1, '{"a":1}', JSON), ("s", 6, 1, '{"a": 1}', JSON), ("s", 7, 1, '"QUJD"', "text/plain"),
        ("s", 7, 1, '{"a":1}', JSON), ("s", 7, 2, "[1, 2]", JSON),
    ]  # fmt: skip
    assert shown(*rows) == ['{"a":1}', '{"a": 1}', '"QUJD"', '{"c":1}', "[1, 2]"]


def test_a_batch_without_any_of_them_is_not_touched() -> None:
    one = batch(("other", 1, 1, "1", JSON))
    assert next(promoted([one], VERSIONS)) is one
    assert next(promoted([one], {})) is one
    assert next(promoted([batch()], VERSIONS)).num_rows == 0


def test_the_registry_that_a_server_reports_is_the_one_it_has() -> None:
    reported = StreamSchema(
        stream="s",
        current_version=3,
        boundaries=[Boundary(offset=one.boundary, version=number) for number, one in enumerate(REGISTRY.versions, 1)],
        schemas={number: REGISTRY.schema(number) for number in (1, 2, 3)},
        lenses={1: LENSES[0], 2: LENSES[1]},
    )
    assert registry_of(reported) == REGISTRY


def test_without_a_server_the_catalog_reports_the_lenses(monkeypatch: pytest.MonkeyPatch) -> None:
    def topic(name: str, contract: bytes) -> CatalogTopic:
        return CatalogTopic(1, name, 7, b"{}", 4, 1, 1, [], [], [], contract)

    catalog = {"s": topic("s", encode_contract(Contract(REGISTRY))), "plain": topic("plain", b"")}
    monkeypatch.setattr(record_reader, "_topics_of", lambda layout, options: catalog)

    def options(**more: str) -> ReadOptions:
        return read_options({"topic": "s", "path": "/nowhere", "mode": "segments", **more}, streaming=False)

    assert versions_of(options(), ["s"]) == {}
    assert versions_of(options(promoted="true"), ["s", "plain", "not there"]) == VERSIONS
    with pytest.raises(OptionError, match="promoted"):
        options(promoted="yes")


def test_a_pattern_does_not_mean_the_streams_that_the_server_writes() -> None:
    everything = read_options({"topicPattern": "*"}, streaming=False)
    assert everything.selects("orders") and not everything.selects("__registry__")
    assert read_options({"topic": "__registry__"}, streaming=False).selects("__registry__")
