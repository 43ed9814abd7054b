"""The documentation site, built as `make docs` does it and opened as files, without any server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Request, expect

from tests.browser.chromium import keep, visit
from tests.unit.docs.pages import ROOT, read

TOOLS = ROOT / ".venv" / "docs"


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_is_searched_offline(browser: Browser, tmp_path: Path) -> None:
    if not (TOOLS / "mkdocs").is_dir():
        pytest.skip("`make setup-docs` gets what makes the site")
    [command] = re.findall(r"python (-m mkdocs .*)$", read("Makefile"), re.MULTILINE)
    done = subprocess.run(
        [sys.executable, *command.split(), "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(TOOLS), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    elsewhere: list[str] = []

    def note(request: Request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:", "about:")):
            elsewhere.append(request.url)

    with visit(browser, "about:blank") as page:
        page.on("request", note)
        page.goto((tmp_path / "index.html").as_uri())
        expect(page.get_by_role("heading", level=1)).to_contain_text("topics")
        page.locator("img[alt^='The console']").first.scroll_into_view_if_needed()
        assert page.locator("img[alt^='The console']").first.evaluate("image => image.naturalWidth") > 0
        page.keyboard.press("/")
        page.keyboard.type("tombstones")
        hit = page.locator(".md-search-result__link", has_text="Tombstones").first
        expect(hit).to_be_visible()
        keep(page, "site-search")
        hit.click()
        expect(page).to_have_url(re.compile(r"/api\.html\?h=tombstones#tombstones$"))
        page.get_by_role("link", name="Deployment").first.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Deployment")
        keep(page, "site")
    assert elsewhere == []
