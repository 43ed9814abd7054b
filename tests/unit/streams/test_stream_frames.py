import pytest

from topics.engine.features import block_in
from topics.log.frame import Frame, FrameKind, encode_block_head, encode_create, read_frame, seal_frame
from topics.streams.stream_frames import (
    Origin,
    Producer,
    StreamMark,
    StreamPart,
    creation_in,
    decode_part,
    decode_renewal,
    encode_creation,
    encode_mark,
    encode_part,
    encode_renewal,
    head_at_creation,
    mark_in,
    part_in,
)

BLOCK = encode_block_head(1, 2, 3, 0, 0, b"", bytes(12), 4) + b"text"
MARK = StreamMark(5, "seq", Producer("p", 1, 2), True)
PART = StreamPart("text/plain", 60, None, 7, origin=Origin(3, 9, 1), epochs=[(9, 3)])


def framed(kind: FrameKind, body: bytes) -> Frame:
    found = read_frame(memoryview(b"".join(seal_frame(kind, 1, 1, 0, body))), 0)
    assert isinstance(found, Frame)
    return found


def test_an_append_carries_its_mark_and_its_block() -> None:
    frame = framed(FrameKind.STREAM_APPEND, encode_mark(MARK) + BLOCK)
    assert mark_in(frame) == MARK
    assert bytes(block_in(frame.kind, frame.body) or b"") == BLOCK


@pytest.mark.parametrize("block", [b"", BLOCK])
def test_a_creation_carries_the_topic_and_perhaps_a_block(block: bytes) -> None:
    created = encode_create(4, 5, "näme", b"{}")
    frame = framed(FrameKind.STREAM_CREATE, encode_creation(PART, created) + block)
    assert part_in(frame) == PART
    found = creation_in(frame)
    assert found is not None and found.name == "näme"
    assert bytes(block_in(frame.kind, frame.body) or b"") == block
    assert head_at_creation(frame) == 9


def test_other_frames_carry_neither() -> None:
    frame = framed(FrameKind.STREAM_CLOSE, encode_mark(MARK))
    assert block_in(frame.kind, frame.body) is None
    assert creation_in(frame) is None
    assert mark_in(frame) == MARK
    assert decode_renewal(memoryview(encode_renewal(99))) == 99


def test_a_part_comes_back_as_it_was_saved_and_grows_at_its_end() -> None:
    assert decode_part(encode_part(PART)) == PART
    assert decode_part(b"\x91\xa1x") == StreamPart("x")


@pytest.mark.parametrize("body", [b"", b"\x01", b"\xff\xff\xff\xff", encode_mark(MARK)[:-1]])
def test_lengths_that_disagree_are_reported(body: bytes) -> None:
    with pytest.raises(ValueError, match="stream's frame"):
        mark_in(framed(FrameKind.STREAM_CLOSE, body))
