from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from topics.model.seq_ranges import Ranges, contains, covers, difference, intersection, size, union

PARTS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)).map(lambda p: (p[0], p[0] + p[1])), max_size=8)


def seqs(ranges: Ranges) -> set[int]:
    return {seq for first, last in ranges for seq in range(first, last + 1)}


def is_normal(ranges: Ranges) -> bool:
    apart = all(before[1] + 1 < after[0] for before, after in pairwise(ranges))
    return apart and all(first <= last for first, last in ranges)


@given(PARTS, PARTS)
def test_they_are_sets_of_seqs(one: Ranges, other: Ranges) -> None:
    left, right = union(one), union(other)
    for found, expected in (
        (union(one, other), seqs(one) | seqs(other)),
        (difference(left, right), seqs(one) - seqs(other)),
        (intersection(left, right), seqs(one) & seqs(other)),
    ):
        assert seqs(found) == expected
        assert is_normal(union(found))
        assert size(found) == len(expected)


@given(PARTS, st.integers(0, 50), st.integers(0, 5))
def test_they_know_what_is_in_them(parts: Ranges, first: int, more: int) -> None:
    ranges = union(parts)
    assert contains(ranges, first) == (first in seqs(parts))
    assert covers(ranges, first, first + more) == (set(range(first, first + more + 1)) <= seqs(parts))


def test_ranges_that_touch_are_one_and_empty_ones_are_none() -> None:
    assert union([(5, 6)], [(1, 4)], [(9, 8)]) == [(1, 6)]
