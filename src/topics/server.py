"""The composition root: the only module that wires the clock, the disk, the engine, its services and the network.

The port opens first and the log is replayed behind it, so that a probe can distinguish replay from a
hang. The API is therefore built in two steps: `build_front` makes the routes, `Front.open` gives them the services of
the recovered engine. Stopping goes the same way back: the answer to "ready" changes first, then the engine finishes
what it has accepted, and the port closes last.
"""

import asyncio
import concurrent.futures
import contextlib
import ipaddress
import logging
import signal
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec
import uvloop

from topics.api.app import Api, Waiting
from topics.api.auth import BadKeyError, KeyRing, KeyStore, Tokens
from topics.api.cors import BadOriginError, BrowserRules
from topics.api.live import Live, LiveLimits
from topics.api.metrics_history import sample_of
from topics.api.operator_routes import OpsHandlers
from topics.api.request_logs import AccessLog, Audit, BadProxyError, TrustedProxies, write_whole
from topics.api.standby import StandbyRules
from topics.api.tracing import Tracing
from topics.api.v1.routes import StreamOptions, StreamsApi
from topics.api.v1.server_details import ServerRoutes
from topics.api.v1.subscriptions import WebhookCaller
from topics.console.site import console_site, reference_site
from topics.engine.background_jobs import ThreadRunner
from topics.engine.core import EngineOptions
from topics.engine.disk_threads import ThreadWorkers
from topics.engine.engine import Engine
from topics.engine.sealing import Unlisted
from topics.engine.topic import Topic
from topics.http.messages import HttpLimits
from topics.http.server import HttpServer
from topics.http.server_state import Certificate
from topics.log.catalog import Listed
from topics.log.layout import Layout, check_backup, check_cold, check_place
from topics.log.object_store.tiered_fs import guest_files, server_files
from topics.log.posix import PosixFileSystem, check_data_folder, make_private
from topics.model.key_file import KeyFileError
from topics.model.limits import Limits
from topics.model.settings import Settings, SettingsError
from topics.model.topic_config import Durability
from topics.ops.failover.lease_keeper import LeaseKeeper
from topics.ops.failover.standby import Standby
from topics.ops.failover.standby_reads import StandbyReads
from topics.ops.failover.takeover import Place
from topics.search.service.backend import SearchProcess
from topics.search.service.index_file_cache import HeldUp, IndexFileCache, IndexFileCoverage, IndexFiles
from topics.search.service.search_service import StreamSearch
from topics.search.worker.messages import Close
from topics.spark.pipeline.pipeline_settings import record_first_use
from topics.spark.pipeline.status import ARCHIVE, INDEX_PRODUCT, PipelineStatus, ProductStatus
from topics.spark.pipeline.supervisor import FAILING, INSTALL, Supervisor
from topics.streams.streams import Streams
from topics.streams.subscriptions.subscriptions import SubscriptionLimits, Subscriptions
from topics.streams.system_streams.system_streams import Around, SystemOptions, SystemStreams
from topics.system.clock import Clock, SystemClock
from topics.system.entropy import Entropy, SystemEntropy
from topics.system.installation import install_command
from topics.system.logs import configure_logs
from topics.system.process import (
    FILES,
    boot_id,
    collector_paused,
    connections_within,
    cpu_count,
    forget_variable,
    raise_limit,
    tune_allocator,
    tune_collector,
    tune_threads,
)
from topics_protocol import __version__
from topics_protocol.v0 import PipelineAnswer

LEASE_MS_MIN = 1000
# More writer threads than this compete for the interpreter instead of overlapping their syncs.
DEFAULT_WAL_SHARDS_MAX = 8
_DROPPED = "(dropped)"
"""The placeholder in the settings for keys that were parsed."""
_FIRST_BACKUP_POLL_S = 0.05
_KEY_FILE_POLL_S = 0.25
_LAST_ANSWERS_S = 1.0
"""The least time that a stop waits for answers, also where uploads took the time it had."""

_logger = logging.getLogger(__name__)
T = TypeVar("T")


