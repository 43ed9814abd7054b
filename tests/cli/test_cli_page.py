"""The page of the command line: every command on it is run, and it names every command there is."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.terminal import PATIENCE_S, Terminal, environment
from tests.http.live import LiveServer
from tests.unit.docs.pages import blocks, read, rows
from tools.site_reference import built, commands_of
from topics.cli import app

PAGE = read("docs/cli.md")

# They do not end by themselves, and need a terminal.
_ENDLESS = ("topics serve", "topics tail orders -f", "topics top")


class Example(NamedTuple):
    command: str
    output: str


def examples(page: str) -> Iterator[Example]:
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield Example(command, output)


def fits(expected: str, seen: str) -> bool:
    """Whether it matches the page, where … stands for any text."""
    return re.fullmatch(".*".join(map(re.escape, expected.split("…"))), seen, re.DOTALL) is not None


@pytest.mark.parametrize("page", ["README.md", "docs/cli.md"])
def test_every_example_runs_and_prints_what_it_states(page: str, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "topics"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m topics "$@"\n')
    program.chmod(0o755)
    with LiveServer(tmp_path / "server") as server:
        env = environment(home, server.url, TOPICS_PORT="0", TOPICS_DATA_DIR=str(tmp_path / "another"))
        env["PATH"] = f"{home / 'bin'}:{env['PATH']}"
        for command, output in examples(read(page)):
            if command in _ENDLESS:
                with Terminal(*command.split()[1:], env=env, cwd=home) as terminal:
                    terminal.expect(output.strip("…\n").rpartition("…")[2].strip())
                    terminal.type("\x03")
                    assert terminal.end() == (0 if command == "topics serve" else 130)
                    assert fits(f"…{output.rstrip()}…", terminal.plain), (command, terminal.plain)
                continue
            done = subprocess.run(
                ["bash", "-c", command],
                env=env, cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                check=False, timeout=PATIENCE_S, text=True,
            )  # fmt: skip
            assert fits(output, done.stdout), f"{command}\n{done.stdout}"
            # A failed command prints only its error; a warning comes with data.
            failed = bool(output) and all(line.startswith("topics: ") for line in output.splitlines())
            assert (done.returncode != 0) == failed, command


COMMANDS = list(commands_of(app, "topics"))


def test_the_table_has_every_command_and_no_other() -> None:
    table = built("docs/cli.md").split("## Every command")[1]
    assert [tuple(cells) for cells in rows(table)] == [(f"`{name}`", text) for name, text in COMMANDS]
    assert len(COMMANDS) > 50 and all(text for _, text in COMMANDS)


@pytest.mark.parametrize("name", [name for name, _ in COMMANDS])
def test_every_command_is_used_on_the_page(name: str) -> None:
    used = [command for command, _ in examples(PAGE)] + re.findall(
        r"`(topics [^`]+)`", PAGE.split("## Every command")[0]
    )
    assert any(re.search(rf"\b{name}\b", command) for command in used), name


def test_the_first_run_needs_no_word_of_a_registry() -> None:
    """The package is not published: every page installs it from a checkout."""
    from tests.unit.docs.pages import PAGES

    for page in PAGES:
        assert "topics-engine" not in page.read_text(encoding="utf-8"), page
