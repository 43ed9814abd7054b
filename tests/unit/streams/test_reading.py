"""Reads: keys, bounds, and places inside an entry."""

import pytest

from tests.unit.streams.conftest import append, create, slice_of
from topics.streams import Position, Streams


def test_a_key_finds_its_entries_in_memory_and_in_segments(streams: Streams) -> None:
    create(streams, "a", "application/json")
    for number in range(11):
        append(streams, "a", b"%d" % number, "application/json", key="k" if number % 3 == 0 else None)
    found = slice_of(streams, "a", key="k")
    assert (found.body, found.position) == (b"[0,3,6,9]", (11, 0))
    part = slice_of(streams, "a", key="k", max_records=2)
    assert part.body == b"[0,3]" and part.position.counter >= 4
    assert slice_of(streams, "a", part.position, key="k").body == b"[6,9]"


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 7, 100])
def test_an_answer_never_exceeds_its_bound_and_loses_nothing(streams: Streams, most: int) -> None:
    create(streams, "a")
    for part in (b"abcdef", b"", b"g", b"hijklmnop"):
        if part:
            append(streams, "a", part)
    found, position = b"", Position(0)
    while True:
        part_ = slice_of(streams, "a", position, as_json=False, max_bytes=most)
        assert len(part_.body) <= most and part_.body
        found, position = found + part_.body, part_.position
        if part_.at_tail:
            break
    assert found == b"abcdefghijklmnop"