def engine_options(settings: Settings) -> EngineOptions:
    """The engine's part of the settings: fields of the same name, and the number of shards decided."""
    strict = {"strict_config": _is_on(settings.strict_config)}
    limits = msgspec.convert({**msgspec.structs.asdict(settings), **strict}, Limits)
    wal_shards = settings.wal_shards or min(cpu_count(), DEFAULT_WAL_SHARDS_MAX)
    values = {
        **msgspec.structs.asdict(settings),
        "cold_dir": check_cold(settings.cold_dir, settings.data_dir),
        "backup_dir": check_backup(settings.backup_dir, settings.data_dir),
        "wal_shards": wal_shards,
        "limits": limits,
        "track_removals": _is_on(settings.archive),
    }
    return msgspec.convert(values, EngineOptions)


def run(settings: Settings, on_ready: Callable[[str], None] | None = None) -> None:
    """Serves until SIGTERM or SIGINT. Raises `TopicsError` or `OSError` when the server cannot start or not go on.

    `on_ready` is called with the bound host:port once requests are taken.
    """
    configure_logs(settings.log_format, level=settings.log_level)
    # Neither this process nor one that it starts has any use for them: the settings were read.
    forget_variable("TOPICS_API_KEYS")
    tune_allocator()
    tune_threads()
    uvloop.run(_serve_until_signalled(settings, on_ready))


