"""The contract of file systems, checked on the real one and on the fakes alike; then the hazards of the real one."""

import errno
import fcntl
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from topics.log.fs import File, FileSystem
from topics.log.posix import PosixFileSystem
from topics.testing import FakeDisk, FaultyFileSystem

KINDS: dict[str, Callable[[], FileSystem]] = {
    "posix": PosixFileSystem,
    "fake": FakeDisk,
    "faulty": lambda: FaultyFileSystem(FakeDisk()),
}


@pytest.fixture(params=KINDS)
def fs(request: pytest.FixtureRequest) -> FileSystem:
    return KINDS[request.param]()


@pytest.fixture
def base(fs: FileSystem, tmp_path: Path) -> str:
    """A folder to work in. It is made on the fakes too, which know nothing of the real path."""
    fs.make_dirs(str(tmp_path))
    return str(tmp_path)


@pytest.fixture
def file(fs: FileSystem, base: str) -> File:
    return fs.open(f"{base}/file", create=True)


def content(fs: FileSystem, path: str) -> bytes:
    file = fs.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def fill(fs: FileSystem, path: str, data: bytes) -> None:
    file = fs.open(path, create=True)
    file.write_at(0, data)
    file.close()


class TestFile:
    def test_a_new_file_is_empty(self, file: File) -> None:
        assert file.size() == 0
        assert file.read_at(0, 10) == b""

    def test_reads_what_was_written_where_it_was_written(self, file: File) -> None:
        file.write_at(0, b"0123456789")
        file.write_at(3, b"abc")
        assert file.read_at(0, 100) == b"012abc6789"
        assert file.read_at(4, 3) == b"bc6"

    @pytest.mark.parametrize("length", [0, 10, 4096, 65_536, 100_001, 5_000_000])
    def test_a_file_written_whole_is_exactly_that(self, fs: FileSystem, base: str, file: File, length: int) -> None:
        file.write_at(0, b"x" * 200_000)
        data = Random(length).randbytes(length)
        file.write_whole([data[:7], memoryview(data)[7:70_000], b"", bytearray(data[70_000:])])
        assert content(fs, f"{base}/file") == data
        file.write_at(0, b"")
        file.write_at(length, b"more")
        assert content(fs, f"{base}/file") == data + b"more"

    @pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 70_001])
    @pytest.mark.parametrize("length", [1024 * 1024 - 1, 1024 * 1024, 1024 * 1024 + 4097, 5 * 1024 * 1024 + 3])
    def test_a_long_write_changes_its_bytes_and_no_others(self, file: File, offset: int, length: int) -> None:
        around = bytes([7]) * (offset + length + 9000)
        file.write_at(0, around)
        file.sync()
        data = Random(length).randbytes(length)
        file.write_at(offset, memoryview(data).cast("H") if length % 2 == 0 else data)
        assert file.size() == len(around)
        assert file.read_at(0, len(around)) == around[:offset] + data + around[offset + length :]

    def test_reads_less_only_at_the_end(self, file: File) -> None:
        file.write_at(0, b"0123")
        assert file.read_at(2, 10) == b"23"
        assert file.read_at(4, 10) == b""
        assert file.read_at(400, 10) == b""
        assert file.read_at(1, 0) == b""

    @pytest.mark.parametrize("data", [b"abc", bytearray(b"abc"), memoryview(b"xabcx")[1:4], memoryview(b"abc")])
    def test_takes_all_kinds_of_bytes(self, file: File, data: bytes | bytearray | memoryview) -> None:
        file.write_at(1, data)
        assert file.read_at(0, 10) == b"\0abc"

    def test_counts_wide_items_in_bytes(self, file: File) -> None:
        file.write_at(0, memoryview(b"abcdefgh").cast("I"))
        assert file.read_at(0, 100) == b"abcdefgh"

    def test_a_caller_may_reuse_its_buffer(self, file: File) -> None:
        buffer = bytearray(b"first")
        file.write_at(0, buffer)
        buffer[:] = b"later"
        buffer.extend(b"!")  # Would raise if a view of the buffer had been kept.
        assert file.read_at(0, 10) == b"first"

    def test_a_write_beyond_the_end_leaves_zeros_between(self, file: File) -> None:
        file.write_at(0, b"ab")
        file.write_at(5, b"c")
        assert file.read_at(0, 10) == b"ab\0\0\0c"

    def test_an_empty_write_changes_nothing(self, file: File) -> None:
        file.write_at(100, b"")
        assert file.size() == 0

    def test_truncate_cuts_and_grows(self, file: File) -> None:
        file.write_at(0, b"secret")
        file.truncate(2)
        assert file.read_at(0, 10) == b"se"
        file.truncate(6)
        assert file.read_at(0, 10) == b"se\0\0\0\0"

    def test_allocate_grows_with_zeros_and_never_shrinks(self, file: File) -> None:
        file.write_at(0, b"ab")
        file.allocate(70_000)
        assert file.size() == 70_000
        assert file.read_at(0, 70_000) == b"ab" + bytes(69_998)
        file.allocate(10)
        file.allocate(0)
        assert file.size() == 70_000

    def test_bytes_cut_off_do_not_come_back(self, file: File) -> None:
        file.write_at(0, b"secret")
        file.truncate(0)
        file.allocate(6)
        assert file.read_at(0, 10) == bytes(6)
        file.write_at(3, b"x")
        assert file.read_at(0, 10) == b"\0\0\0x\0\0"

    def test_sync_changes_nothing_that_is_seen(self, file: File) -> None:
        file.sync()
        file.write_at(0, b"ab")
        file.sync()
        file.sync()
        assert file.read_at(0, 10) == b"ab"

    def test_two_openings_see_one_file(self, fs: FileSystem, base: str, file: File) -> None:
        other = fs.open(f"{base}/file", write=True)
        file.write_at(0, b"ab")
        assert other.read_at(0, 10) == b"ab"
        other.truncate(1)
        assert file.size() == 1

    def test_negative_positions_are_refused(self, file: File) -> None:
        calls: list[Callable[[], object]] = [
            lambda: file.read_at(-1, 1),
            lambda: file.write_at(-1, b"a"),
            lambda: file.truncate(-1),
            lambda: file.allocate(-1),
        ]
        for call in calls:
            with pytest.raises(OSError):
                call()

    def test_a_file_opened_for_reading_refuses_changes(self, fs: FileSystem, base: str) -> None:
        fill(fs, f"{base}/file", b"ab")
        file = fs.open(f"{base}/file")
        calls: list[Callable[[], object]] = [
            lambda: file.write_at(0, b"x"),
            lambda: file.truncate(0),
            lambda: file.allocate(9),
        ]
        for call in calls:
            with pytest.raises(OSError):
                call()
        file.sync()
        assert file.read_at(0, 10) == b"ab"

    def test_a_closed_file_refuses_everything_but_closing(self, file: File) -> None:
        file.close()
        file.close()
        calls: list[Callable[[], object]] = [
            lambda: file.read_at(0, 1),
            lambda: file.write_at(0, b"x"),
            lambda: file.truncate(0),
            lambda: file.allocate(9),
            file.size,
            file.sync,
            file.map,
        ]
        for call in calls:
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno == errno.EBADF


