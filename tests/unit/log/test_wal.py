import pytest

from topics.log.frame import FrameKind, seal_frame
from topics.log.layout import wal_file
from topics.log.wal import LogMark, ShardLog
from topics.testing import NO_FAULTS, FakeDisk, Fault, FaultPlan, FaultyFileSystem, Survival

FOLDER = "wal"
FILE_BYTES = 1000


def new_log(disk: FakeDisk | FaultyFileSystem, next_number: int = 1) -> ShardLog:
    disk.make_dirs(FOLDER)
    return ShardLog(disk, FOLDER, next_number, FILE_BYTES)


def content(disk: FakeDisk, number: int) -> bytes:
    file = disk.open(wal_file(FOLDER, number))
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def operations(disk: FakeDisk) -> list[str]:
    return [operation for operation, _ in disk.trace]


def test_no_file_is_made_before_there_is_something_to_write() -> None:
    disk = FakeDisk()
    log = new_log(disk)
    log.sync()
    log.rotate()
    assert disk.list_dir(FOLDER) == []
    assert log.next_number == 1


def test_a_file_is_whole_before_its_first_frame() -> None:
    disk = FakeDisk()
    log = new_log(disk)
    disk.trace.clear()
    log.write(b"frame")
    assert disk.trace == [
        ("create", wal_file(FOLDER, 1)),
        ("allocate", wal_file(FOLDER, 1)),
        ("sync", wal_file(FOLDER, 1)),
        ("sync_dir", FOLDER),
        ("write", wal_file(FOLDER, 1)),
    ]


def test_writes_follow_each_other_and_the_rest_is_zeros() -> None:
    disk = FakeDisk()
    log = new_log(disk)
    log.write(b"one")
    log.write(b"two")
    assert content(disk, 1) == b"onetwo" + bytes(FILE_BYTES - 6)


def test_a_write_that_does_not_fit_begins_the_next_file() -> None:
    disk = FakeDisk()
    log = new_log(disk)
    log.write(b"a" * 600)
    log.write(b"b" * 401)
    assert content(disk, 1).rstrip(b"\0") == b"a" * 600
    assert content(disk, 2).rstrip(b"\0") == b"b" * 401
    assert log.next_number == 3


def test_a_write_that_just_fits_stays_in_the_file() -> None:
    disk = FakeDisk()
    log = new_log(disk)
    log.write(b"a" * 600)
    assert log.has_room(400)
    assert not log.has_room(401)
    log.write(b"b" * 400)
    assert disk.list_dir(FOLDER) == ["0000000000000001.wal"]


def test_there_is_no_room_before_the_first_file() -> None:
    assert not new_log(FakeDisk()).has_room(1)


def test_a_write_larger_than_a_file_gets_a_file_of_its_own() -> None:
    disk = FakeDisk()
    log = new_log(disk)
    log.write(b"x" * (FILE_BYTES + 5))
    log.write(b"y")
    assert content(disk, 1) == b"x" * (FILE_BYTES + 5)
    assert content(disk, 2).rstrip(b"\0") == b"y"


def test_a_file_is_on_disk_before_the_next_one_begins() -> None:
    disk = FakeDisk()
    log = new_log(disk)
    log.write(b"a" * 600)
    disk.trace.clear()
    log.write(b"b" * 600)
    assert disk.trace[0] == ("sync", wal_file(FOLDER, 1))
    assert content(disk.crash(Survival.NOTHING), 1).rstrip(b"\0") == b"a" * 600


def test_power_cut_loses_unsynced_frames_but_not_the_file() -> None:
    disk = FakeDisk()
    log = new_log(disk)
    log.write(b"synced")
    log.sync()
    log.write(b" and not")
    assert content(disk.crash(Survival.NOTHING), 1) == b"synced" + bytes(FILE_BYTES - 6)


def test_unsynced_is_what_was_written_since_the_last_sync() -> None:
    log = new_log(FakeDisk())
    assert not log.unsynced
    log.write(b"x")
    assert log.unsynced
    log.sync()
    assert not log.unsynced


def test_a_sync_without_anything_new_costs_nothing() -> None:
    disk = FakeDisk()
    log = new_log(disk)
    log.write(b"x")
    log.sync()
    disk.trace.clear()
    log.sync()
    assert disk.trace == []


def test_rotating_syncs_and_the_next_write_begins_a_file() -> None:
    disk = FakeDisk()
    log = new_log(disk)
    log.write(b"x")
    log.rotate()
    assert not log.unsynced
    assert log.next_number == 2
    log.write(b"y")
    assert disk.list_dir(FOLDER) == ["0000000000000001.wal", "0000000000000002.wal"]


