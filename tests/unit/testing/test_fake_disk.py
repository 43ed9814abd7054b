"""The content of the fake disk after a crash, and the places where it can be stopped."""

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from topics.log.fs import FileSystem
from topics.testing import SECTOR_BYTES, FakeDisk, PowerCut, Survival

SEEDS = range(200)


def content(disk: FileSystem, path: str) -> bytes:
    file = disk.open(path)
    return file.read_at(0, file.size())


def outcomes(disk: FakeDisk, survive: Survival, look: Callable[[FakeDisk], bytes | str]) -> set[bytes | str]:
    """Every different thing that is found over many seeds."""
    return {look(disk.clone().crash(survive, seed)) for seed in SEEDS}


@pytest.fixture
def disk() -> FakeDisk:
    """A disk with one durable file `/d/f` that holds `durable`."""
    disk = FakeDisk()
    disk.make_dirs("/d")
    file = disk.open("/d/f", create=True)
    file.write_at(0, b"durable")
    file.sync()
    disk.sync_dir("/d")
    return disk


def names(disk: FakeDisk) -> str:
    return " ".join(disk.list_dir("/d"))


class TestFileContent:
    @pytest.mark.parametrize("survive", Survival)
    def test_synced_data_survives_every_crash(self, disk: FakeDisk, survive: Survival) -> None:
        for seed in SEEDS:
            assert content(disk.clone().crash(survive, seed), "/d/f") == b"durable"

    def test_nothing_drops_every_operation_since_the_sync(self, disk: FakeDisk) -> None:
        file = disk.open("/d/f", write=True)
        file.truncate(3)
        file.write_at(0, b"D")
        file.allocate(100)
        assert content(disk, "/d/f") == b"Dur" + bytes(97)
        assert content(disk.crash(Survival.NOTHING), "/d/f") == b"durable"

    def test_sync_makes_length_and_bytes_durable(self, disk: FakeDisk) -> None:
        file = disk.open("/d/f", write=True)
        file.truncate(3)
        file.allocate(6)
        file.write_at(8, b"x")
        file.sync()
        file.write_at(0, b"lost")
        assert content(disk.crash(Survival.NOTHING), "/d/f") == b"dur\0\0\0\0\0x"

    def test_sync_covers_the_writes_of_every_opening(self, disk: FakeDisk) -> None:
        disk.open("/d/f", write=True).write_at(0, b"D")
        disk.open("/d/f").sync()
        assert content(disk.crash(Survival.NOTHING), "/d/f") == b"Durable"

    def test_sync_covers_one_file_only(self, disk: FakeDisk) -> None:
        disk.open("/d/f", write=True).write_at(0, b"D")
        other = disk.open("/d/other", create=True)
        other.sync()
        assert content(disk.crash(Survival.NOTHING), "/d/f") == b"durable"

    def test_everything_keeps_everything(self, disk: FakeDisk) -> None:
        disk.open("/d/f", write=True).write_at(7, b" not yet")
        disk.open("/d/g", create=True).write_at(0, b"g")
        disk.rename("/d/g", "/d/h")
        after = disk.crash(Survival.EVERYTHING)
        assert names(after) == "f h"
        assert content(after, "/d/f") == b"durable not yet"
        assert content(after, "/d/h") == b"g"

    def test_writes_of_a_killed_process_are_still_unsynced(self, disk: FakeDisk) -> None:
        disk.open("/d/f", write=True).write_at(0, b"D")
        disk.open("/d/g", create=True)
        after = disk.crash(Survival.EVERYTHING)
        assert content(after.clone().crash(Survival.NOTHING), "/d/f") == b"durable"
        assert names(after.clone().crash(Survival.NOTHING)) == "f"
        after.open("/d/f").sync()
        after.sync_dir("/d")
        final = after.crash(Survival.NOTHING)
        assert content(final, "/d/f") == b"Durable"
        assert names(final) == "f g"

    def test_a_crashed_disk_can_be_written_and_crashed_again(self, disk: FakeDisk) -> None:
        disk.open("/d/f", write=True).write_at(0, b"lost")
        disk = disk.crash(Survival.NOTHING)
        file = disk.open("/d/f", write=True)
        file.write_at(0, b"D")
        file.sync()
        file.write_at(0, b"lost")
        disk.open("/d/lost", create=True)
        after = disk.crash(Survival.NOTHING)
        assert names(after) == "f"
        assert content(after, "/d/f") == b"Durable"

    def test_a_view_of_the_file_keeps_its_bytes(self, disk: FakeDisk) -> None:
        file = disk.open("/d/f", write=True)
        view = file.map()
        file.truncate(1)
        file.write_at(0, b"XYZ")
        disk.crash(Survival.NOTHING)
        assert bytes(view) == b"durable"


