"""Laws of searching: however entries are split into parts, and however they are answered, it is a plain filter."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.property.bm25_model import Bm25
from tests.property.effort import effort
from tests.property.search_model import (
    SortItems,
    comparable,
    configs,
    entries,
    judge,
    plain_search,
    queries,
    sorts,
    values_of,
)
from tests.unit.search.helpers import states_of
from topics.schema.registry import Registry, Version
from topics.schema.search_fields import SearchConfig
from topics.search.file_index import top_k, zone_maps
from topics.search.file_index.file_format import plan_of
from topics.search.file_index.merge import build, merge
from topics.search.file_index.query_part import IndexFilePart
from topics.search.file_index.reader import IndexFile
from topics.search.memory_index import column_store, row_selection
from topics.search.memory_index.memory_index import MemoryIndex, MemoryIndexPart
from topics.search.query import field_values as pieces
from topics.search.query.aggregate import Aggregation, parse_aggregation
from topics.search.query.aggregate_arrays import Counted, Summed, log2_bucket
from topics.search.query.field_values import shown
from topics.search.query.plan import (
    Ask,
    Budget,
    Count,
    Entries,
    Entry,
    Page,
    Part,
    Span,
    aggregate,
    count,
    list_keys,
    search,
)
from topics.search.query.predicates import (
    And,
    Bare,
    Clause,
    Has,
    Node,
    Not,
    Or,
    Text,
    bind_search,
    is_bare_word,
    is_value_word,
    parse_query,
    print_query,
)
from topics.search.query.scan import Scan
from topics.search.query.score import Weights, terms_of
from topics.search.query.sort import parse_sort

names = st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,5}", fullmatch=True)
texts = st.one_of(
    st.text(max_size=6).map(lambda text: Text(text, True)),
    st.text(alphabet='ab-*"\\.é', min_size=1, max_size=5).filter(is_value_word).map(Text),
)
trees = st.recursive(
    st.one_of(
        st.builds(Clause, names, st.sampled_from(("", "=", ">", ">=", "<", "<=")), texts),
        names.map(Has),
        texts.filter(lambda value: value.quoted or is_bare_word(value.text)).map(Bare),
    ).filter(lambda node: not isinstance(node, Clause) or node.field.lower() != "has"),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: And(tuple(parts))),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: Or(tuple(parts))),
        inner.map(Not),
    ),
    max_leaves=12,
)


@given(trees)
@effort(400)
def test_a_tree_is_read_from_its_own_text(tree: Node) -> None:
    assert parse_query(print_query(tree)) == tree


def plenty() -> Budget:
    return Budget(lambda: 0.0, 1.0, 1 << 60)


def key_of(value: Any) -> str | None:
    key = value.get("key") if isinstance(value, dict) else None
    return key if isinstance(key, str) else None


@pytest.fixture(scope="module", autouse=True)
def few_are_many() -> Iterator[None]:
    """Pieces of a few rows, postings and runs of a few texts, so that small examples have some, and dictionaries that
    are large soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "FIRST_ROWS", 1)
        patch.setattr(pieces, "_GROWTH", 2)
        patch.setattr(column_store, "POSTING_WORDS", 4)
        patch.setattr(column_store, "RUN_TEXTS", 2)
        patch.setattr(column_store, "_RUNS_AT_ONCE", 1)
        patch.setattr(column_store, "RANKED_TEXTS", 2)
        patch.setattr(row_selection, "FEW", 0)
        patch.setattr(zone_maps, "AT_ONCE", 1)
        patch.setattr(top_k, "_FIRST_REPEATED", 1)
        patch.setattr(top_k, "_MOST_REPEATED", 2)
        yield


Kind = Literal["scan", "fresh", "companion", "merged"]
KINDS: tuple[Kind, ...] = ("scan", "fresh", "companion", "merged")


class Cut(NamedTuple):
    """The beginning of a part, and its kind of answer."""

    at: int
    kind: Kind


