import json
from typing import Any

import pytest

from tests.unit.schema.recordings import CONVERSATIONS, stream_in, text, values_in
from topics.model.errors import InvalidRequestError
from topics.schema.contract import (
    PROFILES,
    Contract,
    Intake,
    decide_profile,
    decode_contract,
    encode_contract,
    parse_profile,
    parse_profile_update,
    profile_json,
)
from topics.schema.profiles.evlog import ENVELOPE, SCHEMA, Evlog
from topics.schema.profiles.profile import integer_of, number_of
from topics.schema.profiles.state_protocol import StateProtocol
from topics.schema.registry import Registry, decide_update, parse_update, registry_json
from topics.schema.validation import EntryValidator

NOW_MS = 1774432800000


NOTHING = Contract()


def install(profile: dict[str, Any], contract: Contract = NOTHING, **more: Any) -> Contract:
    facts = {"is_json": True, "empty": True, "next_seq": 0, **more}
    return decide_profile(contract, parse_profile_update(text({"profile": profile})), **facts)


def take(contract: Contract, *values: Any) -> list[Any]:
    taken = Intake(contract).take(list(map(text, values)), now_ms=NOW_MS)
    return [json.loads(bytes(payload)) for payload in taken.payloads]


def test_recorded_profiles_are_decided_as_recorded() -> None:
    """Every `_profile` request of the recordings, the registries that follow, and the entries that are read back."""
    seen = 0
    for name, steps in CONVERSATIONS.items():
        contracts: dict[str, Contract] = {}
        stored: dict[str, list[Any]] = {}
        content_types: dict[str, str] = {}
        for step in steps:
            stream = stream_in(step)
            if step["method"] == "PUT":
                contracts[stream], stored[stream] = Contract(), []
                content_types[stream] = step["headers"]["content-type"]
            elif step["path"].endswith("/_profile"):
                seen += 1
                if step["method"] == "POST":
                    try:
                        contracts[stream] = decide_profile(
                            contracts[stream],
                            parse_profile_update(text(step["body"])),
                            is_json=content_types[stream] == "application/json",
                            empty=not stored[stream],
                            next_seq=len(stored[stream]),
                        )
                    except InvalidRequestError as error:
                        assert step["status"] == 400, (name, error)
                        assert error.message == step["answer"]["error"]["message"]
                        continue
                assert step["status"] == 200, name
                assert json.loads(profile_json(contracts[stream].profile)) == step["answer"]
                assert decode_contract(encode_contract(contracts[stream])) == contracts[stream]
            elif step["path"].endswith("/_schema") and name == "evlog-install":
                shown = json.loads(registry_json(contracts[stream].registry, stream))
                assert set(shown["search"].pop("rollups")) == {"requests", "latency"}
                assert shown == step["answer"]
            elif step["method"] == "POST" and name in ("evlog-refusals", "evlog-traceid-key", "metrics-profile"):
                taken = Intake(contracts[stream]).take(list(map(text, values_in(step))), now_ms=NOW_MS)
                keys = taken.keys or [None]
                stored[stream] += [
                    (key, json.loads(bytes(payload))) for key, payload in zip(keys, taken.payloads, strict=True)
                ]
            elif step["method"] == "GET" and "format=json" in step["path"]:
                if name == "evlog-traceid-key":
                    assert stored[stream] == [("trace_only_1", step["answer"][0])]
                elif name == "metrics-profile":
                    assert [entry for _, entry in stored[stream]] == step["answer"]
                    assert stored[stream][0][0] == step["answer"][0]["seriesKey"]
    assert seen > 10


