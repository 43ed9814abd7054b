"""The index over fresh entries: cases that the property tests do not cover."""

import json
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.unit.search.helpers import CONFIG, LOGS, bound, plenty, states_of
from topics.schema.search_fields import SearchConfig, parse_search
from topics.search.memory_index import column_store
from topics.search.memory_index.column_store import Dictionary, Growing, WordColumn
from topics.search.memory_index.memory_index import MemoryIndex, MemoryIndexPart, Window
from topics.search.memory_index.row_selection import MaskEvaluator
from topics.search.query import predicates
from topics.search.query.aggregate import parse_aggregation
from topics.search.query.field_values import FIRST_ROWS, WordsColumn
from topics.search.query.plan import Ask, Budget, Count, Entries, Entry, Part, Span, aggregate, count, search
from topics.search.query.predicates import Predicate, bind_search
from topics.search.query.scan import Scan
from topics.search.query.score import Weights, terms_of
from topics.search.query.sort import parse_sort


def test_an_array_keeps_what_it_handed_out() -> None:
    array = Growing("int64")
    array.extend([1, 2])
    early = array.filled
    array.extend(list(range(5000)))
    assert early.tolist() == [1, 2]
    assert array.filled[:3].tolist() == [1, 2, 0] and array.count == 5002


def test_texts_are_found_by_their_beginning_sorted_or_not_yet() -> None:
    texts = Dictionary()
    assert texts.encode(["b", "a", "b", "ab"]).tolist() == [0, 1, 0, 2]
    assert texts.ranks().tolist() == [4, 0, 2]
    assert texts.encode(["abc", "a"]).tolist() == [3, 1]
    assert texts.having_prefix("ab").tolist() == [False, False, True, True]
    assert (texts.rank("ab"), texts.rank("aa"), texts.rank("z"), texts.code("z")) == (2, 1, 7, None)
    texts.encode([f"x{number}" for number in range(3000)])
    assert int(texts.having_prefix("x29").sum()) == 111
    assert int(texts.having_prefix("\U0010ffff").sum()) == 0


