"""A batch that is encoded bit by bit is what it is when it is encoded in one go, whichever numbers it gets."""

import random

import pytest

from topics.model.records import Record
from topics.wire import preencoding
from topics.wire.preencoding import Place, PreencodedBatch
from topics.wire.record_encoding import encode_fragments

TS = 1_748_470_000_123


def batch(rng: random.Random, count: int, long_bytes: int) -> list[Record]:
    plain = rng.random() < 0.3
    records = []
    for _ in range(count):
        size = long_bytes + rng.randrange(3 * long_bytes) if rng.random() < 0.1 else rng.randrange(30)
        data = b'"%b"' % (b"x" * size)
        if plain:
            records.append(Record(data))
        else:
            tag = rng.choice([None, "t", 'é"\\\n' * 5])
            meta = rng.choice([None, b'{"a":1}', b"{}"])
            records.append(Record(data, tag, rng.choice([None, "own"]), meta))
    return records


def drawn(records: list[Record], first_seq: int, ts: int, node: str | None, base: int = 0) -> PreencodedBatch:
    draft = PreencodedBatch(records, first_seq, ts, node, base=base)
    for _ in range(10_000):
        if draft.step():
            return draft
    raise AssertionError("it never ends")


@pytest.fixture(params=[(64, 3), (100_000, 1)])
def small_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(preencoding, "STEP_BYTES", request.param[0])
    monkeypatch.setattr(preencoding, "STEP_RECORDS", request.param[1])
    monkeypatch.setattr(preencoding, "_MEASURED_RECORDS", 2)
    size: int = min(request.param[0], 500)
    return size


def test_a_draft_is_the_encoding_of_its_batch(small_steps: int, seed: int) -> None:
    rng = random.Random(seed)
    moved = 0
    for _ in range(300):
        records = batch(rng, rng.randrange(1, 12), small_steps)
        node = rng.choice([None, "n", 'é"'])
        guessed = rng.choice([1, 7, 95, 1234, 99_990])
        draft = drawn(records, guessed, TS, node, rng.choice([0, 17, 99, 2**31]))
        first, ts = guessed + rng.choice([0, 0, 1, 8, 5000]), TS + rng.choice([0, 1])
        base = rng.choice([0, 17, 2**31])
        expected = encode_fragments(records, first, ts, node, base)
        if draft.fits(len(records), first, ts, node):
            text, rows, payload_bytes, traits = draft.take(first, ts, base)
            assert (bytes(text), rows, payload_bytes, traits) == expected
            moved += first != guessed
        else:
            places = {len(str(seq + n)) for seq in (first, guessed) for n in (0, len(records) - 1)}
            assert (first, ts) != (guessed, TS) and len(places) > 1
    assert moved > 20


def test_mismatched_numbers_are_refused() -> None:
    records = [Record(b"1"), Record(b"2")]
    draft = drawn(records, 8, TS, None)
    assert draft.fits(2, 8, TS, None)
    assert not draft.fits(2, 9, TS, None), "10 has a digit more"
    assert not draft.fits(2, 8, TS, "n") and not draft.fits(3, 8, TS, None)
    assert not draft.fits(2, 8, 10 * TS, None)
    assert not PreencodedBatch(records, 8, TS, None).fits(2, 8, TS, None), "it is not done"
    draft.take(8, TS, 0)
    assert not draft.fits(2, 8, TS, None), "there is one text, for one block"


def test_no_step_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by the bytes that a step encodes and copies, not by a time."""
    encoded: list[int] = []

    def counting(records: list[Record], *args: object) -> object:
        encoded.append(sum(len(record.data) for record in records))
        assert len(records) <= preencoding.STEP_RECORDS
        return encode_fragments(records, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(preencoding, "encode_fragments", counting)
    records = [Record(b"1")] * 3000 + [Record(b'"%b"' % (b"x" * 5_000_000))] + [Record(b'"%b"' % (b"x" * 200_000))] * 20
    draft = PreencodedBatch(records, 1, TS, None)
    steps = 1
    while not draft.step():
        steps += 1
    assert max(encoded) <= 2 * preencoding.STEP_BYTES
    assert steps >= 9_000_000 // (2 * preencoding.STEP_BYTES)


@pytest.mark.parametrize("tag", [None, "t", 'é"' * 60, "a" * 5000])
def test_a_fragment_is_made_around_data_that_is_in_its_place(tag: str | None) -> None:
    data = b'"%b"' % (b"x" * 700)
    place = Place.reserve(len(data))
    place.data[:] = data
    record = Record(data, tag, None, b'{"content-type":"text/plain"}')
    draft = PreencodedBatch([record], 98, TS, None, place)
    while not draft.step():
        pass
    text, rows, payload_bytes, traits = draft.take(99, TS + 1, 17)
    assert (bytes(text), rows, payload_bytes, traits) == encode_fragments([record], 99, TS + 1, None, 17)
    # It was made where the data was, unless the part behind it is longer than expected.
    assert (memoryview(text).obj is place.memory.obj) == (tag is None or len(tag) < 1000)
