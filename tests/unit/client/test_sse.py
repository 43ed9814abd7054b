"""Server-sent events: every rule of the standard that applies to streams of this server, and every way to cut the
bytes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics_client.transport.sse import EventParser, ServerEvent


def parse(*chunks: bytes) -> list[tuple[str, bytes, str]]:
    parser = EventParser()
    return [(event.name, event.data, event.id) for chunk in chunks for event in parser.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: x\n\n", [("message", b"x", "")]),
        (b"data:x\n\n", [("message", b"x", "")]),
        (b"data:  x\n\n", [("message", b" x", "")]),
        (b"data\n\n", [("message", b"", "")]),
        (b"data: a\ndata: b\n\n", [("message", b"a\nb", "")]),
        (b"data: a:b: c\n\n", [("message", b"a:b: c", "")]),
        (b"event: record\ndata: x\n\ndata: y\n\n", [("record", b"x", ""), ("message", b"y", "")]),
        (b"id: 1\ndata: x\n\ndata: y\n\nid\ndata: z\n\n", [("message", b"x", "1"), ("message", b"y", "1"),
                                                           ("message", b"z", "")]),
        (b"id: 1\n\ndata: y\n\n", [("message", b"y", "1")]),
        (b"id: a\0b\ndata: x\n\n", [("message", b"x", "")]),
        (b": hb 123\n\ndata: x\n\n", [("message", b"x", "")]),
        (b"event: nothing\n\ndata: x\n\n", [("message", b"x", "")]),
        (b"unknown: y\ndata: x\n\n", [("message", b"x", "")]),
        (b"data: x\r\n\r\n", [("message", b"x", "")]),
        (b"data: x\r\r", [("message", b"x", "")]),
        (b"data: x\n\r", [("message", b"x", "")]),
        (b"data: x\r\rdata: y\r\n\n", [("message", b"x", ""), ("message", b"y", "")]),
        (b"\xef\xbb\xbfdata: x\n\n", [("message", b"x", "")]),
        (b"data: unfinished\n", []),
        (b"data: unfinished", []),
        (b"event: gr\xc3\xbc\xc3\x9fe\ndata: \xc3\xbc\n\n", [("grüße", b"\xc3\xbc", "")]),
        (b"", []),
    ],
)  # fmt: skip
def test_what_a_stream_states(stream: bytes, events: list[tuple[str, bytes, str]]) -> None:
    assert parse(stream) == events
    assert parse(*[stream[at : at + 1] for at in range(len(stream))]) == events
    for at in range(len(stream)):
        assert parse(stream[:at], stream[at:]) == events


@given(
    st.lists(
        st.sampled_from(
            [b"data", b"event", b"id", b":", b" ", b"x", b"\n", b"\r", b"\r\n", b"\n\n", b"retry: 5", b"\0"]
        ),
        max_size=40,
    ),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_the_cuts_do_not_matter(words: list[bytes], places: list[int]) -> None:
    stream = b"".join(words)
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    assert parse(*[stream[a:b] for a, b in pairwise(edges)]) == parse(stream)


@pytest.mark.parametrize(("field", "kept"), [(b"2000", 2000), (b"x", None), (b"-1", None), (b"", None), (b"1.5", None)])
def test_the_wish_for_a_pause_is_a_number(field: bytes, kept: int | None) -> None:
    parser = EventParser()
    assert parser.feed(b"retry: " + field + b"\n\n") == []
    assert parser.retry_ms == kept


def test_a_long_line_in_many_pieces_is_put_together_once() -> None:
    parser = EventParser()
    assert parser.feed(b"data: ") == []
    for _ in range(10_000):
        assert parser.feed(b"x" * 100) == []
    assert parser.feed(b"\n\n") == [ServerEvent("message", b"x" * 1_000_000, "")]
