"""Laws of companions: however a range is cut into them, merged, and deleted from, they answer as a scan does.

`test_search_laws` holds every kind of part against a plain filter. Here companions have many rows and blocks, and each
is asked many times, because what they leave out, block by block, is what could be wrong.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.effort import effort
from tests.property.search_model import DATES, NUMBERS, WORDS, SortItems, configs, entries, queries, sorts
from tests.property.test_search_laws import EDGES, aggregation, ask_for, key_of, plenty
from topics.schema.registry import Registry, Version
from topics.schema.search_fields import SearchConfig
from topics.search.file_index import top_k, zone_maps
from topics.search.file_index.file_format import plan_of
from topics.search.file_index.merge import build, merge
from topics.search.file_index.query_part import IndexFilePart, ResultCache
from topics.search.file_index.reader import IndexFile
from topics.search.query import field_values
from topics.search.query.aggregate import show
from topics.search.query.plan import Entries, Entry, Part, Span, aggregate, list_keys, search
from topics.search.query.predicates import Node
from topics.search.query.scan import Scan

BLOCK_ROWS = 4


class Case(NamedTuple):
    """A registry, entries, the first entries of companions, the merged companions, the removed entries, and the
    query."""

    config: SearchConfig
    values: list[Any]
    cuts: list[int]
    merged: bool
    removed: set[int]
    window: tuple[int, int]
    asked: list[tuple[Node | None, SortItems, int, bool]]


regular = st.fixed_dictionaries(
    {
        "key": st.sampled_from(WORDS),
        "low": st.sampled_from(WORDS),
        "word": st.sampled_from(WORDS),
        "int": st.sampled_from(NUMBERS),
        "num": st.sampled_from((0, 1, -2, 0.25, 2**40)),
        "time": st.sampled_from((0, 1, 59_999, 60_000, 60_001, 3_600_000, 7_200_000, 7_200_001)),
    }
)
rows = st.one_of(regular, regular, regular, entries, st.fixed_dictionaries({"time": st.sampled_from(DATES)}))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    config = draw(configs())
    asked = st.tuples(st.one_of(st.none(), queries(config)), sorts(config), st.integers(1, 6), st.booleans())
    values = draw(st.lists(rows, min_size=6, max_size=30))
    size = len(values)
    return Case(
        config,
        values,
        draw(st.lists(st.integers(1, size - 1), max_size=3, unique=True)),
        draw(st.booleans()),
        draw(st.one_of(st.just(set()), st.sets(st.integers(0, size - 1), max_size=size // 3))),
        draw(st.one_of(st.just((0, size - 1)), st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)))),
        draw(st.lists(asked, min_size=6, max_size=6)),
    )


def opened(registry: Registry, rows: list[Entry], first: int, last: int) -> IndexFile:
    data = bytearray()
    build(registry, [rows], 7, first, last, data.extend, BLOCK_ROWS)
    return IndexFile(bytes(data))


def made(case: Case) -> tuple[list[Part], Scan]:
    """Companions of all entries, and a scan of the entries that are left of the window."""
    registry = Registry((Version(b"{}", None, 0),), None, msgspec.json.encode(case.config))
    every = [Entry(number, value, 1, key_of(value)) for number, value in enumerate(case.values)]
    first, last = min(case.window), max(case.window)
    removed = [(number, number) for number in sorted(case.removed)]
    index_files = [
        opened(registry, every[begin:end], begin, end - 1)
        for begin, end in pairwise([0, *sorted(case.cuts), len(every)])
    ]
    if case.merged:
        # Some were removed before they were merged, and the others since.
        data = bytearray()
        merge(index_files, data.extend, removed[::2])
        index_files = [IndexFile(bytes(data))]
    plan, findings = plan_of(registry), ResultCache(50_000)
    parts: list[Part] = []
    for index_file in index_files:
        index_file.check()
        low, high = max(index_file.head.first, first), min(index_file.head.last, last)
        if low <= high:
            span = Span(low, high, high - low + 1, "index")
            parts.append(IndexFilePart(index_file, span, plan, removed, findings))
    left = [entry for entry in every[first : last + 1] if entry.number not in case.removed]
    return parts, Scan(Entries(Span(first, last, len(left)), left))


@pytest.fixture(autouse=True, scope="module")
def _everything_is_many() -> Iterator[None]:
    """So that a few rows are taken apart as many are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zone_maps, "AT_ONCE", 2)
        patch.setattr(zone_maps, "_FEW_OF", 2)
        patch.setattr(field_values, "FIRST_ROWS", 1)
        patch.setattr(field_values, "_GROWTH", 2)
        patch.setattr(zone_maps, "_MOST_PLACES", 4)
        patch.setattr(top_k, "FIRST_ROWS", 3)
        patch.setattr(top_k, "_MOST_ROWS", 7)
        yield


@given(cases())
@effort(400)
def test_index_files_find_what_a_scan_finds(case: Case) -> None:
    parts, scan = made(case)
    for node, items, size, count_all in case.asked:
        ask = msgspec.structs.replace(ask_for(node, items, case.config, size), count_all=count_all)
        found, expected = search(parts, ask, plenty()), search([scan], ask, plenty())
        assert found.hits == expected.hits
        assert found.coverage.complete
        again = search(parts, ask, plenty())
        assert (again.hits, again.matched) == (found.hits, found.matched), "what was found before"
        if count_all:
            assert found.matched == expected.matched
        if expected.next_after is not None:
            ask = msgspec.structs.replace(ask, after=expected.next_after)
            assert search(parts, ask, plenty()).hits == search([scan], ask, plenty()).hits


@given(
    cases(), st.lists(st.tuples(*[st.sampled_from(EDGES)] * 2, st.booleans(), st.booleans()), min_size=6, max_size=6)
)
@effort(400)
def test_index_files_add_up_what_a_scan_adds_up(case: Case, ways: Sequence[tuple[int, int, bool, bool]]) -> None:
    parts, scan = made(case)
    dimensions = case.config.rollups["sums"].dimensions
    for (node, *_), (first, last, is_minute, is_grouped) in zip(case.asked, ways, strict=True):
        if first == last:
            continue
        requested = dimensions[:2] if is_grouped else ()
        ask = aggregation(case.config, node, requested, (first, last), "1m" if is_minute else "1h")
        assert show(aggregate(parts, ask, plenty()).groups, ask) == show(aggregate([scan], ask, plenty()).groups, ask)
        everything = aggregation(case.config, None, requested, (first, last), ask.interval)
        found = aggregate(parts, everything, plenty()).groups
        assert show(found, everything) == show(aggregate([scan], everything, plenty()).groups, everything)


@given(cases(), st.one_of(st.none(), st.sampled_from(WORDS)), st.integers(1, 5))
@effort(200)
def test_index_files_list_the_keys_that_a_scan_lists(case: Case, after: str | None, limit: int) -> None:
    parts, scan = made(case)
    found, expected = list_keys(parts, after, limit, plenty()), list_keys([scan], after, limit, plenty())
    assert (found.keys, found.next_after) == (expected.keys, expected.next_after)
