"""Asynchronous line writer for the audit log: a thread appends lines to a file, so that callers neither wait nor fail.

The buffer is bounded. Lines beyond it are dropped, and the next written line has their number.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

WAITING_MAX = 10_000
_MODE = 0o600
_RETRY_S = 1.0
_END_S = 5.0

_logger = logging.getLogger(__name__)


class LineFile:
    """Appends lines to a file. Call `reopen` after log rotation."""

    def __init__(self, path: str, lost: Callable[[int], bytes]) -> None:
        """`lost` formats the line with the number of dropped lines. Raises `OSError` if the file cannot be opened."""
        self._path = path
        self._lost_line = lost
        self._fd = self._open()
        self._waiting: deque[bytes] = deque()
        self._lost = 0
        self._failing = False
        self._again = self._over = False
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topics-audit", daemon=True)
        self._thread.start()

    def add(self, line: bytes) -> None:
        """Adds a line, which ends with its line end."""
        if len(self._waiting) >= WAITING_MAX:
            self._lost += 1
        else:
            self._waiting.append(line)
        self._news.set()

    def reopen(self) -> None:
        """Opens the path again, after the file was renamed."""
        self._again = True
        self._news.set()

    def close(self) -> None:
        """Writes the buffered lines within a time limit, and closes the file."""
        self._over = True
        self._news.set()
        self._thread.join(_END_S)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)

    def _run(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            over = self._over
            try:
                self._catch_up()
            except OSError as error:
                self._fail(error)
                if not over:
                    time.sleep(_RETRY_S)
                    self._news.set()
            else:
                self._failing = False
            if over:
                os.close(self._fd)
                return

    def _catch_up(self) -> None:
        if self._again:
            self._again = False
            new = self._open()
            os.close(self._fd)
            self._fd = new
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(len(self._waiting), 1_000))]
            lost, self._lost = self._lost, 0
            if lost:
                some.append(self._lost_line(lost))
            try:
                self._write(b"".join(some))
            except OSError:
                self._lost += lost + len(some) - bool(lost)
                raise

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]

    def _fail(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            _logger.error("the audit log cannot be written", extra={"path": self._path, "error": str(error)})


def write_whole(path: str, text: str) -> None:
    """Writes a file atomically: a reader sees all of it or none."""
    # The process id keeps two servers with the same target from writing into one temporary file.
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