class TestMap:
    def test_shows_the_whole_file(self, file: File) -> None:
        file.allocate(10_000)
        file.write_at(0, b"abc")
        view = file.map()
        assert len(view) == 10_000
        assert view.format == "B"
        assert bytes(view) == b"abc" + bytes(9_997)

    def test_is_read_only(self, file: File) -> None:
        file.write_at(0, b"abc")
        view = file.map()
        assert view.readonly
        with pytest.raises(TypeError):
            view[0] = 1

    def test_of_an_empty_file_is_empty(self, file: File) -> None:
        assert bytes(file.map()) == b""

    def test_outlives_the_file(self, fs: FileSystem, base: str, file: File) -> None:
        file.write_at(0, b"abc")
        view = file.map()
        file.close()
        fs.remove(f"{base}/file")
        assert bytes(view[1:]) == b"bc"

    def test_does_not_hinder_later_changes(self, file: File) -> None:
        file.write_at(0, b"abc")
        view = file.map()
        file.write_at(1, b"X")
        file.write_at(3, b"def")
        file.allocate(100)
        assert len(view) == 3
        assert bytes(view[:1]) == b"a"
        assert file.read_at(0, 6) == b"aXcdef"
        view.release()
        file.truncate(2)
        assert file.read_at(0, 6) == b"aX"

    def test_works_on_a_file_opened_for_reading(self, fs: FileSystem, base: str, file: File) -> None:
        file.write_at(0, b"abc")
        assert bytes(fs.open(f"{base}/file").map()) == b"abc"


