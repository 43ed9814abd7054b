import pytest

from topics.log.fs import File, read_whole, replace_beside_others
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem


def test_attempts_that_meet_each_put_a_whole_file() -> None:
    disk = FakeDisk()
    disk.make_dirs("folder")
    opened = disk.open
    seen: list[str] = []

    def met(path: str, *, write: bool = False, create: bool = False) -> File:
        file = opened(path, write=write, create=create)
        if create and not seen:
            seen.append(path)
            replace_beside_others(disk, "folder/file", b"whole", "second")
            file.truncate(0)
            assert read_whole(disk, "folder/file") == b"whole"
        return file

    disk.open = met  # type: ignore[assignment, method-assign]
    replace_beside_others(disk, "folder/file", b"whole", "first")
    assert seen == ["folder/file.first.tmp"]
    assert read_whole(disk, "folder/file") == b"whole"
    assert disk.list_dir("folder") == ["file"]


@pytest.mark.parametrize("fault", [Fault.SHORT, Fault.EIO])
def test_nothing_is_left_of_an_attempt_that_fails(fault: Fault) -> None:
    for call in range(1, 100):
        disk = FakeDisk()
        disk.make_dirs("folder")
        fs = FaultyFileSystem(disk, FaultPlan(call=call, fault=fault))
        try:
            replace_beside_others(fs, "folder/file", b"whole", "one")
        except OSError:
            assert read_whole(disk, "folder/file") in (None, b"whole")
            assert not [name for name in disk.list_dir("folder") if name.endswith(".tmp")]
        if not fs.failed:
            break
    assert call > 5
