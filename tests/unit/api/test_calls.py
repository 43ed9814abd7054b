"""Queries: the quick way and the careful way agree."""

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.api.app import parse_query


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a=1&b=2", {"a": "1", "b": "2"}),
        ("a=1&a=2", {"a": "1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a=b=c", {"a": "b=c"}),
        ("&&a=1&", {"a": "1"}),
        ("prefix=tenant%3Ax+y", {"prefix": "tenant:x y"}),
        ("a=%31&a=2", {"a": "1"}),
    ],
)
def test_parameters_of_a_query_are_parsed(text: str, parameters: dict[str, str]) -> None:
    assert parse_query(text) == parameters


@given(st.text(alphabet="ab=&1", max_size=20))
def test_the_quick_way_states_the_same(text: str) -> None:
    assert parse_query(text) == dict(reversed(parse_qsl(text, keep_blank_values=True)))
