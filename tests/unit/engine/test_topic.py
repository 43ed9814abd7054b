from collections.abc import Sequence

import pytest

from tests.unit.engine.test_record_runs import block_of
from topics.engine.topic import Segment, Topic
from topics.model.topic_config import DEFAULT_CONFIG


def topic_of(sealed: Sequence[tuple[int, int]] = (), tail: Sequence[tuple[int, int]] = ()) -> Topic:
    """A topic whose runs cover those seqs, first and last."""
    topic = Topic(1, "t", 1, DEFAULT_CONFIG, 0)
    topic.segments = [Segment.of_blocks([block_of([0] * (last - first + 1), first)]) for first, last in sealed]
    topic.tail = [block_of([0] * (last - first + 1), first) for first, last in tail]
    return topic


def firsts(topic: Topic, seq: int) -> list[int]:
    return [run.first_seq for run in topic.runs_from(seq)]


def test_a_new_topic_is_empty() -> None:
    topic = topic_of()
    assert (topic.head, topic.next_seq, topic.earliest, topic.evict_floor) == (0, 1, 1, 1)
    assert (topic.live_count, topic.live_bytes, topic.created, topic.closing) == (0, 0, False, False)
    assert topic.first_run() is None
    assert firsts(topic, 1) == []


def test_runs_come_in_order_from_the_one_that_holds_a_seq() -> None:
    topic = topic_of(sealed=[(1, 3), (4, 6)], tail=[(7, 7), (8, 9)])
    assert firsts(topic, 1) == [1, 4, 7, 8]
    assert firsts(topic, 3) == [1, 4, 7, 8]
    assert firsts(topic, 4) == [4, 7, 8]
    assert firsts(topic, 6) == [4, 7, 8]
    assert firsts(topic, 7) == [7, 8]
    assert firsts(topic, 8) == [8]
    assert firsts(topic, 9) == [8]
    assert firsts(topic, 10) == []


def test_runs_behind_a_hole() -> None:
    topic = topic_of(sealed=[(1, 3), (10, 12)], tail=[(20, 21)])
    assert firsts(topic, 4) == [10, 20]
    assert firsts(topic, 13) == [20]
    assert firsts(topic, 22) == []


def test_only_segments() -> None:
    topic = topic_of(sealed=[(1, 3)])
    assert firsts(topic, 2) == [1]
    assert firsts(topic, 4) == []


def test_runs_may_be_taken_away_while_they_are_gone_through() -> None:
    topic = topic_of(sealed=[(1, 3), (4, 6)], tail=[(7, 7)])
    seen = []
    for run in topic.runs_from(1):
        seen.append(run.first_seq)
        if isinstance(run, Segment):
            topic.segments.remove(run)
    assert seen == [1, 4, 7]


def test_the_first_run_is_a_segment_before_it_is_a_block() -> None:
    topic = topic_of(sealed=[(1, 3)], tail=[(4, 4)])
    assert topic.first_run() is topic.segments[0]
    topic.segments.clear()
    assert topic.first_run() is topic.tail[0]


def test_a_segment_belongs_to_the_topic_until_it_is_taken_out() -> None:
    topic = topic_of(sealed=[(1, 3), (4, 6), (10, 12)])
    for segment in list(topic.segments):
        assert topic.has_segment(segment)
        topic.segments.remove(segment)
        assert not topic.has_segment(segment)
        topic.segments.append(segment)
        topic.segments.sort(key=lambda other: other.first_seq)
    assert not topic.has_segment(Segment.of_blocks([block_of([0] * 3, 4)]))


@pytest.mark.parametrize(
    ("sealed", "tail"),
    [
        ([], []),
        ([(1, 3), (4, 6)], [(7, 7), (8, 9)]),
        ([(1, 3)], [(10, 10), (11, 11), (12, 12)]),
        ([], [(5, 5), (6, 6), (9, 9), (10, 12)]),
        ([(2, 4), (8, 9)], []),
        ([], [(2, 4), (5, 7), (8, 10), (11, 13)]),
        ([], [(2, 4), (5, 7), (9, 9), (10, 12)]),
        ([(1, 1)], [(4, 5), (6, 9), (10, 11)]),
    ],
)
def test_the_first_run_from_a_seq_on_is_the_first_of_all(
    sealed: list[tuple[int, int]], tail: list[tuple[int, int]]
) -> None:
    topic = topic_of(sealed, tail)
    for seq in range(15):
        assert topic.run_from(seq) is next(topic.runs_from(seq), None)
