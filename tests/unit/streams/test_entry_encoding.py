from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.errors import BatchTooLargeError, InvalidRequestError, RecordTooLargeError
from topics.model.limits import Limits
from topics.model.records import Record
from topics.streams import entry_encoding
from topics.streams.entry_encoding import (
    VALUES_MAX,
    Entry,
    bytes_record,
    check_count,
    check_entries,
    is_json,
    media_type,
    read_json,
)

META = b',"meta":{"content-type":"image/png"}'


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON; charset=utf-8", " application/json "])
def test_parameters_and_case_do_not_matter(content_type: str) -> None:
    assert is_json(content_type)
    assert media_type("Text/Plain;x=y") == "text/plain"
    assert not is_json("application/jsonl")


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b"1", [b"1"]), (b" [1, [2] ,{}]\n", [b"1", b"[2]", b"{}"]), (b"[]", []), (b'{"a": 1.50}', [b'{"a": 1.50}']),
        ('"ü"'.encode(), ['"ü"'.encode()]),
    ],
)  # fmt: skip
def test_values_are_cut_out_verbatim(body: bytes, values: list[bytes]) -> None:
    assert [bytes(record.data) for record in read_json(body, "k")] == values
    assert {record.tag for record in read_json(body, "k")} <= {"k"}
    assert [(bytes(record.data), record.tag) for record in read_json(body, None)] == [(value, None) for value in values]


@pytest.mark.parametrize("body", [b"", b"[1", b"[1] 2", b"\xff", b'["\xc3"]', b"{a:1}", b"[1,]"])
def test_invalid_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        read_json(body, None)


@pytest.mark.parametrize(
    ("body", "most"),
    [(b"[1,2,3,4]", 3), (b"[1,2,3,{},]", 3), (b'[{"a":1,"b":2},2,[3,4],"one too many"]', 3), (b"[1,2" * 9, 1)],
)
def test_too_many_values_are_refused_before_they_are_read(body: bytes, most: int) -> None:
    with pytest.raises(BatchTooLargeError):
        check_count(body, most)


@pytest.mark.parametrize(
    "body",
    [b"[1,2,3]", b"[]", b'[{"a":1,"b":2,"c":3,"d":4}]', b'["1,2,3,4,5"]', b'{"a":1,"b":2,"c":3,"d":4}', b'"1,2,3,4"',
     b",,,,", b"[[1,2,3,4],[1,2,3,4],[1,2,3,4]]", b"[1,2,3", b"[" * 10_000 + b",,,,"],
)  # fmt: skip
def test_commas_inside_values_do_not_count(body: bytes) -> None:
    check_count(body, 3)


def test_an_append_has_bounds_that_merging_clients_do_not_meet() -> None:
    assert len(read_json(b"[%b1]" % (b"1," * (VALUES_MAX - 1)), None)) == VALUES_MAX
    with pytest.raises(BatchTooLargeError):
        read_json(b"[%b1]" % (b"1," * 4_000_000), None)


@given(st.binary(max_size=50), st.integers(0, 60), st.integers(0, 60), st.booleans())
def test_any_part_of_stored_bytes_can_be_read(body: bytes, begin: int, length: int, large: bool) -> None:
    record = bytes_record(body, "image/png", None)
    assert record.meta == b'{"content-type":"image/png"}'
    with patch.object(entry_encoding, "_CHECKED_BYTES", 0 if large else 1000):
        entry = Entry(memoryview(bytes(record.data)), META)
    assert entry.size == len(body)
    begin = min(begin, len(body))
    assert entry.part(begin, min(begin + length, len(body))) == body[begin : begin + length]


@pytest.mark.parametrize("data", [b'"not base64!"', b'"abc"', b'{"a":1}', b"12", b'"==ab"'])
def test_v0_record_without_content_type_stays_json(data: bytes) -> None:
    entry = Entry(memoryview(data), META)
    assert entry.size == len(data)
    assert entry.part(0, entry.size) == data


def test_without_a_content_type_a_string_is_a_string() -> None:
    assert Entry(memoryview(b'"AAAA"'), b"").part(0, 6) == b'"AAAA"'


def test_the_limits_of_records_hold() -> None:
    limits = Limits(max_record_bytes=5, max_tag_bytes=3)
    check_entries([Record(b"12345")], limits, "abc")
    with pytest.raises(RecordTooLargeError):
        check_entries([Record(b"1"), Record(b"123456")], limits, None)
    with pytest.raises(InvalidRequestError):
        check_entries([], limits, "äöü")
