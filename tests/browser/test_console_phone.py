"""The console on a phone: no page is wider than 360 px, and the menu opens, navigates and closes."""

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.browser.chromium import keep, visit
from tests.browser.test_console_access import PLACES, findings
from tests.http.live import LiveServer

PHONE: ViewportSize = {"width": 360, "height": 740}
_WIDER = """() => [...document.querySelectorAll('body *')]
    .filter(one => one.getBoundingClientRect().right > innerWidth + 0.5)
    .filter(one => !one.closest('.scrolls, pre, .tabs, .drawing, .tail, [hidden]'))
    .map(one => one.outerHTML.slice(0, 120))"""


def too_wide(page: Page) -> list[str]:
    """Returns the elements that make the page wider than the screen, without elements that scroll."""
    scrolls = page.evaluate("document.scrollingElement.scrollWidth > innerWidth")
    inner = page.evaluate(
        "[...document.querySelectorAll('.page, main')].some(one => one.scrollWidth > one.clientWidth)"
    )
    wider: list[str] = page.evaluate(_WIDER)
    return wider or (["the page scrolls sideways"] if scrolls or inner else [])


def test_no_page_scrolls_sideways_or_has_a_finding_at_360_px(browser: Browser, sampled: LiveServer) -> None:
    wrong = {}
    with visit(browser, f"{sampled.url}/console", bypass_csp=True) as page:
        page.set_viewport_size(PHONE)
        for place, sign in {**PLACES, "topic/hostile/live?seq=1": ".detail pre", "nowhere": ".empty"}.items():
            page.goto(f"{sampled.url}/console#/{place}")
            page.locator(sign).first.wait_for(state="attached")
            if found := [*too_wide(page), *findings(page)]:
                wrong[place] = found[:4]
            keep(page, f"phone-{place.partition('?')[0].replace('/', '-')}")
    assert wrong == {}


def test_menu_is_always_open_on_a_wide_screen(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, f"{sampled.url}/console#/topics") as page:
        expect(page.get_by_role("navigation", name="Pages").get_by_role("link", name="Queues")).to_be_visible()
        expect(page.locator(".menu-toggle")).to_be_hidden()


@pytest.mark.parametrize("place", ["overview", "topic/orders"])
def test_the_menu_opens_navigates_and_closes(browser: Browser, sampled: LiveServer, place: str) -> None:
    with visit(browser, f"{sampled.url}/console#/{place}", viewport=PHONE, has_touch=True) as page:
        link = page.get_by_role("navigation", name="Pages").get_by_role("link", name="Queues")
        menu = page.get_by_role("button", name="Menu")
        expect(link).to_be_hidden()
        menu.tap()
        expect(menu).to_have_attribute("aria-expanded", "true")
        expect(link).to_be_visible()
        assert too_wide(page) == []
        keep(page, "phone-menu")
        link.tap()
        expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
        expect(link).to_be_hidden()
