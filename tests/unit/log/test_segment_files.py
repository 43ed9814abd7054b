import threading

import pytest

from topics.log import segment_files as module
from topics.log.layout import Layout
from topics.log.segment import CHUNK_BYTES, DELETED, SegmentHead
from topics.log.segment_files import OpenSegment, SegmentDamaged, SegmentDraft, SegmentKey, SegmentStore
from topics.model.records import Record
from topics.testing import NO_FAULTS, FakeDisk, Fault, FaultPlan, FaultyFileSystem, Survival
from topics.wire.record_encoding import encode_fragments

LAYOUT = Layout("data", "cold")
KEY = SegmentKey(7, 1)
COLD = SegmentKey(7, 1, cold=True)


def store_on(disk: FakeDisk | FaultyFileSystem, cache_bytes: int = 1_000_000) -> SegmentStore:
    return SegmentStore(disk, LAYOUT, cache_bytes)


def draft_of(values: list[object], first_seq: int = 1, topic_id: int = 7, flags: bytes | None = None) -> SegmentDraft:
    """A segment of blocks with one record each; the first of them tagged "t"."""
    texts, rows, blocks = [], [], []
    base = payload = 0
    for index, value in enumerate(values):
        record = Record.of(value, tag=None if index else "t")
        fragments = encode_fragments([record], first_seq + index, 100 + index, None, base)
        base += len(fragments.text) + 1
        payload += fragments.payload_bytes
        texts.append(fragments.text)
        rows.append(fragments.rows)
        blocks.append((index, 100 + index))
    text_bytes = base - 1
    head = SegmentHead(
        topic_id, 7, first_seq, payload, 100, 99 + len(values), len(values), 0, text_bytes, 1, "orders"
    )  # fmt: skip
    return SegmentDraft(head, texts, rows, blocks, {b'"t"': [0]}, flags or bytes(len(values)))


def written(disk: FakeDisk, values: list[object] | None = None, first_seq: int = 1) -> SegmentStore:
    store = store_on(disk)
    store.write(draft_of(values or [1, 2, 3], first_seq))
    return store


def damage(disk: FakeDisk, path: str, offset: int) -> None:
    file = disk.open(path, write=True)
    byte = file.read_at(offset, 1)
    file.write_at(offset, bytes((byte[0] ^ 1,)))
    file.close()


def seqs(opened: OpenSegment) -> list[int]:
    return [opened.head.first_seq + index for index in range(opened.view.count)]


def text_of(opened: OpenSegment, lo: int, hi: int) -> bytes:
    """The fragments of some records."""
    return bytes(opened.window(lo, hi, 1 << 30).text)


def test_segment_is_read_back() -> None:
    opened = written(FakeDisk(), ["a", "b"]).open(KEY)
    assert (opened.head.topic_id, opened.head.name, opened.head.first_seq) == (7, "orders", 1)
    assert bytes(text_of(opened, 1, 2)) == b'{"$seq":2,"$ts":101,"data":"b"}'
    assert opened.index.postings_at(0) == [0]
    assert opened.flags() == b"\x00\x00"


def test_a_segment_has_two_files_in_the_folder_of_its_topic() -> None:
    disk = FakeDisk()
    written(disk)
    assert disk.list_dir(LAYOUT.topic(7)) == ["seg-00000000000000000001.data", "seg-00000000000000000001.idx"]


def test_writing_syncs_nothing() -> None:
    disk = FakeDisk()
    store = written(disk)
    disk.trace.clear()
    store.write(draft_of([4], first_seq=4))
    assert "sync" not in [operation for operation, _ in disk.trace]


def test_a_synced_segment_survives_a_power_cut() -> None:
    disk = FakeDisk()
    store = written(disk)
    store.sync(KEY)
    store.sync_folder(7)
    assert seqs(store_on(disk.crash(Survival.NOTHING)).open(KEY)) == [1, 2, 3]


def test_a_segment_is_written_over_what_a_crash_left_in_its_place() -> None:
    disk = FakeDisk()
    written(disk, ["a long leftover"] * 50)
    assert seqs(written(disk, [1]).open(KEY)) == [1]


# Damage


def test_a_missing_file_is_damage_of_the_whole() -> None:
    disk = FakeDisk()
    store = written(disk)
    disk.remove(LAYOUT.segment(7, 1) + ".idx")
    with pytest.raises(SegmentDamaged) as raised:
        store.open(KEY)
    assert (raised.value.first, raised.value.last) == (0, -1)
    assert raised.value.path == LAYOUT.segment(7, 1)


@pytest.mark.parametrize(("ending", "offset"), [(".data", 0), (".data", 20), (".idx", 0), (".idx", 50)])
def test_a_damaged_head_or_index_is_damage_of_the_whole(ending: str, offset: int) -> None:
    disk = FakeDisk()
    store = written(disk)
    damage(disk, LAYOUT.segment(7, 1) + ending, offset)
    with pytest.raises(SegmentDamaged) as raised:
        store.open(KEY)
    assert (raised.value.first, raised.value.last) == (0, -1)


