"""`make bench-console`: how soon the console is there, and whether it keeps up.

A server with 10,000 topics; the system's Chromium opens each page afresh, and the browser states when it first painted
and when the page showed what was asked for. Then 1,000 records a second go into one topic while somebody watches: how
many frames a second the browser draws, how old a record is when it is on the screen, and what it costs both sides. With
`--write` the report goes into bench/results/console.md.
"""

import argparse
import http.client
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, CDPSession, sync_playwright
from rich.console import Console

from bench.command import end_with_servers
from bench.peers import our_version
from bench.report import Sheet, machine, write_results
from bench.streams_server import StreamsServer

_TOPICS, _QUICK_TOPICS = 10_000, 1_000
_ROUNDS, _QUICK_ROUNDS = 7, 3
_RECORDS_S = 1_000
_BATCHES_S = 20
_WATCHED_S, _QUICK_WATCHED_S = 20, 6
_PAGES = {"overview": ".chart path.line[d]", "topics": "td.name", "topic/busy": ".record", "queues": ".empty, td.name"}

# Counts the frames, and how old the newest record is in each that drew another one.
_COUNTING = """() => {
  window.counted = {frames: 0, drawn: 0, ages: [], longest: 0};
  let last = '', before = performance.now();
  const turn = (now) => {
    counted.frames += 1;
    counted.longest = Math.max(counted.longest, now - before);
    before = now;
    const rows = document.querySelectorAll('.record');
    const row = rows[rows.length - 1];
    const seq = row?.querySelector('.seq').textContent ?? '';
    if (seq !== last) {
      last = seq; counted.drawn += 1;
      const sent = /"sent":(\\d+)/.exec(row.textContent)?.[1];
      if (sent) counted.ages.push(Date.now() - Number(sent));
    }
    requestAnimationFrame(turn);
  };
  requestAnimationFrame(turn);
}"""


@dataclass
class Figures:
    topics: int
    paint_ms: dict[str, float] = field(default_factory=dict)
    shown_ms: dict[str, float] = field(default_factory=dict)
    files: dict[str, float] = field(default_factory=dict)
    records_s: float = 0.0
    frames_s: float = 0.0
    drawn_s: float = 0.0
    ages_ms: list[float] = field(default_factory=list)
    longest_ms: float = 0.0
    page_cpu: float = 0.0
    server_cpu: float = 0.0
    heap_mb: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer topics and shorter")
    parser.add_argument("--topics", type=int, help="how many topics there are, such as 100000")
    parser.add_argument("--write", action="store_true", help="write the report into bench/results/console.md")
    arguments = parser.parse_args()
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        sys.exit("bench-console needs a browser: `make setup-browser` gets one")
    end_with_servers("bench-console")
    with tempfile.TemporaryDirectory() as folder:
        server = StreamsServer(Path(folder))
        server.start()
        try:
            topics = arguments.topics or (_QUICK_TOPICS if arguments.quick else _TOPICS)
            figures = _measure(server, executable, topics, quick=arguments.quick)
        finally:
            server.end()
    text = _report(figures)
    if arguments.write:
        write_results(text, "console", "Console")


def _measure(server: StreamsServer, executable: str, topics: int, *, quick: bool) -> Figures:
    figures = Figures(topics)
    _create(server.address, figures.topics)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--no-proxy-server", "--enable-precise-memory-info"]
        )
        try:
            for place, sign in _PAGES.items():
                _open_often(browser, server.address, place, sign, _QUICK_ROUNDS if quick else _ROUNDS, figures)
            _watch(browser, server, _QUICK_WATCHED_S if quick else _WATCHED_S, figures)
        finally:
            browser.close()
    return figures


def _create(address: str, topics: int) -> None:
    connection = http.client.HTTPConnection(address, timeout=60)
    for number in range(topics):
        _append(connection, f"sensor.{number:05}", [{"data": number}])
    _append(connection, "busy", [{"data": {"n": 0}}])
    connection.close()


