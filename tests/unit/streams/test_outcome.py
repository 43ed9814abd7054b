"""What an answer covers, counted by segments."""

from types import SimpleNamespace
from typing import Any

import pytest

from topics.searching.messages import Result
from topics.streams.search.outcome import account
from topics.streams.search.packing import Stretch

# With a hole between the second and the third, as caps and deletes leave them.
SEGMENTS = [SimpleNamespace(first_seq=first, last_seq=last) for first, last in ((1, 10), (11, 20), (31, 40), (41, 50))]
TOPIC: Any = SimpleNamespace(segments=SEGMENTS, origin=None)
NOTHING = Stretch(61, 60)


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        ([], 0),
        ([Stretch(5, 4)], 0),
        ([Stretch(1, 60)], 4),
        ([Stretch(10, 11)], 2),
        ([Stretch(21, 30)], 0),
        ([Stretch(20, 31)], 2),
        ([Stretch(51, 60)], 0),
        ([Stretch(1, 3), Stretch(4, 6), Stretch(7, 12)], 2),
        ([Stretch(45, 60), Stretch(8, 9), Stretch(1, 2)], 2),
        ([Stretch(1, 45), Stretch(12, 33)], 4),
    ],
)
def test_a_segment_counts_once_however_many_parts_are_of_it(parts: list[Stretch], count: int) -> None:
    outcome = account(TOPIC, Result(), 60, NOTHING, parts, 0, parts[::-1], parts, None)
    assert (outcome.scanned_segments, outcome.indexed_segments, outcome.missed_segments) == (count, count, count)
