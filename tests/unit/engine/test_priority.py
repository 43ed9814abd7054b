import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.scheduler import effective_priority

NOW_MS = 1_748_450_000_000


def recency(elapsed_ms: int) -> int:
    return effective_priority(None, True, NOW_MS - elapsed_ms, None, NOW_MS)


@pytest.mark.parametrize(
    ("elapsed_s", "expected"), [(0, 500), (15, 354), (30, 250), (60, 125), (120, 31), (300, 0), (301, 0), (10**9, 0)]
)
def test_the_published_decay(elapsed_s: int, expected: int) -> None:
    assert recency(elapsed_s * 1000) == expected


@given(st.integers(0, 299_999))
def test_the_decay_follows_the_formula(elapsed_ms: int) -> None:
    # Half a unit for rounding, and what a straight line between two of 64 steps adds to it.
    assert abs(recency(elapsed_ms) - 500 * 2 ** (-elapsed_ms / 30_000)) < 0.52


def test_the_decay_never_rises() -> None:
    values = [recency(elapsed_ms) for elapsed_ms in range(0, 301_000, 50)]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("waited_ms", "expected"),
    [(0, 0), (9, 0), (10, 1), (50, 5), (1_000, 100), (5_000, 500), (10_000, 1000), (10**7, 1000)],
)
def test_the_published_aging(waited_ms: int, expected: int) -> None:
    assert effective_priority(None, True, None, NOW_MS - waited_ms, NOW_MS) == expected


@pytest.mark.parametrize(
    ("priority", "expected"),
    [(0, 0), (10, 10), (-7, -7), (1000, 1000), (1001, 1000), (5000, 1000), (-1000, -1000), (-(2**31), -1000)],
)
@pytest.mark.parametrize("auto_priority", [True, False])
def test_a_manual_priority_replaces_recency_and_is_clamped(priority: int, expected: int, auto_priority: bool) -> None:
    assert effective_priority(priority, auto_priority, NOW_MS, None, NOW_MS) == expected


ROWS = [
    # priority, auto_priority, ms since consumed, ms waited, expected
    (None, True, None, None, 0),
    (None, False, None, None, 0),
    (None, False, 0, None, 0),
    (None, False, 0, 2_000, 200),
    (None, True, 0, 2_000, 700),
    (None, True, 30_000, 60_000, 1250),
    (-1000, True, 0, 10_000, 0),
    (1000, False, None, 10_000, 2000),
]


@pytest.mark.parametrize(("priority", "auto_priority", "since_ms", "waited_ms", "expected"), ROWS)
def test_the_terms_together(
    priority: int | None, auto_priority: bool, since_ms: int | None, waited_ms: int | None, expected: int
) -> None:
    consumed_ms = None if since_ms is None else NOW_MS - since_ms
    enqueued_ms = None if waited_ms is None else NOW_MS - waited_ms
    assert effective_priority(priority, auto_priority, consumed_ms, enqueued_ms, NOW_MS) == expected


@pytest.mark.parametrize("ahead_ms", [1, 30_000, 10**12])
def test_a_clock_that_was_set_back_changes_nothing(ahead_ms: int) -> None:
    assert effective_priority(None, True, NOW_MS + ahead_ms, NOW_MS + ahead_ms, NOW_MS) == 500


def test_no_topic_starves() -> None:
    # Ten seconds of waiting lift the lowest topic to where an idle one begins.
    assert effective_priority(-1000, True, None, NOW_MS - 10_000, NOW_MS) == effective_priority(
        None, True, None, NOW_MS, NOW_MS
    )