def split(
    values: Sequence[Any], cuts: Sequence[Cut], config: SearchConfig, removed: Collection[int] = ()
) -> list[Part]:
    """Parts between the cuts; a cut that is not inside is none. Removed rows are in none of them."""
    kinds = {cut.at: cut.kind for cut in cuts if 0 < cut.at < len(values)}
    kinds[0] = cuts[0].kind if cuts else "scan"
    parts: list[Part] = []
    for begin, end in pairwise([*sorted(kinds), len(values)]):
        rows = [Entry(number, values[number], 1, key_of(values[number])) for number in range(begin, end)]
        left = [row for row in rows if row.number not in removed]
        if kinds[begin] == "scan":
            parts.append(Scan(Entries(Span(begin, end - 1, len(left)), left)))
        elif kinds[begin] == "fresh":
            parts.append(fresh_part(rows, config, Span(begin, end - 1, len(left)), removed))
        else:
            is_merged = kinds[begin] == "merged"
            parts.append(index_file_part(rows, config, Span(begin, end - 1, len(left), "index"), removed, is_merged))
    return parts


SPARE = {"key": "b", "word": "b a", "int": 3, "num": 1, "time": 1}


def index_file_part(
    rows: list[Entry], config: SearchConfig, span: Span, removed: Collection[int], is_merged: bool
) -> IndexFilePart:
    """A companion that has more than the part, in blocks of three rows. A merged one was made of two others, and some
    of the removed rows were left out then."""
    registry = Registry((Version(b"{}", None, 0),), None, msgspec.json.encode(config))
    ranges = [(number, number) for number in sorted(removed)]
    before, behind = Entry(span.first - 1, SPARE, 1, "k"), Entry(span.last + 1, SPARE, 1, "k")
    if is_merged:
        half = len(rows) // 2
        cut = rows[half].number if rows else span.first
        data = bytearray()
        merge(
            [
                opened(registry, [before, *rows[:half]], span.first - 1, cut - 1),
                opened(registry, [*rows[half:], behind], cut, span.last + 1),
            ],
            data.extend,
            ranges[::2],
        )
        index_file = IndexFile(bytes(data))
    else:
        index_file = opened(registry, [before, *rows, behind], span.first - 1, span.last + 1)
    index_file.check()
    return IndexFilePart(index_file, span, plan_of(registry), ranges)


def opened(registry: Registry, rows: list[Entry], first: int, last: int) -> IndexFile:
    data = bytearray()
    build(registry, [[row] for row in rows], 1, first, last, data.extend, block_rows=3)
    return IndexFile(bytes(data))


def fresh_part(rows: list[Entry], config: SearchConfig, span: Span, removed: Collection[int]) -> MemoryIndexPart:
    """An index that has more than the part, came in several batches, and was asked before it was full."""
    index = MemoryIndex(config, 1)
    index.add([Entry(span.first - 1, SPARE, 1, "k")])
    for row in rows:
        index.add([row])
        if span.first % 2:
            index.columns["key"].dictionary.ranks()  # type: ignore[attr-defined]
    index.add([Entry(span.last + 1, SPARE, 1, "k")])
    return MemoryIndexPart(index, span, [(number, number) for number in sorted(removed)])


def ask_for(node: Node | None, items: SortItems, config: SearchConfig, size: int) -> Ask:
    bound = bind_search("" if node is None else print_query(node), config)
    sort = parse_sort([f"{name}:{'asc' if up else 'desc'}" for name, up in items], config, bound.has_text)
    return Ask(config=config, version=1, predicate=bound.predicate, sort=sort, size=size)


def pages(parts: list[Part], ask: Ask) -> list[Page]:
    """All pages, each going on where the one before it ended."""
    found: list[Page] = []
    fields = {name: getattr(ask, name) for name in ask.__struct_fields__}
    while True:
        found.append(search(parts, Ask(**{**fields, "after": found[-1].next_after if found else None}), plenty()))
        if found[-1].next_after is None:
            return found


cases = configs().flatmap(
    lambda config: st.tuples(
        st.just(config),
        st.lists(entries, max_size=12),
        st.one_of(st.none(), queries(config), queries(config)),
        sorts(config),
    )
)
splits = st.lists(st.builds(Cut, st.integers(1, 11), st.sampled_from(KINDS)), max_size=3)


