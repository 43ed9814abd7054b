"""The route table of /v1: the handler and the scope of each method of each resource.

The table is built before the log is replayed; `StreamsApi.open` sets the services of the engine. Until then the server
refuses every request as not ready.
"""

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from topics.api.app import Call, Route
from topics.api.auth import Scope
from topics.api.cors import preflight
from topics.api.error_responses import MethodNotAllowedError, NotFoundError
from topics.api.live import LongPoll
from topics.api.v1.invalidation import activate_templates, show_touch, wait_for_touch
from topics.api.v1.protocol import (
    CLOSED,
    NO_STORE,
    REQUEST_TIMEOUT_S,
    ROOT,
    Deadlines,
    Header,
    answer,
    expiry,
    guarded,
    split_path,
)
from topics.api.v1.reads import PollSource, SseReader, answer_poll, parse_read, read_once
from topics.api.v1.search import SearchRoutes
from topics.api.v1.server_details import ServerRoutes
from topics.api.v1.stream_details import ContractRoutes, Inspected, index_status, list_streams, stream_details
from topics.api.v1.subscriptions import PREFIX, SubscriptionsApi
from topics.api.v1.writes import BatchedStreamAppends, Writes
from topics.model.errors import NotReadyError, quoted
from topics.search.service.backend import SearchStats
from topics.streams.stream_state import Position
from topics.streams.streams import Streams
from topics.streams.subscriptions.subscriptions import Subscriptions

LIST = "/v1/streams"
SERVER = "/v1/server/"
STREAM = "/v1/stream/{stream}"
MANY = "/v1/_search"

