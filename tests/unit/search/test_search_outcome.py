"""Coverage of an answer, counted by segments."""

from types import SimpleNamespace
from typing import Any

import pytest

from topics.search.service.backend import SeqSpan
from topics.search.service.query_execution import account
from topics.search.worker.messages import Result

# With a hole between the second and the third, as caps and deletes leave them.
SEGMENTS = [
    SimpleNamespace(first_seq=first, last_seq=last, cold=first > 30)
    for first, last in ((1, 10), (11, 20), (31, 40), (41, 50))
]
TOPIC: Any = SimpleNamespace(segments=SEGMENTS, origin=None)
NOTHING = SeqSpan(61, 60)


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        ([], 0),
        ([SeqSpan(5, 4)], 0),
        ([SeqSpan(1, 60)], 4),
        ([SeqSpan(10, 11)], 2),
        ([SeqSpan(21, 30)], 0),
        ([SeqSpan(20, 31)], 2),
        ([SeqSpan(51, 60)], 0),
        ([SeqSpan(1, 3), SeqSpan(4, 6), SeqSpan(7, 12)], 2),
        ([SeqSpan(45, 60), SeqSpan(8, 9), SeqSpan(1, 2)], 2),
        ([SeqSpan(1, 45), SeqSpan(12, 33)], 4),
    ],
)
def test_a_segment_counts_once_however_many_parts_are_of_it(parts: list[SeqSpan], count: int) -> None:
    outcome = account(TOPIC, Result(), 60, NOTHING, parts, 0, parts[::-1], parts, None)
    assert (outcome.scanned_segments, outcome.indexed_segments, outcome.missed_segments) == (count, count, count)


def test_missed_segments_of_the_cold_tier_are_counted_apart() -> None:
    parts = [SeqSpan(11, 35)]
    outcome = account(TOPIC, Result(), 60, NOTHING, [], 0, [], parts, None)
    assert (outcome.missed_segments, outcome.missed_cold_segments) == (2, 1)
