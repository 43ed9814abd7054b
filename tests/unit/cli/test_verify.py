"""`topics verify` from the outside: exit codes, tables and JSON."""

from pathlib import Path

import msgspec
import pytest

from topics.cli import main
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.posix import PosixFileSystem
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.ops.verify.verification import Report
from topics.testing import ManualClock, SeededEntropy


def expect(answer: object) -> None:
    assert not isinstance(answer, TopicsError), answer


def open_folder(path: Path) -> Engine:
    options = EngineOptions(data_dir=str(path), wal_shards=1, wal_file_bytes=65536, segment_max_events=4)
    return Engine.recover(PosixFileSystem(), options, ManualClock(), SeededEntropy(1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder after a clean stop: a topic with a sealed segment and a tail."""
    data = tmp_path / "data"
    engine = open_folder(data)
    engine.put_topic("orders", TopicConfigPatch(durability=Durability.FSYNC), expect)
    for number in range(6):
        engine.append("orders", Batch(records=[Record.of({"number": number})]), expect)
    engine.close_inline()
    return data


def damage(folder: Path, pattern: str, offset: int) -> Path:
    (path,) = folder.glob(pattern)
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)
    return path


def test_a_sound_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["verify", str(folder)]) == 0
    shown = capsys.readouterr()
    assert "1 topic, 1 segment, 6 records" in shown.out
    assert shown.out.endswith("checked: sound\n")
    assert not shown.err
    before[folder / ".topics.lock"] = b"topics verify"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_damage_is_shown_with_its_place(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damage(folder, "topics/*/*.data", 90)
    assert main(["verify", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert path.name in shown
    assert "orders" in shown
    assert "1–4" in shown
    assert "1 problem" in shown
    assert "topics repair" in shown


def test_notes_are_no_damage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "README[bold].txt").write_text(":smile:")
    assert main(["verify", str(folder)]) == 0
    assert "README[bold].txt" in capsys.readouterr().out


@pytest.mark.parametrize("sound", [True, False])
def test_a_report_for_programs(folder: Path, capsys: pytest.CaptureFixture[str], sound: bool) -> None:
    if not sound:
        damage(folder, "topics/*/*.idx", 50)
    assert main(["verify", str(folder), "--json"]) == (0 if sound else 1)
    report = msgspec.json.decode(capsys.readouterr().out, type=Report)
    assert report.sound is sound
    assert report.folder == str(folder)
    assert [finding.topic for finding in report.findings] == ([] if sound else ["orders"])


def test_a_folder_in_use(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = open_folder(folder)
    assert main(["verify", str(folder)]) == 3
    assert "in use by a running topics server" in capsys.readouterr().err
    engine.close_inline()
    assert main(["verify", f"{folder}/"]) == 0


@pytest.mark.parametrize("arguments", [[], ["elsewhere"], ["--no-such-flag"]])
def test_verify_refuses_a_folder_without_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["verify", *(str(tmp_path / a) if not a.startswith("-") else a for a in arguments)]) == 2
    assert capsys.readouterr().err


def test_an_empty_folder_is_no_data_folder_and_stays_empty(tmp_path: Path) -> None:
    assert main(["verify", str(tmp_path)]) == 2
    assert not list(tmp_path.iterdir())


def test_the_cold_folder_is_an_option_or_a_variable(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = tmp_path / "cold"
    options = EngineOptions(
        data_dir=str(folder), cold_dir=str(cold), wal_shards=1, hot_retain_segments=0, segment_max_events=4
    )
    engine = Engine.recover(PosixFileSystem(), options, ManualClock(), SeededEntropy(1))
    engine.run_job(engine.housekeeper.relocate(engine.core.directory.load("orders")))
    engine.close_inline()
    monkeypatch.delenv("TOPICS_COLD_DIR", raising=False)
    assert main(["verify", str(folder)]) == 2
    assert "--cold-dir" in capsys.readouterr().err
    assert main(["verify", str(folder), "--cold-dir", str(cold)]) == 0
    monkeypatch.setenv("TOPICS_COLD_DIR", str(cold))
    assert main(["verify", str(folder)]) == 0
