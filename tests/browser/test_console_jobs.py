"""Jobs in the console: a list for each state, one job in full, and the operations on jobs and queues."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.chromium import keep, visit
from tests.browser.sample import HOSTILE, append
from tests.browser.test_console_access import findings
from tests.browser.test_console_phone import PHONE, too_wide
from tests.http.live import LiveServer

QUEUE = "thumbnails"
PATH = f"/v0/topics/{QUEUE}"


@pytest.fixture
def queue(sampled: LiveServer) -> Iterator[httpx.Client]:
    """A queue with two ready jobs, one leased after a failure, one delayed and one dead letter."""
    with httpx.Client(base_url=sampled.url) as api:
        for name in (QUEUE, f"{QUEUE}.failed"):
            api.delete(f"/v0/topics/{name}")
        config = {"type": "queue", "lease_ms": 600_000, "max_deliveries": 3, "dead_letter": f"{QUEUE}.failed"}
        api.put(PATH, json=config).raise_for_status()
        append(api, QUEUE, [{"data": {"picture": "broken.png"}, "tag": "old"}, {"data": {"picture": "a.png"}}])
        claim(api, "ann", 2)
        fail = {"node": "ann", "seqs": [1], "reason": "OSError: not a picture", "fatal": True}
        api.post(f"{PATH}/nack", json=fail).raise_for_status()
        api.post(f"{PATH}/nack", json={"node": "ann", "seqs": [2], "reason": "timeout"}).raise_for_status()
        claim(api, "ben", 1)
        more = [{"data": {"picture": f"{n}.png", "html": HOSTILE}, "tag": f"t{n}", "meta": {"m": n}} for n in (3, 4)]
        append(api, QUEUE, more)
        append(api, QUEUE, [{"data": {"picture": "later.png"}}], delay_ms=3_600_000)
        yield api


def claim(api: httpx.Client, node: str, most: int) -> None:
    api.post(f"{PATH}/claim", json={"node": node, "max": most}).raise_for_status()


def state(api: httpx.Client, name: str) -> list[int]:
    return [job["$seq"] for job in api.get(f"{PATH}/jobs", params={"state": name}).json()["jobs"]]


def choose(page: Page, name: str) -> Locator:
    """Chooses a state; returns the rows."""
    page.get_by_role("group", name="State of the jobs").get_by_role("button", name=re.compile(f"^{name}")).click()
    return page.get_by_role("region", name="Jobs").locator("tbody tr")


def confirm(page: Page, label: str) -> None:
    page.locator("dialog").get_by_role("button", name=label, exact=True).click()


def test_jobs_are_listed_by_state_with_worker_deadline_deliveries_and_reason(
    browser: Browser, sampled: LiveServer, queue: httpx.Client
) -> None:
    with visit(browser, f"{sampled.url}/console#/topic/{QUEUE}/queue") as page:
        rows = page.get_by_role("region", name="Jobs").locator("tbody tr")
        expect(rows).to_have_count(2)
        states = page.get_by_role("group", name="State of the jobs")
        expect(states).to_have_text("Ready 2Leased 1Delayed 1Dead 1")
        rows = choose(page, "Leased")
        expect(rows).to_have_count(1)
        for text in ("ben", "2 of 3", "timeout", "a.png"):
            expect(rows).to_contain_text(text)
        expect(rows).to_contain_text(re.compile(r"in (9|10) min"))
        keep(page, "jobs-leased")
        expect(choose(page, "Delayed")).to_contain_text(re.compile("in (59|60) min"))
        rows = choose(page, "Dead")
        for text in ("old", "OSError: not a picture", "broken.png"):
            expect(rows).to_contain_text(text)
        assert "state=dead" in page.url
        page.reload()
        expect(rows).to_contain_text("OSError: not a picture")
        expect(states.get_by_role("button", name="Dead")).to_have_attribute("aria-pressed", "true")


def test_jobs_are_filtered_by_tag_and_a_page_at_a_time(
    browser: Browser, sampled: LiveServer, queue: httpx.Client
) -> None:
    append(queue, QUEUE, [{"data": n, "tag": "even" if n % 2 else "odd"} for n in range(120)])
    with visit(browser, f"{sampled.url}/console#/topic/{QUEUE}/queue") as page:
        rows = page.get_by_role("region", name="Jobs").locator("tbody tr")
        expect(rows).to_have_count(50)
        page.get_by_role("button", name="Next page").click()
        expect(page.get_by_text("50 jobs from seq 54")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("t4")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("4.png")
        assert "tag=t4" in page.url
        page.get_by_label("Only jobs with the tag").fill("nothing")
        expect(page.get_by_text("No ready job has this tag.")).to_be_visible()
        page.get_by_label("Only jobs with the tag").fill("even")
        expect(rows).to_have_count(50)
        page.get_by_role("button", name="Next page").click()
        expect(rows).to_have_count(10)
        page.get_by_role("button", name="First page").click()
        expect(rows).to_have_count(50)


def test_job_is_shown_in_full_and_its_payload_is_text(
    browser: Browser, sampled: LiveServer, queue: httpx.Client
) -> None:
    with visit(browser, f"{sampled.url}/console#/topic/{QUEUE}/queue") as page:
        page.get_by_role("button", name="Show job 3").click()
        box = page.locator("dialog")
        expect(box.get_by_role("region", name="Data of the job")).to_contain_text("<script>window.pwned=2</script>")
        expect(box.get_by_role("region", name="Meta of the job")).to_contain_text('"m": 3')
        assert page.evaluate("window.pwned") is None
        box.get_by_role("button", name="Close").click()
        expect(page.get_by_role("button", name="Show job 3")).to_be_focused()
        append(queue, QUEUE, [{"data": "urgent"}], priority=7)
        row = page.get_by_role("row", name=re.compile("urgent"))
        expect(row.locator("td").nth(1)).to_have_text("7")
        choose(page, "Leased")
        page.get_by_role("button", name="Show job 2").click()
        for text in ("Last failures", "timeout", "delivery 1 by ann", "Worker", "ben"):
            expect(box).to_contain_text(text)
        keep(page, "job")


def test_leased_job_is_extended_released_and_cancelled(
    browser: Browser, sampled: LiveServer, queue: httpx.Client
) -> None:
    with visit(browser, f"{sampled.url}/console#/topic/{QUEUE}/queue?state=leased") as page:
        page.get_by_role("button", name="Extend job 2").click()
        expect(page.locator("#toasts")).to_contain_text("Extended by 10 min 0 s.")
        page.get_by_role("button", name="Release job 2").click()
        confirm(page, "Cancel")
        assert state(queue, "leased") == [2]
        page.get_by_role("button", name="Release job 2").click()
        confirm(page, "Release")
        expect(page.get_by_text("No job is leased.").first).to_be_visible()
        assert state(queue, "ready") == [2, 3, 4]
        claim(queue, "cat", 1)
        page.get_by_role("button", name="Cancel job 2").click()
        expect(page.locator("dialog")).to_contain_text("cat may still be working on it")
        confirm(page, "Cancel the job")
        expect(page.locator("#toasts")).to_contain_text("Cancelled.")
        expect(page.get_by_text("No job is leased.").first).to_be_visible()
        assert state(queue, "leased") == [] and state(queue, "ready") == [3, 4]


def test_delayed_job_is_promoted_and_a_job_that_is_gone_is_reported(
    browser: Browser, sampled: LiveServer, queue: httpx.Client
) -> None:
    with visit(browser, f"{sampled.url}/console#/topic/{QUEUE}/queue?state=delayed") as page:
        page.get_by_role("button", name="Promote job 5").click()
        expect(page.get_by_text("No job is delayed.")).to_be_visible()
        assert state(queue, "ready") == [3, 4, 5]
        choose(page, "Ready")
        page.get_by_role("button", name="Cancel job 5").click()
        queue.post(f"{PATH}/jobs/5/cancel", json={}).raise_for_status()
        confirm(page, "Cancel the job")
        expect(page.locator("#toasts")).to_contain_text("The job does not exist any more.")


def test_dead_letter_is_retried_or_deleted_after_a_confirmation(
    browser: Browser, sampled: LiveServer, queue: httpx.Client
) -> None:
    with visit(browser, f"{sampled.url}/console#/topic/{QUEUE}/queue?state=dead") as page:
        page.get_by_role("button", name="Show job 1").click()
        page.locator("dialog").get_by_role("button", name="Retry").click()
        expect(page.get_by_text("There are no dead letters of this queue.")).to_be_visible()
        assert state(queue, "ready") == [3, 4, 6]
        claim(queue, "ann", 9)
        queue.post(f"{PATH}/nack", json={"node": "ann", "seqs": [6], "fatal": True}).raise_for_status()
        page.get_by_role("button", name="Delete job 2").click()
        confirm(page, "Cancel")
        assert state(queue, "dead") == [2]
        page.get_by_role("button", name="Delete job 2").click()
        confirm(page, "Delete")
        expect(page.get_by_text("There are no dead letters of this queue.")).to_be_visible()
        assert state(queue, "dead") == []


def test_queue_is_paused_and_resumed(browser: Browser, sampled: LiveServer, queue: httpx.Client) -> None:
    queue.put(PATH, json={"max_per_second": 1000, "max_leased": 5}).raise_for_status()
    with visit(browser, f"{sampled.url}/console#/topic/{QUEUE}/queue") as page:
        expect(page.get_by_text("At most 1,000 jobs a second and 5 leased at once.")).to_be_visible()
        page.get_by_role("button", name="Pause the queue").click()
        expect(page.get_by_text("paused: workers get no jobs")).to_be_visible()
        assert queue.post(f"{PATH}/claim", json={"node": "ann"}).json()["count"] == 0
        expect(page.get_by_role("button", name="Resume the queue")).to_be_focused()
        page.goto(f"{sampled.url}/console#/queues")
        expect(page.get_by_role("row", name=re.compile(f"^{QUEUE}"))).to_contain_text("paused")
        page.get_by_role("link", name=QUEUE).click()
        page.get_by_role("button", name="Resume the queue").click()
        expect(page.get_by_role("button", name="Pause the queue")).to_be_visible()
        assert queue.post(f"{PATH}/claim", json={"node": "ann"}).json()["count"] == 1


def test_keyboard_keeps_its_row_while_the_list_changes(
    browser: Browser, sampled: LiveServer, queue: httpx.Client
) -> None:
    with visit(browser, f"{sampled.url}/console#/topic/{QUEUE}/queue") as page:
        button = page.get_by_role("button", name="Show job 4")
        button.focus()
        append(queue, QUEUE, [{"data": "another"}])
        queue.post(f"{PATH}/jobs/3/cancel", json={}).raise_for_status()
        expect(page.get_by_role("button", name="Show job 6")).to_be_visible()
        expect(page.get_by_role("button", name="Show job 3")).to_have_count(0)
        expect(button).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("dialog")).to_contain_text("Job 4")
        page.keyboard.press("Escape")
        expect(page.locator("dialog")).to_have_count(0)
        expect(button).to_be_focused()


@pytest.mark.parametrize("wide", [True, False])
def test_job_lists_and_dialogs_have_no_finding(
    browser: Browser, sampled: LiveServer, queue: httpx.Client, wide: bool
) -> None:
    wrong = {}
    with visit(browser, f"{sampled.url}/console#/topic/{QUEUE}/queue", bypass_csp=True) as page:
        if not wide:
            page.set_viewport_size(PHONE)
        for name, seq in (("Ready", 3), ("Leased", 2), ("Delayed", 5), ("Dead", 1)):
            expect(choose(page, name).first).to_contain_text(f"{seq}")
            shown = page.get_by_role("button", name=f"Show job {seq}")
            wrong[name] = [*findings(page), *([] if wide else too_wide(page))]
            keep(page, f"{'jobs' if wide else 'phone-jobs'}-{name.lower()}")
            shown.click()
            expect(page.locator("dialog h2")).to_be_visible()
            wrong[f"{name} dialog"] = findings(page)
            page.keyboard.press("Escape")
    assert {place: found for place, found in wrong.items() if found} == {}


@pytest.mark.parametrize(
    ("scopes", "state", "offered"),
    [
        ("r", "leased", []),
        ("rw", "leased", ["Extend", "Release", "Acknowledge"]),
        ("rw+d", "dead", ["Retry", "Delete"]),
    ],
)
def test_operations_the_key_does_not_allow_are_hidden(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, scopes: str, state: str, offered: list[str]
) -> None:
    with LiveServer(tmp_path_factory.mktemp("keys"), api_keys=f"boss,guest:{scopes}") as live:
        with httpx.Client(base_url=live.url, headers={"authorization": "Bearer boss"}) as api:
            api.put(PATH, json={"type": "queue", "dead_letter": "failed"}).raise_for_status()
            append(api, QUEUE, [{"data": 1}, {"data": 2}])
            claim(api, "ann", 2)
            api.post(f"{PATH}/nack", json={"node": "ann", "seqs": [1], "fatal": True}).raise_for_status()
        with visit(browser, f"{live.url}/console#/topic/{QUEUE}/queue?state={state}") as page:
            page.get_by_label("Key").fill("guest")
            page.keyboard.press("Enter")
            rows = page.get_by_role("region", name="Jobs").locator("tbody tr")
            expect(rows).to_have_count(1)
            expect(rows.locator("td").last.get_by_role("button")).to_have_text(offered)
            expect(page.get_by_role("button", name="Pause the queue")).to_have_count(0)


def test_dead_letters_need_attention_only_when_they_are_old(browser: Browser, tmp_path: Path) -> None:
    with LiveServer(tmp_path, dead_letter_attention_ms="3600000") as live:
        with httpx.Client(base_url=live.url) as api:
            api.put(PATH, json={"type": "queue", "dead_letter": "failed"}).raise_for_status()
            append(api, QUEUE, [{"data": 1}])
            claim(api, "ann", 1)
            api.post(f"{PATH}/nack", json={"node": "ann", "seqs": [1], "fatal": True}).raise_for_status()
        with visit(browser, f"{live.url}/console#/overview") as page:
            expect(page.locator(".attention")).to_have_text("OK: nothing needs attention.")
