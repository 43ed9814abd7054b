"""Peers of the history benchmark: other search engines on the same entries, each in the benchmark's process.

SQLite with FTS5, DuckDB and chdb over Parquet, and a tantivy index as the upper bound. None of them serves HTTP, stores
entries durably, or accepts entries while it is queried. Prisma Streams is a server like ours.
"""

import importlib
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.history_load import Load
from bench.history_report import Peer
from bench.install import Missing, search_python_folder
from bench.search_peers import median_ms
from bench.search_prisma import ask_prisma

_PARQUET_ROWS = 100_000


def ask_peers(load: Load, entries: int, prisma: bool) -> tuple[dict[str, Peer], list[str]]:
    """Peers that are not available are left out and listed in the report."""
    asked: dict[str, Callable[[Load, int, Path], Peer]] = {
        "SQLite FTS5": _ask_sqlite,
        "DuckDB on Parquet": _ask_duckdb,
        "chdb on Parquet": _ask_chdb,
        "tantivy": _ask_tantivy,
    }
    if prisma:
        asked["Prisma Streams"] = _ask_prisma
    found: dict[str, Peer] = {}
    notes: list[str] = []
    for name, ask in asked.items():
        sys.stderr.write(f"{load.name} {entries:,}: {name}\n")
        with tempfile.TemporaryDirectory(prefix="topics-bench-peer-") as folder:
            try:
                found[name] = ask(load, entries, Path(folder))
            except (Missing, ImportError, RuntimeError, OSError) as error:
                notes.append(f"{name} is not in the table: {str(error)[:200]}.")
    return found, notes


def _rows(load: Load, entries: int) -> Any:
    for number, text in enumerate(load.texts(entries)):
        entry = msgspec.json.decode(text)
        yield (number, *(entry.get(name) for name in load.columns), text.decode())


def _ask_sqlite(load: Load, entries: int, folder: Path) -> Peer:
    """A database file with an index for each field without words, and FTS5 for fields with words."""
    begun = time.monotonic()
    base = sqlite3.connect(folder / "logs.db")
    base.execute("PRAGMA journal_mode=OFF")
    base.execute("PRAGMA synchronous=OFF")
    names = ", ".join(load.columns)
    base.execute(f"CREATE TABLE logs (place INTEGER PRIMARY KEY, {names}, body)")
    base.execute(
        f"CREATE VIRTUAL TABLE words USING fts5({', '.join(load.words)}, content='logs', content_rowid='place')"
    )
    places = ", ".join("?" * (len(load.columns) + 2))
    base.executemany(f"INSERT INTO logs VALUES ({places})", _rows(load, entries))
    for name in load.columns.keys() - set(load.words):
        base.execute(f"CREATE INDEX by_{name} ON logs ({name})")
    base.execute("INSERT INTO words (words) VALUES ('rebuild')")
    base.commit()
    peer = Peer(build_s=time.monotonic() - begun, bytes=_size(folder))
    peer.ms = {kind.name: median_ms(partial(_fetch, base, kind.sql)) for kind in load.kinds}
    base.close()
    return peer


def _write_parquet(load: Load, entries: int, folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"VARCHAR": pa.string(), "BIGINT": pa.int64()}
    schema = pa.schema(
        [("place", pa.int64()), *((name, kinds[kind]) for name, kind in load.columns.items()), ("body", pa.string())]
    )
    path, rows = folder / "logs.parquet", []
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for row in _rows(load, entries):
            rows.append(row)
            if len(rows) == _PARQUET_ROWS:
                writer.write_table(_table(rows, schema))
                rows = []
        if rows:
            writer.write_table(_table(rows, schema))
    return path


def _table(rows: list[tuple[Any, ...]], schema: Any) -> Any:
    import pyarrow as pa

    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=schema)


def _ask_duckdb(load: Load, entries: int, folder: Path) -> Peer:
    duckdb = _library("duckdb")
    begun = time.monotonic()
    path = _write_parquet(load, entries, folder)
    peer = Peer(build_s=time.monotonic() - begun, bytes=_size(folder))
    base = duckdb.connect()
    base.execute(f"CREATE VIEW logs AS SELECT * FROM read_parquet('{path}')")
    peer.ms = {kind.name: median_ms(partial(_fetch, base, kind.duckdb)) for kind in load.kinds}
    base.close()
    return peer


def _ask_chdb(load: Load, entries: int, folder: Path) -> Peer:
    session = _library("chdb.session").Session()
    begun = time.monotonic()
    path = _write_parquet(load, entries, folder)
    peer = Peer(build_s=time.monotonic() - begun, bytes=_size(folder))
    for kind in load.kinds:
        sql = kind.duckdb.replace("FROM logs", f"FROM file('{path}', Parquet)")
        peer.ms[kind.name] = median_ms(partial(session.query, sql, "TabSeparated"))
    session.close()
    return peer


def _ask_tantivy(load: Load, entries: int, folder: Path) -> Peer:
    """An index that is committed once. It returns the entries of its best hits in its own order."""
    tantivy = _library("tantivy")
    begun = time.monotonic()
    builder = tantivy.SchemaBuilder()
    for name, kind in load.columns.items():
        if name in load.words:
            builder.add_text_field(name)
        elif kind == "VARCHAR":
            builder.add_text_field(name, tokenizer_name="raw", fast=True)
        else:
            builder.add_integer_field(name, indexed=True, fast=True)
    builder.add_integer_field("place", indexed=True, fast=True)
    builder.add_bytes_field("body", stored=True)
    index = tantivy.Index(builder.build(), path=str(folder))
    writer = index.writer(256 * 1024 * 1024, os.cpu_count() or 1)
    for number, text in enumerate(load.texts(entries)):
        entry = msgspec.json.decode(text)
        document = tantivy.Document(place=number, body=text)
        for name, kind in load.columns.items():
            value = entry.get(name)
            if value is not None:
                (document.add_text if kind == "VARCHAR" else document.add_integer)(name, value)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    peer = Peer(build_s=time.monotonic() - begun, bytes=_size(folder))

    def ask(text: str, order: str | None, ascending: bool) -> list[Any]:
        query = index.parse_query(text, list(load.words), conjunction_by_default=True)
        sorting = {"order_by_field": order, "order": tantivy.Order.Asc if ascending else tantivy.Order.Desc}
        hits = searcher.search(query, 50, **(sorting if order else {})).hits
        return [searcher.doc(address)["body"] for _, address in hits]

    for one in load.kinds:
        if one.tantivy is not None:
            peer.ms[one.name] = median_ms(partial(ask, *one.tantivy))
    return peer


def _ask_prisma(load: Load, entries: int, folder: Path) -> Peer:
    """Its build time ends when its answers are complete or the time limit is reached."""
    begun = time.monotonic()
    index_s = max(75, entries // 1500)
    ms, covered = ask_prisma(list(load.texts(entries)), "Prisma Streams", load.description, load.kinds, index_s)
    if covered != "complete":
        raise RuntimeError(f"it had not indexed everything: {covered}")
    return Peer(ms, time.monotonic() - begun)


def _fetch(base: Any, sql: str) -> Any:
    return base.execute(sql).fetchall()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _library(name: str) -> Any:
    folder = str(search_python_folder())
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)