def test_numbers_go_on_from_where_they_were() -> None:
    disk = FakeDisk()
    log = new_log(disk, next_number=42)
    log.write(b"x")
    assert disk.list_dir(FOLDER) == ["0000000000000042.wal"]


def test_a_mark_is_the_end_of_the_log() -> None:
    log = new_log(FakeDisk())
    assert log.mark() == LogMark(1, 0)
    log.write(b"four")
    assert log.mark() == LogMark(2, 4)


def test_taking_back_removes_what_stands_behind_the_mark_for_good() -> None:
    disk = FakeDisk()
    log = new_log(disk)
    log.write(b"kept")
    mark = log.mark()
    log.write(b"regretted")
    log.take_back(mark)
    assert content(disk, 1) == b"kept"
    assert content(disk.crash(Survival.NOTHING), 1) == b"kept"


def test_taking_back_across_a_file_leaves_the_new_one_empty() -> None:
    disk = FakeDisk()
    log = new_log(disk)
    log.write(b"a" * 600)
    mark = log.mark()
    log.write(b"b" * 600)
    log.take_back(mark)
    assert content(disk, 1).rstrip(b"\0") == b"a" * 600
    assert content(disk, 2) == b""


def test_taking_back_on_a_dead_disk_is_an_attempt_and_no_error() -> None:
    faulty = FaultyFileSystem(FakeDisk())
    log = new_log(faulty)
    log.write(b"x")
    faulty.plan = FaultPlan(call=1, lasting=True)
    log.take_back(LogMark(2, 0))
    assert faulty.failed == 1


def test_a_short_write_leaves_the_end_where_it_was() -> None:
    disk = FakeDisk()
    faulty = FaultyFileSystem(disk)
    log = new_log(faulty)
    log.write(b"kept")
    mark = log.mark()
    faulty.plan = FaultPlan(call=faulty.calls + 1, fault=Fault.SHORT)
    with pytest.raises(OSError, match="injected SHORT"):
        log.write(b"half of this")
    assert log.mark() == mark
    assert content(disk, 1).startswith(b"kepthalf o")
    log.take_back(mark)
    assert content(disk, 1) == b"kept"


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_a_file_that_cannot_be_made_whole_is_not_used(step: int) -> None:
    faulty = FaultyFileSystem(FakeDisk())
    log = new_log(faulty)
    faulty.plan = FaultPlan(call=faulty.calls + step)
    with pytest.raises(OSError, match="injected EIO"):
        log.write(b"x")
    assert log.next_number == 1
    assert not log.has_room(1)


def test_closing_lets_go_of_the_file() -> None:
    disk = FakeDisk()
    log = new_log(disk)
    log.write(b"x")
    log.close()
    assert not log.has_room(1)
    log.close()


MIB = 1024 * 1024


def roomy_log(disk: FakeDisk) -> ShardLog:
    disk.make_dirs(FOLDER)
    return ShardLog(disk, FOLDER, 1, MIB)


def test_filling_ahead_never_touches_what_was_written() -> None:
    disk = FakeDisk()
    log = roomy_log(disk)
    written = b""
    for number in range(1, 200):
        frame = bytes([number]) * (37 * number)
        log.write(frame)
        written += frame
        log.fill_ahead()
        log.sync()
        if number % 7 == 0:
            # Others write without asking for a fill.
            log.write(b"unsynced")
            written += b"unsynced"
    assert len(written) < MIB
    assert content(disk, 1) == written + bytes(MIB - len(written))
    assert content(disk.crash(Survival.NOTHING), 1)[: len(written)] == written


def test_the_room_ahead_is_filled_once_a_piece() -> None:
    disk = FakeDisk()
    log = roomy_log(disk)
    log.write(b"frame")
    log.fill_ahead()
    log.sync()
    disk.trace.clear()
    for _ in range(100):
        log.write(b"x" * 1000)
        log.fill_ahead()
        log.sync()
    assert operations(disk).count("write") == 100


def test_a_sync_of_much_data_is_not_made_longer() -> None:
    disk = FakeDisk()
    log = roomy_log(disk)
    log.write(bytes(100_000))
    disk.trace.clear()
    log.fill_ahead()
    assert operations(disk) == []


def test_filling_ends_with_the_file_and_begins_again_with_the_next() -> None:
    disk = FakeDisk()
    log = new_log(disk)
    log.fill_ahead()
    log.write(b"a" * 600)
    log.fill_ahead()
    log.fill_ahead()
    assert len(content(disk, 1)) == FILE_BYTES
    log.write(b"b" * 600)
    log.fill_ahead()
    assert content(disk, 2) == b"b" * 600 + bytes(400)


