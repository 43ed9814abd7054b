"""The console in use: a visitor looks around, follows records, searches, writes, and sees a loss reported."""

import re
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import keep, visit
from tests.browser.sample import HOSTILE, HOSTILE_STREAM, append
from tests.http.live import LiveServer


def rows(page: Page) -> list[int]:
    """The seqs of the records that are drawn."""
    return [int(text) for text in page.locator(".record .seq").all_inner_texts()]


def test_root_path_shows_the_overview(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, sampled.url) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        assert page.url == f"{sampled.url}/console"
        topics = httpx.get(f"{sampled.url}/v0/ready").json()["topics"]
        expect(page.locator(".figure", has_text="Topics")).to_contain_text(f"{topics}")
        expect(page.locator(".attention")).to_contain_text("1 router is blocked")
        expect(page.locator(".figure", has_text="Requests")).to_contain_text("/s")
        keep(page, "overview")


def test_topics_are_listed_a_page_at_a_time_and_found_by_a_part_of_the_name(
    browser: Browser, sampled: LiveServer
) -> None:
    with visit(browser, f"{sampled.url}/console#/topics") as page:
        names = page.locator("td.name")
        expect(names).to_have_count(50)
        total = httpx.get(f"{sampled.url}/v0/topics?streams=true&total=true&page_size=1").json()["total"]["value"]
        expect(page.get_by_text(f"{total} topics, 1 to 50 shown")).to_be_visible()
        page.get_by_role("button", name="Next").click()
        expect(page.get_by_text(f"{total} topics, 51 to 100 shown")).to_be_visible()
        expect(names.first).not_to_have_text("billing")
        page.get_by_label("Search topics").fill("NY.11")
        expect(names).to_have_count(10)
        expect(page.get_by_text("10 topics, 1 to 10 shown")).to_be_visible()
        assert "q=NY.11" in page.url
        keep(page, "topics")
        page.get_by_label("Search topics").fill("nothing like it")
        expect(page.get_by_text("No topic has “nothing like it” in its name.")).to_be_visible()
        page.get_by_label("Search topics").fill("")
        page.get_by_label("Sort order").select_option("count:desc")
        expect(names.first).to_have_text("weblog")
        page.reload()
        expect(names.first).to_have_text("weblog")
        page.get_by_label("Sort order").select_option("name")
        page.get_by_label("Search topics").fill("many.113")
        page.get_by_role("link", name="many.113").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("many.113")


def test_system_topics_are_hidden_until_requested_and_streams_have_a_badge(
    browser: Browser, sampled: LiveServer
) -> None:
    with visit(browser, f"{sampled.url}/console#/topics") as page:
        expect(page.locator("td.name").first).to_be_visible()
        page.get_by_label("Search topics").fill("__")
        expect(page.get_by_text("No match")).to_be_visible()
        page.get_by_label("System topics").check()
        expect(page.get_by_role("link", name="__registry__")).to_be_visible()
        assert "system=1" in page.url
        page.get_by_label("Search topics").fill("rooms/42")
        expect(page.get_by_role("row", name=re.compile("rooms.42")).get_by_text("stream")).to_be_visible()
        page.get_by_label("Search topics").fill("orders")
        expect(page.get_by_role("row", name=re.compile(r"orders\.eu")).get_by_text("stream")).to_have_count(0)
        page.goto(f"{sampled.url}/console#/topic/rooms%2F42")
        expect(page.locator(".head .badge", has_text="stream application/json")).to_be_visible()
        for place in ("schema", "search"):
            page.goto(f"{sampled.url}/console#/{place}")
            expect(page.get_by_role("link", name="weblog")).to_be_visible()
            expect(page.get_by_role("link", name=re.compile("^__"))).to_have_count(0)


def test_records_come_live_and_a_pause_misses_nothing(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, f"{sampled.url}/console#/topic/live") as page, httpx.Client(base_url=sampled.url) as api:
        expect(page.get_by_text("This topic does not exist")).to_be_visible()
        append(api, "live", [{"data": {"n": n}} for n in range(1, 4)])
        page.reload()
        expect(page.locator(".record")).to_have_count(3)
        expect(page.locator(".badge", has_text="live")).to_be_visible()
        append(api, "live", [{"data": {"n": 4}}])
        expect(page.locator(".record")).to_have_count(4)
        page.get_by_role("button", name="Pause").click()
        append(api, "live", [{"data": {"n": n}} for n in range(5, 9)])
        # The other views of the page have been updated, the list has not.
        expect(page.locator(".watermarks")).to_contain_text("head 8")
        assert rows(page) == [1, 2, 3, 4]
        page.get_by_role("button", name="Resume").click()
        expect(page.locator(".record")).to_have_count(8)
        assert rows(page) == list(range(1, 9))
        page.get_by_label("Filter the rows").fill('"n":7')
        expect(page.locator(".record")).to_have_count(1)
        assert rows(page) == [7]


