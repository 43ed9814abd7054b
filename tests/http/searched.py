"""A stream whose every answer is known: the result of a plain filter over the acknowledged entries."""

import json
from collections.abc import Callable
from typing import Any

import httpx

UNPRESSED = {"pressure_lag_ms": "60000", "pressure_commit_ms": "60000"}
"""Settings of a server that refuses nothing because of other load on the machine."""

_JSON = {"content-type": "application/json"}
_SEARCH: dict[str, Any] = {
    "primaryTimestampField": "time",
    "fields": {
        "time": {"kind": "date", "column": True, "sortable": True},
        "service": {"kind": "keyword", "exact": True, "prefix": True},
        "status": {"kind": "integer", "exact": True, "column": True},
        "message": {"kind": "text", "analyzer": "unicode_word_v1", "positions": True},
    },
}
for _name, _field in _SEARCH["fields"].items():
    _field["bindings"] = [{"version": 1, "jsonPointer": f"/{_name}"}]

_QUESTIONS: list[tuple[str, str, Callable[[dict[str, Any]], bool]]] = [
    ("service:s-3", "time:asc", lambda entry: entry["service"] == "s-3"),
    ("service:s-1*", "time:desc", lambda entry: entry["service"].startswith("s-1")),
    ("status:>=404 -service:s-2", "time:desc", lambda entry: entry["status"] >= 404 and entry["service"] != "s-2"),
    ('message:"card declined"', "time:asc", lambda entry: entry["message"] == "card declined"),
]


class Searched:
    """Entries have a member that no index holds, so that little of a stream fits into the server's memory."""

    def __init__(self, url: str, name: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=60)
        self.name, self.path = name, f"/v1/stream/{name}"
        self._entries: list[dict[str, Any]] = []

    def __enter__(self) -> "Searched":
        try:
            return self._described()
        except BaseException:
            self._http.close()
            raise

    def _described(self) -> "Searched":
        answer = self._http.put(self.path, headers=_JSON)
        assert answer.status_code == 201, answer.text
        document = {
            "schema": {"type": "object"},
            "routingKey": {"jsonPointer": "/service", "required": True},
            "search": _SEARCH,
        }
        answer = self._http.post(f"{self.path}/_schema", json=document)
        assert answer.status_code == 200, answer.text
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def append(self, count: int) -> None:
        """So many more entries, all of which must be acknowledged."""
        first = len(self._entries)
        more = [
            {
                "time": number * 1000,
                "service": f"s-{number % 13}",
                "status": (200, 404, 500)[number % 3],
                "message": "card declined" if number % 5 else f"declined card {number}",
                "more": "x" * 1000,
            }
            for number in range(first, first + count)
        ]
        for begin in range(0, count, 25):
            body = json.dumps(more[begin : begin + 25])
            assert self._http.post(self.path, content=body, headers=_JSON).status_code == 204
        self._entries += more

    def check(self) -> None:
        """A search finds exactly the hits of a plain filter."""
        for q, sort, is_meant in _QUESTIONS:
            answer = self._http.post(f"{self.path}/_search", json={"q": q, "sort": [sort], "size": 500})
            assert answer.status_code == 200, answer.text
            reported = answer.json()
            found = [hit["source"] for hit in reported["hits"]]
            meant = sorted(
                filter(is_meant, self._entries), key=lambda entry: entry["time"], reverse=sort == "time:desc"
            )
            assert reported["coverage"]["complete"]
            assert found == meant, q
        keys = self._http.get(f"{self.path}/_routing_keys?limit=500").json()["keys"]
        assert keys == sorted({entry["service"] for entry in self._entries})

    def indexed_segments(self) -> int:
        answer = self._http.post(f"{self.path}/_search", json={"q": "status:500", "sort": ["time:asc"]})
        return int(answer.json()["coverage"]["indexed_segments"])

    def status(self) -> dict[str, Any]:
        return dict(self._http.get(f"{self.path}/_index_status").json())

    def held_up(self) -> dict[str, Any]:
        return dict(self.status().get("held_up") or {})
