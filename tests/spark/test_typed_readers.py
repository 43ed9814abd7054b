"""The table of a stream in independent readers: each sees the entries that /v1 shows, after every kind of operation."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.live import LiveServer
from tests.readers import read_typed_by_all
from tests.s3 import S3Server
from tests.spark.test_table_readers import archive
from tests.spark.waiting_for import checkpointed, sealed_to, wait_until
from tests.unit.spark.typed import merged
from tests.unit.streams.describing import lens
from topics.model.settings import Settings
from topics_client import Client

STREAM = "shop.orders"
JSON = {"content-type": "application/json"}
FIELDS: dict[str, Any] = {
    "id": {"type": "integer"},
    "total": {"type": "number"},
    "at": {"type": "string", "format": "date-time"},
    "lines": {"type": "array"},
    "price": {"type": "number", "multipleOf": 0.01},
    "place": {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}}},
    "tags": {"type": "array", "items": {"type": "string"}},
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    options = {"segment_max_events": "20", "snapshot_interval_ms": "200", "pipeline": "off", "archive": "1"}
    with LiveServer(tmp_path, **options) as live:
        yield live


class Shop:
    """A stream of orders whose schema changes."""

    def __init__(self, server: LiveServer, client: Client, data: Path) -> None:
        self._path = f"{server.url}/v1/stream/{STREAM}"
        self._client = client
        self._data = data
        httpx.put(self._path, headers=JSON).raise_for_status()

    def describe(self, fields: dict[str, Any], version: int = 0, *ops: dict[str, Any]) -> None:
        body: dict[str, Any] = {"schema": {"type": "object", "required": ["id"], "properties": fields}}
        if version:
            body["lens"] = lens(STREAM, version, *ops)
        httpx.post(f"{self._path}/_schema", json=body).raise_for_status()

    def append(self, entries: list[dict[str, Any]], key: str) -> None:
        headers = {**JSON, "stream-key": key}
        httpx.post(self._path, content=json.dumps(entries), headers=headers).raise_for_status()

    def sealed(self) -> None:
        """Waits until everything is where the pipeline finds it."""
        checkpointed(self._client, self._data)
        wait_until(lambda: sealed_to(self._data, STREAM) % 20 == 0, "segments are whole")

    def shown(self) -> list[Any]:
        entries: list[Any] = httpx.get(self._path).json()
        return entries


def entries_of(rows: list[dict[str, Any]]) -> list[Any]:
    """Rows as entries, moments in microseconds."""
    found = []
    for row in rows:
        entry = {name: value for name, value in row.items() if not name.startswith("_") and value is not None}
        if "lines" in entry:
            entry["lines"] = json.loads(entry["lines"])
        if "place" in entry:
            entry["place"] = {name: value for name, value in entry["place"].items() if value is not None}
        found.append(merged(entry, json.loads(row["_rest"] or "{}")))
    return found


def in_micros(entries: list[Any]) -> list[Any]:
    return [
        {**entry, "at": round(datetime.fromisoformat(entry["at"]).timestamp() * 1e6)} if "at" in entry else entry
        for entry in entries
    ]


def order(n: int) -> dict[str, Any]:
    nested = {"place": {"city": f"c{n}", "door": n} if n % 2 else {"zip": n}, "tags": [f"t{n}", "ü"], "price": n + 0.25}
    at = f"2026-03-01T10:00:{n % 60:02d}.5+00:00"
    return {"id": n, "total": n / 4, "at": at, "lines": [n], "more": "ü\n", **nested}


def run(server: LiveServer, tmp_path: Path, place: str | None, environment: dict[str, str] | None) -> None:
    data = tmp_path / "data"
    settings = Settings(data_dir=str(data), archive="1", archive_dir=place, archive_typed="shop.*, other")
    root = f"{place or data / 'archive'}/typed/shop.orders"
    with Client(server.url) as client:
        shop = Shop(server, client, data)
        shop.describe(FIELDS)
        for first in range(0, 60, 20):
            shop.append([order(n) for n in range(first, first + 20)], f"k{first}")
        shop.sealed()
        archive(settings)
        # Another version, and deletes of both kinds: some of a file, and all of one.
        words = {"fromType": "integer", "toType": "string"}
        ways = {"forward": {"builtin": "int_to_string"}, "backward": {"builtin": "string_to_int"}}
        shop.describe(
            {**FIELDS, "id": {"type": "string"}, "shop": {"type": "string"}},
            1,
            {"op": "convert", "path": "/id", **words, **ways},
            {"op": "add", "path": "/shop", "schema": {"type": "string"}, "default": "old"},
        )
        shop.append([{"id": str(n), "shop": "new"} for n in range(60, 80)], "k60")
        client.delete(STREAM, before_seq=6)
        client.delete(STREAM, match="k20")
        shop.sealed()
        archive(settings)
        rows = read_typed_by_all(root, tmp_path, environment)
        assert entries_of(rows) == in_micros(shop.shown()) and len(rows) == 55
        assert {row["shop"] for row in rows} == {"old", "new"} and rows[0]["id"] == "5"

        archive(settings, compact=True)
        archive(settings, later_ms=700_000, compact=True)
        assert read_typed_by_all(root, tmp_path, environment) == rows


def test_every_reader_sees_what_streams_show(server: LiveServer, tmp_path: Path) -> None:
    run(server, tmp_path, None, None)


@pytest.mark.slow
def test_every_reader_sees_it_in_an_object_store(server: LiveServer, tmp_path: Path, s3: S3Server) -> None:
    run(server, tmp_path, s3.make_bucket("typed") + "/kept/archive", s3.environment)
