"""Request batching: appends that arrive in one tick of the event loop are decoded, logged and answered together.

Requests of one connection may be in flight together (pipelining).

A request of a route with batching is offered to the engine undecoded (`Engine.append_requests`). At the end of the tick
all of them are decoded in one pass, share a block in the log (`engine.coalesce`), and are answered in one pass; a
single request is a batch of one. If one of them has more than a single record, all are handled one by one, in order, by
the route's handler, which applies every rule. The differences between protocols, decoding of bodies and rendering of
answers, are in a `BatchedProtocol`. `api.v0.websocket` does the same for publishes of a WebSocket.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from topics.api.auth import Key
from topics.engine.coalesce import DecodedAppends
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.http.exchange import BatchHandler, Exchange
from topics.http.messages import RequestHead
from topics.model.errors import TopicsError

BACKOFF_REQUESTS = 64
"""The number of requests that are not batched after one with several records."""

_log = logging.getLogger(__name__)


class BatchingBackoff:
    """Pauses batching for requests with one head after one of them had several records.

    A client that sends several records at a time usually continues to do so. Batching its requests would decode each
    twice, and its whole group would be handled one by one.
    """

    __slots__ = ("remaining",)

    def __init__(self) -> None:
        self.remaining = 0
        """The number of further requests that are handled one by one."""


class RequestMatch(Protocol):
    """The part of a request's route, topic and key that batching needs (`api.app.Match`)."""

    @property
    def topic(self) -> str: ...

    @property
    def key(self) -> Key: ...

    @property
    def backoff(self) -> BatchingBackoff: ...


class BatchedProtocol(Protocol):
    """Decodes and answers the requests of a route together."""

    body_bytes_max: int
    """Longer bodies are handled one by one."""
    streams: bool
    """Whether it is the streams protocol, which may use reserved names."""

    def fits(self, head: RequestHead) -> bool:
        """Returns whether requests with this head may be batched, because their handler would do nothing else for
        them."""
        ...

    def decode(self, exchanges: list[Exchange]) -> DecodedAppends | None:
        """Returns the decoded records if each body appends one record without further options, otherwise None."""
        ...

    def release(self, exchanges: list[Exchange]) -> None:
        """Called before requests are handled one by one, whether or not they were decoded."""
        ...

    def respond(self, exchanges: list[Exchange], result: AppendResult, engine: Engine) -> None:
        """Answers the requests of one block."""
        ...

    def refuse(self, exchange: Exchange, error: TopicsError) -> None: ...


class RequestBatcher:
    """Batches the requests of one route, and counts them for their keys. It is the engine's `AppendSource`."""

    def __init__(self, protocol: BatchedProtocol, inflight_max: int, handle: Callable[[Exchange], None]) -> None:
        """`inflight_max` limits the concurrent requests of one key; 0 means no limit.

        `handle` handles a single request.
        """
        self._protocol = protocol
        self._inflight_max = inflight_max
        self._handle = handle
        self._engine: Engine | None = None
        self.fits = protocol.fits
        self.decode = protocol.decode

    def for_head(self, engine: Engine, match: RequestMatch) -> BatchHandler:
        """Batches requests with one head, given with the length of each body: all or none."""
        protocol, topic, key, most = self._protocol, match.topic, match.key, self._inflight_max
        bytes_max, streams, backoff = protocol.body_bytes_max, protocol.streams, match.backoff
        append_requests, source = engine.append_requests, self
        self._engine = engine

        def batch(exchanges: Sequence[Exchange], nbytes: int) -> bool:
            if backoff.remaining:
                backoff.remaining -= 1
                return False
            return 0 < nbytes <= bytes_max and append_requests(topic, exchanges, source, streams)

        def batch_counted(exchanges: Sequence[Exchange], nbytes: int) -> bool:
            if key.inflight + len(exchanges) > most or not batch(exchanges, nbytes):
                return False
            key.inflight += len(exchanges)
            return True

        return batch_counted if most else batch

    def takes(self, exchange: Exchange, engine: Engine, match: RequestMatch) -> bool:
        """Batches a single request with an unknown head. Returns False if it must be handled separately."""
        backoff, nbytes, most = match.backoff, len(exchange.body), self._inflight_max
        if backoff.remaining:
            backoff.remaining -= 1
            return False
        protocol, key = self._protocol, match.key
        if not 0 < nbytes <= protocol.body_bytes_max or (most and key.inflight >= most):
            return False
        self._engine = engine
        if not engine.append_requests(match.topic, (exchange,), self, protocol.streams):
            return False
        if most:
            key.inflight += 1
        return True

    def handle_each(self, exchanges: list[Exchange]) -> None:
        self._protocol.release(exchanges)
        self._count_out(exchanges)
        for exchange in exchanges:
            try:
                self._handle(exchange)
            except Exception:
                # A failure must not block the answers of the others.
                _log.exception("request failed", extra={"path": exchange.head.path})
                if not exchange.answered:
                    self._protocol.refuse(exchange, TopicsError("the server made a mistake; it is in its log"))

    def answer(self, exchanges: list[Exchange], outcome: AppendResult | TopicsError) -> None:
        if self._inflight_max:
            self._count_out(exchanges)
        if isinstance(outcome, AppendResult):
            assert self._engine is not None
            self._protocol.respond(exchanges, outcome, self._engine)
            return
        for exchange in exchanges:
            if not exchange.answered:
                self._protocol.refuse(exchange, outcome)

    def _count_out(self, exchanges: list[Exchange]) -> None:
        """Called when they are answered, or about to be counted again."""
        if self._inflight_max:
            for exchange in exchanges:
                _match_of(exchange).key.inflight -= 1


def back_off(exchange: Exchange) -> None:
    """Notes that a request had several records: the next ones with its head are not batched for a while."""
    _match_of(exchange).backoff.remaining = BACKOFF_REQUESTS


def _match_of(exchange: Exchange) -> RequestMatch:
    match: RequestMatch = exchange.head.context  # type: ignore[assignment]
    return match
