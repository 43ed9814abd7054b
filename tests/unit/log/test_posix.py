"""Permissions of files on the real disk; everything else is in the contract of file systems."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from topics.log.posix import PosixFileSystem, make_private


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def fill(root: Path) -> list[int]:
    """The modes of a folder, a file in it and a lock, all made below the root."""
    fs = PosixFileSystem()
    fs.make_dirs(str(root / "a" / "b"))
    fs.open(str(root / "a" / "b" / "file"), create=True).close()
    fs.lock(str(root / "lock"), "me").release()
    return [mode(root / name) for name in ("a", "a/b", "a/b/file", "lock")]


def test_below_a_private_folder_everything_is_private(tmp_path: Path) -> None:
    make_private(str(tmp_path / "data"))
    assert mode(tmp_path / "data") == 0o700
    assert fill(tmp_path / "data") == [0o700, 0o700, 0o600, 0o600]


def test_below_a_shared_folder_the_umask_decides(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert fill(tmp_path / "data") == [0o755, 0o755, 0o644, 0o644]


def test_a_folder_that_others_could_read_becomes_private_and_nothing_else_changes(tmp_path: Path) -> None:
    (tmp_path / "data" / "meta").mkdir(parents=True)
    make_private(str(tmp_path / "data"))
    make_private(str(tmp_path / "data"))
    assert (mode(tmp_path / "data"), mode(tmp_path / "data" / "meta")) == (0o700, 0o755)


def test_a_group_may_be_let_in(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o750)
    assert fill(tmp_path / "data") == [0o750, 0o750, 0o640, 0o640]
