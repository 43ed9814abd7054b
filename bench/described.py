"""Streams that promise something about their entries, for the HTTP benchmark: the same descriptions for every server
that knows them, which are ours and Prisma Streams.

| kind | what an append goes through |
|---|---|
| `schema` | a strict JSON Schema of ten members |
| `routing` | a routing key taken out of each entry |
| `evlog` | the profile that makes a canonical event of each entry |
| `lenses` | nothing; reads promote entries of version 1 through two lenses |
"""

import json
from typing import Any

from bench.protocols import PAYLOAD_BYTES, Streams, ask_http, payload, post

KINDS = ("schema", "routing", "evlog", "lenses")
_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_MEMBERS: dict[str, Any] = {
    "id": _NUMBER, "k": _TEXT, "at": _TEXT, "kind": {"enum": ["a", "b"]}, "user": _TEXT, "count": _NUMBER,
    "price": {"type": "number"}, "paid": {"type": "boolean"}, "tags": {"type": "array", "items": _TEXT},
    "place": {"type": "object"},
}  # fmt: skip
_TEN = {"type": "object", "additionalProperties": False, "required": list(_MEMBERS), "properties": _MEMBERS}
_ENTRY = {
    "id": 1, "at": "2026-03-01T10:00:00Z", "kind": "a", "user": "ada", "count": 3, "price": 9.5, "paid": True,
    "tags": ["x"], "place": {"city": "b"},
}  # fmt: skip
_EVENT = {
    "timestamp": "2026-03-01T10:00:00.000Z", "requestId": "r-1", "method": "GET", "path": "/checkout", "status": 200,
    "duration": 12.5, "service": "web",
}  # fmt: skip


class DescribedStreams(Streams):
    """Speaks to streams of one kind."""

    def __init__(self, kind: str) -> None:
        super().__init__("/v1/stream")
        self._kind = kind

    def make(self, address: str, place: str) -> None:
        super().make(address, place)
        path = self.target(place)
        if self._kind == "schema":
            self._schema(address, path, schema=_TEN)
        elif self._kind == "routing":
            self._schema(address, path, routingKey={"jsonPointer": "/k", "required": True})
        elif self._kind == "evlog":
            ask_http(address, "POST", f"{path}/_profile", json.dumps({"profile": {"kind": "evlog"}}))
        else:
            self._schema(address, path, schema=_only("k"))

    def evolve(self, address: str, place: str) -> None:
        """Two further versions: `k` becomes `key`, and that becomes `name`."""
        path = self.target(place)
        for version, before, after in ((1, "k", "key"), (2, "key", "name")):
            ops = [{"op": "rename", "from": f"/{before}", "to": f"/{after}"}]
            lens = {"apiVersion": "durable.lens/v1", "schema": place, "from": version, "to": version + 1, "ops": ops}
            self._schema(address, path, schema=_only(after), lens=lens)

    def append(self, place: str, records: int, nbytes: int = PAYLOAD_BYTES) -> str:
        one = _entry(self._kind, nbytes)
        # Always an array: Prisma Streams accepts only arrays.
        return post(self.target(place), "[" + ",".join([one] * records) + "]")

    @staticmethod
    def _schema(address: str, path: str, **update: object) -> None:
        ask_http(address, "POST", f"{path}/_schema", json.dumps(update))


def _only(member: str) -> dict[str, Any]:
    return {"type": "object", "required": [member], "properties": {member: _TEXT}}


def _entry(kind: str, nbytes: int) -> str:
    """An entry of so many bytes, with the one mark by which records are counted."""
    rest: dict[str, Any] = {"schema": _ENTRY, "evlog": _EVENT}.get(kind, {})
    if not rest:
        return payload(nbytes)
    member = "message" if kind == "evlog" else "k"
    text = json.dumps({**rest, member: "~"}, separators=(",", ":"))
    return text.replace("~", "x" * max(nbytes - len(text), 0) + "~")
