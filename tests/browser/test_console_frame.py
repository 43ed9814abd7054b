"""The frame around the pages: dialogs, the palette, navigation, and charts with the history of the server."""

import re
from pathlib import Path

import httpx
from playwright.sync_api import Browser, expect

from tests.browser.chromium import keep, visit
from tests.http.live import LiveServer


def test_dialogs_close_on_navigation(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, f"{sampled.url}/console#/overview") as page:
        page.goto(f"{sampled.url}/console#/topics")
        page.get_by_role("button", name="New topic").click()
        expect(page.locator("dialog[open]")).to_have_count(1)
        page.go_back()
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        expect(page.locator("dialog")).to_have_count(0)
        page.keyboard.press("Control+k")
        expect(page.locator("dialog.palette")).to_be_visible()
        page.evaluate("location.hash = '#/queues'")
        expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
        expect(page.locator("dialog")).to_have_count(0)


def test_the_palette_finds_parts_of_names_and_states_when_nothing_matches(
    browser: Browser, sampled: LiveServer
) -> None:
    with visit(browser, f"{sampled.url}/console#/overview") as page:
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.keyboard.press("Control+k")
        page.keyboard.type("ebLO")
        expect(page.locator(".palette [aria-selected=true]")).to_contain_text("weblog")
        page.locator(".palette input").fill("no such name")
        expect(page.locator(".palette .none")).to_have_text("No match for “no such name”.")
        expect(page.locator(".palette li")).to_have_count(0)
        page.keyboard.press("Enter")
        expect(page.locator("dialog.palette")).to_be_visible()
        keep(page, "palette-no-match")


def test_the_pipeline_is_hidden_while_it_is_off(browser: Browser, tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, visit(browser, f"{live.url}/console#/overview") as page:
        expect(page.locator(".version")).to_have_text(re.compile(r"\d"))
        expect(page.get_by_role("link", name="Pipeline")).to_have_count(0)
        page.keyboard.press("Control+k")
        page.keyboard.type("pip")
        expect(page.locator(".palette .none")).to_be_visible()


def test_charts_have_axes_and_the_history_of_the_server(browser: Browser, sampled: LiveServer) -> None:
    history = httpx.get(f"{sampled.url}/v0/metrics/history").json()
    assert len(history["series"]["topics_wal_frames_total"]) > 1
    with visit(browser, f"{sampled.url}/console#/overview") as page:
        chart = page.locator(".card", has=page.get_by_role("heading", name="Live records"))
        # The server was used before the page was opened.
        expect(chart.locator("path.line")).to_have_attribute("d", re.compile(r"^M[^L]+L"))
        expect(chart.locator(".axis-y span")).to_have_count(3)
        expect(chart.locator(".axis-y span").last).to_have_text("0")
        expect(chart.locator(".axis-x span").last).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
        sent = page.locator(".card", has=page.get_by_role("heading", name="Bytes sent per second"))
        expect(sent.locator(".axis-y span").first).to_have_text(re.compile(r"^(1|2|5)0{0,3}(\.0)? (B|KiB|MiB)"))
        page.get_by_label("Time range").select_option("1 day")
        expect(chart.locator(".axis-x span").last).to_have_text(re.compile(r"\d\d:\d\d$"))
        assert "range=86400" in page.url
        keep(page, "charts")
