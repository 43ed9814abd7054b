"""Sizes of streams of bytes: exact without reading what is sealed."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.unit.conftest import checkpoint, open_engine
from tests.unit.streams.conftest import append, create, reopened, slice_of
from topics.engine.topic import Run, RunReader
from topics.model.router_rules import parse_selector
from topics.streams import read
from topics.streams.read import ContentSizes
from topics.streams.streams import Streams, inline_streams
from topics.testing import FakeDisk, ManualClock


def total(streams: Streams, name: str) -> int:
    return ContentSizes(streams.topic(name), streams.engine.reader).total


def only_of(tail: Sequence[Run]) -> Callable[..., object]:
    """`RunReader.views` that refuses sealed segments."""
    original = RunReader.views

    def views(reader: RunReader, topic_id: int, run: Run, *args: Any, **more: Any) -> object:
        assert run in tail, "a sealed segment was read"
        return original(reader, topic_id, run, *args, **more)

    return views


def fill(streams: Streams, rng: random.Random) -> int:
    """Entries of any padding, some written through /v0; their bytes."""
    create(streams, "a")
    size = 0
    for number in range(41):
        body = rng.randbytes(rng.randrange(1, 90))
        append(streams, "a", body, key="a tag that ends so=" if number % 3 else None)
        size += len(body)
    return size


@pytest.mark.parametrize("sealed_before", [False, True])
def test_sizes_of_sealed_entries_are_exact_without_reading_them(
    monkeypatch: pytest.MonkeyPatch, seed: int, sealed_before: bool
) -> None:
    disk, clock = FakeDisk(), ManualClock()
    streams = inline_streams(open_engine(disk, clock, wal_shards=2, segment_max_events=4))
    size = fill(streams, random.Random(seed))
    if sealed_before:
        # As segments of an earlier release: they are measured at the first request, and known from then on.
        for segment in streams.topic("a").segments:
            segment.content_bytes = -1
        assert total(streams, "a") == size
    checkpoint(streams.engine)
    for again in (streams, reopened(disk, clock)):
        topic = again.topic("a")
        assert len(topic.segments) == 10 and all(segment.blocks is None for segment in topic.segments)

        with monkeypatch.context() as patched:
            patched.setattr(RunReader, "views", only_of(topic.tail))
            for segment in topic.segments[:3]:
                segment.cold = True
            assert total(again, "a") == size
            for segment in topic.segments[:3]:
                segment.cold = False


def test_sizes_after_a_delete_are_exact_while_the_segments_are_near(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    streams = inline_streams(open_engine(FakeDisk(), ManualClock(), segment_max_events=4))
    create(streams, "a")
    for number in range(17):
        append(streams, "a", rng.randbytes(rng.randrange(1, 90)), key="gone" if number % 5 == 1 else None)
    streams.engine.delete_records("a", parse_selector(None, "gone"), lambda outcome: None)
    left = len(slice_of(streams, "a").body)
    assert total(streams, "a") == left
    # Estimated where they are too many to look at, by their average.
    monkeypatch.setattr(read, "_SIZED_TEXT", 0)
    assert 0.7 * left < total(streams, "a") < 1.3 * left