@pytest.mark.parametrize(
    ("profile", "named"),
    [
        (None, "profile.kind"),
        ({}, "profile.kind"),
        ({"kind": []}, "profile.kind"),
        ({"kind": "generic", "a": 1}, "profile.a"),
        ({"kind": "metrics", "a": 1}, "profile.a"),
        ({"kind": "evlog", "redactKeys": "a"}, "profile.redactKeys"),
        ({"kind": "evlog", "redactKeys": [" "]}, "profile.redactKeys"),
        ({"kind": "evlog", "redactKeys": [str(n) for n in range(65)]}, "profile.redactKeys"),
        ({"kind": "evlog", "correlation": {"fields": []}}, "profile.correlation.fields"),
        ({"kind": "evlog", "correlation": {"requestIdFields": [""]}}, "profile.correlation.requestIdFields"),
        ({"kind": "evlog", "observability": {}}, "profile.observability"),
        ({"kind": "evlog", "observability": {"request": {"tracesStream": " "}}}, "profile.observability.request"),
        ({"kind": "state-protocol", "touch": {}}, "profile.touch"),
        ({"kind": "state-protocol", "touch": {"enabled": 1}}, "profile.touch.enabled"),
        ({"kind": "state-protocol", "touch": {"enabled": True, "x": 1}}, "profile.touch.x"),
        ({"kind": "state-protocol", "touch": {"enabled": True, "onMissingBefore": "x"}}, "profile.touch"),
        ({"kind": "state-protocol", "touch": {"enabled": True, "coarseIntervalMs": 0}}, "profile.touch"),
        ({"kind": "state-protocol", "touch": {"enabled": True, "memory": {"k": 99}}}, "profile.touch.memory.k"),
    ],
)
def test_profiles_that_are_none(profile: Any, named: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_profile_update(text({"profile": profile}))
    assert str(caught.value.detail["field"]).startswith(named)


@pytest.mark.parametrize("body", [{"kind": "generic"}, {"apiVersion": "v0", "profile": {"kind": "generic"}}, {"a": 1}])
def test_requests_that_are_none(body: Any) -> None:
    with pytest.raises(InvalidRequestError):
        parse_profile_update(text(body))


@pytest.mark.parametrize("kind", sorted(PROFILES))
def test_every_profile_comes_back_from_its_bytes(kind: str) -> None:
    contract = install({"kind": kind})
    assert decode_contract(memoryview(encode_contract(contract))) == contract
    again = install({"kind": kind}, contract, empty=False)
    assert again == contract


def test_bytes_that_are_no_contract() -> None:
    for raw in (b"", b"\x09", b"\x01\x90", b'\x01\x92\xc4\x02\x01\x90\xc4\x0e{"kind":"old"}'):
        with pytest.raises(ValueError):
            decode_contract(raw)


@pytest.mark.parametrize("kind", sorted(set(PROFILES) - {"generic"}))
def test_a_profile_needs_json(kind: str) -> None:
    with pytest.raises(InvalidRequestError, match="application/json"):
        install({"kind": kind}, is_json=False)


@pytest.mark.parametrize("kind", ["evlog", "metrics", "otel-traces"])
def test_a_profile_with_a_schema_needs_an_empty_stream(kind: str) -> None:
    with pytest.raises(InvalidRequestError, match="before appending data"):
        install({"kind": kind}, empty=False)


def test_settings_of_a_profile_can_change_later() -> None:
    first = install({"kind": "evlog"})
    later = install({"kind": "evlog", "redactKeys": ["Pin"]}, first, empty=False, next_seq=5)
    assert later.registry == first.registry
    assert json.loads(profile_json(later.profile))["profile"] == {"kind": "evlog", "redactKeys": ["pin"]}


def test_a_registry_stays_when_its_profile_goes() -> None:
    contract = install({"kind": "evlog"})
    back = install({"kind": "generic"}, contract, empty=False)
    assert back.registry == contract.registry


def test_existing_routing_key_stays() -> None:
    update = parse_update(text({"routingKey": {"jsonPointer": "/service", "required": False}}))
    registry = decide_update(Registry(), update, stream="s", empty=True, next_seq=0)
    contract = install({"kind": "evlog"}, Contract(registry))
    taken = Intake(contract).take([b'{"service":"api","requestId":"r"}'], now_ms=NOW_MS)
    assert contract.registry.routing_key == registry.routing_key
    assert taken.keys == ["api"]


def test_an_evlog_entry_has_the_whole_envelope() -> None:
    contract = install({"kind": "evlog", "redactKeys": ["sessionToken"]})
    entry = {
        "timestamp": "2026-03-25T12:00:00+02:00",
        "status": "402",
        "duration": " 1.5 ",
        "requestId": " req_123 ",
        "traceContext": {"traceId": "trace_123", "spanId": "span_123"},
        "service": "",
        "message": "Payment failed",
        "why": "Card declined by issuer",
        "password": "hunter2",
        "user": {"id": 1, "logins": [{"SessionToken": "x", "at": 5}]},
        "context": {"plan": "pro"},
        "sampling": {"kept": True},
    }
    (stored,) = take(contract, entry)
    assert tuple(stored) == ENVELOPE
    given = {name: member for name, member in stored.items() if member is not None}
    assert given == {
        "timestamp": "2026-03-25T10:00:00.000Z",
        "level": "error",
        "requestId": "req_123",
        "traceId": "trace_123",
        "spanId": "span_123",
        "status": 402,
        "duration": 1.5,
        "message": "Payment failed",
        "why": "Card declined by issuer",
        "sampling": {"kept": True},
        "redaction": {"keys": ["password", "user.logins.0.SessionToken"]},
        "context": {
            "plan": "pro",
            "traceContext": {"traceId": "trace_123", "spanId": "span_123"},
            "password": "[REDACTED]",
            "user": {"id": 1, "logins": [{"SessionToken": "[REDACTED]", "at": 5}]},
        },
    }
    assert take(contract, stored) == [stored]


@pytest.mark.parametrize(
    ("entry", "level"),
    [
        ({}, "info"),
        ({"level": "WARN"}, "warn"),
        ({"level": "fatal", "status": 404}, "warn"),
        ({"status": 500}, "error"),
        ({"status": 399.0}, "info"),
        ({"link": "x"}, "error"),
        ({"level": "debug", "why": "x"}, "debug"),
        ({"level": ["error"], "status": True}, "info"),
    ],
)
def test_the_level_of_an_event(entry: dict[str, Any], level: str) -> None:
    assert take(install({"kind": "evlog"}), entry)[0]["level"] == level


TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    "entry",
    [
        {"traceparent": TRACEPARENT},
        {"traceContext": {"traceparent": TRACEPARENT.upper()}},
        {"context": {"traceparent": TRACEPARENT}},
        {"headers": {"traceparent": TRACEPARENT}},
    ],
)
def test_ids_out_of_a_traceparent(entry: dict[str, Any]) -> None:
    taken = Intake(install({"kind": "evlog"})).take([text(entry)], now_ms=NOW_MS)
    stored = json.loads(bytes(taken.payloads[0]))
    assert (stored["traceId"], stored["spanId"]) == ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
    assert taken.keys == [stored["traceId"]]


