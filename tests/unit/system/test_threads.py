import sys

from topics.system.process import tune_threads


def test_the_loop_waits_less_for_the_interpreter_than_by_default() -> None:
    before = sys.getswitchinterval()
    try:
        tune_threads()
        assert sys.getswitchinterval() < before
    finally:
        sys.setswitchinterval(before)
