"""The benchmark of history covers all kinds of queries, and its report lists missed aims."""

import msgspec
import pytest

from bench.history_load import LOADS, Load, flight_id
from bench.history_report import Build, Peer, Question, Run, report
from topics.schema.search_fields import parse_search
from topics.search.query.aggregate import parse_aggregation
from topics.search.query.predicates import bind_search
from topics.search.query.sort import parse_sort


@pytest.mark.parametrize("load", LOADS.values(), ids=lambda load: load.name)
def test_every_question_can_be_asked(load: Load) -> None:
    config = parse_search(load.description["search"])
    for kind in load.kinds:
        query = bind_search(kind.body["q"], config)
        parse_sort(kind.body.get("sort", ()), config, query.has_text)
    for asked in load.aggregates.values():
        parse_aggregation(msgspec.json.encode(asked), config, 1)
    assert len(load.kinds) == 10
    assert set(load.words) == {name for name, field in config.fields.items() if field.kind == "text"}
    assert len({flight_id(number) for number in range(100_000)}) == 100_000


def run(entries: int, p50: float) -> Run:
    found = Run("flights", entries, 1000.0, entries * 400, Build(12, 2, entries, 3, 2**30, 4, entries * 200))
    found.questions = [Question("exact", 30.0, {1: (p50, 2 * p50), 8: (3 * p50, 9.0)}, (p50 + 1, 8.0))]
    found.memory_mb = {"the server": 50.0}
    found.indexed_s = [9.0, 2.0]
    return found


def test_the_report_reports_the_aims_and_how_things_grow() -> None:
    few, many = run(100, 2.0), run(1000, 11.0)
    few.peers = {"other": Peer({"exact": 4.0}, 5.0, 100)}
    many.measured, many.disturbed = 3, 2
    text = report([few, many], "a machine")
    assert "| exact | 30.0 | 2.0 / 4.0 | 6.0 / 9.0 | 3.0 / 8.0 | 4.00 |" in text
    assert "is met by all" in text and "is not met by: exact" in text
    assert "| families, by Spark on 2 cores | 12 s, 2 of them to start Spark | 10 | 200 in 4 files |" in text
    assert "| exact, p50 of 1 client | 5.5 |" in text
    assert "in 2 of 3 measurements" in text
    assert "10 times as many" in text