ZEROS = (TRACEPARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32), "00-" + "1" * 32 + "-" + "0" * 16 + "-01")


@pytest.mark.parametrize("header", ZEROS)
def test_a_traceparent_with_an_id_of_zeros_is_skipped(header: str) -> None:
    contract = install({"kind": "evlog"})
    (alone,) = take(contract, {"traceparent": header})
    assert (alone["traceId"], alone["spanId"]) == (None, None)
    (second,) = take(contract, {"traceparent": header, "headers": {"traceparent": TRACEPARENT}})
    assert second["traceId"] == "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize("sampling", ["all", 1, True, [], False])
def test_a_sampling_that_is_not_an_object_is_refused(sampling: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        take(install({"kind": "evlog"}), {"a": 1}, {"sampling": sampling})
    assert caught.value.detail == {"index": 1, "field": "sampling"}


def test_a_context_of_null_is_kept_in_every_batch() -> None:
    plain = {"timestamp": "2026-03-25T10:00:00.000Z", "message": "m"}
    stored = take(install({"kind": "evlog"}), plain, plain | {"context": None})
    assert [entry["context"] for entry in stored] == [{}, {"context": None}]
    assert take(install({"kind": "evlog"}), *stored) == stored


def test_where_to_look_for_ids_can_be_reported() -> None:
    reported = {"requestIdFields": ["http.id"], "traceContextFields": ["otel"], "parseTraceparent": False}
    contract = install({"kind": "evlog", "correlation": reported})
    (stored,) = take(
        contract, {"http": {"id": "r"}, "otel": {"traceId": "t"}, "requestId": "x", "traceparent": TRACEPARENT}
    )
    assert (stored["requestId"], stored["traceId"], stored["spanId"]) == ("r", "t", None)


def test_odd_events_fit_the_schema() -> None:
    validator = EntryValidator(SCHEMA)
    for entry in (
        {"context": [1], "sampling": None, "redaction": 5, "status": "x", "duration": "1e999", "timestamp": "soon"},
        {"timestamp": 1e300, "duration": "٣", "status": "1_0"},
        {"redaction": {"keys": [1, "a"]}, "context": None, "level": None},
    ):
        normalised = Evlog().normalise(0, entry, NOW_MS)
        assert validator.is_valid(normalised), normalised
    assert Evlog().normalise(0, {"context": [1]}, NOW_MS)["context"] == {"context": [1]}
    assert Evlog().normalise(0, {"context": None, "a": 1}, NOW_MS)["context"] == {"context": None, "a": 1}
    assert Evlog().normalise(0, {}, NOW_MS)["timestamp"] == "2026-03-25T10:00:00.000Z"


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("1", 1),
        ("1.5", 1.5),
        (True, None),
        ("", None),
        ("nan", None),
        ([], None),
        ("1" * 41, None),
        (" 7 ", 7),
        ("true", None),
        ("0x1", None),
    ],
)
def test_numbers_in_texts(value: Any, number: Any) -> None:
    assert number_of(value) == number
    assert integer_of("1.5") is None
    assert integer_of("2.0") == 2