class StreamServices:
    """The services of streams that an engine has once: search, streams, subscriptions and the system streams."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        webhooks: WebhookCaller,
        around: Callable[[], Around],
        held_up: Callable[[Topic], HeldUp | None],
    ) -> None:
        """`around` returns the values that come from outside of the engine, `held_up` the reason why the pipeline does
        not index a stream.
        """
        self.searcher = SearchProcess(is_committing=lambda: engine.committing)
        self._files = _index_files(engine, settings, self.searcher)
        self.search = StreamSearch(
            engine, self.searcher, _later, SystemClock.monotonic, settings.search_stream_bytes,
            settings.search_memory_bytes, settings.search_scan_bytes, settings.max_searches,
            settings.max_searches_per_key, self._files,
        )  # fmt: skip
        self.streams = Streams(
            engine,
            self.search,
            Durability(settings.streams_durability),
            _later,
            IndexFileCoverage(self._files, held_up),
        )
        limits = msgspec.convert(settings, SubscriptionLimits, from_attributes=True)
        self.subscriptions = Subscriptions(
            self.streams, webhooks.deliver, _later, _webhook_loopback(settings), limits
        )  # fmt: skip
        self._system = SystemStreams(self.streams, _system_options(settings), _later, around)
        for shard in engine.shards:
            shard.committed.subscribe(self.searcher.turns.committed)

    def start(self) -> None:
        """Begins the background work: watching for subscriptions, and writing the system streams."""
        self.subscriptions.start()
        self._system.start()

    async def close(self) -> None:
        """Ends the search process and the fetches of index files."""
        await self.searcher.close()
        cache = self._files.cache
        if cache is not None:
            # A piece of an index file may be on its way: waiting for it would block the loop.
            await asyncio.get_running_loop().run_in_executor(None, cache.close)


def _index_files(engine: Engine, settings: Settings, searcher: SearchProcess) -> IndexFiles:
    """The index files of an engine, with a cache on the local disk where they are in an object store."""
    layout, far = engine.layout, engine.segments.far

    def let_go(path: str) -> None:
        if searcher.child_pid is not None:
            searcher.send(Close(path))

    cache = None
    if far is not None:
        runner = ThreadRunner("companions", asyncio.get_running_loop().call_soon_threadsafe)
        cache = IndexFileCache(far, layout, settings.search_cache_bytes, runner, let_go)
    return IndexFiles(PosixFileSystem(), layout, SystemClock.monotonic, cache, let_go)


def _later(seconds: float, function: Callable[[], None]) -> Callable[[], None]:
    return asyncio.get_running_loop().call_later(seconds, function).cancel


class Front:
    """The server without its engine: routes, live delivery, webhooks and the port."""

    def __init__(
        self,
        settings: Settings,
        api: Api,
        ops: OpsHandlers,
        live: Live,
        routes: StreamsApi,
        webhooks: WebhookCaller,
        http: HttpServer,
    ) -> None:
        self.api = api
        self.ops = ops
        self.http = http
        self._settings = settings
        self._live = live
        self._routes = routes
        self._webhooks = webhooks
        self._services: StreamServices | None = None
        self._close_follower: Callable[[], Awaitable[None]] | None = None
        http.sleep_while(self._is_busy)

    def open(self, engine: Engine, held_up: Callable[[Topic], HeldUp | None] = lambda topic: None) -> None:
        """Serves an engine that was started."""
        services = StreamServices(engine, self._settings, self._webhooks, self._around, held_up)
        self._services = services
        self._live.open(engine, services.search)
        self._routes.open(services.streams, services.subscriptions)
        if not engine.options.following:
            services.start()
        self.ops.history.stop()
        self.ops.history.start(lambda: sample_of(engine, self.http), _later)
        self.api.engine = engine

    def _is_busy(self) -> bool:
        engine, services = self.api.engine, self._services
        return engine is not None and (engine.committing or (services is not None and services.searcher.is_asked))

    async def follow(self, engine: Engine) -> None:
        """Serves reads from an engine of a standby in place of the one before. Connections that wait there are ended,
        and their clients connect again."""
        loop, counters, before = asyncio.get_running_loop(), self.http.counters, list(self.api.waits)
        engine.start(loop, ThreadWorkers(loop, lambda: counters.heard))
        close = self._close_follower
        standby = self.ops.standby
        assert standby is not None
        self.api.standby = StandbyRules(lambda: standby.lag_ms, lambda: self.api.primary)
        self.open(engine)
        services = self._services

        async def close_this() -> None:
            if services is not None:
                await services.close()
            await engine.close()

        self._close_follower = close_this
        await self._end(before, close)

    async def end_following(self) -> None:
        """The primary's own engine was opened, or the server stops."""
        before = list(self.api.waits) if self.api.standby is not None else []
        close, self._close_follower, self.api.standby = self._close_follower, None, None
        await self._end(before, close)

    async def _end(self, waiting: list[Waiting], close: Callable[[], Awaitable[None]] | None) -> None:
        for one in waiting:
            one.end()
        if close is not None:
            await close()

    async def close(self) -> None:
        """Ends webhook calls in progress, the search process and the port."""
        self.ops.history.stop()
        await self._webhooks.close()
        if self._services is not None:
            await self._services.close()
        await self.http.drain(0.0)
        if self.api.tracing is not None:
            await self.api.tracing.close()
        if self.api.audit is not None:
            self.api.audit.close()

    def _around(self) -> Around:
        """The server's own numbers, for the metrics stream of the engine."""
        counters, pipeline = self.http.counters, self.ops.pipeline_state()
        return Around(
            requests=counters.requests, received_bytes=counters.bytes_in, sent_bytes=counters.bytes_out,
            connections=counters.connections_open, unread_bytes=self.http.unread_bytes,
            pipeline_lag_ms=pipeline.lag_ms, pipeline_lag_segments=pipeline.lag_segments,
            pipeline_lag_bytes=pipeline.lag_bytes,
        )  # fmt: skip


