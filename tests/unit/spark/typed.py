"""Streams with schemas in a folder, and their tables in an independent library."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from tests.unit.spark.archives import ROOT
from tests.unit.spark.folders import Folder
from tests.unit.spark.tables import read_table, table_of
from tests.unit.streams.describing import lens, update
from topics.log.fs import FileSystem
from topics.spark.archive.archive_plan import ArchiveRules
from topics.spark.iceberg.table import TableFollower
from topics.spark.iceberg.typed_files import folder_of
from topics.spark.iceberg.typed_tables import TypedTable
from topics.spark.pipeline.archive_product import ArchiveProduct
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.task_packing import FrameRules
from topics.spark.pipeline.typed_product import TypedProduct
from topics.streams.append import AppendRequest
from topics.streams.lifecycle import CreateRequest
from topics.streams.stream_state import contract_of
from topics.streams.streams import inline_streams
from topics.testing import SeededEntropy

JSON = "application/json"
ORDER: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "total": {"type": "number"},
        "paid": {"type": ["boolean", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "name": {"type": "string"},
        "lines": {"type": "array"},
    },
}


_PLACE: dict[str, Any] = {"city": {"type": "string"}, "at": {"type": "string", "format": "date-time"}}
NESTED: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": "number", "multipleOf": 0.01},
        "place": {"type": "object", "properties": _PLACE},
        "tags": {"type": "array", "items": {"type": "string"}},
        "stops": {"type": "array", "items": {"type": "object", "properties": _PLACE}},
    },
}


def nested(n: int) -> dict[str, Any]:
    place = {"city": f"c{n}", "at": f"2026-03-01T10:{n % 60:02d}:00Z"}
    return {"id": n, "price": n + 0.25, "place": place, "tags": [f"t{n}", "ü"], "stops": [place, {}, {"city": "x"}]}


class Described:
    """A folder and its streams."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.streams = inline_streams(folder.engine)

    def create(self, name: str, schema: Mapping[str, Any] = ORDER) -> None:
        self._done(lambda done: self.streams.create(name, CreateRequest(content_type=JSON), done))
        update(self.streams, name, schema=schema)

    def evolve(self, name: str, schema: Mapping[str, Any], *ops: dict[str, Any]) -> None:
        version = contract_of(self.folder.engine.core.directory.load(name)).registry.current_version
        update(self.streams, name, schema=schema, lens=lens(name, version, *ops))

    def append(self, name: str, *entries: Any, key: str | None = None) -> None:
        request = AppendRequest(body=json.dumps(entries).encode(), content_type=JSON, key=key)
        self._done(lambda done: self.streams.append(name, request, done))

    def promoted(self, name: str) -> dict[int, Any]:
        """Returns the entries that the protocol of streams shows, by seq."""
        promoter = contract_of(self.folder.engine.core.directory.load(name)).registry.promoter
        return {
            int(record["$seq"]): json.loads(  # type: ignore[call-overload]
                bytes(promoter.promote(int(record["$seq"]) - 1, json.dumps(record["data"]).encode()))  # type: ignore[call-overload]
            )
            for record in self.folder.diff(name)
        }

    @staticmethod
    def _done(start: Any) -> None:
        answers: list[Any] = []
        start(answers.append)
        assert not isinstance(answers[0], Exception), answers


def typed_pipeline(
    fs: FileSystem, folder: Folder, seed: int, patterns: tuple[str, ...] = ("*",), **rules: Any
) -> Pipeline:
    """A pipeline with the archive and the tables of streams, as a new process would make it."""
    frame = {"group_bytes": 2000, **{name: rules.pop(name) for name in FrameRules.__struct_fields__ if name in rules}}
    chosen = ArchiveRules(**rules)
    follower = TableFollower(table_of(fs, seed + 1_000_000, chosen.retire_ms), ROOT)
    archive = ArchiveProduct(fs, ROOT, chosen, SeededEntropy(seed), follower)

    def make(name: str) -> TypedTable:
        table = table_of(fs, seed + 2_000_000 + sum(name.encode()), chosen.retire_ms, f"{ROOT}/{name}")
        return TypedTable(fs, ROOT, name, table, chosen.retire_ms)

    typed = TypedProduct(fs, ROOT, patterns, lambda: archive.state, make)
    return Pipeline(fs, folder.layout, [archive, typed], InlineExecutor(fs), folder.clock, FrameRules(**frame))


def run_typed(fs: FileSystem, folder: Folder, seed: int, patterns: tuple[str, ...] = ("*",), **rules: Any) -> Pipeline:
    """Rounds until there is nothing to do."""
    made = typed_pipeline(fs, folder, seed, patterns, **rules)
    for _ in range(50):
        if not made.round():
            return made
    raise AssertionError("the pipeline never comes to an end")


def typed_entries(fs: FileSystem, name: str, ahead: bool = False) -> dict[int, Any]:
    """Returns the entries assembled from the table of a stream; a row that is there twice is an error."""
    table = read_table(fs, ahead, f"{ROOT}/{folder_of(name)}")
    if table is None:
        return {}
    rows = table.scan().to_arrow().to_pylist()
    found = {row["_seq"]: entry_of(row) for row in rows}
    assert len(found) == len(rows), "an entry is there twice"
    return found


def entry_of(row: dict[str, Any]) -> Any:
    """A row as an entry; moments are shown as JSON has them."""
    rest = json.loads(row["_rest"]) if row["_rest"] is not None else {}
    members = {name: value for name, value in row.items() if not name.startswith("_") and value is not None}
    if not members:
        return rest
    shown = {name: json.loads(value) if name == "lines" else _shown(value) for name, value in members.items()}
    return merged(shown, rest)


def _shown(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {name: _shown(one) for name, one in value.items() if one is not None}
    return [_shown(one) for one in value] if isinstance(value, list) else value


def merged(held: Any, rest: Any) -> Any:
    """An object of which a part is in a struct and the other part in the rest."""
    if not isinstance(held, dict) or not isinstance(rest, dict):
        return rest
    return {**held, **{name: merged(held.get(name), value) for name, value in rest.items()}}
