"""The search benchmark asks both sides the same."""

import sqlite3

import msgspec
import pytest

from bench.search import Row, Size, report
from bench.search_load import DESCRIPTION, KINDS, Kind, encoded, entries, id_of
from bench.search_peers import ask_sqlite
from topics.schema.search_fields import parse_search
from topics.search.query.plan import Ask, Budget, Entries, Entry, Span, search
from topics.search.query.predicates import bind_search
from topics.search.query.scan import Scan
from topics.search.query.sort import parse_sort

CONFIG = parse_search(DESCRIPTION["search"])
COUNT = 600


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_question_finds_something(kind: Kind) -> None:
    rows = [Entry(number, value, 1) for number, value in enumerate(entries(COUNT))]
    query = bind_search(kind.body["q"], CONFIG)
    sort = parse_sort(kind.body.get("sort", ()), CONFIG, query.has_text)
    ask = Ask(config=CONFIG, version=1, predicate=query.predicate, sort=sort, size=50)
    page = search([Scan(Entries(Span(0, COUNT - 1, COUNT), rows))], ask, Budget(lambda: 0.0, 1.0, 1 << 40))
    assert page.hits


def test_entries_are_the_same_each_time_and_ids_are_unique() -> None:
    assert encoded(50) == encoded(50)
    assert len({id_of(number) for number in range(100_000)}) == 100_000
    assert msgspec.json.decode(encoded(78)[77])["requestId"] == id_of(77)


def test_sqlite_answers_all_of_them() -> None:
    if "ENABLE_FTS5" not in {row[0] for row in sqlite3.connect(":memory:").execute("PRAGMA compile_options")}:
        pytest.fail("this SQLite has no FTS5")
    assert ask_sqlite(encoded(COUNT)).keys() == {kind.name for kind in KINDS}


def test_the_report_states_what_to_doubt() -> None:
    size = Size(
        10, [Row("exact", {"1 client": 1.0}, 0.5)], {"SQLite": {"exact": 2.0}, "other": {}}, measured=1, disturbed=1
    )
    text = report([size], "a machine")
    assert "| exact | 1.00 | 0.5 | 2.00 | - |" in text
    assert "in 1 of 1 measurements" in text
