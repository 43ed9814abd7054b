"""The console behind the proxies of deploy/proxy: over TLS, with a key, and live."""

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chromium import visit
from tests.browser.sample import append
from tests.browser.test_console_keys import sign_in
from tests.http.live import LiveServer
from tests.http.proxies import PROXIES, proxied
from tests.http.streams.authority import Authority


@pytest.mark.slow
@pytest.mark.parametrize("name", PROXIES)
def test_records_come_live_through_a_proxy(browser: Browser, tmp_path: Path, name: str) -> None:
    pair = Authority(tmp_path, "authority").certificate("localhost")
    with (
        LiveServer(tmp_path, api_keys="boss") as live,
        proxied(name, tmp_path, live.url, (pair, pair)) as proxy,
        httpx.Client(base_url=live.url, headers={"authorization": "Bearer boss"}) as api,
    ):
        append(api, "orders", [{"data": 1}])
        with visit(browser, f"{proxy.url}/console#/topic/orders", ignore_https_errors=True) as page:
            sign_in(page, "boss")
            expect(page.locator(".record")).to_have_count(1)
            expect(page.locator(".badge", has_text="live")).to_be_visible()
            append(api, "orders", [{"data": 2}])
            expect(page.locator(".record")).to_have_count(2)
            page.goto(f"{proxy.url}/docs")
            expect(page.locator(".opblock").first).to_be_visible(timeout=60_000)