def test_the_index_of_another_segment_is_noticed() -> None:
    disk = FakeDisk()
    store = written(disk)
    store.write(draft_of([1, 2, 3], first_seq=9))
    disk.rename(LAYOUT.segment(7, 9) + ".idx", LAYOUT.segment(7, 1) + ".idx")
    with pytest.raises(SegmentDamaged, match="index belongs to another segment"):
        store.open(KEY)


def test_damage_in_the_text_is_reported_with_the_records_in_its_chunk() -> None:
    disk = FakeDisk()
    values: list[object] = ["x" * 20_000 for _ in range(10)]
    store = written(disk, values)
    opened = store.open(KEY)
    damage(disk, LAYOUT.segment(7, 1) + ".data", opened.head.text_at + CHUNK_BYTES + 5)
    starts = [opened.view.start(index) for index in range(11)]
    touched = [i for i in range(10) if starts[i] < 2 * CHUNK_BYTES and starts[i + 1] - 1 > CHUNK_BYTES]
    text_of(opened, 0, touched[0])
    with pytest.raises(SegmentDamaged, match="a wrong checksum") as raised:
        text_of(opened, 0, 10)
    assert (raised.value.first, raised.value.last) == (touched[0], touched[-1])
    text_of(opened, touched[-1] + 1, 10)


def test_a_chunk_is_checked_once() -> None:
    disk = FakeDisk()
    opened = written(disk).open(KEY)
    text_of(opened, 0, 3)
    damage(disk, LAYOUT.segment(7, 1) + ".data", opened.head.text_at)
    text_of(opened, 0, 3)


def test_every_chunk_a_span_touches_is_checked() -> None:
    disk = FakeDisk()
    opened = written(disk, ["x" * (3 * CHUNK_BYTES)]).open(KEY)
    damage(disk, LAYOUT.segment(7, 1) + ".data", opened.head.text_at + 2 * CHUNK_BYTES)
    with pytest.raises(SegmentDamaged) as raised:
        text_of(opened, 0, 1)
    assert (raised.value.first, raised.value.last) == (0, 0)


# Flags


def test_flipping_marks_records_for_good() -> None:
    disk = FakeDisk()
    store = written(disk)
    store.sync(KEY)
    store.sync_folder(7)
    store.flip(KEY, bytes((0, DELETED, 0)))
    after = store_on(disk.crash(Survival.NOTHING)).open(KEY)
    assert after.flags() == bytes((0, DELETED, 0))
    text_of(after, 0, 3)


@pytest.mark.parametrize(
    ("flags", "writes"), [((DELETED, 0, 0), 0), ((DELETED, DELETED, DELETED), 1), ((DELETED, 0, DELETED), 1)]
)
def test_flipping_writes_once_for_each_run_with_a_new_mark(flags: tuple[int, int, int], writes: int) -> None:
    disk = FakeDisk()
    store = written(disk)
    store.flip(KEY, bytes((DELETED, 0, 0)))
    disk.trace.clear()
    store.flip(KEY, bytes(flags))
    assert [operation for operation, _ in disk.trace] == ["write"] * writes + ["sync"]
    assert store.open(KEY).flags() == bytes(flags)


def test_flipping_never_takes_a_mark_back() -> None:
    store = written(FakeDisk())
    store.flip(KEY, bytes((DELETED, 0, 0)))
    store.flip(KEY, bytes((0, 0, DELETED)))
    assert store.open(KEY).flags() == bytes((DELETED, 0, DELETED))


def test_an_open_segment_sees_the_flip() -> None:
    store = written(FakeDisk())
    opened = store.open(KEY)
    store.flip(KEY, bytes((0, 0, DELETED)))
    assert opened.flags() == bytes((0, 0, DELETED))


def test_marks_whose_sync_failed_are_written_again() -> None:
    """Also by the next process: that they are read does not mean that they are on their way to the disk."""
    for restarted in (False, True):
        disk = FakeDisk()
        store = written(disk)
        store.sync(KEY)
        store.sync_folder(7)
        faulty = FaultyFileSystem(disk)
        store = store_on(faulty)
        store.flip(KEY, bytes((DELETED, 0, 0)))
        faulty.plan = FaultPlan(call=faulty.calls + 2, fault=Fault.EIO)
        with pytest.raises(OSError, match="injected EIO"):
            store.flip(KEY, bytes((DELETED, DELETED, 0)))
        faulty.plan = NO_FAULTS
        if restarted:
            disk = disk.crash(Survival.EVERYTHING)
            store = store_on(disk)
        store.flip(KEY, bytes((DELETED, DELETED, 0)))
        assert store_on(disk.crash(Survival.NOTHING)).open(KEY).flags() == bytes((DELETED, DELETED, 0))


# The cold folder


def test_relocating_makes_a_durable_copy_and_keeps_the_original() -> None:
    disk = FakeDisk()
    store = written(disk)
    store.sync(KEY)
    store.sync_folder(7)
    store.relocate(KEY)
    after = store_on(disk.crash(Survival.NOTHING))
    assert seqs(after.open(COLD)) == [1, 2, 3]
    assert seqs(after.open(KEY)) == [1, 2, 3]


