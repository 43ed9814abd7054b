"""The tour of docs/tour.md: the demo runs, and each stop shows the content that the page describes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
from playwright.sync_api import Browser, expect

from tests.browser.chromium import keep, visit
from tests.http.live import LiveServer
from tests.unit.docs.pages import read, rows
from tools.demo import Demo, welcome
from tools.demo_data import flights, webhooks


def test_every_stop_of_the_tour_shows_what_it_states(browser: Browser, tmp_path: Path) -> None:
    stops = [(cells[0].strip("`"), cells[2].strip("`")) for cells in rows(read("docs/tour.md")) if len(cells) == 3]
    assert len(stops) > 7
    with LiveServer(tmp_path) as live:
        demo = Demo(live.url, speed=25.0)
        demo.prepare()
        demo.prepare()  # A second time changes nothing.
        demo.start()
        try:
            with visit(browser, f"{live.url}/console") as page:
                for place, words in stops:
                    page.goto(f"{live.url}/console{place}")
                    expect(page.get_by_text(words).filter(visible=True).first).to_be_visible(timeout=30_000)
                    keep(page, f"tour-{place[2:].partition('?')[0].replace('/', '-')}")
        finally:
            demo.stop()
        queue = httpx.get(f"{live.url}/v0/topics/notices").json()
        assert queue["head_seq"] > 0
        run_commands(int(live.url.rpartition(":")[2]))


def run_commands(port: int) -> None:
    """The commands that the demo prints run as they stand, and show something."""
    commands = re.findall(r"^.* \.venv/bin/(topics .*)$", welcome(port), re.MULTILINE)
    assert len(commands) == 4
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", *command.split()], env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, command
        assert done.stderr in ("", "topics: there are more: use --limit or --all\n"), command
        assert done.stdout, command


def test_without_what_is_fetched_the_demo_makes_something_up(tmp_path: Path) -> None:
    flight = next(flights(tmp_path))
    assert {"carrier", "flight", "delay_min", "note"} <= flight.keys()
    name, payload = next(webhooks(tmp_path))
    assert name and payload
