import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.wire.provenance import Provenance, read_provenance, stamp

METAS = [
    None,
    b'{"a":1}',
    b'{ "a" : 1 }',
    b'{"deep":{"x":[1,2,{"}":"{"}]}}',
    b'{"a":1.50,"a":2}',
    b'{"\\u0024x":"\\""}',
]


@pytest.mark.parametrize("meta", METAS)
def test_what_was_stamped_is_read_and_the_rest_comes_back_to_the_byte(meta: bytes | None) -> None:
    stamped = stamp(meta, "jobs:eu", 5, 17)
    assert read_provenance(stamped) == Provenance("jobs:eu", meta)
    told = json.loads(stamped)
    keys = ("$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq")
    assert [told[key] for key in keys] == ["jobs:eu", "5", "17"]


@pytest.mark.parametrize("meta", [b"{}", b"{ }", b" {}"])
def test_an_empty_object_comes_back_as_none(meta: bytes) -> None:
    assert read_provenance(stamp(meta, "jobs", 1, 1)) == Provenance("jobs", None)


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.integers()), min_size=1))
def test_any_object(value: dict[str, object]) -> None:
    meta = json.dumps(value).encode()
    stamped = stamp(meta, "jobs", 2, 3)
    assert json.loads(stamped).items() >= value.items()
    assert read_provenance(stamped) == Provenance("jobs", meta)


def test_only_the_last_queue_is_told() -> None:
    twice = stamp(stamp(b'{"a":1}', "first", 1, 1), "second", 2, 2)
    assert json.loads(twice)["$dead_letter_from"] == "second"
    assert twice.count(b"$dead_letter_from") == 1
    assert read_provenance(twice) == Provenance("second", b'{"a":1}')


def test_keys_that_somebody_wrote_in_another_way_are_understood() -> None:
    found = read_provenance(b'{"a":1,"$dead_letter_from":"jobs","$dead_letter_src_seq":"4"}')
    assert found == Provenance("jobs", b'{"a":1}')


@pytest.mark.parametrize(
    "meta",
    [None, b'{"a":1}', b'{"x":"$dead_letter_from"}', b'{"$dead_letter_from":5}', b'{"y":{"$dead_letter_from":"q"}}'],
)
def test_others_are_no_dead_letters(meta: bytes | None) -> None:
    assert read_provenance(meta) is None