def test_relocating_again_replaces_what_a_crash_left() -> None:
    disk = FakeDisk()
    store = written(disk, ["long" * 100])
    store.relocate(KEY)
    store.write(draft_of([1]))
    store.relocate(KEY)
    assert seqs(store.open(COLD)) == [1]


def test_a_failed_relocation_is_reported() -> None:
    faulty = FaultyFileSystem(FakeDisk())
    store = store_on(faulty)
    store.write(draft_of([1]))
    faulty.plan = FaultPlan(call=faulty.calls + 3)
    with pytest.raises(OSError, match="injected"):
        store.relocate(KEY)


# Removing


def test_removing_twice_is_fine() -> None:
    disk = FakeDisk()
    store = written(disk)
    store.remove(KEY)
    store.remove(KEY)
    assert disk.list_dir(LAYOUT.topic(7)) == []


def test_half_a_segment_is_removed_too() -> None:
    disk = FakeDisk()
    store = written(disk)
    disk.remove(LAYOUT.segment(7, 1) + ".data")
    store.remove(KEY)
    assert disk.list_dir(LAYOUT.topic(7)) == []


def test_removing_a_topic_removes_both_tiers_and_only_it() -> None:
    disk = FakeDisk()
    store = written(disk)
    store.relocate(KEY)
    store.write(draft_of([1], topic_id=8))
    store.remove_topic(7)
    assert disk.list_dir(LAYOUT.topics()) == [f"{8:016x}"]
    assert disk.list_dir(LAYOUT.topics(cold=True)) == []
    store.remove_topic(7)


def test_a_removed_topic_is_not_open_any_more() -> None:
    store = written(FakeDisk())
    store.open(KEY)
    store.remove_topic(7)
    with pytest.raises(SegmentDamaged):
        store.open(KEY)


def test_a_topic_without_a_cold_folder_is_removed() -> None:
    disk = FakeDisk()
    store = SegmentStore(disk, Layout("data"), 1000)
    store.write(draft_of([1]))
    store.remove_topic(7)
    assert disk.list_dir("data/topics") == []


def test_a_topic_folder_is_made_again_after_it_was_removed() -> None:
    disk = FakeDisk()
    store = written(disk)
    store.remove_topic(7)
    store.write(draft_of([1]))
    assert seqs(store.open(KEY)) == [1]


# The cache


def test_an_open_segment_is_found_again() -> None:
    store = written(FakeDisk())
    assert store.open(KEY) is store.open(KEY)


def test_forgetting_closes() -> None:
    store = written(FakeDisk())
    opened = store.open(KEY)
    store.forget(KEY)
    store.forget(KEY)
    assert store.open(KEY) is not opened


def test_the_least_recently_used_is_closed_when_the_cache_is_full() -> None:
    disk = FakeDisk()
    store = written(disk)
    size = store.open(KEY).open_bytes
    small = store_on(disk, cache_bytes=2 * size)
    keys = [SegmentKey(7, first) for first in (1, 4, 7)]
    for key in keys[1:]:
        store.write(draft_of([1, 2, 3], first_seq=key.first_seq))
    first, second = small.open(keys[0]), small.open(keys[1])
    assert small.open(keys[0]) is first
    small.open(keys[2])
    assert small.open(keys[0]) is first
    assert small.open(keys[1]) is not second


def test_one_segment_is_open_whatever_its_size() -> None:
    disk = FakeDisk()
    written(disk)
    store = store_on(disk, cache_bytes=0)
    assert store.open(KEY) is store.open(KEY)


def test_no_more_than_so_many_are_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OPEN_MAX", 3)
    store = store_on(FakeDisk())
    opened = []
    for first in range(1, 6):
        store.write(draft_of([1], first_seq=first))
        opened.append(store.open(SegmentKey(7, first)))
    assert len(store._cache) == 3
    assert store.open(SegmentKey(7, 5)) is opened[4]
    assert store.open(SegmentKey(7, 1)) is not opened[0]


def test_two_threads_that_open_the_same_segment_share_it() -> None:
    disk = FakeDisk()
    written(disk)
    store = store_on(disk)
    barrier = threading.Barrier(2)
    opened: list[OpenSegment] = []
    real = store._read

    def slow(path: str) -> memoryview:
        barrier.wait(5)
        return real(path)

    store._read = slow  # type: ignore[method-assign]
    threads = [threading.Thread(target=lambda: opened.append(store.open(KEY))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened[0] is opened[1]
    store.forget(KEY)
    assert store._cached == 0


def test_texts_that_are_views_are_written_as_if_they_were_not() -> None:
    plain, mixed = FakeDisk(), FakeDisk()
    for views in ([], [0], [2], [1, 2], [0, 1, 2, 3]):
        draft = draft_of(["a", "b", "c", "d"])
        store_on(plain).write(draft)
        texts = [memoryview(text) if index in views else text for index, text in enumerate(draft.texts)]
        store_on(mixed).write(draft._replace(texts=texts))  # type: ignore[arg-type]
        path = LAYOUT.segment(7, 1) + ".data"
        assert bytes(mixed.open(path).map()) == bytes(plain.open(path).map())
