"""An engine whose cold tier is an object store: it works as with a folder, and a store that is away loses nothing."""

from functools import partial

import pytest

from tests.unit.conftest import (
    FSYNC,
    append,
    ask_delete,
    checkpoint,
    delete,
    drop,
    eq,
    killed,
    one,
    open_engine,
    put,
    read,
    seqs,
    topic,
    values,
)
from topics.engine.engine import Engine
from topics.engine.results import DeleteResult
from topics.log.layout import Layout
from topics.log.object_store.local_cache import LocalCopies
from topics.log.object_store.tiered_fs import TieredFileSystem, tiered, tiered_for_server
from topics.model.errors import ColdStoreUnavailableError, CorruptSegmentError, DamageError, TopicsError
from topics.model.settings import SettingsError
from topics.ops.repair.repair import Repair, verify
from topics.ops.verify.verification import hold_folder
from topics.testing import FakeDisk, FolderStore, ManualClock, SeededEntropy

URL = "s3://bucket/cold"
LAYOUT = Layout("data", URL)
SEGMENT = "topics/0000000000000001/seg-00000000000000000001"


class Setup:
    """A data folder on one disk, an object store on another."""

    def __init__(self) -> None:
        self.disk = FakeDisk()
        self.shelf = FakeDisk()
        self.store = FolderStore(self.shelf, "store")
        self.clock = ManualClock()

    def files(self) -> TieredFileSystem:
        return tiered(self.disk, URL, self.store, LocalCopies(self.disk, LAYOUT.near, 1_000_000))

    def guest(self) -> TieredFileSystem:
        return tiered(self.disk, URL, self.store)

    def open(self, **options: object) -> Engine:
        chosen = {"cold_dir": URL, "hot_retain_segments": 0, "segment_max_events": 4, **options}
        return open_engine(self.files(), self.clock, **chosen)  # type: ignore[arg-type]

    def reopen(self, **options: object) -> Engine:
        self.disk = killed(self.disk)
        return self.open(**options)

    def filled(self, **options: object) -> Engine:
        """Eight records in two cold segments, two in the tail."""
        engine = self.open(**options)
        put(engine, "t", durability=FSYNC)
        for number in range(1, 11):
            append(engine, "t", number, tag="even" if number % 2 == 0 else "odd")
        self.settle(engine)
        assert [segment.cold for segment in topic(engine, "t").segments] == [True, True]
        return engine

    def settle(self, engine: Engine) -> None:
        assert checkpoint(engine)
        engine.housekeeper.tick()
        assert checkpoint(engine)

    def objects(self) -> list[str]:
        return [
            f"{folder}/{name}"
            for folder in self.store.list_folder("topics").folders
            for name in self.store.list_folder(f"topics/{folder}").objects
        ]

    def forget_copies(self) -> None:
        for folder in self.disk.list_dir(f"{LAYOUT.near}/topics"):
            for name in self.disk.list_dir(f"{LAYOUT.near}/topics/{folder}"):
                self.disk.remove(f"{LAYOUT.near}/topics/{folder}/{name}")


@pytest.fixture
def world() -> Setup:
    return Setup()


# Working


def test_segments_move_and_are_read_back(world: Setup) -> None:
    engine = world.filled()
    assert len(world.objects()) == 4
    assert not [name for name in world.disk.list_dir(LAYOUT.topic(1)) if name.startswith("seg-")]
    assert values(engine, "t") == list(range(1, 11))
    assert seqs(engine, "t", 6) == [7, 8, 9, 10]


def test_operators_see_what_the_store_is_asked(world: Setup) -> None:
    copies = LocalCopies(world.disk, LAYOUT.near, 1_000_000)
    fs = tiered_for_server(world.disk, URL, world.store, copies, world.clock.monotonic)
    engine = open_engine(fs, world.clock, cold_dir=URL, hot_retain_segments=0, segment_max_events=4)
    append(engine, "t", *range(4))
    append(engine, "t", 4)
    world.settle(engine)
    assert values(engine, "t") == [0, 1, 2, 3, 4]
    stats = engine.stats().cold_store
    assert stats is not None
    assert stats.requests["put"] == {"ok": 2, "missing": 0, "unavailable": 0}
    assert stats.requests["get"]["ok"] > 0 and stats.requests["list"]["ok"] > 0
    assert stats.sent_bytes == sum(world.store.size(SEGMENT + ending) for ending in (".data", ".idx"))
    assert stats.received_bytes >= stats.cache_bytes == world.store.size(SEGMENT + ".data")
    assert (stats.cache_hits, stats.cache_misses, stats.paused) == (0, 1, False)


