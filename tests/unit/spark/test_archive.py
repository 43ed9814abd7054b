"""The archive: what is copied, hidden, rewritten and removed, on a fake disk and without Spark."""

import io
import json

import msgspec
import pyarrow.parquet as pq
import pytest

from tests.unit.spark.archives import ROOT, advance, archived, check_manifests, manifests, pipeline, run_all
from tests.unit.spark.folders import LAYOUT, Folder
from topics.core.records import Record
from topics.spark.archive.manifest import (
    Manifest,
    decode_manifest,
    decode_masked,
    encode_manifest,
    hidden_since,
    with_files,
)
from topics.spark.archive.planning import ArchiveRules, next_due
from topics.spark.archive.store import ArchiveDamagedError, ArchiveStore
from topics.spark.pipeline.confirming import CatalogWentBackError
from topics.spark.pipeline.status import load_status
from topics.storage.replaced import read_whole, replace_file

DAY_MS = 86_400_000


@pytest.fixture
def folder() -> Folder:
    return Folder()


def test_sealed_records_are_archived_once_and_a_second_run_changes_nothing(folder: Folder) -> None:
    for _ in range(3):
        folder.append("orders", *range(10))
        folder.append("notes", "n")
        folder.seal()
    run_all(folder.disk, folder)
    assert archived(folder.disk, "orders") == {seq: str((seq - 1) % 10) for seq in range(1, 31)}
    assert len(archived(folder.disk, "notes")) == 3
    check_manifests(folder.disk)
    before = manifests(folder.disk)
    files = folder.disk.list_dir(f"{ROOT}/topic_id=0000000000000001")
    run_all(folder.disk, folder, seed=8)
    assert manifests(folder.disk) == before
    assert folder.disk.list_dir(f"{ROOT}/topic_id=0000000000000001") == files
    assert manifests(folder.disk)["orders"].covered == ((1, 30),)


def test_files_are_split_by_day_and_name_what_they_hold(folder: Folder) -> None:
    folder.append("orders", 1, 2)
    advance(folder.clock, DAY_MS)
    folder.append("orders", 3)
    folder.seal()
    run_all(folder.disk, folder)
    files = manifests(folder.disk)["orders"].files
    assert [(file.first_seq, file.last_seq, file.rows) for file in files] == [(1, 2, 2), (3, 3, 1)]
    assert files[0].date < files[1].date
    assert all(file.path.startswith(f"date={file.date}/") for file in files)


def test_the_archive_outlives_the_log_but_not_a_delete(folder: Folder) -> None:
    folder.put("orders", cap_records=5)
    for value in range(10):
        folder.append("orders", Record.of(value, tag=f"t{value}"))
        folder.seal()
        run_all(folder.disk, folder)
    assert len(archived(folder.disk, "orders")) == 10
    folder.delete("orders", tag="t7")
    folder.delete("orders", before_seq=7)
    folder.checkpoint()
    run_all(folder.disk, folder)
    assert archived(folder.disk, "orders").keys() == {1, 2, 3, 4, 5, 7, 9, 10}
    check_manifests(folder.disk)


def test_a_delete_of_a_whole_segment_reaches_the_archive_though_its_files_are_gone(folder: Folder) -> None:
    folder.append("orders", Record.of(1, tag="a"), Record.of(2, tag="a"))
    folder.seal()
    folder.append("orders", 3)
    folder.seal()
    run_all(folder.disk, folder)
    folder.delete("orders", tag="a")
    folder.checkpoint()
    folder.checkpoint()
    assert not folder.disk.exists(LAYOUT.segment(1, 1) + ".data")
    run_all(folder.disk, folder)
    assert archived(folder.disk, "orders") == {3: "3"}


def test_what_was_deleted_before_it_was_archived_is_never_archived(folder: Folder) -> None:
    folder.append("orders", Record.of(1, tag="a"), 2, 3)
    folder.seal()
    folder.delete("orders", tag="a")
    folder.checkpoint()
    run_all(folder.disk, folder)
    table = manifests(folder.disk)["orders"]
    assert table.rows == 2
    assert archived(folder.disk, "orders").keys() == {2, 3}


