import os
from pathlib import Path

import pytest

from topics.log.layout import absolute, check_backup, check_cold, check_place, is_object_store
from topics.model.settings import SettingsError


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (None, None), ("cold", "cold"), ("/mnt/cold//", "/mnt/cold"), ("/", "/"), ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"), ("gs://bucket/x", "gs://bucket/x"), ("az://container", "az://container"),
    ],
)  # fmt: skip
def test_a_place_has_one_spelling(given: str | None, place: str | None) -> None:
    assert check_place(given) == place
    assert check_place(place) == place


@pytest.mark.parametrize("place", ["s3://", "s3:///x", "ftp://host/x", "http://host/x", "s3://b//x", "s3://b/../c"])
def test_invalid_place_is_refused(place: str) -> None:
    with pytest.raises(SettingsError, match="cold folder"):
        check_place(place)


@pytest.mark.parametrize("exists", [True, False])
def test_the_cold_folder_is_not_the_data_folder(tmp_path: Path, exists: bool) -> None:
    data, link = tmp_path / "data", tmp_path / "link"
    link.symlink_to(data)
    if exists:
        data.mkdir()
    for place in (data, f"{data}/", f"{tmp_path}/./data", link):
        with pytest.raises(SettingsError, match="is the data folder"):
            check_cold(str(place), str(data))
    assert check_cold(f"{data}/cold", str(data)) == f"{data}/cold"
    assert check_cold("s3://bucket", str(data)) == "s3://bucket"
    assert check_cold(None, str(data)) is None


@pytest.mark.parametrize("exists", [True, False])
def test_backups_are_not_kept_in_the_data_folder(tmp_path: Path, exists: bool) -> None:
    data, link = tmp_path / "data", tmp_path / "link"
    link.symlink_to(data)
    if exists:
        data.mkdir()
    for place in (data, f"{data}/", f"{data}/topics", f"{data}/not/there", f"{link}/topics", f"{tmp_path}/x/../data/x"):
        with pytest.raises(SettingsError, match="is in the data folder"):
            check_backup(str(place), str(data))
    for place in (f"{data}-backups", str(tmp_path), f"{data}/../backups"):
        assert check_backup(place, str(data)) == place
    assert check_backup("s3://bucket/data", str(data)) == "s3://bucket/data"
    assert check_backup(None, str(data)) is None


def test_only_a_folder_is_made_absolute() -> None:
    assert absolute("cold") == os.path.abspath("cold")
    assert absolute("s3://bucket/x") == "s3://bucket/x"
    assert absolute(None) is None
    assert is_object_store("s3://bucket")
    assert not is_object_store("cold")
    assert not is_object_store(None)
