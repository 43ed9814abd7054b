"""One test for each row of the table in `topics.log.replay`, and for the cases between the rows."""

from collections.abc import Callable

import pytest

from topics.log.frame import Frame, FrameKind, seal_frame
from topics.log.layout import wal_file
from topics.log.replay import LogDamaged, ShardEnd, ShardReader, Tear
from topics.testing import FakeDisk
from topics.testing.fake_disk import FakeFile

FOLDER = "wal"
FILE_BYTES = 2000


def frame(lsn: int, synced: int = 0, body: bytes = b"body") -> bytes:
    return b"".join(seal_frame(FrameKind.APPEND, 1, lsn, synced, body))


FRAME_BYTES = len(frame(1))


def broken(lsn: int, synced: int = 0) -> bytes:
    data = bytearray(frame(lsn, synced))
    data[-1] ^= 1
    return bytes(data)


def disk_with(*files: bytes, first: int = 1) -> FakeDisk:
    disk = FakeDisk()
    disk.make_dirs(FOLDER)
    for number, data in enumerate(files, first):
        file = disk.open(wal_file(FOLDER, number), create=True)
        file.allocate(FILE_BYTES)
        file.write_at(0, data)
        file.close()
    return disk


def replay(disk: FakeDisk, *, same_boot: bool, first_number: int = 1, first_lsn: int = 1) -> tuple[list[int], ShardEnd]:
    applied: list[int] = []
    reader = ShardReader(disk, FOLDER, same_boot)
    end = reader.replay(first_number, first_lsn, lambda found: applied.append(found.lsn))
    assert end.frames == len(applied)
    return applied, end


def damage(disk: FakeDisk, *, same_boot: bool, first_number: int = 1, first_lsn: int = 1) -> LogDamaged:
    with pytest.raises(LogDamaged) as raised:
        replay(disk, same_boot=same_boot, first_number=first_number, first_lsn=first_lsn)
    return raised.value


both = pytest.mark.parametrize("same_boot", [True, False])


@both
def test_a_folder_that_does_not_exist_is_an_empty_log(same_boot: bool) -> None:
    assert replay(FakeDisk(), same_boot=same_boot) == ([], ShardEnd(1, 1, None, 0))


@both
def test_frames_come_in_order(same_boot: bool) -> None:
    disk = disk_with(frame(1) + frame(2) + frame(3))
    assert replay(disk, same_boot=same_boot) == ([1, 2, 3], ShardEnd(4, 2, None, 3))


def test_a_frame_is_handed_over_whole() -> None:
    found: list[Frame] = []
    ShardReader(disk_with(frame(1, 0, b"payload")), FOLDER, True).replay(1, 1, found.append)
    assert (found[0].kind, found[0].topic_id, bytes(found[0].body)) == (FrameKind.APPEND, 1, b"payload")


@both
def test_the_log_goes_on_in_the_next_file(same_boot: bool) -> None:
    disk = disk_with(frame(1) + frame(2), frame(3), frame(4))
    assert replay(disk, same_boot=same_boot) == ([1, 2, 3, 4], ShardEnd(5, 4, None, 4))


@both
def test_a_file_may_be_full_to_the_last_byte(same_boot: bool) -> None:
    body = bytes(FILE_BYTES - len(frame(1, 0, b"")))
    assert replay(disk_with(frame(1, 0, body), frame(2)), same_boot=same_boot)[0] == [1, 2]


@both
def test_a_file_that_was_begun_and_never_written_is_the_end(same_boot: bool) -> None:
    disk = disk_with(frame(1), b"")
    assert replay(disk, same_boot=same_boot) == ([1], ShardEnd(2, 3, None, 1))


@both
def test_replay_begins_at_its_position(same_boot: bool) -> None:
    disk = disk_with(frame(1) + frame(2), frame(3) + frame(4))
    assert replay(disk, same_boot=same_boot, first_number=2, first_lsn=3) == ([3, 4], ShardEnd(5, 3, None, 2))


@both
def test_a_position_without_a_file_yet_is_the_end(same_boot: bool) -> None:
    disk = disk_with(frame(1))
    assert replay(disk, same_boot=same_boot, first_number=2, first_lsn=2) == ([], ShardEnd(2, 2, None, 0))


