"""Conversations about schemas and profiles with a server of the same protocol, as they were recorded."""

import json
from pathlib import Path
from typing import Any

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    conversation["id"]: conversation["steps"]
    for conversation in json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))
}


def stream_in(step: dict[str, Any]) -> str:
    """The stream that a step is about."""
    name = str(step["path"]).partition("?")[0].removeprefix("/v1/stream/")
    for part in ("/_schema", "/_profile"):
        name = name.removesuffix(part)
    return name


def values_in(step: dict[str, Any]) -> list[Any]:
    """The entries that a step appends."""
    body = step["body"]
    return body if isinstance(body, list) else [body]


def text(document: object) -> bytes:
    return json.dumps(document).encode()
