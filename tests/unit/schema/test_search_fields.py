import json
from typing import Any

import pytest

from tests.unit.schema.recordings import CONVERSATIONS
from topics.model.errors import InvalidRequestError
from topics.schema.documents import encode
from topics.schema.profiles import evlog, metrics, otel_traces
from topics.schema.search_fields import Field, interval_ms, parse_search


def bound(pointer: str, version: int = 1) -> dict[str, Any]:
    return {"version": version, "jsonPointer": pointer}


AT = {"kind": "date", "bindings": [bound("/at")], "column": True}
BASE: dict[str, Any] = {
    "primaryTimestampField": "at",
    "fields": {
        "at": AT,
        "word": {"kind": "keyword", "bindings": [bound("/w")], "exact": True, "normalizer": "lowercase_v1"},
        "prose": {"kind": "text", "bindings": [bound("/p")], "analyzer": "unicode_word_v1", "positions": True},
        "size": {"kind": "integer", "bindings": [bound("/n")], "column": True, "aggregatable": True, "exact": True},
    },
}


def with_field(**field: Any) -> dict[str, Any]:
    return BASE | {"fields": {"at": AT, "f": {"bindings": [bound("/f")], **field}}}


def with_rollup(**rollup: Any) -> dict[str, Any]:
    base = {"intervals": ["1m"], "measures": {"n": {"kind": "count"}}}
    return BASE | {"rollups": {"r": base | rollup}}


def with_measure(**measure: Any) -> dict[str, Any]:
    return with_rollup(measures={"m": measure})


PARTS = {f"{part}JsonPointer": f"/{part}" for part in ("count", "sum", "min", "max")}


@pytest.mark.parametrize(
    "document",
    [
        BASE,
        BASE | {"aliases": {"w": "word"}, "defaultFields": [{"field": "prose", "boost": 1.5}, {"field": "word"}]},
        with_field(kind="bool", exact=True),
        with_field(kind="text", analyzer="unicode_word_v1", prefix=True, contains=True),
        with_field(kind="keyword", column=True, bindings=[bound("/f"), bound("/g", 3)]),
        with_rollup(dimensions=["word", "size"], intervals=["10s", "1m", "2h", "1d", "500ms"], include="word:a"),
        with_measure(kind="summary", field="size", histogram="log2_v1"),
        with_measure(kind="summary_parts", **PARTS),
        with_measure(kind="count", include="size:>5"),
        evlog.SEARCH,
        metrics.SEARCH,
        otel_traces.SEARCH,
    ],
)
def test_descriptions_that_are_taken(document: dict[str, Any]) -> None:
    config = parse_search(document)
    shown = json.loads(encode(config))
    assert parse_search(shown) == config
    for rollup in shown.get("rollups", {}).values():
        assert rollup.pop("timestampField") == document["primaryTimestampField"]
    assert shown == document


