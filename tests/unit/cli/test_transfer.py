import os

import pytest

from topics.cli.transfer.spark import folder_access
from topics.config.settings import SettingsError


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
