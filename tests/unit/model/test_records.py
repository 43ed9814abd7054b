from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model import records as module
from topics.model.errors import BatchTooLargeError, InvalidRequestError, RecordTooLargeError, TopicsError
from topics.model.limits import Limits
from topics.model.records import Record, Values, check_batch, check_each, check_records, find_plain

LIMITS = Limits()
SMALL = Limits(
    max_batch_records=3,
    max_record_bytes=20,
    max_meta_bytes=18,
    max_meta_keys=2,
    max_tag_bytes=8,
    max_node_bytes=4,
    max_idempotency_key_chars=6,
)
DECODER = msgspec.json.Decoder(list[Record])


def decode(raw: str) -> list[Record]:
    return DECODER.decode(raw)


def keys(count: int) -> dict[str, object]:
    return {f"k{number}": 0 for number in range(count)}


@pytest.mark.parametrize(
    "text", ["null", "true", '"x"', "1.0", "1E+2", "-0", "1e999", '{"b": 1,  "a":[ ]}', '"\\u00e9"', "[1,\n2]", '""']
)
def test_data_and_meta_are_kept_to_the_byte(text: str) -> None:
    (record,) = decode(f'[{{"meta": {{"m": {text}}} , "data": {text} }}]')
    assert bytes(record.data) == text.encode()
    assert record.meta is not None
    assert bytes(record.meta) == f'{{"m": {text}}}'.encode()


def test_missing_fields_are_none() -> None:
    (record,) = decode('[{"data":1,"unknown":[{}]}]')
    assert (record.tag, record.node, record.meta) == (None, None, None)