def test_loss_is_drawn_as_a_gap_with_its_reason(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, f"{sampled.url}/console#/topic/recent") as page:
        gap = page.locator(".gap")
        page.locator(".tail").press("Home")
        expect(gap).to_contain_text("1–70")
        expect(gap).to_contain_text("70 records evicted to stay below the topic's cap")
        expect(page.locator(".watermarks")).to_contain_text("30 of 30")
        keep(page, "gap")
        expect(page.locator(".detail")).to_contain_text("Gap, 1 to 70")
    with visit(browser, f"{sampled.url}/console#/topic/orders") as page, httpx.Client(base_url=sampled.url) as api:
        expect(page.locator(".record").last).to_contain_text("order-40")
        api.post("/v0/topics/orders/delete", json={"match": "order-38"}).raise_for_status()
        page.reload()
        expect(page.locator(".gap.quiet")).to_contain_text("1 record deleted or acknowledged")


def test_any_place_can_be_gone_to_and_linked(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, f"{sampled.url}/console#/topic/orders/live?seq=12") as page:
        expect(page.locator(".detail h2")).to_have_text("Record 12")
        expect(page.locator(".detail")).to_contain_text('"customer"')
        expect(page.locator(".record[aria-selected=true] .seq")).to_have_text("12")
        page.get_by_label("Go to", exact=True).select_option("seq")
        page.get_by_role("spinbutton", name="Seq").fill("30")
        page.get_by_role("button", name="Go", exact=True).click()
        expect(page.locator(".detail h2")).to_have_text("Record 30")
        assert page.url.endswith("seq=30")
        page.get_by_label("Go to", exact=True).select_option("time")
        page.get_by_label("Time").fill("2020-01-01T00:00")
        page.get_by_role("button", name="Go", exact=True).click()
        expect(page.locator(".detail h2")).to_have_text("Record 1")
        page.locator(".tail").press("ArrowDown")
        expect(page.locator(".detail h2")).to_have_text("Record 2")


def test_numbers_are_shown_as_they_were_written(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, f"{sampled.url}/console#/topic/exact/live?seq=2") as page:
        expect(page.locator(".detail")).to_contain_text("12345678901234567890")
        expect(page.locator(".detail")).to_contain_text('"one": 1.0')


def test_console_escapes_user_content(browser: Browser, sampled: LiveServer) -> None:
    places = (
        "topics", "topic/hostile", "topic/hostile/live?seq=1", "topic/rooms%2F42", "search/weblog", "routers", "schema",
        f"topic/{quote(HOSTILE_STREAM, safe='')}", "topic/%3Cimg%20src=x%20onerror=window.pwned=4%3E", "nowhere",
    )  # fmt: skip
    with visit(browser, f"{sampled.url}/console") as page:
        for place in places:
            page.goto(f"{sampled.url}/console#/{place}")
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            page.wait_for_load_state("networkidle" if "topic" not in place else "load")
            if "rooms%2F%3C" in place:
                expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE_STREAM)
            if place == "topic/hostile/live?seq=1":
                expect(page.locator(".detail pre").first).to_contain_text("<script>window.pwned=2</script>")
            assert page.evaluate("window.pwned") is None
            assert page.locator("img[src=x]").count() == 0
        page.goto(f"{sampled.url}/console#/search/weblog?q=pwned")
        expect(page.locator(".hit").first).to_contain_text(HOSTILE[:20])
        assert page.evaluate("window.pwned") is None
        # The browser itself would refuse such code, which the console does not contain.
        refused = "try { document.body.innerHTML = '<b>x</b>'; 'made' } catch (e) { e.name }"
        assert page.evaluate(refused) == "TypeError"


def test_a_record_is_appended_by_hand(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, f"{sampled.url}/console#/topic/exact/append") as page:
        page.get_by_label("Data").fill('{"typed": 1e400')
        expect(page.get_by_text("Not valid JSON")).to_be_visible()
        page.get_by_label("Data").fill('{"typed": 10000000000000000000001}')
        page.get_by_label("Tag").fill("by-hand")
        page.get_by_role("button", name="Append", exact=True).click()
        page.get_by_role("link", name=re.compile("^seq ")).click()
        expect(page.locator(".detail")).to_contain_text("10000000000000000000001")
        expect(page.locator(".detail")).to_contain_text("by-hand")


def test_a_config_is_changed_and_a_topic_deleted_only_on_purpose(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, f"{sampled.url}/console#/topics") as page, httpx.Client(base_url=sampled.url) as api:
        page.get_by_role("button", name="New topic").click()
        page.get_by_label("Name", exact=True).fill("made")
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("made")
        page.get_by_role("link", name="Config").click()
        page.get_by_label("cap_records").fill("7")
        page.get_by_role("button", name="Save").click()
        expect(page.locator("#toasts")).to_contain_text("Saved")
        assert api.get("/v0/topics/made").json()["config"]["cap_records"] == 7
        page.get_by_role("button", name="Delete this topic").click()
        final = page.get_by_role("button", name="Delete forever")
        expect(final).to_be_disabled()
        page.locator("dialog input").fill("mad")
        expect(final).to_be_disabled()
        page.locator("dialog input").fill("made")
        final.click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Topics and streams")
        assert api.get("/v0/topics/made").status_code == 404


