"""`topics repair` from the outside: its output, the folder it leaves, and its exit code."""

from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.test_verify import damage, expect, open_folder
from topics.cli import main
from topics.engine.read import ReadRequest
from topics.model.records import Batch, Record
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.ops.verify.verification import Loss, RepairReport


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    engine = open_folder(data)
    engine.put_topic("orders", TopicConfigPatch(durability=Durability.FSYNC), expect)
    for number in range(6):
        engine.append("orders", Batch(records=[Record.of({"number": number})]), expect)
    engine.close_inline()
    return data


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".topics.lock"}


def test_a_sound_folder_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(folder)
    assert main(["repair", str(folder)]) == 0
    assert "no repair" in capsys.readouterr().out
    assert everything(folder) == before


def test_damage_is_mended_and_losses_are_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = damage(folder, "topics/*/*.data", 90)
    evidence = damaged.read_bytes()
    assert main(["repair", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "lost records" in shown
    assert "damaged-1" in shown
    assert shown.endswith("checked: sound\n")
    assert (folder / "damaged-1" / damaged.relative_to(folder)).read_bytes() == evidence
    assert not (folder / "repair").exists()
    assert main(["verify", str(folder)]) == 0

    engine = open_folder(folder)
    result = engine.read_now("orders", ReadRequest())
    assert result.tombstone is not None
    assert (result.tombstone.gap_to, result.tombstone.reason) == (4, LossReason.CORRUPT)
    assert [record["$seq"] for record in result.records()] == [5, 6]
    engine.close_inline()


def test_rebuildable_file_is_not_a_loss(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damage(folder, "topics/*/*.idx", 50)
    assert main(["repair", str(folder)]) == 0
    assert "No record is lost." in capsys.readouterr().out
    assert path.exists()


def test_a_dry_run_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(folder, "topics/*/*.data", 90)
    before = everything(folder)
    assert main(["repair", str(folder), "--dry-run"]) == 1
    shown = capsys.readouterr().out
    assert "would be kept" in shown
    assert "dry run" in shown
    assert everything(folder) == before


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_report_for_programs(folder: Path, capsys: pytest.CaptureFixture[str], dry_run: bool) -> None:
    damage(folder, "topics/*/*.data", 90)
    assert main(["repair", str(folder), "--json", *(["--dry-run"] if dry_run else [])]) == int(dry_run)
    report = msgspec.json.decode(capsys.readouterr().out, type=RepairReport)
    assert report.losses == [Loss("orders", 1, 4, True)]
    assert report.dry_run is dry_run
    assert (report.after is None) is dry_run
    assert len(report.moved) == 2


def test_a_folder_in_use(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(folder, "topics/*/*.data", 90)
    engine = open_folder(folder)
    before = everything(folder)
    assert main(["repair", str(folder)]) == 3
    assert "in use" in capsys.readouterr().err
    assert everything(folder) == before
    engine.close_inline()


def test_repair_refuses_a_folder_without_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repair", str(tmp_path)]) == 2
    assert "not a data folder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(folder, "topics/*/*.data", 90)
    before = everything(folder)

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("topics.ops.repair.repair.write_plan", refuse)
    assert main(["repair", str(folder)]) == 1
    assert "No space left" in capsys.readouterr().err
    kept = {path: data for path, data in everything(folder).items() if path.relative_to(folder).parts[0] != "repair"}
    assert kept == before
    monkeypatch.undo()
    assert main(["repair", str(folder)]) == 0
