"""A real browser: the system's Chromium, driven by playwright. Tests that need it are skipped where it is missing."""

import contextlib
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
# Only to fail instead of hanging.
_PATIENCE_MS = 60_000


def executable() -> str:
    """The path of the browser, or a skip."""
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    pytest.skip(f"there is no browser on PATH: none of {', '.join(_NAMES)}")


@contextlib.contextmanager
def open_page(url: str, html: str) -> Iterator[Page]:
    """A page of the server's own origin. The server does not serve it: the browser is given it on the way."""
    path = executable()
    with sync_playwright() as playwright:
        # Without its sandbox, which root may not use; it sees this machine's own pages only.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--no-proxy-server"])
        try:
            page = browser.new_page()
            page.set_default_timeout(_PATIENCE_MS)
            page.route("**/page", lambda route: route.fulfill(body=html, content_type="text/html"))
            page.goto(f"{url}/page")
            yield page
        finally:
            browser.close()
