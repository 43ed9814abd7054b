"""A newcomer's path: a clone, `make serve`, the console, and the first event of the README."""

from pathlib import Path

import pytest

from tools.newcomer import walk


@pytest.mark.slow
def test_clone_serves_the_console_and_the_first_event_of_the_readme(tmp_path: Path) -> None:
    """How long it took is printed, and `make newcomer` states whether that is good."""
    found = walk(tmp_path)
    assert '<script type="module" src="console/' in found.page
    assert "<title>topics</title>" in found.page
    print(f"the console after {found.console_s:.1f} s, the first event after {found.total_s:.1f} s")