def test_there_is_nothing_to_see_without_a_store(world: Setup) -> None:
    assert open_engine().stats().cold_store is None
    assert open_engine(cold_dir="cold").stats().cold_store is None
    assert world.open().stats().cold_store is None, "nobody counts for this one"


def test_a_restart_finds_them(world: Setup) -> None:
    world.filled()
    assert values(world.reopen(), "t") == list(range(1, 11))


def test_deletes_reach_the_objects(world: Setup) -> None:
    engine = world.filled()
    assert delete(engine, "t", match=eq("even")).deleted == 5
    assert seqs(engine, "t") == [1, 3, 5, 7, 9]
    before = bytes(world.store.get(SEGMENT + ".data"))
    assert checkpoint(engine)
    after = bytes(world.store.get(SEGMENT + ".data"))
    assert before != after
    assert before[:-4] == after[:-4]
    assert seqs(engine, "t") == [1, 3, 5, 7, 9]
    assert seqs(world.reopen(), "t") == [1, 3, 5, 7, 9]
    world.forget_copies()
    assert seqs(world.reopen(), "t") == [1, 3, 5, 7, 9]


def test_a_front_that_goes_takes_its_objects_along(world: Setup) -> None:
    engine = world.filled()
    delete(engine, "t", before_seq=6)
    assert checkpoint(engine)
    assert [name.rpartition("-")[2] for name in world.objects()] == [
        "00000000000000000005.data", "00000000000000000005.idx",
    ]  # fmt: skip
    assert seqs(engine, "t") == [6, 7, 8, 9, 10]
    assert world.disk.list_dir(f"{LAYOUT.near}/topics/0000000000000001") == [
        "seg-00000000000000000005.data", "seg-00000000000000000005.data.tail", "seg-00000000000000000005.idx",
    ]  # fmt: skip


def test_a_deleted_topic_leaves_nothing_and_may_come_again(world: Setup) -> None:
    engine = world.filled()
    drop(engine, "t")
    assert checkpoint(engine)
    assert world.objects() == []
    append(engine, "t", "new")
    assert values(world.reopen(), "t") == ["new"]


def test_time_and_caps_work_on_cold_segments(world: Setup) -> None:
    engine = world.filled()
    put(engine, "t", durability=FSYNC, cap_records=7)
    assert seqs(engine, "t", 3) == [4, 5, 6, 7, 8, 9, 10]
    assert read(engine, "t").tombstone is not None
    put(engine, "t", durability=FSYNC, cap_bytes=5)
    assert seqs(engine, "t", 6) == [7, 8, 9, 10]
    world.clock.advance(1000)
    append(engine, "t", 11)
    put(engine, "t", durability=FSYNC, ttl_ms=500)
    assert seqs(engine, "t", 10) == [11]


# Away


def test_a_read_while_the_store_is_away_is_refused_and_nothing_is_lost(world: Setup) -> None:
    engine = world.filled()
    world.store.away = True
    with pytest.raises(ColdStoreUnavailableError, match="Nothing is lost"):
        read(engine, "t")
    assert seqs(engine, "t", 8) == [9, 10]
    append(engine, "t", 11)
    world.store.away = False
    assert values(engine, "t") == list(range(1, 12))
    assert read(engine, "t").tombstone is None


def test_a_read_gives_what_is_nearby_before_it_is_refused(world: Setup) -> None:
    engine = world.filled()
    assert seqs(engine, "t", 0, limit=2) == [1, 2]  # The first segment is nearby from now on.
    world.store.away = True
    assert seqs(engine, "t") == [1, 2, 3, 4]
    with pytest.raises(ColdStoreUnavailableError):
        read(engine, "t", 4)


