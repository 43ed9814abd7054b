"""Consumers in the console: their lag over time, losses, and resetting or deleting one."""

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import keep, visit
from tests.http.live import LiveServer


@pytest.fixture
def payroll(sampled: LiveServer) -> str:
    """A separate consumer for a test that changes it."""
    path = f"{sampled.url}/v0/topics/orders/consumers/payroll"
    httpx.delete(path)
    httpx.put(path, json={"from_seq": 12}).raise_for_status()
    return path


def reset_to(page: Page, place: str, **fields: str) -> None:
    page.get_by_role("button", name="Reset the cursor").first.click()
    box = page.locator("dialog")
    box.get_by_label("New cursor").select_option(place)
    for label, text in fields.items():
        box.get_by_label(label).fill(text)
    box.get_by_role("button", name="Reset the cursor").click()


def test_consumers_are_listed_with_their_lag_and_losses(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, f"{sampled.url}/console#/consumers") as page:
        expect(page.get_by_role("row", name="billing orders")).to_contain_text("behind")
        expect(page.get_by_role("row", name="mail orders")).to_contain_text("up to date")
        expect(page.get_by_role("row", name="slow recent")).to_contain_text("lost 70 records")
        keep(page, "consumers")
        page.get_by_label("Topics whose names begin with").fill("rec")
        expect(page.locator("tbody tr")).to_have_count(1)
        assert "prefix=rec" in page.url
        page.get_by_role("link", name="slow").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("slow of recent")
        expect(page.get_by_role("alert")).to_contain_text("Records 1 to 70 were lost")


def test_lag_is_drawn_over_time(browser: Browser, sampled: LiveServer, payroll: str) -> None:
    with visit(browser, f"{sampled.url}/console#/consumers/orders/payroll") as page:
        chart = page.get_by_role("img", name="Lag in records")
        expect(chart).to_have_attribute("aria-label", "Lag in records: now 28, at most 28")
        httpx.post(f"{payroll}/commit", json={"seq": 35}).raise_for_status()
        expect(chart).to_have_attribute("aria-label", "Lag in records: now 5, at most 28")
        page.goto(f"{sampled.url}/console#/consumers")
        page.goto(f"{sampled.url}/console#/consumers/orders/payroll")
        expect(chart).to_have_attribute("aria-label", "Lag in records: now 5, at most 28")
        keep(page, "consumer")


@pytest.mark.parametrize(
    ("place", "fields", "seq"),
    [
        ("earliest", {}, 0),
        ("latest", {}, 40),
        ("seq", {"Seq": "7"}, 7),
        ("time", {"Time": "2020-01-01T00:00:00"}, 0),
    ],
)
def test_reset_moves_the_cursor_after_a_confirmation(
    browser: Browser, sampled: LiveServer, payroll: str, place: str, fields: dict[str, str], seq: int
) -> None:
    with visit(browser, f"{sampled.url}/console#/consumers/orders/payroll") as page:
        expect(page.get_by_text("12 of 40")).to_be_visible()
        page.get_by_role("button", name="Reset the cursor").click()
        expect(page.locator("dialog")).to_contain_text("records are delivered again")
        page.locator("dialog").get_by_role("button", name="Cancel").click()
        assert httpx.get(payroll).json()["seq"] == 12
        reset_to(page, place, **fields)
        expect(page.get_by_text(f"{seq} of 40")).to_be_visible()
        assert httpx.get(payroll).json()["seq"] == seq


def test_reset_that_is_refused_says_why(browser: Browser, sampled: LiveServer, payroll: str) -> None:
    with visit(browser, f"{sampled.url}/console#/consumers/orders/payroll") as page:
        reset_to(page, "seq", Seq="41")
        expect(page.get_by_text("above the head")).to_be_visible()
        page.get_by_role("button", name="Close").click()
        reset_to(page, "time")
        expect(page.get_by_text("Give a seq or a time.")).to_be_visible()
        assert httpx.get(payroll).json()["seq"] == 12


def test_consumer_is_deleted_after_its_name_is_typed(browser: Browser, sampled: LiveServer, payroll: str) -> None:
    with visit(browser, f"{sampled.url}/console#/consumers/orders/payroll") as page:
        page.get_by_role("button", name="Delete").click()
        box = page.locator("dialog")
        expect(box.get_by_role("button", name="Delete")).to_be_disabled()
        box.locator("input").fill("payroll")
        box.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Consumers")
        assert httpx.get(payroll).status_code == 404
        page.goto(f"{sampled.url}/console#/consumers/orders/payroll")
        expect(page.get_by_text("This consumer does not exist")).to_be_visible()
