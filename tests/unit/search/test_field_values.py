"""Canonical values, words and fields."""

from typing import Any

import pytest

from tests.unit.search.helpers import CONFIG, bound
from topics.schema.search_fields import parse_search
from topics.search.query.field_values import (
    Extractor,
    bool_of,
    canonical,
    date_of,
    declared_fields,
    flattened,
    float_of,
    integer_of,
    shown,
    unicode_word_v1,
    write_date,
)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (5, 5), (-5, -5), (1.0, 1), ("402", 402), ("-7", -7), ("007", 7), (2**63 - 1, 2**63 - 1),
        (2**63, None), (1.5, None), ("1.0", None), ("", None), ("٣", None), ("1_0", None), (True, None), (None, None),
        ({}, None), (1e300, None),
    ],
)  # fmt: skip
def test_integers(value: Any, number: int | None) -> None:
    assert integer_of(value) == number
    assert type(integer_of(value)) is type(number)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (5, 5.0), (0.5, 0.5), ("2.5", 2.5), ("1e3", 1000.0), ("-7", -7.0), ("inf", None), ("nan", None), ("1_0", None),
        (float("inf"), None), (10**400, None), ("9" * 500, None), (True, None), (None, None), ("1e999", None),
    ],
)  # fmt: skip
def test_floats(value: Any, number: float | None) -> None:
    assert float_of(value) == number


def test_minus_zero_is_zero() -> None:
    assert str(float_of(-0.0)) == "0.0"


@pytest.mark.parametrize(
    ("value", "millis"),
    [
        ("2026-03-25T10:16:23.123Z", 1774433783123),
        ("2026-03-25T10:16:23.123999z", 1774433783123),
        ("2026-03-25T12:16:23.123+02:00", 1774433783123),
        ("2026-03-25 10:16:23.123", 1774433783123),
        ("2026-03-25", 1774396800000),
        ("1969-12-31T23:59:59.9995Z", -1),
        ("1774433783123", 1774433783123),
        (1774433783123, 1774433783123),
        (1774433783123.9, 1774433783123),
        (-1.5, -2),
        ("2026-03-25x10:16:23Z", None),
        ("2026-13-01", None),
        ("0001-01-01T00:00:00+23:00", -62135679600000),
        ("soon", None),
        ("", None),
        (True, None),
        (float("nan"), None),
        (2**70, None),
    ],
)
def test_dates(value: Any, millis: int | None) -> None:
    assert date_of(value) == millis


@pytest.mark.parametrize(
    ("value", "truth"),
    [
        (True, True),
        ("false", False),
        ("True", True),
        ("FALSE", False),
        ("truE", True),
        ("yes", None),
        (1, None),
        (None, None),
    ],
)
def test_bools(value: Any, truth: bool | None) -> None:
    assert bool_of(value) is truth


def test_keywords_have_the_form_of_their_normaliser() -> None:
    assert canonical(CONFIG.fields["service"])("Billing-API") == "billing-api"
    assert canonical(CONFIG.fields["requestId"])("Req_1") == "Req_1"
    assert canonical(CONFIG.fields["service"])(5) is None


def test_words_are_runs_of_letters_and_digits_in_small_letters() -> None:
    assert unicode_word_v1("Card-declined: 42×, Straße_2 ½ Σίσυφος") == [
        "card", "declined", "42", "straße", "2", "½", "σίσυφος"
    ]  # fmt: skip
    assert unicode_word_v1(" -- _ ") == []


def test_how_values_name_groups() -> None:
    assert [shown(value) for value in ("x", 5, 2.0, 0.1, 1e300, True)] == ["x", "5", "2", "0.1", "1e300", "true"]


def test_dates_beyond_four_digits_of_a_year_are_written_as_the_nearest() -> None:
    assert write_date(1774433783123) == "2026-03-25T10:16:23.123Z"
    assert write_date(2**62) == "9999-12-31T23:59:59.999Z"
    assert write_date(-(2**62)) == "0001-01-01T00:00:00.000Z"


def test_the_values_of_fields() -> None:
    rows = Extractor(CONFIG, 1, ("status", "message", "service"))
    assert rows.row({"status": [402, ["7", None], "x"], "message": ["Card declined", 5, "no funds"]}) == [
        (402, 7), (("card", "declined"), ("no", "funds")), None
    ]  # fmt: skip
    assert rows.row({"status": None, "message": None, "service": []}) == [(), (), None]
    assert rows.row({"status": {}, "message": [], "service": [[]]}) == [(), None, None]
    assert rows.row([1, 2]) == [None, None, None]


def test_deep_arrays_are_flattened_without_recursion() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert flattened(deep) == [1]
    assert flattened([1, [2, [], [3]], 4]) == [1, 2, 3, 4]


def test_the_binding_of_the_newest_version_is_what_counts() -> None:
    field = {"kind": "keyword", "exact": True, "bindings": [{"version": v, "jsonPointer": f"/v{v}"} for v in (1, 3)]}
    config = parse_search({"primaryTimestampField": "t", "fields": {"t": bound("date", "/t"), "name": field}})
    entry = {"v1": "old", "v3": "new", "t": 0}
    assert Extractor(config, 1, ["name"]).row(entry) == [("old",)]
    assert Extractor(config, 2, ["name"]).row(entry) == [("old",)]
    assert Extractor(config, 3, ["name"]).row(entry) == [("new",)]


def test_declared_fields_are_shown_as_they_stand() -> None:
    entry = {"service": "API", "status": ["402"], "ok": None, "more": 1}
    assert declared_fields(CONFIG, 1)(entry) == {"service": "API", "status": ["402"], "ok": None}
