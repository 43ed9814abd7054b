"""The form that makes a stream searchable: fields are inferred, edited, applied, and then searched."""

import httpx
from playwright.sync_api import Browser, expect

from tests.browser.chromium import keep, visit
from tests.browser.sample import HOSTILE, append
from tests.browser.test_console_access import findings
from tests.http.live import LiveServer

JSON = {"content-type": "application/json"}


def test_fields_are_inferred_edited_and_applied(browser: Browser, sampled: LiveServer) -> None:
    with httpx.Client(base_url=sampled.url) as api:
        api.put("/v1/stream/fresh", headers=JSON).raise_for_status()
        entries = [
            {
                "at": f"2026-03-25T10:00:{n:02}Z",
                "msg": f"payment {n} declined",
                "status": 400 + n,
                HOSTILE: 1,
                "odd": odd,
            }
            for n, odd in enumerate((1, "x", True))
        ]
        api.post("/v1/stream/fresh", json=entries).raise_for_status()
        with visit(browser, f"{sampled.url}/console#/search/fresh", bypass_csp=True) as page:
            page.get_by_role("link", name="Make it searchable").click()
            expect(page.get_by_role("heading", name="Make this stream searchable")).to_be_visible()
            expect(page.get_by_role("button", name="Apply")).to_be_disabled()
            page.get_by_role("button", name="Infer from the newest entries").click()
            expect(page.get_by_label("Kind of msg")).to_have_value("text")
            expect(page.get_by_label("Kind of status")).to_have_value("integer")
            expect(page.get_by_label("Primary timestamp")).to_have_value("at")
            page.get_by_text("not proposed").click()
            expect(page.get_by_text("/odd")).to_be_visible()
            assert page.evaluate("window.pwned") is None
            page.get_by_label("Kind of status").select_option("float")
            page.get_by_label("New field", exact=True).fill("user.id")
            page.get_by_label("Kind of the new field").select_option("integer")
            page.get_by_role("button", name="Add", exact=True).click()
            expect(page.get_by_label("Kind of user.id")).to_have_value("integer")
            page.get_by_role("button", name="Remove user.id").click()
            assert findings(page) == []
            keep(page, "search-form")
            page.get_by_role("button", name="Apply").click()
            expect(page.get_by_role("status").filter(has_text="hits")).to_contain_text("3 hits")
            fields = api.get("/v1/stream/fresh/_schema").json()["search"]["fields"]
            assert {name: fields[name]["kind"] for name in ("at", "msg", "status")} == {
                "at": "date", "msg": "text", "status": "float",
            }  # fmt: skip
            assert "user.id" not in fields
            page.get_by_label("Query").fill("declined status:401")
            page.keyboard.press("Enter")
            expect(page.locator(".hit")).to_have_count(1)


def test_a_topic_becomes_searchable_and_its_fields_are_edited(browser: Browser, sampled: LiveServer) -> None:
    with httpx.Client(base_url=sampled.url) as api:
        append(api, "plain", [{"data": {"word": "one"}}, {"data": {"word": "two"}}])
        with visit(browser, f"{sampled.url}/console#/topic/plain/schema") as page:
            page.get_by_label("New field", exact=True).fill("no blank")
            page.get_by_role("button", name="Add", exact=True).click()
            expect(page.get_by_role("alert").last).to_contain_text("A field name begins with a letter or digit")
            page.get_by_role("button", name="Infer from the newest entries").click()
            expect(page.get_by_label("Kind of word")).to_have_value("keyword")
            page.get_by_role("button", name="Apply").click()
            expect(page.locator(".hit")).to_have_count(2)
            page.goto(f"{sampled.url}/console#/topic/plain/schema")
            page.get_by_text("Edit the search fields").click()
            page.get_by_label("Kind of word").select_option("text")
            page.get_by_role("button", name="Apply").click()
            expect(page.locator(".hit")).to_have_count(2)
            assert api.get("/v1/stream/plain/_schema").json()["search"]["fields"]["word"]["kind"] == "text"


def test_who_cannot_change_a_schema_has_no_form(browser: Browser, sampled: LiveServer) -> None:
    with httpx.Client(base_url=sampled.url) as api:
        api.put("/v1/stream/letters", headers={"content-type": "text/plain"}).raise_for_status()
    with visit(browser, f"{sampled.url}/console#/topic/letters") as page:
        expect(page.locator(".badge", has_text="text/plain")).to_be_visible()
        expect(
            page.get_by_role("navigation", name="Views of this topic").get_by_role("link", name="Schema")
        ).to_have_count(0)
