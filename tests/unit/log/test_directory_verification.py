import msgspec
import pytest

from tests.unit.conftest import append, checkpoint, open_engine
from topics.log.layout import Layout
from topics.log.replay import Chain
from topics.log.snapshot_files import DirectoryDraft
from topics.testing import FakeDisk

LAYOUT = Layout("data")


def snapped() -> FakeDisk:
    disk = FakeDisk()
    engine = open_engine(disk, awake_topics=0)
    append(engine, "a", 1, 2)
    append(engine, "b", 3)
    assert checkpoint(engine)
    return disk


def test_a_sound_directory_is_no_finding() -> None:
    assert [member.findings for member in Chain(snapped(), LAYOUT).members] == [[]]


@pytest.mark.parametrize("change", [{"names": ["x", "b"]}, {"live": [7, 1]}, {"offsets": [0, 0]}, {"digest": 5}])
def test_one_that_reports_something_else_is_found(monkeypatch: pytest.MonkeyPatch, change: dict[str, object]) -> None:
    whole = DirectoryDraft.directory
    monkeypatch.setattr(DirectoryDraft, "directory", lambda draft: msgspec.structs.replace(whole(draft), **change))
    disk = snapped()
    monkeypatch.undo()
    (member,) = Chain(disk, LAYOUT).members
    assert [finding.what for finding in member.findings] == ["a directory does not tell what is in the snapshot"]
