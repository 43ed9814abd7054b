"""Columns that are filled at once have the same content as columns that are filled one by one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.effort import effort
from topics.schema.documents import MISSING, finder
from topics.schema.search_fields import Binding, Field
from topics.search.memory_index import column_store
from topics.search.memory_index.column_store import (
    Decoder,
    Filler,
    Keywords,
    PlainBatch,
    WordColumn,
    calendar_ms,
    column_for,
    read_value,
)
from topics.search.query.field_values import Snapshot, date_of, reader, unicode_word_v1, words_by_line

moments = st.datetimes().flatmap(
    lambda moment: st.sampled_from((moment.isoformat(timespec="milliseconds") + "Z", moment.isoformat()[:19] + "Z"))
)
broken = st.sampled_from(
    (
        "2026-02-30T00:00:00.000Z", "2026-13-01T00:00:00.000Z", "0000-01-01T00:00:00.000Z", "2026-01-01T24:00:00.000Z",
        "2026-01-01T00:60:00.000Z", "2026-01-01T00:00:60.000Z", "2026-01-01 00:00:00.000Z", "2026-01-01T00:00:00,000Z",
        "2026-01-01T00:00:00.00\u0661Z", "2026-01-01T00:00:00.000z", "2026-00-01T00:00:00Z", "2026-01-00T00:00:00Z",
        "2026-01-01T00:00:0:Z", "-026-01-01T00:00:00Z", "", "5",
    )
)  # fmt: skip


@given(st.lists(moments, min_size=1, max_size=4).filter(lambda texts: len(set(map(len, texts))) == 1))
@effort(200)
def test_dates_at_once(texts: list[str]) -> None:
    found = calendar_ms(texts)
    assert found is not None
    assert found.tolist() == [date_of(text) for text in texts]


@given(st.lists(st.one_of(moments, broken), min_size=1, max_size=4))
@effort(200)
def test_dates_at_once_are_those_that_are_dates(texts: list[str]) -> None:
    found = calendar_ms(texts)
    if found is not None:
        assert found.tolist() == [date_of(text) for text in texts]


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("keyword", {}), ("keyword", {"normalizer": "lowercase_v1"}), ("text", {"analyzer": "unicode_word_v1"}),
    ("integer", {}), ("float", {}), ("date", {}), ("bool", {}),
]  # fmt: skip
ODD = ("\u03a3", "a\u03a3.", "\u0130I", "a\nb", "\u03a3 \u03a3b", "1", "-0")
texts = st.one_of(st.text(max_size=12), st.sampled_from(ODD))
numbers = st.one_of(st.integers(-(2**70), 2**70), st.integers(-5, 5), st.just(-0.0), st.floats(allow_nan=False))
members = st.one_of(st.none(), st.just(MISSING), texts, numbers, st.booleans(), moments, st.lists(texts, max_size=3))
columns = st.one_of(
    st.lists(st.one_of(texts, st.none(), st.just(MISSING)), max_size=6),
    st.lists(texts, max_size=6),
    st.lists(st.sampled_from(ODD), max_size=16),
    st.lists(numbers, max_size=6),
    st.lists(st.integers(-5, 5), max_size=6),
    st.lists(st.booleans(), max_size=4),
    st.lists(moments, max_size=4),
    st.lists(members, max_size=6),
)


@given(st.lists(st.one_of(st.text(max_size=12), st.text(st.characters(max_codepoint=127), max_size=12)), max_size=6))
@effort(400)
def test_words_of_lines_are_those_of_each_line(texts: list[str]) -> None:
    lines = [text.replace("\n", " ") for text in texts]
    assert words_by_line("\n".join(lines)) == [unicode_word_v1(line) for line in lines or [""]]


@given(st.sampled_from(KINDS), st.lists(columns, max_size=3))
@effort(400)
def test_columns_at_once(kind: tuple[str, dict[str, Any]], batches: list[list[Any]]) -> None:
    field = Field(kind=kind[0], bindings=(Binding(version=1, json_pointer="/x"),), **kind[1])  # type: ignore[arg-type]
    quick, slow = Filler(field), column_for(field)
    read = reader(field)
    for found in batches:
        quick.fill(found)
        slow.extend([read(value) for value in found])
    count = sum(map(len, batches))
    assert quick.column.present.filled.tolist() == slow.present.filled.tolist()
    first, second = quick.column.snapshot(count), slow.snapshot(count)
    assert rows_of(first) == rows_of(second)
    assert shown(quick.column, first.values.tolist()) == shown(slow, second.values.tolist())


def rows_of(snapshot: Snapshot) -> list[int]:
    return list(range(snapshot.count)) if snapshot.rows is None else snapshot.rows.tolist()


def shown(column: Any, values: list[Any]) -> list[str]:
    """Values as they are: texts may have other codes, and 0 must not be -0."""
    return [column.dictionary.texts[value] if isinstance(column, Keywords) else repr(value) for value in values]


def test_most_values_are_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: object) -> None:
        raise AssertionError("one by one")

    monkeypatch.setattr(column_store, "reader", lambda _: never)
    common: list[list[Any]] = [
        ["a", None], ["A", "b"], ["a b", "a\nb", MISSING], [1, 2], [1, 0.5], ["2026-01-01T00:00:00Z"], [True, None],
    ]  # fmt: skip
    for (kind, more), found in zip(KINDS, common, strict=True):
        field = Field(kind=kind, bindings=(Binding(version=1, json_pointer="/x"),), **more)  # type: ignore[arg-type]
        filler = Filler(field)
        filler.fill(found)
        assert filler.column.present.count == len(found)
        assert isinstance(filler.column, WordColumn) is (kind == "text")


names = st.sampled_from(("a", "b", "0", "a/b", "member_0"))
documents = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=4)),
    max_leaves=8,
)
pointers = st.lists(
    st.lists(st.sampled_from(("a", "b", "0", "a/b", 'q"', "\n")), max_size=3).map(tuple), min_size=1, max_size=4
)


@given(st.lists(documents, max_size=4), pointers, st.booleans())
@effort(300)
def test_a_struct_has_what_an_entry_has(values: list[Any], requested: list[tuple[str, ...]], whole: bool) -> None:
    raws = [json.dumps(value).encode() for value in values]
    batch = Decoder(requested, whole).batch(range(7, 7 + len(raws)), raws, [None] * len(raws))
    assert list(batch.numbers) == list(range(7, 7 + len(values)))
    for pointer in requested:
        assert batch.found(pointer) == [finder(pointer)(value) for value in values]


def test_a_name_that_comes_twice_is_the_last_one() -> None:
    raws = [b'{"a":1,"b":2,"a":3}', b'{"b":{"c":[5]}}']
    batch = Decoder([("a",), ("b", "c", "0")]).batch([1, 3], raws, [None, None])
    assert not isinstance(batch, PlainBatch)
    assert batch.found(("a",)) == [read_value(raws[0])["a"], MISSING]
    assert batch.found(("b", "c", "0")) == [MISSING, 5]
    with pytest.raises(TypeError):
        batch.values()