def test_a_queue_shows_who_holds_what_and_gives_it_back(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, f"{sampled.url}/console#/queues") as page, httpx.Client(base_url=sampled.url) as api:
        page.get_by_role("link", name="jobs").click()
        expect(page.locator(".figure", has_text="In flight")).to_contain_text("3")
        expect(page.get_by_text("ann 2")).to_be_visible()
        page.get_by_role("button", name="Leased 3").click()
        keep(page, "queue")
        job = page.get_by_role("row", name=re.compile(r"\bben\b"))
        job.get_by_role("button", name="Release").click()
        page.locator("dialog").get_by_role("button", name="Cancel").click()
        assert api.get("/v0/topics/jobs").json()["queue"]["in_flight"] == 3
        job.get_by_role("button", name="Release").click()
        page.locator("dialog").get_by_role("button", name="Release").click()
        expect(page.locator(".figure", has_text="In flight")).to_contain_text("2")
        # Its only delivery was the one it was allowed, so the next claim moves it to the dead letters.
        api.post("/v0/topics/jobs/claim", json={"node": "cat", "max": 1}).raise_for_status()
        expect(page.locator(".figure", has_text="Dead letters")).to_contain_text("1 so far")
        page.goto(f"{sampled.url}/console#/overview")
        expect(
            page.get_by_role("link", name="1 dead letter waits in the dead-letter topics of queues, the oldest for ")
        ).to_be_visible()
        page.goto(f"{sampled.url}/console#/queues")
        expect(page.locator("a.waiting")).to_have_text("1")
        page.get_by_role("link", name="jobs").click()
        page.get_by_role("button", name="Redrive…").click()
        page.get_by_role("button", name="Redrive", exact=True).click()
        expect(page.locator("#toasts")).to_contain_text("Moved 1 job back")
        assert api.get("/v0/topics/failed").json()["count"] == 0


def test_routers_are_a_graph_and_state_what_holds_them_up(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, f"{sampled.url}/console#/routers") as page:
        expect(page.locator("svg.graph a")).to_have_count(5)
        expect(page.locator("g.edge.blocked text")).to_have_text("blocked: topic_full")
        expect(page.get_by_role("row", name=re.compile("recent->full"))).to_contain_text("blocked: topic_full")
        keep(page, "routers")


def test_a_schema_shows_its_versions_and_what_a_lens_makes_of_an_entry(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, f"{sampled.url}/console#/schema") as page:
        page.get_by_role("link", name="bills").click()
        written, read = page.get_by_role("region", name="As written"), page.get_by_role("region", name="As read")
        expect(written).to_contain_text('"buyer": "ada"')
        expect(read).to_contain_text('"customer": "ada"')
        entry = page.get_by_role("spinbutton", name="Entry")
        entry.fill("4")
        entry.press("Tab")
        expect(read).to_contain_text('"id": 3')
        keep(page, "schema")


def test_a_search_completes_narrows_explains_and_can_be_shared(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, f"{sampled.url}/console#/search") as page:
        page.get_by_role("link", name="weblog").click()
        expect(page.get_by_role("status").first).to_contain_text("80 hits")
        query = page.get_by_label("Query")
        query.press_sequentially("card ser")
        expect(page.get_by_role("option", name=re.compile("service:"))).to_be_visible()
        query.press("Tab")
        query.press_sequentially("bil")
        query.press("Tab")
        assert query.input_value() == "card service:billing"
        query.press("Enter")
        expect(page.locator(".hit")).to_have_count(20)
        expect(page.locator(".hit mark").first).to_have_text("card")
        expect(page.locator("svg.bars rect").first).to_be_attached()
        page.locator(".facets button", has_text="202").first.click()
        expect(query).to_have_value("card service:billing status:202")
        page.get_by_label("Explain").check()
        expect(page.get_by_role("region", name="Explanation")).to_be_visible()
        keep(page, "search")
        found = page.locator(".hit").count()
        shared = page.url
        page.get_by_label("Query").fill("status:nonsense")
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator(".hits .failure")).to_be_visible()
    with visit(browser, shared) as page:
        expect(page.get_by_label("Query")).to_have_value("card service:billing status:202")
        expect(page.locator(".hit")).to_have_count(found)


@pytest.mark.parametrize("word", ["many.04", "rout"])
def test_the_keyboard_alone_gets_anywhere(browser: Browser, sampled: LiveServer, word: str) -> None:
    with visit(browser, f"{sampled.url}/console") as page:
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.keyboard.press("Control+k")
        page.keyboard.type(word)
        expect(page.locator(".palette [aria-selected=true]")).to_contain_text(re.compile(word, re.IGNORECASE))
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(f"^{word}", re.IGNORECASE))
        page.keyboard.press("/")
        expect(page.locator(":focus")).to_have_attribute("type", "search")