def build_front(settings: Settings, keys: KeyRing, clock: Clock, entropy: Entropy) -> Front:
    tracing = _tracing(settings, clock)
    webhooks = _webhook_caller(settings, tracing)
    streams = stream_routes(settings)
    keys.tokens = Tokens(clock, entropy)
    ops = OpsHandlers(clock, streams, webhooks)
    ops.console.files = console_site()
    ops.reference.files = reference_site()
    ops.limits = {name: value for name, value in msgspec.structs.asdict(settings).items() if name.startswith("max_")}
    live_limits = msgspec.convert(settings, LiveLimits, from_attributes=True)
    live = ops.live = Live(live_limits, keys, clock, entropy)
    api = Api(ops.routes(), keys, clock, settings.max_body_bytes, settings.max_inflight_per_key, live)
    api.probe_auth = _is_on(settings.probe_auth)
    api.tracing = tracing
    if settings.tracing == "export" and tracing is not None:
        api.route_counters.subscribe(tracing.answered)
    access_log = AccessLog(_trusted_proxies(settings))
    if _is_on(settings.access_log):
        api.route_counters.subscribe(access_log.answered)
    api.browsers = _browser_rules(settings, with_keys=not keys.is_open)
    ops.api = api
    http = ops.http = HttpServer(api, _http_limits(settings), clock)
    return Front(settings, api, ops, live, streams, webhooks, http)


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    on_ready: Callable[[str], None] | None = None,
    on_reload: Callable[[Callable[[], None]], None] | None = None,
) -> None:
    """Serves on the running loop until `stop` is set and everything accepted is safe.

    `on_reload` is given what reads the files of keys and of the certificate again, and opens the audit log anew. The
    keys in the settings are dropped once they are parsed.
    """
    # Found at the start, and not when the pipeline first runs.
    check_place(settings.archive_dir, "TOPICS_ARCHIVE_DIR")
    check_data_folder(settings.data_dir, settings.full_disk_reserve_bytes + settings.wal_file_bytes)
    store = _read_keys(settings)
    certificate = _read_certificate(settings)
    front = build_front(settings, store.ring, SystemClock(), SystemEntropy())
    front.api.scheme = "http" if certificate is None else "https"
    front.api.audit = _open_audit(settings)
    if on_reload is not None and (settings.key_file or certificate or settings.audit_file):
        on_reload(lambda: _reload(settings, store, front.api, certificate))
    addresses = await front.http.start(settings.host, settings.port, certificate)
    watching = asyncio.create_task(_watch_keys(store, front.api)) if settings.key_file else None
    try:
        shown = _announce(addresses[0], settings, with_keys=not store.ring.is_open)
        url = settings.advertise_url or f"{front.api.scheme}://{shown}"
        lease = await _take_lease(settings, front, stop, url)
        if lease is not None or not settings.primary_lease_ms:
            await _run_engine(settings, front, stop, lease, None if on_ready is None else partial(on_ready, shown))
    finally:
        if watching is not None:
            watching.cancel()
        if front.ops.lease is not None:
            # Last: the next primary begins at once.
            await asyncio.to_thread(front.ops.lease.release)
        await front.end_following()
        await front.close()


def _http_limits(settings: Settings) -> HttpLimits:
    requested = settings.max_connections
    allowed = connections_within(raise_limit(requested + FILES), requested)
    if allowed < requested:
        _logger.warning("file descriptor limit reduces connections", extra={"connections_max": allowed})
    return HttpLimits(
        body_bytes=settings.max_body_bytes,
        awake_s=settings.awake_us / 1_000_000,
        connections_max=allowed,
        unread_bytes=settings.max_unread_bytes,
        http2=_is_on(settings.http2),
    )


def stream_routes(settings: Settings) -> StreamsApi:
    """The routes of /v1, for an engine that is given later."""
    values = {**msgspec.structs.asdict(settings), "immutable": _is_on(settings.streams_immutable)}
    inspection = ServerRoutes(settings, engine_options(settings).wal_shards)
    return StreamsApi(msgspec.convert(values, StreamOptions), inspection)


def _webhook_caller(settings: Settings, tracing: Tracing | None) -> WebhookCaller:
    try:
        return WebhookCaller(_webhook_loopback(settings), settings.streams_webhook_ca_file, tracing)
    except OSError as error:
        # Found at the start, and not when the first webhook fails.
        raise SettingsError(
            f"TOPICS_STREAMS_WEBHOOK_CA_FILE is {settings.streams_webhook_ca_file!r}, which holds no certificates: "
            f"{error.strerror or error}"
        ) from error


def _system_options(settings: Settings) -> SystemOptions:
    return SystemOptions(
        streams_registry=_is_on(settings.streams_registry), streams_metrics=_is_on(settings.streams_metrics),
        streams_metrics_ms=settings.streams_metrics_ms,
        streams_metrics_retention_ms=settings.streams_metrics_retention_ms,
    )  # fmt: skip


