"""Routes for operators and load balancers: health, readiness, metrics, the OpenAPI document."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec

from topics.api.app import SECURE, Api, Operation, Parameter, Route, Routes, match_of, parse_query
from topics.api.auth import ANYONE, Key, Scope
from topics.api.error_responses import MethodNotAllowedError, NotFoundError, error_headers, render_error, status_of
from topics.api.live import Live
from topics.api.metrics import CONTENT_TYPE, ServerState, Snapshot, scrape
from topics.api.metrics_history import STEPS, HistoryRecorder
from topics.api.openapi import build_document, build_page
from topics.api.v0.backups import BACKUP_ROUTES
from topics.api.v0.consumers import CONSUMER_ROUTES
from topics.api.v0.queues import QUEUE_ROUTES
from topics.api.v0.request_parsing import query_number
from topics.api.v0.routes import V0_ROUTES
from topics.api.v0.schedules import SCHEDULE_ROUTES
from topics.api.v0.sealed_files import SEALED_FILE_ROUTES
from topics.api.v0.search import TopicSearches
from topics.api.v0.transactions import TRANSACTION_ROUTES
from topics.api.v0.watch import WATCH_ROUTES
from topics.api.v1.openapi import described_types, stream_paths
from topics.api.v1.routes import StreamsApi
from topics.api.v1.subscriptions import WebhookCaller
from topics.http.exchange import Exchange
from topics.http.server import HttpServer
from topics.model.errors import InvalidRequestError, NotPrimaryError, NotReadyError, TopicsError, quoted
from topics.ops.failover.lease_keeper import LeaseKeeper
from topics.ops.failover.standby_reads import StandbyReads
from topics.system.clock import Clock
from topics.system.fair_scheduler import Task
from topics.system.process import process_numbers
from topics_protocol import __version__
from topics_protocol.v0 import HealthAnswer, KeyAnswer, MetricsHistory, PipelineAnswer, ReadyAnswer, SelfAnswer

# Console pages: their paths and redirects.
#
# The pages are static files, served without a key and also during replay: they get all data from the API.

CONSOLE = "/console"
REFERENCE = "/docs"


class Files(Protocol):
    """The files of a page by their path below it; the page itself has the empty one."""

    def __contains__(self, path: str) -> bool: ...

    def answer(self, exchange: Exchange, path: str) -> None: ...


class Pages:
    """A family of routes: one page and the files below it."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.files: Files | None = None
        """Set by the composition root."""
        self._page = Route("GET", prefix, self._answer, ops=True, open=True)
        self._file = Route("GET", f"{prefix}/{{file}}", self._answer, ops=True, open=True)

    def listed(self) -> Iterator[tuple[str, str]]:
        yield from ((route.method, route.path) for route in (self._page, self._file))

    def find(self, method: str, path: str) -> tuple[Route, str]:
        if path != self.prefix and not path.startswith(f"{self.prefix}/"):
            raise _nothing_at(path)
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowedError(method, ("GET", "HEAD"))
        return self._page if path == self.prefix else self._file, ""

    def _answer(self, exchange: Exchange) -> None:
        path = exchange.head.path
        file = path[len(self.prefix) + 1 :]
        if path == f"{self.prefix}/":
            # Everything on the page is relative to where it is, so that it can be served below any path.
            exchange.respond(308, b"", "", (("location", f"..{self.prefix}"),))
        elif self.files is not None and file in self.files:
            self.files.answer(exchange, file)
        else:
            _turn_away(exchange)


def front_door(exchange: Exchange) -> None:
    """Redirects browsers to the console. Other clients get 404."""
    if "text/html" in (exchange.head.headers.get("accept") or ""):
        exchange.respond(303, b"", "", (("location", CONSOLE[1:]), ("vary", "accept")))
    else:
        _turn_away(exchange)


def _nothing_at(path: str) -> NotFoundError:
    return NotFoundError(f"there is nothing at {quoted(path)}")


def _turn_away(exchange: Exchange) -> None:
    exchange.respond(404, render_error(_nothing_at(exchange.head.path)), "application/json", SECURE)


