"""The decoder of documents and entries: numbers near the ends of the range of floats cost no more than others."""

from typing import Any

import msgspec
import pytest

from topics.model.errors import InvalidRequestError
from topics.schema import documents
from topics.schema.contract import Contract, Intake
from topics.schema.documents import MAX_EXTREME_NUMBERS, decode, decoder_for, has_extreme_numbers, parse
from topics.schema.registry import Registry, Version
from topics.search.memory_index.column_store import Decoder


def array(number: str, count: int) -> bytes:
    return f"[{','.join([number] * count)}]".encode()


@pytest.fixture
def quick_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder that takes 10 microseconds for each number with an extreme exponent must not be used."""

    def slow(text: object) -> object:
        raise AssertionError("the slow decoder was used")

    monkeypatch.setattr(documents, "_decode", slow)


@pytest.mark.usefixtures("quick_only")
@pytest.mark.parametrize("number", ["1e308", "-1.5E+300", "2e-308", "1.7976931348623157e308"])
def test_many_extreme_numbers_are_decoded_with_a_hook(number: str) -> None:
    text = array(number, 1_000)
    assert decode(text) == parse("entry", text) == [float(number)] * 1_000


@pytest.mark.usefixtures("quick_only")
def test_many_short_entries_of_extreme_numbers_are_decoded_with_a_hook() -> None:
    raws = [array("1e308", 30)] * 100
    assert [decoder_for(raws)(raw) for raw in raws] == [[1e308] * 30] * 100


def test_the_search_process_decodes_extreme_numbers_with_a_hook() -> None:
    raws = [b'{"a":%b}' % array("1e308", 30)] * 100
    for whole in (False, True):
        batch = Decoder([("a",)], whole=whole).batch(range(100), raws, [None] * 100)
        assert batch.found(("a",)) == [[1e308] * 30] * 100


@pytest.mark.parametrize("number", ["1e400", "-1e999"])
def test_numbers_out_of_range_are_refused_either_way(number: str) -> None:
    for count in (1, 1_000):
        with pytest.raises(InvalidRequestError, match="out of range"):
            parse("entry", array(number, count))


def test_usual_texts_are_decoded_without_a_hook() -> None:
    entry: dict[str, Any] = {"at": "2026-01-02T03:04:05.678Z", "values": [1.5e-7, 2e22, 3.25, 10**18] * 500}
    assert not has_extreme_numbers(msgspec.json.encode(entry))


def intake() -> Intake:
    return Intake(Contract(Registry((Version(b'{"type":"object"}', None, 0),))))


def test_an_entry_with_too_many_extreme_numbers_is_refused() -> None:
    raw = b'{"a":%b}' % array("1e308", MAX_EXTREME_NUMBERS + 1)
    with pytest.raises(InvalidRequestError, match="at most 40000 numbers") as caught:
        intake().take([b"{}", raw], now_ms=0)
    assert caught.value.detail["index"] == 1


def test_exponents_within_texts_do_not_count() -> None:
    raw = b'{"a":"%b"}' % (b"1e308" * (MAX_EXTREME_NUMBERS + 1))
    assert intake().take([raw], now_ms=0).payloads == [raw]
