"""Hits column by column, and one by one."""

from topics.search.worker.messages import Hit, Hits

HITS = Hits([7, 5, 4], [0.5, 0.5, 0.0], [["b", "a", None], None])


def test_hits_are_read_one_by_one() -> None:
    assert list(HITS) == [Hit(["b", 7], 7, 0.5), Hit(["a", 5], 5, 0.5), Hit([None, 4], 4, 0.0)]
    assert HITS[-1] == list(HITS)[-1] and HITS.place(1) == ["a", 5] and len(HITS) == 3


def test_without_scores_each_is_0() -> None:
    assert list(Hits([7, 5], [], [None])) == [Hit([7], 7, 0.0), Hit([5], 5, 0.0)]
    assert not Hits() and not list(Hits())


def test_some_of_them() -> None:
    one_by_one = list(HITS)
    for begin in range(4):
        for end in range(begin, 5):
            assert list(HITS.between(begin, end)) == one_by_one[begin:end]
    assert list(HITS.only({4, 7, 9})) == [one_by_one[0], one_by_one[2]]
    assert list(Hits([7, 5], [], [None]).only([5])) == [Hit([5], 5, 0.0)]
