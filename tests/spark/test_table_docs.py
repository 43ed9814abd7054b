"""The lines of docs/spark/tables.md that read the archive's table run as they stand there."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from tests.readers import INSTALL_EXTENSIONS, run_reading
from tests.rest_catalog import RestCatalogServer
from tests.s3 import S3Server
from tests.spark.iceberg_runtime import begin_with, environment_of
from tests.spark.test_table_readers import archive as make_archive
from tests.unit.docs.pages import blocks, read
from tests.unit.spark.catalogs import named_catalog
from tests.unit.spark.folders import Folder
from tests.unit.spark.tables import run_shown
from tests.unit.spark.typed import Described
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.records import Record
from topics.model.settings import Settings
from topics.system.clock import SystemClock

SHOWN = "./topics-data/archive"


def page() -> str:
    return read("docs/spark/tables.md")


def code_of(module: str, shown: str = f'{SHOWN}"') -> str:
    """The lines that read a place; the archive itself in DuckDB's words ends with another quote."""
    [code] = [
        code
        for code in blocks(page(), "python")
        if code.splitlines()[0].startswith((f"import {module}", f"from {module}")) and shown in code
    ]
    assert SHOWN in code and len([line for line in code.splitlines() if line and "import" not in line]) <= 3
    return code


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A table of two topics, with rows that are hidden in place, beside the folder in which the code runs."""
    root = tmp_path / "topics-data" / "archive"
    folder = Folder(PosixFileSystem(), layout=Layout(str(root.parent)))
    folder.append("orders", *[Record.of({"n": n}, tag=f"t{n % 10}") for n in range(100)])
    binary = {"content-type": "application/octet-stream"}
    folder.append("images", *[Record.of("AAEC/w==", meta=binary) for _ in range(7)])
    folder.seal()
    run_shown(folder.disk, folder, 1, str(root))
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    run_shown(folder.disk, folder, 2, str(root))
    assert list((root / "deletes").iterdir())
    return root


def test_duckdb_reads_it_in_three_lines(archive: Path, tmp_path: Path) -> None:
    [bytes_of] = re.findall(r"`(from_base64\(.*?\))`", page())
    more = f"""
query = "SELECT DISTINCT hex({bytes_of}) FROM iceberg_scan('{SHOWN}') WHERE content_type <> 'application/json'"
print(duckdb.sql(query).fetchall())
"""
    reported = run_reading(INSTALL_EXTENSIONS + code_of("duckdb", SHOWN) + more, tmp_path)
    assert re.search(r"orders\W+90\b", reported) and re.search(r"images\W+7\b", reported)
    assert "[('000102FF',)]" in reported


def test_polars_reads_it_in_three_lines(archive: Path, tmp_path: Path) -> None:
    [bytes_of] = re.findall(r"`(pl\.col\(\"data\"\)\.str.*?)` in", page())
    more = f"""
images = pl.scan_iceberg("{SHOWN}").filter(pl.col("content_type") != "application/json")
print(orders.collect().height, images.select({bytes_of}).unique().collect().rows())
"""
    reported = run_reading(code_of("polars") + more, tmp_path)
    assert reported.endswith("90 [(b'\\x00\\x01\\x02\\xff',)]\n")


def test_the_lines_about_typed_tables_run(tmp_path: Path) -> None:
    described = Described(Folder(PosixFileSystem(), SystemClock(), Layout(str(tmp_path / "topics-data"))))
    described.create("orders")
    described.append("orders", *[{"id": n, "total": n / 2, "at": "2026-03-01T10:20:00Z"} for n in range(20)])
    described.folder.seal()
    make_archive(Settings(data_dir=str(tmp_path / "topics-data"), archive="1", archive_typed="orders"))
    reported = run_reading(code_of("polars", "typed/orders"), tmp_path)
    assert "shape: (9, 3)" in reported and "2026-03-01 10:20:00 UTC" in reported


@pytest.mark.slow
def test_spark_reads_it_in_an_object_store_with_a_catalog_and_without(
    tmp_path: Path, spark_home: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways of the page in one Spark: by a version's file, and by a catalog of REST."""
    bucket = s3.make_bucket()
    with RestCatalogServer(tmp_path, s3) as catalog:
        named_catalog(monkeypatch, type="rest", uri=catalog.url)
        folder = Folder(PosixFileSystem(), SystemClock(), Layout(str(tmp_path / "data")))
        folder.append("orders", *[Record.of({"n": n}, tag=f"t{n % 10}") for n in range(100)])
        folder.seal()
        whole = Settings(data_dir=str(tmp_path / "data"), archive="1", archive_dir=f"{bucket}/kept/archive")
        named = {"archive_catalog": "lake", "archive_table": "topics.records"}
        for deleted in (None, "t3"):
            if deleted is not None:
                folder.delete("orders", tag=deleted)
                folder.checkpoint()
            for place in ({}, {**named, "archive_dir": f"{bucket}/named/archive"}):
                make_archive(msgspec.structs.replace(whole, **place))
        [code] = [one for one in blocks(page(), "python") if "S3FileIO" in one]
        more = f"""
import json
spark.conf.set("spark.sql.catalog.named", "org.apache.iceberg.spark.SparkCatalog")
spark.conf.set("spark.sql.catalog.named.io-impl", lake["spark.sql.catalog.lake.io-impl"])
spark.conf.set("spark.sql.catalog.named.type", "rest")
spark.conf.set("spark.sql.catalog.named.uri", "{catalog.url}")
for word in ("s3.endpoint", "s3.path-style-access"):
    spark.conf.set("spark.sql.catalog.named." + word, spark.conf.get("spark.sql.catalog.lake." + word))
tables = [spark.table(name + ".topics.records") for name in ("lake", "named")]
print(json.dumps([sorted(row.seq for row in table.select("seq").collect()) for table in tables]))
"""
        conf = {
            "spark.driver.memory": "1g",
            "spark.sql.catalog.lake.s3.endpoint": s3.environment["AWS_ENDPOINT_URL"],
            "spark.sql.catalog.lake.s3.path-style-access": "true",
        }
        environment = {**s3.environment, **environment_of(spark_home, tmp_path, "local[2]", **conf)}
        begin = begin_with(spark_home)
        reported = run_reading(begin + code + more, tmp_path, environment=environment, patience_s=900)
    kept = [n + 1 for n in range(100) if n % 10 != 3]
    assert json.loads(reported.splitlines()[-1]) == [kept, kept]


@pytest.mark.slow
def test_spark_reads_it_in_three_lines(archive: Path, tmp_path: Path, spark_home: Path) -> None:
    """With the runtime of Iceberg, which Spark gets from Maven."""
    [bytes_of] = re.findall(r"`(unbase64\(.*?\))` in Spark", page())
    quoted = bytes_of.replace('"', '\\"')
    more = f"""
import json
table = spark.read.format("iceberg").load("{SHOWN}")
rows = [[row.topic, row.seq] for row in table.orderBy("topic", "seq").collect()]
images = table.where("topic = 'images'").selectExpr("hex({quoted}) as bytes").distinct().collect()
print(json.dumps([rows, [row.bytes for row in images]]))
"""
    environment = environment_of(spark_home, tmp_path)
    code = begin_with(spark_home) + code_of("pyspark") + more
    reported = run_reading(code.replace(SHOWN, str(archive)), tmp_path, environment=environment, patience_s=900)
    rows, images = json.loads(reported.splitlines()[-1])
    expected = [["images", seq] for seq in range(1, 8)] + [["orders", n + 1] for n in range(100) if n % 10 != 3]
    assert (rows, images) == (expected, ["000102FF"])
