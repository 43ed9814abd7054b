import pytest

from tests.unit.conftest import HOMES, append, delete, eq, glob, move, open_with_cold, seqs, topic
from topics.engine.engine import Engine
from topics.engine.read import TailTags, as_ranges, find_in_run, find_in_tail, match_text
from topics.log.segment_files import SegmentKey
from topics.model.records import Record
from topics.model.router_rules import TagMatch


@pytest.mark.parametrize(
    ("found", "below", "ranges"),
    [
        ([], 10, []),
        ([1], 10, [(1, 1)]),
        ([1, 2, 3], 10, [(1, 3)]),
        ([3, 1, 2], 10, [(1, 3)]),
        ([1, 3, 4, 7], 10, [(1, 1), (3, 4), (7, 7)]),
        ([1, 1, 2, 2], 10, [(1, 2)]),
        ([1, 2, 3], 3, [(1, 2)]),
        ([1, 2, 3], 1, []),
        ([0, 1], 10, [(0, 1)]),
    ],
)
def test_seqs_become_ranges_below_a_bound(found: list[int], below: int, ranges: list[tuple[int, int]]) -> None:
    assert as_ranges(found, below) == ranges


@pytest.mark.parametrize(
    ("tag", "exact", "prefix"), [("x", b'"x"', b'"x'), ('a"b', b'"a\\"b"', b'"a\\"b'), ("", b'""', b'"')]
)
def test_a_match_is_compared_as_json(tag: str, exact: bytes, prefix: bytes) -> None:
    assert match_text(eq(tag)) == exact
    assert match_text(glob(tag)) == prefix


TAGS = ["a", "ab", "abc", "b", None, "a"]


def engine_in(home: str) -> Engine:
    engine = open_with_cold()
    for tag in TAGS:
        append(engine, "t", Record.of(0, tag=tag))
    move(engine, "t", home)
    return engine


def found(engine: Engine, match: TagMatch) -> list[int]:
    """Matching seqs, looked up where each run is."""
    state = topic(engine, "t")
    sealed = [
        run.first_seq + index for run in state.segments for index in find_in_run(engine.core.store, 1, run, match)
    ]
    return sorted(find_in_tail(state, match) + sealed)


@pytest.mark.parametrize("home", HOMES)
def test_tags_are_found_wherever_they_are(home: str) -> None:
    engine = engine_in(home)
    assert found(engine, eq("a")) == [1, 6]
    assert found(engine, eq("ab")) == [2]
    assert found(engine, eq("c")) == []
    assert found(engine, glob("a")) == [1, 2, 3, 6]
    assert found(engine, glob("ab")) == [2, 3]
    assert found(engine, glob("")) == [1, 2, 3, 4, 6]
    assert found(engine, glob("abcd")) == []


def test_the_tail_is_indexed_only_once_somebody_asks() -> None:
    engine = engine_in("tail")
    assert topic(engine, "t").tags is None
    found(engine, eq("a"))
    assert isinstance(topic(engine, "t").tags, TailTags)


def test_later_records_are_added_to_the_index() -> None:
    engine = engine_in("tail")
    assert found(engine, eq("new")) == []
    append(engine, "t", Record.of(0, tag="new"), Record.of(0), Record.of(0, tag="new"))
    assert found(engine, eq("new")) == [7, 9]
    assert found(engine, eq("new")) == [7, 9]


def test_a_cut_begins_the_index_anew() -> None:
    engine = engine_in("tail")
    found(engine, eq("a"))
    move(engine, "t", "sealed")
    assert topic(engine, "t").tags is None
    append(engine, "t", Record.of(0, tag="a"))
    assert found(engine, eq("a")) == [1, 6, 7]


def test_an_index_that_knows_deleted_records_does_no_harm() -> None:
    engine = engine_in("tail")
    assert delete(engine, "t", match=eq("a")).deleted == 2
    append(engine, "t", Record.of(0, tag="a"))
    assert delete(engine, "t", match=eq("a")).deleted == 1
    assert seqs(engine, "t") == [2, 3, 4, 5]


def test_segments_without_tags_are_not_opened() -> None:
    engine = open_with_cold()
    append(engine, "t", 1, 2)
    move(engine, "t", "sealed")
    engine.core.store.forget(SegmentKey(1, 1))
    assert delete(engine, "t", match=eq("x")).deleted == 0
    assert len(engine.core.store._cache) == 0