@given(cases, splits, st.integers(1, 5))
@effort(600)
def test_a_search_is_a_plain_filter_and_its_pages_join(
    case: tuple[SearchConfig, list[Any], Node | None, SortItems], cuts: list[Cut], size: int
) -> None:
    config, values, node, items = case
    expected = plain_search(values, node, items, config)
    event(f"{min(len(expected), 3)} hits of {len(values) and 'some'}")
    found = pages(split(values, cuts, config), ask_for(node, items, config, size))
    assert [(hit.number, hit.score) for page in found for hit in page.hits] == expected
    assert all(page.coverage.complete and len(page.hits) == size for page in found[:-1])
    whole = search(split(values, cuts, config), ask_for(node, items, config, 100), plenty())
    assert (whole.matched, whole.is_exact) == (len(expected), True)


@given(cases, splits, st.integers(0, 12))
@effort(200)
def test_missing_entries_of_an_exhausted_budget_are_an_upper_bound(
    case: tuple[SearchConfig, list[Any], Node | None, SortItems], cuts: list[Cut], rows: int
) -> None:
    config, values, node, items = case
    expected = dict(plain_search(values, node, items, config))
    scans = [Cut(cut.at, "scan") for cut in cuts]
    page = search(split(values, scans, config), ask_for(node, items, config, 100), Budget(lambda: 0.0, 1.0, rows))
    found = {hit.number: hit.score for hit in page.hits}
    assert found.items() <= expected.items()
    assert len(expected) - len(found) <= page.coverage.missed
    assert page.coverage.complete is (rows >= len(values))
    if page.coverage.first_missed is not None:
        assert all(number >= page.coverage.first_missed for number in expected.keys() - found.keys())


removals = st.sets(st.integers(0, 11), max_size=6)
aggregations = configs().flatmap(
    lambda config: st.tuples(
        st.just(config),
        st.lists(entries, max_size=15),
        st.one_of(st.none(), queries(config)),
        st.lists(st.sampled_from(config.rollups["sums"].dimensions or ("",)), max_size=2, unique=True),
    )
)
EDGES = (-60_001, -1, 0, 1, 60_000, 60_001, 3_600_001, 1 << 40)


@given(
    aggregations,
    splits,
    st.tuples(st.sampled_from(EDGES), st.sampled_from(EDGES)),
    st.sampled_from(("1m", "1h")),
    st.one_of(st.just(set()), removals),
)
@effort(300)
def test_an_aggregation_is_a_group_by(
    case: tuple[SearchConfig, list[Any], Node | None, list[str]],
    cuts: list[Cut],
    edges: tuple[int, int],
    interval: str,
    removed: set[int],
) -> None:
    config, values, node, requested = case
    group_by = tuple(name for name in requested if name)
    ask = aggregation(config, node, group_by, edges, interval)
    sums = aggregate(split(values, cuts, config, removed), ask, plenty())
    assert sums.coverage.complete
    expected = plain_sums([value for number, value in enumerate(values) if number not in removed], node, ask)
    event(f"{min(len(expected), 3)} groups")
    assert {
        key: dict(zip(ask.shown_measures, states, strict=True)) for key, states in states_of(sums.groups).items()
    } == expected


@given(aggregations, splits, st.sampled_from((None, "1m", "1h")), st.booleans())
@effort(150)
def test_aggregation_without_a_rollup_equals_a_group_by(
    case: tuple[SearchConfig, list[Any], Node | None, list[str]], cuts: list[Cut], interval: str | None, bounded: bool
) -> None:
    config, values, node, requested = case
    if not config.fields["num"].column:
        return
    body = {
        "q": "" if node is None else print_query(node),
        "group_by": [name for name in requested if name],
        "measures": {"count": {"kind": "count"}, "num": {"kind": "summary", "field": "n", "histogram": "log2_v1"}},
        **({"interval": interval} if interval else {}),
        **({"from": 0, "to": 60_001} if bounded else {}),
    }
    ask = parse_aggregation(json.dumps(body).encode(), config, 1)
    sums = aggregate(split(values, cuts, config), ask, plenty())
    assert sums.coverage.complete
    expected = plain_sums(values, node, ask)
    assert {
        key: dict(zip(ask.shown_measures, states, strict=True)) for key, states in states_of(sums.groups).items()
    } == {key: {name: measures[name] for name in ("count", "num")} for key, measures in expected.items()}


