import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from topics.cli.failures import UsageError
from topics.cli.transfer import folder_access, wrong_file
from topics.model.settings import SettingsError
from topics_client import Client, Record

export = import_module("topics.cli.transfer")
import_ = import_module("topics.cli.transfer")


def test_an_export_out_of_a_folder_finds_the_cold_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    access = {"mode": "segments", "path": os.path.abspath("data")}
    monkeypatch.delenv("TOPICS_COLD_DIR", raising=False)
    assert folder_access("data") == {**access, "coldDir": None}
    monkeypatch.setenv("TOPICS_COLD_DIR", "cold")
    assert folder_access("data") == {**access, "coldDir": os.path.abspath("cold")}
    monkeypatch.setenv("TOPICS_COLD_DIR", "s3://bucket/cold/")
    assert folder_access("data") == {**access, "coldDir": "s3://bucket/cold"}
    monkeypatch.setenv("TOPICS_COLD_DIR", "ftp://host/cold")
    with pytest.raises(SettingsError):
        folder_access("data")


@pytest.mark.parametrize(
    ("failure", "reported"),
    [
        (
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
            "topics.spark.transfer.BadLineError: this line is not a record (JSON is malformed): notes\n",
            "this line is not a record (JSON is malformed): notes",
        ),
        (
            "An error occurred.\nCaused by: java.lang.RuntimeException: file:/in/x.txt is not a Parquet file (6)",
            "/in/x.txt is not a Parquet file",
        ),
        ("Connection refused", None),
    ],
)
def test_a_file_that_holds_something_else_is_reported_in_a_line(failure: str, reported: str | None) -> None:
    assert wrong_file(failure) == reported


class Called(Exception):
    """Spark was taken."""


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A topic that counts as large, and a Spark that only states that it was called."""

    def called(*args: object, **kwargs: object) -> int:
        raise Called

    class Big:
        def get_topic(self, topic: str, *, touch: bool) -> SimpleNamespace:
            return SimpleNamespace(bytes=2**40, head_seq=1)

        def follow(self, topic: str, **options: object) -> list[Record]:
            return [Record(seq=1, ts=2, payload=msgspec.Raw(b"3"))]

    @contextmanager
    def connected(*args: object) -> Iterator[object]:
        yield Big()

    for module in (export, import_):
        monkeypatch.setattr(module, "has_spark", lambda: True)
        monkeypatch.setattr(module, "connected", connected)
    monkeypatch.setattr(export, "export_by_spark", called)
    monkeypatch.setattr(import_, "import_by_spark", called)
    return Big()  # type: ignore[return-value]


def test_large_export_uses_spark_if_installed(
    large: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "out")
    with pytest.raises(Called):
        export.export("t", target)
    assert "--no-spark writes one file" in capfd.readouterr().err
    assert export.export("t", target, spark=False) == 0
    assert (tmp_path / "out").read_bytes() == b'{"seq":1,"ts":2,"data":3}\n'
    monkeypatch.setattr(export, "has_spark", lambda: False)
    assert export.export("t", f"{target}-2") == 0
    assert "not installed" in capfd.readouterr().err
    with pytest.raises(Called):
        export.export("t", f"{target}-3", spark=True)


def test_little_is_exported_without_spark(large: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_LARGE_BYTES", 2**50)
    assert export.export("t", str(tmp_path / "out")) == 0


def test_a_folder_is_imported_by_spark_and_a_file_is_not(large: Client, tmp_path: Path) -> None:
    with pytest.raises(Called):
        import_.import_("t", str(tmp_path))
    with pytest.raises(UsageError, match="is a folder"):
        import_.import_("t", str(tmp_path), spark=False)
    (tmp_path / "empty").touch()
    assert import_.import_("t", str(tmp_path / "empty")) == 0
