"""The engine's two readings of time, alone."""

from topics.engine.core import EngineTime
from topics.queues.queue_frames import Ending
from topics.testing import ManualClock

DAY = 86_400_000


def test_steady_time_begins_with_the_wall_and_goes_its_own_way() -> None:
    clock = ManualClock(5_000)
    clock.advance(70)
    time = EngineTime(clock)
    assert time.steady() == time.wall() == 5_070
    clock.jump(DAY)
    assert (time.steady(), time.wall()) == (5_070, 5_070 + DAY)
    clock.jump(-2 * DAY)
    clock.advance(3)
    assert (time.steady(), time.wall()) == (5_073, 5_073 - DAY)


def test_what_is_reported_of_a_moment_is_what_the_wall_will_state_then() -> None:
    clock = ManualClock(5_000)
    time = EngineTime(clock)
    moment = time.steady() + 30
    clock.jump(-1_000)
    assert time.wall_time(moment) == 4_030
    assert time.ending(moment) == Ending(4_030, 30)
    clock.advance(40)
    assert time.ending(moment) == Ending(4_030, 0)


def test_an_end_is_resumed_with_what_the_wall_states_is_left_and_never_with_more_than_there_was() -> None:
    time = EngineTime(ManualClock(5_000))
    assert time.resumed(Ending(5_020, 30)) == 5_020, "ten of thirty have passed meanwhile"
    assert time.resumed(Ending(4_000, 30)) == 4_000, "it ended while nobody was there"
    assert time.resumed(Ending(5_000 + DAY, 30)) == 5_030, "the clock was wrong when it was told, or is wrong now"
    assert time.resumed(Ending(5_000 + DAY, None)) == 5_000 + DAY, "older logs do not say how long it was"
