"""The guide to live updates runs as written: its page shows new records, and goes on behind a restart of the server."""

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.browser.chromium import keep, visit
from tests.http.guide_runner import Guide
from tests.http.live import LiveServer, wait_until_ready
from topics_client import Client

PAGE = "docs/guides/live-updates.md"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder as `python -m http.server` serves it; its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_live_updates_guide_runs_as_written(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with LiveServer(tmp_path / "server") as live, Guide(tmp_path, live.url) as guide:
        guide.skipped.add("python -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &")
        assert guide.follow(PAGE) > 3
        with served(guide.folder) as base, visit(browser, f"{base}/prices.html") as page:
            items = page.locator("#prices li")
            expect(items).to_have_text(["ACME 17.8", "ACME 17.6", "ACME 17.5"])
            live.stop()
            live.start()
            wait_until_ready(live.url)
            with Client(live.url) as client:
                client.append("prices", {"share": "ACME", "price": 18})
            expect(items).to_have_text(["ACME 18", "ACME 17.8", "ACME 17.6", "ACME 17.5"], timeout=60_000)
            keep(page, "guide-live-updates")
