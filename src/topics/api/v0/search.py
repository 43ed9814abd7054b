"""`POST /v0/topics/{topic}/search`: the search of /v1 for topics with a search description, with the terms of /v0."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from topics.api.app import Call, Operation, Parameter, Route
from topics.api.auth import Scope
from topics.api.chunked_response import run_task
from topics.api.error_responses import RequestTimeoutError
from topics.api.v1.protocol import Pending
from topics.api.v1.routes import StreamsApi
from topics.api.v1.search import SEARCH_TIMEOUT_MS
from topics.api.v1.search_answers import (
    Shown,
    encode_body,
    explain,
    is_large,
    showing,
    shown_seqs,
    statistics_of,
    topic_hits,
)
from topics.api.v1.search_requests import SearchRequest, parse_search_call, tenant_of
from topics.model.errors import TopicsError
from topics.model.limits import MAX_U64
from topics.search.service.query_execution import Outcome
from topics.search.service.search_service import Fetched, search_config_of
from topics.system.fair_scheduler import Task

# The messages of a search over /v0.


class TopicSearchBody(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "_source"}):
    """The query, its order and its page size."""

    q: str | None = None
    size: int | None = None
    sort: list[str] | str | None = None
    search_after: list[Any] | None = None
    timeout_ms: int | None = None
    track_total: bool = False
    explain: bool = False
    source: bool = True
    fields: list[str] | None = None
    highlight: bool | list[str] = False
    rank: Literal["bm25"] | None = None
    """The ranking; without it, scores are those of the clauses."""


class TopicHit(msgspec.Struct, frozen=True, kw_only=True):
    seq: int = msgspec.field(name="$seq")
    score: float
    sort: list[Any]
    fields: dict[str, Any]
    highlights: dict[str, Any] | UnsetType = UNSET
    """For each text field, the positions of the query's words."""
    data: Any | UnsetType = UNSET
    """The record in the current version of its schema."""


class TopicTotal(msgspec.Struct, frozen=True, kw_only=True):
    value: int
    relation: str
    """`eq`, or `gte` if there may be more."""


class TopicCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """The records that a search covered."""

    complete: bool
    missing_at_most: int
    first_missing_seq: int | None
    spent: str | None
    """The exhausted budget: `time`, `bytes` or `memory`."""
    entries: int
    """The number of examined records."""
    scanned_bytes: int


class TopicSearchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    hits: list[TopicHit]
    total: TopicTotal
    next_search_after: list[Any] | None
    head_seq: int
    timed_out: bool
    coverage: TopicCoverage
    explain: dict[str, Any] | UnsetType = UNSET


class TopicSearches:
    def __init__(self, streams: StreamsApi) -> None:
        self._streams = streams

    def routes(self) -> tuple[Route, ...]:
        streams: dict[str, object] = {"type": "boolean"}
        return (
            Route(
                "POST", "/v0/topics/{topic}/search", self.search, Scope.READ, takes_body=True,
                operation=Operation(
                    "searchTopic", "Records that match a query, the first ones of an order.", {200: TopicSearchAnswer},
                    ("topic_not_found", "request_timeout", "search_unavailable", "corrupt_segment",
                     "cold_store_unavailable"),
                    TopicSearchBody,
                    query=(Parameter("streams", streams,
                        "Include streams whose names topics cannot have. Default: false."),),
                    any_name=True,
                ),
            ),
        )  # fmt: skip

    def search(self, call: Call) -> None:
        engine = call.engine
        topic = engine.readable(call.topic) if call.flag("streams", False) else engine.existing(call.topic)
        asked = parse_search_call(call, topic, search_config_of(topic), SEARCH_TIMEOUT_MS, _seq)
        search = self._streams.streams.search
        call.engine.consumed(topic)
        pending = Pending()

        def done(outcome: Outcome | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                reported(outcome)
                return
            search.fetch(
                topic,
                outcome.result.hits.seqs,
                lambda found: reported(found) if isinstance(found, TopicsError) else show(outcome, found),
            )

        def reported(error: TopicsError) -> None:
            if pending.met():
                call.refuse(error)

        def show(outcome: Outcome, fetched: Fetched) -> None:
            if not pending.met():
                return
            work = _show(call, asked, outcome, fetched)
            if is_large(fetched):
                run_task(call, work, call.refuse)
            else:
                # It is one portion and needs one turn.
                for _ in work:
                    pass

        search.query(topic, asked.query, asked.timeout_ms / 1000, done, tenant_of(call))
        if pending.open:
            self._streams.deadlines.begin(lambda: call.refuse(RequestTimeoutError()), pending)


def _seq(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_U64 else None


def _show(call: Call, asked: SearchRequest, outcome: Outcome, fetched: Fetched) -> Task:
    shown = yield from showing(asked, outcome, fetched, topic_hits)
    call.reply(200, encode_body(_answer(asked, outcome, shown), shown))


def _answer(asked: SearchRequest, outcome: Outcome, shown: Shown) -> dict[str, Any]:
    statistics, place = statistics_of(asked, outcome), shown.next_place
    ranked = [statistics] if statistics else []
    explained = {"explain": explain(asked, outcome, lambda seq: seq, "seq")} if asked.explain else {}
    return {
        "topic": asked.topic.name,
        "hits": (),
        "total": shown.total,
        "next_search_after": None if place is None else [*shown_seqs(place), *ranked],
        "head_seq": outcome.head,
        "timed_out": outcome.spent == "time",
        "coverage": {
            "complete": outcome.complete,
            "missing_at_most": outcome.missed,
            "first_missing_seq": outcome.first_missed,
            "spent": outcome.spent,
            "entries": outcome.result.looked_at,
            "scanned_bytes": outcome.scanned_bytes,
        },
        **explained,
    }