class TestNames:
    def test_create_keeps_what_is_there(self, fs: FileSystem, base: str) -> None:
        fill(fs, f"{base}/a", b"old")
        file = fs.open(f"{base}/a", create=True)
        assert file.read_at(0, 10) == b"old"
        file.write_at(0, b"new")
        assert content(fs, f"{base}/a") == b"new"

    def test_missing_paths(self, fs: FileSystem, base: str) -> None:
        for call in (
            lambda: fs.open(f"{base}/no"),
            lambda: fs.open(f"{base}/no", write=True),
            lambda: fs.open(f"{base}/no/file", create=True),
            lambda: fs.rename(f"{base}/no", f"{base}/other"),
            lambda: fs.remove(f"{base}/no"),
            lambda: fs.remove_dir(f"{base}/no"),
            lambda: fs.list_dir(f"{base}/no"),
            lambda: fs.sync_dir(f"{base}/no"),
            lambda: fs.lock(f"{base}/no/lock", "me"),
        ):
            with pytest.raises(FileNotFoundError):
                call()
        assert fs.list_dir(base) == []

    def test_files_are_not_folders(self, fs: FileSystem, base: str) -> None:
        fill(fs, f"{base}/a", b"")
        for call in (
            lambda: fs.open(f"{base}/a/file", create=True),
            lambda: fs.list_dir(f"{base}/a"),
            lambda: fs.sync_dir(f"{base}/a"),
            lambda: fs.remove_dir(f"{base}/a"),
        ):
            with pytest.raises(NotADirectoryError):
                call()

    def test_folders_are_not_files(self, fs: FileSystem, base: str) -> None:
        fs.make_dirs(f"{base}/d")
        for call in (
            lambda: fs.open(f"{base}/d"),
            lambda: fs.open(f"{base}/d", write=True),
            lambda: fs.open(f"{base}/d", create=True),
            lambda: fs.remove(f"{base}/d"),
        ):
            with pytest.raises(IsADirectoryError):
                call()

    def test_exists(self, fs: FileSystem, base: str) -> None:
        fill(fs, f"{base}/a", b"")
        assert fs.exists(base)
        assert fs.exists(f"{base}/a")
        assert not fs.exists(f"{base}/b")
        assert not fs.exists(f"{base}/b/c")
        assert not fs.exists(f"{base}/a/c")

    def test_list_dir_is_sorted(self, fs: FileSystem, base: str) -> None:
        for name in ("b", "a", "10", "9", "B"):
            fill(fs, f"{base}/{name}", b"")
        fs.make_dirs(f"{base}/aa/inner")
        assert fs.list_dir(base) == ["10", "9", "B", "a", "aa", "b"]

    def test_remove(self, fs: FileSystem, base: str) -> None:
        fill(fs, f"{base}/a", b"ab")
        file = fs.open(f"{base}/a", write=True)
        fs.remove(f"{base}/a")
        assert not fs.exists(f"{base}/a")
        file.write_at(2, b"c")
        assert file.read_at(0, 10) == b"abc"
        fill(fs, f"{base}/a", b"new")
        assert file.read_at(0, 10) == b"abc"

    def test_remove_dir_takes_empty_folders_only(self, fs: FileSystem, base: str) -> None:
        fs.make_dirs(f"{base}/d")
        fill(fs, f"{base}/d/a", b"")
        with pytest.raises(OSError) as caught:
            fs.remove_dir(f"{base}/d")
        assert caught.value.errno == errno.ENOTEMPTY
        fs.remove(f"{base}/d/a")
        fs.remove_dir(f"{base}/d")
        assert not fs.exists(f"{base}/d")

    def test_make_dirs(self, fs: FileSystem, base: str) -> None:
        fs.make_dirs(f"{base}/d/e/f")
        fs.make_dirs(f"{base}/d/e/f")
        fs.make_dirs(f"{base}/d/g/")
        assert fs.list_dir(f"{base}/d") == ["e", "g"]
        assert fs.list_dir(f"{base}/d/e") == ["f"]

    def test_make_dirs_does_not_replace_files(self, fs: FileSystem, base: str) -> None:
        fill(fs, f"{base}/a", b"ab")
        for path in (f"{base}/a", f"{base}/a/b"):
            with pytest.raises(FileExistsError):
                fs.make_dirs(path)
        assert content(fs, f"{base}/a") == b"ab"

    def test_sync_dir_changes_nothing_that_is_seen(self, fs: FileSystem, base: str) -> None:
        fill(fs, f"{base}/a", b"ab")
        fs.sync_dir(base)
        fs.sync_dir(base)
        assert content(fs, f"{base}/a") == b"ab"


