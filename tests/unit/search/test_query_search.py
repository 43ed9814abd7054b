"""Results of a search, their order, and the refused queries."""

from typing import Any

import msgspec
import pytest

from tests.unit.search.helpers import CONFIG, LOGS, bound, find, numbers, part_of, plenty
from topics.model.errors import InvalidRequestError
from topics.schema.registry import Registry, Version
from topics.schema.search_fields import parse_search
from topics.search.file_index.file_format import plan_of
from topics.search.file_index.merge import build
from topics.search.file_index.query_part import IndexFilePart
from topics.search.file_index.reader import IndexFile
from topics.search.query.match import Matcher
from topics.search.query.plan import Ask, Budget, Entries, Entry, Span, list_keys, search
from topics.search.query.predicates import Everything, bind_filter, bind_search
from topics.search.query.scan import Scan
from topics.search.query.sort import parse_sort

DOCS: list[dict[str, Any]] = [
    {"eventTime": 1000, "service": "Billing-API", "status": 402, "message": "card declined", "ok": False, "why": ""},
    {"eventTime": 3000, "service": "billing-worker", "status": [200, 204], "message": "retry later", "duration": 0.5},
    {"eventTime": 2000, "service": "auth", "status": -5, "message": "declined card again", "why": "card stolen"},
    {"eventTime": None, "service": None, "requestId": "req_1", "message": ["one card", "declined"], "duration": -0.0},
]  # fmt: skip


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ("", [3, 2, 1, 0]),
        ("service:billing-api", [0]),
        ("service:BILLING-API", [0]),
        ("service:billing*", [1, 0]),
        ("service:bill", []),
        ("service:*", []),
        ('service:"billing*"', []),
        ("req:req_*", [3]),
        ("status:402", [0]),
        ("status:204", [1]),
        ("status:-5", [2]),
        ("status:<0", [2]),
        ("status:>=200 status:<402", [1]),
        ("status:>200", [1, 0]),
        ("ts:2000", [2]),
        ('ts:>="1970-01-01T00:00:02Z"', [2, 1]),
        ("duration:0", [3]),
        ("duration:<=0.5", [3, 1]),
        ("ok:false", [0]),
        ("ok:true", []),
        ("has:service", [3, 2, 1, 0]),
        ("has:why", [2, 0]),
        ("-has:status", [3]),
        ("NOT service:auth -status:402", [3, 1]),
        ("-(-status:402 service:auth)", [3, 1, 0]),
        ("status:402 OR service:auth", [2, 0]),
        ("nosuchword", []),
        ("ok:FALSE", [0]),
    ],
)
def test_matching_entries_are_found(q: str, expected: list[int]) -> None:
    assert numbers(find(DOCS, q, sort=["offset"])) == expected


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ("message:card", {0: 1, 2: 1, 3: 1}),
        ("message:DECLINED message:card", {0: 2, 2: 2, 3: 2}),
        ("message:card-declined", {0: 2, 2: 2}),
        ('message:"card decl*"', {0: 6}),
        ('message:"decl*"', {0: 3, 2: 3, 3: 3}),
        ("message:decl*", {0: 1, 2: 1, 3: 1}),
        ('message:"card declined"', {0: 6}),
        ('message:"declined card"', {2: 6}),
        ("card", {0: 2, 2: 2, 3: 2}),
        ("stolen", {2: 1.5}),
        ("stolen OR card", {0: 2, 2: 3.5, 3: 2}),
        ('"card declined"', {0: 12}),
        ("card -stolen", {0: 2, 3: 2}),
        ('why:"card"', {2: 3}),
        ("card service:auth", {2: 2}),
    ],
)
def test_scores(q: str, expected: dict[int, float]) -> None:
    assert {hit.number: hit.score for hit in find(DOCS, q).hits} == expected


