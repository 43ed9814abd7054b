"""Data of the search benchmark: request logs from a seeded generator, their description, and ten kinds of
queries, each in the language of the server and of SQLite."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

_SEED = 16
_VOCABULARY = [f"w{number}" for number in range(5000)]
_WEIGHTS = [1 / (rank + 1) for rank in range(5000)]
_STATUSES = (200, 200, 200, 201, 404, 500, 503)
_REGIONS = ("us-east-1", "eu-west-1", "ap-southeast-1", "us-west-2")


def entries(count: int) -> Iterator[dict[str, Any]]:
    """Entries of about 200 bytes. The first words of the vocabulary are in most of them."""
    rng = random.Random(_SEED)
    now = 1_774_400_000_000
    for number in range(count):
        now += rng.randint(0, 20)
        moment = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds")[:23] + "Z"
        yield {
            "eventTime": moment,
            "service": f"svc-{rng.randrange(40)}",
            "status": rng.choice(_STATUSES),
            "duration": round(rng.expovariate(1 / 200), 2),
            "requestId": id_of(number),
            "region": rng.choice(_REGIONS),
            "message": " ".join(rng.choices(_VOCABULARY, _WEIGHTS, k=8)),
            "why": " ".join(rng.choices(_VOCABULARY, _WEIGHTS, k=5)) if number % 3 == 0 else None,
        }


def id_of(number: int) -> str:
    return f"req_{number * 2654435761 % 2**32:08x}"


def encoded(count: int) -> list[bytes]:
    return [msgspec.json.encode(entry) for entry in entries(count)]


def _field(kind: str, name: str, *flags: str) -> dict[str, Any]:
    more = {"analyzer": "unicode_word_v1"} if kind == "text" else {}
    return {
        "kind": kind,
        "bindings": [{"version": 1, "jsonPointer": f"/{name}"}],
        **dict.fromkeys(flags, True),
        **more,
    }


def described(
    fields: dict[str, tuple[str, ...]], key: str, time: str, defaults: tuple[str, ...], rollup: dict[str, Any]
) -> dict[str, Any]:
    """A search description of top-level fields: the kind and the capabilities of each."""
    return {
        "schema": {"type": "object"},
        "routingKey": {"jsonPointer": f"/{key}", "required": True},
        "search": {
            "primaryTimestampField": time,
            "defaultFields": [{"field": name} for name in defaults],
            "fields": {name: _field(kind, name, *flags) for name, (kind, *flags) in fields.items()},
            "rollups": {"load": rollup},
        },
    }


DESCRIPTION: dict[str, Any] = {
    "schema": {"type": "object"},
    "routingKey": {"jsonPointer": "/service", "required": True},
    "search": {
        "primaryTimestampField": "eventTime",
        "defaultFields": [{"field": "message", "boost": 2}, {"field": "why", "boost": 1.5}],
        "fields": {
            "eventTime": _field("date", "eventTime", "column", "sortable"),
            "service": _field("keyword", "service", "exact", "prefix", "sortable"),
            "status": _field("integer", "status", "exact", "column", "sortable"),
            "duration": _field("float", "duration", "column", "sortable", "aggregatable"),
            "requestId": _field("keyword", "requestId", "exact", "prefix"),
            "region": _field("keyword", "region", "exact"),
            "message": _field("text", "message", "positions"),
            "why": _field("text", "why", "positions"),
        },
        "rollups": {
            "load": {
                "dimensions": ["service"],
                "intervals": ["1m"],
                "measures": {
                    "requests": {"kind": "count"},
                    "latency": {"kind": "summary", "field": "duration", "histogram": "log2_v1"},
                },
            }
        },
    },
}


@dataclass(frozen=True)
class Kind:
    """A kind of query, in the query language of the server and of SQLite."""

    name: str
    body: dict[str, Any]
    sql: str
    is_paged: bool = False
    """Whether it is asked for its tenth page."""
    duckdb: str = ""
    """The query for DuckDB, where it differs."""
    tantivy: tuple[str, str | None, bool] | None = None
    """The query for tantivy: a query, the field that it is sorted by, and whether the order is ascending. None where it
    cannot."""


_FTS = (
    "SELECT body FROM logs JOIN words ON words.rowid = logs.rowid WHERE words MATCH '{}' "
    "ORDER BY logs.rowid DESC LIMIT 50"
)
_WHERE = "SELECT body FROM logs WHERE {} LIMIT 50"
_WORDS_IN = "SELECT body FROM logs WHERE {} ORDER BY rowid_ DESC LIMIT 50"


def _has_words(*words: str) -> str:
    return " AND ".join(f"regexp_matches(concat_ws(' ', message, why), '(^|\\W){word}(\\W|$)')" for word in words)


KINDS = (
    Kind(
        "exact", {"q": "service:svc-3"}, _WHERE.format("service = 'svc-3' ORDER BY rowid DESC"),
        tantivy=('service:"svc-3"', "at", False),
    ),
    Kind(
        "unique id", {"q": f"requestId:{id_of(77)}"}, _WHERE.format(f"request_id = '{id_of(77)}'"),
        tantivy=(f'requestId:"{id_of(77)}"', None, False),
    ),
    Kind(
        "prefix", {"q": "requestId:req_a*"}, _WHERE.format("request_id GLOB 'req_a*' ORDER BY rowid DESC"),
    ),
    Kind(
        "range, sorted", {"q": "status:>=500", "sort": ["eventTime:desc"]},
        _WHERE.format("status >= 500 ORDER BY event_time DESC"), tantivy=("status:>=500", "at", False),
    ),
    Kind(
        "boolean", {"q": "(service:svc-1 OR service:svc-2) status:>=500 -region:us-east-1"},
        _WHERE.format("service IN ('svc-1', 'svc-2') AND status >= 500 AND region <> 'us-east-1' ORDER BY rowid DESC"),
        tantivy=('(service:"svc-1" OR service:"svc-2") AND status:>=500 -region:"us-east-1"', "at", False),
    ),
    Kind(
        "word", {"q": "w5"}, _FTS.format("w5"), duckdb=_WORDS_IN.format(_has_words("w5")), tantivy=("w5", None, False),
    ),
    Kind(
        "two words", {"q": "w5 w7"}, _FTS.format("w5 w7"), duckdb=_WORDS_IN.format(_has_words("w5", "w7")),
        tantivy=("w5 AND w7", None, False),
    ),
    Kind(
        "phrase", {"q": '"w0 w1"'}, _FTS.format('"w0 w1"'), duckdb=_WORDS_IN.format(_has_words("w0 w1")),
        tantivy=('"w0 w1"', None, False),
    ),
    Kind(
        "has, not", {"q": "has:why -status:200"}, _WHERE.format("why IS NOT NULL AND status <> 200 ORDER BY rowid DESC")
    ),
    Kind(
        "page 10", {"q": "status:>=200", "sort": ["duration:asc"]},
        _WHERE.format("status >= 200 ORDER BY duration") + " OFFSET 450", is_paged=True,
        tantivy=("status:>=200", "duration", True),
    ),
)  # fmt: skip
