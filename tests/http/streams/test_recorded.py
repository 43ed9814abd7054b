"""Conversations with another server of the same protocol, held again with ours.

Statuses, the codes of errors and the named fields hold for us. Wording, times, sizes and the spelling of offsets are
each server's own, and so is what a profile installs to be searched.
"""

import json
from typing import Any

import httpx
import pytest

from tests.unit.schema.recordings import CONVERSATIONS, stream_in, text

SERVED = ("", "_schema", "_profile", "pk")
"""What of a stream is served; a step that asks for something else is left out."""
PLAYED = [
    name
    for name, steps in CONVERSATIONS.items()
    if name.startswith(("schema-", "rk-", "profile-", "evlog-", "state-", "metrics-")) and steps
]
SCHEMA_FIELDS = ("apiVersion", "schema", "currentVersion", "boundaries", "schemas", "lenses", "routingKey")


def resource_of(path: str) -> str:
    parts = path.partition("?")[0].split("/")
    if "pk" in parts or "touch" in parts:
        return "pk" if "pk" in parts else "touch"
    return parts[-1] if parts[-1].startswith("_") else ""


@pytest.mark.parametrize("conversation", PLAYED)
def test_a_recorded_conversation(http: httpx.Client, conversation: str) -> None:
    played = 0
    for step in CONVERSATIONS[conversation]:
        if step["path"].startswith("/v1/stream/") and resource_of(step["path"]) not in SERVED:
            continue
        headers = dict(step.get("headers", {}))
        content = text(step["body"]) if "body" in step else b""
        response = http.request(step["method"], step["path"], headers=headers, content=content)
        assert response.status_code == step["status"], (step, response.text)
        _check(step, response)
        played += 1
    assert played > 1


def _check(step: dict[str, Any], response: httpx.Response) -> None:
    recorded = step.get("answer")
    if recorded is None:
        return
    found = response.json()
    if response.is_error:
        assert found["error"]["code"] == recorded["error"]["code"]
        assert found["error"]["message"]
    elif step["path"].endswith("/_schema"):
        profiled = recorded.get("search", {}).get("profile") is not None
        fields = ("apiVersion", "schema", "currentVersion", "boundaries") if profiled else SCHEMA_FIELDS
        assert {name: found.get(name) for name in fields} == {name: recorded.get(name) for name in fields}
        assert ("search" in found) == ("search" in recorded)
        assert response.headers["cache-control"] == "no-store"
    elif step["path"].startswith("/v1/streams"):
        ours = {entry["name"]: entry["profile"] for entry in found}
        stream = stream_in({"path": "/v1/stream/c-pg"})
        assert ours[stream] == "generic"
    else:
        assert found == recorded, json.dumps(found)
