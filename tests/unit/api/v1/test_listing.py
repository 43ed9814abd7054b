"""The list of streams."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.conftest import append as append_records
from tests.unit.conftest import checkpoint, open_engine, put
from tests.unit.streams.conftest import append, create, delete, fork
from tests.unit.streams.describing import profile
from topics.api.app import Call
from topics.api.v1 import stream_details
from topics.model.topic_config import TopicType
from topics.streams.streams import inline_streams
from topics.testing import ManualClock


def unasked(name: str, default: bool) -> bool:
    """No flag is in the query."""
    return default


def test_list_pages_no_topic_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a look at a million streams would leave all of them in memory."""
    answers: list[Any] = []
    monkeypatch.setattr(
        stream_details, "answer", lambda call, status, headers, body, kind: answers.append(json.loads(body))
    )
    streams = inline_streams(open_engine(awake_topics=0))
    for name in "ab":
        create(streams, name, body=b"x")
    checkpoint(streams.engine)
    asleep = dict(streams.engine.core.pager.names)
    call = cast(Call, SimpleNamespace(query={}, key=SimpleNamespace(prefixes=()), flag=unasked))
    stream_details.list_streams(call, streams)
    assert [(stream["name"], stream["next_offset"], stream["sealed_through"]) for stream in answers[0]] == [
        ("a", "1", "-1"),
        ("b", "1", "-1"),
    ]
    assert sorted(asleep) == ["a", "b"]
    assert streams.engine.core.pager.names == asleep


def test_a_list_states_the_same_of_streams_that_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads less of them: a list leaves out only the fields that cannot differ."""
    pages: list[bytes] = []
    monkeypatch.setattr(stream_details, "answer", lambda call, status, headers, body, kind: pages.append(body))
    clock = ManualClock()
    streams = inline_streams(open_engine(clock=clock, awake_topics=0, segment_max_events=4))
    engine = streams.engine
    for name in ("again", "bytes", "closed", "gone", "kept", "sealed", "source"):
        clock.advance(1_234)
        create(streams, name, body=b"x", closed=name == "closed")
    for _ in range(5):
        append(streams, "sealed", b"y")
    create(streams, "empty")
    create(streams, "ends", ttl_s=10)
    create(streams, "lasts", ttl_s=1_000)
    create(streams, "profiled", "application/json")
    profile(streams, "profiled", "metrics")
    fork(streams, "fork", "source")
    fork(streams, "other", "kept")
    append_records(engine, "topic", 1, 2, key="k")
    put(engine, "queue", type=TopicType.QUEUE)
    for name in ("again", "gone", "kept"):
        delete(streams, name)
    create(streams, "again", body=b"yy")
    call = cast(Call, SimpleNamespace(query={}, key=SimpleNamespace(prefixes=()), flag=unasked))
    stream_details.list_streams(call, streams)
    checkpoint(engine)
    assert set(engine.core.pager.names) == {"again", "bytes", "closed", "empty", "topic"}
    stream_details.list_streams(call, streams)
    assert json.loads(pages[0]) == json.loads(pages[1])
    clock.advance(11_000)
    stream_details.list_streams(call, streams)
    there = [stream["name"] for stream in json.loads(pages[0])]
    there.remove("ends")
    assert [stream["name"] for stream in json.loads(pages[2])] == there
    assert not {"gone", "kept"} & set(there), "nor is one that only its forks still read"


def test_a_page_is_full_where_some_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[list[str]] = []
    monkeypatch.setattr(
        stream_details,
        "answer",
        lambda call, status, headers, body, kind: pages.append([s["name"] for s in json.loads(body)]),
    )
    clock = ManualClock()
    streams = inline_streams(open_engine(clock=clock, awake_topics=0))
    for number in range(8):
        create(streams, f"t/{number}", ttl_s=10 if number in (1, 2, 5) else None)
    create(streams, "u")
    checkpoint(streams.engine)
    clock.advance(11_000)
    for query in ({"limit": "3"}, {"limit": "9"}, {"limit": "3", "after": "t/3"}, {"limit": "3", "offset": "6"}):
        for prefixes in ((), ("t/",)):
            call = SimpleNamespace(query=query, key=SimpleNamespace(prefixes=prefixes), flag=unasked)
            stream_details.list_streams(cast(Call, call), streams)
    whole = ["t/0", "t/3", "t/4", "t/6", "t/7"]
    assert pages[0] == pages[1] == ["t/0", "t/3", "t/4"]
    assert pages[2] == [*whole, "u"]
    assert pages[3] == whole, "those of others are not there for a tenant"
    assert pages[4] == pages[5] == ["t/4", "t/6", "t/7"]
    assert (pages[6], pages[7]) == (["t/6", "t/7", "u"], ["t/6", "t/7"])
