"""The documentation site, before it is built: its contents name every page, and all its links resolve."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.docs.pages import DOCS, PAGES, ROOT, name_of, read, without_blocks
from tests.unit.docs.test_docs import anchors
from tools.site import beside, path_of, slug, turned, uri_of, with_decisions, with_proofs

LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def contents() -> dict[str, Any]:
    found = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def named(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        below = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from named(below) if isinstance(below, list) else [below]


def test_the_contents_name_every_page_once() -> None:
    pages = list(named(with_decisions(contents()["nav"])))
    assert len(pages) == len(set(pages))
    assert {path_of(uri) for uri in pages} == {name_of(page) for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_the_site_lead_somewhere(page: Path) -> None:
    uri = uri_of(name_of(page))
    assert uri is not None
    there = beside()
    for match in LINK.finditer(without_blocks(turned(page.read_text(encoding="utf-8"), name_of(page)))):
        if "://" in match["target"]:
            continue
        place, _, anchor = match["target"].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(uri), place)) if place else uri
        file = ROOT / there.get(target, f"docs/{target}")
        assert file.is_file(), match["target"]
        assert not anchor or anchor in anchors(file), match["target"]


def test_links_are_turned_and_code_is_not() -> None:
    page = (
        "see [`api`](docs/cli.md#keys), [home](README.md), [it](#here), [code](src/topics/server.py), `[a](docs/b.md)`"
    )
    assert turned(page, "README.md") == (
        "see [`api`](cli.md#keys), [home](index.md), [it](#here), code, `[a](docs/b.md)`"
    )
    assert turned("[a](../../README.md#x)\n```\n[b](../c.md)\n```\n", "docs/decisions/README.md") == (
        "[a](../index.md#x)\n```\n[b](../c.md)\n```\n"
    )
    assert turned("[unit](../deploy/systemd/topics.service) in [deploy](../deploy/)", "docs/deployment.md") == (
        "[unit](deploy/systemd/topics.service) in deploy"
    )


def test_site_shows_the_tests_of_each_promise() -> None:
    table = with_proofs(read("docs/guarantees.md")).partition("## Tests of each promise")[2]
    assert "| G1 | `tests/unit/engine/test_append.py`<br>`test_class_fsync_loses_nothing_and_jumps_nowhere`" in table
    assert table.count("\n| G") == len(re.findall(r"^\*\*G\d+\.", read("docs/guarantees.md"), re.MULTILINE))


def test_a_list_may_follow_its_paragraph_at_once() -> None:
    assert turned("**Decision.**\n- one\n- two\n  more\n- three\n", "docs/cli.md") == (
        "**Decision.**\n\n- one\n- two\n  more\n- three\n"
    )


def test_headings_have_the_anchors_that_pages_link_to() -> None:
    assert slug("What it costs, and what it may do") == "what-it-costs-and-what-it-may-do"
    assert slug("`/v0` – a  name") == "v0--a--name"


def test_nothing_of_the_site_comes_from_elsewhere() -> None:
    """The theme would fetch its fonts, and a script to search in pages that are opened as files."""
    reported = contents()
    assert reported["theme"]["font"] is False
    [script] = reported["extra"]["polyfills"]
    assert "iframe-worker" in script, "by this the plugin knows that it need not fetch one"
    assert (DOCS / script).is_file()