def test_a_dropped_topic_leaves_the_archive_and_one_made_again_begins_anew(folder: Folder) -> None:
    folder.append("orders", "old")
    folder.seal()
    run_all(folder.disk, folder)
    folder.drop("orders")
    folder.append("orders", "new")
    folder.seal()
    run_all(folder.disk, folder)
    assert archived(folder.disk, "orders") == {1: '"new"'}
    assert folder.disk.list_dir(ROOT) == ["topic_id=0000000000000002"]


def test_deleted_records_are_written_out_of_the_files(folder: Folder) -> None:
    for value in range(6):
        folder.append("orders", Record.of("secret" if value == 3 else value, tag=f"t{value}"))
    folder.seal()
    run_all(folder.disk, folder)
    folder.delete("orders", tag="t3")
    folder.delete("orders", tag="t4")
    folder.checkpoint()
    run_all(folder.disk, folder, seed=8)
    manifest = manifests(folder.disk)["orders"]
    assert manifest.rows == 4
    assert manifest.deleted == ()
    assert len(manifest.retired) == 1
    advance(folder.clock, 600_001)
    run_all(folder.disk, folder, seed=9)
    manifest = manifests(folder.disk)["orders"]
    assert manifest.retired == ()
    [day] = [name for name in folder.disk.list_dir(f"{ROOT}/topic_id=0000000000000001") if name.startswith("date=")]
    assert len(folder.disk.list_dir(f"{ROOT}/topic_id=0000000000000001/{day}")) == 1
    assert archived(folder.disk, "orders").keys() == {1, 2, 3, 6}


def files_of(folder: Folder) -> list[str]:
    root = f"{ROOT}/topic_id=0000000000000001"
    days = [name for name in folder.disk.list_dir(root) if name.startswith("date=")]
    return [f"{root}/{day}/{name}" for day in days for name in folder.disk.list_dir(f"{root}/{day}")]


def test_an_erasure_has_a_deadline_also_when_nothing_else_happens(folder: Folder) -> None:
    """A tenth of a file is too little to write it again for, and nobody writes anything any more."""
    folder.append("orders", *[Record.of(value, tag=f"t{value}") for value in range(10)])
    folder.seal()
    run_all(folder.disk, folder)
    assert load_status(folder.disk, folder.layout).due_ms is None
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    rules = {"erase_ms": 5000, "retire_ms": 1000}
    hidden_ms = folder.clock.now_ms()
    run_all(folder.disk, folder, **rules)
    [before] = files_of(folder)
    assert manifests(folder.disk)["orders"].hidden_ms == hidden_ms
    # The status says when somebody has to look again, and each look does what is due by then.
    assert load_status(folder.disk, folder.layout).due_ms == hidden_ms + 5000
    advance(folder.clock, 4999)
    run_all(folder.disk, folder, **rules)
    assert files_of(folder) == [before]
    advance(folder.clock, 1)
    run_all(folder.disk, folder, **rules)
    manifest = manifests(folder.disk)["orders"]
    assert (manifest.rows, manifest.deleted, manifest.hidden_ms) == (9, (), 0)
    assert load_status(folder.disk, folder.layout).due_ms == hidden_ms + 6000
    advance(folder.clock, 1000)
    run_all(folder.disk, folder, **rules)
    [after] = files_of(folder)
    assert after != before
    assert load_status(folder.disk, folder.layout).due_ms is None
    assert archived(folder.disk, "orders").keys() == set(range(1, 11)) - {4}


def test_a_topic_that_is_left_out_is_no_reason_to_look_again(folder: Folder) -> None:
    folder.append("orders", *[Record.of(value, tag=f"t{value}") for value in range(10)])
    folder.seal()
    run_all(folder.disk, folder)
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    run_all(folder.disk, folder)
    found = {manifest.topic_id: manifest for manifest in manifests(folder.disk).values()}
    assert next_due(found, ArchiveRules(), ()) is not None
    assert next_due(found, ArchiveRules(), (1,)) is None


