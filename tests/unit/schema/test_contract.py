import contextlib
import gc
import json
from typing import Any

import msgspec
import pytest

from topics.model.errors import InvalidRequestError
from topics.schema.contract import Contract, Intake
from topics.schema.documents import (
    MAX_KEY_BYTES,
    MISSING,
    KeyExtractor,
    RoutingKey,
    finder,
    parse_pointer,
    show_pointer,
)
from topics.schema.profiles.evlog import Evlog
from topics.schema.registry import Registry, Version


def keys(required: bool, *values: Any, pointer: str = "/k") -> list[str | None]:
    return KeyExtractor(RoutingKey(pointer, required)).keys_of(values)


def test_keys_out_of_entries() -> None:
    assert keys(True, {"k": "a"}, {"k": ""}) == ["a", ""]
    assert keys(False, {"k": "a"}, {}, 5, [], None) == ["a", None, None, None, None]
    assert keys(True, {"a": [{"b": "x"}]}, pointer="/a/0/b") == ["x"]
    assert keys(True, {"a/b": {"": "x"}}, pointer="/a~1b/") == ["x"]
    assert keys(False, {"a": ["x"]}, pointer="/a/00") == [None]
    assert keys(False, {"a": ["x"]}, pointer="/a/1") == [None]


@pytest.mark.parametrize(
    "value", [{"k": 1}, {"k": None}, {"k": ["a"]}, {"k": "x" * (MAX_KEY_BYTES + 1)}, {"k": "é" * 513}]
)
def test_keys_that_are_none(value: Any) -> None:
    for required in (True, False):
        with pytest.raises(InvalidRequestError) as caught:
            keys(required, {"k": "a"}, value)
        assert caught.value.detail == {"index": 1, "field": "/k"}


def test_a_key_has_its_limit_in_bytes() -> None:
    assert keys(True, {"k": "é" * 512}, {"k": "x" * MAX_KEY_BYTES})


def test_a_key_that_is_required_and_missing() -> None:
    values: list[Any] = [{}, [], "k"]
    for value in values:
        with pytest.raises(InvalidRequestError, match="missing"):
            keys(True, value)


def test_pointers() -> None:
    for text in ("", "/", "/a", "/a~0b/c~1d", "/0", "/é"):
        assert show_pointer(parse_pointer(text, "p")) == text
    assert finder(())({"a": 1}) == {"a": 1}
    assert finder(("a", "b"))({"a": None}) is MISSING
    assert finder(("a",))({"a": None}) is None
    assert finder(("9" * 5000,))([1]) is MISSING
    for text in ("a", "a/b", "/~", "/~2", "#/a"):
        with pytest.raises(InvalidRequestError):
            parse_pointer(text, "p")


STRICT = Registry((Version(b'{"required":["a"]}', None, 0),))


def test_a_stream_that_promises_nothing_looks_at_nothing() -> None:
    intake = Intake(Contract())
    raws = [b"not even JSON"]
    assert intake.is_idle
    assert intake.take(raws, now_ms=0, stream_key="k") == (raws, None)
    intake.check_bytes()


def test_a_batch_is_taken_whole_or_not_at_all() -> None:
    intake = Intake(Contract(STRICT))
    raws = [b'{ "a" : 1.0 }', b'{"a":2}']
    assert intake.take(raws, now_ms=0) == (raws, None)
    for bad in (b"{}", b"", b"{", b"[" * 5000, b'{"a":1e999}', b"\xff", b'{"a":"\\ud800"}'):
        with pytest.raises(InvalidRequestError):
            intake.take([b'{"a":1}', bad], now_ms=0)


def test_what_counts_is_the_last_of_two_members_of_one_name() -> None:
    """Two readers that disagreed about such a text would disagree about the key of an entry."""
    registry = Registry(STRICT.versions, RoutingKey("/a", True))
    assert Intake(Contract(registry)).take([b'{"a":1,"a":"x"}'], now_ms=0).keys == ["x"]


def test_bytes_are_refused_where_entries_are_described() -> None:
    for contract in (
        Contract(STRICT),
        Contract(profile=Evlog()),
        Contract(Registry(routing_key=RoutingKey("/a", False))),
    ):
        with pytest.raises(InvalidRequestError, match="application/json"):
            Intake(contract).check_bytes()


def test_a_request_names_no_key_where_entries_have_one() -> None:
    intake = Intake(Contract(Registry(routing_key=RoutingKey("/k", True))))
    with pytest.raises(InvalidRequestError) as caught:
        intake.take([b'{"k":"a"}'], now_ms=0, stream_key="x")
    assert caught.value.message == "Stream-Key not allowed when routingKey is configured"


def test_the_key_of_a_request_goes_before_that_of_a_profile() -> None:
    intake = Intake(Contract(profile=Evlog()))
    assert intake.take([b'{"requestId":"r"}'], now_ms=0).keys == ["r"]
    assert intake.take([b'{"requestId":"r"}'], now_ms=0, stream_key="x").keys is None
    with pytest.raises(InvalidRequestError, match="bytes"):
        intake.take([json.dumps({"requestId": "r" * 2000}).encode()], now_ms=0)


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"enum": [f"value {number}" for number in range(2_000)]}},
        {"items": {"type": "integer"}},
        {"anyOf": [{"items": {"type": "integer"}}, {"items": {"type": "null"}}]},
        {"uniqueItems": True},
    ],
)
@pytest.mark.parametrize("raw", [b'["x"' + b',"x"' * 999 + b"]", b'["x"'])
def test_a_refused_entry_leaves_nothing_for_the_garbage_collector(schema: object, raw: bytes) -> None:
    # A thousand refusals that did took the collector 50 ms at once, and 170 MB.
    intake = Intake(Contract(Registry((Version(msgspec.json.encode(schema), None, 0),))))

    with pytest.raises(InvalidRequestError):
        intake.take([raw], now_ms=0)
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            with contextlib.suppress(InvalidRequestError):
                intake.take([raw], now_ms=0)
        assert gc.collect() == 0
    finally:
        gc.enable()
