"""Handlers of `_search`, `_aggregate` and `_routing_keys`."""

from collections.abc import Callable, Iterator
from functools import cmp_to_key
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from topics.api.app import Call
from topics.api.chunked_response import run_task
from topics.api.error_responses import NotFoundError, RequestTimeoutError
from topics.api.v1.protocol import NO_STORE, Deadlines, Header, Pending, answer, refuse
from topics.api.v1.search_answers import (
    NamedHit,
    aggregate_body,
    encode_body,
    is_large,
    keys_body,
    named_hits,
    search_body,
    search_headers,
    showing,
    shown_after,
    shown_entries,
    stream_hits,
)
from topics.api.v1.search_requests import (
    ManyRequest,
    SearchBody,
    SearchRequest,
    bind_request,
    parse_keys,
    parse_many,
    parse_search_call,
    tenant_of,
)
from topics.engine.topic import Topic
from topics.model.errors import InvalidRequestError, TopicsError
from topics.schema.search_fields import SearchConfig
from topics.search.query.plan import known_aggregation, known_search
from topics.search.query.sort import OFFSET, SCORE, Key
from topics.search.service.query_execution import Outcome
from topics.search.service.search_service import ANSWER_BYTES, Fetched, search_config_of
from topics.search.worker.messages import AggregateQuery, Hit, Hits, Query
from topics.streams.stream_state import contract_of
from topics.streams.streams import Streams
from topics.streams.subscriptions.subscription import check_pattern, matcher
from topics.system.fair_scheduler import Task

# `POST /v1/_search`: one query over several streams, with their hits in one order.
#
# Each stream returns one page, a few streams at a time, and the first of all hits are the answer. The start of the next
# page is given for each stream.

MAX_PATTERNS = 16
MAX_STREAMS = 64
"""The maximum number of streams that a request searches."""
MAX_NAMES = 20_000
"""The maximum number of names compared with a pattern."""
_AT_ONCE = 4
_encode = msgspec.json.Encoder().encode


class Target(NamedTuple):
    """One of the streams, and its query."""

    topic: Topic
    asked: SearchRequest


class Found(NamedTuple):
    """A hit, and its stream."""

    target: Target
    hit: Hit


