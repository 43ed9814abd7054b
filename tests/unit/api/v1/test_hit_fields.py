"""The fields of hits: the compiled way and the general one, always the same bytes."""

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from tests.unit.search.helpers import bound
from topics.api.v1.search_requests import HitFields, hit_fields_of
from topics.schema.documents import encode, parse
from topics.schema.registry import Registry, Version
from topics.schema.search_fields import SearchConfig, parse_search
from topics.search.query.field_values import declared_fields


def described(**pointers: str) -> SearchConfig:
    return parse_search(
        {
            "primaryTimestampField": "time",
            "fields": {
                "time": bound("date", "/time", column=True),
                **{
                    name.replace("__", "."): bound("keyword", pointer, exact=True) for name, pointer in pointers.items()
                },
            },
        }
    )


DESCRIPTIONS = {
    "members at the top, under their own names": described(a="/a", b="/b"),
    "under other names, and in another order": described(b="/a", a="/b", c="/c~1d"),
    "names that no attribute can have": described(http__status="/http.status", **{"with-dash": "/$x"}),
    "in objects": described(a="/o/a", b="/o/p/b", c="/c", d="/q/d"),
    "elements of arrays": described(a="/list/0", b="/list/1/x"),
    "twice to one place": described(a="/a", b="/a"),
    "into a member that is shown as well": described(o="/o", a="/o/a"),
    "into a member that was shown before": described(a="/o/a", o="/o"),
    "the whole entry": described(all=""),
}
ENTRIES = [
    b"{}",
    b"7",
    b"null",
    b'"text"',
    b'[{"a":1}]',
    b'{"time":"2026-01-01T00:00:00Z","a":"x","b":null}',
    b'{"b": 1.0,\n "a" : 1e3, "c/d": 12345678901234567890, "c": [1, [2]]}',
    b'{"a":1,"a":2,"b":"\\u00e9\\ud83d\\ude00"}',
    b'{"o":{"a":1,"p":{"b":[]}},"c":false,"q":{}}',
    b'{"o":null,"q":[1],"c":"still shown"}',
    b'{"o":{"p":7,"a":"x"}}',
    b'{"o":{"a":1},"o":{"p":{"b":2}}}',
    b'{"list":[1,{"x":2}]}',
    b'{"list":{"0":"a member","1":{"x":3}}}',
    b'{"http.status":200,"$x":[{"deep":{"er":1}}]}',
]


def shown_generally(config: SearchConfig, raw: bytes, requested: tuple[str, ...] | None) -> bytes:
    fields = declared_fields(config, 1)(parse("entry", raw))
    return encode(fields if requested is None else {name: fields[name] for name in requested if name in fields})


def check(config: SearchConfig, raws: list[bytes], requested: tuple[str, ...] | None = None) -> None:
    shown = HitFields(config, 1).of(raws, requested)
    assert [encode(one) for one in shown] == [shown_generally(config, raw, requested) for raw in raws]


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_every_entry_is_shown_as_in_the_general_way(description: str) -> None:
    config = DESCRIPTIONS[description]
    for raw in ENTRIES:
        check(config, [raw])
    check(config, ENTRIES)
    check(config, [])


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_requested_fields_keep_their_order(description: str) -> None:
    config = DESCRIPTIONS[description]
    names = tuple(reversed(config.fields))
    for requested in (names, names[:1], ()):
        check(config, ENTRIES, requested)


def test_a_field_of_a_later_version_is_not_there_yet() -> None:
    document = msgspec.to_builtins(DESCRIPTIONS["in objects"])
    document["fields"]["a"]["bindings"] = [{"version": 2, "jsonPointer": "/o/a"}]
    config = parse_search(document)
    (shown,) = HitFields(config, 1).of([b'{"o":{"a":1},"c":2}'])
    assert encode(shown) == b'{"c":2}'
    (shown,) = HitFields(config, 2).of([b'{"o":{"a":1},"c":2}'])
    assert parse("shown", encode(shown)) == {"a": 1, "c": 2}


_names = st.sampled_from(["a", "b", "o", "p", "c", "time", "x"])
_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.sampled_from(sorted(DESCRIPTIONS)), st.lists(_values.map(msgspec.json.encode), max_size=4))
def test_any_entries_are_shown_as_in_the_general_way(description: str, raws: list[bytes]) -> None:
    check(DESCRIPTIONS[description], raws)


def test_streams_that_are_described_alike_are_shown_alike_and_others_are_not() -> None:
    search = encode(DESCRIPTIONS["in objects"])
    one, same = Registry(search=search), Registry(search=bytes(bytearray(search)))
    assert hit_fields_of(one) is hit_fields_of(same)
    later = Registry((Version(b"{}", None, 0),), search=search)
    assert hit_fields_of(later) is not hit_fields_of(one), "another version may find a field elsewhere"