class TestRename:
    def test_moves_and_replaces_files(self, fs: FileSystem, base: str) -> None:
        fill(fs, f"{base}/a", b"new")
        fill(fs, f"{base}/b", b"old")
        old = fs.open(f"{base}/b")
        fs.rename(f"{base}/a", f"{base}/b")
        assert fs.list_dir(base) == ["b"]
        assert content(fs, f"{base}/b") == b"new"
        assert old.read_at(0, 10) == b"old"

    def test_an_open_file_follows(self, fs: FileSystem, base: str, file: File) -> None:
        fs.rename(f"{base}/file", f"{base}/moved")
        file.write_at(0, b"ab")
        assert content(fs, f"{base}/moved") == b"ab"

    def test_moves_between_folders(self, fs: FileSystem, base: str) -> None:
        fs.make_dirs(f"{base}/d/e")
        fill(fs, f"{base}/d/e/a", b"ab")
        fs.rename(f"{base}/d/e", f"{base}/e")
        fs.rename(f"{base}/e/a", f"{base}/d/a")
        assert fs.list_dir(base) == ["d", "e"]
        assert fs.list_dir(f"{base}/e") == []
        assert content(fs, f"{base}/d/a") == b"ab"

    def test_onto_itself_changes_nothing(self, fs: FileSystem, base: str) -> None:
        fs.make_dirs(f"{base}/d")
        fill(fs, f"{base}/d/a", b"ab")
        fs.rename(f"{base}/d/a", f"{base}/d/a")
        fs.rename(f"{base}/d", f"{base}/d")
        assert content(fs, f"{base}/d/a") == b"ab"

    def test_a_folder_replaces_an_empty_folder_only(self, fs: FileSystem, base: str) -> None:
        fs.make_dirs(f"{base}/from/inner")
        fs.make_dirs(f"{base}/empty")
        fs.make_dirs(f"{base}/full/x")
        fill(fs, f"{base}/a", b"")
        with pytest.raises(OSError) as caught:
            fs.rename(f"{base}/from", f"{base}/full")
        assert caught.value.errno == errno.ENOTEMPTY
        with pytest.raises(NotADirectoryError):
            fs.rename(f"{base}/from", f"{base}/a")
        with pytest.raises(IsADirectoryError):
            fs.rename(f"{base}/a", f"{base}/empty")
        with pytest.raises(OSError) as caught:
            fs.rename(f"{base}/from", f"{base}/from/inner/x")
        assert caught.value.errno == errno.EINVAL
        fs.rename(f"{base}/from", f"{base}/empty")
        assert fs.list_dir(base) == ["a", "empty", "full"]
        assert fs.list_dir(f"{base}/empty") == ["inner"]


class TestLock:
    def test_leaves_its_note(self, fs: FileSystem, base: str) -> None:
        held = fs.lock(f"{base}/lock", "process 7 ü")
        assert content(fs, f"{base}/lock") == "process 7 ü".encode()
        held.release()

    def test_a_second_one_learns_who_holds_it(self, fs: FileSystem, base: str) -> None:
        held = fs.lock(f"{base}/lock", "process 7")
        with pytest.raises(BlockingIOError) as caught:
            fs.lock(f"{base}/lock", "process 8")
        assert str(caught.value) == "process 7"
        assert content(fs, f"{base}/lock") == b"process 7"
        held.release()

    def test_can_be_taken_after_release(self, fs: FileSystem, base: str) -> None:
        first = fs.lock(f"{base}/lock", "a rather long note")
        first.release()
        assert content(fs, f"{base}/lock") == b"a rather long note"
        second = fs.lock(f"{base}/lock", "short")
        first.release()  # The first owner has nothing left to give back.
        with pytest.raises(BlockingIOError, match=r"^short$"):
            fs.lock(f"{base}/lock", "x")
        second.release()

    def test_may_leave_no_note(self, fs: FileSystem, base: str) -> None:
        fs.lock(f"{base}/lock", "before").release()
        held = fs.lock(f"{base}/lock", "")
        with pytest.raises(BlockingIOError, match=r"^$"):
            fs.lock(f"{base}/lock", "x")
        held.release()

    def test_locks_of_two_files_do_not_meet(self, fs: FileSystem, base: str) -> None:
        locks = [fs.lock(f"{base}/{name}", name) for name in "ab"]
        for lock in locks:
            lock.release()


