"""The console with 100,000 topics: lists are paged, and every topic can be found."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chromium import visit
from tests.http.live import LiveServer
from tests.http.pipelined import pipeline

TOPICS = 100_000
A_WRITE = 1_000


def put(name: str, config: bytes) -> bytes:
    head = f"PUT /v0/topics/{name} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n%b" % (len(config), config)


@pytest.mark.slow
def test_a_hundred_thousand_topics_are_no_trouble(browser: Browser, tmp_path: Path) -> None:
    with LiveServer(tmp_path, max_topics="0") as live:
        for first in range(0, TOPICS, A_WRITE):
            requests = [put(f"sensor.{n:06}", b'{"durability":"memory"}') for n in range(first, first + A_WRITE)]
            assert pipeline(live.url, requests).count(b"HTTP/1.1 201") == A_WRITE
        pipeline(live.url, [put("zz-jobs", b'{"type":"queue"}')])
        with visit(browser, f"{live.url}/console#/topics") as page:
            names = page.locator("td.name")
            expect(names).to_have_count(50)
            page.get_by_label("Search topics").fill("sensor.")
            expect(names.first).to_have_text(re.compile("sensor.000000"))
            page.get_by_role("button", name="Next").click()
            expect(names.first).to_have_text(re.compile("sensor.000050"))
            page.get_by_label("Search topics").fill("sensor.09999")
            expect(names).to_have_count(10)
            page.goto(f"{live.url}/console#/overview")
            expect(page.locator(".figure", has_text="Topics")).to_contain_text("100,001")
            page.keyboard.press("Control+k")
            page.keyboard.type("sensor.099998")
            expect(page.locator(".palette [aria-selected=true]")).to_contain_text("sensor.099998")
            page.keyboard.press("Enter")
            expect(page.get_by_role("heading", level=1)).to_have_text("sensor.099998")
            # Found by going through the names, of which it is the last, so many at a time.
            page.goto(f"{live.url}/console#/queues")
            for looked in range(20_000, TOPICS + 1, 20_000):
                expect(page.get_by_text(f"Looked at {looked:,} topics so far.")).to_be_visible(timeout=60_000)
                page.get_by_role("button", name="Search further").click()
            expect(page.locator("td.name")).to_have_text(re.compile("zz-jobs"), timeout=60_000)
