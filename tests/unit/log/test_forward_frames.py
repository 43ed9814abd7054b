"""Batched forward frames: their format and their effect."""

import random

import pytest

from topics.log.forward_frames import Destination, decode_forwards, encode_forwards, parts_of
from topics.log.frame import Frame, FrameKind, read_frame, seal_frame
from topics.routers.router_frames import Forward, decode_forward, encode_forward

COMMON = Forward(
    router_id=0, source_id=3, cursor=9, first_seq=0, lost=1, ts=1_748_470_000_123, payload_bytes=40, count=3, base=0,
    text_length=120, traits=1, keep_node=True, keep_tag=False, stamp=None, hops=2, ranges=[(6, 7), (9, 9)], written=5,
)  # fmt: skip


def with_numbers(destination: Destination) -> Forward:
    changed = {name: getattr(COMMON, name) for name in Forward.__struct_fields__}
    changed |= {"router_id": destination.router_id, "first_seq": destination.first_seq, "base": destination.base}
    return Forward(**changed)


def framed(destinations: list[Destination], pattern: bytes | None = None) -> Frame:
    columns = list(zip(*destinations, strict=True))
    body = encode_forwards(encode_forward(COMMON) if pattern is None else pattern, columns)
    found = read_frame(memoryview(b"".join(seal_frame(FrameKind.FORWARDS, 3, 17, 16, body, b"", 5))), 0)
    assert isinstance(found, Frame)
    return found


def test_the_bytes_by_hand() -> None:
    destinations = [Destination(7, 300, 5, 0), Destination(8, 301, 5, 0), Destination(10, 900, 5, 0)]
    low = [number.to_bytes(8, "little") for number in (7, 300, 5, 0)]
    columns = low[0] + bytes([1, *bytes(7), 0, 1, 3]) + low[1] + bytes([2, *bytes(7), 0, 0, 1, 0, 0x58, 2])
    columns += low[2] + bytes(8) + low[3] + bytes(8)
    body = encode_forwards(b"pattern", list(zip(*destinations, strict=True)))
    assert body == bytes([3, 0, 0, 0, 7, 0, 0, 0]) + b"pattern" + columns


def test_it_means_a_forward_for_each_destination(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        widest = rng.choice([1, 200, 60_000, 2**31, 2**60])
        destinations = [
            Destination(rng.randrange(2**63 // widest * widest // 2) % widest + 1, number, rng.randrange(widest) + 1,
                        rng.randrange(min(widest, 2**32)))
            for number in rng.sample(range(1, 10_000), rng.randrange(1, 40))
        ]  # fmt: skip
        frame = framed(destinations)
        assert decode_forwards(frame.body)[1] == destinations
        parts = list(parts_of(frame))
        assert [part.topic_id for part in parts] == [destination.topic_id for destination in destinations]
        assert [decode_forward(part.body) for part in parts] == list(map(with_numbers, destinations))
        assert {(part.kind, part.lsn, part.start, part.end, part.moment, part.is_part) for part in parts} == {
            (FrameKind.FORWARD, 17, frame.start, frame.end, 5, True)
        }


def test_any_other_frame_means_itself() -> None:
    found = read_frame(memoryview(b"".join(seal_frame(FrameKind.FORWARD, 3, 1, 0, encode_forward(COMMON)))), 0)
    assert isinstance(found, Frame) and not found.is_part
    assert list(parts_of(found)) == [found]


@pytest.mark.parametrize("cut", [0, 3, 7, 8, 60, 130, -1])
def test_what_is_cut_short_is_malformed(cut: int) -> None:
    body = bytes(framed([Destination(1, 2, 3, 4), Destination(2, 3, 4, 5)]).body)
    for wrong in (body[:cut], body + b"x", b"\0\0\0\0" + body[4:]):
        with pytest.raises(ValueError, match="forwards"):
            decode_forwards(memoryview(wrong))


def test_damaged_count_is_malformed_and_takes_no_memory() -> None:
    body = bytes(framed([Destination(1, 2, 3, 4)]).body)
    for count in (len(body) + 1, 2**31, 2**32 - 1):
        with pytest.raises(ValueError, match="forwards"):
            decode_forwards(memoryview(count.to_bytes(4, "little") + body[4:]))


def test_a_thousand_destinations_take_a_few_bytes_each() -> None:
    destinations = [Destination(1000 + number, 5000 + 2 * number, 77, 4096) for number in range(1000)]
    assert framed(destinations).end < 5 * 1000
