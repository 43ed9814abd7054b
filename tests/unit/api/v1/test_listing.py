"""The list of streams."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.engine.conftest import checkpoint, open_engine
from tests.unit.streams.conftest import create
from topics.api.calls import Call
from topics.api.v1 import listing
from topics.streams import Streams


def test_a_list_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a look at a million streams would leave all of them in memory."""
    answers: list[Any] = []
    monkeypatch.setattr(listing, "answer", lambda call, status, headers, body, kind: answers.append(json.loads(body)))
    streams = Streams(open_engine(awake_topics=0))
    for name in "ab":
        create(streams, name, body=b"x")
    checkpoint(streams.engine)
    asleep = dict(streams.engine.core.sleepers.names)
    call = cast(Call, SimpleNamespace(query={}, key=SimpleNamespace(prefixes=())))
    listing.list_streams(call, streams)
    assert [(stream["name"], stream["next_offset"], stream["sealed_through"]) for stream in answers[0]] == [
        ("a", "1", "-1"),
        ("b", "1", "-1"),
    ]
    assert sorted(asleep) == ["a", "b"]
    assert streams.engine.core.sleepers.names == asleep