def test_recorded_descriptions_are_shown_as_recorded() -> None:
    seen = 0
    for steps in CONVERSATIONS.values():
        for step in steps:
            if step["path"].endswith("/_schema") and "search" in (step.get("body") or {}) and step["status"] == 200:
                seen += 1
                assert json.loads(encode(parse_search(step["body"]["search"]))) == step["answer"]["search"]
    assert seen >= 3


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (None, "search"),
        ({}, "search.primaryTimestampField"),
        (BASE | {"primaryTimestampField": "word"}, "search.primaryTimestampField"),
        (BASE | {"primaryTimestampField": "none"}, "search.primaryTimestampField"),
        (BASE | {"fields": {}}, "search.fields"),
        (BASE | {"fields": []}, "search.fields"),
        (BASE | {"indexes": []}, "search.indexes"),
        (BASE | {"fields": {"at": AT, "-a": AT}}, "search.fields"),
        (BASE | {"fields": {"at": AT, "a" * 65: AT}}, "search.fields"),
        (BASE | {"fields": {"at": AT, **{f"f{n}": AT for n in range(256)}}}, "search.fields"),
        (with_field(kind="number"), "search.fields.f.kind"),
        (with_field(), "search.fields.f"),
        (with_field(kind="bool", indexed=True), "search.fields.f.indexed"),
        (with_field(kind="bool", bindings=[]), "search.fields.f.bindings"),
        (with_field(kind="bool", bindings=[bound("f")]), "search.fields.f.bindings"),
        (with_field(kind="bool", bindings=[bound("/f", 0)]), "search.fields.f.bindings"),
        (with_field(kind="bool", bindings=[bound("/f"), bound("/g")]), "search.fields.f.bindings"),
        (with_field(kind="text"), "search.fields.f.analyzer"),
        (with_field(kind="text", analyzer="icu"), "search.fields.f.analyzer"),
        (with_field(kind="text", analyzer="unicode_word_v1", column=True), "search.fields.f.column"),
        (with_field(kind="text", analyzer="unicode_word_v1", sortable=True), "search.fields.f.sortable"),
        (with_field(kind="text", analyzer="unicode_word_v1", aggregatable=True), "search.fields.f.aggregatable"),
        (with_field(kind="text", analyzer="unicode_word_v1", normalizer="identity_v1"), "search.fields.f.normalizer"),
        (with_field(kind="keyword", positions=True), "search.fields.f.positions"),
        (with_field(kind="keyword", analyzer="unicode_word_v1"), "search.fields.f.analyzer"),
        (with_field(kind="keyword", normalizer="upper"), "search.fields.f.normalizer"),
        (with_field(kind="integer", prefix=True), "search.fields.f.prefix"),
        (with_field(kind="date", normalizer="identity_v1"), "search.fields.f.normalizer"),
        (with_field(kind="float", positions=True), "search.fields.f.positions"),
        (BASE | {"aliases": {"x": "none"}}, "search.aliases.x"),
        (BASE | {"aliases": {"word": "at"}}, "search.aliases.word"),
        (BASE | {"aliases": {"a b": "at"}}, "search.aliases"),
        (BASE | {"aliases": {"x": 5}}, "search.aliases"),
        (BASE | {"defaultFields": [{"field": "none"}]}, "search.defaultFields"),
        (BASE | {"defaultFields": ["prose"]}, "search.defaultFields"),
        (BASE | {"defaultFields": [{"field": "prose", "boost": 0}]}, "search.defaultFields"),
        (BASE | {"rollups": {"a/b": {}}}, "search.rollups"),
        (BASE | {"rollups": {"r": 5}}, "search.rollups.r"),
        (BASE | {"rollups": {f"r{n}": {} for n in range(33)}}, "search.rollups"),
        (with_rollup(timestampField="word"), "search.rollups.r.timestampField"),
        (with_rollup(dimensions=["prose"]), "search.rollups.r.dimensions"),
        (with_rollup(dimensions=["none"]), "search.rollups.r.dimensions"),
        (with_rollup(dimensions=["at"]), "search.rollups.r.dimensions"),
        (with_rollup(dimensions=["word", "word"]), "search.rollups.r.dimensions"),
        (with_rollup(intervals=[]), "search.rollups.r.intervals"),
        (with_rollup(intervals=["0s"]), "search.rollups.r.intervals"),
        (with_rollup(intervals=["1m", "60s"]), "search.rollups.r.intervals"),
        (with_rollup(intervals=["1 m"]), "search.rollups.r.intervals"),
        (with_rollup(measures={}), "search.rollups.r.measures"),
        (with_rollup(include=" "), "search.rollups.r.include"),
        (with_rollup(include="x" * 5000), "search.rollups.r.include"),
        (with_rollup(every="1m"), "search.rollups.r.every"),
        (with_measure(kind="avg"), "search.rollups.r.measures.m"),
        (with_measure(kind="count", field="size"), "search.rollups.r.measures.m.field"),
        (with_measure(kind="count", include=""), "search.rollups.r.measures.m.include"),
        (with_measure(kind="summary"), "search.rollups.r.measures.m"),
        (with_measure(kind="summary", field="word"), "search.rollups.r.measures.m.field"),
        (with_measure(kind="summary", field="size", histogram="log10"), "search.rollups.r.measures.m.histogram"),
        (with_measure(kind="summary_parts"), "search.rollups.r.measures.m"),
        (
            with_measure(kind="summary_parts", **PARTS | {"sumJsonPointer": "sum"}),
            "search.rollups.r.measures.m.sumJsonPointer",
        ),
    ],
)
def test_descriptions_that_are_refused(document: Any, named: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_search(document)
    assert str(caught.value.detail["field"]).startswith(named)


def test_the_binding_of_a_version() -> None:
    field = parse_search(with_field(kind="bool", bindings=[bound("/new", 4), bound("/old", 2)])).fields["f"]
    assert isinstance(field, Field)
    assert [field.pointer_for(version) for version in (1, 2, 3, 4, 9)] == [None, "/old", "/old", "/new", "/new"]


def test_an_alias_leads_to_its_field() -> None:
    config = parse_search(BASE | {"aliases": {"w": "word"}})
    assert config.resolve("w") is config.fields["word"]
    assert config.resolve("word") is config.fields["word"]
    assert config.resolve("x") is None


def test_lengths_of_intervals() -> None:
    assert [interval_ms(text) for text in ("500ms", "10s", "1m", "2h", "1d")] == [
        500,
        10_000,
        60_000,
        7_200_000,
        86_400_000,
    ]
    assert [interval_ms(text) for text in ("", "1", "01s", "-1s", "1w", "1.5s", "99999999999s")] == [None] * 7
