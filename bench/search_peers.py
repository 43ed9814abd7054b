"""Peers of the search benchmark, each in the benchmark's process: SQLite with FTS5, DuckDB over the same entries, and a
tantivy index, which is the upper bound for a text index.

None of them serves HTTP, stores entries durably, or accepts entries while it is queried.
"""

import importlib
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.install import search_python_folder
from bench.search_load import KINDS

COLUMNS = ("eventTime", "service", "status", "duration", "requestId", "region", "message", "why")
Answers = dict[str, float]
"""Medians in milliseconds, by the question."""
_ROUNDS = 40
_QUESTION_S = 1.0
"""The longest time that one query is repeated."""


def median_ms(ask: Callable[[], Any]) -> float:
    """The median of a few rounds within a time limit."""
    times: list[float] = []
    end = time.perf_counter() + _QUESTION_S
    while len(times) < _ROUNDS and (not times or time.perf_counter() < end):
        begun = time.perf_counter()
        ask()
        times.append((time.perf_counter() - begun) * 1000)
    return statistics.median(times)


def ask_sqlite(texts: list[bytes]) -> Answers:
    """Queries SQLite with an index for each field, and FTS5 for the words."""
    base = sqlite3.connect(":memory:")
    base.execute("CREATE TABLE logs (event_time, service, status, duration, request_id, region, message, why, body)")
    base.execute("CREATE VIRTUAL TABLE words USING fts5(message, why, content='logs')")
    decoded = ((msgspec.json.decode(text), text) for text in texts)
    rows = ((*(entry[name] for name in COLUMNS), text.decode()) for entry, text in decoded)
    base.executemany("INSERT INTO logs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    for column in ("event_time", "service", "status", "duration", "request_id", "region"):
        base.execute(f"CREATE INDEX by_{column} ON logs ({column})")
    base.execute("INSERT INTO words (words) VALUES ('rebuild')")
    found = {kind.name: median_ms(partial(_fetch, base, kind.sql)) for kind in KINDS}
    base.close()
    return found


def ask_duckdb(texts: list[bytes]) -> Answers:
    """Queries a DuckDB table of the same entries, read from a JSON file. It has no text index; words are found by
    scanning texts."""
    duckdb = _library("duckdb")
    with tempfile.TemporaryDirectory(prefix="topics-bench-duckdb-") as folder:
        path = Path(folder) / "logs.ndjson"
        path.write_bytes(b"\n".join(texts))
        base = duckdb.connect()
        base.execute(
            "CREATE TABLE logs AS SELECT row_number() OVER () AS rowid_, eventTime::TIMESTAMP AS event_time, service, "
            "status, duration, requestId AS request_id, region, message, why, to_json(t) AS body "
            f"FROM read_json('{path}', format='newline_delimited') t"
        )
    found = {}
    for kind in KINDS:
        sql = kind.duckdb or kind.sql.replace("rowid", "rowid_").replace("GLOB 'req_a*'", "LIKE 'req_a%'")
        found[kind.name] = median_ms(partial(_fetch, base, sql))
    base.close()
    return found


def ask_tantivy(texts: list[bytes]) -> Answers:
    """Queries an in-memory index that is committed once. It returns the entries of its best hits in its own order."""
    tantivy = _library("tantivy")
    builder = tantivy.SchemaBuilder()
    for name in ("service", "requestId", "region"):
        builder.add_text_field(name, tokenizer_name="raw", fast=True)
    for name in ("message", "why"):
        builder.add_text_field(name)
    builder.add_integer_field("status", indexed=True, fast=True)
    builder.add_integer_field("at", indexed=True, fast=True)
    builder.add_float_field("duration", indexed=True, fast=True)
    builder.add_bytes_field("body", stored=True)
    index = tantivy.Index(builder.build())
    writer = index.writer(256 * 1024 * 1024, 1)
    for number, text in enumerate(texts):
        entry = json.loads(text)
        document = tantivy.Document(at=number, body=text)
        for name in ("service", "requestId", "region", "message", "why"):
            if entry[name] is not None:
                document.add_text(name, entry[name])
        document.add_integer("status", entry["status"])
        document.add_float("duration", float(entry["duration"]))
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()

    def ask(text: str, order: str | None, ascending: bool) -> list[Any]:
        query = index.parse_query(text, ["message", "why"], conjunction_by_default=True)
        way = tantivy.Order.Asc if ascending else tantivy.Order.Desc
        hits = (
            searcher.search(query, 50, order_by_field=order, order=way).hits
            if order
            else searcher.search(query, 50).hits
        )
        return [searcher.doc(address)["body"] for _, address in hits]

    return {kind.name: median_ms(partial(ask, *kind.tantivy)) for kind in KINDS if kind.tantivy is not None}


def _fetch(base: Any, sql: str) -> Any:
    return base.execute(sql).fetchall()


def _library(name: str) -> Any:
    folder = str(search_python_folder())
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)
