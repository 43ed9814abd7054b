"""A plain EventSource page: gets records, and resumes by itself after anything that happens to its connection."""

from pathlib import Path

import httpx
import pytest

from tests.browser.chromium import open_page
from tests.http.live import LiveServer, wait_until_ready

# The code that an application would contain. EventSource comes back by itself after a broken connection, with its last
# id; only when the session is gone, as after a restart, does the page make another one, with that id as its cursor.
PAGE = """<!doctype html><title>events</title><script>
const seen = [], told = [];
let last;
async function follow() {
  let made;
  try {
    const body = JSON.stringify({topics: {orders: {}}, limit: 3, heartbeat_ms: 1000, cursor: last});
    const headers = {'content-type': 'application/json'};
    made = await (await fetch('/v0/watch', {method: 'POST', headers, body})).json();
  } catch { return setTimeout(follow, 200); }
  if (made.error) return setTimeout(follow, 200);
  const source = new EventSource(made.stream_url);
  source.addEventListener('record', event => {
    for (const record of JSON.parse(event.data).records) seen.push(record.data.number);
    last = event.lastEventId;
  });
  for (const name of ['tombstone', 'caught-up', 'topic-deleted'])
    source.addEventListener(name, event => { told.push(name); last = event.lastEventId; });
  source.onerror = event => {
    told.push(event.data ? 'told ' + JSON.parse(event.data).code : 'broken');
    if (source.readyState === EventSource.CLOSED) { told.push('session gone'); setTimeout(follow, 100); }
  };
  window.source = source;
}
follow();
</script>"""


def append(live: LiveServer, first: int, last: int) -> None:
    """Appends records numbered from the first to the last. Their seqs may have gaps after a kill without a loss."""
    body = {"records": [{"data": {"number": number, "text": "é\n"}} for number in range(first, last + 1)]}
    httpx.post(f"{live.url}/v0/topics/orders", json=body, timeout=30.0).raise_for_status()


def test_a_page_gets_records_as_they_come(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live:
        append(live, 1, 5)
        with open_page(live.url, PAGE) as page:
            page.wait_for_function("told.includes('caught-up')")
            for number in range(6, 11):
                append(live, number, number)
            page.wait_for_function("seen.length >= 10")
            assert page.evaluate("seen") == list(range(1, 11))
            assert page.evaluate("told") == ["caught-up"]
            httpx.delete(f"{live.url}/v0/topics/orders").raise_for_status()
            page.wait_for_function("told.includes('topic-deleted')")


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_page_survives_a_restart_without_loss_or_repeat(tmp_path: Path, kill: bool) -> None:
    with LiveServer(tmp_path) as live:
        append(live, 1, 4)
        with open_page(live.url, PAGE) as page:
            page.wait_for_function("seen.length >= 4")
            for round_number in range(2):
                live.kill() if kill else live.stop()
                live.start()
                wait_until_ready(live.url)
                before = 4 + 7 * round_number
                append(live, before + 1, before + 7)
                page.wait_for_function(f"seen.length >= {before + 7}")
            append(live, 19, 19)
            page.wait_for_function("seen.length >= 19")
            assert page.evaluate("seen") == list(range(1, 20))
            reported = page.evaluate("told")
    assert reported.count("session gone") == 2
    assert "tombstone" not in reported
    assert ("told 503" in reported) != kill


def test_a_page_whose_stream_is_taken_over_comes_back_by_itself(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live:
        append(live, 1, 4)
        with open_page(live.url, PAGE) as page:
            page.wait_for_function("told.includes('caught-up')")
            path = page.evaluate("new URL(source.url).pathname")
            with httpx.stream("GET", live.url + path, timeout=30.0) as other:
                assert other.status_code == 200
                page.wait_for_function("told.includes('broken')")
            append(live, 5, 7)
            page.wait_for_function("seen.length >= 7")
            assert page.evaluate("seen") == list(range(1, 8))
            assert "session gone" not in page.evaluate("told")