def test_deletes_by_the_thousand_are_packed_and_come_out_as_they_went_in() -> None:
    few = Manifest(topic_id=1, epoch=1, topic="a", deleted=((2, 3), (7, 7)))
    many = msgspec.structs.replace(few, deleted=tuple((n * 5, n * 5 + n % 3) for n in range(1, 3000)))
    assert json.loads(encode_manifest(few))["deleted"] == [[2, 3], [7, 7]]
    # A program that does not know the word must not take it for no deletes at all.
    written = json.loads(encode_manifest(many))
    assert (written["version"], written["deleted"]) == (2, [])
    for manifest in (few, many):
        assert decode_manifest(encode_manifest(manifest)) == manifest
        bare, mask = decode_masked(encode_manifest(manifest))
        assert (bare.deleted, tuple(mask.ranges())) == ((), manifest.deleted)
    assert len(encode_manifest(many)) * 5 < len(json.dumps(msgspec.to_builtins(many), indent=1))
    for damaged in ("###", "AAAA"):
        with pytest.raises(ValueError):
            decode_manifest(json.dumps({**written, "packed": damaged}).encode())


def test_a_manifest_of_before_has_a_deadline_too() -> None:
    old = Manifest(topic_id=1, epoch=1, topic="a", updated_ms=7, deleted=((1, 2),))
    assert hidden_since(decode_manifest(encode_manifest(old))) == 7
    assert hidden_since(msgspec.structs.replace(old, deleted=())) == 0


def test_a_compaction_takes_out_all_that_is_deleted(folder: Folder) -> None:
    folder.append("orders", *[Record.of(value, tag=f"t{value}") for value in range(10)])
    folder.seal()
    run_all(folder.disk, folder)
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    run_all(folder.disk, folder)
    manifest = manifests(folder.disk)["orders"]
    assert (manifest.rows, manifest.deleted) == (10, ((4, 4),))
    run_all(folder.disk, folder, deleted_share=0)
    manifest = manifests(folder.disk)["orders"]
    assert (manifest.rows, manifest.deleted) == (9, ())
    assert archived(folder.disk, "orders").keys() == set(range(1, 11)) - {4}


