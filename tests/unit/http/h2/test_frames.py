"""Frames are found however the bytes are cut, and refused by their first nine where they are too long."""

import random

import pytest
from h2.errors import ErrorCodes

from tests.http.protocol.http2 import CONTINUATION, DATA, END_HEADERS, GOAWAY, HEADERS, PING, frame, settings
from topics.http.h2.frames import FRAME_BYTES_MAX, ConnectionFault, Frame, FrameReader, goaway


def read_all(reader: FrameReader) -> list[Frame]:
    found = []
    while (got := reader.next()) is not None:
        found.append(got)
    return found


def test_frames_are_found_however_they_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    sent = [settings(), *[frame(DATA, 1, 2**31 - 1, rng.randbytes(rng.randrange(300))) for _ in range(50)]]
    stream = b"".join(sent)
    reader, found = FrameReader(1000), []
    while stream:
        cut = rng.randrange(1, 200)
        reader.add(stream[:cut])
        stream = stream[cut:]
        found += read_all(reader)
    assert [got.data for got in found] == sent
    assert {(got.kind, got.stream_id) for got in found[1:]} == {(DATA, 2**31 - 1)}
    assert [got.length for got in found] == [len(got) - 9 for got in sent]


@pytest.mark.parametrize("length", [FRAME_BYTES_MAX + 1, 2**24 - 1])
def test_a_frame_that_is_too_long_is_refused_by_its_head(length: int) -> None:
    reader = FrameReader(1000)
    reader.add(settings() + length.to_bytes(3, "big") + frame(DATA, 0, 1)[3:])
    assert reader.next() is not None
    with pytest.raises(ConnectionFault) as refused:
        reader.next()
    assert refused.value.code is ErrorCodes.FRAME_SIZE_ERROR


def test_a_block_of_headers_counts_together_and_the_next_one_anew() -> None:
    reader = FrameReader(1000)
    block = [frame(HEADERS, 0, 1, bytes(500)), frame(CONTINUATION, END_HEADERS, 1, bytes(500))]
    reader.add(b"".join([settings(), *block, *block, *block[:1]]))
    assert len(read_all(reader)) == 6
    reader.add(frame(CONTINUATION, END_HEADERS, 1, bytes(501))[:9])
    with pytest.raises(ConnectionFault) as refused:
        reader.next()
    assert refused.value.code is ErrorCodes.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("first", [frame(PING, 0, 0, bytes(8)), frame(4, 1), frame(HEADERS, END_HEADERS, 1)])
def test_settings_come_first(first: bytes) -> None:
    reader = FrameReader(1000)
    reader.add(first)
    with pytest.raises(ConnectionFault):
        reader.next()


def test_a_goodbye_names_the_last_stream_and_the_reason() -> None:
    assert goaway(7, ErrorCodes.ENHANCE_YOUR_CALM) == frame(GOAWAY, 0, 0, b"\0\0\0\7\0\0\0\x0b")
