import os
import time

from topics.system.clock import Clock, SystemClock
from topics.system.entropy import Entropy, SystemEntropy


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
    entropy: Entropy = SystemEntropy()
    assert entropy.token(0) == b""
    tokens = {entropy.token(16) for _ in range(1000)}
    assert len(tokens) == 1000
    assert {len(token) for token in tokens} == {16}


def test_a_fork_gets_other_tokens_than_its_parent() -> None:
    entropy: Entropy = SystemEntropy()
    entropy.token(16)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, entropy.token(16))
        os._exit(0)
    os.waitpid(child, 0)
    reported = os.read(reading, 16)
    os.close(reading)
    os.close(writing)
    assert len(reported) == 16 and reported != entropy.token(16)
