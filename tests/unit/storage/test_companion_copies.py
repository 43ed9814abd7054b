from topics.storage.companion_copies import digest_of, send
from topics.storage.fs import FileSystem
from topics.testing import FakeDisk, Survival


def put(fs: FileSystem, path: str, content: bytes) -> None:
    file = fs.open(path, create=True)
    file.truncate(0)
    file.write_at(0, content)
    file.close()


def test_a_copy_that_is_there_is_not_touched() -> None:
    """A second attempt comes late, and the first one's copy may be mapped by whoever searches."""
    disk = FakeDisk()
    disk.make_dirs("cold")
    put(disk, "file", b"companion" * 100)
    digest = send(disk, "file", "cold/file")
    reader = disk.open("cold/file")
    made: list[str] = []
    opened = disk.open

    def watched(path: str, *, write: bool = False, create: bool = False) -> object:
        if create:
            made.append(path)
        return opened(path, write=write, create=create)

    disk.open = watched  # type: ignore[assignment, method-assign]
    assert send(disk, "file", "cold/file") == digest
    assert made == []
    assert reader.map() == b"companion" * 100


def test_what_is_left_of_an_attempt_is_replaced() -> None:
    disk = FakeDisk()
    disk.make_dirs("cold")
    put(disk, "file", b"companion" * 100)
    put(disk, "cold/file", b"companion" * 99 + b"x" * 50)
    assert send(disk, "file", "cold/file") == digest_of(disk, "file") == digest_of(disk, "cold/file")


def test_a_copy_that_a_killed_attempt_has_written_is_synced_before_it_counts() -> None:
    disk = FakeDisk()
    disk.make_dirs("cold")
    put(disk, "file", b"companion" * 100)
    put(disk, "cold/file", b"companion" * 100)
    disk.sync_dir("cold")
    digest = send(disk, "file", "cold/file")
    crashed = disk.crash(Survival.NOTHING)
    assert digest_of(crashed, "cold/file") == digest
