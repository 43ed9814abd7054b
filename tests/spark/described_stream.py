"""A stream with a schema that has a column of each kind, and its expected content in columns."""

import json
from typing import Any

import httpx

from tests.unit.streams.describing import lens, rename

_JSON = {"content-type": "application/json"}
_FIRST_AT = 1_772_359_200_500


def _row(n: int) -> list[Any]:
    return [n + 1, n, n / 4, n % 2 == 1, _FIRST_AT + 1000 * n, f'{{"more":[{n}]}}']


IN_COLUMNS = [_row(n) for n in range(52)]
"""The entries by the current version: _seq, id, total, paid, at, _rest."""

LATER = _row(52)
"""The entry that comes with the next version."""


def describe(url: str, stream: str) -> None:
    """Fifty entries of a version of a schema, and two of the next."""
    path = f"{url}/v1/stream/{stream}"
    httpx.put(path, headers=_JSON).raise_for_status()
    _install(url, stream, schema=_schema("number"))
    _append(url, stream, [_entry("number", n) for n in range(50)])
    _install(url, stream, schema=_schema("id"), lens=lens(stream, 1, rename("/number", "/id")))
    _append(url, stream, [_entry("id", n) for n in (50, 51)])


def change_the_schema(url: str, stream: str) -> None:
    """One more version, and the first entry of it."""
    text = {"type": "string"}
    added = lens(stream, 2, {"op": "add", "path": "/unit", "schema": text, "default": "piece"})
    _install(url, stream, schema=_schema("id", unit=text), lens=added)
    _append(url, stream, [{**_entry("id", 52), "unit": "box"}])


def _install(url: str, stream: str, **body: Any) -> None:
    httpx.post(f"{url}/v1/stream/{stream}/_schema", json=body).raise_for_status()


def _append(url: str, stream: str, entries: list[dict[str, Any]]) -> None:
    httpx.post(f"{url}/v1/stream/{stream}", content=json.dumps(entries), headers=_JSON).raise_for_status()


def _schema(number: str, **further: dict[str, Any]) -> dict[str, Any]:
    kinds = {"total": {"type": "number"}, "paid": {"type": "boolean"}, "at": {"type": "string", "format": "date-time"}}
    members = {number: {"type": "integer"}, **kinds, **further}
    return {"type": "object", "required": [number, *further], "properties": members}


def _entry(number: str, n: int) -> dict[str, Any]:
    return {number: n, "total": n / 4, "paid": n % 2 == 1, "at": f"2026-03-01T10:00:{n:02d}.5Z", "more": [n]}