def test_a_move_is_tried_again_later(world: Setup) -> None:
    engine = world.open()
    put(engine, "t", durability=FSYNC)
    append(engine, "t", 1, 2, 3, 4)
    assert checkpoint(engine)
    world.store.away = True
    for _ in range(3):
        engine.housekeeper.tick()
        world.clock.advance(1000)
    puts = [call for call in world.store.trace if call[0] == "put"]
    assert len(puts) == 1  # A store that is away is not asked every second.
    assert not topic(engine, "t").segments[0].cold
    assert values(engine, "t") == [1, 2, 3, 4]
    world.store.away = False
    world.clock.advance(10_000)
    engine.housekeeper.tick()
    assert topic(engine, "t").segments[0].cold
    assert values(engine, "t") == [1, 2, 3, 4]


def test_everything_but_reading_text_goes_on_without_the_store(world: Setup) -> None:
    """The event loop must never wait for a network, so none of this may ask, or even try."""
    engine = world.filled()
    delete(engine, "t", match=eq("even"))
    assert checkpoint(engine)
    world.store.away = True
    asked = len(world.store.trace)
    assert one(ask_delete(engine, "t", match=eq("odd"), before_seq=2), DeleteResult).deleted == 1
    assert delete(engine, "t", before_seq=4).deleted == 1
    put(engine, "t", durability=FSYNC, cap_records=2)
    put(engine, "t", durability=FSYNC, cap_records=2, ttl_ms=10)
    assert topic(engine, "t").live_count == 2
    assert len(world.store.trace) == asked


def test_a_checkpoint_does_not_wait_for_the_store(world: Setup) -> None:
    engine = world.filled()
    append(engine, "other", 1, 2, 3, 4)
    world.settle(engine)
    world.store.away = True
    delete(engine, "t", match=eq("even"))
    delete(engine, "t", before_seq=5)
    drop(engine, "other")
    assert checkpoint(engine)
    assert engine.checkpointer.completed
    assert engine.checkpointer.failures == 0
    assert world.disk.list_dir(LAYOUT.shard(0)) == []
    again = world.reopen()
    assert seqs(again, "t", 8) == [9]
    world.store.away = False
    assert seqs(again, "t") == [5, 7, 9]


def test_what_could_not_be_done_in_the_store_is_done_later(world: Setup) -> None:
    engine = world.filled()
    append(engine, "other", 1, 2, 3, 4)
    world.settle(engine)
    world.store.away = True
    delete(engine, "t", match=eq("odd"))
    delete(engine, "t", before_seq=5)
    drop(engine, "other")
    assert checkpoint(engine)
    world.store.away = False
    assert len(world.objects()) == 6
    assert checkpoint(engine)
    assert len(world.objects()) == 2
    name = "topics/0000000000000001/seg-00000000000000000005.data"
    flags = bytes(world.store.get(name))[-4:]
    assert [bool(flag) for flag in flags] == [True, False, True, False]
    assert topic(engine, "t").segments[0].flags is None
    assert seqs(engine, "t") == [6, 8, 10]


def test_a_start_needs_no_store(world: Setup) -> None:
    engine = world.filled()
    delete(engine, "t", match=eq("even"))
    world.store.away = True
    engine = world.reopen()
    assert topic(engine, "t").live_count == 5
    assert topic(engine, "t").lost is None
    assert seqs(engine, "t", 8) == [9]
    with pytest.raises(ColdStoreUnavailableError):
        read(engine, "t")
    world.store.away = False
    assert seqs(engine, "t") == [1, 3, 5, 7, 9]


def test_a_start_that_needs_the_store_is_put_off_and_changes_nothing(world: Setup) -> None:
    world.filled()
    world.disk = killed(world.disk)
    world.forget_copies()
    world.store.away = True
    with pytest.raises(ColdStoreUnavailableError):
        world.open()
    world.store.away = False
    assert values(world.reopen(), "t") == list(range(1, 11))


