"""The reference of the API: both protocols, to look up and to try, under a strict content security policy."""

from pathlib import Path

import httpx
from playwright.sync_api import Browser, expect

from tests.browser.chromium import keep, visit
from tests.http.live import LiveServer


def test_calls_of_both_protocols_are_looked_up_and_tried(browser: Browser, tmp_path: Path) -> None:
    with LiveServer(tmp_path, api_keys="boss") as live, visit(browser, f"{live.url}/docs") as page:
        elsewhere: list[str] = []
        page.on("request", lambda request: elsewhere.append(request.url))
        expect(page.locator(".opblock-tag", has_text="/v1")).to_be_visible()
        shown = page.locator(".opblock-summary-path").all_inner_texts()
        described = httpx.get(f"{live.url}/v0/openapi.json").json()["paths"]
        assert {path.replace("\u200b", "") for path in shown} == set(described)
        page.locator("button.authorize").click()
        page.locator(".dialog-ux input").fill("boss")
        page.locator(".dialog-ux button.authorize").click()
        page.locator(".dialog-ux button.btn-done").click()
        call = page.locator(".opblock", has_text="How far the pipeline is").first
        call.locator("button.opblock-summary-control").click()
        call.locator("button.execute").click()
        expect(call.locator(".live-responses-table")).to_contain_text('"state"')
        keep(page, "reference")
        assert all(url.startswith((live.url, "data:")) for url in elsewhere)
        assert "boss" not in page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
