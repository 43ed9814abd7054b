from typing import Any

import msgspec
import pytest

from topics.log import snapshot_files
from topics.log.snapshot_files import (
    KeyedState,
    KeyState,
    LostState,
    SegmentState,
    SnapshotHead,
    TopicState,
    WalPosition,
)

HEAD = SnapshotHead(3, [1, 2], 2, [WalPosition(0, 7, 100), WalPosition(1, 8, 200)], 12, 1_700_000_000_000, [4])
SEGMENT = SegmentState(1, 10, 100, 400, 7, 5, 6, 9, 90, 1, True, b"\x00\xd5")
TOPIC = TopicState(
    5, "orders", 5, b"{}", 12, 256, 2, 1, 1, 1, 4, 6, 6, 401, [SEGMENT], [LostState(11, 11, "crash")],
    [KeyState("k", 12, 1, 6)], [b"", b"\x00\xd5"],
    {"queue": b"jobs"}, False, [KeyedState(12, 1, 6, {"k": 0}, b"12345678", 7, True)],
)  # fmt: skip


def test_a_head_is_a_list_in_the_order_of_its_fields() -> None:
    body = snapshot_files.encode_head(HEAD)
    assert msgspec.msgpack.decode(body) == [
        3,
        [1, 2],
        2,
        [[0, 7, 100], [1, 8, 200]],
        12,
        1_700_000_000_000,
        [4],
        False,
        0,
        0,
        {},
    ]
    assert snapshot_files.decode_head(memoryview(body)) == HEAD


def test_a_topic_is_a_list_in_the_order_of_its_fields() -> None:
    body = snapshot_files.encode_topic(TOPIC)
    plain: list[Any] = msgspec.msgpack.decode(body)
    assert plain[:14] == [5, "orders", 5, b"{}", 12, 256, 2, 1, 1, 1, 4, 6, 6, 401]
    assert plain[14] == [[1, 10, 100, 400, 7, 5, 6, 9, 90, 1, True, b"\x00\xd5", 0, 0, -1]]
    assert plain[15:] == [
        [[11, 11, "crash", -1]],
        [["k", 12, 1, 6]],
        [b"", b"\x00\xd5"],
        {"queue": b"jobs"},
        False,
        [[12, 1, 6, {"k": 0}, b"12345678", 7, True]],
        0,
        0,
    ]
    assert snapshot_files.decode_topic(memoryview(body)) == TOPIC


def test_the_end_counts_the_topics() -> None:
    assert snapshot_files.encode_end(3) == bytes.fromhex("0300000000000000")
    assert snapshot_files.decode_end(memoryview(snapshot_files.encode_end(3))) == 3


def test_a_body_of_another_shape_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        snapshot_files.decode_topic(memoryview(snapshot_files.encode_head(HEAD)))