def test_a_replay_that_needs_the_store_is_put_off(world: Setup) -> None:
    engine = world.filled()
    delete(engine, "t", match=eq("even"))
    world.disk = killed(world.disk)
    world.forget_copies()
    world.store.away = True
    with pytest.raises(ColdStoreUnavailableError):
        world.open()
    world.store.away = False
    assert seqs(world.reopen(), "t") == [1, 3, 5, 7, 9]


def test_a_new_folder_asks_whether_the_store_is_empty(world: Setup) -> None:
    """Its topics would get the numbers of the ones in the store, and their segments be written over."""
    world.filled()
    world.disk = FakeDisk()
    world.store.away = True
    with pytest.raises(ColdStoreUnavailableError):
        world.open()
    world.store.away = False
    with pytest.raises(DamageError, match="neither the snapshots nor the log know"):
        world.open()
    assert len(world.objects()) == 4


# Missing and damaged


def test_a_missing_object_is_damage(world: Setup) -> None:
    engine = world.filled()
    world.store.remove(SEGMENT + ".data")
    with pytest.raises(CorruptSegmentError) as caught:
        read(engine, "t")
    assert (caught.value.detail["from_seq"], caught.value.detail["to_seq"]) == (1, 4)
    assert seqs(engine, "t", 4) == [5, 6, 7, 8, 9, 10]


def test_a_start_reports_of_an_index_that_is_nowhere(world: Setup) -> None:
    world.filled()
    world.disk = killed(world.disk)
    world.forget_copies()
    world.store.remove(SEGMENT + ".idx")
    with pytest.raises(DamageError) as caught:
        world.open()
    (finding,) = caught.value.findings
    assert (finding.topic, finding.seq_range) == ("t", (1, 4))


@pytest.mark.parametrize(("ending", "offset"), [(".idx", 40), (".data", 100), (".data", 10), (".data.tail", 1)])
def test_a_bad_copy_is_no_damage(world: Setup, ending: str, offset: int) -> None:
    engine = world.filled()
    delete(engine, "t", match=eq("even"))
    assert checkpoint(engine)
    assert seqs(engine, "t") == [1, 3, 5, 7, 9]
    world.disk = killed(world.disk)
    copies = LocalCopies(world.disk, LAYOUT.near, 1_000_000)
    copies.keep(SEGMENT + ".data", [world.store.get(SEGMENT + ".data")])
    engine = world.open()
    copies.keep(SEGMENT + ".data", [world.store.get(SEGMENT + ".data")])  # A start begins without them.
    file = world.disk.open(f"{LAYOUT.near}/{SEGMENT}{ending}", write=True)
    file.write_at(offset, bytes((file.read_at(offset, 1)[0] ^ 0xFF,)))
    assert seqs(engine, "t") == [1, 3, 5, 7, 9]


def test_a_damaged_object_is_reported(world: Setup) -> None:
    engine = world.filled()
    data = bytearray(world.store.get(SEGMENT + ".data"))
    data[100] ^= 0xFF
    world.store.put(SEGMENT + ".data", [data])
    with pytest.raises(CorruptSegmentError):
        read(engine, "t")


@pytest.mark.parametrize("wrong", ["missing", "short"])
def test_the_loop_keeps_what_it_needs_of_an_object_that_is_wrong(world: Setup, wrong: str) -> None:
    """A caller that reads it finds out; deletes, caps and a start go on without asking the store, as before."""
    engine = world.filled()
    whole = bytes(world.store.get(SEGMENT + ".data"))
    if wrong == "missing":
        world.store.remove(SEGMENT + ".data")
    else:
        world.store.put(SEGMENT + ".data", [whole[:-10]])
    with pytest.raises(CorruptSegmentError):
        read(engine, "t")
    world.store.away = True
    engine = world.reopen()
    assert delete(engine, "t", match=eq("even")).deleted == 5
    world.store.away = False
    world.store.put(SEGMENT + ".data", [whole])
    assert seqs(engine, "t") == [1, 3, 5, 7, 9]


