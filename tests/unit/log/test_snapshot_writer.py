import pytest

from topics.log.frame import FrameKind, seal_frame
from topics.log.layout import Layout
from topics.log.snapshot_files import (
    SnapshotHead,
    SnapshotWriter,
    WalPosition,
    encode_end,
    encode_head,
    read_snapshot,
    remove_snapshots,
    snapshot_numbers,
)
from topics.model.errors import DamageError
from topics.testing import FakeDisk, Survival

LAYOUT = Layout("data")


def head_of(number: int, chain: list[int] | None = None) -> SnapshotHead:
    return SnapshotHead(number, chain or [], 1, [WalPosition(0, 2, 9)], 5, 1000, [])


def new_disk() -> FakeDisk:
    disk = FakeDisk()
    disk.make_dirs(LAYOUT.meta)
    return disk


def write(disk: FakeDisk, number: int, topics: int = 2, tail: bytes = b"block") -> int:
    writer = SnapshotWriter(disk, LAYOUT, head_of(number))
    for topic_id in range(1, topics + 1):
        writer.add(FrameKind.TOPIC, topic_id, b"state")
        writer.add(FrameKind.APPEND, topic_id, b"head", tail)
    size = writer.finish()
    writer.close()
    return size


def put(disk: FakeDisk, number: int, *frames: list[bytes]) -> None:
    file = disk.open(LAYOUT.snapshot(number), create=True)
    file.write_at(0, b"".join(piece for frame in frames for piece in frame))
    file.close()


def finding(disk: FakeDisk, number: int) -> str:
    with pytest.raises(DamageError) as raised:
        read_snapshot(disk, LAYOUT, number)
    (found,) = raised.value.findings
    assert found.where == LAYOUT.snapshot(number)
    return found.what


def test_snapshot_is_read_back_in_order() -> None:
    disk = new_disk()
    write(disk, 3)
    head, frames = read_snapshot(disk, LAYOUT, 3)
    assert head == head_of(3)
    found = [(frame.kind, frame.topic_id, bytes(frame.body)) for frame in frames]
    assert found == [
        (FrameKind.TOPIC, 1, b"state"),
        (FrameKind.APPEND, 1, b"headblock"),
        (FrameKind.TOPIC, 2, b"state"),
        (FrameKind.APPEND, 2, b"headblock"),
    ]


def test_a_snapshot_may_be_empty() -> None:
    disk = new_disk()
    write(disk, 1, topics=0)
    assert list(read_snapshot(disk, LAYOUT, 1)[1]) == []


def test_its_size_is_reported() -> None:
    disk = new_disk()
    size = write(disk, 1)
    assert disk.open(LAYOUT.snapshot(1)).size() == size


def test_it_does_not_exist_until_it_is_finished() -> None:
    disk = new_disk()
    writer = SnapshotWriter(disk, LAYOUT, head_of(1))
    writer.add(FrameKind.TOPIC, 1, b"state")
    assert snapshot_numbers(disk, LAYOUT) == []
    writer.finish()
    assert snapshot_numbers(disk, LAYOUT) == [1]


def test_it_is_synced_before_it_gets_its_name_and_the_name_is_synced() -> None:
    disk = new_disk()
    disk.trace.clear()
    write(disk, 1)
    assert [operation for operation, _ in disk.trace] == ["create", "truncate", "write", "sync", "rename", "sync_dir"]


def test_a_finished_one_survives_a_power_cut() -> None:
    disk = new_disk()
    write(disk, 1)
    assert len(list(read_snapshot(disk.crash(Survival.NOTHING), LAYOUT, 1)[1])) == 4


def test_a_large_one_is_written_in_pieces() -> None:
    disk = new_disk()
    disk.trace.clear()
    write(disk, 1, topics=3, tail=bytes(700_000))
    assert [operation for operation, _ in disk.trace].count("write") > 1
    assert len(list(read_snapshot(disk, LAYOUT, 1)[1])) == 6


def test_leftover_of_an_earlier_attempt_is_overwritten() -> None:
    disk = new_disk()
    leftover = disk.open(LAYOUT.snapshot(1) + ".tmp", create=True)
    leftover.write_at(0, b"x" * 10_000)
    leftover.close()
    size = write(disk, 1)
    assert disk.open(LAYOUT.snapshot(1)).size() == size


