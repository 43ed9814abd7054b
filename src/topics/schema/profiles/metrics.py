"""The profile `metrics`: intervals of metrics, each a summary of the values measured in a time window."""

from typing import Any, Final

from topics.schema.documents import RoutingKey
from topics.schema.profiles.profile import Canonical, Profile, column, integer_of, keyword, number_of, refusal, text_of

API_VERSION: Final = "durable.streams/metrics/v1"
_SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Metrics(Profile, frozen=True, kw_only=True, tag="metrics"):
    def canonical(self) -> Canonical:
        return Canonical(SCHEMA, SEARCH, RoutingKey("/seriesKey", True))

    def key_of(self, value: Any) -> str | None:
        key: str = value["seriesKey"]
        return key

    def normalise(self, index: int, value: Any, now_ms: int) -> Any:
        if not isinstance(value, dict):
            raise refusal(index, "metrics", "an entry must be a JSON object")
        metric, unit = (_required(index, name, text_of(value.get(name))) for name in ("metric", "unit"))
        start, end = (_required(index, name, integer_of(value.get(name))) for name in ("windowStart", "windowEnd"))
        summary = value.get("summary")
        parts = summary if isinstance(summary, dict) else {}
        count, total = (_required(index, name, _part(value, parts, name)) for name in ("count", "sum"))
        if end < start:
            raise refusal(index, "metrics", "windowEnd must not be before windowStart", "windowEnd")
        if count < 0:
            raise refusal(index, "metrics", "count must not be negative", "count")
        if value.get("kind", "interval") != "interval":
            raise refusal(index, "metrics", "kind must be interval", "kind")
        kind = text_of(value.get("metricKind")) or "summary"
        temporality = text_of(value.get("temporality")) or "delta"
        instance, stream = text_of(value.get("instance")), text_of(value.get("stream"))
        tags = _tags(value.get("tags"), value.get("attributes"))
        pairs = [f"{name}={tag}" for name, tag in tags.items()]
        key = "\0".join(pairs) or None
        buckets = _buckets(value.get("buckets")) or _buckets(parts.get("histogram"))
        least, most = _part(value, parts, "min"), _part(value, parts, "max")
        interval = number_of(value.get("intervalMs"))
        average = number_of(value.get("avg"))
        return {
            "apiVersion": API_VERSION,
            "kind": "interval",
            "metric": metric,
            "unit": unit,
            "metricKind": kind,
            "temporality": temporality,
            "windowStart": start,
            "windowEnd": end,
            "intervalMs": end - start if interval is None else interval,
            "instance": instance,
            "stream": stream,
            "tags": tags,
            "attributes": dict(tags),
            "dimensionPairs": pairs,
            "dimensionKey": key,
            "seriesKey": "|".join((kind, temporality, metric, unit, stream or "", instance or "", key or "")),
            "count": count,
            "sum": total,
            "min": least,
            "max": most,
            "avg": (total / count if count else 0) if average is None else average,
            **{name: _percentile(value.get(name), buckets, share) for name, share in _SHARES.items()},
            "buckets": buckets,
            "summary": {"count": count, "sum": total, "min": least, "max": most, "histogram": dict(buckets)},
        }


def _required(index: int, name: str, value: Any) -> Any:
    if value is None:
        raise refusal(index, "metrics", f"{name} is missing, or not what it should be", name)
    return value


def _part(value: dict[str, Any], summary: dict[str, Any], name: str) -> int | float | None:
    """Returns a number of an interval, which may also be in its `summary`."""
    number = number_of(value.get(name))
    return number_of(summary.get(name)) if number is None else number


def _tags(*given: Any) -> dict[str, str]:
    """Returns the tags by name. Numbers and booleans become texts; other values are omitted."""
    found: dict[str, str] = {}
    for tags in given:
        if isinstance(tags, dict):
            for name, tag in tags.items():
                if isinstance(tag, bool):
                    found[name] = "true" if tag else "false"
                elif isinstance(tag, str | int | float):
                    found[name] = str(int(tag)) if isinstance(tag, float) and tag.is_integer() else str(tag)
    return dict(sorted(found.items()))


