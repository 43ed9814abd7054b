"""One wrong byte in a frame never makes anyone believe in the wrong loss."""

from dataclasses import dataclass

import pytest

from topics.log import frame
from topics.log.frame import FrameKind, encode_block_head, seal_frame
from topics.model.errors import Finding
from topics.model.records import Record
from topics.ops.verify.log_check import (
    DamagedFrame,
    Hole,
    LostRecords,
    find_lost_records,
    read_damaged_frames,
    records_at_most,
)
from topics.wire.record_encoding import encode_fragments


@dataclass
class Book:
    head: int
    next_base: int


def append(
    topic_id: int, lsn: int, first: int, base: int, count: int = 2, key: bytes | dict[str, int] = b""
) -> tuple[bytes, int]:
    """An APPEND frame, and where the next text of its topic begins."""
    text, rows, size, traits = encode_fragments([Record.of({"n": n}) for n in range(count)], first, 99, "node", base)
    head = encode_block_head(first, 99, size, base, traits, key, rows, len(text))
    return b"".join(seal_frame(FrameKind.APPEND, topic_id, lsn, 3, head, text)), base + len(text) + 1


def hole(data: bytes, first_lsn: int, next_lsn: int | None) -> Hole:
    remains = read_damaged_frames(memoryview(data), 0, len(data), first_lsn, next_lsn)
    return Hole(Finding("wal", "test"), 0, first_lsn, next_lsn, records_at_most(len(data)), remains)


TOPICS = {1: Book(4, 700), 2: Book(4, 800), 3: Book(5, 700), 4: Book(0, 0), 5: Book(0, 0)}


def test_the_records_of_a_batch() -> None:
    frame, next_base = append(1, 8, 5, 700, key=b"key")
    assert find_lost_records(hole(frame, 8, 9), TOPICS) == [LostRecords(1, 5, 6, next_base)]


def test_batches_that_follow_each_other() -> None:
    first, base = append(1, 8, 5, 700)
    second, end = append(1, 9, 7, base, count=1)
    other, other_end = append(2, 10, 5, 800)
    found = find_lost_records(hole(first + second + other, 8, 11), TOPICS)
    assert found == [LostRecords(1, 5, 6, base), LostRecords(1, 7, 7, end), LostRecords(2, 5, 6, other_end)]


@pytest.mark.parametrize("key", [b"key", {"key": 0, "other": 1}], ids=["of the batch", "of its records"])
def test_one_wrong_byte_is_found_out_or_does_not_matter(key: bytes | dict[str, int]) -> None:
    frame, next_base = append(1, 8, 5, 700, key=key)
    believed = 0
    for offset in range(len(frame)):
        for mask in (0xFF, 0x01, 0x02, 0x03, 0x80):
            damaged = bytearray(frame)
            damaged[offset] ^= mask
            found = find_lost_records(hole(bytes(damaged), 8, 9), TOPICS)
            assert found in (None, [LostRecords(1, 5, 6, next_base)]), f"byte {offset} xor {mask:#x}"
            believed += found is not None
    # Most of a frame is payload, where a wrong byte changes nothing else.
    assert believed > len(frame)


def test_two_topics_that_stand_at_the_same_place_cannot_be_distinguished() -> None:
    frame, _ = append(4, 8, 1, 0)
    assert find_lost_records(hole(frame, 8, 9), TOPICS) is None
    only_one = {topic_id: book for topic_id, book in TOPICS.items() if topic_id != 5}
    assert find_lost_records(hole(frame, 8, 9), only_one) is not None


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FrameKind.DELETE, frame.encode_delete(0, [(1, 2)])),
        (FrameKind.CREATE, frame.encode_create(9, 1, "name", b"{}" * 20)),
        (FrameKind.CONFIG, frame.encode_config_change(4, b'{"ttl_ms":1}' * 5)),
        (FrameKind.CEILING, frame.encode_ceiling(9)),
        (FrameKind.DROP, b""),
    ],
)
def test_other_frames_hold_no_records(kind: FrameKind, body: bytes) -> None:
    frame = b"".join(seal_frame(kind, 1, 8, 3, body))
    for offset in range(len(frame)):
        damaged = bytearray(frame)
        damaged[offset] ^= 0xFF
        assert find_lost_records(hole(bytes(damaged), 8, 9), TOPICS) in (None, [])
    assert find_lost_records(hole(frame, 8, 9), TOPICS) == []


def test_a_batch_never_passes_for_another_kind() -> None:
    frame, _ = append(1, 8, 5, 700)
    for kind in FrameKind:
        if kind is not FrameKind.APPEND:
            damaged = bytearray(frame)
            damaged[32] = kind
            assert find_lost_records(hole(bytes(damaged), 8, 9), TOPICS) is None


def test_no_frame_is_missing_where_the_next_one_follows() -> None:
    assert find_lost_records(hole(b"garbage in the unused rest of a file", 8, 8), TOPICS) == []


@pytest.mark.parametrize("data", [b"x" * 200, bytes(200), append(1, 8, 5, 700)[0][:-1], append(1, 9, 5, 700)[0]])
def test_ambiguous_damage_is_not_attributed(data: bytes) -> None:
    assert find_lost_records(hole(data, 8, 9), TOPICS) is None


def test_the_rest_of_a_file_may_follow_the_last_frame() -> None:
    frame, _ = append(1, 8, 5, 700)
    assert read_damaged_frames(memoryview(frame + bytes(100)), 0, len(frame) + 100, 8, None) == [
        DamagedFrame(FrameKind.APPEND, 1, 5, 2, 700, len(encode_fragments(
            [Record.of({"n": n}) for n in range(2)], 5, 99, "node", 700
        ).text))
    ]  # fmt: skip


def test_no_more_records_than_fit() -> None:
    for count in (1, 2, 50):
        frame, _ = append(1, 1, 1, 0, count)
        assert count <= records_at_most(len(frame))
