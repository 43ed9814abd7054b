"""Swapped files: a file in the place of another one of its kind is refused or reported, and never served.

Each test swaps every pair of files of one kind, as a restore by hand or a broken file system might.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations

import msgspec
import pytest

from tests.crash.harness import dump
from tests.crash.test_index_build_crash_sweeps import LAYOUT as INDEXED
from tests.crash.test_index_build_crash_sweeps import World as IndexedWorld
from tests.crash.test_index_build_crash_sweeps import run_all
from tests.crash.test_unreadable_sectors import read_around
from tests.crash.wreckage import BOOT, FSYNC, LAYOUT, OPTIONS, Builder, build, content, files, settled, show
from tests.property.totals import all_topics
from tests.unit.conftest import append
from tests.unit.ops import folders as backups
from tests.unit.spark import archives
from tests.unit.spark.archives import ROOT
from tests.unit.spark.folders import Folder
from tests.unit.spark.tables import table_of
from tests.unit.spark.typed import Described, run_typed, typed_entries
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.log.fs import add_checksum
from topics.log.layout import Layout
from topics.model.errors import BackupFailedError, DamagedBackupError, DamageError
from topics.model.records import Record
from topics.ops.backup.backup_store import BackupDamaged, BackupPlace
from topics.ops.backup.restore import ALL, Restore, newest_of
from topics.ops.repair.repair import verify
from topics.search.file_index.manifest import IndexManifest, IndexStore, check_index_files
from topics.spark.archive.ledger import ArchiveDamagedError, ArchiveStore, MissedDeletesError, OtherHistoryError
from topics.spark.iceberg.table import TableFollower
from topics.spark.iceberg.typed_files import folder_of
from topics.spark.iceberg.typed_tables import TypedTable
from topics.spark.pipeline.rounds import DamagedNoteError, ShortError
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival

ENDINGS = {"data": ".data", "idx": ".idx", "log": ".wal", "snapshot": ".bin"}


def replace(disk: FakeDisk, path: str, data: bytes) -> None:
    file = disk.open(path, write=True)
    file.truncate(0)
    file.write_at(0, data)
    file.sync()


def swap(disk: FakeDisk, one: str, other: str) -> None:
    first, second = content(disk, one), content(disk, other)
    replace(disk, one, second)
    replace(disk, other, first)


def pairs(disk: FakeDisk, ending: str) -> Iterator[tuple[str, str]]:
    """Every two files of a kind whose bytes differ and that count."""
    orphans = {f"/data/{note.where}" for note in verify(disk, LAYOUT, BOOT).notes}
    found = [path for path in files(disk) if path.endswith(ending) and path not in orphans]
    yield from ((one, other) for one, other in combinations(found, 2) if content(disk, one) != content(disk, other))


def assert_never_served(disk: FakeDisk, written: dict[int, dict[int, str]], live: dict[int, set[int]]) -> bool:
    """Starts an engine: whether it starts. Every served record belongs to the topic, and every missing one is
    reported."""
    try:
        engine = Engine.recover(disk, OPTIONS, ManualClock(), SeededEntropy(2), boot_id=BOOT)
    except DamageError as error:
        assert error.findings[0].where
        return False
    for topic in all_topics(engine):
        served, lost = read_around(engine, topic.name)
        assert set(served) <= live[topic.id], topic.name
        assert live[topic.id] <= {*served, *lost}, topic.name
        for record in (
            next(iter(engine.read_now(topic.name, ReadRequest(from_seq=seq - 1, limit=1)).records())) for seq in served
        ):
            data, seq = record["data"], record["$seq"]
            assert isinstance(data, dict) and isinstance(seq, int)
            assert data["of"] == written[topic.id][seq]
    return True


@pytest.mark.parametrize("kind", ENDINGS)
def test_swapped_files_of_the_log_are_never_served(kind: str) -> None:
    disk, written = build()
    live = {topic_id: set(shown.records) for topic_id, shown in show(disk).items()}
    started = refused = 0
    for one, other in pairs(disk, ENDINGS[kind]):
        swapped = disk.clone()
        swap(swapped, one, other)
        assert not verify(swapped, LAYOUT, BOOT).sound, (one, other)
        if assert_never_served(swapped, written, live):
            started += 1
        else:
            refused += 1
    assert started + refused >= 3
    assert kind not in ("log", "snapshot") or not started


def test_swapped_segments_whose_index_was_swapped_along_are_never_served() -> None:
    disk, written = build()
    live = {topic_id: set(shown.records) for topic_id, shown in show(disk).items()}
    for one, other in pairs(disk, ".data"):
        swapped = disk.clone()
        swap(swapped, one, other)
        swap(swapped, one.removesuffix("data") + "idx", other.removesuffix("data") + "idx")
        assert not verify(swapped, LAYOUT, BOOT).sound, (one, other)
        assert_never_served(swapped, written, live)


def test_log_files_of_shards_that_are_alike_change_nothing_or_are_refused() -> None:
    """Both have the same numbers and lsns, so only the topics in their frames differ."""
    disk = FakeDisk()
    builder = Builder(disk)
    for name in ("even", "odd"):
        builder.put(name)
    for _ in range(12):
        for name in ("even", "odd"):
            builder.write(name, 2, size=100)
    folder = settled(disk.crash(Survival.EVERYTHING))
    live = {topic_id: set(shown.records) for topic_id, shown in show(folder).items()}
    for one, other in pairs(folder, ".wal"):
        swapped = folder.clone()
        swap(swapped, one, other)
        assert_never_served(swapped, builder.written, live)


def twins() -> tuple[IndexedWorld, dict[str, list[list[int]]]]:
    """Two streams of one description whose index files differ in nothing but the entries, and all their answers."""
    world = IndexedWorld(FakeDisk(), ManualClock())
    for name in ("logs", "twin"):
        world.create(name)
    for first in range(0, 9, 3):
        for name, ahead in (("logs", 0), ("twin", 2)):
            world.append(name, first + ahead, 3)
        world.seal()
    for seed in (5, 6):
        # The second run removes the files that the first one merged.
        run_all(world.disk, world.clock, seed)
        world.clock.advance(600_001)
    return world, {name: world.answers(name) for name in ("logs", "twin")}


def assert_searches_are_right(disk: FakeDisk, expected: dict[str, list[list[int]]]) -> int:
    """Every search is complete and right; how many index files were found unreadable."""
    world = IndexedWorld(disk.crash(Survival.EVERYTHING), ManualClock())
    assert {name: world.answers(name) for name in expected} == expected
    index_files = world.streams.search.index_files
    assert index_files is not None
    return index_files.unreadable


@pytest.mark.parametrize("seal", [True, False], ids=["sealed", "of an earlier release"])
def test_swapped_index_files_are_reported_and_searches_stay_right(seal: bool) -> None:
    world, expected = twins()
    store = IndexStore(world.disk, INDEXED)
    if not seal:
        for topic_id in store.topic_ids():
            unseal(world.disk, store, topic_id)
    swapped = 0
    for one, other in pairs(world.disk, ".companion"):
        if not seal and one.rpartition("/")[2][:41] == other.rpartition("/")[2][:41]:
            continue  # Nothing in the files of an earlier release distinguishes them.
        disk = world.disk.clone()
        swap(disk, one, other)
        assert list(check_index_files(disk, INDEXED)), (one, other)
        assert assert_searches_are_right(disk, expected) > 0, (one, other)
        swapped += 1
    assert swapped


def unseal(disk: FakeDisk, store: IndexStore, topic_id: int) -> None:
    """Makes a manifest one of an earlier release."""
    manifest = store.load(topic_id)
    assert isinstance(manifest, IndexManifest)
    named = [msgspec.structs.replace(file, seal=None) for file in manifest.files]
    data = msgspec.json.encode(msgspec.structs.replace(manifest, files=tuple(named)))
    replace(disk, store.path(topic_id, "manifest.json"), data.replace(b',"seal":null', b""))


def test_swapped_manifests_are_reported_and_searches_stay_right(caplog: pytest.LogCaptureFixture) -> None:
    world, expected = twins()
    swapped = list(pairs(world.disk, "manifest.json"))
    assert swapped
    for one, other in swapped:
        disk = world.disk.clone()
        swap(disk, one, other)
        assert len(list(check_index_files(disk, INDEXED))) == 2
        assert assert_searches_are_right(disk, expected) == 0
        assert "index manifest cannot be read" in caplog.text


def test_swapped_index_files_are_not_merged_under_a_valid_manifest() -> None:
    world, expected = twins()
    for one, other in pairs(world.disk, ".companion"):
        disk = world.disk.clone()
        swap(disk, one, other)
        again = IndexedWorld(disk.crash(Survival.EVERYTHING), world.clock)
        for first in (9, 12, 15):
            for name, ahead in (("logs", 0), ("twin", 2)):
                again.append(name, first + ahead, 3)
            again.seal()
        run_all(again.disk, again.clock, 9)
        assert [answers[0] for answers in map(again.answers, expected)] == [list(range(1, 19))] * 2
        assert again.answers("twin")[1] == list(range(18, 5, -1)), (one, other)


def test_flipped_byte_of_a_manifest_is_found() -> None:
    world, expected = twins()
    store = IndexStore(world.disk, INDEXED)
    path = store.path(store.topic_ids()[0], "manifest.json")
    whole = content(world.disk, path)
    assert add_checksum(whole[: whole.rindex(b",")] + b"}") == whole
    for place in range(0, len(whole), 7):
        disk = world.disk.clone()
        damaged = bytearray(whole)
        damaged[place] ^= 1
        replace(disk, path, bytes(damaged))
        assert store.load(store.topic_ids()[0]) is not None
        loaded = IndexStore(disk, INDEXED).load(store.topic_ids()[0])
        assert loaded is None or loaded == store.load(store.topic_ids()[0]), place
    assert FSYNC and expected


def test_swapped_files_of_an_archive_are_never_served() -> None:
    whole = FakeDisk()
    folder = Folder(whole)
    for name in ("one", "two"):
        for first in range(0, 30, 10):
            folder.append(name, *range(first, first + 10))
            folder.seal(name)
            archives.run_all(whole, folder, group_bytes=1)
    expected = {name: archives.archived(whole, name) for name in ("one", "two")}
    swapped = 0
    for ending in (".parquet", ".bin"):
        for one, other in pairs(whole, ending):
            if "/archive/" not in one or "/archive/" not in other:
                continue
            disk = whole.clone()
            swap(disk, one, other)
            swapped += 1
            found = {}
            for name, records in expected.items():
                try:
                    found[name] = archives.archived(disk, name)
                except (ValueError, ArchiveDamagedError):
                    continue
                assert found[name] == records, (one, other)
            assert len(found) < 2, (one, other)
    assert swapped > 3


def test_swapped_files_of_an_archive_are_not_rewritten() -> None:
    whole = FakeDisk()
    folder = Folder(whole)
    for name in ("one", "two"):
        for first in range(0, 20, 10):
            folder.append(name, *range(first, first + 10))
            folder.seal(name)
            archives.run_all(whole, folder, group_bytes=1)
    expected = {name: archives.archived(whole, name) for name in ("one", "two")}
    for one, other in pairs(whole, ".parquet"):
        disk = whole.clone()
        swap(disk, one, other)
        with suppress(Exception):
            archives.run_all(disk, folder, group_bytes=1, file_bytes=1 << 20)
        for name, records in expected.items():
            with suppress(ValueError):
                assert archives.archived(disk, name) == records, (one, other)


def test_swapped_files_of_backups_are_refused_by_a_restore() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = backups.start(disk, clock)
    for turn in range(3):
        for name in ("orders", "events"):
            for number in range(8):
                append(engine, name, f"{name} {turn} {number}")
        backups.back_up(engine)
    expected = dump(engine)
    (place,) = backups.places(disk)
    newest = backups.manifests(place)[-1]
    named = {place.path(kept.name) for kept in newest.files()}
    swapped = 0
    for ending in (".data", ".idx", ".bin", ".wal", ".json"):
        found = [path for path in files(disk) if path.startswith(f"/{place.root}/") and path.endswith(ending)]
        for one, other in combinations(found, 2):
            if content(disk, one) == content(disk, other):
                continue
            copy = disk.clone()
            swap(copy, one, other)
            swapped += 1
            if ending != ".json" and not {one[1:], other[1:]} & named:
                continue
            with pytest.raises((DamagedBackupError, BackupDamaged)):
                backups.restore(copy, clock=clock)
    assert swapped > 10
    assert dump(backups.restore(disk, clock=clock)[0]) == expected


def test_segment_of_another_topic_fails_a_backup() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = backups.start(disk, clock)
    for name in ("orders", "events"):
        for number in range(8):
            append(engine, name, f"{name} {number}")
    engine.close_inline()
    for ending in (".data", ".idx"):
        one, other = (path for path in files(disk) if path.endswith(ending))
        swap(disk, one, other)
    engine = backups.start(disk, clock)
    with pytest.raises(BackupFailedError, match="is the file of another segment"):
        backups.back_up(engine)


def small_files(disk: FakeDisk) -> list[str]:
    """Files that are neither log, nor segments, snapshots, index files or Parquet."""
    large = (*ENDINGS.values(), ".companion", ".parquet", "/reserve", ".topics.lock")
    return [path for path in files(disk) if path.startswith("/data/") and not path.endswith(large)]


def test_swapped_small_files_of_an_engine_and_its_backups_change_nothing_or_are_refused() -> None:
    disk, clock = FakeDisk(), ManualClock()
    for _ in range(2):
        engine = backups.start(disk, clock)
        for name in ("orders", "events"):
            for number in range(8):
                append(engine, name, f"{name} {number}")
        backups.back_up(engine)
        engine._lock.release()
    engine = backups.start(disk, clock)
    append(engine, "orders", "more")
    expected = dump(engine)
    engine._lock.release()
    found = small_files(disk)
    assert {path.rpartition("/")[2] for path in found} >= {"machine", "newest", "catalog", "lineage", "run"}
    refused = 0
    pairs_of_files = list(combinations(found, 2))
    for one, other in pairs_of_files:
        copy = settled(disk.clone().crash(Survival.EVERYTHING))
        swap(copy, one, other)
        try:
            started = backups.start(copy, clock)
        except DamageError:
            refused += 1
            continue
        assert {name: topic.live for name, topic in dump(started).items()} == {
            name: topic.live for name, topic in expected.items()
        }, (one, other)
        # The next backup is whole, whether it continues the lineage or begins another one.
        backups.back_up(started)
        now = {name: topic.live for name, topic in dump(started).items()}
        restored = [restored_from(copy, place) for place in backups.places(copy)]
        assert now in restored, (one, other)
    assert refused < len(pairs_of_files)


def restored_from(disk: FakeDisk, place: BackupPlace) -> dict[str, object]:
    """The records of the newest backup of a lineage."""
    target = newest_of(place, backups.manifests(place))
    layout, clock = Layout(f"back-{place.root.rpartition('/')[2]}"), ManualClock()
    options = EngineOptions(data_dir=layout.root, wal_shards=2, wal_file_bytes=2048, disk_reserve_seqs=4)
    job = Restore(place, disk, layout)
    job.copy(target, ALL)
    job.finish(target, ALL, 0, options, clock, SeededEntropy(2))
    engine = Engine.recover(disk, options, clock, SeededEntropy(3), boot_id="b")
    return {name: topic.live for name, topic in dump(engine).items()}


def test_swapped_small_files_of_a_pipeline_bring_no_deleted_record_back() -> None:
    whole = FakeDisk()
    folder = Folder(whole)
    for first in range(0, 30, 10):
        folder.append("one", *[Record.of(n, tag=f"t{n % 3}") for n in range(first, first + 10)])
        folder.seal("one")
        archives.run_all(whole, folder, group_bytes=1)
    folder.delete("one", tag="t1")
    folder.checkpoint()
    archives.run_all(whole, folder, group_bytes=1)
    folder.delete("one", tag="t2")
    folder.checkpoint()
    found = small_files(whole)
    assert {path.rpartition("/")[2] for path in found} >= {"history", "seen", "told", "status.json", "catalog"}
    outcomes = Counter[str]()
    for one, other in combinations(found, 2):
        disk = settled(whole.clone().crash(Survival.EVERYTHING))
        swap(disk, one, other)
        try:
            # Deletes that the archive has not applied yet must outlive a start with the wrong file.
            again = Folder(disk)
            again.append("one", Record.of("more", tag="t0"))
            again.seal("one")
        except DamageError:
            outcomes["start refused"] += 1
            continue
        try:
            archives.run_all(disk, again, group_bytes=1)
        except (
            ArchiveDamagedError,
            DamagedNoteError,
            OtherHistoryError,
            MissedDeletesError,
            OSError,
            ValueError,
            ShortError,
        ):
            outcomes["run refused"] += 1
            continue
        outcomes["served"] += 1
        served = set(archives.archived(disk, "one").values())
        assert served == {str(n) for n in range(0, 30, 3)} | {'"more"'}, (one, other)
    assert outcomes["served"] and outcomes["run refused"], outcomes


_SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}


def tables_of_streams() -> tuple[Described, FakeDisk]:
    """The archive's table and the tables of two streams that differ in nothing but their entries."""
    described = Described(Folder(clock=ManualClock()))
    for name in ("one", "two"):
        described.create(name, _SCHEMA)
    for first in (0, 8):
        for ahead, name in ((10, "one"), (50, "two")):
            described.append(name, *[{"a": ahead + n} for n in range(first, first + 8)])
        described.folder.seal()
        run_typed(described.folder.disk, described.folder, 7 + first)
    assert isinstance(described.folder.disk, FakeDisk)
    return described, described.folder.disk


