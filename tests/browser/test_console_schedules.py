"""Schedules in the console: their due times, last and next run, and pausing or deleting one."""

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chromium import keep, visit
from tests.browser.sample import HOSTILE
from tests.http.live import LiveServer

DAY_MS = 86_400_000


@pytest.fixture
def api(sampled: LiveServer) -> Iterator[httpx.Client]:
    """Schedules of a queue: one that has run, one by a cron expression, and one that is paused."""
    with httpx.Client(base_url=sampled.url) as client:
        client.put("/v0/topics/reports", json={"type": "queue"}).raise_for_status()
        schedules: dict[str, dict[str, object]] = {
            "reports.daily": {"every_ms": DAY_MS},
            "reports.nightly": {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "data": {"html": HOSTILE}},
            "reports.off": {"every_ms": 60_000, "paused": True},
        }
        for name, body in schedules.items():
            client.delete(f"/v0/schedules/{name}")
            client.put(f"/v0/schedules/{name}", json={"topic": "reports", **body}).raise_for_status()
        yield client


def test_schedules_are_listed_with_their_last_and_next_run(
    browser: Browser, sampled: LiveServer, api: httpx.Client
) -> None:
    api.put("/v0/schedules/reports.often", json={"topic": "reports", "every_ms": 1000}).raise_for_status()
    with visit(browser, f"{sampled.url}/console#/schedules") as page:
        nightly = page.get_by_role("row", name=re.compile("nightly"))
        for text in ("0 3 * * *", "Europe/Berlin", "never", "on", "in "):
            expect(nightly).to_contain_text(text)
        expect(page.get_by_role("row", name=re.compile(r"reports\.off"))).to_contain_text("paused")
        expect(page.get_by_role("row", name=re.compile("often"))).to_contain_text(re.compile("just now|ago"))
        keep(page, "schedules")
        page.get_by_label("Schedules whose names begin with").fill("reports.n")
        expect(page.locator("tbody tr")).to_have_count(1)
        assert "prefix=reports.n" in page.url
        page.get_by_role("button", name="Show schedule reports.nightly").click()
        box = page.locator("dialog")
        expect(box.get_by_role("region", name="Data of the job")).to_contain_text("<script>window.pwned=2</script>")
        assert page.evaluate("window.pwned") is None
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Show schedule reports.nightly")).to_be_focused()
    api.delete("/v0/schedules/reports.often").raise_for_status()


def test_schedule_is_paused_resumed_and_deleted(browser: Browser, sampled: LiveServer, api: httpx.Client) -> None:
    with visit(browser, f"{sampled.url}/console#/schedules") as page:
        page.get_by_role("button", name="Pause reports.daily").click()
        expect(page.get_by_role("button", name="Resume reports.daily")).to_be_visible()
        assert api.get("/v0/schedules/reports.daily").json()["paused"] is True
        page.get_by_role("button", name="Resume reports.daily").click()
        expect(page.get_by_role("button", name="Pause reports.daily")).to_be_visible()
        assert api.get("/v0/schedules/reports.daily").json()["every_ms"] == DAY_MS
        page.get_by_role("button", name="Delete reports.daily").click()
        box = page.locator("dialog")
        expect(box.get_by_role("button", name="Delete")).to_be_disabled()
        box.locator("input").fill("reports.daily")
        box.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("row", name=re.compile("daily"))).to_have_count(0)
        assert api.get("/v0/schedules/reports.daily").status_code == 404


def test_schedule_that_cannot_append_is_failing_and_says_why(
    browser: Browser, sampled: LiveServer, api: httpx.Client
) -> None:
    api.put("/v0/topics/reports.full", json={"cap_records": 1, "discard": "reject"}).raise_for_status()
    api.post("/v0/topics/reports.full", json={"records": [{"data": 1}]}).raise_for_status()
    schedule = {"topic": "reports.full", "every_ms": 1000}
    api.put("/v0/schedules/reports.full", json=schedule).raise_for_status()
    with visit(browser, f"{sampled.url}/console#/schedules") as page:
        expect(page.get_by_role("row", name=re.compile("reports.full"))).to_contain_text("failing")
        page.get_by_role("button", name="Show schedule reports.full").click()
        expect(page.locator("dialog dt", has_text="Error")).to_be_visible()
        page.goto(f"{sampled.url}/console#/overview")
        expect(page.get_by_role("link", name="1 schedule cannot append its jobs.")).to_be_visible()
        api.delete("/v0/topics/reports.full").raise_for_status()
        expect(page.get_by_text("cannot append")).to_have_count(0)
