import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.schema.recordings import text
from topics.model.errors import BatchTooLargeError, InvalidRequestError
from topics.schema.contract import Contract, Intake, decide_profile, parse_profile, profile_json
from topics.schema.profiles.otel_traces import SCHEMA, ExportLimits, any_value, spans_of_export, unpack_exports
from topics.schema.validation import EntryValidator

TRACE, SPAN = "5b8efff798038103d269b633813fc60c", "086e83747d0e381e"
CANONICAL = {
    "traceId": TRACE,
    "spanId": SPAN,
    "name": "GET /checkout",
    "kind": "server",
    "startUnixNano": "1772020800000000000",
    "endUnixNano": "1772020800123000000",
    "resource": {"attributes": {"service.name": "checkout"}},
    "attributes": {"request.id": "req_123"},
}
EXPORT = {
    "resourceSpans": [
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "checkout"}}]},
            "scopeSpans": [
                {
                    "scope": {"name": "http", "version": "1"},
                    "spans": [
                        {
                            "traceId": TRACE.upper(),
                            "spanId": SPAN,
                            "parentSpanId": "",
                            "name": "POST /pay",
                            "kind": 2,
                            "startTimeUnixNano": "1772020800000000001",
                            "endTimeUnixNano": 1772020800250000001,
                            "status": {"code": 2, "message": "declined"},
                            "droppedAttributesCount": 3,
                            "attributes": [
                                {"key": "http.request.method", "value": {"stringValue": "POST"}},
                                {"key": "http.response.status_code", "value": {"intValue": "402"}},
                                {"key": "http.request.header.authorization", "value": {"stringValue": "Bearer x"}},
                                {"key": "db.statement", "value": {"stringValue": "select 1"}},
                                {"key": "tags", "value": {"arrayValue": {"values": [{"boolValue": True}]}}},
                                {
                                    "key": "call",
                                    "value": {
                                        "kvlistValue": {"values": [{"key": "Token", "value": {"stringValue": "x"}}]}
                                    },
                                },
                            ],
                            "events": [
                                {
                                    "name": "exception",
                                    "attributes": [
                                        {"key": "exception.type", "value": {"stringValue": "Declined"}},
                                        {"key": "exception.message", "value": {"stringValue": "card declined"}},
                                    ],
                                }
                            ],
                        }
                    ],
                }
            ],
        }
    ]
}


def take(*values: Any, **settings: Any) -> list[Any]:
    profile = parse_profile({"kind": "otel-traces", **settings})
    contract = decide_profile(Contract(), profile, is_json=True, empty=True, next_seq=0)
    taken = Intake(contract).take(list(map(text, values)), now_ms=0)
    assert taken.keys == [TRACE] * len(values)
    return [json.loads(bytes(payload)) for payload in taken.payloads]


def test_a_span_of_an_export() -> None:
    (stored,) = take(*spans_of_export(EXPORT))
    assert (stored["service"], stored["kind"], stored["parentSpanId"]) == ("checkout", "server", None)
    assert (stored["startUnixNano"], stored["duration"]) == ("1772020800000000001", 250.0)
    assert stored["timestamp"] == "2026-02-25T12:00:00.000Z"
    assert stored["http"] == {"method": "POST", "route": None, "path": None, "url": None, "statusCode": 402}
    assert stored["status"] == {"code": "error", "message": "declined"}
    assert stored["error"] == {"type": "Declined", "message": "card declined", "stacktrace": None, "isError": True}
    assert stored["instrumentationScope"] == {"name": "http", "version": "1", "attributes": {}}
    assert (stored["eventNames"], stored["dropped"]["attributes"]) == (["exception"], 3)
    assert stored["redaction"] == {
        "keys": ["attributes.http.request.header.authorization", "attributes.call.Token"],
    }
    assert stored["attributes"] == {
        "http.request.method": "POST",
        "http.response.status_code": 402,
        "http.request.header.authorization": "[REDACTED]",
        "tags": [True],
        "call": {"Token": "[REDACTED]"},
    }
    assert stored["db"]["statement"] is None


def test_a_stored_span_can_be_appended_again() -> None:
    for settings in ({}, {"store": {"rawSpanAttributes": False, "rawEvents": False, "rawResourceAttributes": False}}):
        for span in (CANONICAL, *spans_of_export(EXPORT)):
            (stored,) = take(span, **settings)
            assert take(stored, **settings) == [stored]


def test_a_span_as_it_is_stored() -> None:
    (stored,) = take(CANONICAL)
    assert (stored["service"], stored["requestId"], stored["duration"]) == ("checkout", "req_123", 123.0)
    assert stored["identity"] == {"spanKey": f"{TRACE}:{SPAN}"}


def test_statements_are_kept_on_request_and_cut() -> None:
    (stored,) = take(
        CANONICAL | {"attributes": {"db.statement": "é" * 10}},
        dbStatementMode="raw",
        attributeLimits={"maxStatementBytes": 5},
    )
    assert stored["db"]["statement"] == "éé"
    assert stored["attributes"] == {"db.statement": "é" * 10}


def test_limits_of_a_span() -> None:
    many = {"attributes": {str(n): n for n in range(9)}, "events": [{"name": "e"}] * 9, "links": [{}] * 9}
    limits = {"maxAttributesPerSpan": 2, "maxEventsPerSpan": 3, "maxLinksPerSpan": 4}
    (stored,) = take(CANONICAL | many, attributeLimits=limits)
    assert [len(stored[part]) for part in ("attributes", "events", "links")] == [2, 3, 4]
    assert stored["dropped"] == {"attributes": 7, "events": 6, "links": 5}


