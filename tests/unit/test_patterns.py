"""Patterns of regular expressions mean the same to every Python that the project runs on."""

import re
from pathlib import Path

import topics


def test_no_group_is_repeated_possessively() -> None:
    """Before 3.11.5 such a repetition ends elsewhere where its group has alternatives; `(?>(?:...)*)` does not."""
    sources = sorted(Path(topics.__file__).parent.rglob("*.py"))
    assert sources
    reported = re.compile(r"\)[*+?]\+")
    found = [f"{path.name}: {line.strip()}" for path in sources for line in _patterns(path) if reported.search(line)]
    assert not found


def _patterns(path: Path) -> list[str]:
    """Lines with a raw string, the form of patterns."""
    return [line for line in path.read_text().splitlines() if re.search(r"\b(?:rb|br|r)['\"]", line)]
