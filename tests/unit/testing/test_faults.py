"""The file system that fails its n-th call, and the two small fakes beside it."""

import errno

import pytest

from topics.log.fs import File, FileSystem
from topics.system.clock import Clock
from topics.system.entropy import Entropy
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock, SeededEntropy, Survival


def work(fs: FileSystem) -> None:
    """Some of every call."""
    fs.make_dirs("/d")
    lock = fs.lock("/d/lock", "me")
    file = fs.open("/d/a", create=True)
    file.allocate(100)
    file.write_at(0, b"abcdef")
    file.read_at(0, 3)
    file.truncate(50)
    file.size()
    file.map()
    file.sync()
    file.close()
    fs.open("/d/a", write=True).close()
    fs.rename("/d/a", "/d/b")
    fs.sync_dir("/d")
    fs.exists("/d/b")
    fs.list_dir("/d")
    fs.remove("/d/b")
    fs.make_dirs("/d/e")
    fs.remove_dir("/d/e")
    lock.release()


CHANGES = [
    ("make_dirs", "/d"),
    ("lock", "/d/lock"),
    ("create", "/d/a"),
    ("allocate", "/d/a"),
    ("write", "/d/a"),
    ("truncate", "/d/a"),
    ("sync", "/d/a"),
    ("rename", "/d/a -> /d/b"),
    ("sync_dir", "/d"),
    ("remove", "/d/b"),
    ("make_dirs", "/d/e"),
    ("remove_dir", "/d/e"),
]
ALL = [
    *CHANGES[:5],
    ("read", "/d/a"),
    ("truncate", "/d/a"),
    ("size", "/d/a"),
    ("map", "/d/a"),
    ("sync", "/d/a"),
    ("open", "/d/a"),
    ("rename", "/d/a -> /d/b"),
    ("sync_dir", "/d"),
    ("exists", "/d/b"),
    ("list_dir", "/d"),
    *CHANGES[9:],
]


def opened(plan: FaultPlan) -> tuple[FaultyFileSystem, File]:
    """A file whose first counted call comes next."""
    inner = FakeDisk()
    inner.open("/a", create=True).write_at(0, b"old")
    fs = FaultyFileSystem(inner, plan)
    return fs, fs.open("/a", write=True)


@pytest.mark.parametrize(("include_reads", "expected"), [(False, CHANGES), (True, ALL)])
def test_without_a_fault_it_only_counts(include_reads: bool, expected: list[tuple[str, str]]) -> None:
    fs = FaultyFileSystem(FakeDisk(), FaultPlan(include_reads=include_reads))
    work(fs)
    assert fs.trace == expected
    assert (fs.calls, fs.failed) == (len(expected), 0)


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("call", range(1, len(ALL) + 1))
def test_every_call_can_be_failed(call: int, fault: Fault) -> None:
    fs = FaultyFileSystem(FakeDisk(), FaultPlan(call, fault, include_reads=True))
    operation, path = ALL[call - 1]
    with pytest.raises(OSError, match=f"injected {fault.name} at call {call}, {operation}: '{path}'") as caught:
        work(fs)
    short = errno.ENOSPC if operation == "write" else errno.EIO
    assert caught.value.errno == (short if fault is Fault.SHORT else getattr(errno, fault.name))
    assert fs.trace == ALL[:call]
    assert (fs.calls, fs.failed) == (call, 1)


def test_a_failed_call_does_not_reach_the_inner_file_system() -> None:
    for call in range(1, len(CHANGES) + 1):
        inner = FakeDisk()
        expected = FakeDisk()
        with pytest.raises(OSError):
            work(FaultyFileSystem(inner, FaultPlan(call)))
        # The completed steps equal the first steps of a run without faults. The fake counts the steps of make_dirs by
        # themselves.
        work(expected)
        assert inner.trace == expected.trace[: len(inner.trace)]
        assert len(inner.trace) < len(expected.trace)