class TestTorn:
    def test_leaves_every_strict_prefix_and_never_the_whole_write(self, disk: FakeDisk) -> None:
        file = disk.open("/d/f", write=True)
        file.write_at(7, b"0123456789")
        found = outcomes(disk, Survival.TORN, lambda after: content(after, "/d/f"))
        assert {b"durable" + b"0123456789"[:cut] for cut in range(10)} <= found
        assert b"durable0123456789" not in found

    def test_leaves_zeros_or_garbage_after_the_prefix(self, disk: FakeDisk) -> None:
        file = disk.open("/d/f", write=True)
        data = b"x" * 2000
        file.write_at(7, data)
        tails = set()
        for seed in SEEDS:
            found = content(disk.clone().crash(Survival.TORN, seed), "/d/f")
            assert found.startswith(b"durable")
            tail = found[7:].lstrip(b"x")
            assert len(found) < 7 + len(data) + 1
            assert len(tail) <= SECTOR_BYTES
            tails.add("none" if not tail else "zeros" if not tail.strip(b"\0") else "garbage")
        assert tails == {"none", "zeros", "garbage"}

    def test_drops_all_but_the_last_write(self, disk: FakeDisk) -> None:
        file = disk.open("/d/f", write=True)
        file.write_at(0, b"FIRST")
        file.truncate(2)
        file.write_at(1, b"abc")
        file.allocate(50)
        found = outcomes(disk, Survival.TORN, lambda after: content(after, "/d/f"))
        assert {b"durable", b"darable", b"dabable"} <= found
        assert all(len(value) == 7 and value[:1] == b"d" and value[4:] == b"ble" for value in found)

    def test_does_not_touch_a_file_without_a_waiting_write(self, disk: FakeDisk) -> None:
        disk.open("/d/f", write=True).truncate(2)
        assert outcomes(disk, Survival.TORN, lambda after: content(after, "/d/f")) == {b"durable"}

    def test_does_not_reach_beyond_the_write(self, disk: FakeDisk) -> None:
        disk.open("/d/f", write=True).write_at(2, b"RAB")
        for found in outcomes(disk, Survival.TORN, lambda after: content(after, "/d/f")):
            assert (found[:2], found[5:]) == (b"du", b"le")


