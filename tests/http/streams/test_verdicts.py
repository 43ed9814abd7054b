"""The check of killed streams finds every violation, and nothing else."""

import pytest

from tests.http.streams.verdicts import Batch, broken
from topics.streams.stream_state import encode_offset

A = Batch("a", 1, ("a1", "a1+"), end=encode_offset(7, 2))
B = Batch("b", 1, ("b1",), most=3)
AGAIN = Batch("a", 2, ("a2",), floor=encode_offset(7, 4))
GIVEN_UP = Batch("b", 2, ("b2",), least=0)
ALL = [A, B, AGAIN, GIVEN_UP]
SEQS = range(1, 100)


@pytest.mark.parametrize(
    "entries",
    [["a1", "a1+", "b1", "a2"], ["a1", "a1+", "b1", "a2", "b2"], ["a1", "a1+", "a2", "b1", "b1", "b1"]],
    ids=["plain", "given up and there", "repeated"],
)
def test_correct_histories_have_no_findings(entries: list[str]) -> None:
    assert list(broken(entries, ALL, SEQS)) == []


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        (["a1", "a1+", "a2"], "is there 0 times"),
        (["a1", "a1+", "b1", "a2", "a2"], "is there 2 times"),
        (["a1", "a1+", "b1", "b1", "b1", "b1", "a2"], "is there 4 times"),
        (["a1", "b1", "a2"], "no batch"),
        (["a1", "a1+", "b1", "a2", "x"], "no batch"),
        (["a2", "a1", "a1+", "b1"], "stands behind a later batch"),
        (["b1", "a1", "a1+", "a2"], "its offset said 2"),
        (["a1", "a1+", "b1", "b1", "a2"], "behind 4 as was told"),
    ],
)
def test_each_broken_promise_is_found(entries: list[str], complaint: str) -> None:
    assert any(complaint in text for text in broken(entries, ALL, SEQS))


def test_an_offset_counts_seqs_and_not_entries() -> None:
    far = [Batch("a", 1, ("x",), end=encode_offset(7, 1)), Batch("a", 2, ("y",), end=encode_offset(7, 257))]
    assert list(broken(["x", "y"], far, [1, 257])) == []
    assert any("its offset said" in text for text in broken(["x", "y"], far, [1, 258]))