def _append(connection: http.client.HTTPConnection, topic: str, records: list[dict[str, Any]]) -> None:
    body = json.dumps({"records": records, "config": {"durability": "memory"}})
    connection.request("POST", f"/v0/topics/{topic}", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    assert answer.status in (200, 201), answer.status


def _open_often(browser: Browser, address: str, place: str, sign: str, rounds: int, figures: Figures) -> None:
    paints, shown = [], []
    for _ in range(rounds):
        # Without anything that an earlier visit left behind.
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://{address}/console#/{place}")
        page.locator(sign).first.wait_for(state="attached")
        shown.append(page.evaluate("performance.now()"))
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"))
        loaded = page.evaluate(
            "performance.getEntriesByType('resource').map(e => e.name.includes('/console/') ? e.transferSize : 0)"
        )
        figures.files[place] = sum(loaded) / 1024
        context.close()
    figures.paint_ms[place], figures.shown_ms[place] = statistics.median(paints), statistics.median(shown)


def _watch(browser: Browser, server: StreamsServer, seconds: float, figures: Figures) -> None:
    page = browser.new_page(viewport={"width": 1360, "height": 860})
    page.goto(f"http://{server.address}/console#/topic/busy")
    page.locator(".badge", has_text="live").wait_for()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    stop = threading.Event()
    sent = [0]
    writer = threading.Thread(target=_write, args=(server.address, stop, sent))
    writer.start()
    try:
        page.locator(".record").nth(5).wait_for()
        page.evaluate(_COUNTING)
        before = _now(session, server, sent)
        page.wait_for_timeout(seconds * 1000)
        after = _now(session, server, sent)
    finally:
        stop.set()
        writer.join()
    took = after["at"] - before["at"]
    counted = page.evaluate("counted")
    figures.records_s = (after["sent"] - before["sent"]) / took
    figures.frames_s, figures.drawn_s = counted["frames"] / took, counted["drawn"] / took
    figures.ages_ms, figures.longest_ms = sorted(counted["ages"]), counted["longest"]
    figures.page_cpu = (after["page"] - before["page"]) / took
    figures.server_cpu = (after["server"] - before["server"]) / took
    figures.heap_mb = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
    page.close()


def _now(session: CDPSession, server: StreamsServer, sent: list[int]) -> dict[str, float]:
    reported = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return {"at": time.monotonic(), "sent": sent[0], "page": reported["TaskDuration"], "server": server.cpu_s()}


def _write(address: str, stop: threading.Event, sent: list[int]) -> None:
    connection = http.client.HTTPConnection(address, timeout=60)
    began, much = time.monotonic(), _RECORDS_S // _BATCHES_S
    while not stop.is_set():
        now = int(time.time() * 1000)
        _append(connection, "busy", [{"data": {"n": sent[0] + i, "sent": now, "text": "x" * 80}} for i in range(much)])
        sent[0] += much
        stop.wait(max(0.0, began + sent[0] / _RECORDS_S - time.monotonic()))
    connection.close()


def _report(figures: Figures) -> str:
    sheet = Sheet(Console())
    sheet.paragraph(f"Measured with `make bench-console` on {machine({'topics': our_version()})}.")
    sheet.table(
        f"A first visit, {figures.topics:,} topics",
        ["page", "first paint, ms", "shows what was asked, ms", "files, KiB"],
        [
            [place, f"{figures.paint_ms[place]:.0f}", f"{figures.shown_ms[place]:.0f}", f"{figures.files[place]:.0f}"]
            for place in figures.paint_ms
        ],
    )
    ages = figures.ages_ms
    rows = {
        "records a second, written and shown": f"{figures.records_s:,.0f}",
        "frames a second of the browser": f"{figures.frames_s:.0f}",
        "frames a second with new records": f"{figures.drawn_s:.0f}",
        "from the writer to the screen, median": f"{statistics.median(ages):.0f} ms" if ages else "–",
        "the same, 99 of 100": f"{ages[int(len(ages) * 0.99)]:.0f} ms" if ages else "–",
        "longest time between two frames": f"{figures.longest_ms:.0f} ms",
        "processor of the page's main thread": f"{figures.page_cpu:.0%}",
        "processor of the server": f"{figures.server_cpu:.0%}",
        "memory of the page": f"{figures.heap_mb:.0f} MB",
    }
    sheet.table("Watching 1,000 records a second", ["", ""], [[name, value] for name, value in rows.items()])
    return sheet.text


if __name__ == "__main__":
    main()