def aggregation(
    config: SearchConfig, node: Node | None, group_by: tuple[str, ...], edges: tuple[int, int], interval: str
) -> Aggregation:
    return Aggregation(
        config=config,
        version=1,
        name="sums",
        from_ms=min(edges),
        to_ms=max(edges),
        interval=interval,
        interval_ms={"1m": 60_000, "1h": 3_600_000}[interval],
        group_by=group_by,
        measures=("count", "some", "num"),
        predicate=bind_search("" if node is None else print_query(node), config).predicate,
    )


def plain_sums(values: list[Any], node: Node | None, ask: Aggregation) -> dict[Any, dict[str, Any]]:
    """A group-by over whole entries."""
    config = ask.config
    rows: dict[Any, list[Any]] = defaultdict(list)
    for entry in values:
        times = comparable(entry, "time", config)
        dimensions = {name: comparable(entry, name, config) for name in ask.rollup.dimensions}
        amounts = comparable(entry, "num", config)
        if len(times) != 1 or len(amounts) != 1 or any(len(found) > 1 for found in dimensions.values()):
            continue
        if not ask.from_ms <= times[0] < ask.to_ms:
            continue
        if node is not None and judge(node, entry, config) is None:
            continue
        group = tuple(shown(dimensions[name][0]) if dimensions[name] else None for name in ask.group_by)
        start = times[0] // ask.interval_ms * ask.interval_ms if ask.interval_ms else ask.from_ms
        rows[start, group].append((entry, amounts[0]))
    sums = {}
    for key, members in rows.items():
        amounts = [amount for _, amount in members]
        histogram: dict[int, int | float] = {}
        for amount in amounts:
            histogram[log2_bucket(amount)] = histogram.get(log2_bucket(amount), 0) + 1
        sums[key] = {
            "count": Counted(len(members)),
            "some": Counted(sum(values_of(entry, "word", config) is not None for entry, _ in members)),
            "num": Summed(len(members), sum(amounts), min(amounts), max(amounts), histogram),
        }
    return sums


@given(cases, splits, removals)
@effort(150)
def test_removed_entries_are_not_found(
    case: tuple[SearchConfig, list[Any], Node | None, SortItems], cuts: list[Cut], removed: set[int]
) -> None:
    config, values, node, items = case
    expected = [hit for hit in plain_search(values, node, items, config) if hit[0] not in removed]
    page = search(split(values, cuts, config, removed), ask_for(node, items, config, 100), plenty())
    assert [(hit.number, hit.score) for hit in page.hits] == expected


@given(cases, splits, splits, removals, st.integers(1, 5))
@effort(500)
def test_a_ranked_search_is_bm25_over_all_live_entries_and_its_pages_join(
    case: tuple[SearchConfig, list[Any], Node | None, SortItems],
    cuts: list[Cut],
    counted_cuts: list[Cut],
    removed: set[int],
    size: int,
) -> None:
    """To the last bit, for any division into counted and searched parts."""
    config, values, node, items = case
    live = [value for number, value in enumerate(values) if number not in removed]
    model = Bm25(live, config)
    expected = [hit for hit in plain_search(values, node, items, config, model.score) if hit[0] not in removed]
    plain = ask_for(node, items, config, size)
    asked = Count(config=config, version=1, terms=terms_of(plain.predicate))
    numbers = count(split(values, counted_cuts, config, removed), asked, plenty())
    ask = msgspec.structs.replace(plain, weights=Weights(plain.predicate, numbers))
    event(f"{min(len(expected), 3)} hits, {'scores' if any(score for _, score in expected) else 'none'}")
    found = pages(split(values, cuts, config, removed), ask)
    assert [(hit.number, hit.score) for page in found for hit in page.hits] == expected


@given(configs(), st.lists(entries, max_size=12), splits, st.integers(1, 4), removals)
@effort(100)
def test_pages_of_routing_keys_join(
    config: SearchConfig, values: list[Any], cuts: list[Cut], limit: int, removed: set[int]
) -> None:
    joined: list[str] = []
    after: str | None = None
    while True:
        page = list_keys(split(values, cuts, config, removed), after, limit, plenty())
        joined += page.keys
        if page.next_after is None:
            break
        after = page.next_after
    left = [value for number, value in enumerate(values) if number not in removed]
    assert joined == sorted({key for value in left if (key := key_of(value)) is not None})
