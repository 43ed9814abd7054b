"""The system's figures of this process."""

import time

from topics.system.process import process_numbers


def test_the_numbers_are_those_of_this_process() -> None:
    before = process_numbers()
    assert before is not None
    held = bytearray(b"x" * 64 * 1024 * 1024)
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    after = process_numbers()
    assert after is not None
    assert after.cpu_s > before.cpu_s
    assert after.resident_bytes - before.resident_bytes > len(held) // 2
    assert 0 < time.time() - after.started_s < 100 * 24 * 3600
    assert after.started_s == before.started_s
    assert after.threads >= 1
    assert after.descriptors_max > 0
