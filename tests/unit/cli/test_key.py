"""`topics key`: a file of keys that only its owner reads, and that holds no secret."""

import hashlib
import json
import stat
from pathlib import Path

import pytest

from topics.cli import main
from topics.model.key_file import load_keys


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "keys.json"
    monkeypatch.setenv("TOPICS_KEY_FILE", str(found))
    return found


def test_a_key_is_made_and_its_secret_is_reported_once(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "create", "till", "--scopes", "read+write", "--prefix", "shop.", "--prefix", "jobs."]) == 0
    secret = capfd.readouterr().out.strip()
    assert len(secret) == 43
    assert secret not in path.read_text()
    [key] = load_keys(str(path))
    assert key.sha256 == hashlib.sha256(secret.encode()).hexdigest()
    assert (key.name, key.scopes, key.prefixes) == ("till", ["read", "write"], ["shop.", "jobs."])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["keys.json"]


def test_keys_are_listed_without_anything_to_try_secrets_against(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["key", "create", "a"])
    main(["key", "create", "b", "--scopes", "delete"])
    capfd.readouterr()
    assert main(["key", "list", "--output", "json"]) == 0
    reported = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(key["name"], key["scopes"]) for key in reported] == [("a", []), ("b", ["delete"])]
    assert all("sha256" not in key for key in reported)
    assert main(["key", "list"]) == 0
    assert "delete" in capfd.readouterr().out


def test_a_key_is_taken_back(path: Path) -> None:
    main(["key", "create", "a"])
    main(["key", "create", "b"])
    assert main(["key", "revoke", "a"]) == 0
    assert [key.name for key in load_keys(str(path))] == ["b"]


@pytest.mark.parametrize(
    "arguments",
    [["create", "a"], ["create", "c", "--scopes", "reed"], ["create", ""], ["revoke", "c"]],
    ids=["twice", "no scope", "no name", "not there"],
)
def test_failed_key_command_changes_nothing(
    path: Path, arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    main(["key", "create", "a"])
    before = path.read_bytes()
    assert main(["key", *arguments]) == 2
    assert path.read_bytes() == before


def test_which_file_must_be_stated(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("TOPICS_KEY_FILE", raising=False)
    assert main(["key", "list"]) == 2
    assert "TOPICS_KEY_FILE" in capfd.readouterr().err
