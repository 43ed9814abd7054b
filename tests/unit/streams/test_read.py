"""Reads: keys, bounds, and places inside an entry."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.unit.streams.conftest import append, create, slice_of
from topics.engine.topic import Run, Segment
from topics.log.segment_files import SegmentDamaged
from topics.model.errors import CorruptSegmentError, ThrottledError
from topics.model.router_rules import parse_selector
from topics.streams.read import StreamSlice
from topics.streams.stream_state import Position
from topics.streams.streams import Streams
from topics.wire.record_slicing import View


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
        part_ = slice_of(streams, "a", position, as_json=False, max_bytes=most, splits=True)
        assert len(part_.body) <= most and part_.body
        found, position = found + part_.body, part_.position
        if part_.at_tail:
            break
    assert found == b"abcdefghijklmnop"


@pytest.mark.parametrize("most", [1, 2, 6, 7, 8, 100])
@pytest.mark.parametrize("sealed", [False, True])
def test_an_entry_larger_than_an_answer_is_one_by_itself(streams: Streams, most: int, sealed: bool) -> None:
    create(streams, "a")
    entries = [b"abcdef", b"g", b"hijklmnop", b"q"] + [b"."] * (5 if sealed else 0)
    for part in entries:
        append(streams, "a", part)
    found, position = list[StreamSlice](), Position(0)
    while position.counter < 4:
        part_ = slice_of(streams, "a", position, as_json=False, max_bytes=most)
        whole = b"".join(entries[position.counter : part_.position.counter])
        assert (part_.body, part_.position.in_block) == (whole, 0)
        assert len(whole) <= most or part_.position.counter == position.counter + 1
        found, position = [*found, part_], part_.position
    assert b"".join(part_.body for part_ in found).startswith(b"abcdefghijklmnopq")
    # An offset inside an entry, as earlier releases returned it.
    assert slice_of(streams, "a", Position(2, 4), as_json=False, max_bytes=most).body.startswith(b"lmnop")


def test_a_large_entry_is_throttled_without_room_and_small_ones_are_not(streams: Streams) -> None:
    create(streams, "a")
    append(streams, "a", b"small")
    append(streams, "a", b"l" * 100)
    first = slice_of(streams, "a", max_bytes=10, max_entry_bytes=50)
    assert (first.body, first.position) == (b"small", (1, 0))
    with pytest.raises(ThrottledError):
        slice_of(streams, "a", first.position, max_bytes=10, max_entry_bytes=50)
    assert slice_of(streams, "a", first.position, max_bytes=10, max_entry_bytes=100).position == (2, 0)


def test_what_stands_before_damage_in_the_middle_of_a_segment_is_given_once(streams: Streams) -> None:
    """The part of a segment in front of a deleted entry is taken before the damage behind that entry is met."""
    create(streams, "a", "application/json")
    for number in range(6):
        append(streams, "a", b"%d" % number, "application/json", key="gone" if number == 1 else None)
    engine = streams.engine
    engine.delete_records("a", parse_selector(None, "gone"), lambda outcome: None)
    views, damaged = engine.core.reader.views, 2

    def torn(
        topic_id: int, run: Run, lo: int, hi: int, check: bool = True, window_bytes: int = 1 << 20
    ) -> Iterator[tuple[View, int, int, int]]:
        if isinstance(run, Segment) and lo <= damaged < hi:
            raise SegmentDamaged("seg", "torn", damaged, damaged)
        return views(topic_id, run, lo, hi, check)

    engine.core.reader.views = torn  # type: ignore[method-assign]
    found = slice_of(streams, "a")
    assert (found.body, found.position) == (b"[0]", (2, 0))
    with pytest.raises(CorruptSegmentError):
        slice_of(streams, "a", found.position)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_place_inside_an_entry_that_was_deleted_takes_nothing_of_the_next_one(streams: Streams, sealed: bool) -> None:
    create(streams, "a")
    for body, key in ((b"keep", None), (b"gone for good", "gone"), (b"all of the next", None)):
        append(streams, "a", body, key=key)
    for number in range(5 if sealed else 0):
        append(streams, "a", b"<%d>" % number)
    half = slice_of(streams, "a", Position(1), max_bytes=8, splits=True)
    assert (half.body, half.position) == (b"gone for", (1, 8))
    streams.engine.delete_records("a", parse_selector(None, "gone"), lambda outcome: None)
    assert slice_of(streams, "a", half.position).body.startswith(b"all of the next")


def test_a_place_inside_an_entry_takes_nothing_of_the_next_one_with_another_key(streams: Streams) -> None:
    create(streams, "a")
    for body, key in ((b"long and one", "one"), (b"other", "other"), (b" more", "one")):
        append(streams, "a", body, key=key)
    half = slice_of(streams, "a", max_bytes=9, splits=True).position
    assert half == (0, 9)
    assert slice_of(streams, "a", half, key="other").body == b"other"
    assert slice_of(streams, "a", half, key="one").body == b"one more"


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 6, 7, 9, 11])
def test_a_text_is_cut_between_characters_and_lines_where_there_is_room_for_one(streams: Streams, most: int) -> None:
    create(streams, "a")
    whole = "aé\r\n€😀\r\rb\n\r\n"
    append(streams, "a", whole.encode())
    parts, position = list[bytes](), Position(0)
    while not parts or position != (1, 0):
        part = slice_of(streams, "a", position, max_bytes=most, splits=True)
        assert 0 < len(part.body) <= most
        parts, position = [*parts, part.body], part.position
    assert b"".join(parts).decode() == whole
    if most >= 4:
        assert "".join(part.decode() for part in parts) == whole
        assert not any(one.endswith(b"\r") and other.startswith(b"\n") for one, other in pairwise(parts))


def test_invalid_utf8_is_split_anywhere(streams: Streams) -> None:
    create(streams, "a")
    append(streams, "a", bytes([0x80] * 9 + [0x41, 0x80, 0x80]))
    found = [slice_of(streams, "a", Position(0, at), max_bytes=4, splits=True).position for at in (0, 4, 7)]
    assert found == [(0, 4), (0, 8), (0, 11)]