@pytest.mark.parametrize(
    ("q", "sort", "expected"),
    [
        ("", (), [3, 2, 1, 0]),
        ("", ("offset:asc",), [0, 1, 2, 3]),
        ("", ("eventTime",), [3, 1, 2, 0]),
        ("", ("ts:asc",), [0, 2, 1, 3]),
        ("", ("service:asc",), [2, 0, 1, 3]),
        ("", ("status:desc",), [3, 0, 1, 2]),
        ("", ("status:asc",), [2, 1, 0, 3]),
        ("card OR stolen", (), [2, 3, 0]),
        ("card OR stolen", ("_score:asc", "offset:asc"), [0, 3, 2]),
    ],
)
def test_orders(q: str, sort: tuple[str, ...], expected: list[int]) -> None:
    assert numbers(find(DOCS, q, sort=sort)) == expected
    # Every page of one, joined.
    after, joined = None, []
    while True:
        page = find(DOCS, q, sort=sort, size=1, after=after)
        joined += numbers(page)
        if page.next_after is None:
            break
        key_offset = len(page.next_after) - 1
        after = [str(part) if index == key_offset else part for index, part in enumerate(page.next_after)]
    assert joined == expected


def test_a_page_that_is_full_goes_on_and_is_not_exact() -> None:
    page = find(DOCS, "", size=4)
    assert page.next_after == (0,)
    assert not page.is_exact
    assert find(DOCS, "", size=5).is_exact


@pytest.mark.parametrize(
    ("q", "problem"),
    [
        ("nosuch:1", "not declared"),
        ("has:nosuch", "not declared"),
        ("hidden:x", "neither exact nor column"),
        ("hidden:x*", "no prefix"),
        ("service:>a", "not a column"),
        ("message:>a", "not a column"),
        ("status:abc", "no integer"),
        ("status:4*", "no integer"),
        ("ok:yes", "no bool"),
        ("eventTime:soon", "no date"),
        ('why:"no funds"', "no positions"),
    ],
)
def test_invalid_searches_are_refused(q: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        bind_search(q, CONFIG)


@pytest.mark.parametrize(
    ("q", "problem"),
    [
        ("nosuch:500", "filter field nosuch is not indexed"),
        ("message:card", "only a search"),
        ("service:bill*", "only a search"),
        ("card", "no field"),
        ("hidden:x", "neither exact nor column"),
    ],
)
def test_invalid_filters_are_refused(q: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        bind_filter(q, CONFIG)


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ("service:billing-api", [0]),
        ('service:"bill*"', []),
        ("status:>=200 -status:402", [1]),
        ("has:why", [0, 2]),
        ("has:message OR status:402", [0, 1, 2, 3]),
        ("", [0, 1, 2, 3]),
    ],
)
def test_filter_matches(q: str, expected: list[int]) -> None:
    matcher = Matcher(bind_filter(q, CONFIG), CONFIG, 1)
    assert [index for index, doc in enumerate(DOCS) if matcher.matches(matcher.row(doc))] == expected


def test_bare_words_without_default_fields_look_at_all_texts() -> None:
    fields = {"t": bound("date", "/t"), "a": bound("text", "/a"), "b": bound("text", "/b")}
    config = parse_search({"primaryTimestampField": "t", "fields": fields})
    docs = [{"a": "x"}, {"b": "x"}, {"a": "y"}]
    assert numbers(find(docs, "x", config=config)) == [1, 0]
    with pytest.raises(InvalidRequestError, match="no default field"):
        bind_search('"x y"', config)
    bare = parse_search({"primaryTimestampField": "t", "fields": {"t": bound("date", "/t")}})
    with pytest.raises(InvalidRequestError, match="none is the default"):
        bind_search("x", bare)


