import json
from typing import Any

import pytest

from tests.unit.schema.recordings import CONVERSATIONS, stream_in, text, values_in
from topics.model.errors import InvalidRequestError, StreamConflictError, TopicsError
from topics.schema.documents import MAX_REGISTRY_BYTES, MAX_UPDATE_BYTES
from topics.schema.registry import (
    Registry,
    decide_update,
    decode_registry,
    encode_registry,
    parse_update,
    registry_json,
)

V1 = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}, "additionalProperties": False}
V2 = {"type": "object", "required": ["key"], "properties": {"key": {"type": "string"}}, "additionalProperties": False}
SEARCH = {
    "primaryTimestampField": "at",
    "fields": {"at": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/at"}]}},
}


def lens(source: int = 1, to: int = 2, stream: str = "s", **more: Any) -> dict[str, Any]:
    ops = [{"op": "rename", "from": "/id", "to": "/key"}]
    return {"apiVersion": "durable.lens/v1", "schema": stream, "from": source, "to": to, "ops": ops, **more}


def update(registry: Registry, body: dict[str, Any], *, entries: int = 0, stream: str = "s") -> Registry:
    return decide_update(registry, parse_update(text(body)), stream=stream, empty=entries == 0, next_seq=entries)


def test_recorded_updates_are_decided_as_recorded() -> None:
    """Every `_schema` request of the recordings: its status, and the registry that it shows."""
    seen = 0
    for name, steps in CONVERSATIONS.items():
        registries: dict[str, Registry] = {}
        entries: dict[str, int] = {}
        for step in steps:
            stream = stream_in(step)
            if step["method"] == "PUT":
                registries[stream], entries[stream] = Registry(), 0
            elif step["method"] == "POST" and step["path"].endswith("/_schema"):
                seen += 1
                try:
                    registries[stream] = update(
                        registries[stream], step["body"], entries=entries[stream], stream=stream
                    )
                except InvalidRequestError as error:
                    assert step["status"] == 400, (name, error)
                    assert error.message.startswith(step["answer"]["error"]["message"])
                    continue
                assert step["status"] == 200, name
                assert json.loads(registry_json(registries[stream], stream)) == step["answer"]
            elif step["method"] == "POST" and step["status"] == 204:
                entries[stream] += len(values_in(step))
    assert seen > 10


def test_recorded_appends_are_judged_as_recorded() -> None:
    refused = []
    for name in ("schema-install", "schema-evolve"):
        registry, entries = Registry(), 0
        for step in CONVERSATIONS[name]:
            if step["path"].endswith("/_schema") and step["method"] == "POST":
                registry = update(registry, step["body"], entries=entries, stream=stream_in(step))
            elif step["method"] == "POST":
                values = values_in(step)
                validator = registry.validator
                assert validator is not None
                try:
                    validator.check(values, list(map(text, values)))
                except InvalidRequestError as error:
                    assert step["status"] == 400
                    refused.append((error.message, step["answer"]["error"]["message"]))
                else:
                    assert step["status"] == 204
                    entries += len(values)
    assert len(refused) == 3
    assert all(ours == theirs for ours, theirs in refused)


def test_recorded_reads_are_promoted_as_recorded() -> None:
    registry = Registry()
    stored: list[bytes] = []
    for step in CONVERSATIONS["schema-evolve"]:
        if step["path"].endswith("/_schema") and step["method"] == "POST":
            registry = update(registry, step["body"], entries=len(stored), stream=stream_in(step))
        elif step["method"] == "POST" and step["status"] == 204:
            stored += map(text, values_in(step))
        elif step["method"] == "GET" and "format=json" in step["path"]:
            promoted = [json.loads(bytes(registry.promoter.promote(entry, raw))) for entry, raw in enumerate(stored)]
            assert promoted == step["answer"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "schemaUpdate"),
        ({"apiVersion": "durable.streams/schema-registry/v1"}, "schemaUpdate"),
        ({"apiVersion": "v2", "schema": V1}, "schemaUpdate.apiVersion"),
        ({"schema": V1, "schemas": {}}, "schemaUpdate.schemas"),
        ({"schema": V1, "indexes": []}, "schemaUpdate.indexes"),
        ({"schema": V1, "touch": {}}, "schemaUpdate.touch"),
        ({"schema": True}, "schema"),
        ({"schema": {"$ref": "#/x"}}, "schema"),
        ({"schema": None}, "schema"),
        ({"lens": lens()}, "schemaUpdate"),
        ({"lens": lens(), "routingKey": None}, "schemaUpdate.lens"),
        ({"routingKey": {"jsonPointer": "a", "required": True}}, "routingKey.jsonPointer"),
        ({"routingKey": {"jsonPointer": "", "required": True}}, "routingKey.jsonPointer"),
        ({"routingKey": {"jsonPointer": "/a"}}, "routingKey"),
        ({"routingKey": {"jsonPointer": "/a", "required": 1}}, "routingKey.required"),
        ({"routingKey": {"json_pointer": "/a", "required": True}}, "routingKey"),
        ({"routingKey": "/a"}, "routingKey"),
    ],
)
def test_requests_that_are_wrong_whatever_the_stream(body: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_update(text(body))
    assert str(caught.value.detail["field"]).startswith(named)


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b'{"schema":' + b"[" * 100 + b"]" * 100 + b"}", b"\xff"])
def test_bodies_that_are_no_updates(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse_update(body)


def test_a_body_is_bounded() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_update(text({"schema": {"description": "x" * MAX_UPDATE_BYTES}}))
    assert caught.value.detail["max"] == MAX_UPDATE_BYTES


def test_a_version_has_a_boundary_at_the_next_entry() -> None:
    first = update(Registry(), {"schema": V1})
    second = update(first, {"schema": V2, "lens": lens()}, entries=7)
    assert [version.boundary for version in second.versions] == [0, 7]
    assert [second.promoter.version_of(entry) for entry in (0, 6, 7, 8)] == [1, 1, 2, 2]
    assert json.loads(registry_json(second, "s"))["lenses"] == {"1": lens()}


def test_a_stream_that_was_emptied_takes_its_first_schema_from_there_on() -> None:
    decided = decide_update(Registry(), parse_update(text({"schema": V1})), stream="s", empty=True, next_seq=9)
    assert decided.versions[0].boundary == 9
    assert decided.promoter.version_of(3) == 0
    assert decided.promoter.promote(3, b"any") == b"any"


def refused(error: type[TopicsError], registry: Registry, body: dict[str, Any], entries: int = 0) -> str:
    with pytest.raises(error) as caught:
        update(registry, body, entries=entries)
    assert type(caught.value) is error
    return caught.value.message


def test_update_is_refused_by_the_state_of_the_stream() -> None:
    first = update(Registry(), {"schema": V1})
    assert refused(InvalidRequestError, Registry(), {"schema": V1}, 1) == "first schema requires empty stream"
    assert "requires a lens" in refused(InvalidRequestError, first, {"schema": V2})
    refused(InvalidRequestError, first, {"schema": V2, "lens": lens(stream="other")})
    refused(StreamConflictError, first, {"schema": V2, "lens": lens(2, 3)})
    refused(StreamConflictError, first, {"schema": V2, "lens": lens(1, 3)})
    refused(StreamConflictError, Registry(), {"schema": V1, "lens": lens(1, 2)})
    refused(InvalidRequestError, Registry(), {"schema": V1, "lens": lens(0, 1)})
    for search in (SEARCH, None):
        message = refused(InvalidRequestError, Registry(), {"search": search})
        assert message == "search config requires an installed schema version"


def test_a_stream_of_another_content_type_has_no_registry() -> None:
    with pytest.raises(InvalidRequestError, match="application/json"):
        decide_update(Registry(), parse_update(text({"schema": V1})), stream="s", empty=True, next_seq=0, is_json=False)


def test_parts_are_kept_until_they_are_named() -> None:
    key = {"jsonPointer": "/id", "required": True}
    registry = update(Registry(), {"routingKey": key}, entries=3)
    assert (registry.current_version, registry.routing_key and registry.routing_key.json_pointer) == (0, "/id")
    registry = update(registry, {"schema": V1, "search": SEARCH})
    registry = update(registry, {"schema": V2, "lens": lens()})
    shown = json.loads(registry_json(registry, "s"))
    assert (shown["routingKey"], shown["search"]) == (key, SEARCH)
    registry = update(registry, {"routingKey": None})
    assert registry.routing_key is None
    assert registry.search is not None
    registry = update(registry, {"search": None})
    assert "search" not in json.loads(registry_json(registry, "s"))
    assert registry.current_version == 2


def test_a_refused_update_changes_nothing() -> None:
    first = update(Registry(), {"schema": V1})
    before = encode_registry(first)
    with pytest.raises(InvalidRequestError):
        update(first, {"schema": V1 | {"required": []}, "lens": lens(), "routingKey": None})
    assert encode_registry(first) == before


def test_all_versions_together_are_bounded() -> None:
    schema = {"type": "object", "description": "x" * 200_000}
    registry = update(Registry(), {"schema": schema | {"properties": {"a": {}}}})
    steps = [{"op": "add", "path": "/a", "schema": {}, "default": 1}]
    for version in range(1, 100):
        body = {"schema": schema | {"properties": {"a": {}}}, "lens": lens(version, version + 1, ops=steps)}
        try:
            registry = update(registry, body)
        except InvalidRequestError as error:
            assert error.detail["max"] == MAX_REGISTRY_BYTES
            break
    else:
        pytest.fail("no bound was met")
    assert MAX_REGISTRY_BYTES - 300_000 < registry.size <= MAX_REGISTRY_BYTES


def test_a_registry_comes_back_from_its_bytes() -> None:
    registry = update(
        Registry(), {"schema": V1, "search": SEARCH, "routingKey": {"jsonPointer": "/id", "required": False}}
    )
    registry = update(registry, {"schema": V2, "lens": lens()}, entries=2**40)
    for one in (registry, Registry()):
        again = decode_registry(memoryview(encode_registry(one)))
        assert again == one
        assert registry_json(again, "s") == registry_json(one, "s")


@pytest.mark.parametrize("raw", [b"", b"\x02\x90", b"\x01", b"\x01\xff"])
def test_bytes_that_are_no_registry(raw: bytes) -> None:
    with pytest.raises(ValueError):
        decode_registry(raw)


def test_further_fields_of_a_later_server_are_passed_over() -> None:
    assert decode_registry(b"\x01\x94\x90\xc0\xc0\xa3new") == Registry()
