import pytest

from topics.log.object_store.local_cache import LocalCopies
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, Survival

DATA = "topics/0000000000000001/seg-00000000000000000001.data"
OTHER = "topics/0000000000000001/seg-00000000000000000007.data"
INDEX = "topics/0000000000000001/seg-00000000000000000001.idx"


def copies_on(disk: FakeDisk | FaultyFileSystem, bytes_max: int = 100) -> LocalCopies:
    return LocalCopies(disk, "data/near", bytes_max)


def content(copies: LocalCopies, name: str) -> bytes | None:
    file = copies.open(name)
    return None if file is None else file.read_at(0, file.size())


def test_what_is_kept_is_found() -> None:
    copies = copies_on(FakeDisk())
    assert content(copies, DATA) is None
    copies.keep(DATA, [b"abc", memoryview(b"def")])
    assert content(copies, DATA) == b"abcdef"
    assert copies.held_bytes == 6


def test_the_longest_unused_goes_first() -> None:
    copies = copies_on(FakeDisk(), 100)
    for name in ("a.data", "b.data", "c.data"):
        copies.keep(name, [b"x" * 40])
        assert content(copies, "a.data") is not None
    assert copies.held_bytes == 80
    assert content(copies, "b.data") is None
    assert content(copies, "c.data") is not None


def test_what_is_larger_than_all_room_is_not_kept() -> None:
    copies = copies_on(FakeDisk(), 100)
    copies.keep("a.data", [b"x" * 60])
    copies.keep("b.data", [b"x" * 101])
    assert content(copies, "b.data") is None
    assert content(copies, "a.data") is not None


def test_indexes_and_ends_stay_whatever_the_room() -> None:
    copies = copies_on(FakeDisk(), 0)
    copies.keep(INDEX, [b"x" * 1000])
    copies.keep_tail(DATA, b"y" * 1000)
    copies.keep(DATA, [b"z"])
    assert content(copies, INDEX) == b"x" * 1000
    assert copies.tail(DATA, 1000) == b"y" * 1000
    assert content(copies, DATA) is None
    assert copies.has(DATA.removesuffix(".data"))


def test_an_end_of_another_length_is_not_the_one() -> None:
    copies = copies_on(FakeDisk())
    copies.keep_tail(DATA, b"abc")
    assert copies.tail(DATA, 2) is None
    assert copies.tail(DATA, 3) == b"abc"


def test_a_damaged_end_is_as_good_as_none() -> None:
    disk = FakeDisk()
    copies = copies_on(disk)
    copies.keep_tail(DATA, b"abc")
    disk.open(f"data/near/{DATA}.tail", write=True).write_at(1, b"B")
    assert copies.tail(DATA, 3) is None


def test_an_object_that_changed_takes_its_end_along() -> None:
    copies = copies_on(FakeDisk())
    copies.keep(DATA, [b"01234567"])
    copies.keep_tail(DATA, b"567")
    copies.replaced(DATA, [b"0123", b"4XYZ"])
    assert copies.tail(DATA, 3) == b"XYZ"
    assert content(copies, DATA) is None
    assert copies.held_bytes == 0
    copies.replaced(OTHER, [b"0123"])
    assert copies.tail(OTHER, 3) is None


@pytest.mark.parametrize("survival", list(Survival))
def test_after_a_power_cut_the_new_end_is_there_or_none(survival: Survival) -> None:
    for seed in range(5):
        disk = FakeDisk()
        copies = copies_on(disk)
        copies.keep_tail(DATA, b"old")
        disk = disk.crash(Survival.EVERYTHING)
        copies_on(disk).replaced(DATA, [b"..new"])
        assert copies_on(disk.crash(survival, seed)).tail(DATA, 3) in (b"new", None), f"seed {seed}"


def test_an_old_end_that_cannot_be_replaced_is_removed_or_reported() -> None:
    """Every call of a replacement fails once, and from there on for good: an old end never counts as the new one."""
    for lasting in (False, True):
        call = 1
        while True:
            disk = FakeDisk()
            copies_on(disk).keep_tail(DATA, b"old")
            faulty = FaultyFileSystem(disk, FaultPlan(call=call, lasting=lasting))
            try:
                copies_on(faulty).replaced(DATA, [b"..new"])
            except OSError:
                pass
            else:
                found = copies_on(disk.crash(Survival.NOTHING)).tail(DATA, 3)
                assert found in (b"new", None), f"call {call}"
            if not faulty.failed:
                break
            call += 1
        assert call > 3


def test_a_disk_that_takes_nothing_keeps_nothing() -> None:
    copies = copies_on(FaultyFileSystem(FakeDisk(), FaultPlan(call=1, lasting=True)))
    copies.keep(DATA, [b"abc"])
    copies.keep(INDEX, [b"abc"])
    copies.keep_tail(DATA, b"abc")
    assert content(copies, DATA) is None
    assert content(copies, INDEX) is None
    assert copies.tail(DATA, 3) is None
    assert copies.held_bytes == 0


def test_dropping_forgets_everything_of_an_object() -> None:
    copies = copies_on(FakeDisk())
    assert not copies.drop(DATA)
    copies.keep(DATA, [b"abc"])
    copies.keep_tail(DATA, b"c")
    assert copies.drop(DATA)
    assert content(copies, DATA) is None
    assert copies.tail(DATA, 1) is None
    assert copies.held_bytes == 0


def test_a_new_process_keeps_needed_small_files() -> None:
    disk = FakeDisk()
    copies = copies_on(disk)
    for name in (DATA, OTHER, INDEX, INDEX.replace("1.idx", "7.idx")):
        copies.keep(name, [b"abc"])
    for name in (DATA, OTHER):
        copies.keep_tail(name, b"c")
    copies.keep("topics/0000000000000002/seg-00000000000000000001.idx", [b"abc"])
    disk.open(f"data/near/{DATA}.1.tmp", create=True).close()
    copies_on(disk).keep_only({DATA, INDEX}.__contains__)
    assert disk.list_dir("data/near/topics") == ["0000000000000001"]
    names = disk.list_dir("data/near/topics/0000000000000001")
    assert names == ["seg-00000000000000000001.data.tail", "seg-00000000000000000001.idx"]


def test_nothing_is_left_of_a_copy_that_did_not_fit() -> None:
    """A read that fills the disk must not keep it full."""
    disk = FakeDisk()
    for call in range(1, 10):
        faulty = FaultyFileSystem(disk, FaultPlan(call=call, fault=Fault.SHORT))
        copies_on(faulty).keep(DATA, [b"0123456789"])
        left = disk.list_dir("data/near/topics/0000000000000001") if disk.exists("data/near/topics") else []
        assert set(left) <= {DATA.rpartition("/")[2]}, f"call {call}"
        if not faulty.failed:
            return
    raise AssertionError("it never came to an end")
