"""Views of records for tests: the rows of a DataFrame, and the content of diff."""

import time
from collections.abc import Callable
from datetime import UTC
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame

from topics.log.catalog_files import read_catalog
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.spark.connector.record_reader import RawRecord, page_request
from topics_client import Client, Gap

_PATIENCE_S = 180.0

Seen = tuple[int, int, str | None, str | None, str | None, str]
"""seq, ts, node, tag, meta, data"""


def of_frame(frame: DataFrame) -> list[Seen]:
    rows = frame.orderBy("topic", "seq").collect()
    return [
        (row.seq, round(row.ts.replace(tzinfo=UTC).timestamp() * 1000), row.node, row.tag, row.meta, row.data)
        for row in rows
    ]


def of_diff(client: Client, topic: str, from_seq: int = 0) -> list[Seen]:
    found: list[Seen] = []
    cursor = from_seq
    while True:
        page = client.send(page_request(topic, 0, cursor, 1000))
        found += [_seen(record) for record in page.records]
        if page.next_from_seq <= cursor:
            return found
        cursor = page.next_from_seq


def _seen(record: RawRecord) -> Seen:
    meta = str(bytes(record.meta), "utf-8") if len(record.meta) else None
    return record.seq, record.ts, record.node, record.tag, meta, str(bytes(record.data), "utf-8")


def wait_until(what: Callable[[], bool], why: str) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while not what():
        if time.monotonic() > give_up:
            raise AssertionError(f"it never came to be that {why}")
        time.sleep(0.05)


def sealed_to(folder: Path, topic: str) -> int:
    """The last sealed seq that the catalog of a data folder names."""
    catalog = read_catalog(PosixFileSystem(), Layout(str(folder)))
    found = catalog.by_name().get(topic) if catalog is not None else None
    return found.segments[-1].last_seq if found is not None and found.segments else 0


def checkpointed(client: Client, folder: Path) -> None:
    """Waits until the catalog knows everything that was done before."""

    def number() -> int:
        catalog = read_catalog(PosixFileSystem(), Layout(str(folder)))
        return catalog.head.number if catalog is not None else 0

    requested = number() + 2

    def reached() -> bool:
        client.append("checkpointed", 0)  # Without any writes there would be no checkpoint.
        return number() >= requested

    wait_until(reached, "two checkpoints were taken")


def losses_of(client: Client, topic: str) -> list[Gap]:
    page = client.send(page_request(topic, 0, 0, 1))
    return [page.tombstone] if page.tombstone is not None else []


def encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


def all_cold(client: Client, folder: Path, count: int) -> bool:
    """Whether so many segments, and no others, are in the store. Without writes there would be no checkpoint."""
    client.append("busy", 1)
    catalog = read_catalog(PosixFileSystem(), Layout(str(folder / "data")))
    known = catalog.by_name().get("orders") if catalog is not None else None
    found = known.segments if known is not None else []
    return len(found) == count and all(segment.cold for segment in found)
