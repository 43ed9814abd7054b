"""Accessibility of the console: axe finds nothing on any page, in light or dark."""

from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import keep, visit
from tests.http.live import LiveServer

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
PLACES = {
    "overview": ".chart path.line[d]", "topics": "td.name", "topic/recent": ".record",
    "topic/orders/live?seq=3": ".detail pre", "topic/orders/append": "textarea", "topic/orders/config": "td select",
    "queues": "td.name", "topic/jobs/queue?state=leased": "td.name", "routers": "svg.graph a",
    "schedules": "td.name", "consumers": "td.name", "consumers/recent/slow": ".chart path.line[d]", "schema": "td.name",
    "topic/bills/schema": "pre.json", "search/weblog?q=card&explain=1": ".hit", "search": ".choices a",
    "settings": "td.name", "pipeline": ".figures .figure",
}  # fmt: skip


def findings(page: Page, *, contrast_only: bool = False) -> list[str]:
    """The violations that axe finds, each with its place. Between light and dark, only colours differ."""
    page.evaluate(AXE)
    rules = "runOnly: ['color-contrast']" if contrast_only else "resultTypes: ['violations']"
    found: dict[str, Any] = page.evaluate(f"axe.run(document, {{{rules}}})")
    return [f"{one['impact']} {one['id']}: {one['help']}: {one['nodes'][0]['target']}" for one in found["violations"]]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_has_a_finding(browser: Browser, sampled: LiveServer, theme: str) -> None:
    wrong = {}
    # axe writes into its own copy of the page, which the policy of this one rightly refuses.
    with visit(browser, f"{sampled.url}/console", color_scheme=theme, bypass_csp=True) as page:
        for place, sign in PLACES.items():
            page.goto(f"{sampled.url}/console#/{place}")
            page.locator(sign).first.wait_for(state="attached")
            found = findings(page, contrast_only=theme == "dark")
            if found:
                wrong[place] = found
        page.keyboard.press("Control+k")
        expect(page.locator(".palette li").first).to_be_visible()
        keep(page, f"palette-{theme}")
        wrong |= {"palette": found} if (found := findings(page)) else {}
    assert wrong == {}


def test_the_check_can_fail(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, f"{sampled.url}/console#/topics", bypass_csp=True) as page:
        page.locator("td.name").first.wait_for()
        page.evaluate("document.querySelector('#main').append(document.createElement('button'))")
        assert any("button-name" in one for one in findings(page))
