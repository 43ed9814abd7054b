"""A cached result is not computed again, and a failed computation is repeated."""

import pytest

from topics.model.bounded_cache import HolderCache, Memo


def test_a_value_is_made_once() -> None:
    memo: Memo[str, list[int]] = Memo(2)
    made = memo.get("a", lambda: [1])
    assert memo.get("a", lambda: [2]) is made


def test_there_are_never_more_than_fit() -> None:
    memo: Memo[int, str] = Memo(2)
    for number in range(7):
        assert memo.get(number, lambda: "made") == "made"
        assert len(memo) <= 2


def test_a_failure_is_not_remembered() -> None:
    memo: Memo[str, int] = Memo(2)
    with pytest.raises(ZeroDivisionError):
        memo.get("a", lambda: 1 // 0)
    assert memo.get("a", lambda: 3) == 3


class _Keeper:
    def __init__(self) -> None:
        self.forgotten = 0

    def forget(self) -> None:
        self.forgotten += 1


def test_the_least_recently_used_holder_forgets_first() -> None:
    cache, holders = HolderCache(100), [_Keeper() for _ in range(4)]
    for holder in holders[:3]:
        cache.keep(holder, 30)
    cache.used(holders[0])
    cache.keep(holders[3], 30)
    assert [holder.forgotten for holder in holders] == [0, 1, 0, 0]
    assert (cache.bytes, len(cache)) == (90, 3)
    cache.keep(holders[1], 500)
    assert (cache.bytes, len(cache)) == (500, 1), "the newest stays, whatever it takes"
