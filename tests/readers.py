"""Programs of others that read the archive's table. They have their own folder (requirements/readers.txt)."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

READERS_HOME = Path(sys.prefix) / "readers"
_PATIENCE_S = 120

READERS = ("pyiceberg", "duckdb", "polars")

Row = tuple[str, int, int, int, str | None, str | None, str | None, str, str]
"""topic, epoch, seq, ts in milliseconds, node, tag, meta, data, content_type"""

INSTALL_EXTENSIONS = """
import duckdb, glob, importlib, os
for name in ("avro", "httpfs", "iceberg"):
    folder = os.path.dirname(importlib.import_module("duckdb_extension_" + name).__file__)
    [path] = glob.glob(folder + "/extensions/*/*.duckdb_extension")
    duckdb.sql(f"INSTALL '{path}'")
"""
"""DuckDB takes its extensions from the network; here they come from packages, under the same names."""

_OPEN = (
    INSTALL_EXTENSIONS
    + """
import json, sys, warnings
import polars as pl
import pyarrow as pa
from pyiceberg.table import StaticTable

warnings.simplefilter("ignore")
root, found, options, more = sys.argv[1], {}, {}, {}
duckdb.sql("LOAD iceberg")
if root.startswith("s3://"):
    url, key, secret = (os.environ[name] for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    options = {"s3.endpoint": url, "s3.access-key-id": key, "s3.secret-access-key": secret, "s3.region": "us-east-1"}
    more = {"storage_options": options}
    duckdb.sql("LOAD httpfs")
    duckdb.sql(f"CREATE SECRET (TYPE s3, KEY_ID '{key}', SECRET '{secret}', ENDPOINT '{url.removeprefix('http://')}', "
               "URL_STYLE 'path', USE_SSL false, REGION 'us-east-1')")
found["pyiceberg"] = StaticTable.from_metadata(root, options).scan().to_arrow()
found["duckdb"] = duckdb.sql(f"SELECT * FROM iceberg_scan('{root}')").to_arrow_table()
found["polars"] = pl.scan_iceberg(root, **more).collect().to_arrow()
"""
)
_READ = (
    _OPEN
    + """
for reader, table in found.items():
    table = table.set_column(3, "ts", table["ts"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()))
    rows = list(zip(*[table[name].to_pylist() for name in table.column_names]))
    print(json.dumps({"reader": reader, "columns": table.column_names, "rows": rows}))
"""
)

_READ_TYPED = (
    _OPEN
    + """
for reader, table in found.items():
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            micros = table[field.name].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
            table = table.set_column(place, field.name, micros)
    rows = sorted(table.to_pylist(), key=lambda row: row["_seq"])
    # Decimals are numbers in JSON.
    print(json.dumps({"reader": reader, "rows": rows}, default=float))
"""
)

_COLUMNS = ["topic", "epoch", "seq", "ts", "node", "tag", "meta", "data", "content_type"]


def read_by_all(root: str, home: Path, environment: Mapping[str, str] | None = None) -> list[Row]:
    """All rows of the table at a place, in the order of topic, epoch and seq: every reader must see the same."""
    reported = [json.loads(line) for line in run_reading(_READ, home, [root], environment).splitlines()]
    assert [one["reader"] for one in reported] == list(READERS)
    assert all(one["columns"] == _COLUMNS for one in reported)
    first, *others = [
        sorted((row[0], row[1], row[2], row[3] // 1000, *row[4:]) for row in one["rows"]) for one in reported
    ]
    for reader, rows in zip(READERS[1:], others, strict=True):
        assert rows == first, f"{reader} sees something else than {READERS[0]}"
    return first


def read_typed_by_all(root: str, home: Path, environment: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """All rows of the table of a stream, in their order, moments in microseconds: every reader must see the same."""
    reported = [json.loads(line) for line in run_reading(_READ_TYPED, home, [root], environment).splitlines()]
    assert [one["reader"] for one in reported] == list(READERS)
    rows: list[dict[str, Any]] = reported[0]["rows"]
    for one in reported[1:]:
        assert one["rows"] == rows, f"{one['reader']} sees something else than {READERS[0]}"
    return rows


def run_reading(
    code: str,
    home: Path,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    patience_s: int = _PATIENCE_S,
) -> str:
    """Returns the output of a program that runs with the readers installed."""
    assert READERS_HOME.is_dir(), "the readers of the tests are not installed: run `make setup`"
    env = {
        **os.environ,
        **(environment or {}),
        "PYTHONPATH": str(READERS_HOME),
        "HOME": str(home),
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=env, cwd=home, capture_output=True, text=True, timeout=patience_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
