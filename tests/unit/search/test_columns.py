"""Conditions on the values of a column, for few rows and for many."""

import numpy as np
import pytest

from topics.search.query.field_values import FEW, Snapshot


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("least", [False, True])
def test_few_rows_have_the_values_that_they_have_among_many(several: bool, least: bool) -> None:
    """A few are looked up, and many are looked at together."""
    counts = np.array([number % (4 if several else 2) for number in range(40 * FEW)])
    owners = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    values = (np.arange(len(owners)) * 7919) % 1009
    snapshot = Snapshot(values, owners, len(counts))
    expected = [values[owners == row].tolist() for row in range(len(counts))]
    choose = min if least else max
    for rows in (np.arange(len(counts)), np.array([5, 6, 7, 300]), np.array([4]), np.zeros(0, np.int64)):
        begins, ends = snapshot.bounds_of(rows)
        assert [values[begin:end].tolist() for begin, end in zip(begins, ends, strict=True)] == [
            expected[row] for row in rows
        ]
        found, has = snapshot.extreme(rows, lambda values: -values, least)
        assert has.tolist() == [bool(expected[row]) for row in rows]
        requested = [choose(-value for value in expected[row]) for row in rows if expected[row]]
        assert found[has].tolist() == requested