def test_bare_words_look_into_default_fields_of_other_kinds() -> None:
    document = {
        "primaryTimestampField": "t",
        "defaultFields": [{"field": "id", "boost": 3}, {"field": "n"}, {"field": "text"}],
        "fields": {
            "t": bound("date", "/t"),
            "id": bound("keyword", "/id", exact=True, prefix=True),
            "n": bound("integer", "/n", column=True),
            "text": bound("text", "/text"),
        },
    }
    config = parse_search(document)
    docs = [{"id": "12", "n": 12}, {"n": 12}, {"text": "12 monkeys"}, {"id": "123"}]
    assert {hit.number: hit.score for hit in find(docs, "12", config=config).hits} == {0: 3, 1: 1, 2: 1}
    assert {hit.number: hit.score for hit in find(docs, "12*", config=config).hits} == {0: 3, 2: 1, 3: 3}


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        (["nosuch"], "not declared"),
        (["ok"], "not sortable"),
        (["status:up"], "neither ascending"),
        (["status"] * 9, "more than"),
    ],
)
def test_invalid_sorts_are_refused(items: list[str], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        parse_sort(items, CONFIG, False)


def test_a_sort_uses_the_first_of_equal_keys() -> None:
    assert parse_sort(["status", "status:asc", "offset", "offset:asc"], CONFIG, False) == parse_sort(
        ["status", "offset"], CONFIG, False
    )
    assert numbers(find(DOCS, "", sort=["status", "status:asc"])) == numbers(find(DOCS, "", sort=["status"]))


@pytest.mark.parametrize("q", ['why:""', 'why:"!!"', "message:---", '"!!"', "message:*", '"*"', "service:a message:!"])
def test_a_text_value_without_words_is_refused(q: str) -> None:
    with pytest.raises(InvalidRequestError):
        find(DOCS, q)


TIMES = [
    {"eventTime": 1, "message": "time flies"},
    {"eventTime": 2, "message": "time time time x1"},
    {"eventTime": 3, "message": "retries retry x"},
    {"eventTime": 4, "message": ["time", "time time"]},
    {"eventTime": 5, "message": ["card stolen", "declined", "card card de de declined"]},
]


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ("message:time", {0: 1, 1: 3, 3: 2}),
        ("message:r*", {2: 2}),
        ("message:time-time", {0: 2, 1: 6, 3: 4}),
        ("time", {0: 2, 1: 6, 3: 4}),
        ("message:card-de*", {4: 5}),
        ("message:stolen-declined", {}),
        ("message:stolen message:declined", {4: 2}),
        ('message:"time time"', {1: 10, 3: 8}),
        ('message:"card de*"', {4: 9}),
        ('message:"card declined"', {}),
        ('message:"stolen decl*"', {}),
        ("message:time OR message:flies", {0: 2, 1: 3, 3: 2}),
    ],
)
def test_scores_count_the_matching_words_of_one_text(q: str, expected: dict[int, float]) -> None:
    assert {hit.number: hit.score for hit in find(TIMES, q).hits} == expected


def test_the_best_hit_of_an_index_file_need_not_be_the_newest() -> None:
    """More rows than are looked at in one go, so that blocks are skipped by their bounds."""
    registry = Registry((Version(b"{}", None, 0),), None, msgspec.json.encode(LOGS))
    docs = [{"eventTime": number, "message": "a b" + " a" * (number % 97 == 5) * 3} for number in range(4000)]
    docs[7]["message"], docs[11]["message"] = "a a a a a a a c", "a c"
    rows = [Entry(number, doc, 1, None) for number, doc in enumerate(docs, 1)]
    data = bytearray()
    build(registry, [rows], 1, 1, len(rows), data.extend, 256)
    span = Span(1, len(rows), len(rows), "index")
    for q in ("a", "a b", "a OR c", '"a a"', "a -c", "a*"):
        for size in (1, 5, 60):
            bound = bind_search(q, CONFIG)
            ask = Ask(config=CONFIG, version=1, predicate=bound.predicate, sort=parse_sort((), CONFIG, True), size=size)
            scanned = search([Scan(Entries(Span(1, len(rows), len(rows)), rows))], ask, plenty())
            while True:
                part = IndexFilePart(IndexFile(bytes(data)), span, plan_of(registry))
                found = search([part], ask, plenty())
                assert found.hits == scanned.hits, (q, size)
                if found.next_after is None or ask.after is not None:
                    break
                ask = msgspec.structs.replace(ask, after=found.next_after)
                scanned = search([Scan(Entries(Span(1, len(rows), len(rows)), rows))], ask, plenty())


