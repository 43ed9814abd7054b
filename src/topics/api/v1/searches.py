"""`_search`, `_aggregate` and `_routing_keys`: handlers that parse, ask and render."""

from collections.abc import Callable
from typing import Any

import msgspec

from topics.api.calls import Call
from topics.api.errors import RequestTimeoutError
from topics.api.portions import Work, do_in_turns
from topics.api.v1.answers import NO_STORE, Header, answer, refuse
from topics.api.v1.deadlines import Deadlines, Pending
from topics.api.v1.hits import encode_body, is_large, showing, stream_hits
from topics.api.v1.many_search import ManySearch
from topics.api.v1.search_answers import aggregate_body, keys_body, search_body, search_headers
from topics.api.v1.search_requests import SearchRequest, parse_keys, parse_search_call, tenant_of
from topics.core.errors import InvalidRequestError, TopicsError
from topics.engine.topic import Topic
from topics.searching.known import known_aggregation
from topics.searching.messages import AggregateQuery, Query
from topics.streams.contracts import contract_of
from topics.streams.search.fetching import Fetched
from topics.streams.search.outcome import Outcome
from topics.streams.search.service import search_config_of
from topics.streams.service import Streams

SEARCH_TIMEOUT_MS = 3_000
"""What a query may take at most, and unless it says less."""

_encode = msgspec.json.Encoder().encode
Render = Callable[[Outcome], None]


class SearchRoutes:
    """The handlers; each is given the streams of the call's engine."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines

    def search(self, call: Call, streams: Streams) -> None:
        topic = streams.topic(call.topic)
        config = search_config_of(topic)
        asked = parse_search_call(call, topic, config, SEARCH_TIMEOUT_MS)
        streams.touch(topic)

        def render(outcome: Outcome, pending: Pending) -> None:
            streams.search.fetch(
                topic,
                outcome.result.hits.seqs,
                lambda fetched: self._tell(call, asked, outcome, fetched, pending),
            )

        self._query(call, streams, topic, asked.query, asked.timeout_ms, render)

    def search_many(self, call: Call, streams: Streams) -> None:
        ManySearch(call, streams, self._deadlines, SEARCH_TIMEOUT_MS).begin()

    def _tell(
        self,
        call: Call,
        asked: SearchRequest,
        outcome: Outcome,
        fetched: Fetched | TopicsError,
        pending: Pending,
    ) -> None:
        if not pending.met():
            return
        if isinstance(fetched, TopicsError):
            refuse(call, fetched)
            return
        work = self._show(call, asked, outcome, fetched)
        if is_large(fetched):
            do_in_turns(call, work, lambda error: refuse(call, error))
        else:
            # It is one portion, and takes one turn.
            for _ in work:
                pass

    @staticmethod
    def _show(call: Call, asked: SearchRequest, outcome: Outcome, fetched: Fetched) -> Work:
        shown = yield from showing(asked, outcome, fetched, stream_hits)
        body = search_body(asked, outcome, shown, call.spent_ms())
        headers: tuple[Header, ...] = (NO_STORE, *search_headers(body))
        answer(call, 408 if body["timed_out"] else 200, headers, encode_body(body, shown), "application/json")

    def aggregate(self, call: Call, streams: Streams) -> None:
        topic = streams.topic(call.topic)
        search_config_of(topic)
        ask = known_aggregation(call.exchange.body, contract_of(topic).registry)
        streams.touch(topic)

        def render(outcome: Outcome, pending: Pending) -> None:
            if pending.met():
                answer(call, 200, (NO_STORE,), _encode(aggregate_body(topic, ask, outcome)), "application/json")

        self._query(call, streams, topic, AggregateQuery(call.exchange.body), SEARCH_TIMEOUT_MS, render)

    def routing_keys(self, call: Call, streams: Streams) -> None:
        topic = streams.topic(call.topic)
        if contract_of(topic).registry.routing_key is None:
            raise InvalidRequestError("the stream declares no routing key")
        query = parse_keys(call)
        streams.touch(topic)

        def render(outcome: Outcome, pending: Pending) -> None:
            if pending.met():
                body = keys_body(topic, outcome, call.spent_ms())
                answer(call, 200, (NO_STORE,), _encode(body), "application/json")

        self._query(call, streams, topic, query, SEARCH_TIMEOUT_MS, render)

    def _query(
        self,
        call: Call,
        streams: Streams,
        topic: Topic,
        query: Query,
        timeout_ms: int,
        render: Callable[[Outcome, Pending], Any],
    ) -> None:
        pending = Pending()

        def done(outcome: Outcome | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                if pending.met():
                    refuse(call, outcome)
            else:
                render(outcome, pending)

        streams.search.query(topic, query, timeout_ms / 1000, done, tenant_of(call))
        if pending.open:
            self._deadlines.begin(lambda: refuse(call, RequestTimeoutError()), pending)
