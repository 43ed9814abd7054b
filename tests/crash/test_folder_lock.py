"""Two writers would destroy a folder, so the second one is refused with the reason, and changes nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.posix import PosixFileSystem
from topics.model.errors import FolderBusyError
from topics.model.records import Batch, Record
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy

HANG_S = 60.0
OPEN_AND_WAIT = """
import sys
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.posix import PosixFileSystem
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
Engine.recover(PosixFileSystem(), EngineOptions(data_dir=sys.argv[1]), SystemClock(), SystemEntropy())
print("open", flush=True)
sys.stdin.read()
"""
COMMAND_LINE = "import sys; from topics.cli import main; sys.exit(main())"


def open_engine(folder: Path) -> Engine:
    options = EngineOptions(data_dir=str(folder), wal_file_bytes=1 << 16)
    return Engine.recover(PosixFileSystem(), options, SystemClock(), SystemEntropy())


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_second_engine_is_turned_away_and_changes_nothing(tmp_path: Path) -> None:
    first = open_engine(tmp_path)
    first.append("a", Batch(records=[Record.of(1)]), lambda answer: None)
    before = files(tmp_path)
    with pytest.raises(FolderBusyError, match="in use") as refusal:
        open_engine(tmp_path)
    assert refusal.value.detail["folder"] == str(tmp_path)
    assert files(tmp_path) == before
    first.append("a", Batch(records=[Record.of(2)]), lambda answer: None)
    first.close_inline()
    second = open_engine(tmp_path)
    assert second.info("a").count == 2
    second.close_inline()


def test_a_second_server_exits_with_3_and_states_why(tmp_path: Path) -> None:
    first = open_engine(tmp_path)
    before = files(tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    environment |= {"TOPICS_DATA_DIR": str(tmp_path), "TOPICS_PORT": "0"}
    second = subprocess.run(
        [sys.executable, "-c", COMMAND_LINE, "serve"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert second.returncode == 3
    assert f"topics: the data folder {tmp_path} is in use" in second.stderr
    assert "Traceback" not in second.stderr
    assert files(tmp_path) == before
    first.close_inline()


def test_a_process_that_was_killed_owns_nothing(tmp_path: Path) -> None:
    """The kernel releases the lock with the process, so a stale file needs no manual removal."""
    with subprocess.Popen(
        [sys.executable, "-c", OPEN_AND_WAIT, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        try:
            assert owner.stdout is not None and owner.stdout.readline() == b"open\n"
            with pytest.raises(FolderBusyError):
                open_engine(tmp_path)
        finally:
            owner.kill()
            owner.wait()
    open_engine(tmp_path).close_inline()