METRIC = {"metric": "m", "unit": "ms", "windowStart": 1000, "windowEnd": 3000, "count": 4, "sum": 10}


def test_a_metric_is_completed() -> None:
    (stored,) = take(
        install({"kind": "metrics"}),
        METRIC | {"tags": {"z": 1, "a": True, "b": None, "f": 2.0}, "buckets": {"16": 1, "2": 3, "x": 9}},
    )
    assert stored["tags"] == stored["attributes"] == {"a": "true", "f": "2", "z": "1"}
    assert stored["dimensionKey"] == "a=true\0f=2\0z=1"
    assert stored["seriesKey"] == "summary|delta|m|ms|||a=true\0f=2\0z=1"
    assert (stored["intervalMs"], stored["avg"], stored["p50"], stored["p95"]) == (2000, 2.5, 2, 16)
    assert list(stored["buckets"]) == ["2", "16"]
    assert stored["summary"] == {"count": 4, "sum": 10, "min": None, "max": None, "histogram": {"2": 3, "16": 1}}
    assert take(install({"kind": "metrics"}), stored) == [stored]


def test_a_metric_is_read_from_its_summary_object() -> None:
    interval = {name: member for name, member in METRIC.items() if name not in ("count", "sum")}
    summary = {"count": 4, "sum": "10", "min": 1, "max": 5, "histogram": {"4": 1, "1": 3}}
    (stored,) = take(install({"kind": "metrics"}), interval | {"summary": summary})
    assert (stored["count"], stored["sum"], stored["min"], stored["max"]) == (4, 10, 1, 5)
    assert (stored["buckets"], stored["p50"], stored["p99"]) == ({"1": 3, "4": 1}, 1, 4)
    (first,) = take(install({"kind": "metrics"}), METRIC | {"min": 2, "summary": summary | {"count": 9}})
    assert (first["count"], first["min"], first["summary"]["count"]) == (4, 2, 4)


def test_the_metrics_profile_installs_the_default_registry_of_the_reference() -> None:
    shown = json.loads(registry_json(install({"kind": "metrics"}).registry, "s"))
    search = shown["search"]
    assert search["aliases"]["dims"] == "dimensionKey"
    assert search["defaultFields"] == [
        {"field": "metric", "boost": 2},
        {"field": "stream", "boost": 1.25},
        {"field": "dimensionPairs", "boost": 1},
    ]
    lowered = {name for name, field in search["fields"].items() if field.get("normalizer") == "lowercase_v1"}
    assert lowered == {"metric", "unit", "metricKind", "temporality", "stream"}


def test_a_metric_of_nothing() -> None:
    (stored,) = take(install({"kind": "metrics"}), METRIC | {"count": 0, "sum": 0})
    assert (stored["avg"], stored["p99"], stored["dimensionKey"], stored["buckets"]) == (0, 0, None, {})


