import pytest
from xxhash import xxh3_64_intdigest

from topics.log.frame import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    MAGIC,
    OVERHEAD_BYTES,
    BadFrame,
    Frame,
    FrameKind,
    find_frames,
    read_body,
    read_frame,
    seal_frame,
)
from topics.model.errors import NewerFormatError

# One frame written by hand, so that neither side of the code can move the format unnoticed.
CEILING_FRAME = bytes.fromhex(
    "54504631"  # magic "TPF1"
    "38000000"  # length 56: 40 of header, 8 of body, 8 of checksum
    "0700000000000000"  # lsn 7
    "0600000000000000"  # synced 6
    "0500000000000000"  # topic 5
    "07"  # kind CEILING
    "00000000000000"
    "2c01000000000000"  # body: 300
    "ab7b561d948fc39a"  # XXH3-64 of the 48 bytes before
)


def sealed(kind: FrameKind = FrameKind.APPEND, head: bytes = b"head", tail: bytes = b"", lsn: int = 1) -> bytes:
    return b"".join(seal_frame(kind, 3, lsn, 0, head, tail))


def read(data: bytes, start: int = 0) -> Frame | BadFrame | None:
    return read_frame(memoryview(data), start)


def reason(data: bytes, start: int = 0) -> str:
    found = read(data, start)
    assert isinstance(found, BadFrame)
    assert found.start == start
    return found.reason


def resealed(frame: bytes) -> bytes:
    """Returns the frame with a recomputed checksum: wrong in its content only."""
    body = frame[:-CHECKSUM_BYTES]
    return body + xxh3_64_intdigest(body).to_bytes(8, "little")


def test_the_bytes_are_those_of_the_table() -> None:
    assert b"".join(seal_frame(FrameKind.CEILING, 5, 7, 6, (300).to_bytes(8, "little"))) == CEILING_FRAME


def test_a_frame_written_by_hand_is_read() -> None:
    found = read(b"??" + CEILING_FRAME + b"!!", 2)
    assert isinstance(found, Frame)
    assert (found.kind, found.topic_id, found.lsn, found.synced) == (FrameKind.CEILING, 5, 7, 6)
    assert bytes(found.body) == (300).to_bytes(8, "little")
    assert (found.start, found.end) == (2, 2 + len(CEILING_FRAME))


def test_the_overhead_is_header_and_checksum() -> None:
    assert (HEADER_BYTES, CHECKSUM_BYTES, OVERHEAD_BYTES) == (40, 8, 48)
    assert len(sealed(head=b"")) == OVERHEAD_BYTES


def test_a_body_in_two_parts_gives_the_same_frame_as_one() -> None:
    assert sealed(head=b"head", tail=b"tail") == sealed(head=b"headtail")


def test_a_large_tail_is_handed_through_without_a_copy() -> None:
    tail = bytes(100_000)
    assert any(piece is tail for piece in seal_frame(FrameKind.APPEND, 1, 1, 0, b"head", tail))


def test_a_frame_may_have_no_body() -> None:
    found = read(sealed(FrameKind.DROP, b""))
    assert isinstance(found, Frame)
    assert bytes(found.body) == b""


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (FrameKind.APPEND, 1),
        (FrameKind.CREATE, 2),
        (FrameKind.CONFIG, 3),
        (FrameKind.DROP, 4),
        (FrameKind.DELETE, 5),
        (FrameKind.EVICT, 6),
        (FrameKind.CEILING, 7),
        (FrameKind.ROUTER, 8),
        (FrameKind.UNROUTE, 9),
        (FrameKind.FORWARD, 10),
        (FrameKind.LEASE, 11),
        (FrameKind.DELAY, 12),
        (FrameKind.ARRIVAL, 13),
        (FrameKind.DEPARTURE, 14),
        (FrameKind.FORWARDS, 15),
        (FrameKind.STREAM_APPEND, 16),
        (FrameKind.STREAM_CREATE, 17),
        (FrameKind.STREAM_CLOSE, 18),
        (FrameKind.STREAM_RENEW, 19),
        (FrameKind.STREAM_RETIRE, 20),
        (FrameKind.STREAM_CONTRACT, 21),
        (FrameKind.TXN_BEGIN, 24),
        (FrameKind.TXN_STAGE, 25),
        (FrameKind.TXN_END, 26),
        (FrameKind.TXN_APPEND, 27),
        (FrameKind.TXN_COMMIT, 28),
        (FrameKind.CONSUMER, 29),
        (FrameKind.FENCE, 30),
        (FrameKind.SCHEDULE, 36),
        (FrameKind.QUEUE, 31),
        (FrameKind.SNAPSHOT_HEAD, 32),
        (FrameKind.TOPIC, 33),
        (FrameKind.SNAPSHOT_END, 34),
        (FrameKind.DIRECTORY, 35),
    ],
)
def test_a_kind_keeps_its_number_for_ever(kind: FrameKind, number: int) -> None:
    assert kind == number
    assert len(FrameKind) == 34


def test_the_end_of_the_buffer_ends_the_log() -> None:
    data = sealed()
    assert read(data, len(data)) is None