_encode = msgspec.json.Encoder().encode
_PLAIN_PAGE = (
    ("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
)
"""It has one style in it and nothing else."""


class OpsHandlers:
    """The handlers that answer without an engine, too."""

    def __init__(self, clock: Clock, streams: StreamsApi, webhooks: WebhookCaller | None = None) -> None:
        self._streams = streams
        self._webhooks = webhooks
        self._clock = clock
        self._started = clock.monotonic()
        self.api: Api
        self.http: HttpServer | None = None
        self.live: Live | None = None
        self.lease: LeaseKeeper | None = None
        """The lease of the primary, where one is asked for and held."""
        self.standby: StandbyReads | None = None
        """The reads of a standby, where they are asked for."""
        self.pipeline_state: Callable[[], PipelineAnswer] = no_pipeline
        """Called by the supervisor of the pipeline."""
        self.console = Pages(CONSOLE)
        self.reference = Pages(REFERENCE)
        self.history = HistoryRecorder(clock)
        self.limits: Mapping[str, int] = {}
        """Limits of a request and of a key, by setting name."""
        self._document = b""
        self._page = b""

    def routes(self) -> Routes:
        """Every route of the server; the description is made of the same table."""
        health = Operation("health", "Whether the process answers at all.", {200: HealthAnswer})
        ready = Operation(
            "ready", "Whether it serves.", {200: ReadyAnswer},
            ("not_ready", "shutting_down", "not_primary", "lease_ended"),
            query=(
                Parameter("role", {"type": "string", "enum": ["primary", "standby"]},
                    "Answer 200 for a server of this role only. Default: for any server that serves."),
            ),
        )  # fmt: skip
        by_topic = Parameter(
            "topics", {"type": "boolean"}, "Whether the answer has the series of topics. Default: true."
        )
        metrics = Operation(
            "metrics", "Counters and gauges, for Prometheus or as JSON.", {200: "text/plain"}, query=(by_topic,)
        )
        history = Operation(
            "metricsHistory", "The most important metrics since the start of the server, at equal steps.",
            {200: MetricsHistory},
            query=(
                Parameter("step", {"type": "string", "enum": [*STEPS]},
                    "`1s`: the last hour (default); `1m`: the last day."),
                Parameter("points", {"type": "integer", "minimum": 0}, "Maximum of points, the newest ones."),
            ),
        )  # fmt: skip
        myself = Operation("self", "Get the key's permissions and the server's limits.", {200: SelfAnswer})
        pipeline = Operation("pipeline", "How far the pipeline is, and what holds it up.", {200: PipelineAnswer})
        described = (
            *V0_ROUTES,
            *TopicSearches(self._streams).routes(),
            *QUEUE_ROUTES,
            *CONSUMER_ROUTES,
            *SCHEDULE_ROUTES,
            *WATCH_ROUTES,
            *TRANSACTION_ROUTES,
            *BACKUP_ROUTES,
            *SEALED_FILE_ROUTES,
            _ops("/v0/health", self.health, health),
            _ops("/v0/ready", self.ready, ready),
            Route("GET", "/v0/metrics", self.metrics, Scope.READ, ops=True, operation=metrics),
            Route("GET", "/v0/metrics/history", self.metrics_history, Scope.READ, ops=True, operation=history),
            Route("GET", "/v0/pipeline", self.pipeline, Scope.READ, ops=True, operation=pipeline),
            Route("GET", "/v0/self", self.myself, ops=True, operation=myself),
        )
        document = build_document(described, __version__, stream_paths(self._streams.listed()), described_types())
        self._document, self._page = _encode(document), build_page(document)
        return Routes(
            (
                *described,
                _ops("/healthz", self.health),
                _ops("/health", self.stream_health),
                _ops("/readyz", self.ready),
                _ops("/v0/openapi.json", self.document),
                _ops(REFERENCE, self.page),
                _ops(f"{REFERENCE}/plain", self.plain_page),
                Route("GET", "/", front_door, ops=True, open=True),
            ),
            (self._streams, self.console, self.reference),
        )

    def health(self, exchange: Exchange) -> None:
        answer = HealthAnswer(status="ok", version=__version__, uptime_ms=self._uptime_ms())
        exchange.respond(200, _encode(answer))

    def stream_health(self, exchange: Exchange) -> None:
        """The health answer of the Durable Streams servers."""
        exchange.respond(200, b'{"ok":true}')

    def ready(self, exchange: Exchange) -> None:
        api, lost = self.api, self._lost_lease()
        standby = api.standby
        role = parse_query(exchange.head.query).get("role", "")
        if lost is None and not api.draining and role == "primary" and standby is not None:
            lost = NotPrimaryError(api.primary or "")
        if lost is None and role == "standby" and standby is None and api.engine is not None:
            lost = NotReadyError(0.0, "this server is no standby that serves reads")
        if api.engine is not None and not api.draining and lost is None:
            answer = ReadyAnswer(
                status="read_only" if api.engine.read_only_shards else "ready",
                wal_replay_complete=True,
                topics=api.engine.topic_count,
                # Reads work despite a failed disk: a load balancer must not remove the server entirely.
                read_only_shards=api.engine.read_only_shards,
                disk_full=api.engine.disk_full,
                backup_lag_ms=api.engine.backups.lag_ms,
                primary_term=None if self.lease is None or standby is not None else self.lease.term,
                role="primary" if standby is None else "standby",
                primary=None if standby is None else api.primary or None,
                lag_ms=None if standby is None else standby.lag_ms(),
            )
            exchange.respond(200, _encode(answer))
            return
        error = api.not_serving() if lost is None else lost
        exchange.respond(status_of(error), render_error(error), "application/json", error_headers(error))

    def _lost_lease(self) -> TopicsError | None:
        """Why this server may not take writes, where that is because of the lease."""
        if self.lease is None or self.api.draining or self.api.standby is not None:
            return None
        try:
            self.lease.check()
        except TopicsError as error:
            return error
        return None

    def metrics(self, exchange: Exchange) -> None:
        engine = self.api.engine
        state = ServerState(
            ready=engine is not None and not self.api.draining,
            recovery_progress=1.0 if engine is not None else self.api.replay_progress,
            uptime_ms=self._uptime_ms(),
            sse_connections=0 if self.live is None else self.live.connections.open,
            watch_sessions=0 if self.live is None else len(self.live.sessions),
            queue_leases_in_flight=0 if engine is None else engine.queues.in_flight(),
            webhook_calls=0 if self._webhooks is None else self._webhooks.calls,
            webhook_failures=0 if self._webhooks is None else self._webhooks.failures,
            search=self._streams.search_stats(),
            primary_term=0 if self.lease is None else self.lease.term,
            lease_left_ms=0 if self.lease is None else self.lease.left_ms,
            lease_failures=0 if self.lease is None else self.lease.failures,
            standby_lag_ms=-1 if self.api.standby is None else self.api.standby.lag_ms(),
            standby_objects=0 if self.standby is None else self.standby.objects,
            standby_restores=0 if self.standby is None else self.standby.restores,
            standby_failures=0 if self.standby is None else self.standby.failures,
        )
        key = match_of(exchange.head).key
        prefixes = key.prefixes
        snapshot = Snapshot(state, engine, self.http, self.pipeline_state(), prefixes)
        snapshot.route_counters, snapshot.process = self.api.route_counters, process_numbers()
        snapshot.by_topic = parse_query(exchange.head.query).get("topics", "").lower() not in ("false", "0")
        if "application/json" in (exchange.head.headers.get("accept") or ""):
            task = scrape(exchange, snapshot.json_pieces(), "application/json")
        else:
            task = scrape(exchange, snapshot.text_pieces(), CONTENT_TYPE)
        # One scrape after the other: a client that scrapes without end slows down other scrapes only.
        exchange.run(_counted(task, key), self)

    def metrics_history(self, exchange: Exchange) -> None:
        query = parse_query(exchange.head.query)
        step = query.get("step") or "1s"
        try:
            if step not in STEPS:
                raise InvalidRequestError(f"query step: must be {' or '.join(STEPS)}", field="step")
            count = query_number(query.get("points"), "points", STEPS[step][1])
        except InvalidRequestError as error:
            exchange.respond(status_of(error), render_error(error), "application/json", error_headers(error))
            return
        task = self.history.answer(exchange, step, count)
        exchange.run(_counted(task, match_of(exchange.head).key), self)

    def pipeline(self, exchange: Exchange) -> None:
        exchange.respond(200, _encode(pipeline_for(match_of(exchange.head).key, self.pipeline_state())))

    def myself(self, exchange: Exchange) -> None:
        key = match_of(exchange.head).key
        answer = SelfAnswer(
            version=__version__,
            keys_required=key is not ANYONE,
            key=KeyAnswer(
                name=key.name,
                scopes=[str(scope.name).lower() for scope in Scope if scope in key.scopes],
                prefixes=list(key.prefixes),
            ),
            limits=dict(self.limits),
        )
        exchange.respond(200, _encode(answer), "application/json", (("cache-control", "no-store"),))

    @property
    def description(self) -> bytes:
        """The OpenAPI document, once the routes are made."""
        return self._document

    def document(self, exchange: Exchange) -> None:
        exchange.respond(200, self._document)

    def page(self, exchange: Exchange) -> None:
        if self.reference.files is None:
            self.plain_page(exchange)
        else:
            self.reference.files.answer(exchange, "")

    def plain_page(self, exchange: Exchange) -> None:
        exchange.respond(200, self._page, "text/html; charset=utf-8", _PLAIN_PAGE)

    def _uptime_ms(self) -> int:
        return int((self._clock.monotonic() - self._started) * 1000)


def pipeline_for(key: Key, state: PipelineAnswer) -> PipelineAnswer:
    """The state of the pipeline, without the topics that a key may not see. Its errors may name any topic."""
    if not key.prefixes:
        return state
    visible = [one for one in state.quarantined if key.may_touch(one.topic)]
    return msgspec.structs.replace(
        state,
        quarantined=visible,
        requests=[one for one in state.requests if one.stream is None or key.may_touch(one.stream)],
        error=_hidden(state.error),
        run=None if state.run is None else msgspec.structs.replace(state.run, error=_hidden(state.run.error)),
        products=[msgspec.structs.replace(one, error=_hidden(one.error)) for one in state.products],
    )


def _hidden(error: str | None) -> str | None:
    return None if error is None else "the operator can see it"


def no_pipeline() -> PipelineAnswer:
    """The pipeline status of a server without a pipeline."""
    return PipelineAnswer(
        state="off", reason=None, lag_segments=0, lag_bytes=0, lag_ms=0, rounds=0, records=0, segments=0, failures=0,
        restarts=0, error=None, last_run=None, quarantined=[], products=[], worker=None,
    )  # fmt: skip


def _ops(path: str, handler: Callable[[Exchange], None], operation: Operation | None = None) -> Route:
    return Route("GET", path, handler, ops=True, open=True, probe=True, operation=operation)


def _counted(task: Task, key: Key) -> Task:
    """The task, as a request in flight of its key."""
    key.inflight += 1
    try:
        yield from task
    finally:
        key.inflight -= 1
