import msgspec
import pytest

from topics.cli.failures import UsageError
from topics.cli.topic_options import meant
from topics_client import Record


def record(data: object, tag: str | None = None) -> Record:
    return Record(seq=1, ts=2, tag=tag, payload=msgspec.Raw(msgspec.json.encode(data)))


@pytest.mark.parametrize(
    ("condition", "data", "holds"),
    [
        ("a=1", {"a": 1}, True),
        ("a=1", {"a": 1.0}, True),
        ("a=1", {"a": "1"}, False),
        ("a=1", {"a": True}, False),
        ("a=true", {"a": True}, True),
        ('a="1"', {"a": "1"}, True),
        ("a=paid", {"a": "paid"}, True),
        ("a=", {"a": ""}, True),
        ("a=x=y", {"a": "x=y"}, True),
        ("a=null", {"a": None}, True),
        ("a=null", {}, False),
        ("a.b.c=1", {"a": {"b": {"c": 1}}}, True),
        ("a.1=y", {"a": ["x", "y"]}, True),
        ("a.2=y", {"a": ["x", "y"]}, False),
        ("0=x", ["x"], True),
        ("a=1", 5, False),
        ("a=1", None, False),
        ("a!=1", {"a": 2}, True),
        ("a!=1", {"a": 1}, False),
        ("a!=1", {}, True),
        ('a={"b":[1]}', {"a": {"b": [1]}}, True),
    ],
)
def test_a_condition(condition: str, data: object, holds: bool) -> None:
    query, matches = meant(None, [condition])
    assert query is None
    assert matches is not None
    assert matches(record(data)) is holds


def test_all_conditions_and_the_tag_must_hold() -> None:
    matches = meant("o-*", ["a=1", "b=2"]).matches
    assert matches is not None
    assert matches(record({"a": 1, "b": 2}, "o-7"))
    assert not matches(record({"a": 1, "b": 3}, "o-7"))
    assert not matches(record({"a": 1, "b": 2}, "p-7"))
    assert not matches(record({"a": 1, "b": 2}))
    assert meant(None, None) == (None, None)


@pytest.mark.parametrize("text", ["a", "", "=1", "a..b=1", "!=1"])
def test_invalid_filter_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--filter is"):
        meant(None, [text])


@pytest.mark.parametrize(
    "text", ["/total:>=5", "tag:order-*", "-has:tag", "(node:shop OR seq:>5)", "NOT /a:1", "ts:>0", "/a=b:1"]
)
def test_a_query_is_the_servers_to_answer(text: str) -> None:
    assert meant(None, [text]) == (text, None)
    query, matches = meant(None, ["a=1", text, "/b:2"])
    assert query == f"({text}) (/b:2)" and matches is not None


@pytest.mark.parametrize("text", ["notes=1", "tags=x", "has=1", "seq=5", "a.tag:b=1", "node!=5"])
def test_a_member_whose_name_reminds_of_a_query(text: str) -> None:
    query, matches = meant(None, [text])
    assert query is None and matches is not None


@pytest.mark.parametrize("payload", [b'{"a":1e999}', b"[" * 5000 + b"]" * 5000])
def test_a_payload_that_python_cannot_hold_does_not_match(payload: bytes) -> None:
    found = Record(seq=1, ts=2, payload=msgspec.Raw(payload))
    for condition, holds in (("a=1", False), ("a!=1", True)):
        matches = meant(None, [condition]).matches
        assert matches is not None
        assert matches(found) is holds
