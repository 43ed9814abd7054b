"""Names in order, for any number of them."""

import random
from bisect import bisect_left, bisect_right, insort

from topics.engine.quotas import SortedNames


def test_it_answers_like_one_sorted_list_through_any_changes(seed: int) -> None:
    rng = random.Random(seed)
    plain: list[str] = []
    names = SortedNames()
    for step in range(20_000):
        name = f"{rng.randrange(12_000):05d}"
        # It grows first and shrinks later, so that parts are cut and parts become empty.
        if name not in names and rng.random() < (0.9 if step < 10_000 else 0.2):
            names.add(name)
            insort(plain, name)
        elif rng.random() < (0.2 if step < 10_000 else 0.9):
            names.discard(name)
            if name in plain:
                plain.remove(name)
        if step % 500 == 0:
            _check(names, plain, name)
    _check(names, plain, "")


def _check(names: SortedNames, plain: list[str], name: str) -> None:
    assert list(names) == plain
    assert len(names) == len(plain)
    assert (name in names) == (name in plain)
    assert list(names.from_(name)) == plain[bisect_left(plain, name) :]
    assert list(names.behind(name)) == plain[bisect_right(plain, name) :]
    for place in (0, 1, len(plain) // 2, len(plain) - 1, len(plain), len(plain) + 5):
        assert list(names.at(max(place, 0))) == plain[max(place, 0) :]


def test_it_begins_with_names_in_any_order() -> None:
    count = 5_000
    names = SortedNames(f"{number * 7919 % count:06d}" for number in range(count))
    assert list(names) == [f"{number:06d}" for number in range(count)]
    assert next(names.at(count - 1)) == f"{count - 1:06d}"


def test_all_names_can_go_and_come_again() -> None:
    names = SortedNames(["b", "a"])
    names.discard("c")
    names.discard("a")
    names.discard("b")
    names.discard("b")
    assert (len(names), list(names), list(names.from_("a")), list(names.behind("a"))) == (0, [], [], [])
    assert "a" not in names
    names.add("x")
    assert list(names) == ["x"]
