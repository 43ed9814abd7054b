"""Numbers for keys, by a table and by sorting."""

from random import Random

import numpy as np
import pytest

from topics.search.query import aggregate_arrays
from topics.search.query.aggregate_arrays import Axis, compacted, number_keys


@pytest.mark.parametrize("few", [0, 4096], ids=["sorted", "by a table"])
@pytest.mark.parametrize("a_row", [0, 16], ids=["sorted", "by a table"])
def test_keys_are_numbered_in_their_order(few: int, a_row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate_arrays, "_FEW", few)
    monkeypatch.setattr(aggregate_arrays, "_A_ROW", a_row)
    for seed in range(60):
        random = Random(seed)
        count = random.choice((0, 1, 5, 300))
        sizes = [random.choice((1, 2, 7, 5000)) for _ in range(random.randrange(1, 4))]
        rows = [tuple(random.randrange(size) for size in sizes) for _ in range(count)]
        kinds = [random.choice((np.int32, np.int64, np.uint16)) for _ in sizes]
        axes = [
            Axis(np.array([row[place] for row in rows], kind), size)
            for place, (size, kind) in enumerate(zip(sizes, kinds, strict=True))
        ]
        groups, counts, keys = number_keys(axes, count)
        expected = sorted(set(rows))
        assert [expected[number] for number in groups.tolist()] == rows, seed
        assert counts.tolist() == [rows.count(key) for key in expected], seed
        assert list(zip(*(codes.tolist() for codes in keys), strict=True)) == expected, seed


@pytest.mark.parametrize("size", [10, 5_000, 1 << 40])
def test_codes_without_holes(size: int) -> None:
    codes = np.array([7, 3, 7, 9, 3], np.int64)
    numbers, present = compacted(codes, size)
    assert (numbers.tolist(), present.tolist()) == ([1, 0, 1, 2, 0], [3, 7, 9])


def test_a_table_of_keys_takes_some_megabytes_however_many_rows_there_are() -> None:
    assert aggregate_arrays.is_few(1 << 20, 1_000_000)
    assert not aggregate_arrays.is_few((1 << 20) + 1, 1_000_000)
