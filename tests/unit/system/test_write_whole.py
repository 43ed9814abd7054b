from pathlib import Path

import pytest

from topics.api.request_logs import write_whole


def test_the_text_replaces_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "port"
    target.write_text("an older and longer text")
    write_whole(str(target), "127.0.0.1:4000")
    assert target.read_text() == "127.0.0.1:4000"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "port"
    target.mkdir()
    (target / "occupied").touch()
    with pytest.raises(OSError, match="port"):
        write_whole(str(target), "127.0.0.1:4000")
    assert list(tmp_path.iterdir()) == [target]
