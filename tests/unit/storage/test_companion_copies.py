from topics.storage.companion_copies import digest_of, send
from topics.storage.fs import FileSystem
from topics.testing import FakeDisk


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
    calls: list[str] = []
    opened = disk.open

    def watched(path: str, *, write: bool = False, create: bool = False) -> object:
        if path == "cold/file" and (write or create):
            calls.append(path)
        return opened(path, write=write, create=create)

    disk.open = watched  # type: ignore[assignment, method-assign]
    assert send(disk, "file", "cold/file") == digest
    assert calls == []
    assert reader.map() == b"companion" * 100


def test_what_is_left_of_an_attempt_is_replaced() -> None:
    disk = FakeDisk()
    disk.make_dirs("cold")
    put(disk, "file", b"companion" * 100)
    put(disk, "cold/file", b"companion" * 99 + b"x" * 50)
    assert send(disk, "file", "cold/file") == digest_of(disk, "file") == digest_of(disk, "cold/file")