@pytest.mark.parametrize("after", [[], [1], ["x", "1"], [1, 2], [True, "1"], [{}, "1"]])
def test_a_place_that_does_not_fit_the_sort_is_refused(after: list[Any]) -> None:
    with pytest.raises(InvalidRequestError, match="search_after"):
        find(DOCS, "", sort=["status"], after=after)


class Steps:
    """A clock that advances by one second with each reading."""

    def __init__(self) -> None:
        self.at = -1.0

    def __call__(self) -> float:
        self.at += 1
        return self.at


def ask(**more: Any) -> Ask:
    return Ask(config=CONFIG, version=1, predicate=Everything(), sort=parse_sort((), CONFIG, False), size=50, **more)


def test_a_spent_time_states_what_was_left_out_and_never_too_little() -> None:
    parts = [part_of([{"status": 1}] * 10, first) for first in (0, 10, 20)]
    # One look at the clock for the deadline, then one when a part is asked and one when it begins.
    page = search(parts, ask(), Budget(Steps(), 3.5, 1 << 30))
    assert numbers(page) == list(range(29, 9, -1))
    assert page.coverage.spent == "time"
    assert (page.coverage.missed, page.coverage.first_missed, page.coverage.missed_tail) == (10, 0, 10)
    assert not page.is_exact


def test_no_time_at_all_finds_nothing() -> None:
    page = search([part_of([{}] * 3)], ask(), Budget(lambda: 0.0, 0.0, 1 << 30))
    assert (page.hits, page.coverage.missed, page.coverage.complete) == ([], 3, False)


def test_spent_bytes_state_what_was_left_out() -> None:
    page = search([part_of([{}] * 3)], ask(), Budget(lambda: 0.0, 1.0, 5))
    assert numbers(page) == [2, 1]
    assert (page.coverage.spent, page.coverage.missed) == ("bytes", 1)


def test_a_page_in_the_order_of_offsets_looks_at_no_more_than_it_needs() -> None:
    parts = [part_of([{}] * 10, first) for first in (0, 10, 20)]
    page = search(parts, Ask(**{**_fields(ask()), "size": 5}), plenty())
    assert (numbers(page), page.coverage.tail_rows) == ([29, 28, 27, 26, 25], 5)


def test_all_matches_can_be_counted() -> None:
    parts = [part_of([{}] * 10, first) for first in (0, 10)]
    page = search(parts, Ask(**{**_fields(ask()), "size": 5, "count_all": True}), plenty())
    assert (len(page.hits), page.matched) == (5, 20)


def _fields(asked: Ask) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in asked.__struct_fields__}


def test_routing_keys_are_sorted_distinct_and_paged() -> None:
    parts = [part_of([{"key": key} for key in keys], 10 * index) for index, keys in enumerate(("oba", "gda", "", "b"))]
    assert list_keys(parts, None, 2, plenty())[:2] == (["a", "b"], "b")
    assert list_keys(parts, "b", 2, plenty())[:2] == (["d", "g"], "g")
    assert list_keys(parts, "g", 2, plenty())[:2] == (["o"], None)
    assert list_keys(parts, None, 5, plenty())[:2] == (["a", "b", "d", "g", "o"], None)
    late = list_keys(parts, None, 5, Budget(lambda: 0.0, 0.0, 1))
    assert (late.keys, late.coverage.missed, late.coverage.complete) == ([], 7, False)
