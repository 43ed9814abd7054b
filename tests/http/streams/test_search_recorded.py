"""Conversations about searching with another server of the same protocol, held again with ours.

Hits, sums, keys, totals and refusals are the same. Times differ between servers, and so do the amount scanned and the
spelling of offsets; a search that ran out of time reports here how much it left out.
"""

import json
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from tests.unit.search.test_recordings import CONVERSATIONS, number
from topics.streams.stream_state import decode_offset

FREE_COVERAGE = {
    "scanned_tail_docs", "scanned_tail_time_ms", "scanned_wal_rows", "candidate_doc_ids", "decoded_records",
    "json_parse_time_ms", "peak_hits_held",
}  # fmt: skip
FREE_HEADERS = ("search-took-ms", "search-scanned-tail-docs", "search-scanned-tail-time-ms", "search-candidate-doc-ids")
ZERO = "0" * 26


def entry(offset: str) -> int:
    """Returns the entry before an offset of our server, counted from 0."""
    return decode_offset(offset)[1] - 1


def same(ours: Any, theirs: Any, where: str = "") -> None:
    """Compares answers; every text in the form of a recorded offset counts as an offset."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        for name in theirs:
            if name not in FREE_COVERAGE and name != "took_ms" and not name.endswith("_time_ms") and name != "timing":
                same(ours[name], theirs[name], f"{where}.{name}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            same(one, other, f"{where}[{index}]")
    elif isinstance(theirs, str) and len(theirs) == 26 and theirs.startswith("00"):
        assert entry(ours) == number(theirs), where
    else:
        assert ours == theirs, where


class Player:
    def __init__(self, http: httpx.Client) -> None:
        self.http = http
        self.after: Any = None

    def play(self, step: dict[str, Any]) -> None:
        body = step.get("body")
        if isinstance(body, dict) and body.get("search_after") == "$after":
            body = {**body, "search_after": self.after}
        content = b"" if body is None else json.dumps(body).encode()
        while True:
            response = self.http.request(step["method"], step["path"], headers=step.get("headers"), content=content)
            # On a machine that is busy a search may take more than its time.
            if response.status_code != 408 or step["status"] == 408:
                break
        assert response.status_code == step["status"], (step["path"], response.text)
        if "answer" in step:
            self.check(step, response)

    def check(self, step: dict[str, Any], response: httpx.Response) -> None:
        theirs, ours = step["answer"], response.json()
        if response.status_code == 400:
            assert ours["error"]["code"] == theirs["error"]["code"]
            assert ours["error"]["message"] == theirs["error"]["message"]
            assert response.headers["cache-control"] == "no-store"
            return
        resource = urlsplit(step["path"]).path.rpartition("/")[2]
        if response.status_code == 408:
            # Theirs states that nothing is missing.
            coverage = theirs["coverage"]
            coverage |= {name: ours["coverage"][name] for name in coverage if name.startswith("possible_missing")}
            coverage |= {name: ours["coverage"][name] for name in ("mode", "oldest_omitted_append_at")}
            coverage["visible_through_offset"] = ZERO
            assert ours["coverage"]["possible_missing_events_upper_bound"] == 4
        if resource != "_profile":
            same(ours, theirs)
        if resource == "_search":
            self.after = ours["next_search_after"]
            for name, value in step["answer_headers"].items():
                assert name in response.headers
                if name not in FREE_HEADERS and not name.endswith("-time-ms") and name.startswith("search-timed"):
                    assert response.headers[name] == value
        if "filter=" in step["path"]:
            self.check_filtered(step, response)

    @staticmethod
    def check_filtered(step: dict[str, Any], response: httpx.Response) -> None:
        given = urlsplit(step["path"]).query.partition("filter=")[2]
        spelled = given if "%" in given else quote(given, safe="")
        assert f"filter={spelled}" in response.headers["etag"]
        assert entry(response.headers["stream-next-offset"]) == number(step["answer_headers"]["stream-next-offset"])


@pytest.mark.parametrize("name", sorted(CONVERSATIONS))
def test_a_recorded_conversation_about_searching(http: httpx.Client, name: str) -> None:
    player = Player(http)
    for step in CONVERSATIONS[name]:
        player.play(step)