class TestScattered:
    def test_keeps_or_drops_each_write_by_itself(self, disk: FakeDisk) -> None:
        file = disk.open("/d/f", write=True)
        file.write_at(0, b"D")
        file.write_at(3, b"A")
        file.write_at(6, b"E!")
        found = outcomes(disk, Survival.SCATTERED, lambda after: content(after, "/d/f"))
        assert found == {d + b"ur" + a + b"bl" + e for d in (b"d", b"D") for a in (b"a", b"A") for e in (b"e", b"E!")}

    def test_keeps_some_sectors_of_a_write(self, disk: FakeDisk) -> None:
        file = disk.open("/d/g", create=True)
        file.allocate(4 * SECTOR_BYTES)
        file.sync()
        disk.sync_dir("/d")
        file.write_at(10, b"x" * 3 * SECTOR_BYTES)
        patterns = set()
        for seed in SEEDS:
            found = content(disk.clone().crash(Survival.SCATTERED, seed), "/d/g")
            sectors = [found[start : start + SECTOR_BYTES] for start in range(0, len(found), SECTOR_BYTES)]
            wholes = [bytes(10) + b"x" * 502, b"x" * 512, b"x" * 512, b"x" * 10 + bytes(502)]
            for sector, whole in zip(sectors, wholes, strict=True):
                assert sector in (whole, bytes(SECTOR_BYTES))
            patterns.add(tuple(any(sector) for sector in sectors))
        assert len(patterns) == 16

    def test_keeps_or_drops_changes_of_length(self, disk: FakeDisk) -> None:
        file = disk.open("/d/f", write=True)
        file.truncate(2)
        file.allocate(9)
        found = outcomes(disk, Survival.SCATTERED, lambda after: content(after, "/d/f"))
        assert found == {b"durable", b"du", b"durable\0\0", b"du" + bytes(7)}


class TestSeeds:
    @pytest.mark.parametrize("survive", [Survival.TORN, Survival.SCATTERED])
    def test_the_same_seed_gives_the_same_disk(self, disk: FakeDisk, survive: Survival) -> None:
        for name in ("b", "a", "c"):
            disk.open(f"/d/{name}", create=True).write_at(0, name.encode() * 3000)

        def everything(after: FakeDisk) -> list[tuple[str, bytes]]:
            return [(name, content(after, f"/d/{name}")) for name in after.list_dir("/d")]

        results = [everything(disk.clone().crash(survive, seed)) for seed in (1, 1, *SEEDS)]
        assert results[0] == results[1]
        assert len({str(result) for result in results}) > 50


class TestNames:
    def test_a_synced_file_without_a_synced_name_is_gone(self, disk: FakeDisk) -> None:
        file = disk.open("/d/g", create=True)
        file.write_at(0, b"g")
        file.sync()
        assert names(disk.crash(Survival.NOTHING)) == "f"

    def test_a_synced_name_of_an_unsynced_file_is_an_empty_file(self, disk: FakeDisk) -> None:
        disk.open("/d/g", create=True).write_at(0, b"g")
        disk.sync_dir("/d")
        assert content(disk.crash(Survival.NOTHING), "/d/g") == b""

    def test_sync_dir_covers_one_folder_only(self, disk: FakeDisk) -> None:
        disk.make_dirs("/d/e")
        disk.open("/d/e/g", create=True)
        disk.sync_dir("/d")
        disk.sync_dir("/")
        assert disk.crash(Survival.NOTHING).list_dir("/d/e") == []

    def test_a_removal_that_was_not_synced_comes_back(self, disk: FakeDisk) -> None:
        disk.remove("/d/f")
        assert content(disk.clone().crash(Survival.NOTHING), "/d/f") == b"durable"
        disk.sync_dir("/d")
        assert names(disk.crash(Survival.NOTHING)) == ""

    def test_a_folder_removed_without_a_sync_comes_back(self, disk: FakeDisk) -> None:
        disk.remove("/d/f")
        disk.remove_dir("/d")
        assert content(disk.clone().crash(Survival.NOTHING), "/d/f") == b"durable"
        disk.sync_dir("/")
        assert disk.crash(Survival.NOTHING).list_dir("/") == []

    @pytest.mark.parametrize("survive", Survival)
    def test_make_dirs_is_durable(self, survive: Survival) -> None:
        disk = FakeDisk()
        disk.make_dirs("/a/b/c")
        assert disk.crash(survive).list_dir("/a/b") == ["c"]

    @pytest.mark.parametrize("stop", range(6))
    def test_make_dirs_killed_anywhere_and_run_again_is_durable(self, stop: int) -> None:
        killed = FakeDisk(stop_after=stop)
        with pytest.raises(PowerCut):
            killed.make_dirs("/a/b/c")
        disk = killed.crash(Survival.EVERYTHING)
        disk.make_dirs("/a/b/c")
        assert disk.crash(Survival.NOTHING).exists("/a/b/c")

    @pytest.mark.parametrize("survive", [Survival.TORN, Survival.SCATTERED])
    def test_of_the_operations_of_a_folder_a_prefix_survives(self, disk: FakeDisk, survive: Survival) -> None:
        disk.open("/d/g", create=True)
        disk.rename("/d/g", "/d/h")
        disk.remove("/d/f")
        disk.open("/d/i", create=True)
        assert outcomes(disk, survive, names) == {"f", "f g", "f h", "h", "h i"}

    def test_folders_keep_their_prefixes_independently(self, disk: FakeDisk) -> None:
        disk.make_dirs("/e")
        disk.open("/d/g", create=True)
        disk.open("/e/g", create=True)
        found = outcomes(disk, Survival.SCATTERED, lambda after: names(after) + "," + " ".join(after.list_dir("/e")))
        assert found == {"f,", "f g,", "f,g", "f g,g"}

    def test_a_name_used_twice_ends_with_the_right_file(self, disk: FakeDisk) -> None:
        disk.remove("/d/f")
        second = disk.open("/d/f", create=True)
        second.write_at(0, b"second")
        second.sync()
        assert content(disk.clone().crash(Survival.NOTHING), "/d/f") == b"durable"
        disk.sync_dir("/d")
        assert content(disk.crash(Survival.NOTHING), "/d/f") == b"second"