class ManySearch:
    def __init__(self, call: Call, streams: Streams, deadlines: Deadlines, timeout_ms: int) -> None:
        self._call = call
        self._streams = streams
        self._deadlines = deadlines
        self._timeout_ms = timeout_ms
        self._many, self._body = parse_many(call)
        self._skipped: list[dict[str, str]] = []
        self._targets, self._has_more = self._choose()
        self._waiting = list(reversed(self._targets))
        self._open = 0
        self._outcomes: dict[int, Outcome] = {}
        self._fetched: dict[int, Fetched] = {}
        self._pending = Pending()

    def begin(self) -> None:
        self._ask_next()
        if self._pending.open:
            self._deadlines.begin(lambda: refuse(self._call, RequestTimeoutError()), self._pending)

    # Selection of streams

    def _choose(self) -> tuple[list[Target], bool]:
        """Returns the streams to search, and whether more streams match."""
        targets: list[Target] = []
        for topic in self._fitting():
            state = self._many.search_after.get(topic.name, ())
            try:
                config = search_config_of(topic)
            except InvalidRequestError:
                # Streams without a search description are skipped silently.
                continue
            if len(targets) == MAX_STREAMS:
                return targets, True
            if state is None:
                continue
            try:
                targets.append(Target(topic, self._bind(topic, config, list(state) or None)))
            except InvalidRequestError as error:
                if error.detail.get("field") in ("search_after", "size", "timeout_ms"):
                    # An error in the request itself, the same for every stream.
                    raise
                self._skipped.append({"stream": topic.name, "reason": error.message})
        if not targets and self._skipped:
            raise InvalidRequestError(f"no stream can answer this: {self._skipped[0]['reason']}", field="q")
        if not targets and not self._many.search_after:
            raise NotFoundError("no stream that can be searched fits")
        return targets, False

    def _fitting(self) -> Iterator[Topic]:
        """Returns the streams that the key may use and whose names match a pattern."""
        many: ManyRequest = self._many
        patterns = [many.streams] if isinstance(many.streams, str) else many.streams
        if not 1 <= len(patterns) <= MAX_PATTERNS:
            raise InvalidRequestError(f"streams: from 1 to {MAX_PATTERNS} patterns", field="streams", max=MAX_PATTERNS)
        for pattern in patterns:
            check_pattern(pattern)
        fits = [matcher(pattern) for pattern in patterns]
        # All matches of a pattern begin with its text before the first wildcard.
        begin = patterns[0].partition("*")[0] if len(patterns) == 1 else ""
        seen = self._streams.topics(begin, "", 0, self._call.key.prefixes)
        # Listed topics may be paged out; a search needs them resident.
        load = self._streams.engine.load
        return (load(one.name) for one in islice(seen, MAX_NAMES) if any(test(one.name) for test in fits))

    def _bind(self, topic: Topic, config: SearchConfig, after: list[Any] | None) -> SearchRequest:
        body: SearchBody = msgspec.structs.replace(self._body, search_after=after)
        if not body.sort:
            # Offsets of different streams are not comparable; times are.
            by_score = [SCORE] if known_search(body.q or "", contract_of(topic).registry).has_text else []
            primary = config.primary_timestamp_field
            # A stream without a time is sorted by offset, and among other streams as if its times were null.
            by_time = [OFFSET] if primary is UNSET else [primary]
            body = msgspec.structs.replace(body, sort=[*by_score, *by_time])
        return bind_request(body, topic, config, self._timeout_ms)

    # Queries

    def _ask_next(self) -> None:
        while self._waiting and self._open < _AT_ONCE and self._pending.open:
            target = self._waiting.pop()
            self._open += 1
            left_ms = max(target.asked.timeout_ms - self._call.spent_ms(), 0)
            done = self._taker(target)
            try:
                # Searches that wait for their turn count as well.
                self._streams.search.query(
                    target.topic, target.asked.query, left_ms / 1000, done, tenant_of(self._call)
                )
            except TopicsError as error:
                done(error)
        if not self._waiting and not self._open:
            self._fetch(self._merged())

    def _taker(self, target: Target) -> Callable[[Outcome | TopicsError], None]:
        def taken(outcome: Outcome | TopicsError) -> None:
            self._open -= 1
            if isinstance(outcome, TopicsError):
                if self._pending.met():
                    refuse(self._call, outcome)
                return
            self._outcomes[target.topic.id] = outcome
            self._ask_next()

        return taken

    def _merged(self) -> list[Found]:
        found = [
            Found(target, hit)
            for target in self._targets
            if target.topic.id in self._outcomes
            for hit in self._outcomes[target.topic.id].result.hits
        ]
        found.sort(key=cmp_to_key(_compare))
        size = self._targets[0].asked.query.size if self._targets else 0
        return found[:size]

    def _fetch(self, page: list[Found]) -> None:
        """Reads the entries of the hits, stream by stream, in the order of their first hits."""
        left = list({found.target.topic.id: found.target for found in page}.values())
        left.reverse()
        self._fetch_next(page, left)

    def _fetch_next(self, page: list[Found], left: list[Target]) -> None:
        read = sum([len(raw) for fetched in self._fetched.values() for raw in fetched.entries.values()])
        if not left or read >= ANSWER_BYTES:
            self._answer(page)
            return
        target = left.pop()
        seqs = [found.hit.seq for found in page if found.target is target]

        def got(fetched: Fetched | TopicsError) -> None:
            if isinstance(fetched, TopicsError):
                if self._pending.met():
                    refuse(self._call, fetched)
                return
            self._fetched[target.topic.id] = fetched
            self._fetch_next(page, left)

        self._streams.search.fetch(target.topic, seqs, got)

    # Answers

    def _answer(self, page: list[Found]) -> None:
        if not self._pending.met():
            return
        kept = self._kept(page)
        goes_on = self._places(page, kept)
        outcomes = list(self._outcomes.values())
        complete = all(outcome.complete for outcome in outcomes) and not self._has_more
        timed_out = any(outcome.spent == "time" for outcome in outcomes)
        total = sum([outcome.result.matched for outcome in outcomes]) if self._body.track_total else len(kept)
        exact = complete and (self._body.track_total or goes_on is None)
        body = {
            "streams": [target.topic.name for target in self._targets],
            "skipped": self._skipped,
            "more_streams": self._has_more,
            "took_ms": int(self._call.spent_ms()),
            "timed_out": timed_out,
            "timeout_ms": self._targets[0].asked.timeout_ms if self._targets else self._timeout_ms,
            "coverage": {
                "complete": complete,
                "possible_missing_events_upper_bound": sum([outcome.missed for outcome in outcomes]),
                "entries": sum([outcome.result.looked_at for outcome in outcomes]),
            },
            "total": {"value": total, "relation": "eq" if exact else "gte"},
            "hits": self._show(kept),
            "next_search_after": goes_on,
        }
        answer(self._call, 408 if timed_out else 200, (NO_STORE,), _encode(body), "application/json")

    def _kept(self, page: list[Found]) -> list[Found]:
        """Returns the hits up to the first whose entry exceeds the answer."""
        reached = {target_id: iter(range(fetched.reached)) for target_id, fetched in self._fetched.items()}
        kept: list[Found] = []
        for found in page:
            if next(reached.get(found.target.topic.id, iter(())), None) is None:
                break
            kept.append(found)
        return kept

    def _show(self, kept: list[Found]) -> list[NamedHit]:
        """Returns the hits whose entries still exist, rendered together for each stream."""
        shown: dict[tuple[int, int], NamedHit] = {}
        for topic, asked in self._targets:
            entries = self._fetched[topic.id].entries if topic.id in self._fetched else {}
            seqs = {found.hit.seq for found in kept if found.target.topic is topic and found.hit.seq in entries}
            hits = self._outcomes[topic.id].result.hits.only(seqs) if seqs else Hits()
            made = named_hits(asked, hits, shown_entries(asked, [entries[seq] for seq in hits.seqs]))
            shown |= {(topic.id, seq): one for seq, one in zip(hits.seqs, made, strict=True)}
        keys = [(found.target.topic.id, found.hit.seq) for found in kept]
        return [shown[key] for key in keys if key in shown]

    def _places(self, page: list[Found], kept: list[Found]) -> dict[str, Any] | None:
        """Returns the start of the next page in each stream; None after the last page."""
        last = {found.target.topic.id: found.hit for found in kept}
        used: dict[int, int] = {}
        for found in kept:
            used[found.target.topic.id] = used.get(found.target.topic.id, 0) + 1
        places: dict[str, Any] = {name: place for name, place in self._many.search_after.items() if place is None}
        goes_on = False
        for topic, asked in self._targets:
            outcome = self._outcomes[topic.id]
            result = outcome.result
            if used.get(topic.id, 0) == len(result.hits) and not result.is_full:
                places[topic.name] = None
                continue
            goes_on = True
            if topic.id in last:
                places[topic.name] = shown_after(asked, outcome, last[topic.id].place)
            elif topic.name in self._many.search_after:
                places[topic.name] = self._many.search_after[topic.name]
        return places if goes_on and kept else None


