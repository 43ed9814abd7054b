import time

from topics.system.clock import Clock, SystemClock
from topics.system.dice import Dice, SystemDice


def test_the_wall_clock_counts_milliseconds_since_1970() -> None:
    clock: Clock = SystemClock()
    before = int(time.time() * 1000)
    assert before - 1 <= clock.now_ms() <= int(time.time() * 1000) + 1


def test_the_monotonic_clock_counts_seconds_forward() -> None:
    clock: Clock = SystemClock()
    before = clock.monotonic()
    time.sleep(0.01)
    assert 0.01 <= clock.monotonic() - before < 10


def test_a_token_has_its_length_and_does_not_repeat() -> None:
    dice: Dice = SystemDice()
    assert dice.token(0) == b""
    tokens = {dice.token(16) for _ in range(1000)}
    assert len(tokens) == 1000
    assert {len(token) for token in tokens} == {16}


def test_no_byte_is_given_out_twice_whatever_lengths_are_asked_for() -> None:
    dice: Dice = SystemDice()
    tokens = [dice.token(nbytes) for nbytes in (8, 4080, 16, 4096, 5000, 64, 4090, 32)]
    assert [len(token) for token in tokens] == [8, 4080, 16, 4096, 5000, 64, 4090, 32]
    whole = b"".join(tokens)
    assert len({whole[at : at + 8] for at in range(0, len(whole) - 7, 8)}) == len(whole) // 8