class TestRename:
    @pytest.fixture
    def replacing(self, disk: FakeDisk) -> FakeDisk:
        """`/d/f` replaced the safe way, but for the last step: its folder is not synced."""
        file = disk.open("/d/f.new", create=True)
        file.write_at(0, b"replaced")
        file.sync()
        disk.sync_dir("/d")
        disk.rename("/d/f.new", "/d/f")
        return disk

    @pytest.mark.parametrize("survive", Survival)
    def test_a_crash_finds_the_old_file_or_the_new_one(self, replacing: FakeDisk, survive: Survival) -> None:
        found = outcomes(replacing, survive, lambda after: names(after) + " " + content(after, "/d/f").decode())
        old, new = "f f.new durable", "f replaced"
        expected = {
            Survival.NOTHING: {old},
            Survival.EVERYTHING: {new},
            Survival.TORN: {old, new},
            Survival.SCATTERED: {old, new},
        }
        assert found == expected[survive]

    @pytest.mark.parametrize("survive", Survival)
    def test_is_durable_after_sync_dir(self, replacing: FakeDisk, survive: Survival) -> None:
        replacing.sync_dir("/d")
        assert outcomes(replacing, survive, lambda after: content(after, "/d/f")) == {b"replaced"}
        assert outcomes(replacing, survive, names) == {"f"}

    @pytest.mark.parametrize("survive", [Survival.TORN, Survival.SCATTERED])
    def test_between_folders_is_one_step_too(self, disk: FakeDisk, survive: Survival) -> None:
        disk.make_dirs("/e")
        disk.open("/d/before", create=True)
        disk.rename("/d/f", "/e/f")
        disk.open("/e/after", create=True)
        found = outcomes(disk, survive, lambda after: names(after) + "," + " ".join(after.list_dir("/e")))
        assert found == {"f,", "before f,", "before,f", "before,after f"}

    @pytest.mark.parametrize("synced", ["/d", "/e"])
    def test_between_folders_is_durable_once_either_is_synced(self, disk: FakeDisk, synced: str) -> None:
        disk.make_dirs("/e")
        disk.rename("/d/f", "/e/f")
        disk.sync_dir(synced)
        after = disk.crash(Survival.NOTHING)
        assert names(after) == ""
        assert content(after, "/e/f") == b"durable"

    def test_of_a_folder_takes_its_files_along(self, disk: FakeDisk) -> None:
        disk.rename("/d", "/e")
        assert content(disk.clone().crash(Survival.NOTHING), "/d/f") == b"durable"
        disk.sync_dir("/")
        after = disk.crash(Survival.NOTHING)
        assert after.list_dir("/") == ["e"]
        assert content(after, "/e/f") == b"durable"


