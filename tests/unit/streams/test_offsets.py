import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.streams.conftest import append, create, delete, fork
from topics.model.errors import InvalidRequestError, OffsetGoneError
from topics.streams.stream_state import (
    Position,
    decode_offset,
    encode_offset,
    offset_of,
    offsets_of,
    read_offset,
    tail_offset,
)
from topics.streams.streams import Streams

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


@given(U32, U64, U32)
def test_an_offset_comes_back_as_it_went(epoch: int, counter: int, in_block: int) -> None:
    text = encode_offset(epoch, counter, in_block)
    assert len(text) == 26 and text[0] in "01234567"
    assert decode_offset(text) == decode_offset(text.lower()) == (epoch, counter, in_block)


@given(st.tuples(U32, U64, U32), st.tuples(U32, U64, U32))
def test_offsets_sort_as_places_do(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    assert (encode_offset(*one) < encode_offset(*other)) == (one < other)


def test_the_digits_are_those_of_crockford_with_zero_bits_in_front() -> None:
    assert encode_offset(0, 0) == "0" * 26
    assert encode_offset(0, 0, 31) == "0" * 25 + "Z"
    assert encode_offset(2**32 - 1, 2**64 - 1, 2**32 - 1) == "7" + "Z" * 25
    assert decode_offset("O" * 24 + "il") == decode_offset("0" * 24 + "11")


@pytest.mark.parametrize(
    "bad", ["", "0", "-2", "U" * 26, "8" + "0" * 25, "0" * 25, "0" * 27, "0" * 25 + "-", "0" * 25 + "é"]
)
def test_invalid_offset_is_refused(bad: str) -> None:
    with pytest.raises(InvalidRequestError):
        decode_offset(bad)


def test_an_offset_belongs_to_its_stream(streams: Streams) -> None:
    create(streams, "a", body=b"x")
    topic = streams.topic("a")
    assert read_offset(topic, "-1") == read_offset(topic, "0" * 26) == Position(0)
    assert read_offset(topic, tail_offset(topic)) == Position(1)
    old = tail_offset(topic)
    delete(streams, "a")
    create(streams, "a", body=b"x")
    with pytest.raises(OffsetGoneError, match="another stream"):
        read_offset(streams.topic("a"), old)


def test_a_place_beyond_the_end_is_none(streams: Streams) -> None:
    create(streams, "a", body=b"x")
    topic = streams.topic("a")
    for place in (Position(2), Position(1, 3)):
        with pytest.raises(OffsetGoneError, match="beyond the end"):
            read_offset(topic, offset_of(topic, place))
        assert read_offset(topic, offset_of(topic, place), beyond_end=True) == Position(place.counter)
    with pytest.raises(OffsetGoneError, match="another stream"):
        read_offset(topic, encode_offset(topic.epoch + 1, 9), beyond_end=True)


def test_inherited_entries_keep_their_offsets(streams: Streams) -> None:
    create(streams, "a", body=b"1")
    append(streams, "a", b"2")
    shared = tail_offset(streams.topic("a"))
    append(streams, "a", b"3")
    fork(streams, "f", "a", shared)
    append(streams, "f", b"x")
    fork(streams, "g", "f")
    append(streams, "g", b"y")
    for name in ("f", "g"):
        assert read_offset(streams.topic(name), shared) == Position(2)
    f, g = streams.topic("f"), streams.topic("g")
    assert tail_offset(streams.topic("a")) < tail_offset(f) < tail_offset(g)
    assert read_offset(g, tail_offset(f)) == Position(3)
    for topic, foreign in (
        (f, tail_offset(streams.topic("a"))),
        (f, tail_offset(g)),
        (g, tail_offset(streams.topic("a"))),
    ):
        with pytest.raises(OffsetGoneError):
            read_offset(topic, foreign)


def test_many_offsets_are_those_of_each(streams: Streams) -> None:
    create(streams, "a", body=b"1")
    append(streams, "a", b"2")
    fork(streams, "f", "a")
    append(streams, "f", b"x")
    counters = [0, 1, 2, 3, 255, 256, 2**40 + 77, 2**64 - 1]
    for name in ("a", "f"):
        topic = streams.topic(name)
        assert offsets_of(topic, counters) == [offset_of(topic, Position(counter)) for counter in counters]
