"""Reserved memory is reused, and never while it is referenced."""

import random

from topics.system.reserved_memory import ReservedMemory

MIB = 1024 * 1024


def test_buffer_is_reused_after_its_last_view_is_released() -> None:
    reserved = ReservedMemory()
    first = reserved.reserve(3 * MIB)
    first[:3] = b"abc"
    part = first[1:3].toreadonly()
    first.release()
    del first
    assert bytes(reserved.reserve(3 * MIB)[1:3]) != b"bc"
    assert bytes(part) == b"bc"
    part.release()
    del part
    assert bytes(reserved.reserve(3 * MIB)[:3]) == b"abc"
    assert reserved.kept_bytes == 8 * MIB


def test_buffers_in_use_never_overlap() -> None:
    draw, reserved = random.Random(7), ReservedMemory(kept_bytes=20 * MIB)
    held: list[tuple[bytes, memoryview]] = []
    for number in range(300):
        memory = reserved.reserve(draw.choice((1, 2, 3, 5, 9, 40)) * MIB)
        text = b"%08d" % number
        memory[:8] = memory[-8:] = text
        held.append((text, memory[4:].toreadonly() if draw.random() < 0.5 else memory))
        while len(held) > draw.randrange(8):
            del held[draw.randrange(len(held))]
        assert all(bytes(view[-8:]) == text for text, view in held)
        assert reserved.kept_bytes <= 20 * MIB


def test_what_is_kept_makes_room_for_what_is_asked_for_now() -> None:
    reserved = ReservedMemory(kept_bytes=8 * MIB)
    small = [reserved.reserve(MIB) for _ in range(4)]
    assert reserved.kept_bytes == 8 * MIB
    assert reserved.reserve(6 * MIB) is not None and reserved.kept_bytes == 8 * MIB
    del small[1:]
    large = reserved.reserve(6 * MIB)
    large[:1] = b"x"
    assert reserved.kept_bytes == 8 * MIB
    del large
    assert bytes(reserved.reserve(5 * MIB)[:1]) == b"x"


def test_the_very_short_and_the_very_long_are_not_kept() -> None:
    reserved = ReservedMemory()
    assert len(reserved.reserve(1000)) == 1000
    assert len(reserved.reserve(60 * MIB)) == 60 * MIB
    assert reserved.kept_bytes == 0


def test_a_little_is_not_put_where_there_is_room_for_very_much() -> None:
    reserved = ReservedMemory()
    reserved.reserve(30 * MIB)[:1] = b"x"
    assert bytes(reserved.reserve(2 * MIB)[:1]) != b"x"