@both
def test_other_names_in_the_folder_are_ignored(same_boot: bool) -> None:
    disk = disk_with(frame(1))
    disk.open(f"{FOLDER}/0000000000000002.wal.tmp", create=True).close()
    disk.open(f"{FOLDER}/notes.txt", create=True).close()
    assert replay(disk, same_boot=same_boot) == ([1], ShardEnd(2, 2, None, 1))


# Zeros or garbage, no valid frame behind: the end of the log, or a torn tail.


@both
@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (frame(2)[:10], "a wrong checksum"),
        (frame(2)[:4], "a frame length of 0 bytes"),
        (frame(2)[:-1], "a wrong checksum"),
        (broken(2), "a wrong checksum"),
        (bytes(8) + frame(2)[8:], "a torn frame header"),
        (b"garbage" * 9, "no frame magic"),
        (bytes(45) + b"garbage", "bytes that are not a frame"),
    ],
)
def test_a_torn_tail_is_not_read(same_boot: bool, tail: bytes, reason: str) -> None:
    applied, end = replay(disk_with(frame(1) + tail), same_boot=same_boot)
    assert applied == [1]
    assert end.next_lsn == 2
    assert end.tear is not None
    assert (end.tear.number, end.tear.offset, end.tear.frames_behind) == (1, FRAME_BYTES, 0)
    assert end.tear.reason.startswith(reason)


@both
def test_a_torn_first_frame_leaves_an_empty_log(same_boot: bool) -> None:
    applied, end = replay(disk_with(broken(1)), same_boot=same_boot)
    assert applied == []
    assert (end.next_lsn, end.next_number) == (1, 2)
    assert end.tear == Tear(1, 0, "a wrong checksum", 0)


# Valid frames behind, one of which records the sync of this place: damage.


@both
def test_a_bad_frame_that_was_synced_is_damage(same_boot: bool) -> None:
    found = damage(disk_with(frame(1) + broken(2) + frame(3, synced=2)), same_boot=same_boot)
    assert found.finding.where == wal_file(FOLDER, 1)
    assert found.finding.what == "a wrong checksum where frame 2 should be, with valid frames behind it"
    assert found.finding.byte_range == (FRAME_BYTES, 2 * FRAME_BYTES)
    assert found.resume == (1, 2 * FRAME_BYTES)


@both
def test_the_word_of_any_later_frame_counts(same_boot: bool) -> None:
    damage(disk_with(frame(1) + broken(2) + frame(3, synced=1) + frame(4, synced=2)), same_boot=same_boot)


@both
def test_zeros_in_place_of_a_synced_frame_are_damage(same_boot: bool) -> None:
    found = damage(disk_with(frame(1) + bytes(FRAME_BYTES) + frame(3, synced=2)), same_boot=same_boot)
    assert found.finding.what.startswith("zeros where frame 2 should be")


# Valid frames behind, and the machine did not restart since: damage.


def test_a_hole_without_a_restart_of_the_machine_is_damage() -> None:
    damage(disk_with(frame(1) + broken(2) + frame(3)), same_boot=True)
    damage(disk_with(frame(1) + bytes(FRAME_BYTES) + frame(3)), same_boot=True)


# Valid frames behind, none records the sync, the machine restarted: torn by a power cut.


@pytest.mark.parametrize("hole", [broken(2, synced=1), bytes(FRAME_BYTES), b"x" * FRAME_BYTES])
def test_a_hole_torn_by_a_power_cut_is_not_read(hole: bytes) -> None:
    applied, end = replay(disk_with(frame(1) + hole + frame(3, synced=1) + frame(4, synced=1)), same_boot=False)
    assert applied == [1]
    assert end.next_lsn == 2
    assert end.tear is not None
    assert (end.tear.offset, end.tear.frames_behind) == (FRAME_BYTES, 2)


# While a later file is there, anything but the next frame or the unused rest: damage.


@both
@pytest.mark.parametrize("tail", [broken(2), b"garbage" * 9, frame(2)[:30]])
def test_a_torn_tail_in_a_finished_file_is_damage(same_boot: bool, tail: bytes) -> None:
    found = damage(disk_with(frame(1) + tail, frame(3, synced=1)), same_boot=same_boot)
    assert found.finding.where == wal_file(FOLDER, 1)
    assert found.resume == (2, 0)


@both
def test_a_torn_tail_before_an_empty_file_is_damage_too(same_boot: bool) -> None:
    found = damage(disk_with(frame(1) + broken(2), b""), same_boot=same_boot)
    assert found.finding.what.endswith("in a file that was finished")
    assert found.resume == (2, 0)


