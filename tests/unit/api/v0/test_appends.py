import msgspec
import pytest

from topics.api.v0.appends import decode_ascii, decode_many, encode_appended, encode_singles
from topics.engine.results import AppendResult
from topics.model.records import Batch


def shown(batch: Batch) -> object:
    """A batch as it can be compared: the text inside a Raw is."""
    records = [
        (bytes(record.data), record.tag, record.node, None if record.meta is None else bytes(record.meta))
        for record in batch.records
    ]
    return records, batch.node, batch.idempotency_key, batch.create, batch.config, batch.delay_ms


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"data":1},{"data":{"a":[null]}},{"data":"x"}]}',
        b'{"records":[]}',
        b'{"node":"n","records":[{"data":1},{"data":2}],"create":false,"idempotency_key":"k","delay_ms":5}',
        b'{"records":[{"data":1},{"data":2,"tag":"t"}]}',
        b'{"records":[{"data":1},{"data":2,"\\u0074ag":"t"}]}',
        b'{"records":[{"data":1},{"data":2,"tag":null}]}',
        b'{"records":[{"node":"n","data":1},{"data":2,"meta":{"a":1}}]}',
        b'{"records":[{"data":1,"more":2},{"data":2}],"also":[1]}',
        b'{"config":{"durability":"memory"},"records":[{"data":null}]}',
    ],
)
def test_many_records_are_read_as_any_are(body: bytes) -> None:
    assert shown(decode_many(body)) == shown(decode_ascii(body))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"records":[{"data":1},{}]}', b'{"records":[{"data":1},{"tag":"t"}]}', b'{"records":{}}',
        b'{"records":[{"data":1}],"delay_ms":-1}', b'{"records":[{"data":1,"tag":5}]}', b'{"records":[{"data":1}]} x',
    ],
)  # fmt: skip
def test_invalid_bodies_are_refused_alike(body: bytes) -> None:
    found = []
    for decode in (decode_many, decode_ascii):
        with pytest.raises(msgspec.DecodeError) as refused:
            decode(body)
        found.append((type(refused.value), str(refused.value)))
    assert found[0] == found[1]


@pytest.mark.parametrize("topic", ["orders", 'a"b', "100%d", "%%b", "ä/1"])
@pytest.mark.parametrize("spent_us", [[0], [213, 4_999, 5_000, 5_001], [12_345_678, 7], [7, 7, 0]], ids=len)
def test_batched_answers_equal_single_answers(topic: str, spent_us: list[int]) -> None:
    first, befores = 999, [b'"op":"ack","request_id":"%d",', b"", b'"op":"ack",', b""][: len(spent_us)]
    outcome = AppendResult(topic, first, first + len(spent_us) - 1, 5000, wal_append_ms=0.031, fsync_ms=1.5)
    together = encode_singles(outcome, befores, [us / 1e6 for us in spent_us])
    for number, (before, us) in enumerate(zip(befores, spent_us, strict=True)):
        seq = first + number
        alone = AppendResult(topic, seq, seq, seq, wal_append_ms=0.031, fsync_ms=1.5)
        assert together[number] == encode_appended(alone, True, us / 1e3, before)
