"""Search fields that are proposed from samples of a stream's entries."""

import json
from typing import Any

import msgspec
import pytest

from topics.schema.search_fields import parse_search
from topics.search.query.field_inference import MAX_INFERRED, Inference


def inferred(*entries: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The proposed description, in the form of an answer, and why members are left out, by their pointers."""
    inference = Inference()
    for entry in entries:
        inference.add(json.dumps(entry).encode())
    search, skipped = inference.propose()
    if search["fields"]:
        parse_search(search | {"fields": {name: plain(about) for name, about in search["fields"].items()}})
    return search, {one.pointer: one.reason for one in skipped}


def plain(about: Any) -> Any:
    return about if isinstance(about, str) else json.loads(msgspec.json.encode(about))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([True, False], "bool"), ([1, -5], "integer"), ([1, None], "integer"), ([2**63], "float"), ([1, 1.5], "float"),
        ([2.0], "float"), (["2026-03-25T10:00:00Z", "2026-03-25"], "date"), (["2026-99-99"], "keyword"),
        (["a", "b-c"], "keyword"), (["2026-03-25", "never"], "keyword"), (["404"], "keyword"),
        (["paid", "paid by card"], "text"), (["x" * 129], "text"), ([["a", "b"], "c", []], "keyword"),
        ([[1, [2]], 3], "integer"),
    ],
)  # fmt: skip
def test_member_has_the_kind_that_all_samples_agree_on(values: list[Any], kind: str) -> None:
    search, skipped = inferred(*({"a": value} for value in values))
    assert (search["fields"], skipped) == ({"a": kind}, {})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1, "x"], "is integer and keyword"), ([True, 1], "is bool and integer"),
        ([None, []], "is null or empty in every sample"), ([[{"b": 1}]], "is an object"),
        (["2026-03-25", 5], "is date and integer"),
    ],
)  # fmt: skip
def test_member_without_one_kind_is_left_out_with_the_reason(values: list[Any], reason: str) -> None:
    search, skipped = inferred(*({"a": value} for value in values))
    assert (search["fields"], skipped) == ({}, {"/a": reason})


def test_members_of_objects_have_dotted_names() -> None:
    search, _ = inferred({"user": {"id": 1, "geo": {"city": "Rome"}}, "status": 200})
    assert search["fields"] == {"status": "integer", "user.id": "integer", "user.geo.city": "keyword"}


def test_member_that_its_name_does_not_lead_to_is_in_the_long_form() -> None:
    search, skipped = inferred({"@timestamp": "2026-03-25T10:00:00Z", "http.status": 5, "http": {"status": 6}, "": 1})
    fields = search["fields"]
    assert fields["timestamp"].bindings[0].json_pointer == "/@timestamp"
    assert fields["http.status"].bindings[0].json_pointer == "/http.status"
    assert skipped == {"/http/status": "the name http.status is taken", "/": "has no name that a field can have"}
    assert search["primaryTimestampField"] == "timestamp"


def test_primary_timestamp_is_the_date_of_most_samples() -> None:
    entries = [{"rare": "2026-01-01", "at": "2026-01-02"}, {"at": "2026-01-03"}]
    assert inferred(*entries)[0]["primaryTimestampField"] == "at"
    assert "primaryTimestampField" not in inferred({"a": 1})[0]


def test_entries_that_are_no_objects_are_not_counted() -> None:
    inference = Inference()
    for raw in (b"5", b"[1]", b"not json", b'{"a":1}', b"[" * 5000):
        inference.add(raw)
    assert (inference.entries, inference.propose()[0]) == (1, {"fields": {"a": "integer"}})


def test_proposal_and_memory_are_bounded() -> None:
    common = {f"c{n}": n for n in range(MAX_INFERRED)}
    search, skipped = inferred({f"r{n}": n for n in range(5000)} | common, common, common)
    assert len(search["fields"]) == MAX_INFERRED
    assert len(skipped) <= 1001 and "" in skipped
    deep: Any = 1
    for _ in range(60):
        deep = {"a": deep}
    assert inferred(deep)[1] == {"/a" * 8: "is an object"}
