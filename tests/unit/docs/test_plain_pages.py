"""Form of the pages: headings, phrases of the old dialect, and the size of docs/ without decisions."""

import re
from pathlib import Path

import pytest

from tests.unit.docs.pages import DOCS, PAGES, name_of, without_blocks

_MAX_BYTES = 389_000
_OPENINGS = re.compile(r"^#+ (What|Who|Whoever|Those|One that|How it|Where it)\b")
_DIALECT = re.compile(r"\b(whoever|makes no sense|nothing to do about it|as it should be)\b", re.IGNORECASE)
# Pages of the reference, the operations and the command line.
_REFERENCE = [
    page
    for page in PAGES
    if page.parent.name in ("api", "streams", "operations")
    or page.name in ("errors.md", "cli.md", "console.md", "deployment.md", "tour.md")
]


def prose(page: Path) -> list[str]:
    """The lines outside code blocks and tables."""
    return [line for line in without_blocks(page.read_text(encoding="utf-8")).splitlines() if not line.startswith("|")]


@pytest.mark.parametrize("page", _REFERENCE, ids=name_of)
def test_reference_headings_are_noun_phrases(page: Path) -> None:
    assert [line for line in prose(page) if _OPENINGS.match(line)] == []


@pytest.mark.parametrize("page", _REFERENCE, ids=name_of)
def test_reference_pages_have_no_dialect(page: Path) -> None:
    assert _DIALECT.findall(page.read_text(encoding="utf-8")) == []


def test_pages_without_decisions_stay_within_their_size() -> None:
    pages = [page for page in DOCS.rglob("*.md") if page.parent.name != "decisions"]
    assert sum(page.stat().st_size for page in pages) <= _MAX_BYTES
