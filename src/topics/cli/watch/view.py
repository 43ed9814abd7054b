"""What the live screen shows, worked out of two looks at the metrics."""

from typing import Any, Literal

import msgspec

from topics.cli.shared.amounts import shown_bytes
from topics.cli.shared.metrics import by_topic, number

Sort = Literal["rate", "records", "bytes", "name"]

HEAD = ("TOPIC", "RECORDS", "BYTES", "RATE/S", "READY", "IN FLIGHT", "DELAYED", "DEAD")
_QUEUE = ("ready", "in_flight", "delayed", "dead_lettered")
_LEVELS = ("none", "coalescing", "wider commits", "deferring", "refusing")


class Look(msgspec.Struct, frozen=True):
    """The metrics at a moment."""

    at_s: float
    metrics: dict[str, Any]


class View(msgspec.Struct, frozen=True):
    """What there is to see: the server in pairs, and a row for each topic."""

    server: list[tuple[str, str]]
    head: tuple[str, ...]
    rows: list[tuple[str | int | float, ...]]
    is_truncated: bool


def look_at(metrics: dict[str, Any], at_s: float) -> Look:
    return Look(at_s, metrics)


def view_of(before: Look, now: Look, prefix: str, sort: Sort) -> View:
    """Rates are what changed between two looks; a server that was started anew counts from nothing."""
    metrics, span_s = now.metrics, max(now.at_s - before.at_s, 1e-9)

    def rate(name: str) -> float:
        return max(number(metrics, name) - number(before.metrics, name), 0.0) / span_s

    records, sizes = by_topic(metrics, "topics_topic_records_live"), by_topic(metrics, "topics_topic_bytes_live")
    heads, heads_before = by_topic(metrics, "topics_topic_head_seq"), by_topic(before.metrics, "topics_topic_head_seq")
    queues = [by_topic(metrics, f"topics_topic_queue_{name}") for name in _QUEUE]
    rows: list[tuple[str | int | float, ...]] = []
    for topic in records:
        if topic.startswith(prefix):
            grown = max(heads[topic] - heads_before.get(topic, 0.0), 0.0) / span_s
            jobs = tuple(int(counts[topic]) if topic in counts else "" for counts in queues)
            rows.append((topic, int(records[topic]), int(sizes[topic]), round(grown, 1), *jobs))
    if sort != "name":
        place = {"records": 1, "bytes": 2, "rate": 3}[sort]
        rows.sort(key=lambda row: (-float(row[place]), str(row[0])))
    return View(_server(metrics, rate), HEAD, rows, bool(number(metrics, "topics_topic_metrics_truncated")))


def _server(metrics: dict[str, Any], rate: Any) -> list[tuple[str, str]]:
    level = min(int(number(metrics, "topics_throttle_level")), len(_LEVELS) - 1)
    told = [
        ("topics", f"{number(metrics, 'topics_topics'):.0f}"),
        ("requests/s", f"{rate('topics_http_requests_total'):.0f}"),
        ("written/s", shown_bytes(rate("topics_wal_bytes_written_total"))),
        ("connections", f"{number(metrics, 'topics_http_connections'):.0f}"),
        ("pressure", f"{number(metrics, 'topics_pressure'):.0%} ({_LEVELS[level]})"),
        ("router lag", f"{number(metrics, 'topics_router_lag'):.0f}"),
        ("jobs held", f"{number(metrics, 'topics_queue_leases_in_flight'):.0f}"),
    ]
    for name, metric in (
        ("ROUTERS BLOCKED", "topics_routers_blocked"),
        ("READ ONLY SHARDS", "topics_wal_read_only"),
        ("SEALING FAILS", "topics_seal_failures"),
    ):
        if number(metrics, metric):
            told.append((name, f"{number(metrics, metric):.0f}"))
    return told