def test_zeros_end_the_log() -> None:
    assert read(bytes(4096)) is None


def test_fewer_zeros_than_a_header_end_the_log_too() -> None:
    assert read(bytes(HEADER_BYTES - 1)) is None


def test_a_header_cut_by_the_end_of_the_file_is_not_a_frame() -> None:
    assert reason(sealed()[: HEADER_BYTES - 1]) == "the file ends inside a frame's header"


def test_a_header_whose_first_bytes_did_not_reach_the_disk_is_torn() -> None:
    assert reason(bytes(8) + sealed()[8:]) == "a torn frame header"


def test_garbage_has_no_magic() -> None:
    assert reason(b"garbage!" * 8) == "no frame magic"


@pytest.mark.parametrize("length", [0, OVERHEAD_BYTES - 1])
def test_a_length_below_the_overhead_is_refused(length: int) -> None:
    data = sealed()
    assert reason(data[:4] + length.to_bytes(4, "little") + data[8:]).startswith(f"a frame length of {length} bytes")


def test_a_length_past_the_end_of_the_buffer_is_refused() -> None:
    data = sealed()
    assert reason(data[:-1]) == f"a frame length of {len(data)} bytes with {len(data) - 1} bytes left"


@pytest.mark.parametrize("place", [8, 16, 24, 32, 33, HEADER_BYTES, -CHECKSUM_BYTES - 1, -CHECKSUM_BYTES, -1])
def test_a_changed_byte_anywhere_is_a_wrong_checksum(place: int) -> None:
    data = bytearray(sealed())
    data[place] ^= 1
    assert reason(bytes(data)) == "a wrong checksum"


def test_a_wrong_checksum_still_reports_the_length_for_whoever_salvages() -> None:
    data = sealed()
    found = read(data[:-1] + bytes((data[-1] ^ 1,)))
    assert isinstance(found, BadFrame)
    assert found.length == len(data)


def test_a_kind_of_a_later_version_is_named() -> None:
    data = bytearray(sealed())
    data[32] = 99
    with pytest.raises(NewerFormatError, match="a frame of the unknown kind 99 at byte 0"):
        read(resealed(bytes(data)))


def test_frame_of_a_later_version_is_named() -> None:
    data = bytearray(sealed())
    data[3] = ord("2")
    with pytest.raises(NewerFormatError, match="frames with the magic TPF2"):
        read(resealed(bytes(data)))


def test_damaged_digit_of_the_magic_is_no_later_version() -> None:
    data = bytearray(sealed())
    data[3] = ord("3")
    assert reason(bytes(data)) == "no frame magic"


def test_frames_are_found_behind_garbage_and_behind_each_other() -> None:
    data = b"x" * 13 + sealed(lsn=4) + sealed(lsn=5) + bytes(7) + sealed(lsn=9)
    assert [frame.lsn for frame in find_frames(memoryview(data), 0)] == [4, 5, 9]


def test_a_magic_inside_a_payload_is_not_taken_for_a_frame() -> None:
    data = sealed(head=MAGIC + b"is only text", lsn=4)
    assert [frame.lsn for frame in find_frames(memoryview(data), 0)] == [4]


def test_a_whole_frame_inside_a_payload_is_not_given_out_beside_its_owner() -> None:
    data = sealed(head=sealed(lsn=77), lsn=4)
    assert [frame.lsn for frame in find_frames(memoryview(data), 0)] == [4]


def test_a_broken_frame_is_skipped_and_the_next_one_found() -> None:
    broken = bytearray(sealed(lsn=4))
    broken[HEADER_BYTES] ^= 1
    data = bytes(broken) + sealed(lsn=5)
    (found,) = find_frames(memoryview(data), 0)
    assert (found.lsn, found.start) == (5, len(broken))


def test_nothing_before_the_start_is_found() -> None:
    data = sealed(lsn=4) + sealed(lsn=5)
    assert [frame.lsn for frame in find_frames(memoryview(data), 1)] == [5]


@pytest.mark.parametrize("start", [0, 5])
def test_a_body_is_read_where_its_frame_is_whole(start: int) -> None:
    data = bytes(start) + sealed(FrameKind.TOPIC, b"body") + b"more"
    assert bytes(read_body(memoryview(data), start, FrameKind.TOPIC)) == b"body"
    assert bytes(read_body(memoryview(data[:-4]), start, FrameKind.TOPIC)) == b"body"


def test_nothing_else_is_taken_for_one() -> None:
    whole = sealed(FrameKind.TOPIC, b"body")
    cut = [whole[:end] for end in range(len(whole))]
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    lengths = [whole[:4] + length.to_bytes(4, "little") + whole[8:] for length in (0, 47, 48, 2**32 - 1)]
    for data in (*cut, *flipped, *lengths, sealed(FrameKind.APPEND, b"body"), bytes(100)):
        with pytest.raises(ValueError, match="no complete frame of the kind TOPIC at 0"):
            read_body(memoryview(data), 0, FrameKind.TOPIC)
    with pytest.raises(ValueError, match="at 60"):
        read_body(memoryview(whole), 60, FrameKind.TOPIC)
