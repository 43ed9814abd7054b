import pytest

from topics.log.fs import File, FileSystem
from topics.search.file_index.manifest import CopyDamagedError, digest_of, send
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, Survival


def put(fs: FileSystem, path: str, content: bytes) -> None:
    file = fs.open(path, create=True)
    file.truncate(0)
    file.write_at(0, content)
    file.close()


def test_a_copy_that_is_there_is_not_touched() -> None:
    """A second attempt comes late, and the first one's copy may be mapped by the caller that searches."""
    disk = FakeDisk()
    disk.make_dirs("cold")
    put(disk, "file", b"companion" * 100)
    digest = send(disk, "file", "cold/file", "cold/one.tmp")
    reader = disk.open("cold/file")
    made: list[str] = []
    opened = disk.open

    def watched(path: str, *, write: bool = False, create: bool = False) -> object:
        if create:
            made.append(path)
        return opened(path, write=write, create=create)

    disk.open = watched  # type: ignore[assignment, method-assign]
    assert send(disk, "file", "cold/file", "cold/one.tmp") == digest
    assert made == []
    assert reader.map() == b"companion" * 100


def test_what_is_left_of_an_attempt_is_replaced() -> None:
    disk = FakeDisk()
    disk.make_dirs("cold")
    put(disk, "file", b"companion" * 100)
    put(disk, "cold/file", b"companion" * 99 + b"x" * 50)
    assert send(disk, "file", "cold/file", "cold/one.tmp") == digest_of(disk, "file") == digest_of(disk, "cold/file")


def test_a_copy_that_a_killed_attempt_has_written_is_synced_before_it_counts() -> None:
    disk = FakeDisk()
    disk.make_dirs("cold")
    put(disk, "file", b"companion" * 100)
    put(disk, "cold/file", b"companion" * 100)
    disk.sync_dir("cold")
    digest = send(disk, "file", "cold/file", "cold/one.tmp")
    crashed = disk.crash(Survival.NOTHING)
    assert digest_of(crashed, "cold/file") == digest


def test_attempts_that_meet_do_not_touch_what_the_other_has_finished() -> None:
    """One looks, and finds nothing; another copies, and is counted; then the first one writes."""
    disk = FakeDisk()
    disk.make_dirs("cold")
    put(disk, "file", b"companion" * 100)
    whole = digest_of(disk, "file")
    opened = disk.open
    seen: list[int] = []

    def late(path: str, *, write: bool = False, create: bool = False) -> File:
        if not create:
            return opened(path, write=write, create=create)
        if not seen:
            seen.append(whole)
            send(disk, "file", "cold/file", "cold/other.tmp")
            file = opened(path, create=True)
            file.truncate(0)
            seen.append(digest_of(disk, "cold/file"))
            return file
        return opened(path, create=True)

    disk.open = late  # type: ignore[assignment, method-assign]
    assert send(disk, "file", "cold/file", "cold/one.tmp") == whole
    assert seen == [whole, whole]
    assert disk.list_dir("cold") == ["file"]


@pytest.mark.parametrize("fault", [Fault.SHORT, Fault.EIO])
def test_an_attempt_that_fails_leaves_nothing_and_the_name_as_it_was(fault: Fault) -> None:
    for call in range(1, 100):
        disk = FakeDisk()
        disk.make_dirs("cold")
        put(disk, "file", b"companion" * 100)
        fs = FaultyFileSystem(disk, FaultPlan(call=call, fault=fault, include_reads=True))
        try:
            send(fs, "file", "cold/file", "cold/one.tmp")
        except (OSError, CopyDamagedError):
            assert disk.list_dir("cold") == []
        if not fs.failed:
            break
    assert call > 5
    assert disk.list_dir("cold") == ["file"]