def test_numbers_are_sorted_and_other_names_ignored() -> None:
    disk = new_disk()
    for number in (10, 9):
        write(disk, number)
    SnapshotWriter(disk, LAYOUT, head_of(11))
    disk.open(f"{LAYOUT.meta}/readme", create=True)
    assert snapshot_numbers(disk, LAYOUT) == [9, 10]


def test_there_are_none_in_a_folder_that_does_not_exist() -> None:
    assert snapshot_numbers(FakeDisk(), LAYOUT) == []
    remove_snapshots(FakeDisk(), LAYOUT, set())


def test_only_those_to_keep_stay() -> None:
    disk = new_disk()
    for number in (1, 2, 3):
        write(disk, number)
    SnapshotWriter(disk, LAYOUT, head_of(4))
    disk.open(f"{LAYOUT.meta}/readme", create=True)
    remove_snapshots(disk, LAYOUT, {2, 3})
    assert disk.list_dir(LAYOUT.meta) == ["readme", *(f"snapshot-{number:016d}.bin" for number in (2, 3))]


# A snapshot is renamed into place complete, so a broken one is never the work of a crash.


def test_a_missing_member_of_a_chain_is_damage() -> None:
    assert finding(new_disk(), 1) == "a snapshot that a newer one builds on is missing"


@pytest.mark.parametrize("keep", [0, 1, 100, -1, -57])
def test_a_short_one_is_damage(keep: int) -> None:
    disk = new_disk()
    size = write(disk, 1)
    disk.open(LAYOUT.snapshot(1), write=True).truncate(keep if keep >= 0 else size + keep)
    assert finding(disk, 1).startswith("the snapshot is damaged")


def test_every_byte_is_covered() -> None:
    disk = new_disk()
    size = write(disk, 1)
    for offset in range(size):
        copy = disk.clone()
        file = copy.open(LAYOUT.snapshot(1), write=True)
        file.write_at(offset, bytes((file.read_at(offset, 1)[0] ^ 0x40,)))
        assert finding(copy, 1), offset


def test_damage_is_reported_before_anything_is_given_out() -> None:
    disk = new_disk()
    size = write(disk, 1)
    file = disk.open(LAYOUT.snapshot(1), write=True)
    file.write_at(size - 1, bytes((file.read_at(size - 1, 1)[0] ^ 1,)))
    assert finding(disk, 1) == "the snapshot is damaged: a wrong checksum"


def test_frames_out_of_order_are_damage() -> None:
    disk = new_disk()
    head = seal_frame(FrameKind.SNAPSHOT_HEAD, 0, 1, 0, encode_head(head_of(1)))
    put(disk, 1, head, seal_frame(FrameKind.SNAPSHOT_END, 0, 3, 0, encode_end(0)))
    assert finding(disk, 1) == "the snapshot's frames are out of order"


def test_snapshot_without_a_head_is_damage() -> None:
    disk = new_disk()
    put(disk, 1, seal_frame(FrameKind.TOPIC, 0, 1, 0, b"state"))
    assert finding(disk, 1) == "the snapshot's frames are out of order"


def test_snapshot_with_two_heads_is_damage() -> None:
    disk = new_disk()
    heads = [seal_frame(FrameKind.SNAPSHOT_HEAD, 0, lsn, 0, encode_head(head_of(1))) for lsn in (1, 2)]
    put(disk, 1, *heads)
    assert finding(disk, 1) == "the snapshot's frames are out of order"


def test_snapshot_with_a_wrong_count_is_damage() -> None:
    disk = new_disk()
    head = seal_frame(FrameKind.SNAPSHOT_HEAD, 0, 1, 0, encode_head(head_of(1)))
    put(disk, 1, head, seal_frame(FrameKind.SNAPSHOT_END, 0, 2, 0, encode_end(1)))
    assert finding(disk, 1) == "the snapshot does not match the count at its end"


def test_snapshot_under_another_name_is_damage() -> None:
    disk = new_disk()
    write(disk, 1)
    disk.rename(LAYOUT.snapshot(1), LAYOUT.snapshot(2))
    assert finding(disk, 2) == "the snapshot does not match the count at its end"