def _compare(one: Found, other: Found) -> int:
    """Compares two hits: by their values, then by their streams, then by their offsets."""
    keys, others = one.target.asked.sort.keys, other.target.asked.sort.keys
    for key, other_key, left, right in zip(keys, others, one.hit.place, other.hit.place, strict=False):
        rank, other_rank = _rank(key, left), _rank(other_key, right)
        if rank != other_rank:
            ascending = (other_key if key.name == OFFSET else key).ascending
            return -1 if (rank < other_rank) is ascending else 1
    if one.target is not other.target:
        return -1 if one.target.topic.name < other.target.topic.name else 1
    # Hits of one stream are in order, and the sort is stable.
    return 0


def _rank(key: Key, value: Any) -> tuple[Any, ...]:
    """As within one stream, null is greatest; values of different kinds and offsets are not compared."""
    if key.name == OFFSET:
        return (2,)
    return (2,) if value is None else (1, value) if isinstance(value, str) else (0, value)


SEARCH_TIMEOUT_MS = 3_000
"""The maximum and the default timeout of a query."""

Render = Callable[[Outcome], None]


class SearchRoutes:
    """The handlers; each gets the streams of the call's engine."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines

    def search(self, call: Call, streams: Streams) -> None:
        topic = streams.topic(call.topic)
        config = search_config_of(topic)
        asked = parse_search_call(call, topic, config, SEARCH_TIMEOUT_MS)
        streams.renew_ttl(topic)

        def render(outcome: Outcome, pending: Pending) -> None:
            streams.search.fetch(
                topic,
                outcome.result.hits.seqs,
                lambda fetched: self._report(call, asked, outcome, fetched, pending),
            )

        self._query(call, streams, topic, asked.query, asked.timeout_ms, render)

    def search_many(self, call: Call, streams: Streams) -> None:
        ManySearch(call, streams, self._deadlines, SEARCH_TIMEOUT_MS).begin()

    def _report(
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
            run_task(call, work, lambda error: refuse(call, error))
        else:
            # It is one portion and needs one turn.
            for _ in work:
                pass

    @staticmethod
    def _show(call: Call, asked: SearchRequest, outcome: Outcome, fetched: Fetched) -> Task:
        shown = yield from showing(asked, outcome, fetched, stream_hits)
        body = search_body(asked, outcome, shown, call.spent_ms())
        headers: tuple[Header, ...] = (NO_STORE, *search_headers(body))
        answer(call, 408 if body["timed_out"] else 200, headers, encode_body(body, shown), "application/json")

    def aggregate(self, call: Call, streams: Streams) -> None:
        topic = streams.topic(call.topic)
        search_config_of(topic)
        ask = known_aggregation(call.exchange.body, contract_of(topic).registry)
        streams.renew_ttl(topic)

        def render(outcome: Outcome, pending: Pending) -> None:
            if pending.met():
                answer(call, 200, (NO_STORE,), _encode(aggregate_body(topic, ask, outcome)), "application/json")

        self._query(call, streams, topic, AggregateQuery(call.exchange.body), SEARCH_TIMEOUT_MS, render)

    def routing_keys(self, call: Call, streams: Streams) -> None:
        topic = streams.topic(call.topic)
        if contract_of(topic).registry.routing_key is None:
            raise InvalidRequestError("the stream declares no routing key")
        query = parse_keys(call)
        streams.renew_ttl(topic)

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
