"""The governor's decisions: every threshold, the end of each step, and its range. There is no clock in it."""

import pytest

from topics.engine.backpressure import (
    BACKLOG_FLOOR,
    RETRY_MS_MAX,
    RETRY_MS_MIN,
    SMOOTHING,
    Decision,
    Governor,
    Policy,
    Sample,
    readings,
)

CALM = Sample()
POLICY = Policy()


def pressed(part: float) -> Sample:
    """A sample of exactly that pressure: the commit queue is the one reading on a plain scale."""
    return Sample(queue_part=part)


def settled(governor: Governor, part: float) -> Decision:
    """Returns the decision after the smoothing has caught up with a pressure."""
    decision = Decision()
    for _ in range(200):
        decision = governor.step(pressed(part))
    return decision


# Readings


@pytest.mark.parametrize(
    ("sample", "name", "expected"),
    [
        (Sample(loop_lag_ms=0), "event_loop", 0.0),
        (Sample(loop_lag_ms=5), "event_loop", 0.0),
        (Sample(loop_lag_ms=50), "event_loop", 0.5),
        (Sample(loop_lag_ms=500), "event_loop", 1.0),
        (Sample(loop_lag_ms=60_000), "event_loop", 1.0),
        (Sample(backlog=int(BACKLOG_FLOOR)), "deliveries", 0.0),
        (Sample(backlog=int(BACKLOG_FLOOR) * 10), "deliveries", 0.5),
        (Sample(backlog=10**9), "deliveries", 1.0),
        (Sample(commit_ms=20), "commits", 0.0),
        (Sample(commit_ms=200), "commits", 0.5),
        (Sample(commit_ms=2000), "commits", 1.0),
        (Sample(queue_part=0.25), "queue", 0.25),
        (Sample(queue_part=7.0), "queue", 1.0),
    ],
)
def test_a_reading_is_scaled_to_one(sample: Sample, name: str, expected: float) -> None:
    found = readings(sample, POLICY)
    assert found[name] == pytest.approx(expected)
    assert sum(found.values()) == pytest.approx(expected)


def test_the_floors_are_the_operators() -> None:
    policy = Policy(lag_ms=10.0, commit_ms=1.0)
    found = readings(Sample(loop_lag_ms=100.0, commit_ms=10.0), policy)
    assert [found["event_loop"], found["commits"]] == pytest.approx([0.5, 0.5])


def test_the_worst_reading_is_the_pressure() -> None:
    both = Governor(POLICY).step(Sample(loop_lag_ms=50.0, queue_part=0.9))
    assert both.pressure == Governor(POLICY).step(pressed(0.9)).pressure


# Steps


def test_without_pressure_nothing_is_done() -> None:
    assert settled(Governor(POLICY), 0.0) == Decision()


STEPS = [
    # pressure, level, coalescing, widening, deferring, refusing
    (0.19, 0, False, False, False, False),
    (0.21, 1, True, False, False, False),
    (0.39, 1, True, False, False, False),
    (0.41, 2, True, True, False, False),
    (0.79, 2, True, True, False, False),
    (0.81, 3, True, True, True, False),
    (0.94, 3, True, True, True, False),
    (0.96, 4, True, True, True, True),
    (1.00, 4, True, True, True, True),
]


@pytest.mark.parametrize(("part", "level", "coalescing", "widening", "deferring", "refusing"), STEPS)
def test_each_step_begins_at_its_threshold(
    part: float, level: int, coalescing: bool, widening: bool, deferring: bool, refusing: bool
) -> None:
    decision = settled(Governor(POLICY), part)
    assert decision.level == level
    assert (decision.coalesce_s > 0, decision.window_s > 0) == (coalescing, widening)
    assert (decision.deferring, decision.refusing) == (deferring, refusing)


RELEASES = [
    # The pressure down to which a step that is in force stays so, and one at which it has ended.
    ("coalesce_s", 0.16, 0.14),
    ("window_s", 0.31, 0.29),
    ("deferring", 0.61, 0.59),
    ("refusing", 0.72, 0.70),
]


@pytest.mark.parametrize(("field", "still", "over"), RELEASES)
def test_each_step_holds_until_the_pressure_is_clearly_below_it(field: str, still: float, over: float) -> None:
    governor = Governor(POLICY)
    assert getattr(settled(governor, 1.0), field)
    assert getattr(settled(governor, still), field)
    assert not getattr(settled(governor, over), field)
    # And it does not come back before its own threshold.
    assert not getattr(settled(governor, still), field)


def test_a_step_that_was_never_reached_is_not_held() -> None:
    assert settled(Governor(POLICY), 0.61).deferring is False


def test_what_is_done_grows_with_the_pressure_to_the_bound_of_the_policy() -> None:
    governor = Governor(POLICY)
    decisions = [settled(governor, part / 100) for part in range(20, 101)]
    windows = [decision.coalesce_s for decision in decisions]
    assert windows == sorted(windows)
    assert windows[-1] == pytest.approx(POLICY.coalesce_s_max, rel=0.001)
    commits = [decision.window_s for decision in decisions if decision.window_s]
    assert commits == sorted(commits)
    assert commits[0] >= POLICY.window_s_min
    assert commits[-1] == pytest.approx(POLICY.window_s_max, rel=0.001)


def test_a_commit_window_above_its_bound_is_not_narrowed() -> None:
    decision = settled(Governor(Policy(window_s_min=0.05, window_s_max=0.01)), 1.0)
    assert decision.window_s == 0.05


def test_a_step_above_one_hundred_percent_never_begins() -> None:
    never = Policy(coalesce=1.01, widen=1.01, defer=1.01, refuse=1.01)
    decision = settled(Governor(never), 1.0)
    assert [decision.pressure, decision.level] == pytest.approx([1.0, 0])


# Time


def test_one_long_pause_is_no_overload() -> None:
    governor = Governor(POLICY)
    decision = governor.step(Sample(loop_lag_ms=60_000))
    assert decision.pressure == pytest.approx(SMOOTHING)
    assert decision.level == 1
    assert [governor.step(CALM).level for _ in range(3)] == [1, 0, 0]


def test_lasting_overload_is_answered_within_a_second() -> None:
    governor = Governor(POLICY)
    levels = [governor.step(pressed(1.0)).level for _ in range(10)]
    assert levels == [1, 2, 2, 2, 3, 3, 3, 3, 4, 4]


def test_calm_ends_everything_within_a_second() -> None:
    governor = Governor(POLICY)
    settled(governor, 1.0)
    decisions = [governor.step(CALM) for _ in range(10)]
    assert [decision.refusing for decision in decisions[:1]] == [False]
    assert [decision.deferring for decision in decisions[:2]] == [True, False]
    assert decisions[-1].level == 0


def test_pressure_comes_down_to_exactly_nothing() -> None:
    governor = Governor(POLICY)
    settled(governor, 1.0)
    assert [governor.step(CALM) for _ in range(30)][-1] == Decision()


def test_the_longer_it_refuses_the_longer_it_asks_to_wait() -> None:
    governor = Governor(POLICY)
    asked = [governor.step(pressed(1.0)).retry_after_ms for _ in range(80)]
    assert asked[:8] == [0] * 8
    assert asked[8] == RETRY_MS_MIN
    assert asked == sorted(asked)
    assert asked[8 + 9] == 2 * RETRY_MS_MIN
    assert asked[-1] == RETRY_MS_MAX
    assert governor.step(CALM).retry_after_ms == 0
