"""Pages of hits: the same bytes in however many portions they are shown."""

import json
from typing import Any

import pytest

from tests.unit.conftest import open_engine
from tests.unit.streams.conftest import append, create
from tests.unit.streams.describing import JSON, update
from topics.api.v1 import search_answers
from topics.api.v1.search_answers import Make, encode_body, is_large, showing, stream_hits, topic_hits
from topics.api.v1.search_requests import SearchBody, bind_request
from topics.search.service import search_service
from topics.search.service.query_execution import Outcome
from topics.search.service.search_service import Fetched, search_config_of
from topics.streams.streams import Streams, inline_streams
from topics.testing import FakeDisk, ManualClock

FIELDS = {
    "time": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/time"}], "column": True},
    "n": {"kind": "integer", "bindings": [{"version": 1, "jsonPointer": "/n"}], "column": True, "sortable": True},
}
SEARCH = {"primaryTimestampField": "time", "fields": FIELDS}


def page(streams: Streams, make: Make, **asked: Any) -> tuple[bytes, int]:
    """The answer of a search without its coverage, and the number of turns it took to send."""
    topic = streams.topic("a")
    request = bind_request(SearchBody(**asked), topic, search_config_of(topic), 3000)
    outcomes: list[Any] = []
    streams.search.query(topic, request.query, 3.0, outcomes.append)
    (outcome,) = outcomes
    assert isinstance(outcome, Outcome)
    fetches: list[Any] = []
    streams.search.fetch(topic, [hit.seq for hit in outcome.result.hits], fetches.append)
    (fetched,) = fetches
    assert isinstance(fetched, Fetched)
    work, turns = showing(request, outcome, fetched, make), 1
    while True:
        try:
            next(work)
        except StopIteration as done:
            shown = done.value
            break
        turns += 1
    assert is_large(fetched) == (turns > 1)
    body = {"topic": '"hits":[]', "hits": (), "total": shown.total, "next": shown.next_place}
    return encode_body(body, shown), turns


@pytest.fixture
def filled() -> Streams:
    streams = inline_streams(open_engine(FakeDisk(), ManualClock(), segment_max_events=4))
    create(streams, "a", JSON)
    update(streams, "a", schema={"type": "object"}, search=SEARCH)
    for begin in range(0, 12, 3):
        entries = [{"n": number, "text": "x" * number} for number in range(begin, begin + 3)]
        append(streams, "a", json.dumps(entries).encode(), JSON)
    return streams


@pytest.mark.parametrize("make", [stream_hits, topic_hits])
@pytest.mark.parametrize(
    "asked",
    [{}, {"sort": ["n:asc"]}, {"source": False, "size": 7}, {"q": "n:>50"}, {"fields": ["n"]}, {"highlight": True}],
)
def test_a_page_is_the_same_in_any_portions(
    filled: Streams, make: Make, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, turns = page(filled, make, **asked)
    assert turns == 1
    for _ in range(4):
        assert page(filled, make, **asked)[0] == expected, "what was shown before is shown alike"
    found = json.loads(expected)["hits"]
    assert len(found) == (0 if "q" in asked else asked.get("size", 12))
    for name, value in (("_PORTION_HITS", 1), ("_PORTION_HITS", 5), ("_PORTION_BYTES", 1), ("_PORTION_BYTES", 60)):
        with monkeypatch.context() as patched:
            patched.setattr(search_answers, name, value)
            shown, turns = page(filled, make, **asked)
        assert shown == expected
        assert turns > 1 or not found


@pytest.mark.parametrize("nbytes", [1, 25, 60])
def test_entries_are_copied_in_turns(filled: Streams, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = page(filled, stream_hits)
    monkeypatch.setattr(search_service, "TURN_BYTES", nbytes)
    assert page(filled, stream_hits)[0] == expected


def test_a_field_whose_values_are_the_seqs_is_not_taken_for_the_offset(filled: Streams) -> None:
    create(filled, "b", JSON)
    update(filled, "b", schema={"type": "object"}, search=SEARCH)
    append(filled, "b", json.dumps([{"n": number} for number in range(1, 5)]).encode(), JSON)
    topic = filled.topic("b")
    request = bind_request(SearchBody(sort=["n:asc"]), topic, search_config_of(topic), 3000)
    outcomes: list[Any] = []
    filled.search.query(topic, request.query, 3.0, outcomes.append)
    found = outcomes[0].result.hits
    assert found.seqs == [1, 2, 3, 4]
    shown = stream_hits(request, found, search_answers.shown_entries(request, [b"{}"] * 4))
    assert [one.sort[0] for one in shown] == [1, 2, 3, 4] and [one.sort[1] for one in shown] == [
        one.offset for one in shown
    ]


def test_cached_hit_follows_the_current_description(filled: Streams) -> None:
    def shown() -> list[Any]:
        return [hit["fields"] for hit in json.loads(page(filled, stream_hits, size=2)[0])["hits"]]

    for _ in range(4):
        assert shown() == [{"n": 11}, {"n": 10}]
    text = {"kind": "keyword", "bindings": [{"version": 1, "jsonPointer": "/text"}], "exact": True}
    update(filled, "a", search={**SEARCH, "fields": {"text": text, **FIELDS}})
    for _ in range(4):
        assert shown() == [{"text": "x" * 11, "n": 11}, {"text": "x" * 10, "n": 10}]
    append(filled, "a", b'[{"n":12}]', JSON)
    for _ in range(4):
        assert shown() == [{"n": 12}, {"text": "x" * 11, "n": 11}]
