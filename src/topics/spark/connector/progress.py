"""Streaming lag: how far a streaming query is behind, from the progress that Spark reports after each micro-batch.

Spark has no place for metrics of a Python source. The offsets in `StreamingQueryProgress` have what is needed: where a
micro-batch ended, and the newest record at that time.
"""

import json
from typing import Any

import msgspec

from topics.spark.connector.options import from_checkpoint
from topics.spark.connector.origins import records_between

TOPICS_MAX = 100
"""Topics that are listed one by one: those that are furthest behind."""


class SourceLag(msgspec.Struct, frozen=True):
    """The lag of one source of a query."""

    records: int
    """Records after the end of the micro-batch. Deleted ones count."""
    seconds: float | None
    """`records` at the speed of the last micro-batch; 0 without lag, None where it read nothing."""
    topics: dict[str, int]
    """Records by topic, of at most `TOPICS_MAX` topics."""


def source_lags(progress: Any) -> list[SourceLag]:
    """The lag of each source of `format("topics")`.

    `progress` is `query.lastProgress`, or the `progress` of an event of a `StreamingQueryListener`.
    """
    found = json.loads(progress.json) if hasattr(progress, "json") else progress
    return [_lag(source) for source in found["sources"] if _is_ours(source)]


def _lag(source: dict[str, Any]) -> SourceLag:
    end, latest = (from_checkpoint(_offsets(source[name])) for name in ("endOffset", "latestOffset"))
    behind = {name: records_between(end, {name: to}) for name, to in latest.items()}
    records, rate = sum(behind.values()), source.get("processedRowsPerSecond") or 0.0
    furthest = sorted((name for name in behind if behind[name]), key=lambda name: -behind[name])[:TOPICS_MAX]
    seconds = 0.0 if not records else records / rate if rate else None
    return SourceLag(records, seconds, {name: behind[name] for name in furthest})


def _is_ours(source: dict[str, Any]) -> bool:
    offsets = [source.get(name) for name in ("endOffset", "latestOffset")]
    return all(isinstance(_offsets(one), dict) for one in offsets)


def _offsets(given: Any) -> Any:
    return json.loads(given) if isinstance(given, str) else given
