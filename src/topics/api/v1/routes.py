"""Every /v1 route: which method of which resource is answered by whom, and what it needs."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from topics.api.app import Route
from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.cors import preflight
from topics.api.error_responses import MethodNotAllowedError, NotFoundError
from topics.api.live import LongPoll
from topics.api.v1.invalidation import activate_templates, show_touch, wait_for_touch
from topics.api.v1.protocol import CLOSED, NO_STORE, ROOT, Header, answer, expiry, guarded, split_path
from topics.api.v1.reads import answer_poll, parse_read, read_once
from topics.api.v1.schemas import ContractRoutes, list_streams
from topics.api.v1.search import SearchRoutes
from topics.api.v1.server_details import ServerRoutes
from topics.api.v1.sse import PollSource, SseReader
from topics.api.v1.stream_details import Inspected, index_status, stream_details
from topics.api.v1.subscriptions import PREFIX, SubscriptionsApi, WebhookCaller
from topics.api.v1.writes import REQUEST_TIMEOUT_S, Deadlines, StreamAppendFastPath, Writes
from topics.engine.background_jobs import ThreadRunner
from topics.engine.engine import Engine
from topics.engine.topic import Topic
from topics.log.posix import PosixFileSystem
from topics.model.errors import quoted
from topics.model.settings import Settings
from topics.model.topic_config import Durability
from topics.search.service.backend import SearchStats
from topics.search.service.index_coverage import FamilyCoverage, HeldUp
from topics.search.service.index_file_cache import IndexFileCache, IndexFiles
from topics.search.service.search_service import CACHE_BYTES, MEMORY_BYTES, SCAN_BYTES, STREAM_BYTES, StreamSearch
from topics.search.worker.messages import Close
from topics.search.worker.process import SearchProcess
from topics.streams.offsets import Position
from topics.streams.streams import Streams
from topics.streams.subscriptions.subscriptions import SubscriptionLimits, Subscriptions
from topics.streams.system_streams.system_streams import Around, SystemOptions, SystemStreams
from topics.system.clock import SystemClock

LIST = "/v1/streams"
SERVER = "/v1/server/"
STREAM = "/v1/stream/{stream}"
MANY = "/v1/_search"

Handler = Callable[[Call, Streams], None]
"""What answers a request, by the streams of the engine that it concerns."""


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of /v1; `topics.model` explains each."""

    streams_durability: str = "fsync"
    streams_long_poll_ms: int = 3_000
    streams_long_poll_max_ms: int = 4_500
    streams_webhook_ca_file: str | None = None
    max_subscriptions: int = 10_000
    max_subscriptions_per_key: int = 1_000
    immutable: bool = True
    """Whether caches may be told to keep anything for good."""
    search_stream_bytes: int = STREAM_BYTES
    search_memory_bytes: int = MEMORY_BYTES
    search_scan_bytes: int = SCAN_BYTES
    search_cache_bytes: int = CACHE_BYTES
    max_searches: int = 0
    max_searches_per_key: int = 0
    webhook_loopback: bool = True
    """Whether webhooks may call this machine itself."""
    system: SystemOptions = SystemOptions()