class TestPosixAlone:
    """Behaviour of a real machine only."""

    def test_short_reads_and_writes_are_continued(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pread, pwrite = os.pread, os.pwrite
        monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, min(length, 3), offset))
        monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:3], offset))
        file = PosixFileSystem().open(str(tmp_path / "a"), create=True)
        file.write_at(2, b"0123456789")
        assert (tmp_path / "a").read_bytes() == b"\0\x000123456789"
        assert file.read_at(1, 8) == b"\x000123456"
        assert file.read_at(0, 100) == b"\0\x000123456789"
        file.close()

    def test_a_write_that_gets_nowhere_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: 0)
        file = PosixFileSystem().open(str(tmp_path / "a"), create=True)
        with pytest.raises(OSError):
            file.write_at(0, b"ab")
        file.close()

    @pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL])
    def test_allocates_sparsely_where_room_cannot_be_reserved(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        _fail_to_allocate(monkeypatch, code)
        file = PosixFileSystem().open(str(tmp_path / "a"), create=True)
        file.write_at(0, b"ab")
        file.allocate(5)
        assert file.read_at(0, 10) == b"ab\0\0\0"
        file.allocate(3)
        assert file.size() == 5
        file.close()

    def test_a_full_disk_is_not_taken_for_a_poor_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _fail_to_allocate(monkeypatch, errno.ENOSPC)
        file = PosixFileSystem().open(str(tmp_path / "a"), create=True)
        with pytest.raises(OSError) as caught:
            file.allocate(5)
        assert caught.value.errno == errno.ENOSPC
        assert file.size() == 0
        file.close()

    def test_a_disk_that_cannot_be_read_does_not_look_empty(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stat(path: str) -> os.stat_result:
            raise OSError(errno.EIO, "bad sector")

        monkeypatch.setattr(os, "stat", stat)
        with pytest.raises(OSError, match="bad sector"):
            PosixFileSystem().exists(str(tmp_path))

    def test_make_dirs_syncs_every_parent_of_a_new_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        synced: list[str] = []
        fs = PosixFileSystem()
        monkeypatch.setattr(PosixFileSystem, "sync_dir", lambda self, path: synced.append(path))
        fs.make_dirs(f"{tmp_path}/d/e")
        # The first is the name of the folder that was there: a killed process may have made it without a sync.
        assert synced == [str(tmp_path.parent), str(tmp_path), f"{tmp_path}/d"]

    def test_a_parent_that_may_not_be_read_is_no_hindrance(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: PosixFileSystem, path: str) -> None:
            raise PermissionError(errno.EACCES, "not yours")

        monkeypatch.setattr(PosixFileSystem, "sync_dir", refuse)
        PosixFileSystem().make_dirs(str(tmp_path))
        with pytest.raises(PermissionError):
            PosixFileSystem().make_dirs(f"{tmp_path}/d")

    def test_the_kernel_frees_the_lock_of_a_dead_process(self, tmp_path: Path) -> None:
        path = str(tmp_path / "lock")
        source = (
            "import sys; from topics.log.posix import PosixFileSystem;"
            "lock = PosixFileSystem().lock(sys.argv[1], 'the child'); print('held', flush=True); sys.stdin.read()"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", source, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"held\n"
            with pytest.raises(BlockingIOError, match=r"^the child$"):
                PosixFileSystem().lock(path, "the parent")
            child.kill()
        lock = PosixFileSystem().lock(path, "the parent")
        assert (tmp_path / "lock").read_text() == "the parent"
        lock.release()

    def test_a_forked_child_does_not_keep_a_released_lock(self, tmp_path: Path) -> None:
        path = str(tmp_path / "lock")
        lock = PosixFileSystem().lock(path, "me")
        shared = os.dup(lock._fd)  # As a fork does it: another descriptor of the same locked opening.
        lock.release()
        PosixFileSystem().lock(path, "you").release()
        os.close(shared)

    def test_descriptors_are_given_back(self, tmp_path: Path) -> None:
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        fs = PosixFileSystem()
        file = fs.open(str(tmp_path / "a"), create=True)
        file.write_at(0, b"ab")
        view = file.map()
        file.close()
        view.release()
        fs.make_dirs(str(tmp_path / "d"))
        with pytest.raises(IsADirectoryError):
            fs.open(str(tmp_path / "d"))
        lock = fs.lock(str(tmp_path / "lock"), "me")
        with pytest.raises(BlockingIOError):
            fs.lock(str(tmp_path / "lock"), "you")
        lock.release()
        assert len(os.listdir("/proc/self/fd")) == before


def _fail_to_allocate(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def posix_fallocate(fd: int, offset: int, length: int) -> None:
        raise OSError(code, "injected")

    monkeypatch.setattr(os, "posix_fallocate", posix_fallocate)


def test_a_file_system_that_wants_its_cache_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct writes here")
        return whole(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    file = PosixFileSystem().open(str(tmp_path / "file"), create=True)
    data = Random(1).randbytes(100_000)
    file.write_whole([data])
    file.close()
    assert (tmp_path / "file").read_bytes() == data
