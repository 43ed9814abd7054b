"""Streaming lag: how far a streaming query is behind, from the progress that Spark reports after each micro-batch.

Spark has no place for metrics of a Python source. The offsets in `StreamingQueryProgress` have what is needed: where a
micro-batch ended, and the newest record at that time.

With the option `consumer` the server shows the lag too: the query commits what it has processed as the cursor of a
named consumer. A query begins at its checkpoint and never at this cursor.
"""

import json
import logging
from bisect import bisect_right
from typing import Any

import msgspec

from topics.spark.connector.options import Offsets, ReadOptions, from_checkpoint
from topics.spark.connector.origins import records_between
from topics_client import Client, ClientError, ClientOptions, ConsumerNotFound, RetryPolicy, StateRefused

TOPICS_MAX = 100
"""Topics that are listed one by one: those that are furthest behind."""


class SourceLag(msgspec.Struct, frozen=True):
    """The lag of one source of a query."""

    records: int
    """Records after the end of the micro-batch. Deleted ones count."""
    seconds: float | None
    """The lag in seconds at the speed of the last micro-batch; 0 without lag, None if it read nothing."""
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


_COMMIT_S = 5.0
"""The time for which commits may delay a query while the server is unavailable."""
_COMMITS_MAX = 1000
"""The number of topics committed between two micro-batches; the others of a larger query follow later."""
_log = logging.getLogger(__name__)


class ConsumerCommits:
    """Commits the offsets of a query as a consumer's cursors. A commit that fails is logged and never fails the query:
    the next one makes up for it."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.consumer is not None
        self._name = options.consumer
        self._access = options.access
        self._committed: Offsets = {}
        self._last = ""

    def commit(self, offsets: Offsets) -> None:
        """Commits the offsets of topics that have moved."""
        moved = sorted(topic for topic, to in offsets.items() if self._committed.get(topic) != to)
        if not moved:
            return
        # Topics after the last one come first, so that each topic has its turn.
        place = bisect_right(moved, self._last)
        moved = [*moved[place:], *moved[:place]][:_COMMITS_MAX]
        url = self._access.http
        patience = ClientOptions(retry=RetryPolicy(deadline_s=_COMMIT_S))
        try:
            with Client(url, api_key=self._access.api_key, options=patience) as client:
                for topic in moved:
                    self._last, to = topic, offsets[topic]
                    try:
                        self._commit_one(client, topic, to["seq"], to["epoch"])
                        self._committed[topic] = to
                    except StateRefused as error:
                        # That topic was deleted or recreated; the others are not affected.
                        _log.info("consumer commit refused", extra={"topic": topic, "why": str(error)})
        except (ClientError, OSError) as error:
            _log.warning("consumer commit failed", extra={"consumer": self._name, "why": str(error)})

    def _commit_one(self, client: Client, topic: str, seq: int, epoch: int) -> None:
        if topic not in self._committed:
            client.put_consumer(topic, self._name, streams=True)
        try:
            client.commit_consumer(topic, self._name, seq, epoch=epoch or None, streams=True)
        except ConsumerNotFound:
            # It was deleted, alone or with its topic.
            client.put_consumer(topic, self._name, streams=True)
            client.commit_consumer(topic, self._name, seq, epoch=epoch or None, streams=True)
