"""One request on its way through a handler: what it asks, who asks, and how it is answered.

A handler gets a `Call`, raises `TopicsError` to refuse, and replies exactly once, at once or later. The `performance`
block is put behind whatever JSON object a handler gives.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import parse_qsl

import msgspec

from topics.api.auth import Key, told_to
from topics.api.error_responses import error_headers, refusal_of
from topics.http.exchange import Exchange
from topics.model.errors import InvalidRequestError, TopicsError

if TYPE_CHECKING:
    from topics.api.live import Live
    from topics.engine.engine import Engine


_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def parse_query(text: str) -> dict[str, str]:
    """The parameters of a query; the first of several wins, as everywhere in the protocol."""
    if "%" in text or "+" in text:
        return dict(reversed(parse_qsl(text, keep_blank_values=True)))
    # Nothing to decode, which is nearly always so and five times as fast.
    pairs = [part.partition("=") for part in text.split("&") if part]
    return {name: value for name, _, value in reversed(pairs)}


def refuse(exchange: Exchange, error: TopicsError, now_s: float) -> None:
    """Answers with an error where nothing but the exchange is there."""
    status, body = refusal_of(error, exchange.head.path, (now_s - exchange.started) * 1000.0)
    exchange.respond(status, body, "application/json", error_headers(error))


class Waiting(Protocol):
    def end(self) -> None:
        """Answers now with what there is."""
        ...


class Call(msgspec.Struct, eq=False):
    exchange: Exchange
    engine: "Engine"
    key: Key
    topic: str
    """The name in the path, decoded; empty where the path has none."""
    seconds: Callable[[], float]
    waits: "set[Waiting]"
    """Requests that wait for something to happen; a stopping server ends them."""
    _live: "Live | None" = None
    scheme: str = "http"
    """The scheme of the server; a proxy in front of it may have another."""
    audited: Callable[[int], None] | None = None
    """Told the status of the answer, where calls are noted."""
    on_done: Callable[[], None] | None = None
    """Stops counting this request, answered or not."""
    _gone: Callable[[], None] | None = None
    _query: dict[str, str] | None = None

    @property
    def live(self) -> "Live":
        """Live delivery, for handlers that hold a connection open."""
        assert self._live is not None, "this server was made without live delivery"
        return self._live

    @property
    def query(self) -> dict[str, str]:
        if self._query is None:
            self._query = parse_query(self.exchange.head.query)
        return self._query

    def room(self, wanted: int) -> int:
        """How many bytes of what is wanted the answer may have."""
        return min(wanted, self.exchange.room(self.key.output_account))

    def flag(self, name: str, default: bool) -> bool:
        """A boolean of the query; anything that is none counts as not given."""
        if not self.exchange.head.query:
            return default
        return _BOOLEANS.get(self.query.get(name, "").lower(), default)

    def number(self, name: str, default: int, maximum: int) -> int:
        """A whole number of the query, cut to its maximum and at least 1."""
        text = self.query.get(name)
        if text is None or text == "":
            return default
        if not (text.isascii() and text.isdigit()):
            raise InvalidRequestError(f"query {name}: must be a whole number", field=name)
        return max(1, min(int(text[:20]), maximum))

    def reply(
        self, status: int, encoded: bytes, measured: bytes = b"", headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Answers with a JSON object; `measured` holds more fields of the performance block, each with its comma."""
        body = b'%b,"performance":{"server_total_ms":%.3f%b}}' % (encoded[:-1], self.spent_ms(), measured)
        self.finish(status, body, headers)

    def spent_ms(self) -> float:
        """How long the request has been here."""
        return (self.seconds() - self.exchange.started) * 1000.0

    def refuse(self, error: TopicsError) -> None:
        status, body = refusal_of(told_to(self.key, error), self.exchange.head.path, self.spent_ms())
        self.finish(status, body, error_headers(error))

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Calls back if the client goes away before it is answered."""
        self._gone = callback
        self.exchange.on_gone(self._lost)

    def forget_gone(self) -> None:
        """Cancel the notification about a client that disconnects."""
        self._gone = None
        self._let_go()

    def close_books_with(self, callback: Callable[[], None]) -> None:
        """Calls back once, when the request is answered or its client is gone."""
        self.on_done = callback
        self.exchange.on_gone(self._lost)

    def detach(self) -> Exchange:
        """The exchange, to become a stream or a WebSocket. It is a connection from now on and no longer a request, so
        it is no longer counted."""
        self._count_out()
        self._gone = None
        return self.exchange

    def _lost(self) -> None:
        self._count_out()
        if self._gone is not None:
            self._gone()

    def _count_out(self) -> None:
        if self.on_done is not None:
            self.on_done()
            self.on_done = None
            self._let_go()

    def _let_go(self) -> None:
        # The exchange and this hold each other for as long as it has something to call here.
        if self._gone is None and self.on_done is None:
            self.exchange.gone_callback = None

    def finish(
        self,
        status: int,
        body: bytes,
        headers: tuple[tuple[str, str], ...] = (),
        content_type: str = "application/json",
    ) -> None:
        if self.on_done is not None:
            self._count_out()
        if self._gone is not None:
            self.forget_gone()
        if self.audited is not None:
            self.audited(status)
        self.exchange.respond(status, body, content_type, headers)


# OpenAPI description of a route, made of the types that the server decodes and encodes.


class Parameter(NamedTuple):
    name: str
    schema: dict[str, object]
    text: str


class Operation(NamedTuple):
    """A route, described."""

    name: str
    summary: str
    answers: dict[int, type | str]
    """By status: the type of the JSON answer, or the content type of another one."""
    errors: tuple[str, ...] = ()
    """Codes of the refusals that belong to this route; those every route has are added."""
    body: type | None = None
    body_required: bool = False
    query: tuple[Parameter, ...] = ()
    any_name: bool = False
    """Whether the name in the path may be one that only streams can have."""
