"""Helpers for tests of schemas of streams."""

import json
from typing import Any

from tests.unit.engine.writing_world import reported
from topics.model.errors import TopicsError
from topics.schema.contract import Contract
from topics.streams.stream_state import contract_of
from topics.streams.streams import Streams

JSON = "application/json"
NUMBERED = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
RENAMED = {"type": "object", "required": ["number"], "properties": {"number": {"type": "integer"}}}


def lens(stream: str, version: int, *ops: dict[str, Any]) -> dict[str, Any]:
    """A lens from a version to the next one."""
    return {"apiVersion": "durable.lens/v1", "schema": stream, "from": version, "to": version + 1, "ops": list(ops)}


def rename(source: str, to: str) -> dict[str, Any]:
    return {"op": "rename", "from": source, "to": to}


def update(streams: Streams, name: str, **parts: Any) -> Contract:
    """Changes the registry of a stream."""
    (answer,) = reported(lambda done: streams.update_schema(name, json.dumps(parts).encode(), done))
    if isinstance(answer, TopicsError):
        raise answer
    assert isinstance(answer, Contract)
    return answer


def profile(streams: Streams, name: str, kind: str, **settings: Any) -> Contract:
    """Gives a stream a profile."""
    body = json.dumps({"profile": {"kind": kind, **settings}}).encode()
    (answer,) = reported(lambda done: streams.update_profile(name, body, done))
    if isinstance(answer, TopicsError):
        raise answer
    assert isinstance(answer, Contract)
    return answer


def evolve(streams: Streams, name: str) -> Contract:
    """From `NUMBERED` to `RENAMED`."""
    return update(streams, name, schema=RENAMED, lens=lens(name, 1, rename("/id", "/number")))


def boundaries(streams: Streams, name: str) -> list[int]:
    topic = streams.engine.core.directory.load(name)
    return [version.boundary for version in contract_of(topic).registry.versions]
