"""The command line as it is used: its own process, with pipes or with its own terminal."""

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

# Only to fail instead of hanging: no test looks at how long anything took.
PATIENCE_S = 60.0
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[()][A-Z0-9]|[=>78])")
# A terminal sends Ctrl-C to the processes that it controls, so the new session has to take it first.
_TAKE = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class Done(NamedTuple):
    code: int
    out: str
    err: str


def environment(folder: Path, url: str | None = None, **more: str) -> dict[str, str]:
    """The environment of a user with only the address set: the tests' variables and contexts are left out."""
    own = ("TOPICS_", "NO_COLOR", "XDG_", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    given = {} if url is None else {"TOPICS_URL": url}
    return {**kept, "HOME": str(folder), "TERM": "xterm", "TZ": "UTC", **given, **more}


def run(*arguments: str, env: Mapping[str, str], stdin: bytes = b"", cwd: Path | None = None) -> Done:
    """One command to its end, with pipes."""
    done = subprocess.run(
        [sys.executable, "-m", "topics", *arguments],
        input=stdin, env=dict(env), cwd=cwd, capture_output=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


class Terminal:
    """A command on a terminal of 100 columns. Leaving the `with` block ends it, if it still runs."""

    def __init__(self, *arguments: str, env: Mapping[str, str], cwd: Path | None = None) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE, sys.executable, "-m", "topics", *arguments],
            stdin=slave, stdout=slave, stderr=slave, env=dict(env), cwd=cwd, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.seen = ""

    def expect(self, text: str) -> str:
        """Waits until this is on the screen, colours aside; all there is by then."""
        give_up = time.monotonic() + PATIENCE_S
        while text not in self.plain:
            assert self._more(give_up), f"{text!r} did not come:\n{self.plain}"
        return self.plain

    @property
    def plain(self) -> str:
        return _ESCAPES.sub("", self.seen).replace("\r\n", "\n")

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def end(self) -> int:
        """Waits for the end; the exit code."""
        give_up = time.monotonic() + PATIENCE_S
        while self._more(give_up):
            pass
        return self.process.wait(PATIENCE_S)

    def _more(self, give_up: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(give_up - time.monotonic(), 0))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # The other end is closed.
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        os.close(self._master)
