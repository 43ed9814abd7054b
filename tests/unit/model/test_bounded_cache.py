"""What was worked out before is not worked out again, and what failed is."""

import pytest

from topics.model.bounded_cache import Memo


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
