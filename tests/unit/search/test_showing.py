"""Sums as they are answered: out of arrays as out of states, to the byte."""

from itertools import pairwise
from random import Random

import msgspec
import numpy as np
import pytest

from tests.unit.search.helpers import LOGS
from topics.schema.search_fields import parse_search
from topics.search.query import predicates
from topics.search.query.aggregate import Aggregation, Table, parse_aggregation, show
from topics.search.query.aggregate_arrays import (
    Array,
    Counts,
    Dimension,
    Groups,
    Measured,
    State,
    States,
    Sums,
    summarise,
)

CONFIG = parse_search(LOGS)


def asked(top: int | None = None) -> Aggregation:
    measures = {"n": {"kind": "count"}, "d": {"kind": "summary", "field": "duration", "histogram": "log2_v1"}}
    body = {"group_by": ["service"], "interval": "1m", "measures": measures, "top": top}
    return parse_aggregation(msgspec.json.encode(body), CONFIG, 1)


def values_of(random: Random, kind: str, count: int) -> Array:
    if kind == "large":
        return np.array([random.randrange(-(1 << 62), 1 << 62) for _ in range(count)])
    if kind == "integer":
        return np.array(
            [random.choice((0, 1, -1, 7, (1 << 52) + 1, random.randrange(-999, 999))) for _ in range(count)]
        )
    choices = (0.0, -0.0, 0.5, -3.0, 1e300, 2.0**53, 2.0**53 - 1, 1e16, -1e-300)
    return np.array([random.choice((*choices, random.uniform(-9, 9))) for _ in range(count)])


def groups_of(random: Random, kind: str, with_histogram: bool) -> Groups:
    """Of one bucket a service, so that their order is not that of their names."""
    size = random.randrange(1, 40)
    values = values_of(random, kind, 3 * size)
    places = np.append(np.arange(size), np.array([random.randrange(size) for _ in range(2 * size)]))
    names: list[str | None] = [f"s{random.random()}" for _ in range(size - 1)]
    names.insert(random.randrange(size), None)
    starts = 60_000 * np.array([random.randrange(3) for _ in range(size)])
    counts = np.bincount(places)
    return Groups(
        starts, [Dimension(np.arange(size), names)], [Counts(counts), summarise(values, places, counts, with_histogram)]
    )


def by_states(groups: Groups) -> Groups:
    """The same, shown one by one."""
    measures: list[Measured] = [States(measure.states()) for measure in groups.measures]
    return Groups(groups.starts, groups.dimensions, measures)


@pytest.mark.parametrize("kind", ["integer", "float", "large"])
@pytest.mark.parametrize("with_histogram", [False, True])
@pytest.mark.parametrize("top", [None, 1, 3])
def test_arrays_are_shown_as_states_are(kind: str, with_histogram: bool, top: int | None) -> None:
    ask = asked(top)
    for seed in range(20):
        groups = groups_of(Random(seed), kind, with_histogram)
        assert show(groups, ask) == show(by_states(groups), ask), seed


def test_groups_come_in_the_order_of_their_names_and_null_is_the_last() -> None:
    for seed in range(20):
        found = msgspec.json.decode(show(groups_of(Random(seed), "integer", True), asked()))
        assert [bucket["start"] for bucket in found] == sorted({bucket["start"] for bucket in found}), seed
        for bucket in found:
            names = [group["key"]["service"] for group in bucket["groups"]]
            known = [name for name in names if name is not None]
            assert names == sorted(known) + [None] * (len(names) - len(known)), seed


def test_the_greatest_counts_come_first_and_others_are_left_out() -> None:
    for seed in range(20):
        found = msgspec.json.decode(show(groups_of(Random(seed), "integer", False), asked(2)))
        for bucket in found:
            counts = [group["measures"]["n"]["count"] for group in bucket["groups"]]
            assert len(counts) <= 2 and all(one >= other for one, other in pairwise(counts)), seed


def test_parts_are_added_up_however_many_come_together() -> None:
    random = Random(7)
    groups = groups_of(random, "integer", True)
    table, twice = Table(), Table()
    for _ in range(4):
        assert table.add(groups)
    for _ in range(2):
        half = Table()
        assert half.add(groups) and half.add(groups) and twice.add(half.groups())
    shown = show(table.groups(), asked())
    assert shown == show(twice.groups(), asked())
    states: list[State] = [state for measure in by_states(table.groups()).measures for state in measure.states()]
    assert sum(state.count for state in states) == 2 * 4 * sum(groups.measures[0].counts.tolist())


def test_a_table_of_too_many_groups_keeps_as_many_as_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicates, "MAX_GROUPS", 3)
    numbers = np.arange(2)
    one = Groups(numbers, [Dimension(numbers, ["a", "b"])], [Counts(numbers + 1)])
    other = Groups(numbers, [Dimension(numbers, ["c", "d"])], [Counts(numbers + 1)])
    table = Table()
    assert table.add(one) and table.add(one)
    assert not table.add(other)
    assert len(table.groups()) == 3


def test_summaries_without_a_value_in_any_bucket_have_no_percentiles() -> None:
    measures = summarise(np.array([3, 5]), np.arange(2), np.ones(2, np.int64), with_histogram=True)
    assert isinstance(measures, Sums) and measures.buckets is not None
    measures.buckets.counts[0] = 0
    assert measures.buckets.reaching((0.5, 0.99)) == [[None, 4], [None, 4]]