@pytest.mark.parametrize(
    "change",
    [
        {"metric": ""},
        {"unit": None},
        {"windowStart": 1.5},
        {"windowEnd": 999},
        {"count": -1},
        {"sum": "x"},
        {"kind": "point"},
    ],
)
def test_metrics_that_are_none(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        take(install({"kind": "metrics"}), METRIC, METRIC | change)
    assert caught.value.detail == {"index": 1, "field": next(iter(change))}


MOMENT = "2026-03-25T10:00:00.123456789Z"
CHANGE = {"type": "posts", "key": "1", "value": {"a": 1}, "headers": {"operation": "insert"}}


@pytest.mark.parametrize(
    "entry",
    [
        CHANGE,
        CHANGE | {"value": None, "old_value": {}, "headers": {"operation": "update", "txid": "5", "timestamp": MOMENT}},
        {"type": "posts", "key": "1", "headers": {"operation": "delete"}},
        CHANGE | {"headers": {"operation": "insert", "timestamp": "2026-02-28T23:59:60+05:30"}},
        {"headers": {"control": "reset", "offset": "-1"}},
        {"headers": {"control": "reset", "offset": "0000000000000000000g00000O"}},
        {"headers": {"control": "snapshot-start"}},
    ],
)
def test_changes_stay_as_they_came(entry: dict[str, Any]) -> None:
    raw = b" " + text(entry)
    taken = Intake(install({"kind": "state-protocol"})).take([raw], now_ms=NOW_MS)
    assert (list(taken.payloads), taken.keys) == ([raw], [None])


@pytest.mark.parametrize(
    "entry",
    [
        [],
        {},
        {"headers": []},
        CHANGE | {"oldValue": 1},
        CHANGE | {"type": ""},
        CHANGE | {"key": 1},
        CHANGE | {"headers": {"operation": "upsert"}},
        CHANGE | {"headers": {"operation": []}},
        CHANGE | {"headers": {"operation": "insert", "user": 1}},
        CHANGE | {"key": " "},
        CHANGE | {"headers": {"operation": "insert", "txid": 5}},
        CHANGE | {"headers": {"operation": "insert", "txid": ""}},
        CHANGE | {"headers": {"operation": "insert", "txid": None}},
        CHANGE | {"headers": {"operation": "insert", "timestamp": "now"}},
        CHANGE | {"headers": {"operation": "insert", "timestamp": 1774432800000}},
        CHANGE | {"headers": {"operation": "insert", "timestamp": "2026-02-30T10:00:00Z"}},
        CHANGE | {"headers": {"operation": "insert", "timestamp": "2026-03-25T10:00:00"}},
        {"type": "posts", "key": "1", "headers": {"operation": "insert"}},
        {"headers": {"control": "stop"}},
        {"headers": {"control": []}},
        {"headers": {"control": "reset", "offset": 1}},
        {"headers": {"control": "reset", "offset": None}},
        {"headers": {"control": "reset", "offset": ""}},
        {"headers": {"control": "reset", "offset": "0"}},
        {"headers": {"control": "reset", "offset": "now"}},
        {"headers": {"control": "reset", "offset": "Z" * 26}},
        {"headers": {"control": "reset", "operation": "insert"}},
        {"type": "posts", "headers": {"control": "reset"}},
    ],
)
def test_changes_that_are_none(entry: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        take(install({"kind": "state-protocol"}), CHANGE, entry)
    assert caught.value.detail["index"] == 1


def test_touch_is_off_unless_it_is_enabled() -> None:
    off = parse_profile({"kind": "state-protocol", "touch": {"enabled": False, "coarseIntervalMs": 75}})
    assert isinstance(off, StateProtocol)
    assert off.touch_settings is None
    assert off.touch == {"enabled": False}
    on = parse_profile({"kind": "state-protocol", "touch": {"enabled": True, "memory": {"bucketMs": 5}}})
    assert isinstance(on, StateProtocol)
    assert on.touch_settings is not None
    assert (on.touch_settings.memory.bucket_ms, on.touch_settings.memory.filter_pow2) == (5, 22)


def test_too_deep_nesting_is_refused() -> None:
    deep = b'{"a":' + b"[" * 900 + b"]" * 900 + b"}"
    try:
        Intake(install({"kind": "evlog"})).take([deep], now_ms=NOW_MS)
    except InvalidRequestError as error:
        assert "too deeply" in error.message


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("2026-03-01T10:00:00.000Z", "2026-03-01T10:00:00.000Z"),
        ("2026-03-01T10:00:00.120+01:00", "2026-03-01T09:00:00.120Z"),
        ("2026-03-01t10:00:00z", "2026-03-01T10:00:00.000Z"),
        ("2026-W09-7T10:00:00.000Z", "1970-01-01T00:00:00.001Z"),
        ("2026-02-30T10:00:00.000Z", "1970-01-01T00:00:00.001Z"),
        ("2026-03-01T10:00:00,000Z", "1970-01-01T00:00:00.001Z"),
        ("2026-03-01T1٠:00:00.000Z", "1970-01-01T00:00:00.001Z"),
        ("0000-03-01T10:00:00.000Z", "1970-01-01T00:00:00.001Z"),
    ],
)
def test_times_of_events(given: str, stored: str) -> None:
    """A time in the stored form is not parsed; an invalid time that resembles one is, and then the current time is
    used."""
    assert Evlog().normalise(0, {"timestamp": given}, 1)["timestamp"] == stored