def test_files_are_compressed_and_say_what_is_in_them(folder: Folder) -> None:
    folder.append("orders", *[Record.of(value, tag=f"t{value}") for value in range(10)])
    folder.seal()
    run_all(folder.disk, folder)
    [file] = manifests(folder.disk)["orders"].files
    whole = bytes(folder.disk.open(f"{ROOT}/topic_id=0000000000000001/{file.path}").map())
    group = pq.ParquetFile(io.BytesIO(whole)).metadata.row_group(0)
    columns = {group.column(place).path_in_schema: group.column(place) for place in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert [one.column_index for one in group.sorting_columns] == [list(columns).index("seq")]
    assert (columns["seq"].statistics.min, columns["seq"].statistics.max) == (1, 10)
    assert columns["ts"].statistics.has_min_max
    assert (columns["tag"].statistics.min, columns["tag"].statistics.max) == ("t0", "t9")
    assert columns["tag"].bloom_filter_offset is not None
    assert columns["data"].bloom_filter_offset is None


def test_many_small_files_become_one(folder: Folder) -> None:
    for value in range(12):
        folder.append("orders", value)
        folder.seal()
        run_all(folder.disk, folder, group_bytes=1)
    manifest = manifests(folder.disk)["orders"]
    assert len(manifest.files) < 9
    assert archived(folder.disk, "orders") == {value + 1: str(value) for value in range(12)}
    check_manifests(folder.disk)


def test_retention_is_its_own_and_what_it_took_does_not_come_back(folder: Folder) -> None:
    for value in range(3):
        folder.append("orders", value)
        folder.seal()
        advance(folder.clock, DAY_MS)
    run_all(folder.disk, folder, retention_ms=int(2.5 * DAY_MS))
    run_all(folder.disk, folder, retention_ms=int(2.5 * DAY_MS))
    assert archived(folder.disk, "orders").keys() == {2, 3}
    assert manifests(folder.disk)["orders"].covered == ((1, 3),)


def test_a_long_backlog_is_committed_piece_by_piece(folder: Folder) -> None:
    for _ in range(6):
        folder.append("orders", "x" * 500)
        folder.seal()
    made = pipeline(folder.disk, folder, round_bytes=1000, group_bytes=1)
    assert made.round()
    assert 0 < len(archived(folder.disk, "orders")) < 6
    assert made.status.lag_segments == 5
    run_all(folder.disk, folder, round_bytes=1000, group_bytes=1)
    assert len(archived(folder.disk, "orders")) == 6


def test_a_manifest_that_cannot_be_read_stops_everything(folder: Folder) -> None:
    folder.append("orders", 1)
    folder.seal()
    run_all(folder.disk, folder)
    path = f"{ROOT}/topic_id=0000000000000001/manifest.json"
    whole = read_whole(folder.disk, path)
    assert whole is not None
    for broken in (whole[:-5], b"{}", json.dumps({**json.loads(whole), "version": 9}).encode()):
        replace_file(folder.disk, path, broken)
        with pytest.raises(ArchiveDamagedError, match=r"manifest\.json"):
            ArchiveStore(folder.disk, ROOT).load(1)


def test_nothing_is_archived_twice_even_when_asked_to(folder: Folder) -> None:
    folder.append("orders", 1)
    folder.seal()
    run_all(folder.disk, folder)
    manifest = manifests(folder.disk)["orders"]
    with pytest.raises(ValueError, match="archived already"):
        with_files(manifest, manifest.files, manifest.covered, 0)
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_a_catalog_that_went_back_is_refused(folder: Folder) -> None:
    folder.append("orders", 1)
    folder.seal()
    run_all(folder.disk, folder)
    replace_file(folder.disk, LAYOUT.pipeline_seen, b"999")
    with pytest.raises(CatalogWentBackError, match="put back from an older copy"):
        run_all(folder.disk, folder)


def test_the_engine_forgets_deletes_once_they_are_applied(folder: Folder) -> None:
    folder.append("orders", Record.of(1, tag="a"), Record.of(2, tag="b"))
    folder.seal()
    run_all(folder.disk, folder)
    folder.delete("orders", tag="a")
    folder.checkpoint()
    run_all(folder.disk, folder)
    for _ in range(2):
        folder.append("orders", 3)
        folder.checkpoint()
    part = (folder.engine.core.by_name["orders"].parts or {})["removals"]
    assert part.told == []  # type: ignore[attr-defined]


# A poisoned topic


def damage(folder: Folder, topic_id: int) -> None:
    path = LAYOUT.segment(topic_id, 1) + ".idx"
    folder.disk.open(path, write=True).write_at(50, b"????")


def test_a_poisoned_topic_is_named_and_the_others_go_on(folder: Folder) -> None:
    folder.append("bad", 1)
    folder.append("good", 1)
    folder.seal()
    damage(folder, 1)
    made = run_all(folder.disk, folder)
    assert archived(folder.disk, "good") == {1: "1"}
    [one] = made.status.quarantined
    assert (one.topic, one.product, one.attempts) == ("bad", "archive", 1)
    assert "wrong checksum" in one.reason
    assert made.status.lag_segments == 1
    advance(folder.clock, 60_001)
    made = run_all(folder.disk, folder)
    [again] = made.status.quarantined
    assert again.attempts == 2
    assert again.retry_at_ms - folder.clock.now_ms() == 120_000
    assert again.since_ms == one.since_ms


def test_a_topic_that_is_well_again_is_let_in(folder: Folder) -> None:
    folder.append("bad", 1)
    folder.seal()
    path = LAYOUT.segment(1, 1) + ".idx"
    whole = read_whole(folder.disk, path)
    assert whole is not None
    damage(folder, 1)
    run_all(folder.disk, folder)
    replace_file(folder.disk, path, whole)
    advance(folder.clock, 60_001)
    made = run_all(folder.disk, folder)
    assert made.status.quarantined == ()
    assert archived(folder.disk, "bad") == {1: "1"}
    assert made.status.lag_segments == 0