def test_an_answer_that_was_cut_short_once_is_no_damage(world: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    world.filled()
    world.disk = killed(world.disk)
    world.forget_copies()
    names = ("get", "get_tail")
    asked = {name: getattr(world.store, name) for name in names}
    cut: set[tuple[str, str]] = set()

    def once(kind: str, name: str, *length: int) -> memoryview | bytes:
        answer: memoryview | bytes = asked[kind](name, *length)
        first = (kind, name) not in cut
        cut.add((kind, name))
        return answer[:-1] if first else answer

    for kind in names:
        monkeypatch.setattr(world.store, kind, partial(once, kind))
    assert values(world.open(), "t") == list(range(1, 11))
    assert len(cut) == 6


def test_a_missing_object_does_not_hold_up_checkpoints(world: Setup) -> None:
    """Its delete flags wait in the snapshots; the log of everybody else must not."""
    engine = world.filled()
    world.store.remove(SEGMENT + ".data")
    delete(engine, "t", match=eq("even"))
    for number in range(3):
        append(engine, "other", number)
        assert checkpoint(engine)
    assert engine.checkpointer.failures == 0
    assert world.disk.list_dir(LAYOUT.shard(0)) == []
    again = world.reopen()
    assert seqs(again, "t", 4) == [5, 7, 9]
    assert topic(again, "t").live_count == 5


@pytest.mark.parametrize("answered", ["short", "empty", "wrong"])
def test_an_object_that_came_wrong_is_not_put_back(
    world: Setup, monkeypatch: pytest.MonkeyPatch, answered: str
) -> None:
    """A proxy between the server and its store may cut an answer short and declare it complete."""
    engine = world.filled()
    before, get = bytes(world.store.get(SEGMENT + ".data")), world.store.get
    wrong = {"short": before[:-10], "empty": b"", "wrong": before[:100] + b"?" + before[101:]}[answered]
    delete(engine, "t", match=eq("even"))
    with monkeypatch.context() as patched:
        patched.setattr(world.store, "get", lambda name: memoryview(wrong) if name == SEGMENT + ".data" else get(name))
        assert checkpoint(engine)
    assert bytes(world.store.get(SEGMENT + ".data")) == before
    assert seqs(engine, "t") == [1, 3, 5, 7, 9]
    assert checkpoint(engine)
    assert topic(engine, "t").segments[0].flags is None, "the next one has tried again"
    world.forget_copies()
    assert seqs(world.reopen(), "t") == [1, 3, 5, 7, 9]


# Tidying up


def test_objects_that_nobody_names_are_removed_while_it_runs(world: Setup) -> None:
    world.filled()
    stray = "topics/0000000000000001/seg-00000000000000000999.data"
    world.store.put(stray, [b"what a crash left of a move"])
    world.store.put("topics/0000000000000001/notes.txt", [b"not ours"])
    world.store.put("topics/elsewhere/x", [b"not ours"])
    engine = world.reopen()
    assert world.store.size(stray)
    world.store.away = True
    engine.housekeeper.tick()
    world.store.away = False
    engine.housekeeper.tick()
    assert world.store.size(stray)
    world.clock.advance(60_000)
    engine.housekeeper.tick()
    with pytest.raises(FileNotFoundError):
        world.store.size(stray)
    assert world.store.size("topics/0000000000000001/notes.txt")
    assert world.store.size("topics/elsewhere/x")
    assert values(engine, "t") == list(range(1, 11))
    asked = len(world.store.trace)
    world.clock.advance(60_000)
    engine.housekeeper.tick()
    assert len(world.store.trace) == asked


def test_what_a_snapshot_may_still_name_is_left_alone(world: Setup) -> None:
    engine = world.filled()
    append(engine, "other", 1, 2, 3, 4)
    world.settle(engine)
    engine = world.reopen()
    delete(engine, "t", before_seq=5)
    drop(engine, "other")
    engine.housekeeper.tick()
    assert len(world.objects()) == 6
    assert checkpoint(engine)
    assert len(world.objects()) == 2


# Tools


def test_verify_reads_the_objects_and_not_the_copies(world: Setup) -> None:
    world.filled().close_inline()
    report = verify(world.guest(), LAYOUT, "a")
    assert report.sound
    assert (report.segments, report.records) == (2, 10)
    assert not report.notes
    data = bytearray(world.store.get(SEGMENT + ".data"))
    data[100] ^= 0xFF
    world.store.put(SEGMENT + ".data", [data])
    (finding,) = verify(world.guest(), LAYOUT, "a").findings
    assert finding.where == f"{URL}/{SEGMENT}.data"


def test_verify_finds_nothing_where_it_cannot_look(world: Setup) -> None:
    world.filled().close_inline()
    world.store.away = True
    with pytest.raises(OSError, match="not available"):
        verify(world.guest(), LAYOUT, "a")


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_repair_reports_what_is_lost_and_keeps_the_evidence(world: Setup, damage: str) -> None:
    world.filled().close_inline()
    data = bytearray(world.store.get(SEGMENT + ".data"))
    data[100] ^= 0xFF
    if damage == "missing":
        world.store.remove(SEGMENT + ".data")
    else:
        world.store.put(SEGMENT + ".data", [data])
    with hold_folder(world.guest(), LAYOUT, "repair", read_only=False):
        report = Repair(world.guest(), LAYOUT, world.clock, SeededEntropy(1), "a").run()
    assert report.after is not None and report.after.sound
    assert [(loss.from_seq, loss.to_seq) for loss in report.losses] == [(1, 4)]
    if damage == "flipped":
        assert bytes(world.store.get(f"damaged-1/{SEGMENT}.data")) == data
    assert world.store.size(f"damaged-1/{SEGMENT}.idx")
    engine = world.reopen()
    assert seqs(engine, "t", 4) == [5, 6, 7, 8, 9, 10]
    tombstone = read(engine, "t").tombstone
    assert tombstone is not None and (tombstone.gap_from, tombstone.gap_to) == (1, 4)


def test_repair_does_nothing_where_it_cannot_look(world: Setup) -> None:
    world.filled().close_inline()
    before = world.disk.clone()
    world.store.away = True
    with pytest.raises((OSError, TopicsError)):
        Repair(world.guest(), LAYOUT, world.clock, SeededEntropy(1), "a").run()
    world.store.away = False
    assert verify(tiered(before, URL, world.store), LAYOUT, "a").sound
    assert values(world.reopen(), "t") == list(range(1, 11))


def test_tools_refuse_a_prefix_that_is_not_the_one(world: Setup) -> None:
    world.filled().close_inline()
    elsewhere = "s3://bucket/elsewhere"
    fs = tiered(world.disk, elsewhere, FolderStore(world.shelf, "elsewhere"))
    with pytest.raises(SettingsError, match="does not look like it"):
        Repair(fs, Layout("data", elsewhere), world.clock, SeededEntropy(1), "a").run()


def test_an_object_store_needs_a_file_system_that_knows_it() -> None:
    with pytest.raises(ValueError, match=r"storage\.objects\.tiers"):
        open_engine(FakeDisk(), cold_dir=URL)


# Changing places


def test_a_cold_folder_can_be_copied_into_a_store_and_back(world: Setup) -> None:
    engine = world.filled(cold_dir="cold")
    delete(engine, "t", match=eq("even"))
    engine.close_inline()
    world.disk = killed(world.disk)
    folder = "topics/0000000000000001"
    for name in world.disk.list_dir(f"cold/{folder}"):
        file = world.disk.open(f"cold/{folder}/{name}")
        world.store.put(f"{folder}/{name}", [file.read_at(0, file.size())])
        world.disk.remove(f"cold/{folder}/{name}")
    engine = world.open()
    assert seqs(engine, "t") == [1, 3, 5, 7, 9]
    delete(engine, "t", before_seq=3)
    engine.close_inline()
    world.disk = killed(world.disk)
    for name in world.store.list_folder(folder).objects:
        file = world.disk.open(f"cold/{folder}/{name}", create=True)
        file.write_at(0, world.store.get(f"{folder}/{name}"))
        world.store.remove(f"{folder}/{name}")
    assert seqs(world.open(cold_dir="cold"), "t") == [3, 5, 7, 9]
