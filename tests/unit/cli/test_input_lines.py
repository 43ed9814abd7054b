"""Lines out of a pipe, however it is cut."""

import os
import threading
import time
from collections.abc import Sequence

import pytest

from topics.cli import output
from topics.cli.failures import CommandError
from topics.cli.output import read_lines


def read(*chunks: bytes, pause_s: float = 0.0) -> list[tuple[int, bytes]]:
    out, into = os.pipe()

    def write(chunks: Sequence[bytes]) -> None:
        try:
            for chunk in chunks:
                left = memoryview(chunk)
                while left:
                    left = left[os.write(into, left) :]
                time.sleep(pause_s)
        except BrokenPipeError:
            pass  # The reader closed the pipe.
        finally:
            os.close(into)

    writer = threading.Thread(target=write, args=(chunks,))
    writer.start()
    try:
        return [line for found in read_lines(out) for line in found]
    finally:
        os.close(out)
        writer.join()


def test_lines_are_numbered_wherever_a_pipe_cuts_them() -> None:
    text = (b"a\n", b"b", b"c", b"\n\n \nd", b"\ne")
    expected = [(1, b"a"), (2, b"bc"), (5, b"d"), (6, b"e")]
    assert read(*text, pause_s=0.02) == expected
    assert read(b"".join(text)) == expected
    assert read() == []


def test_a_long_line_takes_time_by_its_length_and_not_by_its_square() -> None:
    began = time.monotonic()
    assert [len(line) for _, line in read(b"x" * 60_000_000, b"\ny")] == [60_000_000, 1]
    assert time.monotonic() - began < 15


def test_a_line_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_LINE_BYTES_MAX", 1_000_000)
    with pytest.raises(CommandError, match="line 2 is longer"):
        read(b"1\n", b"x" * 20_000_000)
