"""Lines are written by their own thread, and what cannot be kept is counted."""

import os
from pathlib import Path

import pytest

from topics.api import request_logs
from topics.api.request_logs import LineFile


def lost(count: int) -> bytes:
    return b"lost %d\n" % count


def test_lines_come_in_their_order_and_all_of_them_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = LineFile(str(path), lost)
    for number in range(5_000):
        lines.add(b"%d\n" % number)
    lines.close()
    assert path.read_bytes() == b"".join(b"%d\n" % number for number in range(5_000))


def test_excess_lines_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe without a reader stands for a disk that does not answer."""
    monkeypatch.setattr(request_logs, "WAITING_MAX", 10)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    lines = LineFile(str(pipe), lost)
    for _ in range(100_000):
        lines.add(b"x" * 999 + b"\n")
    os.set_blocking(reader, True)
    read = bytearray()
    while b"lost" not in read:
        read += os.read(reader, 1 << 20)
        lines.add(b"y\n")
    os.close(reader)
    kept = read.count(b"x" * 999)
    assert 10 <= kept < 100_000


def test_a_file_that_cannot_be_opened_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        LineFile(str(tmp_path / "no" / "file"), lost)