class StreamsApi:
    """The handlers of /v1, and the routes that lead to them."""

    prefix = "/v1/"

    def __init__(self, options: StreamOptions, server: ServerRoutes | None = None) -> None:
        """Raises `OSError` when the authorities for webhooks cannot be read."""
        self._options = options
        self._streams: Streams | None = None
        self._subscriptions: Subscriptions | None = None
        self._system: SystemStreams | None = None
        self._searcher = SearchProcess(is_committing=self._is_committing)
        self._subscription_routes = SubscriptionsApi(self.subscriptions)
        self.webhooks = WebhookCaller(options.webhook_loopback, options.streams_webhook_ca_file)
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
        server = server or ServerRoutes(Settings(), 1)
        fixed: dict[str, Handler] = {
            LIST: list_streams, f"{SERVER}_details": server.details, f"{SERVER}_mem": server.memory,
        }  # fmt: skip
        self._fixed = {path: self._without_stream(path, handler) for path, handler in fixed.items()}
        self._many = Route("POST", MANY, self._handled(searches.search_many), Scope.READ)
        self._preflight = Route("OPTIONS", STREAM, preflight, ops=True, open=True)

    def tell_held_up(self, ask: Callable[[Topic], HeldUp | None]) -> None:
        """Says whom to ask why a stream is not indexed any further."""
        coverage = self._streams.coverage if self._streams is not None else None
        if isinstance(coverage, FamilyCoverage):
            coverage.ask_held_up = ask

    def find(self, method: str, path: str) -> tuple[Route, str]:
        """The route of a path, and the stream it concerns."""
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
        """The routes of each resource of a stream, by their methods."""
        tables: dict[str, dict[str, Route]] = {}
        for resource, method, handler, scope in rows:
            # Whoever writes brings entries, which may be many.
            writes = scope is Scope.WRITE
            tables.setdefault(resource, {})[method] = Route(
                method, STREAM, self._handled(handler), scope, query_short_token=method == "GET", large_body=writes,
                fast_path=StreamAppendFastPath if writes and method == "POST" else None,
            )  # fmt: skip
        return tables

    def _without_stream(self, path: str, handler: Handler) -> Route:
        return Route("GET", path, self._handled(handler), Scope.READ)

    def _handled(self, handler: Handler) -> Callable[[Call], None]:
        return guarded(lambda call: handler(call, self._of(call)))

    def _of(self, call: Call) -> Streams:
        return self.streams(call.engine)

    def streams(self, engine: Engine) -> Streams:
        if self._streams is None or self._streams.engine is not engine:
            search = StreamSearch(
                engine, self._searcher, _later, SystemClock.monotonic, self._options.search_stream_bytes,
                self._options.search_memory_bytes, self._options.search_scan_bytes, self._options.max_searches,
                self._options.max_searches_per_key, self._companions(engine),
            )  # fmt: skip
            self._streams = Streams(engine, Durability(self._options.streams_durability), _later, search)
        return self._streams

    def _companions(self, engine: Engine) -> IndexFiles:
        layout, far = engine.core.layout, engine.core.store.far

        def let_go(path: str) -> None:
            if self._searcher.child_pid is not None:
                self._searcher.send(Close(path))

        cache = None
        if far is not None:
            runner = ThreadRunner("companions", asyncio.get_running_loop().call_soon_threadsafe)
            cache = IndexFileCache(far, layout, self._options.search_cache_bytes, runner, let_go)
        return IndexFiles(PosixFileSystem(), layout, SystemClock.monotonic, cache, let_go)

    def subscriptions(self, engine: Engine) -> Subscriptions:
        """The subscriptions of an engine; asking for them begins to serve them."""
        if self._subscriptions is None:
            streams, loopback = self.streams(engine), self._options.webhook_loopback
            limits = msgspec.convert(self._options, SubscriptionLimits, from_attributes=True)
            self._subscriptions = Subscriptions(streams, self.webhooks.deliver, _later, loopback, limits)
            self._subscriptions.start()
        return self._subscriptions

    def start(self, engine: Engine, around: Callable[[], Around]) -> None:
        """Begins what goes on without anybody asking: subscriptions, and the streams that the server writes."""
        self.subscriptions(engine)
        for shard in engine.core.shards:
            shard.settled.append(self._searcher.turns.committed)
        self._system = SystemStreams(self.streams(engine), self._options.system, _later, around)
        self._system.start()

    def _is_committing(self) -> bool:
        return self._streams is not None and self._streams.engine.committing

    @property
    def searching(self) -> bool:
        """Whether the searching process is at work on what was asked."""
        return self._searcher.is_asked

    def search_stats(self) -> SearchStats:
        return SearchStats() if self._streams is None else self._streams.search.stats()

    async def close(self) -> None:
        """Ends calls of webhooks that are on their way, and the searching process."""
        await self.webhooks.close()
        await self._searcher.close()
        companions = None if self._streams is None else self._streams.search.companions
        if companions is not None and companions.cache is not None:
            # A piece of a companion may be on its way: nobody waits for it on the loop.
            await asyncio.get_running_loop().run_in_executor(None, companions.cache.close)

    def _get(self, call: Call, streams: Streams) -> None:
        read = parse_read(call, streams)
        streams.touch(read.topic)
        if not read.live:
            read_once(call, streams, read, self.deadlines, immutable=self._options.immutable)
        elif read.live == "sse":
            SseReader(call, streams, read).start()
        else:
            wanted = self._options.streams_long_poll_ms if read.wait_ms is None else read.wait_ms
            wait_s = min(wanted, self._options.streams_long_poll_max_ms) / 1000
            told = partial(answer_poll, call, streams, read)
            source = PollSource(streams=streams, spec=msgspec.structs.replace(read.spec, position=Position(0)))
            LongPoll(call, read.topic, source, wait_s, told).begin(read.spec.position)

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


def _later(seconds: float, function: Callable[[], None]) -> Callable[[], None]:
    return asyncio.get_running_loop().call_later(seconds, function).cancel