def work(disk: FakeDisk) -> None:
    """Some of every counted call, with reads between."""
    disk.make_dirs("/d")
    lock = disk.lock("/d/lock", "me")
    file = disk.open("/d/a", create=True)
    file.allocate(100)
    file.write_at(0, b"abc")
    file.read_at(0, 3)
    file.truncate(50)
    file.sync()
    file.size()
    file.close()
    disk.rename("/d/a", "/d/b")
    disk.sync_dir("/d")
    disk.list_dir("/d")
    disk.remove("/d/b")
    disk.make_dirs("/d/e")
    disk.remove_dir("/d/e")
    lock.release()


WORK = [
    ("mkdir", "/d"),
    ("sync_dir", "/"),
    ("lock", "/d/lock"),
    ("create", "/d/a"),
    ("allocate", "/d/a"),
    ("write", "/d/a"),
    ("truncate", "/d/a"),
    ("sync", "/d/a"),
    ("rename", "/d/a -> /d/b"),
    ("sync_dir", "/d"),
    ("remove", "/d/b"),
    ("sync_dir", "/"),
    ("mkdir", "/d/e"),
    ("sync_dir", "/d"),
    ("remove_dir", "/d/e"),
]


class TestStopping:
    def test_counts_and_traces_every_change_and_sync(self) -> None:
        disk = FakeDisk()
        work(disk)
        assert disk.trace == WORK
        assert disk.call_count == len(WORK)
        assert not disk.stopped

    @pytest.mark.parametrize("stop", range(len(WORK)))
    def test_stop_after_executes_the_call_and_refuses_the_next(self, stop: int) -> None:
        disk = FakeDisk(stop_after=stop)
        with pytest.raises(PowerCut):
            work(disk)
        assert disk.trace == WORK[:stop]
        assert disk.stopped

    @pytest.mark.parametrize("stop", range(1, len(WORK) + 1))
    def test_stop_before_refuses_the_call(self, stop: int) -> None:
        disk = FakeDisk(stop_before=stop)
        with pytest.raises(PowerCut, match=f"after call {stop - 1}; no {WORK[stop - 1][0]} of "):
            work(disk)
        assert disk.trace == WORK[: stop - 1]
        assert disk.stopped

    def test_a_stop_beyond_the_end_is_never_met(self) -> None:
        for disk in (FakeDisk(stop_after=len(WORK) + 1), FakeDisk(stop_before=len(WORK) + 1)):
            work(disk)
            assert not disk.stopped

    def test_the_call_stopped_after_has_its_effect_and_the_one_stopped_before_has_none(self, disk: FakeDisk) -> None:
        disk.stop_after = disk.call_count + 1
        disk.open("/d/f", write=True).write_at(0, b"D")
        assert content(disk.crash(Survival.EVERYTHING), "/d/f") == b"Durable"

        disk = FakeDisk()
        disk.stop_before = 2
        file = disk.open("/f", create=True)
        with pytest.raises(PowerCut):
            file.write_at(0, b"x")
        assert content(disk.crash(Survival.EVERYTHING), "/f") == b""

    def test_everything_raises_once_the_machine_has_stopped(self, disk: FakeDisk) -> None:
        file = disk.open("/d/f", write=True)
        lock = disk.lock("/lock", "me")
        disk.stop_before = disk.call_count + 1
        with pytest.raises(PowerCut):
            file.sync()
        assert_dead(disk, file, lock)

    def test_a_crashed_disk_is_dead(self, disk: FakeDisk) -> None:
        file = disk.open("/d/f", write=True)
        lock = disk.lock("/lock", "me")
        after = disk.crash(Survival.EVERYTHING)
        assert_dead(disk, file, lock)
        for call in (disk.clone, lambda: disk.crash(Survival.NOTHING)):
            with pytest.raises(PowerCut, match="clones"):
                call()
        assert content(after, "/d/f") == b"durable"

    def test_no_handler_for_errors_catches_a_power_cut(self) -> None:
        assert not issubclass(PowerCut, Exception)


