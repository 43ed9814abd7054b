import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.wire.record_copies import Failures, Provenance, read_provenance, stamp

METAS = [
    None,
    b'{"a":1}',
    b'{ "a" : 1 }',
    b'{"deep":{"x":[1,2,{"}":"{"}]}}',
    b'{"a":1.50,"a":2}',
    b'{"\\u0024x":"\\""}',
]


@pytest.mark.parametrize("meta", METAS)
def test_stamp_is_read_and_the_meta_restored_to_the_byte(meta: bytes | None) -> None:
    stamped = stamp(meta, "jobs:eu", 5, 17)
    assert read_provenance(stamped) == Provenance("jobs:eu", meta)
    reported = json.loads(stamped)
    keys = ("$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq")
    assert [reported[key] for key in keys] == ["jobs:eu", "5", "17"]


@pytest.mark.parametrize("meta", METAS)
@pytest.mark.parametrize("reason", ["", "no such file", 'a "quoted" \\ one\n', "\x00é\U0001f600", '"}', "\\"])
def test_failures_are_stamped_and_taken_away(meta: bytes | None, reason: str) -> None:
    stamped = stamp(meta, "jobs", 5, 17, Failures(reason, 40, 90))
    assert read_provenance(stamped) == Provenance("jobs", meta)
    reported = json.loads(stamped)
    assert reported.get("$dead_letter_reason", "") == reason
    assert (reported["$dead_letter_first_failure_ms"], reported["$dead_letter_last_failure_ms"]) == ("40", "90")
    # A job that failed again elsewhere records its last failures only.
    again = stamp(stamped, "other", 1, 1)
    assert again == stamp(meta, "other", 1, 1)


@pytest.mark.parametrize("meta", [b"{}", b"{ }", b" {}"])
def test_an_empty_object_comes_back_as_none(meta: bytes) -> None:
    assert read_provenance(stamp(meta, "jobs", 1, 1)) == Provenance("jobs", None)


KEYS = ("$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq")
VALUES = (
    st.none() | st.integers() | st.text() | st.lists(st.integers()) | st.dictionaries(st.sampled_from(KEYS), st.text())
)


@given(st.dictionaries(st.text() | st.sampled_from(KEYS), VALUES, min_size=1))
def test_any_object(value: dict[str, object]) -> None:
    own = {key: each for key, each in value.items() if key not in KEYS}
    stamped = stamp(json.dumps(value).encode(), "jobs", 2, 3)
    assert json.loads(stamped) == {**dict(zip(KEYS, ("jobs", "2", "3"), strict=True)), **own}
    found = read_provenance(stamped)
    assert found is not None
    assert found.source == "jobs"
    if own == value:
        assert found.meta == json.dumps(value).encode()
    else:
        assert (found.meta is None and not own) or json.loads(found.meta or b"") == own


@pytest.mark.parametrize("key", ['"$dead_letter_from"', '"\\u0024dead_letter_from"'])
def test_a_key_of_ours_with_a_value_that_is_none_of_ours_gives_way(key: str) -> None:
    stamped = stamp(b'{%b:null,"a":1}' % key.encode(), "jobs", 2, 3)
    assert read_provenance(stamped) == Provenance("jobs", b'{"a":1}')
    assert json.loads(stamped)["$dead_letter_from"] == "jobs"


def test_only_the_last_queue_is_notified() -> None:
    twice = stamp(stamp(b'{"a":1}', "first", 1, 1), "second", 2, 2)
    assert json.loads(twice)["$dead_letter_from"] == "second"
    assert twice.count(b"$dead_letter_from") == 1
    assert read_provenance(twice) == Provenance("second", b'{"a":1}')


def test_dead_letter_keys_in_other_forms_are_parsed() -> None:
    found = read_provenance(b'{"a":1,"$dead_letter_from":"jobs","$dead_letter_src_seq":"4"}')
    assert found == Provenance("jobs", b'{"a":1}')


@pytest.mark.parametrize(
    "meta",
    [None, b'{"a":1}', b'{"x":"$dead_letter_from"}', b'{"$dead_letter_from":5}', b'{"y":{"$dead_letter_from":"q"}}'],
)
def test_other_records_are_not_dead_letters(meta: bytes | None) -> None:
    assert read_provenance(meta) is None
