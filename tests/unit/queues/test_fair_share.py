import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.queues.dispatch import deal, shares


@pytest.mark.parametrize(
    ("available", "requested", "given"),
    [
        (50, [10] * 10, [5] * 10),
        (7, [10, 10], [4, 3]),
        (3, [1, 1, 1, 1], [1, 1, 1, 0]),
        (6, [1, 2, 3], [1, 2, 3]),
        (100, [1, 2, 3], [1, 2, 3]),
        (6, [2, 4, 6], [1, 2, 3]),
        (1, [1, 9], [0, 1]),
        (0, [3, 3], [0, 0]),
        (5, [], []),
        (5, [0, 5], [0, 5]),
    ],
)
def test_each_gets_its_part(available: int, requested: list[int], given: list[int]) -> None:
    assert shares(available, requested) == given


@given(available=st.integers(0, 300), requested=st.lists(st.integers(0, 50), max_size=20))
def test_shares_use_all_jobs_and_exceed_no_request(available: int, requested: list[int]) -> None:
    given = shares(available, requested)
    total = sum(requested)
    assert sum(given) == min(available, total)
    assert all(got <= wish for got, wish in zip(given, requested, strict=True))
    if total:
        exact = [min(available, total) * wish / total for wish in requested]
        assert all(abs(got - part) < 1 for got, part in zip(given, exact, strict=True))


def test_one_each_in_turn() -> None:
    assert deal([1, 2, 3, 4, 5, 6], [1, 3, 2]) == [[1], [2, 4, 6], [3, 5]]


@given(given=st.lists(st.integers(0, 10), max_size=8))
def test_everything_is_dealt_in_order(given: list[int]) -> None:
    hands = deal(list(range(sum(given))), given)
    assert [len(hand) for hand in hands] == given
    assert sorted(job for hand in hands for job in hand) == list(range(sum(given)))
    assert all(hand == sorted(hand) for hand in hands)