def assert_dead(disk: FakeDisk, file: object, lock: object) -> None:
    calls: list[tuple[object, str, tuple[object, ...]]] = [
        (disk, "open", ("/d/f",)),
        (disk, "rename", ("/d/f", "/d/g")),
        (disk, "remove", ("/d/f",)),
        (disk, "remove_dir", ("/d",)),
        (disk, "list_dir", ("/d",)),
        (disk, "make_dirs", ("/d",)),
        (disk, "sync_dir", ("/d",)),
        (disk, "exists", ("/d",)),
        (disk, "lock", ("/lock", "you")),
        (file, "read_at", (0, 1)),
        (file, "write_at", (0, b"x")),
        (file, "size", ()),
        (file, "truncate", (0,)),
        (file, "allocate", (9,)),
        (file, "sync", ()),
        (file, "map", ()),
        (file, "close", ()),
        (lock, "release", ()),
    ]
    for target, name, arguments in calls:
        with pytest.raises(PowerCut):
            getattr(target, name)(*arguments)


class TestNewDisks:
    @pytest.mark.parametrize("survive", Survival)
    def test_locks_vanish_with_the_crash(self, disk: FakeDisk, survive: Survival) -> None:
        disk.lock("/d/lock", "me")
        disk.sync_dir("/d")
        after = disk.crash(survive)
        after.lock("/d/lock", "you")

    def test_a_clone_shares_nothing(self, disk: FakeDisk) -> None:
        disk.lock("/lock", "me")
        disk.open("/d/f", write=True).write_at(0, b"D")
        twin = disk.clone()
        disk.open("/d/f", write=True).write_at(0, b"X")
        disk.open("/d/f").sync()
        disk.remove("/d/f")
        assert content(twin, "/d/f") == b"Durable"
        twin.open("/d/g", create=True)
        assert names(disk) == ""
        twin.lock("/lock", "you")
        assert content(twin.crash(Survival.NOTHING), "/d/f") == b"durable"

    def test_start_counting_anew_and_unstopped(self, disk: FakeDisk) -> None:
        disk.stop_after = disk.call_count
        with pytest.raises(PowerCut):
            disk.sync_dir("/d")
        for new in (disk.clone(), disk.crash(Survival.NOTHING)):
            assert (new.call_count, new.trace, new.stopped) == (0, [], False)
            new.sync_dir("/d")

    def test_a_preallocated_file_costs_nothing_until_written(self) -> None:
        disk = FakeDisk()
        file = disk.open("/big", create=True)
        file.allocate(1 << 60)
        file.sync()
        disk.sync_dir("/")
        after = disk.clone().crash(Survival.SCATTERED)
        assert after.open("/big").size() == 1 << 60
        assert after.open("/big").read_at(1 << 59, 3) == bytes(3)

    def test_paths_may_be_written_in_several_ways(self, disk: FakeDisk) -> None:
        assert content(disk, "d//./f") == b"durable"
        with pytest.raises(ValueError, match="does not resolve"):
            disk.exists("/d/../d/f")


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as Python can make them."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("restless")
def test_threads_do_not_lose_writes_to_each_other() -> None:
    disk = FakeDisk()
    file = disk.open("/f", create=True)
    disk.sync_dir("/")

    def write(lane: int) -> None:
        for place in range(300):
            file.write_at(place * 4 + lane, b"x")
            file.sync()

    threads = [threading.Thread(target=write, args=(lane,)) for lane in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert disk.call_count == 2 + 4 * 600
    assert content(disk.crash(Survival.NOTHING), "/f") == b"x" * 1200
