"""The command line up to the point where a command starts to work."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from topics import __version__, server
from topics.cli import main
from topics.model.errors import FolderBusyError, TopicsError
from topics.model.settings import SETTINGS, Settings


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that the server was run with."""
    runs: list[Settings] = []

    monkeypatch.setattr(server, "run", lambda settings, on_ready: runs.append(settings))
    for setting in SETTINGS:
        monkeypatch.delenv(setting.env, raising=False)
    return runs


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"topics {__version__}\n"


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert "serve" in listed
    assert "version" in listed


def test_serve_without_flags_is_the_environment(served: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_PORT", "0")
    assert main(["serve"]) == 0
    assert served == [Settings(port=0)]


def test_every_setting_has_a_flag(served: list[Settings]) -> None:
    for setting in SETTINGS:
        given: int | str = (
            setting.maximum or max(10**6, setting.minimum or 0)
            if setting.kind == "integer"
            else [*setting.choices, "text"][0]
        )
        if setting.choices == ("0", "1", "false", "true"):
            for flag, value in ((setting.flag, "1"), (setting.flag.replace("--", "--no-", 1), "0")):
                assert main(["serve", flag]) == 0
                assert getattr(served[-1], setting.name) == value
            continue
        assert main(["serve", setting.flag, str(given)]) == 0
        assert getattr(served[-1], setting.name) == given


def test_serve_help_prints_the_default_of_each_switch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    words = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    for setting in SETTINGS:
        if setting.choices == ("0", "1", "false", "true"):
            shown = {"0": "off", "1": "on"}[str(setting.default)]
            assert f"({setting.env}) [default: {shown}]" in words, setting.name


def test_a_flag_beats_the_environment(served: list[Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOPICS_DATA_DIR", "elsewhere")
    monkeypatch.setenv("TOPICS_HOST", "localhost:1")
    assert main(["serve", "--data-dir", str(tmp_path), "--port", "2"]) == 0
    assert served == [Settings(data_dir=str(tmp_path), host="localhost", port=2)]


def test_serve_explains_every_setting() -> None:
    # Wide enough that no flag is broken in two. A separate process: the width is looked up once.
    environment = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, "-m", "topics", "serve", "--help"]
    explained = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
    for setting in SETTINGS:
        assert setting.flag in explained
        assert f"({setting.env})" in explained
    assert "[choices: memory, disk, fsync, remote] [default: fsync]" in explained
    assert "[default: 4000]" in explained
    assert "--archive --no-archive" in explained


@pytest.mark.parametrize(
    "arguments",
    [["serve", "--no-such-flag", "1"], ["serve", "--port", "x"], ["serve", "--port", "-1"], ["no-such-command"]],
)
def test_a_wrong_command_line_exits_with_2(
    served: list[Settings], capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == 2
    assert served == []
    assert capsys.readouterr().err


def test_a_wrong_variable_exits_with_2_and_states_which(
    served: list[Settings], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_WAL_FILE_BYTES", "64MiB")
    assert main(["serve"]) == 2
    assert served == []
    assert "TOPICS_WAL_FILE_BYTES is '64MiB'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "code"),
    [(FolderBusyError("folder"), 3), (TopicsError("the log is broken"), 1), (PermissionError("no access"), 1)],
)
def test_operator_errors_have_a_message_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: Exception, code: int
) -> None:
    def fail(settings: Settings, on_ready: object) -> None:
        raise failure

    monkeypatch.setattr(server, "run", fail)
    assert main(["serve"]) == code
    assert capsys.readouterr().err == f"topics: {failure}\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(settings: Settings, on_ready: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(server, "run", fail)
    with pytest.raises(KeyError, match="a bug"):
        main(["serve"])