def _browser_rules(settings: Settings, *, with_keys: bool) -> BrowserRules:
    """A server without keys that listens for others does so on purpose, under names that it does not know."""
    try:
        return BrowserRules(
            keyless=not with_keys, any_host=not _is_loopback(settings.host), hosts=settings.allowed_hosts,
            origins=settings.cors_origins,
        )  # fmt: skip
    except BadOriginError as error:
        raise SettingsError(f"TOPICS_ALLOWED_HOSTS or TOPICS_CORS_ORIGINS: {error}") from error


def _trusted_proxies(settings: Settings) -> TrustedProxies:
    try:
        return TrustedProxies(settings.trusted_proxies)
    except BadProxyError as error:
        raise SettingsError(f"TOPICS_TRUSTED_PROXIES: {error}") from error


def _tracing(settings: Settings, clock: Clock) -> Tracing | None:
    if settings.tracing != "export":
        return Tracing(clock.monotonic) if settings.tracing == "pass" else None
    try:
        # Only a caller that wants spans has it, and loading it takes a while.
        from topics.api.spans import Spans  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError(f"TOPICS_TRACING=export needs the extra otel: {install_command('otel')}") from error
    return Tracing(clock.monotonic, Spans(settings.otel_endpoint, settings.otel_sample_percent, clock.now_ms))


def _webhook_loopback(settings: Settings) -> bool:
    """Whether webhooks may call this machine.

    A server behind a proxy listens on loopback too, and the holder of a key must not reach other services there.
    """
    if settings.streams_webhook_loopback != "auto":
        return settings.streams_webhook_loopback == "1"
    with_keys = settings.api_keys or settings.key_file
    return not with_keys and not _is_on(settings.allow_insecure_no_auth)


def _read_keys(settings: Settings) -> KeyStore:
    """The keys, kept as digests only; refuses to serve strangers by accident."""
    if settings.api_keys == _DROPPED:
        raise SettingsError("these settings have served before, and their keys were dropped: read them again")
    try:
        keys = KeyStore(settings.api_keys, settings.key_file)
    except BadKeyError as error:
        raise SettingsError(f"TOPICS_API_KEYS: {error}") from error
    if settings.api_keys is not None:
        # The settings live as long as the process, and must not hold secrets.
        msgspec.structs.force_setattr(settings, "api_keys", _DROPPED)
    if keys.ring.is_open and not _is_loopback(settings.host) and not _is_on(settings.allow_insecure_no_auth):
        raise SettingsError(
            f"TOPICS_HOST is {settings.host}, which others can reach, and no keys are set: set TOPICS_API_KEYS "
            "or TOPICS_KEY_FILE, or TOPICS_ALLOW_INSECURE_NO_AUTH=1 if everyone may read, change and delete everything"
        )
    return keys


def _read_certificate(settings: Settings) -> Certificate | None:
    cert_file, key_file = settings.tls_cert_file, settings.tls_key_file
    if cert_file is None and key_file is None:
        return None
    if cert_file is None or key_file is None:
        raise SettingsError("TOPICS_TLS_CERT_FILE and TOPICS_TLS_KEY_FILE are set together, or neither is")
    try:
        return Certificate(cert_file, key_file, http2=_is_on(settings.http2))
    except OSError as error:
        raise SettingsError(
            f"TOPICS_TLS_CERT_FILE {cert_file!r} and TOPICS_TLS_KEY_FILE {key_file!r} make no certificate: {error}"
        ) from error


def _open_audit(settings: Settings) -> Audit | None:
    if settings.audit_file is None:
        return None
    try:
        return Audit(settings.audit_file, SystemClock().now_ms, _trusted_proxies(settings))
    except OSError as error:
        raise SettingsError(f"TOPICS_AUDIT_FILE {settings.audit_file!r} cannot be opened: {error}") from error


