import pytest

from topics.log.segment_files import UnsyncedFiles
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, Survival


def read(disk: FakeDisk) -> bytes:
    file = disk.open("a")
    return file.read_at(0, file.size())


def doubted() -> tuple[UnsyncedFiles, FaultyFileSystem, FakeDisk]:
    """A file whose sync failed."""
    fs = FaultyFileSystem(disk := FakeDisk())
    files = UnsyncedFiles(fs)
    files.write("a", [b"what ", b"was written"])
    fs.sync_dir("/")
    fs.plan = FaultPlan(call=fs.calls + 1, fault=Fault.EIO)
    with pytest.raises(OSError, match="injected EIO"):
        files.sync("a")
    return files, fs, disk


def test_write_does_not_sync() -> None:
    disk = FakeDisk()
    files = UnsyncedFiles(disk)
    files.write("a", [b"what ", b"was written"])
    disk.sync_dir("/")
    assert read(disk.clone().crash(Survival.NOTHING)) == b""
    files.sync("a")
    assert disk.trace[-1] == ("sync", "a")
    assert read(disk.crash(Survival.NOTHING)) == b"what was written"


def test_a_file_whose_sync_failed_is_written_again() -> None:
    files, fs, disk = doubted()
    files.sync("a")
    assert [operation for operation, _ in fs.trace[-2:]] == ["write", "sync"]
    assert read(disk.crash(Survival.NOTHING)) == b"what was written"


def test_it_is_written_again_as_often_as_it_fails() -> None:
    files, fs, disk = doubted()
    fs.plan = FaultPlan(call=fs.calls + 2, fault=Fault.EIO)
    with pytest.raises(OSError, match="injected EIO"):
        files.sync("a")
    files.sync("a")
    assert read(disk.crash(Survival.NOTHING)) == b"what was written"


def test_dropped_pages_are_never_reported_as_synced() -> None:
    files, _, disk = doubted()
    file = disk.open("a", write=True)
    file.write_at(0, b"zero")
    for _ in range(2):
        with pytest.raises(OSError, match="is gone"):
            files.sync("a")
    # A caller with the bytes can write the file once more.
    files.write("a", [b"what was written"])
    files.sync("a")
    assert read(disk.crash(Survival.NOTHING)) == b"what was written"