Handler = Callable[[Call, Streams], None]
"""A handler: answers a request with the streams of the engine."""


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of /v1; `topics.model` explains each."""

    streams_long_poll_ms: int = 3_000
    streams_long_poll_max_ms: int = 4_500
    immutable: bool = True
    """Whether answers may be cached forever."""


class StreamsApi:
    """The handlers and the routes of /v1."""

    prefix = "/v1/"

    def __init__(self, options: StreamOptions, server: ServerRoutes) -> None:
        self._options = options
        self._streams: Streams | None = None
        self._subscriptions: Subscriptions | None = None
        self._subscription_routes = SubscriptionsApi(lambda: self.subscriptions)
        self.deadlines = Deadlines(REQUEST_TIMEOUT_S)
        self._writes = Writes(self.deadlines)
        contracts, searches = ContractRoutes(self.deadlines), SearchRoutes(self.deadlines)
        waits = (options.streams_long_poll_ms, options.streams_long_poll_max_ms)
        details = Inspected("details", stream_details, *waits)
        status = Inspected("index_status", lambda topic, streams: index_status(topic, streams.coverage), *waits)
        self._tables = self._routed([
            ("", "GET", self._get, Scope.READ),
            ("", "HEAD", self._head, Scope.READ),
            ("", "PUT", self._writes.create, Scope.WRITE),
            ("", "POST", self._writes.append, Scope.WRITE),
            ("", "DELETE", self._writes.delete, Scope.DELETE),
            ("pk", "GET", self._get, Scope.READ),
            ("_schema", "GET", contracts.show_schema, Scope.READ),
            ("_schema", "POST", contracts.update_schema, Scope.ADMIN),
            ("_schema/infer", "POST", contracts.infer_fields, Scope.READ),
            ("_profile", "GET", contracts.show_profile, Scope.READ),
            ("_profile", "POST", contracts.update_profile, Scope.ADMIN),
            ("touch/meta", "GET", show_touch, Scope.READ),
            ("touch/wait", "POST", wait_for_touch, Scope.READ),
            ("touch/templates/activate", "POST", activate_templates, Scope.READ),
            ("_search", "GET", searches.search, Scope.READ),
            ("_search", "POST", searches.search, Scope.READ),
            ("_aggregate", "POST", searches.aggregate, Scope.READ),
            ("_routing_keys", "GET", searches.routing_keys, Scope.READ),
            ("_details", "GET", details.show, Scope.READ),
            ("_index_status", "GET", status.show, Scope.READ),
        ])  # fmt: skip
        fixed: dict[str, Handler] = {
            LIST: list_streams, f"{SERVER}_details": server.details, f"{SERVER}_mem": server.memory,
        }  # fmt: skip
        self._fixed = {path: self._without_stream(path, handler) for path, handler in fixed.items()}
        self._many = Route("POST", MANY, self._handled(searches.search_many), Scope.READ)
        self._preflight = Route("OPTIONS", STREAM, preflight, ops=True, open=True)

    def open(self, streams: Streams, subscriptions: Subscriptions) -> None:
        """Serves the streams and subscriptions of a started engine."""
        self._streams, self._subscriptions = streams, subscriptions

    @property
    def streams(self) -> Streams:
        if self._streams is None:
            raise NotReadyError(0.0)
        return self._streams

    @property
    def subscriptions(self) -> Subscriptions:
        if self._subscriptions is None:
            raise NotReadyError(0.0)
        return self._subscriptions

    def find(self, method: str, path: str) -> tuple[Route, str]:
        """Returns the route of a path, and its stream."""
        if method == "OPTIONS":
            return self._preflight, ""
        if path == MANY:
            if method != "POST":
                raise MethodNotAllowedError(method, ("POST", "OPTIONS"))
            return self._many, ""
        if path in self._fixed:
            if method not in ("GET", "HEAD"):
                raise MethodNotAllowedError(method, ("GET", "HEAD", "OPTIONS"))
            return self._fixed[path], ""
        if not path.startswith(ROOT):
            raise NotFoundError(f"there is nothing at {quoted(path)}")
        if path.startswith(PREFIX):
            return self._subscription_routes.find(method, path)
        where = split_path(path)
        table = self._tables.get(where.resource)
        if table is None:
            raise NotFoundError(f"there is nothing at {quoted(path)}")
        route = table.get(method)
        if route is None:
            raise MethodNotAllowedError(method, (*table, "OPTIONS"))
        return route, where.name

    def listed(self) -> Iterator[tuple[str, str]]:
        yield from ((route.method, route.path) for route in (*self._fixed.values(), self._many, self._preflight))
        for resource, table in self._tables.items():
            below = {"": "", "pk": "/pk/{key}"}.get(resource, f"/{resource}")
            yield from ((method, STREAM + below) for method in table)
        yield from self._subscription_routes.listed()

    def _routed(self, rows: list[tuple[str, str, Handler, Scope]]) -> dict[str, dict[str, Route]]:
        """Returns the routes of each resource of a stream, by method."""
        tables: dict[str, dict[str, Route]] = {}
        for resource, method, handler, scope in rows:
            # Writes may have large bodies.
            writes = scope is Scope.WRITE
            tables.setdefault(resource, {})[method] = Route(
                method, STREAM, self._handled(handler), scope, query_short_token=method == "GET", large_body=writes,
                batching=BatchedStreamAppends if writes and method == "POST" else None,
            )  # fmt: skip
        return tables

    def _without_stream(self, path: str, handler: Handler) -> Route:
        return Route("GET", path, self._handled(handler), Scope.READ)

    def _handled(self, handler: Handler) -> Callable[[Call], None]:
        return guarded(lambda call: handler(call, self.streams))

    def search_stats(self) -> SearchStats:
        return SearchStats() if self._streams is None else self._streams.search.stats()

    def _get(self, call: Call, streams: Streams) -> None:
        read = parse_read(call, streams)
        streams.renew_ttl(read.topic)
        if not read.live:
            read_once(call, streams, read, self.deadlines, immutable=self._options.immutable)
        elif read.live == "sse":
            SseReader(call, streams, read).start()
        else:
            requested = self._options.streams_long_poll_ms if read.wait_ms is None else read.wait_ms
            wait_s = min(requested, self._options.streams_long_poll_max_ms) / 1000
            reported = partial(answer_poll, call, streams, read)
            source = PollSource(streams=streams, spec=msgspec.structs.replace(read.spec, position=Position(0)))
            LongPoll(call, read.topic, source, wait_s, reported).begin(read.spec.position)

    def _head(self, call: Call, streams: Streams) -> None:
        info = streams.info(call.topic)
        headers: list[Header] = [
            ("stream-next-offset", info.next_offset), ("stream-end-offset", info.next_offset),
            *expiry(info.deadline_ms), NO_STORE,
        ]  # fmt: skip
        if info.ttl_s is not None:
            headers.append(("stream-ttl", str(info.ttl_s)))
        if info.closed:
            headers.append(CLOSED)
        answer(call, 200, tuple(headers), b"", info.content_type)
