"""Records cut out of sealed segments equal the records of a reader over HTTP."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.effort import effort
from tests.unit.spark.folders import LAYOUT, Folder
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.model.records import Record
from topics.spark.arrow_slices import RECORD_SCHEMA
from topics.spark.segment_reader import (
    ScanOptions,
    SegmentDamagedError,
    SegmentGoneError,
    SegmentRef,
    load_catalog,
    open_segment,
    pack,
    plan_scan,
    read_segment,
)
from topics.testing import ManualClock

Row = dict[str, object]


def read_group(fs: FileSystem, layout: Layout, refs: list[SegmentRef]) -> Iterator[pa.RecordBatch]:
    for ref in refs:
        yield from read_segment(fs, layout, ref)


def rows(folder: Folder, now_ms: int | None = None, **options: object) -> list[Row]:
    """The records of a scan as plain values."""
    now = folder.clock.now_ms() if now_ms is None else now_ms
    refs = plan_scan(load_catalog(folder.disk, LAYOUT), ScanOptions(**options), now)  # type: ignore[arg-type]
    found: list[Row] = []
    for batch in read_group(folder.disk, LAYOUT, refs):
        assert batch.schema == RECORD_SCHEMA
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def as_row(topic: str, epoch: int, record: dict[str, object]) -> Row:
    """A record in the form of diff, with the names of the columns."""
    meta = record.get("meta")
    named = meta.get("content-type") if isinstance(meta, dict) else None
    ts = record["$ts"]
    assert isinstance(ts, int)
    return {
        "topic": topic,
        "epoch": epoch,
        "seq": record["$seq"],
        "ts": datetime.fromtimestamp(ts / 1000, UTC),
        "node": record.get("$node"),
        "tag": record.get("$tag"),
        "meta": meta,
        "data": record["data"],
        "content_type": named if isinstance(named, str) else "application/json",
        "deleted": False,
    }


def decoded(row: Row) -> Row:
    meta, data = row["meta"], row["data"]
    assert isinstance(data, str)
    return {**row, "data": json.loads(data), "meta": json.loads(meta) if isinstance(meta, str) else None}


def assert_like_diff(folder: Folder, *names: str) -> None:
    expected = [
        as_row(name, folder.engine.core.directory.load(name).epoch, record)
        for name in names
        for record in folder.diff(name)
    ]
    assert [decoded(row) for row in rows(folder)] == expected


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
RECORDS = st.builds(
    lambda data, tag, node, meta: Record.of(data, tag=tag, node=node, meta=meta),
    st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner, max_size=3), max_leaves=5
    ),
    st.none() | TEXT,
    st.none() | TEXT.filter(bool),
    st.none() | st.dictionaries(TEXT | st.just("content-type"), TEXT | st.integers(), max_size=3),
)


@effort(60)
@given(
    st.lists(st.tuples(st.lists(RECORDS, min_size=1, max_size=4), st.none() | st.just("n")), min_size=1, max_size=6),
    st.data(),
)
def test_any_records_come_out_as_diff_gives_them(
    batches: list[tuple[list[Record], str | None]], data: st.DataObject
) -> None:
    clock = ManualClock()
    folder = Folder(clock=clock)
    for records, node in batches:
        folder.append("orders", *records, node=node)
        clock.advance(data.draw(st.integers(0, 10_000)))
        if data.draw(st.booleans()):
            folder.seal()
    tags = sorted({record.tag for records, _ in batches for record in records if record.tag})
    if tags:
        folder.delete("orders", tag=data.draw(st.sampled_from(tags)))
    folder.delete("orders", before_seq=data.draw(st.integers(0, 4)))
    folder.seal()
    assert_like_diff(folder, "orders")


@pytest.fixture
def folder() -> Folder:
    return Folder(clock=ManualClock())


def test_numbers_with_more_digits_and_many_batches(folder: Folder) -> None:
    for first in range(0, 1200, 40):
        folder.append("orders", *range(first, first + 40), node=f"node-{first % 3}" if first % 80 else None)
    folder.seal()
    assert_like_diff(folder, "orders")


def test_expired_capped_and_recreated_topics_are_like_diff(folder: Folder) -> None:
    clock = folder.clock
    assert isinstance(clock, ManualClock)
    folder.put("aged", ttl_ms=1000)
    folder.put("capped", cap_records=3)
    for value in range(5):
        folder.append("aged", value)
        folder.append("capped", value)
        folder.append("made", value)
        folder.seal()
        clock.advance(400)
    assert_like_diff(folder, "aged", "capped", "made")
    clock.advance(300)
    assert_like_diff(folder, "aged", "capped", "made")
    folder.drop("made")
    folder.append("made", "anew")
    folder.seal()
    assert_like_diff(folder, "aged", "capped", "made")


def test_a_scan_is_pruned_by_topic_seq_time_and_tag(folder: Folder) -> None:
    clock = folder.clock
    assert isinstance(clock, ManualClock)
    begin = clock.now_ms()
    for value in range(6):
        folder.append("orders", Record.of(value, tag=f"t{value % 3}"))
        folder.append("other", value)
        if value % 2:
            folder.seal()
        clock.advance(1000)

    def data(**options: object) -> list[object]:
        return [row["data"] for row in rows(folder, None, **options)]

    assert data(topics=("orders",)) == ["0", "1", "2", "3", "4", "5"]
    assert data(pattern="oth*", from_seq=2, to_seq=3) == ["1", "2"]
    assert data(topics=("orders",), from_ts=begin + 1000, to_ts=begin + 4000) == ["1", "2", "3"]
    assert data(tag_prefix="t1") == ["1", "4"]
    assert data(tag_prefix="t", from_seq=5) == ["4", "5"]
    assert data(tag_prefix="none") == []
    refs = plan_scan(load_catalog(folder.disk, LAYOUT), ScanOptions(from_seq=3, to_seq=4), clock.now_ms())
    assert [(ref.topic, ref.first_seq) for ref in refs] == [("orders", 3), ("other", 3)]


def test_tags_with_escapes_are_found_by_prefix(folder: Folder) -> None:
    for tag in ('a"b', "a\\c", "aé", "ab", 'z"'):
        folder.append("orders", Record.of(tag, tag=tag))
    folder.seal()
    assert [row["tag"] for row in rows(folder, tag_prefix="a")] == ['a"b', "a\\c", "aé", "ab"]
    assert [row["tag"] for row in rows(folder, tag_prefix='a"')] == ['a"b']


def test_deleted_records_can_be_asked_for(folder: Folder) -> None:
    folder.append("orders", Record.of(1, tag="a"), Record.of(2, tag="b"))
    folder.seal()
    folder.delete("orders", tag="b")
    folder.seal()
    assert [row["seq"] for row in rows(folder)] == [1]
    assert [(row["seq"], row["deleted"]) for row in rows(folder, include_deleted=True)] == [(1, False), (2, True)]


def test_a_segment_that_moved_is_found_and_one_that_went_is_reported(folder: Folder) -> None:
    folder = Folder(hot_retain_segments=0)
    folder.append("orders", 1)
    folder.append("orders", 2)
    folder.seal()
    refs = plan_scan(load_catalog(folder.disk, LAYOUT), ScanOptions(), folder.clock.now_ms())
    folder.relocate("orders")
    assert [batch.num_rows for batch in read_group(folder.disk, LAYOUT, refs)] == [2]
    folder.drop("orders")
    folder.checkpoint()
    with pytest.raises(SegmentGoneError):
        open_segment(folder.disk, LAYOUT, refs[0])


def test_damage_is_reported_and_never_read_over(folder: Folder) -> None:
    folder.append("orders", *["x" * 50_000] * 4)
    folder.seal()
    [ref] = plan_scan(load_catalog(folder.disk, LAYOUT), ScanOptions(), 0)
    path = LAYOUT.segment(ref.topic_id, ref.first_seq) + ".data"
    file = folder.disk.open(path, write=True)
    file.write_at(100_000, b"?")
    with pytest.raises(SegmentDamagedError, match="wrong checksum"):
        list(read_segment(folder.disk, LAYOUT, ref))
    first = msgspec.structs.replace(ref, to_seq=1)
    assert [batch.num_rows for batch in read_segment(folder.disk, LAYOUT, first)] == [1]
    folder.disk.remove(path)
    with pytest.raises(SegmentDamagedError, match="not there"):
        open_segment(folder.disk, LAYOUT, ref)


def test_groups_hold_neighbours_up_to_a_size_and_as_many_as_wanted(folder: Folder) -> None:
    for _ in range(6):
        folder.append("orders", "x" * 100)
        folder.seal()
    refs = plan_scan(load_catalog(folder.disk, LAYOUT), ScanOptions(), 0)
    assert [len(group) for group in pack(refs)] == [6]
    assert [len(group) for group in pack(refs, groups_min=3)] == [2, 2, 2]
    assert [len(group) for group in pack(refs, group_bytes=1)] == [1] * 6
    assert [ref for group in pack(refs, groups_min=4) for ref in group] == refs
    assert pack([]) == []


def test_batches_are_cut_at_a_number_of_rows(folder: Folder) -> None:
    folder.append("orders", *range(25))
    folder.seal()
    [ref] = plan_scan(load_catalog(folder.disk, LAYOUT), ScanOptions(), 0)
    batches = list(read_segment(folder.disk, LAYOUT, ref, rows=10))
    assert [batch.num_rows for batch in batches] == [10, 10, 5]
    assert pa.Table.from_batches(batches)["seq"].to_pylist() == list(range(1, 26))