def test_failed_sync_leaves_readable_bytes_that_a_power_cut_loses() -> None:
    fs = FaultyFileSystem(disk := FakeDisk())
    fs.make_dirs("/d")
    file = fs.open("/d/a", create=True)
    fs.sync_dir("/d")
    file.write_at(0, b"old")
    file.sync()
    file.write_at(0, b"new")
    fs.plan = FaultPlan(call=fs.calls + 1)
    with pytest.raises(OSError, match="injected EIO"):
        file.sync()
    file.sync()
    assert file.read_at(0, 3) == b"new"
    assert disk.clone().crash(Survival.EVERYTHING).open("/d/a").read_at(0, 3) == b"new"
    assert disk.clone().crash(Survival.NOTHING).open("/d/a").read_at(0, 3) == b"old"
    file.write_at(0, b"new")
    file.sync()
    assert disk.crash(Survival.NOTHING).open("/d/a").read_at(0, 3) == b"new"


def test_once_means_once() -> None:
    fs, file = opened(FaultPlan(2))
    file.write_at(0, b"1")
    with pytest.raises(OSError):
        file.write_at(0, b"2")
    file.write_at(1, b"3")
    assert file.read_at(0, 10) == b"13d"
    assert (fs.calls, fs.failed) == (3, 1)


def test_lasting_means_from_then_on() -> None:
    fs, file = opened(FaultPlan(2, Fault.ENOSPC, lasting=True))
    file.write_at(0, b"1")
    for _ in range(3):
        with pytest.raises(OSError):
            file.write_at(0, b"2")
    with pytest.raises(OSError):
        fs.remove("/a")
    assert file.read_at(0, 10) == b"1ld"
    assert (fs.calls, fs.failed) == (5, 4)


def test_one_folder_of_several_can_fail() -> None:
    fs, file = opened(FaultPlan(2, lasting=True, within="/sick/"))
    fs.make_dirs("/sick")
    with pytest.raises(OSError):
        fs.open("/sick/b", create=True)
    file.write_at(0, b"1")
    assert file.read_at(0, 10) == b"1ld"
    assert (fs.calls, fs.failed) == (3, 1)


def test_reads_pass_unless_they_are_included() -> None:
    fs, file = opened(FaultPlan(1, lasting=True))
    assert file.read_at(0, 10) == bytes(file.map()) == b"old"
    assert fs.exists("/a") and fs.list_dir("/") == ["a"] and file.size() == 3
    assert fs.calls == 0


@pytest.mark.parametrize(
    ("data", "left"),
    [(b"0123456789", b"01234"), (b"012", b"0ld"), (b"0", b"old"), (b"", b"old"), (memoryview(b"ABCD"), b"ABd")],
)
def test_a_short_write_leaves_its_first_half(data: bytes | memoryview, left: bytes) -> None:
    _, file = opened(FaultPlan(1, Fault.SHORT))
    with pytest.raises(OSError) as caught:
        file.write_at(0, data)
    assert caught.value.errno == errno.ENOSPC
    assert file.read_at(0, 100) == left


def test_a_file_can_be_closed_and_a_lock_released_on_a_dead_disk() -> None:
    inner = FakeDisk()
    fs = FaultyFileSystem(inner, FaultPlan(3, lasting=True, include_reads=True))
    file = fs.open("/a", create=True)
    lock = fs.lock("/lock", "me")
    with pytest.raises(OSError):
        file.sync()
    file.close()
    lock.release()
    inner.lock("/lock", "you")


def test_a_manual_clock_moves_when_reported() -> None:
    manual = ManualClock(5_000)
    clock: Clock = manual
    assert (clock.now_ms(), clock.monotonic()) == (5_000, 0.0)
    manual.advance(1_500)
    manual.advance(0)
    assert (clock.now_ms(), clock.monotonic()) == (6_500, 1.5)
    with pytest.raises(ValueError, match="does not go back"):
        manual.advance(-1)
    assert ManualClock().now_ms() == 1_700_000_000_000


def test_seeded_entropy_repeats() -> None:
    first, second, other = (SeededEntropy(seed) for seed in (1, 1, 2))
    entropy: Entropy = first
    tokens = [entropy.token(16) for _ in range(3)]
    assert [second.token(16) for _ in range(3)] == tokens
    assert other.token(16) not in tokens
    assert len(set(tokens)) == 3
    assert first.token(0) == b""
    assert {first.below(3) for _ in range(100)} == {0, 1, 2}
