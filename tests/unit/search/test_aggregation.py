"""Sums over intervals."""

import json
import warnings
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.unit.search.helpers import LOGS, part_of, plenty
from topics.model.errors import InvalidRequestError
from topics.schema.search_fields import parse_search
from topics.search.query import predicates
from topics.search.query.aggregate import parse_aggregation, show
from topics.search.query.aggregate_arrays import Summed, added, log2_bucket, spread
from topics.search.query.plan import aggregate

ROLLUPS: dict[str, Any] = {
    "requests": {
        "dimensions": ["service", "status"],
        "intervals": ["1m", "1h"],
        "measures": {
            "all": {"kind": "count"},
            "bad": {"kind": "count", "include": "status:>=500"},
            "latency": {"kind": "summary", "field": "duration", "histogram": "log2_v1"},
        },
    },
    "errors": {"include": "message:error", "intervals": ["1m"], "measures": {"n": {"kind": "count"}}},
    "plain": {"intervals": ["1m"], "measures": {"d": {"kind": "summary", "field": "duration"}}},
}
CONFIG = parse_search({**LOGS, "rollups": ROLLUPS})

DOCS: list[Any] = [
    {"eventTime": 0, "service": "a", "status": 200, "duration": 1},
    {"eventTime": 59_999, "service": "A", "status": 500, "duration": 100},
    {"eventTime": 60_000, "service": "b", "status": 200, "duration": 3.5},
    {"eventTime": 60_001, "status": 200, "duration": -9},
    {"eventTime": [1, 2], "service": "a", "duration": 1},
    {"eventTime": 1, "service": ["a", "b"], "duration": 1},
    {"eventTime": 1, "service": "a", "duration": None},
    {"eventTime": 1, "service": "a", "duration": [1, 2]},
    "no object",
]


def sums(docs: list[Any] = DOCS, **body: Any) -> Any:
    asked = {"rollup": "requests", "from": 0, "to": 120_000, "interval": "1m", **body}
    ask = parse_aggregation(json.dumps(asked).encode(), CONFIG, 1)
    found = aggregate([part_of(docs[:2]), part_of(docs[2:], 2)], ask, plenty())
    assert found.coverage.complete
    return json.loads(show(found.groups, ask))


def test_groups_of_buckets() -> None:
    first, second = sums(group_by=["service"], measures=["all", "bad"])
    assert first == {
        "start": "1970-01-01T00:00:00.000Z",
        "end": "1970-01-01T00:01:00.000Z",
        "groups": [{"key": {"service": "a"}, "measures": {"all": {"count": 2}, "bad": {"count": 1}}}],
    }
    assert [group["key"] for group in second["groups"]] == [{"service": "b"}, {"service": None}]


def test_without_groups_all_of_a_bucket_is_one() -> None:
    first, second = sums()
    assert first["groups"] == [
        {
            "key": {},
            "measures": {
                "all": {"count": 2},
                "bad": {"count": 1},
                "latency": {
                    "count": 2, "sum": 101, "min": 1, "max": 100, "avg": 50.5,
                    "p50": 1, "p95": 64, "p99": 64, "histogram": {"1": 1, "64": 1},
                },
            },
        }
    ]  # fmt: skip
    assert second["groups"][0]["measures"]["latency"]["histogram"] == {"2": 1, "8": 1}


def test_a_dimension_that_is_a_number_is_named_by_its_text() -> None:
    first, _ = sums(group_by=["status"])
    assert [group["key"] for group in first["groups"]] == [{"status": "200"}, {"status": "500"}]


def test_edges_are_exact_and_a_bucket_may_begin_before_them() -> None:
    (bucket,) = sums(DOCS, **{"from": 1, "to": 60_000, "interval": "1h", "measures": ["all"]})
    assert bucket["start"] == "1970-01-01T00:00:00.000Z"
    assert bucket["groups"][0]["measures"] == {"all": {"count": 1}}


def test_a_query_and_an_include_choose_entries() -> None:
    (bucket,) = sums(q="service:b", measures=["all"])
    assert bucket["groups"][0]["measures"] == {"all": {"count": 1}}
    docs = [{"eventTime": 1, "message": text} for text in ("an error", "fine")]
    assert sums(docs, rollup="errors")[0]["groups"][0]["measures"] == {"n": {"count": 1}}


def test_without_a_histogram_there_are_no_percentiles() -> None:
    (group,) = sums(rollup="plain", to=60_000)[0]["groups"]
    assert group["measures"]["d"]["p50"] is None and group["measures"]["d"]["histogram"] is None


def test_nothing_has_no_buckets() -> None:
    assert sums([]) == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"rollup": "nosuch"}, "not declared"),
        ({"interval": "5m"}, "not one of the rollup's"),
        ({"interval": "soon"}, "not one of the rollup's"),
        ({"from": "soon"}, "from must be a date"),
        ({"from": 120_000}, "before to"),
        ({"group_by": ["duration"]}, "dimensions"),
        ({"measures": ["nosuch"]}, "measures"),
        ({"measures": []}, "is empty"),
        ({"q": "nosuch:1"}, "not declared"),
        ({"more": 1}, "unknown field"),
        ({"group_by": "service"}, "Expected"),
    ],
)
def test_invalid_aggregations_are_refused(body: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        sums(**body)


def test_a_body_that_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        parse_aggregation(b"{", CONFIG, 1)


def test_too_many_groups_spend_the_memory_and_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicates, "MAX_GROUPS", 2)
    body = {"rollup": "requests", "from": 0, "to": 9, "interval": "1m", "group_by": ["service"]}
    ask = parse_aggregation(json.dumps(body).encode(), CONFIG, 1)
    docs = [{"eventTime": 1, "service": name, "duration": 1} for name in "aabcd"]
    found = aggregate([part_of(docs)], ask, plenty())
    assert (found.coverage.spent, found.coverage.missed, len(found.groups)) == ("memory", 2, 2)


@pytest.mark.parametrize(
    ("value", "bucket"),
    [(0, 1), (0.5, 1), (1, 1), (1.99, 1), (2, 2), (-9, 8), (2**53 - 1, 2**52), (2.0**60, 2**60), (1e300, 2**996)],
)
def test_buckets_of_histograms(value: float, bucket: int) -> None:
    assert log2_bucket(value) == bucket


def test_percentiles_are_lower_bounds() -> None:
    assert spread({16: 6, 8: 4}) == ([16, 16, 16], {8: 4, 16: 6})
    assert spread({8: 5, 16: 4.5, 32: 0.5})[0] == [8, 16, 32]
    assert spread({8: 1, 16: 0, 32: 1})[0] == [8, 32, 32]
    nothing = [None, None, None]
    assert spread({}) == (nothing, {})
    assert spread({8: 0}) == (nothing, {8: 0})


def test_a_histogram_is_written_by_the_names_of_its_bounds() -> None:
    _, shown = spread({2**70: 1, 4: 2.0, 16: 0.5})
    assert msgspec.json.encode(shown) == b'{"4":2,"16":0.5,"1180591620717411303424":1}'


def test_summaries_merge_what_nobody_reported() -> None:
    state = Summed(2, 3.0)
    state.merge(Summed(1, 1, 1, 1, {1: 1}))
    assert state.show()["min"] == 1 and state.show()["histogram"] == {1: 1} and state.show()["sum"] == 4


def test_a_sum_beyond_all_floats_warns_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sums = added(np.array([1.7e308, 1.7e308, 1.0]), np.array([0, 0, 1]), 2)
    assert sums.tolist() == [float("inf"), 1.0]
