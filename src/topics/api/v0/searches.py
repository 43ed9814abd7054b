"""`POST /v0/topics/{topic}/search`: the search of /v1 for topics with a search description, in the words of /v0."""

from typing import Any

from topics.api.app import Route
from topics.api.auth import Scope
from topics.api.calls import Call
from topics.api.errors import RequestTimeoutError
from topics.api.openapi_operation import Operation, Parameter
from topics.api.portions import Work, do_in_turns
from topics.api.v1.deadlines import Pending
from topics.api.v1.hits import Shown, encode_body, is_large, showing, shown_seqs, topic_hits
from topics.api.v1.routes import StreamsApi
from topics.api.v1.search_answers import explain, statistics_of
from topics.api.v1.search_requests import SearchRequest, parse_search_call, tenant_of
from topics.api.v1.searches import SEARCH_TIMEOUT_MS
from topics.core.errors import TopicsError
from topics.core.limits import MAX_U64
from topics.streams.search.fetching import Fetched
from topics.streams.search.outcome import Outcome
from topics.streams.search.service import search_config_of
from topics.wire.searching import TopicSearchAnswer, TopicSearchBody


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
                    query=(Parameter("streams", streams, "Streams too whose names topics cannot have."),),
                    any_name=True,
                ),
            ),
        )  # fmt: skip

    def search(self, call: Call) -> None:
        core = call.engine.core
        topic = core.readable(call.topic) if call.flag("streams", False) else core.existing(call.topic)
        asked = parse_search_call(call, topic, search_config_of(topic), SEARCH_TIMEOUT_MS, _seq)
        search = self._streams.streams(call.engine).search
        call.engine.consumed(topic)
        pending = Pending()

        def done(outcome: Outcome | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                told(outcome)
                return
            search.fetch(
                topic,
                outcome.result.hits.seqs,
                lambda found: told(found) if isinstance(found, TopicsError) else show(outcome, found),
            )

        def told(error: TopicsError) -> None:
            if pending.met():
                call.refuse(error)

        def show(outcome: Outcome, fetched: Fetched) -> None:
            if not pending.met():
                return
            work = _show(call, asked, outcome, fetched)
            if is_large(fetched):
                do_in_turns(call, work, call.refuse)
            else:
                # It is one portion, and takes one turn.
                for _ in work:
                    pass

        search.query(topic, asked.query, asked.timeout_ms / 1000, done, tenant_of(call))
        if pending.open:
            self._streams.deadlines.begin(lambda: call.refuse(RequestTimeoutError()), pending)


def _seq(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_U64 else None


def _show(call: Call, asked: SearchRequest, outcome: Outcome, fetched: Fetched) -> Work:
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