def test_small_writes_have_their_pages_filled_a_piece_at_a_time() -> None:
    disk = FakeDisk()
    log = roomy_log(disk)
    written = 0
    while written < 256 * 1024:
        written += log.write(b"x" * 1000)
    # The first piece is not, because the size of the write is not known yet.
    assert operations(disk).count("write") - written // 1000 in (3, 4)
    assert content(disk, 1) == b"x" * written + bytes(MIB - written)


def test_pages_are_not_filled_for_a_log_that_grows_slowly() -> None:
    disk = FakeDisk()
    log = roomy_log(disk)
    for _ in range(100):
        log.write(b"x" * 2000)
        log.sync()
    assert operations(disk).count("write") == 100


def test_pages_are_not_filled_for_long_writes() -> None:
    disk = FakeDisk()
    log = roomy_log(disk)
    for _ in range(10):
        log.write(b"x" * 20_000)
    assert operations(disk).count("write") == 10


def test_pages_filled_never_touch_what_was_written() -> None:
    disk = FakeDisk()
    log = roomy_log(disk)
    written = b""
    for number in range(1, 250):
        frame = bytes([number]) * (number * 7919 % 20_000 if number % 11 == 0 else number * 31 % 5000)
        if len(written) + len(frame) > MIB:
            break
        log.write(frame)
        written += frame
        if number % 40 == 0:
            log.fill_ahead()
            log.sync()
    assert len(written) > 500_000
    assert content(disk, 1) == written + bytes(MIB - len(written))


def test_a_write_whose_pages_cannot_be_filled_is_written_all_the_same() -> None:
    faulty = FaultyFileSystem(FakeDisk())
    faulty.make_dirs(FOLDER)
    log = ShardLog(faulty, FOLDER, 1, MIB)
    log.write(b"x" * 16_000)
    for _ in range(4):
        log.write(b"x" * 12_500)
    faulty.plan = FaultPlan(call=faulty.calls + 1, fault=Fault.ENOSPC)
    log.write(b"y" * 1000)
    assert (faulty.failed, log.position().offset) == (1, 67_000)


def framed(lsn: int) -> bytes:
    return b"".join(seal_frame(FrameKind.DELETE, 1, lsn, 0, b"%d" % lsn))


def test_after_a_failed_sync_everything_is_written_again_before_it_counts_as_synced() -> None:
    """After any number of failures and any writes in between: the pages may count as clean."""
    faulty = FaultyFileSystem(disk := FakeDisk())
    log = new_log(faulty)
    log.write(framed(1))
    # The first sync, and each of the three that follow a second write.
    faulty.plan = FaultPlan(call=faulty.calls + 1, fault=Fault.ENOMEM, lasting=True, only=frozenset({"sync"}))
    with pytest.raises(OSError, match="injected ENOMEM"):
        log.sync()
    log.write(framed(2))
    faulty.plan = NO_FAULTS
    log.sync()
    log.write(framed(3))
    log.sync()
    written = framed(1) + framed(2) + framed(3)
    assert content(disk.crash(Survival.NOTHING), 1) == written + bytes(FILE_BYTES - len(written))


def test_taking_a_write_back_loses_nothing_of_what_others_wrote_before() -> None:
    faulty = FaultyFileSystem(disk := FakeDisk())
    log = new_log(faulty)
    log.write(framed(1))
    mark = log.mark()
    faulty.plan = FaultPlan(call=faulty.calls + 1, fault=Fault.ENOSPC)
    with pytest.raises(OSError, match="injected ENOSPC"):
        log.write(framed(2))
    # The truncation comes first, then the sync that is to make it durable.
    faulty.plan = FaultPlan(call=faulty.calls + 2, fault=Fault.ENOSPC)
    log.restore(mark)
    assert faulty.failed == 2 and not log.unsynced
    assert content(disk.crash(Survival.NOTHING), 1) == framed(1)


def test_dropped_pages_after_a_failed_sync_are_an_error() -> None:
    faulty = FaultyFileSystem(FakeDisk())
    log = new_log(faulty)
    log.write(framed(1))
    faulty.plan = FaultPlan(call=faulty.calls + 1, fault=Fault.ENOMEM)
    file = faulty.inner.open(wal_file(FOLDER, 1), write=True)
    file.write_at(0, bytes(8))
    with pytest.raises(OSError, match="is gone"):
        log.sync()