@pytest.mark.parametrize("seed", range(4))
def test_texts_in_runs_are_found_as_if_all_were_sorted(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """With runs of five, of which a query sorts two at most, whatever else asks for the order of all in between."""
    monkeypatch.setattr(column_store, "RUN_TEXTS", 5)
    monkeypatch.setattr(column_store, "_RUNS_AT_ONCE", 2)
    random, texts, known = Random(seed), Dictionary(), list[str]()
    for _ in range(60):
        new = ["".join(random.choices("ab\U0010ffff", k=random.randint(0, 5))) for _ in range(random.randint(0, 12))]
        texts.encode(new)
        known += [text for text in dict.fromkeys(new) if text not in known]
        beginning, limit = random.choice(["", "a", "ab", "bb", "\U0010ffff"]), random.randint(0, 9)
        assert texts.having_prefix(beginning).tolist() == [text.startswith(beginning) for text in known]
        live = np.array([random.random() < 0.7 for _ in known], np.bool_)
        behind = random.choice([None, *known[:5]])
        alive = sorted(text for text, lives in zip(known, live, strict=True) if lives)
        expected = [text for text in alive if behind is None or text > behind][:limit]
        assert texts.first_behind(behind, live, limit) == expected
        codes, some = np.arange(len(known)), np.flatnonzero(live)
        for edge in (beginning, *known[:2]):
            assert texts.come_behind(edge, codes).tolist() == [text > edge for text in known]
        assert [known[code] for code in texts.first_among(some, limit, True)] == alive[:limit]
        assert [known[code] for code in texts.first_among(some, limit, False)] == alive[::-1][:limit]
        if random.random() < 0.15:
            assert texts.ordered() == sorted(known)
            assert texts.ranks().tolist() == [2 * sorted(known).index(text) for text in known]


@pytest.mark.parametrize("seed", range(3))
def test_no_query_sorts_all_texts_where_they_are_many(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """By them, behind one, in a range of them: each sorts a few runs at most, and finds the same as a scan."""
    monkeypatch.setattr(column_store, "RUN_TEXTS", 16)
    monkeypatch.setattr(column_store, "_RUNS_AT_ONCE", 2)
    monkeypatch.setattr(column_store, "RANKED_TEXTS", 32)
    monkeypatch.setattr(Dictionary, "_sort_all", lambda _: pytest.fail("all texts were sorted"))
    random = Random(seed)
    values: list[Any] = [
        {"requestId": f"r{random.randint(0, 999):03}", "eventTime": random.randint(0, 3)} for _ in range(600)
    ]
    for number in random.sample(range(600), 50):
        del values[number]["requestId"]
    entries = [Entry(number, value, 1) for number, value in enumerate(values)]
    request = bound("keyword", "/requestId", exact=True, column=True, sortable=True)
    described = parse_search({**LOGS, "fields": {**LOGS["fields"], "requestId": request}})
    index = MemoryIndex(described, 1)
    index.add(entries)
    fresh, scan = MemoryIndexPart(index, Span(0, 599, 600)), Scan(Entries(Span(0, 599, 600), entries))
    runs = 0
    for q in ("", "requestId:>r5", "requestId:<=r250", "-requestId:>=r9"):
        for sort in (
            ("requestId:asc",),
            ("requestId",),
            ("eventTime", "requestId:asc"),
            ("eventTime:asc", "requestId"),
        ):
            predicate = bind_search(q, described).predicate
            ask = Ask(config=described, version=1, predicate=predicate, sort=parse_sort(sort, described, False), size=7)
            for _ in range(3):
                found = search([fresh], ask, plenty())
                assert found.hits == search([scan], ask, plenty()).hits
                ask = msgspec.structs.replace(ask, after=found.next_after)
            sorted_runs = len(index.columns["requestId"].dictionary._runs)  # type: ignore[attr-defined]
            # One sort asks its dictionary twice a page, and the query once.
            assert sorted_runs - runs <= 3 * 3 * 2
            runs = sorted_runs
    assert runs > 2


@pytest.mark.parametrize("ascending", [True, False])
def test_the_first_rows_by_their_offsets_are_looked_at_first(ascending: bool) -> None:
    values = [{"service": "s" if n % 2 else "t", "status": n % 1000, "message": "a b"} for n in range(65_536)]
    values[-9]["message"] = values[8]["message"] = "a c"
    # With a hole, so that a row is not its number.
    entries = [Entry(number if number < 40_000 else number + 7, value, 1) for number, value in enumerate(values)]
    index = MemoryIndex(CONFIG, 1)
    index.add(entries)
    span = Span(0, 65_542, 65_536)
    scan, second = Scan(Entries(span, entries)), 5 * FIRST_ROWS
    for q, size, after, count_all, most in (
        ("service:s", 9, None, False, FIRST_ROWS),
        ("has:service -service:t", 9, None, False, FIRST_ROWS),
        ("message:c", 1, None, False, FIRST_ROWS),
        ('message:"a c"', 2, None, False, 65_536),
        ("status:<500", FIRST_ROWS // 2 + 999, None, False, second),
        ("status:<500", 9, None, True, 65_536),
        ("service:s", 40_000, None, False, 65_536),
        ("service:s", 9, 30_000, False, FIRST_ROWS),
    ):
        sort = parse_sort((f"offset:{'asc' if ascending else 'desc'}",), CONFIG, False)
        ask = Ask(
            config=CONFIG, version=1, predicate=bind_search(q, CONFIG).predicate, sort=sort, size=size,
            after=None if after is None else (after,), count_all=count_all,
        )  # fmt: skip
        found, expected = search([MemoryIndexPart(index, span)], ask, plenty()), search([scan], ask, plenty())
        assert found.hits == expected.hits, q
        assert found.coverage.looked_at == most, q
        assert found.matched == expected.matched or not count_all


@pytest.mark.parametrize("seed", range(4))
def test_a_window_has_what_its_rows_have(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """For every query on its columns, an index of these rows alone gives the same."""
    monkeypatch.setattr(column_store, "POSTING_WORDS", 8)
    random = Random(seed)
    values = [
        {
            "message": " ".join(random.choices("abcd", k=random.randint(0, 4))),
            "service": random.choice(["s", "t", None]),
            "status": random.choice([[1, 2], [], 3]),
        }
        for _ in range(60)
    ]
    entries = [Entry(number, value, 1) for number, value in enumerate(values)]
    index = MemoryIndex(CONFIG, 1)
    index.add(entries)
    predicates = [
        bind_search(q, CONFIG).predicate
        for q in (
            "message:a",
            "message:a message:b",
            'message:"a b"',
            "message:a*",
            "service:s",
            "status:2",
            "has:service",
        )
    ]
    for _ in range(30):
        lo, hi = sorted(random.sample(range(61), 2))
        alone = MemoryIndex(CONFIG, 1)
        alone.add(entries[lo:hi])
        window = Window(index.columns, lo, hi)
        for predicate in predicates:
            expected = MaskEvaluator(alone.columns, hi - lo).mask(predicate).tolist()
            assert MaskEvaluator(window, hi - lo).mask(predicate).tolist() == expected, predicate
        words, own = window["message"], alone.columns["message"]
        assert isinstance(words, WordsColumn) and isinstance(own, WordColumn)
        assert words.lengths(hi - lo).tolist() == own.lengths(hi - lo).tolist()
        for word in "abcd":
            code, other = words.dictionary.code(word), own.dictionary.code(word)
            places = [] if other is None else own.places(other).tolist()
            assert (words.places(code).tolist() if code is not None else []) == places


def asked(config: SearchConfig, values: list[Any], q: str, *sort: str) -> None:
    """An index and a scan give the same hits."""
    entries = [Entry(number, value, 1) for number, value in enumerate(values)]
    span = Span(0, len(values) - 1, len(values))
    index = MemoryIndex(config, 1)
    index.add(entries)
    query = bind_search(q, config)
    ask = Ask(
        config=config, version=1, predicate=query.predicate, sort=parse_sort(sort, config, query.has_text), size=20
    )
    parts: list[Part] = [MemoryIndexPart(index, span), Scan(Entries(span, entries))]
    first, second = (search([part], ask, plenty()) for part in parts)
    assert first.hits == second.hits
    assert first.hits


def test_many_matches_with_equal_keys() -> None:
    config = parse_search(LOGS)
    values = [
        {"eventTime": n % 7, "status": n % 3 or None, "service": f"{n % 5}", "message": "a b" * (n % 2)}
        for n in range(1000)
    ]  # fmt: skip
    for q in ("", "message:a", "status:1 OR message:b"):
        for sort in ((), ("status",), ("service:asc", "status:asc"), ("eventTime", "offset:asc"), ("_score", "status")):
            asked(config, values, q, *sort)


def test_the_largest_and_smallest_integers_sort() -> None:
    config = parse_search(LOGS)
    values = [{"status": number} for number in (2**63 - 1, -(2**63), 0, None)]
    for sort in ("status:asc", "status:desc"):
        asked(config, values, "", sort)


SUMS = {"rollups": {"r": {
    "dimensions": ["service"], "intervals": ["1m"],
    "measures": {
        "status": {"kind": "summary", "field": "status", "histogram": "log2_v1"},
        "parts": {
            "kind": "summary_parts", "countJsonPointer": "/m/c", "sumJsonPointer": "/m/s", "minJsonPointer": "/m/min",
            "maxJsonPointer": "/m/max", "histogramJsonPointer": "/m/h",
        },
    },
}}}  # fmt: skip


@pytest.mark.parametrize("status", [1, 2**53 + 1, 2**63 - 1, -(2**63)])
def test_sums_of_large_integers_and_of_summaries_are_exact(status: int) -> None:
    config = parse_search({**LOGS, **SUMS})
    values = [
        {"eventTime": 1, "service": str(n % 2), "status": status, "m": {"c": n, "s": 1, "max": n, "h": {"4": n}}}
        for n in range(5)
    ]  # fmt: skip
    values.append({"eventTime": 1, "status": 1, "m": {"c": None}})
    entries = [Entry(number, value, 1) for number, value in enumerate(values)]
    span = Span(0, len(values) - 1, len(values))
    index = MemoryIndex(config, 1)
    index.add(entries)
    body = {"rollup": "r", "from": 0, "to": 10, "interval": "1m", "group_by": ["service"]}
    ask = parse_aggregation(json.dumps(body).encode(), config, 1)
    parts: list[Part] = [MemoryIndexPart(index, span), Scan(Entries(span, entries))]
    first, second = (aggregate([part], ask, plenty()) for part in parts)
    assert states_of(first.groups) == states_of(second.groups)
    assert len(first.groups) == 2


@pytest.mark.parametrize("interval", ["1s", "7m", "9999999999d"])
def test_the_first_bucket_of_all_begins_where_numbers_do(interval: str) -> None:
    config = parse_search(LOGS)
    times = (-(2**63), -(2**63) + 5, 0)
    entries = [Entry(number, {"eventTime": time}, 1) for number, time in enumerate(times)]
    span = Span(0, 2, 3)
    index = MemoryIndex(config, 1)
    index.add(entries)
    ask = parse_aggregation(json.dumps({"from": -(2**63), "interval": interval}).encode(), config, 1)
    parts: list[Part] = [MemoryIndexPart(index, span), Scan(Entries(span, entries))]
    assert [aggregate([part], ask, plenty()).groups.starts.tolist() for part in parts] == [[-(2**63), 0]] * 2


def test_too_many_groups_spend_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicates, "MAX_GROUPS", 2)
    config = parse_search(
        {
            "primaryTimestampField": "t",
            "fields": {"t": bound("date", "/t"), "id": bound("keyword", "/id", exact=True)},
            "rollups": {"r": {"dimensions": ["id"], "intervals": ["1m"], "measures": {"n": {"kind": "count"}}}},
        }
    )
    index = MemoryIndex(config, 1)
    index.add([Entry(number, {"t": 1, "id": str(number)}, 1) for number in range(5)])
    body = {"rollup": "r", "from": 0, "to": 10, "interval": "1m", "group_by": ["id"]}
    ask = parse_aggregation(json.dumps(body).encode(), config, 1)
    found = aggregate([MemoryIndexPart(index, Span(0, 4, 5))], ask, plenty())
    assert (found.coverage.spent, found.coverage.missed, len(found.groups)) == ("memory", 5, 0)


def test_an_index_knows_what_it_takes() -> None:
    index = MemoryIndex(parse_search(LOGS), 1)
    before = index.memory_bytes
    index.add([Entry(number, {"requestId": f"{number:032}"}, 1) for number in range(10_000)])
    assert index.memory_bytes > before + 10_000 * 32
    assert index.last == 9_999


def test_a_query_of_many_clauses_ends_with_its_time() -> None:
    config = parse_search({**LOGS, "rollups": SUMS["rollups"]})
    index = MemoryIndex(config, 1)
    index.add([Entry(number, {"eventTime": number, "service": f"s{number}", "status": 1}, 1) for number in range(50)])
    part = MemoryIndexPart(index, Span(0, 49, 50))
    query = bind_search(" OR ".join(f"service:s{number}" for number in range(200)), config)
    clock = iter(range(1000))
    budget = Budget(lambda: float(next(clock)), 20.0, 1 << 40)
    ask = Ask(config=config, version=1, predicate=query.predicate, sort=parse_sort((), config, False), size=20)
    found = part.search(ask, budget)
    assert (found.hits, found.missed, found.first_missed, budget.spent) == ([], 50, 0, "time")
    assert next(clock) < 60, "it looked at no more clauses than it had time for"
    body = {"rollup": "r", "from": 0, "to": 100, "interval": "1m", "q": "service:s1"}
    totalled = part.aggregate(parse_aggregation(json.dumps(body).encode(), config, 1), budget)
    assert (totalled.missed, len(totalled.groups)) == (50, 0)


def test_repeated_clauses_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred times the same word in a long text took seconds."""
    config = parse_search(LOGS)
    index = MemoryIndex(config, 1)
    index.add([Entry(number, {"message": "card " * 50}, 1) for number in range(5)])
    looked: list[int] = []
    places = WordColumn.places

    def watched(column: WordColumn, code: int) -> Any:
        looked.append(code)
        return places(column, code)

    monkeypatch.setattr(WordColumn, "places", watched)
    query = bind_search(" ".join(["message:card"] * 200), config)
    numbers = count([MemoryIndexPart(index, Span(0, 4, 5))], asking(config, query.predicate), plenty())
    weights = Weights(query.predicate, numbers)
    sort = parse_sort((), config, query.has_text)
    ask = Ask(config=config, version=1, predicate=query.predicate, sort=sort, size=20, weights=weights)
    page = search([MemoryIndexPart(index, Span(0, 4, 5))], ask, plenty())
    assert len(page.hits) == 5 and len(looked) == 2, "counted, then judged and scored by the same places"


def asking(config: SearchConfig, predicate: Predicate) -> Count:
    return Count(config=config, version=1, terms=terms_of(predicate))


def test_keys_that_are_a_field_are_its_column_until_one_differs() -> None:
    index = MemoryIndex(CONFIG, 1)

    def add(number: int, request: Any, key: str | None) -> None:
        index.add([Entry(number, {"requestId": request, "hidden": "a"}, 1, key)])

    def keys() -> list[str]:
        return [index.keys.dictionary.texts[code] for code in index.keys.values.filled.tolist()]

    index.add([])
    add(0, "a", "a")
    shared = index.memory_bytes
    assert index.keys is index.columns["requestId"]
    add(1, "b", "b")
    assert index.keys is index.columns["requestId"] and keys() == ["a", "b"]
    # A field that is null is there, and a key that is not there is not.
    add(2, None, None)
    assert index.keys is not index.columns["requestId"] and index.memory_bytes > shared
    add(3, "c", "d")
    assert keys() == ["a", "b", "d"]
    assert index.keys.has_field(4).tolist() == [True, True, False, True]
    assert index.columns["requestId"].has_field(4).all()


def test_keys_without_a_field_like_them_are_a_column_of_their_own() -> None:
    index = MemoryIndex(CONFIG, 1)
    index.add([Entry(0, {"requestId": "a"}, 1, None), Entry(1, {"requestId": "b"}, 1, "b")])
    index.add([Entry(2, {"requestId": "c"}, 1, "c")])
    assert index.keys not in index.columns.values() and index.keys.has_field(3).tolist() == [False, True, True]