@pytest.mark.parametrize(
    "raw",
    [
        "[{}]",
        '[{"tag":"x"}]',
        '[{"data":}]',
        '[{"data":nul}]',
        '[{"data":NaN}]',
        '[{"data":01}]',
        "[1]",
        "{}",
        '[{"data":1,"tag":5}]',
        '[{"data":1,"node":["a"]}]',
        '[{"data":1,"tag":"\\ud800"}]',
    ],
)
def test_invalid_records_do_not_decode(raw: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(raw)


def test_a_record_of_python_values() -> None:
    record = Record.of({"a": [1, None]}, tag="t", node="n", meta={"trace": "z9"})
    assert bytes(record.data) == b'{"a":[1,null]}'
    assert (record.tag, record.node) == ("t", "n")
    assert record.meta is not None
    assert bytes(record.meta) == b'{"trace":"z9"}'
    assert Record.of(None) == Record(msgspec.Raw(b"null"))


def test_bytes_will_do_for_raw_text() -> None:
    check_records([Record(b"1"), Record(b"2", "t", "n", b'{"a":1}')], LIMITS)


def test_a_batch_needs_a_record() -> None:
    with pytest.raises(InvalidRequestError, match="at least one") as caught:
        check_records([], LIMITS)
    assert caught.value.code == "invalid_request"


def test_the_largest_batch_and_one_more() -> None:
    check_records([Record(b"1")] * 10_000, LIMITS)
    with pytest.raises(BatchTooLargeError) as caught:
        check_records([Record(b"1")] * 10_001, LIMITS)
    assert caught.value.detail == {"records": 10_001, "max": 10_000}


FITS = [
    Record(b"x" * 20),
    Record(b"x" * 13, meta=b'{"a":1}'),
    Record(b"1", meta=b'{"a":1,"b":22} '),
    Record(b"1", meta=b"{}"),
    Record(b"1", tag="12345678"),
    Record(b"1", tag="é" * 4),
    Record(b"1", tag=""),
    Record(b"1", node="1234"),
    Record(b"1", node="😀"),
    Record(b"1", meta=b'{"a":1,"a":2}'),
]


@pytest.mark.parametrize("record", FITS, ids=repr)
def test_each_record_that_just_fits(record: Record) -> None:
    check_records([record], SMALL)


REFUSED: list[tuple[Record, type[InvalidRequestError], str]] = [
    (Record(b"x" * 21), RecordTooLargeError, "data and meta take 21 bytes"),
    (Record(b"x" * 14, meta=b'{"a":1}'), RecordTooLargeError, "data and meta take 21 bytes"),
    (Record(b"1", meta=b'{"a":1' + b" " * 100 + b"}"), RecordTooLargeError, "data and meta"),
    (Record(b"1", tag="123456789"), InvalidRequestError, "tag: takes 9 bytes"),
    (Record(b"1", tag="éééé1"), InvalidRequestError, "tag: takes 9 bytes"),
    (Record(b"1", tag="\ud800"), InvalidRequestError, "tag: the text cannot be written"),
    (Record(b"1", node="12345"), InvalidRequestError, "node: takes 5 bytes"),
    (Record(b"1", node="😀1"), InvalidRequestError, "node: takes 5 bytes"),
    (Record(b"1", meta=b'{"a":"12345678901"}'), InvalidRequestError, "meta: takes 19 bytes"),
    (Record(b"1", meta=b'{"":1,"b":2,"c":3}'), InvalidRequestError, "meta: has 3 keys"),
    (Record(b"1", meta=b"[1]"), InvalidRequestError, "meta: must be a JSON object"),
    (Record(b"1", meta=b'"text"'), InvalidRequestError, "meta: must be a JSON object"),
    (Record(b"1", meta=b"5"), InvalidRequestError, "meta: must be a JSON object"),
    (Record(b"1", meta=b""), InvalidRequestError, "meta: must be a JSON object"),
    (Record(b"1", meta=b'{"a":'), InvalidRequestError, "meta: must be a JSON object"),
    (Record(b"1", meta=b'{"\xff":1}'), InvalidRequestError, "meta: must be a JSON object"),
]


@pytest.mark.parametrize(("record", "kind", "problem"), REFUSED, ids=repr)
def test_each_refused_record_is_named_by_its_index(
    record: Record, kind: type[InvalidRequestError], problem: str
) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        check_records([Record(b"1"), Record(b"2", tag="ok"), record], SMALL)
    assert type(caught.value) is kind
    assert caught.value.message.startswith("records[2]")
    msgspec.json.encode(caught.value.detail)


def test_the_published_limits() -> None:
    mib = 1 << 20
    check_records([Record(b"x" * mib, "t" * 256, "n" * 128)], LIMITS, "n" * 128, "k" * 256)
    check_records([Record.of(1, meta=keys(64))], LIMITS)
    check_records([Record(b"1", meta=b'{"a":"' + b"x" * (16_384 - 8) + b'"}')], LIMITS)
    with pytest.raises(RecordTooLargeError):
        check_records([Record(b"x" * (mib + 1))], LIMITS)
    with pytest.raises(InvalidRequestError, match="has 65 keys"):
        check_records([Record.of(1, meta=keys(65))], LIMITS)
    with pytest.raises(InvalidRequestError, match="takes 16385 bytes"):
        check_records([Record(b"1", meta=b'{"a":"' + b"x" * (16_384 - 7) + b'"}')], LIMITS)


def test_deeply_nested_meta_is_refused_and_harmless() -> None:
    with pytest.raises(InvalidRequestError, match="must be a JSON object"):
        check_records([Record(b"1", meta=b'{"a":' + b"[" * 8000 + b"]" * 8000 + b"}")], LIMITS)


def test_null_means_absent() -> None:
    batch = decode('[{"data":null,"tag":null,"node":null,"meta":null},{"data":1,"meta": {"a":1}}]')
    check_records(batch, LIMITS)
    assert batch[0] == Record(msgspec.Raw(b"null"))
    assert batch[1].meta == msgspec.Raw(b'{"a":1}')


@pytest.mark.parametrize(
    ("node", "key", "problem"),
    [
        ("12345", None, "^node: takes 5 bytes"),
        ("éé1", None, "^node: takes 5 bytes"),
        (None, "1234567", "^idempotency_key: has 7 characters"),
        (None, "ééééééé", "^idempotency_key: has 7 characters"),
        (None, "\ud800", "^idempotency_key: the text cannot be written"),
        ("12345", "1234567", "^idempotency_key"),
    ],
)
def test_node_and_key_of_the_batch(node: str | None, key: str | None, problem: str) -> None:
    check_records([Record(b"1")], SMALL, "1234", "123456")
    check_records([Record(b"1")], SMALL, "1234", "😀" * 6)
    with pytest.raises(InvalidRequestError, match=problem):
        check_records([Record(b"x" * 99)], SMALL, node, key)


def test_the_first_bad_record_is_the_one_reported() -> None:
    with pytest.raises(InvalidRequestError, match=r"records\[1\]\.tag"):
        check_records([Record(b"1"), Record(b"1", tag="x" * 99), Record(b"x" * 99)], SMALL)


@pytest.mark.parametrize("record", [Record(b"1"), Record(b"1", tag="t" * 256), Record(b"1", tag="t", node="n" * 128)])
def test_a_plain_batch_costs_no_call_per_record(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(index: int, record: Record, limits: Limits) -> None:
        raise AssertionError("the batch is plain")

    monkeypatch.setattr(module, "_check_record", never)
    check_records([record] * 1000, LIMITS, "n")


texts = st.none() | st.text(alphabet="aé😀", max_size=9)
metas = st.none() | st.sampled_from([b"{}", b'{"a":1}', b"[]", b'{"a":1,"b":2,"c":3}', b"null"])


@given(st.lists(st.builds(Record, st.binary(min_size=1, max_size=24), texts, texts, metas), min_size=1, max_size=4))
def test_the_fast_way_agrees_with_the_slow_one(batch: list[Record]) -> None:
    def outcome(check: object, *arguments: object) -> str | None:
        try:
            check(*arguments)  # type: ignore[operator]
        except InvalidRequestError as error:
            return error.message
        return None

    expected = next(
        (found for index, record in enumerate(batch) if (found := outcome(module._check_record, index, record, SMALL))),
        None,
    )
    if len(batch) <= SMALL.max_batch_records:
        assert outcome(check_records, batch, SMALL) == expected


@given(
    st.lists(st.builds(Record, st.binary(min_size=1, max_size=24), texts, texts, metas), min_size=1, max_size=6),
    st.integers(1, 4),
)
def test_a_batch_looked_at_bit_by_bit_is_refused_for_the_same(batch: list[Record], size: int) -> None:
    def bit_by_bit() -> None:
        check_batch(batch, SMALL, "n")
        for begin in range(0, len(batch), size):
            check_each(batch, SMALL, begin, begin + size)

    def outcome(check: Callable[[], object]) -> str | None:
        try:
            check()
        except TopicsError as error:
            return error.message
        return None

    assert outcome(bit_by_bit) == outcome(lambda: check_records(batch, SMALL, "n"))


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=20), st.integers(-25, 25), st.integers(-25, 25))
def test_values_are_the_records_they_stand_for(datas: list[bytes], begin: int, end: int) -> None:
    values, records = Values(list(datas)), [Record(data) for data in datas]
    assert len(values) == len(records)
    assert list(values) == records
    assert [values[index] for index in range(-len(records), len(records))] == records + records
    assert values[begin:end] == records[begin:end]
    assert find_plain(values) == find_plain(records)
    with pytest.raises(IndexError):
        values[len(records)]


def test_values_are_refused_as_records_are() -> None:
    limits = Limits(max_record_bytes=4, max_batch_records=3)
    for datas in ([b"1"] * 3, [b"1"] * 4, [b"1", b"12345", b"123456"], []):
        found = []
        for records in (Values(list(datas)), [Record(data) for data in datas]):
            try:
                found.append(repr(check_records(records, limits)))
            except TopicsError as error:
                found.append(repr((type(error), str(error))))
        assert found[0] == found[1]
