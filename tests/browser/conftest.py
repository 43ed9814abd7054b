"""One browser and one server for all tests that only look."""

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import open_browser
from tests.browser.sample import fill
from tests.http.live import LiveServer


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with a little of everything. Its pipeline is on and has nothing to do, as nothing is sealed."""
    with LiveServer(tmp_path_factory.mktemp("sampled"), archive="1") as live:
        with httpx.Client(base_url=live.url, timeout=30.0) as api:
            fill(api)
        yield live
