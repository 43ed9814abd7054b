"""The pages that describe the source name files and modules that exist, and the glossary has every term once."""

import re
from pathlib import Path

import pytest

import topics
from tests.unit.docs.pages import ROOT, rows
from tools.site_reference import built

# Backquoted paths of the repository, and dotted names of packages and modules.
_PATH = re.compile(r"`((?:src|tests|docs|bench|tools)/[\w./-]*)`")
_MODULE = re.compile(r"`((?:topics|topics_client|topics_protocol)(?:\.[a-z_][a-z0-9_]*)+)`")
_PAGES = ("docs/architecture.md", "docs/glossary.md", "CONTRIBUTING.md")


def is_module(name: str) -> bool:
    """Whether a dotted name is a module, a package or a public name of `topics`."""
    if name.removeprefix("topics.") in topics.__all__:
        return True
    path = ROOT / "src" / Path(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@pytest.mark.parametrize("page", _PAGES)
def test_paths_and_modules_of_a_page_exist(page: str) -> None:
    text = built(page)
    paths, modules = _PATH.findall(text), _MODULE.findall(text)
    assert len(paths) + len(modules) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [name for name in modules if not is_module(name)] == []


def test_every_glossary_term_has_a_meaning_and_a_module() -> None:
    for term, meaning, known_as, module in rows(built("docs/glossary.md")):
        assert term, module
        assert meaning.endswith("."), term
        assert known_as, term
        assert _MODULE.search(module), term


def test_glossary_terms_are_unique() -> None:
    terms = [cells[0] for cells in rows(built("docs/glossary.md"))]
    assert len(terms) > 80
    assert len(set(terms)) == len(terms)
