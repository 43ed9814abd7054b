"""The worked example of the connector's page runs as it stands there, and again after a kill in the middle."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.http.live import LiveServer
from tests.spark.waiting_for import of_diff
from tests.unit.docs.pages import blocks, read, section
from tools.site_reference import built
from topics_client import Client


def example(server: LiveServer, folder: Path) -> str:
    [code] = blocks(section(read("docs/spark/connector.md"), "## A worked example"), "python")
    for shown, here in (("http://127.0.0.1:4000", server.url), ("./revenue-checkpoint", str(folder / "checkpoint"))):
        assert shown in code
        code = code.replace(shown, here)
    return code


def order(number: int, hour: int, minute: int) -> dict[str, object]:
    return {"id": number, "total": 1.5 + number % 3, "at": f"2026-03-01T{hour:02d}:{minute:02d}:00Z"}


def hours(client: Client) -> list[tuple[str | None, float, int]]:
    found = []
    for _, _, _, tag, _, data in of_diff(client, "revenue"):
        row = json.loads(data)
        found.append((tag, row["revenue"], row["orders"]))
    return found


@pytest.mark.usefixtures("spark")
def test_the_worked_example_writes_each_hour_once(server: LiveServer, client: Client, tmp_path: Path) -> None:
    placed = [order(number, 10 + number // 20, number % 20) for number in range(60)]
    client.append_many("orders", placed[:45])
    code = example(server, tmp_path)
    exec(compile(code, "docs/spark/connector.md", "exec"), {})
    client.append_many("orders", placed[45:])
    client.append("orders", order(60, 15, 0))
    exec(compile(code, "docs/spark/connector.md", "exec"), {})
    expected = [
        (f"2026-03-01T{hour}", round(sum(1.5 + number % 3 for number in range(first, first + 20)), 2), 20)
        for hour, first in ((10, 0), (11, 20), (12, 40))
    ]
    assert sorted(hours(client)) == expected


def test_the_columns_of_the_page_are_those_of_the_source(spark: SparkSession) -> None:
    from tests.unit.docs.pages import rows
    from topics.spark.arrow_slices import RECORD_DDL

    shown = [
        (cells[0].strip("`"), cells[1])
        for cells in rows(section(read("docs/spark/connector.md"), "## Reading"))
        if len(cells) == 3
    ]
    fields = [(field.name, field.dataType.simpleString()) for field in spark.createDataFrame([], RECORD_DDL).schema]
    assert [row for row in shown if row in fields] == fields


def test_every_option_is_on_the_page() -> None:
    from topics.spark.connector.options import _KNOWN

    page = built("docs/spark/connector.md")
    assert [name for name in _KNOWN if f"`{name}`" not in page] == []
