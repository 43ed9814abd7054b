"""The pictures of docs/images: taken of a busy server, by `make pictures`, and small enough for a repository."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.browser.chromium import keep, visit
from tests.browser.sample import fill_queue, fill_streams
from tests.browser.test_console_phone import too_wide
from tests.http.live import LiveServer
from tests.unit.docs.pages import DOCS, PAGES
from tools.demo import Demo
from tools.pictures import IMAGES, PICTURES, palette_of, pixels_of, written

_BYTES_MAX = 150_000


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that looks as if it were used."""
    with LiveServer(tmp_path_factory.mktemp("busy")) as live:
        with httpx.Client(base_url=live.url, timeout=30.0) as api:
            fill_streams(api)
            fill_queue(api)
        demo = Demo(live.url, speed=8.0)
        demo.prepare()
        demo.start()
        yield live
        demo.stop()


def overview(page: Page) -> None:
    # Charts grow by a point a second, and some should be there.
    line = page.locator(".chart path.line").first
    expect(line).to_have_attribute("d", re.compile(r"^(?:[ML][^ML]*){25,}$"), timeout=120_000)
    expect(page.locator(".figures")).not_to_contain_text("…", timeout=120_000)


def gap(page: Page) -> None:
    expect(page.locator(".watermarks")).to_contain_text("100 of 100", timeout=120_000)
    expect(page.locator(".spark path.line[d*=L]").first).to_be_attached()
    page.locator(".tail").press("Home")
    expect(page.locator(".gap")).to_contain_text("evicted to stay below the topic's cap", timeout=120_000)


def search(page: Page) -> None:
    expect(page.locator("svg.bars rect").nth(12)).to_be_attached(timeout=120_000)


def jobs(page: Page) -> None:
    expect(page.locator("td.reason").nth(5)).to_contain_text("phone is off", timeout=120_000)


def schedules(page: Page) -> None:
    expect(page.get_by_role("row", name=re.compile("digest"))).to_contain_text("ago", timeout=120_000)


def consumer(page: Page) -> None:
    expect(page.locator(".chart path.line").first).to_have_attribute(
        "d", re.compile(r"^(?:[ML][^ML]*){20,}$"), timeout=120_000
    )


STOPS = {
    "overview": ("overview", overview),
    "gap": ("topic/github.recent", gap),
    "search": ("search/weblog?q=card", search),
    "queue": ("topic/notices/queue?state=dead", jobs),
    "schedules": ("schedules", schedules),
    "consumer": ("consumers/github/warehouse", consumer),
    "routers": ("routers", lambda page: expect(page.locator("svg.graph a").nth(3)).to_be_visible()),
    "schema": (
        "topic/bills/schema",
        lambda page: expect(page.get_by_role("region", name="As read")).to_contain_text('"customer"'),
    ),
}


# The screen of a phone.
POCKET: ViewportSize = {"width": 360, "height": 740}
POCKET_STOPS = ("overview", "gap", "search")


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_busy_console_is_worth_a_picture(browser: Browser, busy: LiveServer, theme: str) -> None:
    with visit(browser, f"{busy.url}/console", color_scheme=theme) as page:
        for name, (place, ready) in STOPS.items():
            page.goto(f"{busy.url}/console#/{place}")
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            ready(page)
            keep(page, f"picture-{name}-{theme}")


@pytest.mark.slow
def test_a_busy_console_fits_a_phone(browser: Browser, busy: LiveServer) -> None:
    with visit(browser, f"{busy.url}/console", viewport=POCKET, has_touch=True) as page:
        for name in POCKET_STOPS:
            place, ready = STOPS[name]
            page.goto(f"{busy.url}/console#/{place}")
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            ready(page)
            assert too_wide(page) == []
            page.evaluate("document.querySelector('.page').scrollTop = 0")
            keep(page, f"pocket-{name}-light")


def test_the_pictures_of_the_docs_are_those_that_are_made_and_are_small() -> None:
    there = {path.stem: path for path in IMAGES.glob("*.png")}
    assert there.keys() == PICTURES.keys()
    shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name, path in there.items():
        assert path.stat().st_size < _BYTES_MAX, name
        assert f"images/{name}.png)" in shown, f"no page shows {name}"
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert {path.parent for path in DOCS.rglob("*.png")} == {IMAGES}
    assert {source.split("-")[1] for sources in PICTURES.values() for source in sources} <= STOPS.keys()


def test_a_picture_with_few_colours_is_the_same_when_it_is_written_small(browser: Browser, tmp_path: Path) -> None:
    """Squares of 200 colours, whose points the browser guesses from their neighbours by every rule there is."""
    colours = ", ".join(f"rgb({n} {255 - n} {n * 7 % 256}) {n}px {n + 1}px" for n in range(200))
    with visit(browser, "about:blank") as page:
        page.set_content(f"<body style='margin:0;height:300px;background:linear-gradient(80deg, {colours})'>")
        before = pixels_of(page.screenshot(clip={"x": 0, "y": 0, "width": 150, "height": 120}))
    assert before.shape == (120, 150, 3)
    palette, numbers = palette_of(before)
    if len(np.unique(before.reshape(-1, 3), axis=0)) <= 256:
        assert (palette[numbers] == before).all()
    picture = tmp_path / "picture.png"
    picture.write_bytes(written(palette, numbers))
    with visit(browser, picture.as_uri()) as page:
        shown = page.locator("img").evaluate(
            """image => {
                const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight).getContext('2d');
                canvas.drawImage(image, 0, 0);
                return [...canvas.getImageData(0, 0, image.naturalWidth, image.naturalHeight).data];
            }"""
        )
    assert (np.array(shown, np.uint8).reshape(120, 150, 4)[:, :, :3] == palette[numbers]).all()