@both
def test_a_hole_in_a_finished_file_is_damage_whatever_its_own_frames_state(same_boot: bool) -> None:
    # The frame behind the hole was made before the sync; only the existence of the next file proves it.
    found = damage(disk_with(frame(1) + broken(2) + frame(3, synced=0), frame(4, synced=3)), same_boot=same_boot)
    assert found.resume == (1, 2 * FRAME_BYTES)


@both
def test_frames_missing_at_the_end_of_a_finished_file_are_damage(same_boot: bool) -> None:
    found = damage(disk_with(frame(1), frame(3)), same_boot=same_boot)
    assert found.finding.what.startswith("zeros where frame 2 should be")
    assert found.resume == (2, 0)


@both
def test_a_torn_tail_in_the_newest_file_is_only_a_torn_tail(same_boot: bool) -> None:
    applied, end = replay(disk_with(frame(1), frame(2) + broken(3)), same_boot=same_boot)
    assert applied == [1, 2]
    assert end == ShardEnd(3, 3, Tear(2, FRAME_BYTES, "a wrong checksum", 0), 2)


# A file missing from the row of numbers, or frames in each other's place: damage.


@both
def test_a_missing_file_is_damage(same_boot: bool) -> None:
    disk = disk_with(frame(1), frame(2), frame(3))
    disk.remove(wal_file(FOLDER, 2))
    found = damage(disk, same_boot=same_boot)
    # Whether the missing file or its first missing frame is reported first, the place to go on from is the same.
    assert found.finding.what.startswith(("zeros where frame 2 should be", "log file 2 is missing"))
    assert found.resume == (3, 0)


@both
def test_a_missing_file_before_an_empty_one_is_damage(same_boot: bool) -> None:
    disk = disk_with(frame(1), b"", b"")
    disk.remove(wal_file(FOLDER, 2))
    found = damage(disk, same_boot=same_boot)
    assert (found.finding.where, found.finding.what) == (FOLDER, "log file 2 is missing")
    assert found.resume == (3, 0)


@both
def test_a_missing_first_file_is_damage(same_boot: bool) -> None:
    found = damage(disk_with(frame(3), first=2), same_boot=same_boot)
    assert found.finding.what == "log file 1 is missing"


@both
@pytest.mark.parametrize("wrong", [1, 3])
def test_lsns_that_jump_are_damage(same_boot: bool, wrong: int) -> None:
    # No crash puts a valid frame right behind a frame that it does not follow.
    found = damage(disk_with(frame(1) + frame(wrong)), same_boot=same_boot)
    assert found.finding.what.startswith(f"frame {wrong} where frame 2 should be")
    assert found.resume == (1, FRAME_BYTES)


@both
def test_a_log_that_begins_with_another_frame_is_damage(same_boot: bool) -> None:
    damage(disk_with(frame(5)), same_boot=same_boot, first_lsn=3)


def test_exception_of_apply_reaches_the_caller() -> None:
    def refuse(found: Frame) -> None:
        raise ValueError(f"no to {found.lsn}")

    with pytest.raises(ValueError, match="no to 1"):
        ShardReader(disk_with(frame(1)), FOLDER, True).replay(1, 1, refuse)


def test_a_long_log_is_gone_through_once() -> None:
    """Each file is looked at for itself and for how it continues the one before it, not once for every other file."""
    disk = disk_with(*[frame(lsn) for lsn in range(1, 21)])
    opened: list[str] = []
    real = disk.open

    def counting(path: str, *, write: bool = False, create: bool = False) -> FakeFile:
        opened.append(path)
        return real(path, write=write, create=create)

    disk.open = counting  # type: ignore[method-assign]
    assert replay(disk, same_boot=True)[1].frames == 20
    assert len(opened) <= 3 * 20


def test_progress_is_counted_in_bytes() -> None:
    disk = disk_with(frame(1) + frame(2), frame(3))
    read: list[int] = []
    reader = ShardReader(disk, FOLDER, True, read.append)
    nothing: Callable[[Frame], None] = lambda found: None  # noqa: E731
    reader.replay(1, 1, nothing)
    assert sum(read) == 3 * FRAME_BYTES
    assert reader.size_from(1) == 2 * FILE_BYTES
    assert reader.size_from(2) == FILE_BYTES
    assert reader.size_from(3) == 0
