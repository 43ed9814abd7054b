"""A newcomer's path: a clone, `make serve`, and the console is there."""

from pathlib import Path

import pytest

from tools.newcomer import walk


@pytest.mark.slow
def test_from_a_clone_to_the_console(tmp_path: Path) -> None:
    """How long it took is printed, and `make newcomer` says whether that is good."""
    found = walk(tmp_path)
    assert '<script type="module" src="console/' in found.page
    assert "<title>topics</title>" in found.page
    print(f"the console after {found.total_s:.1f} s")
