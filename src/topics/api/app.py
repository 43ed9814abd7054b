"""The application behind the HTTP server: finds the route, authenticates the client, and formats every refusal.

One request in a handler: its parameters, its key, and its reply.

A handler gets a `Call`, raises `TopicsError` to refuse, and replies exactly once, immediately or later. The
`performance` block is appended to the handler's JSON object.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from topics.api.auth import ANYONE, Key, KeyRing, Scope, error_for
from topics.api.cors import BrowserRules, is_preflight, preflight
from topics.api.error_responses import (
    MethodNotAllowedError,
    NotFoundError,
    UnsupportedMediaTypeError,
    error_headers,
    fault_of,
    refusal_of,
)
from topics.api.request_batching import BatchedProtocol, BatchingBackoff, RequestBatcher
from topics.api.request_logs import Audit, RouteCounters
from topics.api.standby import StandbyRules, redirection
from topics.api.tracing import Tracing
from topics.engine.engine import Engine
from topics.http.exchange import BatchHandler, Exchange, OneRequest
from topics.http.messages import Fault, HttpError, Refusal, RequestHead
from topics.model.errors import (
    InvalidRequestError,
    NotPrimaryError,
    NotReadyError,
    ShuttingDownError,
    ThrottledError,
    TopicsError,
    quoted,
)
from topics.model.limits import MIB
from topics.system.clock import Clock

if TYPE_CHECKING:
    from topics.api.live import Live
    from topics.engine.engine import Engine

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def parse_query(text: str) -> dict[str, str]:
    """The parameters of a query; the first of several wins, as everywhere in the protocol."""
    if "%" in text or "+" in text:
        return dict(reversed(parse_qsl(text, keep_blank_values=True)))
    # Nothing to decode: the usual case, five times as fast.
    pairs = [part.partition("=") for part in text.split("&") if part]
    return {name: value for name, _, value in reversed(pairs)}


def refuse(exchange: Exchange, error: TopicsError, now_s: float) -> None:
    """Answers an exchange without a call with an error."""
    status, body = refusal_of(error, exchange.head.path, (now_s - exchange.started) * 1000.0)
    exchange.respond(status, body, "application/json", error_headers(error))


class Waiting(Protocol):
    def end(self) -> None:
        """Answers immediately with the current result."""
        ...


class Call(msgspec.Struct, eq=False):
    exchange: Exchange
    engine: "Engine"
    key: Key
    topic: str
    """The name in the path, decoded; empty if the path has none."""
    seconds: Callable[[], float]
    waits: "set[Waiting]"
    """A request that waits for an event; a stopping server ends it."""
    _live: "Live | None" = None
    scheme: str = "http"
    """The scheme of the server; a proxy in front of it may have another."""
    browsers: BrowserRules | None = None
    """The names of the server, if any are configured."""
    audited: Callable[[int, bool], None] | None = None
    """Called with the status of the answer, if calls are audited."""
    overrides: bool = False
    """Whether the call discards shared state, such as a consumer's cursor, so that the audit log records it."""
    on_done: Callable[[], None] | None = None
    """Stops counting this request, answered or not."""
    _on_disconnect: Callable[[], None] | None = None
    _query: dict[str, str] | None = None

    @property
    def live(self) -> "Live":
        """Live delivery, for handlers that keep a connection open."""
        assert self._live is not None, "this server was made without live delivery"
        return self._live

    @property
    def query(self) -> dict[str, str]:
        if self._query is None:
            self._query = parse_query(self.exchange.head.query)
        return self._query

    @property
    def part(self) -> str:
        """The second name in the path, decoded: the name of a part of the topic."""
        name = self.exchange.head.path.split("/")[_PART_PLACE]
        try:
            return str(unquote_to_bytes(name), "utf-8")
        except UnicodeDecodeError as error:
            raise NotFoundError(f"there is nothing at {quoted(self.exchange.head.path)}") from error

    def room(self, requested: int) -> int:
        """The maximum size of the answer in bytes, given the requested one."""
        return min(requested, self.exchange.room(self.key.output_account))

    def flag(self, name: str, default: bool) -> bool:
        """Returns a boolean of the query; other values count as missing."""
        if not self.exchange.head.query:
            return default
        return _BOOLEANS.get(self.query.get(name, "").lower(), default)

    def number(self, name: str, default: int, maximum: int) -> int:
        """Returns an integer of the query, clamped to 1 and its maximum."""
        text = self.query.get(name)
        if text is None or text == "":
            return default
        if not (text.isascii() and text.isdigit()):
            raise InvalidRequestError(f"query {name}: must be a whole number", field=name)
        return max(1, min(int(text[:20]), maximum))

    def reply(
        self, status: int, encoded: bytes, measured: bytes = b"", headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Answers with a JSON object; `measured` has further fields of the performance block, each with its comma."""
        body = b'%b,"performance":{"server_total_ms":%.3f%b}}' % (encoded[:-1], self.spent_ms(), measured)
        self.finish(status, body, headers)

    def spent_ms(self) -> float:
        """Returns the time since the request arrived."""
        return (self.seconds() - self.exchange.started) * 1000.0

    def refuse(self, error: TopicsError) -> None:
        redirect = redirection(self.exchange.head, error) if isinstance(error, NotPrimaryError) else ()
        if redirect:
            self.finish(307, b"", redirect, "")
            return
        status, body = refusal_of(error_for(self.key, error), self.exchange.head.path, self.spent_ms())
        self.finish(status, body, error_headers(error))

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Calls back if the client disconnects before the answer."""
        self._on_disconnect = callback
        self.exchange.on_disconnect(self._lost)

    def forget_disconnect(self) -> None:
        """Cancels the notification about a disconnect."""
        self._on_disconnect = None
        self._let_go()

    def set_on_done(self, callback: Callable[[], None]) -> None:
        """Calls back once, when the request is answered or its client has disconnected."""
        self.on_done = callback
        self.exchange.on_disconnect(self._lost)

    def detach(self) -> Exchange:
        """Returns the exchange, to become a stream or a WebSocket.

        From now on it is a connection and no longer counted as a request.
        """
        self._count_out()
        self._on_disconnect = None
        return self.exchange

    def _lost(self) -> None:
        self._count_out()
        if self._on_disconnect is not None:
            self._on_disconnect()

    def _count_out(self) -> None:
        if self.on_done is not None:
            self.on_done()
            self.on_done = None
            self._let_go()

    def _let_go(self) -> None:
        # The exchange and this object reference each other while a callback is registered.
        if self._on_disconnect is None and self.on_done is None:
            self.exchange.disconnect_callback = None

    def finish(
        self,
        status: int,
        body: bytes,
        headers: tuple[tuple[str, str], ...] = (),
        content_type: str = "application/json",
    ) -> None:
        if self.on_done is not None:
            self._count_out()
        if self._on_disconnect is not None:
            self.forget_disconnect()
        if self.audited is not None:
            self.audited(status, self.overrides)
        self.exchange.respond(status, body, content_type, headers)


# OpenAPI description of a route, generated from the message types.


class Parameter(NamedTuple):
    name: str
    schema: dict[str, object]
    text: str


class Operation(NamedTuple):
    """The description of a route."""

    name: str
    summary: str
    answers: dict[int, type | str]
    """By status: the type of a JSON answer, or the content type of another answer."""
    errors: tuple[str, ...] = ()
    """Error codes of this route; the common ones are added."""
    body: type | None = None
    body_required: bool = False
    query: tuple[Parameter, ...] = ()
    any_name: bool = False
    """Whether the name in the path may be reserved for streams."""


_log = logging.getLogger(__name__)

_CODE_BY_STATUS = {
    400: "invalid_request", 408: "request_timeout", 413: "payload_too_large", 415: "unsupported_media_type",
    417: "expectation_failed", 431: "headers_too_large", 500: "internal", 501: "not_implemented",
    505: "not_implemented",
}  # fmt: skip
"""The error code of a refusal by the HTTP layer."""

SECURE = (
    ("x-content-type-options", "nosniff"), ("access-control-allow-origin", "*"), ("cache-control", "no-store"),
)  # fmt: skip
"""Headers of every refusal before a handler: browsers must neither guess its type nor hide it, and caches must not
store it."""

Handler = Callable[[Call], None]
OpsHandler = Callable[[Exchange], None]
Seconds = Callable[[], float]


class Route(NamedTuple):
    """A route. `ops` routes answer without an engine, also during replay."""

    method: str
    path: str
    """Names are in braces: `{topic}`, `{wid}`, `{router}`, `{transaction}`.

    A part of a topic may have a second one, `/v0/topics/{topic}/consumers/{consumer}`, which is `Call.part`.
    """
    handler: Handler | OpsHandler
    scopes: Scope = Scope(0)
    takes_body: bool = False
    ops: bool = False
    open: bool = False
    """Answers without a key."""
    guards_itself: bool = False
    """The handler authenticates: access depends on more than the path and the header."""
    query_token: bool = False
    """Accepts the key in `?token=` as well, for browsers, whose event streams cannot send headers."""
    query_short_token: bool = False
    """Accepts a short-lived token in `?token=`, but no key."""
    free_name: bool = False
    """The name in the path is not subject to the prefixes of keys."""
    probe: bool = False
    """A probe, which needs a key with `TOPICS_PROBE_AUTH`."""
    operation: Operation | None = None
    """Its entry in the OpenAPI document; None omits it."""
    large_body: bool = False
    """The handler accepts bodies of any length, see `http.request_body.LargeBody`.

    Other bodies are parsed at once, so their length is limited.
    """
    body_bytes_max: int = MIB
    """The maximum length of these bodies."""
    batching: Callable[[Seconds], BatchedProtocol] | None = None
    """Decodes and answers its requests together (`api.request_batching`); None handles each separately."""


_PREFLIGHT = Route("OPTIONS", "/", preflight, ops=True, open=True)
_PREFLIGHTED = ("/v0/", "/v1/")


class Match(msgspec.Struct, eq=False, frozen=True):
    """The route and the key of a request head.

    It is valid for every request with that head while the keys are unchanged. It does not include the readiness of the
    server.
    """

    route: Route
    topic: str
    key: Key
    batcher: RequestBatcher | None
    version: object
    """The version of the keys; None if it is valid only once, because a token expires."""
    span: object = None
    """The trace of the request. A head with a trace belongs to one request only."""
    backoff: BatchingBackoff = msgspec.field(default_factory=BatchingBackoff)


def match_of(head: RequestHead) -> Match:
    """The match found at admission."""
    match = head.context
    assert isinstance(match, Match)
    return match


class Family(Protocol):
    """Routes with separate matching rules, all below one path."""

    prefix: str

    def find(self, method: str, path: str) -> tuple[Route, str]: ...

    def listed(self) -> Iterator[tuple[str, str]]:
        """Returns method and path of every route."""
        ...


_SECOND_NAME = re.compile(r"\{\w+\}")
_PART_PLACE = 5


class Routes:
    """Finds a route by method and path. The paths are few and shallow: a dictionary by shape, no expressions."""

    def __init__(self, routes: tuple[Route, ...], families: tuple[Family, ...] = ()) -> None:
        self.all = routes
        self._families = families
        self._fixed: dict[str, dict[str, Route]] = {}
        self._named: dict[tuple[str, str], dict[str, Route]] = {}
        for route in routes:
            before, brace, rest = route.path.partition("{")
            after = _SECOND_NAME.sub("{}", rest.partition("}")[2])
            table = self._named.setdefault((before, after), {}) if brace else self._fixed.setdefault(route.path, {})
            table[route.method] = route

    def listed(self) -> Iterator[tuple[str, str]]:
        """Returns method and path of every route."""
        yield from ((route.method, route.path) for route in self.all)
        for family in self._families:
            yield from family.listed()

    def find(self, method: str, path: str) -> tuple[Route, str]:
        table, topic = self._fixed.get(path), ""
        if table is None:
            for family in self._families:
                if path.startswith(family.prefix):
                    return family.find(method, path)
            table, topic = self._find_named(path)
        if table is None:
            raise NotFoundError(f"there is nothing at {quoted(path)}")
        route = table.get("GET" if method == "HEAD" else method)
        if route is None:
            raise MethodNotAllowedError(method, tuple(sorted({*table, *(["HEAD"] if "GET" in table else [])})))
        return route, topic

    def _find_named(self, path: str) -> tuple[dict[str, Route] | None, str]:
        # /v0/topics/NAME or /v0/topics/NAME/WORD: the name is the fourth part, still encoded, so it has no slash.
        parts = path.split("/", 4)
        if len(parts) < 4 or not parts[3]:
            return None, ""
        after = "/" + parts[4] if len(parts) > 4 else ""
        front, name = f"/{parts[1]}/{parts[2]}/", parts[3]
        table = self._named.get((front, after))
        if table is None and "/" in after[1:]:
            # A named part of the topic: /WORD/NAME or /WORD/NAME/VERB.
            word, _, rest = after[1:].partition("/")
            part, slash, verb = rest.partition("/")
            table = self._named.get((front, f"/{word}/{{}}{slash}{verb}")) if part else None
        if "%" not in name and name.isascii():
            return table, name
        try:
            return table, str(unquote_to_bytes(name), "utf-8")
        except UnicodeDecodeError:
            return None, ""


class Api:
    """Implements `topics.http`'s application."""

    def __init__(
        self,
        routes: Routes,
        keys: KeyRing,
        clock: Clock,
        body_bytes_max: int,
        inflight_max: int,
        live: "Live | None" = None,
    ) -> None:
        self._routes = routes
        self._keys = keys
        self._clock = clock
        self._body_bytes_max = body_bytes_max
        self._inflight_max = inflight_max
        self._live = live
        self._engine: Engine | None = None
        self.admission: object = object()
        keys.changed.subscribe(self._decide_anew)
        self.replay_progress = 0.0
        """Set by the thread that replays the log, from 0 to 1: a float needs no lock."""
        self.draining = False
        self.primary: str | None = None
        """While this server is a standby: the address of the primary; empty if unknown."""
        self.standby: StandbyRules | None = None
        """Set while a standby serves reads from its follower."""
        self.probe_auth = False
        self.scheme = "http"
        self.audit: Audit | None = None
        """The audit log of refused and destructive calls, if enabled."""
        self._asking = ANYONE
        """The key of the request at admission."""
        self.tracing: Tracing | None = None
        """Handles trace contexts of requests; None ignores them."""
        self.browsers: BrowserRules | None = None
        """The CORS policy; None without browsers, as in tests."""
        self.waits: set[Waiting] = set()
        self.route_counters = RouteCounters(clock.monotonic)
        self._batchers: dict[Handler | OpsHandler, RequestBatcher] = {}
        """Request batchers by handler, created on first use."""

    @property
    def engine(self) -> Engine | None:
        """None until the log is replayed."""
        return self._engine

    @engine.setter
    def engine(self, engine: Engine | None) -> None:
        self._engine = engine
        self._decide_anew()

    def _decide_anew(self) -> None:
        """Discards the cached decisions about request heads."""
        self.admission = object()
        if self._engine is not None:
            self._engine.set_tenants(key.prefixes for key in self._keys)

    def admit(self, head: RequestHead) -> int | Refusal:
        match, self._asking = head.context, ANYONE
        try:
            if match is None or match.version is not self._keys.version:  # type: ignore[attr-defined]
                match = head.context = self._match(head)
            if (self.draining or self.engine is None) and not match.route.ops:  # type: ignore[attr-defined]
                self._check_serving()
        except TopicsError as error:
            refusal = self._refusal(error, head.path)
            if self.audit is not None:
                self.audit.refused(head, refusal.status, error.code, self._asking)
            return refusal
        route = match.route  # type: ignore[attr-defined]
        if self.standby is not None and not route.ops:
            refused = self.standby.admit(head, route.scopes)
            if refused is not None:
                if self.audit is not None:
                    self.audit.refused(head, refused.status, "not_primary", self._asking)
                return refused
        limit = self._body_bytes_max
        if not route.large_body:
            limit = min(limit, route.body_bytes_max)
        head.takes_large = route.large_body
        # A token in the query expires without a notification.
        passing = match.version is None or self.standby is not None  # type: ignore[attr-defined]
        return OneRequest(limit) if passing else limit

    def batch_handler(self, head: RequestHead) -> BatchHandler | None:
        match = match_of(head)
        if match.batcher is None or self._engine is None:
            return None
        return match.batcher.for_head(self._engine, match)

    def _match(self, head: RequestHead) -> Match:
        head.counter = self.route_counters.nowhere
        if self.browsers is not None:
            self.browsers.admit(head)
        if is_preflight(head) and head.path.startswith(_PREFLIGHTED):
            return Match(_PREFLIGHT, "", ANYONE, None, None)
        route, topic = self._routes.find(head.method, head.path)
        head.counter = self.route_counters.of(route.method, route.path)
        open_to_all = route.guards_itself or (route.open and not (self.probe_auth and route.probe))
        key = ANYONE if open_to_all else self._authenticate(route, head)
        if key is not ANYONE:
            self._asking = key
            key.check(route.scopes, None if route.free_name else topic or None)
        if route.takes_body and _has_body(head) and not _is_json(head.headers.get("content-type")):
            raise UnsupportedMediaTypeError
        batcher = self._batcher(route)
        if batcher is not None and not batcher.fits(head):
            batcher = None
        in_query = _takes_token(route, head) and "token" in parse_query(head.query)
        span = None
        if b"traceparent" in head.headers.first and self.tracing is not None:
            span = self.tracing.admitted(head, route.path, route.scopes, topic)
        return Match(route, topic, key, batcher, None if in_query else self._keys.version, span)

    def _batcher(self, route: Route) -> RequestBatcher | None:
        if route.batching is None:
            return None
        found = self._batchers.get(route.handler)
        if found is None:
            counted = 0 if self._keys.is_open else self._inflight_max
            protocol = route.batching(self._clock.monotonic)
            found = self._batchers[route.handler] = RequestBatcher(protocol, counted, self._handle_single)
        return found

    def handle(self, exchange: Exchange) -> None:
        """Handles a request: batched with others of its tick if its route supports that, otherwise separately."""
        match: Match = exchange.head.context  # type: ignore[assignment]
        engine = self._engine
        if match.batcher is None or engine is None or not match.batcher.takes(exchange, engine, match):
            self._handle_single(exchange)

    def _handle_single(self, exchange: Exchange) -> None:
        match: Match = exchange.head.context  # type: ignore[assignment]
        engine = self._engine
        route = match.route
        if route.ops:
            try:
                if match.key is not ANYONE and route.scopes:
                    self._check_inflight(match.key)
                route.handler(exchange)  # type: ignore[arg-type]
            except ThrottledError as error:
                refuse(exchange, error, self._clock.monotonic())
            return
        if engine is None:
            refuse(exchange, self.not_serving(), self._clock.monotonic())
            return
        call = Call(exchange, engine, match.key, match.topic, self._clock.monotonic, self.waits, self._live)
        call.scheme = self.scheme
        call.browsers = self.browsers
        if self.audit is not None:
            call.audited = partial(self.audit.answered, exchange.head, route.scopes, match.key)
        try:
            if match.key is not ANYONE:
                self._count_in(call)
            route.handler(call)  # type: ignore[arg-type]
        except TopicsError as error:
            call.refuse(error)
        except Exception:
            _log.exception("request failed", extra={"method": exchange.head.method, "path": exchange.head.path})
            call.refuse(TopicsError("the server made a mistake; it is in its log"))

    def refuse(self, error: HttpError, path: str) -> Refusal:
        """Formats a refusal of the HTTP layer like all others."""
        if error.fault is Fault.SHUTTING_DOWN:
            return self._refusal(ShuttingDownError(), path)
        if error.fault is Fault.TOO_MANY_CONNECTIONS:
            return self._refusal(ThrottledError.over_cap("max_connections", error.most), path)
        if error.fault is Fault.TOO_MANY_BODIES:
            return self._refusal(ThrottledError.under_pressure(retry_after_ms=1000), path)
        body = fault_of(error.status, _CODE_BY_STATUS.get(error.status, "internal"), error.message, path)
        return Refusal(error.status, body, "application/json", SECURE)

    def drain(self) -> None:
        """Refuses new requests and ends waiting ones."""
        self.draining = True
        self._decide_anew()
        for waiting in list(self.waits):
            waiting.end()

    def let_go(self, keys: Iterable[Key]) -> None:
        """Ends the connections of removed keys."""
        gone = set(keys)
        for waiting in list(self.waits):
            if getattr(waiting, "key", None) in gone:
                waiting.end()

    def _authenticate(self, route: Route, head: RequestHead) -> Key:
        authorization = head.headers.get("authorization")
        if authorization is not None or not _takes_token(route, head):
            return self._keys.authenticate(authorization)
        token = parse_query(head.query).get("token")
        return self._keys.authenticate_stream(None, token, takes_keys=route.query_token)

    def _check_serving(self) -> None:
        if self.draining or self.engine is None:
            raise self.not_serving()

    def not_serving(self) -> TopicsError:
        """Returns the reason why only health and metrics are answered."""
        if self.draining:
            return ShuttingDownError()
        if self.primary is not None:
            return NotPrimaryError(self.primary)
        return NotReadyError(round(self.replay_progress, 4))

    def _count_in(self, call: Call) -> None:
        key = call.key
        self._check_inflight(key)
        key.inflight += 1

        def count_out() -> None:
            key.inflight -= 1

        call.set_on_done(count_out)

    def _check_inflight(self, key: Key) -> None:
        if self._inflight_max and key.inflight >= self._inflight_max:
            raise ThrottledError.over_cap("max_inflight_per_key", self._inflight_max)

    def _refusal(self, error: TopicsError, path: str) -> Refusal:
        status, body = refusal_of(error, path)
        return Refusal(status, body, "application/json", (*SECURE, *error_headers(error)))


def _takes_token(route: Route, head: RequestHead) -> bool:
    return bool(head.query) and (route.query_token or route.query_short_token)


def _has_body(head: RequestHead) -> bool:
    length = head.headers.get("content-length")
    return head.headers.get("transfer-encoding") is not None or (length is not None and length.strip("0") != "")


def _is_json(content_type: str | None) -> bool:
    return content_type is not None and content_type.strip().lower().startswith("application/json")