@pytest.mark.parametrize(
    "change",
    [
        {"traceId": "0" * 32},
        {"traceId": "xyz"},
        {"spanId": "0" * 16},
        {"spanId": None},
        {"startUnixNano": "-1"},
        {"startUnixNano": 2**64},
        {"name": ""},
    ],
)
def test_spans_that_are_none(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        take(CANONICAL, CANONICAL | change)
    assert caught.value.detail == {"index": 1, "field": next(iter(change))}


def test_odd_spans_fit_the_schema() -> None:
    validator = EntryValidator(SCHEMA)
    profile = parse_profile({"kind": "otel-traces"})
    odd = {
        "endUnixNano": "5",
        "kind": 99,
        "status": {"code": "STATUS_CODE_OK"},
        "attributes": [{"key": 5}, 7, {"key": "a"}],
        "events": [5, {"name": 7}],
        "links": "x",
        "dropped": 5,
        "redaction": {"keys": [5]},
        "http": [],
        "duration": -1,
    }
    assert validator.is_valid(profile.normalise(0, CANONICAL | odd, 0))
    assert any_value({"doubleValue": "1.5"}) == 1.5
    assert any_value({}) is None
    assert list(spans_of_export({"resourceSpans": [5, {"scopeSpans": {}}]})) == []


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"store": {"raw": True}}, "profile.store.raw"),
        ({"dbStatementMode": "hash"}, "profile.dbStatementMode"),
        ({"attributeLimits": {"maxLinksPerSpan": 0}}, "profile.attributeLimits.maxLinksPerSpan"),
        ({"observability": {"request": {"eventsStream": ""}}}, "profile.observability.request.eventsStream"),
    ],
)
def test_settings_that_are_none(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_profile({"kind": "otel-traces", **settings})
    assert caught.value.detail["field"] == named


def test_settings_are_shown_as_they_were_reported() -> None:
    reported = {
        "kind": "otel-traces",
        "redactKeys": ["sessiontoken"],
        "attributeLimits": {"maxAttributesPerSpan": 32},
        "store": {"rawLinks": False},
        "dbStatementMode": "raw",
        "observability": {"request": {"eventsStream": "app-events"}},
    }
    assert json.loads(profile_json(parse_profile(reported)))["profile"] == reported


LIMITS = ExportLimits(1_000_000, 10, 20, 30)


def unpacked(*documents: object) -> list[Any] | None:
    found = unpack_exports([text(document) for document in documents], LIMITS)
    return None if found is None else [json.loads(bytes(one)) for one in found]


def test_an_export_is_its_spans_each_with_its_resource_and_scope() -> None:
    assert unpacked(EXPORT) == list(spans_of_export(EXPORT))
    assert unpacked(CANONICAL, EXPORT, CANONICAL) == [CANONICAL, *spans_of_export(EXPORT), CANONICAL]


def test_other_entries_are_left_alone() -> None:
    assert unpacked(CANONICAL) is None
    mentions = {**CANONICAL, "attributes": {"resourceSpans": [1]}}
    assert unpacked(mentions) == [mentions]


_objects = st.dictionaries(st.sampled_from(["a", "spanId", "resource", "}", '"']), st.text(max_size=5), max_size=3)
_scopes = st.fixed_dictionaries({}, optional={"scope": _objects, "spans": st.lists(_objects, max_size=3)})
_resources = st.fixed_dictionaries({}, optional={"resource": _objects, "scopeSpans": st.lists(_scopes, max_size=3)})


@given(st.lists(_resources, max_size=3))
def test_taking_apart_the_text_is_taking_apart_the_values(resources: list[Any]) -> None:
    export = {"resourceSpans": resources}
    expected = list(spans_of_export(export))
    if expected:
        assert unpacked(export) == expected
    else:
        with pytest.raises(InvalidRequestError, match="no spans"):
            unpacked(export)


@pytest.mark.parametrize(
    "document",
    [
        {"resourceSpans": 1}, {"resourceSpans": [1]}, {"resourceSpans": [{"scopeSpans": {}}]},
        {"resourceSpans": [{"scopeSpans": [{"spans": [1]}]}]}, {"resourceSpans": [{"scopeSpans": [{"spans": "x"}]}]},
    ],
)  # fmt: skip
def test_invalid_export_is_refused_with_its_path(document: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        unpacked(CANONICAL, document)
    assert caught.value.detail["index"] == 1


@pytest.mark.parametrize("counts", [(11, 1, 1), (3, 7, 1), (3, 2, 6)])
def test_an_export_has_bounds(counts: tuple[int, int, int]) -> None:
    resources, scopes, spans = counts
    export: dict[str, Any] = {"resourceSpans": [{"scopeSpans": [{"spans": [{}] * spans}] * scopes}] * resources}
    with pytest.raises(BatchTooLargeError):
        unpacked(export)
    with pytest.raises(BatchTooLargeError):
        unpack_exports([text({"resourceSpans": [], "x": "y" * 1_000_000})], LIMITS)


def test_a_large_resource_is_not_copied_without_end() -> None:
    """Ten thousand spans of one resource of 100 KB would be a gigabyte."""
    export = {"resourceSpans": [{"resource": {"x": "y" * 100_000}, "scopeSpans": [{"spans": [{}] * 10_000}]}]}
    with pytest.raises(BatchTooLargeError, match="resource"):
        unpack_exports([text(export)], ExportLimits(2**24, 2**24, 2**24, 2**24))
