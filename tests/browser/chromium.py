"""A real browser: the system's Chromium, driven by playwright. Tests that need it are skipped where it is missing."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
# Only to fail instead of hanging.
_PATIENCE_MS = 60_000
SCREENSHOTS = Path(__file__).parents[2] / ".screenshots"


def executable() -> str:
    """The path of the browser, or a skip."""
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    pytest.skip(f"there is no browser on PATH: none of {', '.join(_NAMES)}; `make setup-browser` gets one")


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    path = executable()
    with sync_playwright() as playwright:
        # Without its sandbox, which root may not use; it sees this machine's own pages only. A page that a route
        # fulfills counts as one of the internet, which may not open a WebSocket to this machine.
        arguments = ["--no-sandbox", "--no-proxy-server", "--disable-features=LocalNetworkAccessChecks"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def open_page(url: str, html: str) -> Iterator[Page]:
    """A page of the server's own origin. The server does not serve it: the browser is given it on the way."""
    with open_browser() as browser:
        page = browser.new_page()
        page.set_default_timeout(_PATIENCE_MS)
        page.route("**/page", lambda route: route.fulfill(body=html, content_type="text/html"))
        page.goto(f"{url}/page")
        yield page


@contextlib.contextmanager
def visit(browser: Browser, url: str, **options: object) -> Iterator[Page]:
    """A page in a new browser profile. Any error in it fails the test at its end."""
    context = browser.new_context(**{"viewport": {"width": 1360, "height": 860}, **options})  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(_PATIENCE_MS)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)

    def refuse(dialog: Dialog) -> None:
        wrong.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    page.on("dialog", refuse)
    try:
        page.goto(url)
        yield page
        assert wrong == []
    finally:
        context.close()


def keep(page: Page, name: str) -> None:
    """A picture of the page as it is, for people."""
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")
