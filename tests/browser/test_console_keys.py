"""The console where keys are asked for, and while its server goes away and comes back."""

import json
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import keep, visit
from tests.browser.sample import append
from tests.http.live import LiveServer, wait_until_ready

KEYS = "boss-secret,looker-secret:read:shop.,till-secret:rw:shop.,filler-secret:write"


def sign_in(page: Page, secret: str) -> None:
    page.get_by_label("API key").fill(secret)
    page.get_by_role("button", name="Sign in").click()


def test_a_key_stays_in_memory_and_decides_what_is_offered(browser: Browser, tmp_path: Path) -> None:
    with (
        LiveServer(tmp_path, api_keys=KEYS) as live,
        httpx.Client(base_url=live.url, headers={"authorization": "Bearer boss-secret"}) as api,
    ):
        append(api, "shop.sales", [{"data": "a sale"}])
        append(api, "wages", [{"data": "secret"}])
        with visit(browser, f"{live.url}/console#/topics") as page:
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            keep(page, "sign-in")
            sign_in(page, "wrong")
            expect(page.get_by_role("alert")).to_have_text("The server does not accept this key.")
            sign_in(page, "looker-secret")
            expect(page.locator("td.name")).to_have_text(["shop.sales"])
            expect(page.get_by_role("button", name="New topic")).to_have_count(0)
            page.get_by_role("link", name="shop.sales").click()
            expect(page.locator(".badge", has_text="live")).to_be_visible()
            append(api, "shop.sales", [{"data": "another"}])
            expect(page.locator(".record")).to_have_count(2)
            expect(page.get_by_role("link", name="Append")).to_have_count(0)
            page.goto(f"{live.url}/console#/topic/wages")
            expect(page.get_by_role("alert").last).to_contain_text("may not access the name")
            page.goto(f"{live.url}/console#/settings")
            expect(page.get_by_text("shop.…")).to_be_visible()
            kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
            assert "secret" not in kept + " ".join(asked) + page.content()
            assert any("token=tok_" in url for url in asked)
            page.get_by_role("button", name="Sign out").click()
            expect(page.get_by_label("API key")).to_have_value("")
            sign_in(page, "till-secret")
            expect(page.get_by_text("delete, admin")).to_be_visible()
            page.reload()
            expect(page.get_by_label("API key")).to_have_value("")
            page.goto(f"{live.url}/console#/overview")
            sign_in(page, "filler-secret")
            expect(page.get_by_role("alert").last).to_contain_text("lacks the scope read")


def test_a_key_that_is_taken_away_ends_the_visit(browser: Browser, tmp_path: Path) -> None:
    with LiveServer(tmp_path, api_keys="first") as live, visit(browser, f"{live.url}/console#/overview") as page:
        sign_in(page, "first")
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        live.stop()
        live._settings["TOPICS_API_KEYS"] = "second"
        live.start()
        wait_until_ready(live.url)
        expect(page.get_by_role("alert")).to_have_text("This key is no longer valid.")


@pytest.mark.parametrize(
    ("topic", "keys"), [("orders", "boss"), ("rooms/1", None)], ids=["by events, with keys", "by requests that wait"]
)
def test_a_tail_survives_a_restart_without_loss_or_repeat(
    browser: Browser, tmp_path: Path, topic: str, keys: str | None
) -> None:
    settings = {} if keys is None else {"api_keys": keys}
    headers = {} if keys is None else {"authorization": f"Bearer {keys}"}
    with (
        LiveServer(tmp_path, **settings) as live,
        httpx.Client(base_url=live.url, headers={**headers, "content-type": "application/json"}) as api,
    ):
        api.put(f"/v1/stream/{topic}").raise_for_status()

        def write(first: int, last: int) -> None:
            body = json.dumps([{"n": n} for n in range(first, last + 1)])
            api.post(f"/v1/stream/{topic}", content=body).raise_for_status()

        write(1, 3)
        with visit(browser, f"{live.url}/console#/topic/{topic.replace('/', '%2F')}") as page:
            if keys is not None:
                sign_in(page, keys)
            expect(page.locator(".record")).to_have_count(3)
            live.kill()
            expect(page.locator(".banner")).to_contain_text("does not answer")
            live.start()
            wait_until_ready(live.url)
            write(4, 6)
            expect(page.locator(".record")).to_have_count(6)
            expect(page.locator(".banner")).to_be_hidden()
            shown = page.locator(".record .seq").all_inner_texts()
            assert shown == [str(number) for number in range(1, 7)]