def _buckets(given: Any) -> dict[str, int | float]:
    """Returns the number of values of each bucket, by its lower bound, ascending."""
    if not isinstance(given, dict):
        return {}
    counts = [
        (bound, name, count)
        for name, count in given.items()
        if (bound := number_of(name)) is not None
        and isinstance(count, int | float)
        and not isinstance(count, bool)
        and count >= 0
    ]
    return {name: count for _, name, count in sorted(counts)}


def _percentile(given: Any, buckets: dict[str, int | float], share: float) -> int | float:
    """Returns the given percentile, otherwise the lower bound of the bucket that reaches the share, otherwise 0."""
    number = number_of(given)
    if number is not None:
        return number
    requested, seen = share * sum(buckets.values()), 0.0
    for name, count in buckets.items():
        seen += count
        if count and seen >= requested:
            return number_of(name) or 0
    return 0


_TEXT: Final = {"type": "string"}
_OPTIONAL_TEXT: Final = {"type": ["string", "null"]}
_NUMBER: Final = {"type": "number"}
_OPTIONAL_NUMBER: Final = {"type": ["number", "null"]}
_TAGS: Final = {"type": "object", "additionalProperties": _TEXT}
_COUNTS: Final = {"type": "object", "additionalProperties": _NUMBER}
_AMOUNT: Final = {"type": "number", "minimum": 0}


def _strict(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": list(properties)}


_SUMMARY: Final[dict[str, Any]] = {"count": _AMOUNT, "sum": _NUMBER, "min": _OPTIONAL_NUMBER, "max": _OPTIONAL_NUMBER}
SCHEMA: Final[dict[str, Any]] = _strict(
    {
        "apiVersion": {"const": API_VERSION},
        "kind": {"const": "interval"},
        "metric": _TEXT,
        "unit": _TEXT,
        "metricKind": _TEXT,
        "temporality": _TEXT,
        "windowStart": {"type": "integer"},
        "windowEnd": {"type": "integer"},
        "intervalMs": _NUMBER,
        "instance": _OPTIONAL_TEXT,
        "stream": _OPTIONAL_TEXT,
        "tags": _TAGS,
        "attributes": _TAGS,
        "dimensionPairs": {"type": "array", "items": _TEXT},
        "dimensionKey": _OPTIONAL_TEXT,
        "seriesKey": _TEXT,
        **_SUMMARY,
        **dict.fromkeys(("avg", "p50", "p95", "p99"), _NUMBER),
        "buckets": _COUNTS,
        "summary": _strict({**_SUMMARY, "histogram": _COUNTS}),
    }
)

_LOWERED: Final = ("metric", "unit", "metricKind", "temporality", "stream")
_KEYWORDS: Final = ("instance", "seriesKey", "dimensionKey", "dimensionPairs")
SEARCH: Final[dict[str, Any]] = {
    "profile": "metrics",
    "primaryTimestampField": "windowStart",
    "aliases": {
        "dims": "dimensionKey",
        "name": "metric",
        "series": "seriesKey",
        "time": "windowStart",
        "ts": "windowStart",
    },
    "defaultFields": [
        {"field": "metric", "boost": 2},
        {"field": "stream", "boost": 1.25},
        {"field": "dimensionPairs", "boost": 1},
    ],
    "fields": {
        **{name: keyword(f"/{name}", normalizer="lowercase_v1", aggregatable=True) for name in _LOWERED},
        **{name: keyword(f"/{name}", aggregatable=True) for name in _KEYWORDS},
        "windowStart": column("date", "/windowStart"),
        "windowEnd": column("date", "/windowEnd"),
        "intervalMs": column("integer", "/intervalMs"),
        **{name: column("float", f"/{name}") for name in ("count", "sum", "min", "max", "avg", "p50", "p95", "p99")},
    },
    "rollups": {
        "metrics": {
            "dimensions": ["metric", "unit", "stream", "instance", "dimensionKey", "metricKind", "temporality"],
            "intervals": ["10s", "1m", "5m", "1h"],
            "measures": {
                "value": {
                    "kind": "summary_parts",
                    "countJsonPointer": "/summary/count",
                    "sumJsonPointer": "/summary/sum",
                    "minJsonPointer": "/summary/min",
                    "maxJsonPointer": "/summary/max",
                    "histogramJsonPointer": "/summary/histogram",
                }
            },
        }
    },
}
