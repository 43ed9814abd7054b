"""Runs a guide of docs/guides as its reader would: saves its files, then runs its commands and compares their output.

- A block of code whose first line is a comment with a file name is a file, saved in the working folder.
- A `console` block has commands after `$ ` and their output; `…` stands for any text. A command that ends in `&` runs
  in the background until the guide ends, and its output is awaited.
- A `sh` block has commands without output, which must succeed.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from tests.cli.terminal import PATIENCE_S, environment
from tests.conformance.node import require_node
from tests.unit.docs.pages import read

SHOWN_URL = "http://127.0.0.1:4000"
_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"^(?:#|//|<!--) (?P<name>[\w.-]+\.\w+)(?: -->)?$")
# The packages come from the folder that the conformance tests installed.
_INSTALLS = re.compile(r"^npm install ")


class Block(NamedTuple):
    language: str
    code: str


def fenced(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    return [Block(match["language"], match["code"]) for match in _FENCE.finditer(read(page))]


def file_name(block: Block) -> str | None:
    """The name of the file that a block is, or None."""
    found = _FILE.match(block.code.partition("\n")[0])
    return found["name"] if found else None


def commands(code: str) -> Iterator[tuple[str, str]]:
    """Each command of a `console` block with its output."""
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        while command.endswith("\\"):
            more, _, output = output.partition("\n")
            command = f"{command[:-1]}{more}"
        yield command, output


def fits(expected: str, seen: str) -> bool:
    """Whether the output is the expected one, where … stands for any text. The last line may lack its end."""
    pattern = ".*".join(map(re.escape, expected.removesuffix("\n").split("…")))
    return re.fullmatch(pattern, seen.removesuffix("\n"), re.DOTALL) is not None


class Guide:
    """A reader at work: a folder, a shell with `topics` and `python` in it, and a server's address."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder / "reader"
        self._url = url
        self._background: list[subprocess.Popen[bytes]] = []
        self.before: dict[str, Callable[[], None]] = {}
        """The conditions that the reader waits for before a command."""
        self.python_paths: dict[str, str] = {}
        """Additional packages of a command."""
        self.skipped: set[str] = set()
        """Commands that a test does in another way."""
        programs = self.folder / "bin"
        programs.mkdir(parents=True)
        for name, words in (("topics", "-m topics"), ("python", "")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
            program.chmod(0o755)
        self._env = environment(self.folder, url)
        self._env["PATH"] = f"{programs}:{self._env['PATH']}"
        self._env["PYTHONUNBUFFERED"] = "1"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._background:
            process.kill()
            process.wait()

    def follow(self, page: str) -> int:
        """Does everything that a page shows, in order; the number of commands."""
        done = 0
        for block in fenced(page):
            name = file_name(block)
            if name is not None:
                (self.folder / name).write_text(block.code.replace(SHOWN_URL, self._url), encoding="utf-8")
            elif block.language == "console":
                for command, output in commands(block.code):
                    self._run(command, output)
                    done += 1
            elif block.language == "sh":
                self._run(block.code, None)
                done += 1
        return done

    def _run(self, command: str, output: str | None) -> None:
        if command.strip() in self.skipped:
            return
        if command in self.before:
            self.before[command]()
        if _INSTALLS.match(command):
            self._link_packages()
            return
        if command in self.python_paths:
            command = f"PYTHONPATH={self.python_paths[command]} {command}"
        command = command.replace(SHOWN_URL, self._url)
        if command.endswith("&"):
            self._start(command.rstrip("& "), output or "")
            return
        done = subprocess.run(
            ["bash", "-c", command],
            env=self._env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, check=False, timeout=PATIENCE_S, text=True,
        )  # fmt: skip
        if output is None:
            assert done.returncode == 0, (command, done.stdout)
        else:
            shown = done.stdout.replace(self._url, SHOWN_URL)
            assert fits(output, shown), f"{command}\n{shown}"

    def _start(self, command: str, output: str) -> None:
        seen = self.folder / f"output-{len(self._background)}"
        with seen.open("wb") as sink:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                env=self._env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._background.append(process)
        give_up = time.monotonic() + PATIENCE_S
        while not fits(f"{output.rstrip()}…", seen.read_text()):
            assert time.monotonic() < give_up and process.poll() is None, f"{command}\n{seen.read_text()}"
            time.sleep(0.01)

    def _link_packages(self) -> None:
        packages = self.folder / "node_modules"
        if not packages.exists():
            packages.symlink_to(require_node() / "node_modules")