def problems_of_tables(disk: FakeDisk) -> list[tuple[str, str]]:
    """The findings of a check of the archive about its tables."""
    found = TableFollower(table_of(disk, 1, 0), ROOT).problems(ArchiveStore(disk, ROOT).load())
    for name in ("one", "two"):
        table = table_of(disk, 2, 0, f"{ROOT}/{folder_of(name)}")
        found += TypedTable(disk, ROOT, folder_of(name), table, 0).problems()
    return found


def assert_swaps_are_reported(ending: str, step: int) -> None:
    """Every so many pairs of files of the tables: a check reports them, or nothing reads the files any more."""
    described, whole = tables_of_streams()
    assert not problems_of_tables(whole)
    expected = {name: described.promoted(name) for name in ("one", "two")}
    found = [path for path in files(whole) if "/typed/" in path and path.endswith(ending)]
    found += [path for path in files(whole) if "/archive/metadata/" in path and path.endswith(ending)]
    chosen = [(one, other) for one, other in combinations(found, 2) if content(whole, one) != content(whole, other)]
    reported = 0
    for one, other in chosen[::step]:
        disk = whole.clone()
        swap(disk, one, other)
        if problems_of_tables(disk):
            reported += 1
        else:
            assert {name: typed_entries(disk, name) for name in expected} == expected, (one, other)
    assert reported


@pytest.mark.parametrize(("ending", "step"), [(".parquet", 2), (".avro", 17), (".metadata.json", 5)])
def test_swapped_files_of_tables_are_reported(ending: str, step: int) -> None:
    assert_swaps_are_reported(ending, step)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".parquet", ".avro", ".metadata.json"])
def test_every_pair_of_swapped_files_of_tables_is_reported(ending: str) -> None:
    assert_swaps_are_reported(ending, 1)


def test_swapped_typed_files_are_built_again_after_a_repair() -> None:
    described, disk = tables_of_streams()
    expected = {name: described.promoted(name) for name in ("one", "two")}
    one, other = (next(path for path in files(disk) if f"/typed/{name}/data/" in path) for name in ("one", "two"))
    swap(disk, one, other)
    wrong = {where for where, _ in problems_of_tables(disk)}
    assert {f"/{where}" for where in wrong} == {one, other}
    for where in wrong:
        disk.remove(where)
    run_typed(disk, described.folder, 31)
    assert not problems_of_tables(disk)
    assert {name: typed_entries(disk, name) for name in expected} == expected
