"""Filters over records that nothing describes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.effort import effort
from topics.model.errors import InvalidRequestError
from topics.search.query.schemaless_filter import Looked, SchemalessFilter, free_filter

RECORD = Looked(
    7, 1_000, "order-7", "shop",
    {"n": 5, "f": 0.5, "ok": True, "no": None, "name": "Ann", "tags": ["a", ["b"]], "user": {"id": "5"}, "none": []},
)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "tag:order-7", "tag:order-*", "tag:=order-7", "node:shop", "has:node", "seq:7", "seq:>6", "ts:1000",
        "ts:<=1000",
        'ts:"1970-01-01T00:00:01Z"', 'ts:>"1970-01-01"', "/n:5", "/n:5.0", "/n:>=5", "/n:<5.5", "/n:>-1", "/f:0.5",
        "/ok:true", "/no:null", "has:/no", "/name:Ann", '/name:"Ann"', "/name:A*", "/name:>Al", "/tags:b", "/tags:a",
        "/user/id:5", '/user/id:"5"', "-/n:6", "not has:/gone", "/n:5 tag:order-7", "/n:6 OR node:shop",
        "(/n:1 OR /n:5) -has:/none",
    ],
)  # fmt: skip
def test_matching_records(text: str) -> None:
    assert SchemalessFilter(text).matches(RECORD)


@pytest.mark.parametrize(
    "text",
    [
        "tag:order-8", "tag:order", 'tag:"order-*"', "tag:=order-*", "node:x", "seq:<7", "ts:>1000", "/n:6", '/n:"5"',
        "/n:>x", "/ok:1", "/n:true", "/no:0", "/name:>5", "/name:ann", "/tags:c", "/user:5", "/user/id:>4", "has:/none",
        "has:/gone", "/gone:null", "/n/0:5",
    ],
)  # fmt: skip
def test_records_that_do_not_match(text: str) -> None:
    assert not SchemalessFilter(text).matches(RECORD)


@pytest.mark.parametrize(
    "text",
    ["", "  ", "word", '"word"', "data:1", "$tag:x", "ts:soon", "seq:1.5", "/a~2:1", "/a:", "(" * 50, "/n:5:6",
     "tag:(x)",     " OR ".join(["/a:1"] * 300), "x" * 5000],
)  # fmt: skip
def test_invalid_filters_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        SchemalessFilter(text)
    assert refused.value.detail["field"] == "filter"


def test_it_reports_what_it_looks_at() -> None:
    assert SchemalessFilter("tag:x OR -ts:5").fields == {"tag", "ts"}
    assert SchemalessFilter("has:/a seq:1").fields == {"data", "seq"}
    assert free_filter("tag:x") is free_filter("tag:x")


values: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3),
    st.lists(st.integers(), max_size=2), st.just({}),
)  # fmt: skip


@given(
    values, st.sampled_from(("1", '"1"', "true", "null", "a*", "-2.5e3", "x")), st.sampled_from(("", "=", ">", "<="))
)
@effort(200)
def test_no_value_is_too_odd(value: Any, text: str, op: str) -> None:
    found = SchemalessFilter(f"/x:{op}{text}").matches(Looked(1, 1, None, None, {"x": value}))
    assert found is not SchemalessFilter(f"-/x:{op}{text}").matches(Looked(1, 1, None, None, {"x": value}))