def _is_on(switch: str) -> bool:
    return switch in ("1", "true")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _serve_until_signalled(settings: Settings, on_ready: Callable[[str], None] | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # Without anything to read again the signal does nothing: its default would end the server, during recovery as well.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: None)
    reloading = partial(asyncio.get_running_loop().add_signal_handler, signal.SIGHUP)
    await serve(settings, stop, on_ready, reloading)


def _reload(settings: Settings, keys: KeyStore, api: Api, certificate: Certificate | None) -> None:
    """Reload keys and certificates after SIGHUP."""
    if settings.key_file is not None:
        _reload_keys(keys, api)
    if certificate is not None:
        try:
            certificate.reload()
        except OSError as error:
            _logger.error("certificate reload failed", extra={"error": str(error)})
        else:
            _logger.info("certificate reloaded")
    if api.audit is not None:
        api.audit.reopen()


async def _watch_keys(keys: KeyStore, api: Api) -> None:
    """Loads the key file whenever it has changed, so that created and revoked keys count without a signal."""
    while True:
        await asyncio.sleep(_KEY_FILE_POLL_S)
        if keys.has_changed():
            _reload_keys(keys, api)


def _reload_keys(keys: KeyStore, api: Api) -> None:
    """Loads the key file. An invalid file changes nothing: no key is added or revoked by a mistake in it."""
    try:
        gone = keys.reload()
    except KeyFileError as error:
        _logger.error("key file reload failed", extra={"error": str(error)})
        return
    api.let_go(gone)
    _logger.info("key file reloaded", extra={"keys": len(keys.ring), "gone": [key.name for key in gone]})


async def _take_lease(settings: Settings, front: Front, stop: asyncio.Event, url: str) -> LeaseKeeper | None:
    """Waits until this server may be the primary, with its data folder ready. None where no lease is asked for, or when
    it was stopped before."""
    if not settings.primary_lease_ms:
        if _is_on(settings.standby):
            raise SettingsError("TOPICS_STANDBY needs TOPICS_PRIMARY_LEASE_MS, the lease that a standby waits for")
        return None
    options = engine_options(settings)
    if options.backup_dir is None or not (options.backup_log_bytes and options.backup_ship_ms):
        raise SettingsError(
            "TOPICS_PRIMARY_LEASE_MS needs TOPICS_BACKUP_DIR, which holds the lease, and shipped log: "
            "TOPICS_BACKUP_LOG_BYTES and TOPICS_BACKUP_SHIP_MS above 0"
        )
    if settings.primary_lease_ms < LEASE_MS_MIN:
        raise SettingsError(
            f"TOPICS_PRIMARY_LEASE_MS is {settings.primary_lease_ms}; accepted are 0 and {LEASE_MS_MIN} or more"
        )
    place = Place(guest_files(options.backup_dir), options.backup_dir)
    standby = Standby(
        place, PosixFileSystem(), options, url, settings.primary_lease_ms, SystemClock(), SystemEntropy(),
        lambda address: setattr(front.api, "primary", address),
    )  # fmt: skip
    waits = _is_on(settings.standby)
    taking = _in_thread("topics-standby", lambda: standby.become_primary(waits))
    stopping = asyncio.create_task(stop.wait())
    following = _follow_primary(settings, front, place, options) if waits and _is_on(settings.standby_reads) else None
    await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
    standby.stop.set()
    if following is not None and front.ops.standby is not None:
        # A restore that goes on in its thread ends by itself: the takeover does not wait for it.
        front.ops.standby.stop()
        following.cancel()
        await asyncio.wait((following,), timeout=1.0)
        front.ops.standby.close()
    if not taking.done():
        # A takeover that is cut short begins again at the next start.
        taking.cancel()
        return None
    stopping.cancel()
    front.ops.lease = taking.result()
    front.api.primary = None
    return front.ops.lease


def _follow_primary(settings: Settings, front: Front, place: Place, options: EngineOptions) -> asyncio.Task[None]:
    """Serves reads from the log of the primary, until the standby is stopped."""
    reads = front.ops.standby = StandbyReads(
        place, PosixFileSystem(), options, SystemClock(), SystemEntropy(), settings.standby_poll_ms,
        lambda: front.api.primary or "", front.follow, partial(_in_thread, "topics-follower"), boot_id(),
    )  # fmt: skip
    return asyncio.create_task(reads.run())


async def _run_engine(
    settings: Settings, front: Front, stop: asyncio.Event, lease: LeaseKeeper | None,
    on_ready: Callable[[], None] | None,
) -> None:  # fmt: skip
    api, ops = front.api, front.ops
    recovery = _recover_in_thread(settings, lambda done: setattr(api, "replay_progress", done))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((recovery, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not recovery.done():
        # To abandon a replay is to crash in it, which the next replay must survive anyway; waiting gains nothing.
        recovery.cancel()
        _logger.warning("stopped during recovery")
        return
    engine = recovery.result()
    loop, counters = asyncio.get_running_loop(), front.http.counters
    lost = asyncio.Event()
    if lease is not None:
        engine.hold_lease(lease, lease.restored_from)
        lease.on_lost = lambda: _signal(loop, lost)
    engine.start(loop, ThreadWorkers(loop, lambda: counters.heard))
    tune_collector()
    if lease is not None and not lease.shows_all:
        # Readers must not see what a takeover would not have.
        _logger.info("waiting for the first backup")
        while engine.backups.last is None and not (stop.is_set() or lost.is_set()):
            await asyncio.sleep(_FIRST_BACKUP_POLL_S)
    record_first_use(settings)
    supervisor = Supervisor(settings, PosixFileSystem(), SystemClock(), lambda: _work_number(engine, settings))
    front.open(engine, lambda topic: held_up(supervisor, topic.name))
    await front.end_following()
    if ops.standby is not None:
        _in_thread("topics-cleanup", ops.standby.clean_up)
    ops.pipeline_state = lambda: pipeline_answer(supervisor, _sealed_since(engine, supervisor), engine.wall())
    supervisor.start()
    _logger.info("ready", extra={"data_dir": settings.data_dir, "topics": engine.topic_count})
    if on_ready is not None:
        on_ready()
    if lease is None:
        await stopping
    else:
        losing = asyncio.create_task(lost.wait())
        await asyncio.wait((stopping, losing), return_when=asyncio.FIRST_COMPLETED)
        losing.cancel()
    _logger.info("shutting down")
    # The port stays open until the end, so that a caller that asks is told to go elsewhere instead of being turned
    # away.
    api.drain()
    await supervisor.stop()
    drain_s, began = settings.drain_ms / 1000.0, asyncio.get_running_loop().time()
    await front.http.finish_uploads(drain_s)
    if lease is not None and not lost.is_set():
        await _ship_rest(engine, drain_s)
    await engine.close()
    left_s = began + drain_s - asyncio.get_running_loop().time()
    await front.http.drain(max(left_s, min(drain_s, _LAST_ANSWERS_S)))
    _logger.info("stopped")
    stopping.cancel()
    if lost.is_set() and lease is not None:
        lease.check()


def _signal(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    loop.call_soon_threadsafe(event.set)


async def _ship_rest(engine: Engine, patience_s: float) -> None:
    """Ships the log to its end, so that the next primary misses nothing."""
    shipped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    engine.ship_rest(lambda outcome: None if shipped.done() else shipped.set_result(None))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(shipped, patience_s)


def _work_number(engine: Engine, settings: Settings) -> int:
    """The last catalog in which anything changed that a pipeline with these settings works on."""
    catalog = engine.checkpointer.catalog
    return catalog.work_number if _is_on(settings.archive) else catalog.families_number


def held_up(supervisor: Supervisor, stream: str) -> HeldUp | None:
    """Why the families of a stream do not go on."""
    if supervisor.state == "unavailable":
        return HeldUp(reason=supervisor.reason or "", install=INSTALL)
    found = supervisor.quarantine_of(stream, INDEX_PRODUCT)
    if found is None and supervisor.fails(INDEX_PRODUCT):
        return HeldUp(reason=FAILING, attempts=supervisor.status().failures, retry_at_ms=supervisor.retry_at_ms)
    if found is None:
        return None
    return HeldUp(reason=found.reason, since_ms=found.since_ms, attempts=found.attempts, retry_at_ms=found.retry_at_ms)


def _sealed_since(engine: Engine, supervisor: Supervisor) -> Unlisted:
    """The segments that were sealed after the lag in the status was counted, in a catalog or not yet in one."""
    unlisted, status, catalog = engine.sealer.unlisted(), supervisor.status(), engine.checkpointer.catalog
    # Without an archive the pipeline leaves most topics out. An earlier version counted no segments.
    if not supervisor.archives or (status.listed is None and status.updated_ms):
        return unlisted
    known = catalog.listed
    sealed = Listed(known.segments + unlisted.segments, known.records + unlisted.records, known.bytes + unlisted.bytes)
    fresh = sealed.since(status.listed or Listed())
    if not fresh.segments:
        return Unlisted(0, 0, None)
    times = [oldest for number, oldest in list(catalog.newest_listed) if number > status.lag_catalog]
    times += [] if unlisted.oldest_ts is None else [unlisted.oldest_ts]
    # After a restart the times are unknown: most records are as new as the last look of the pipeline.
    oldest = min(times, default=status.updated_ms or engine.wall())
    return Unlisted(fresh.segments, fresh.bytes, oldest, fresh.records)


def pipeline_answer(supervisor: Supervisor, sealed: Unlisted, now_ms: int) -> PipelineAnswer:
    """The supervisor's state as an API answer. Segments that were `sealed` since the last round count as lag."""
    status = supervisor.status()
    if sealed.oldest_ts is not None and (supervisor.enabled or supervisor.archives):
        status = msgspec.structs.replace(
            _behind(status, sealed, now_ms),
            products=tuple(_behind(one, sealed, now_ms) if one.product == ARCHIVE else one for one in status.products),
        )
    rows = next((one.rows for one in status.products if one.product == ARCHIVE), None)
    reported = {
        **msgspec.structs.asdict(status), "run": supervisor.progress, "rows": rows, "state": supervisor.state,
        "reason": supervisor.reason, "restarts": supervisor.restarts, "requests": supervisor.requests,
        "paused": supervisor.paused,
    }  # fmt: skip
    inner = {name: msgspec.to_builtins(reported[name]) for name in PipelineAnswer.__struct_fields__}
    return msgspec.convert(inner, PipelineAnswer)


Lagging = TypeVar("Lagging", PipelineStatus, ProductStatus)


def _behind(status: Lagging, sealed: Unlisted, now_ms: int) -> Lagging:
    return msgspec.structs.replace(
        status,
        lag_segments=status.lag_segments + sealed.segments,
        lag_bytes=status.lag_bytes + sealed.bytes,
        lag_records=status.lag_records + sealed.records,
        lag_ms=max(status.lag_ms, now_ms - (sealed.oldest_ts or now_ms), 0),
    )


def _recover_in_thread(settings: Settings, progress: Callable[[float], None]) -> asyncio.Future[Engine]:
    """Replays the log beside the event loop. The thread is a daemon because an abandoned one must not hold up the exit,
    for which asyncio's own threads would be waited for.
    """
    options = engine_options(settings)
    clock = SystemClock()
    near = Layout(settings.data_dir).near
    fs = server_files(settings.cold_dir, near, settings.cold_cache_bytes, clock.monotonic)
    backup_fs = None if settings.backup_dir is None else guest_files(settings.backup_dir)

    def recover() -> Engine:
        if not _is_on(settings.shared_files):
            make_private(settings.data_dir)
        with collector_paused():
            return Engine.recover(
                fs, options, clock, SystemEntropy(), boot_id=boot_id(), progress=progress, backup_fs=backup_fs
            )

    return _in_thread("topics-recovery", recover)


def _in_thread(name: str, call: Callable[[], T]) -> asyncio.Future[T]:
    """Runs a call beside the event loop, in a daemon thread: an abandoned one does not hold up the exit."""
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        outcome.set_running_or_notify_cancel()
        try:
            result = call()
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return asyncio.wrap_future(outcome)


def _announce(address: tuple[str, int], settings: Settings, *, with_keys: bool) -> str:
    host, port = address
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    _logger.info("listening", extra={"address": shown, "version": __version__})
    if not with_keys:
        _logger.warning(
            "AUTHENTICATION IS DISABLED: any client that can reach this address has full access",
            extra={"address": shown},
        )
    if settings.port_file is not None:
        write_whole(settings.port_file, shown)
    return shown
