"""Metrics: the response of `/v0/metrics`, as Prometheus text or JSON, from one snapshot of engine and server."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import NamedTuple

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from topics.api.request_logs import RouteCounters
from topics.api.v0.request_parsing import allowed_prefixes
from topics.consumers.consumers import ConsumerInfo
from topics.engine.backpressure import ThrottleStats
from topics.engine.engine import Engine
from topics.engine.stats import EngineStats
from topics.engine.topic import Topic
from topics.http.exchange import Exchange
from topics.http.messages import BOUNDS_S
from topics.http.server import HttpServer
from topics.log.object_store.store import StoreStats
from topics.model.topic_config import TopicType
from topics.search.service.backend import SearchStats
from topics.system.fair_scheduler import Task
from topics.system.process import ProcessNumbers
from topics_protocol.v0 import PipelineAnswer, PipelineProduct

# The most important metrics under short names: `/v0/metrics` as JSON, for scripts.


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """State of the server outside the engine."""

    ready: bool
    recovery_progress: float
    uptime_ms: int
    sse_connections: int = 0
    watch_sessions: int = 0
    queue_leases_in_flight: int = 0
    webhook_calls: int = 0
    webhook_failures: int = 0
    search: SearchStats = msgspec.field(default_factory=SearchStats)
    primary_term: int = 0
    lease_left_ms: int = 0
    lease_failures: int = 0
    standby_lag_ms: int = -1
    standby_objects: int = 0
    standby_restores: int = 0
    standby_failures: int = 0


def server_summary(state: ServerState) -> dict[str, object]:
    """A summary that is available during recovery."""
    return {
        "ready": state.ready,
        "replay_progress": state.recovery_progress,
        "uptime_ms": state.uptime_ms,
        "sse_connections": state.sse_connections,
        "watch_sessions": state.watch_sessions,
        "queue_leases_in_flight": state.queue_leases_in_flight,
    }


def engine_summary(stats: EngineStats) -> dict[str, object]:
    shards = stats.shards
    return {
        "topics": stats.topics,
        **{f"topics_{name}": count for name, count in stats.topics_by_class.items()},
        "routers": stats.routers,
        "records_live": stats.records_live,
        "bytes_live": stats.bytes_live,
        "queue_topics": stats.queue_topics,
        "wal": {
            "frames": sum(s.frames_total for s in shards),
            "batches": sum(s.batches_total for s in shards),
            "fsyncs": sum(s.fsyncs_total for s in shards),
            "bytes_written": sum(s.bytes_written_total for s in shards),
            "rotations": sum(s.rotations_total for s in shards),
            "queue_depth": sum(s.queue_depth for s in shards),
            "queue_depth_peak": max((s.queue_depth_peak for s in shards), default=0),
            "submit_full_total": sum(s.submit_full_total for s in shards),
            "read_only": sum(s.read_only for s in shards),
            "fsync_count": sum(s.fsync_latency_count for s in shards),
            "fsync_micros_total": sum(s.fsync_latency_sum_us for s in shards),
        },
    }


# The metrics that have a series for each topic: the only ones of which there may be thousands.
#
# They are put together here. The library makes an object of each sample and sorts and escapes the labels of each, which
# for a thousand queues stops the event loop for 30 ms; what it would write is written, some topics at a time
# (`topics.api.metrics`).

TOPIC_SERIES_MAX = 1000
_TOPICS_A_PIECE = 250
_encode = msgspec.json.Encoder().encode
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class TopicSeries(NamedTuple):
    """A gauge with a value for each of some topics, or of some consumers of topics."""

    name: str
    text: str
    topics: Sequence[str]
    values: Sequence[float]
    consumers: Sequence[str] = ()
    """Of each value, where it is one of a consumer."""

    def text_pieces(self) -> Iterator[bytes]:
        """The lines of Prometheus's text format."""
        name = self.name
        yield f"# HELP {name} {self.text}\n# TYPE {name} gauge\n".encode()
        for labels, values in self._some():
            yield "".join(
                [
                    f"{name}{{{','.join(_label(*one) for one in of.items())}}} {float(value)!r}\n"
                    for of, value in zip(labels, values, strict=True)
                ]
            ).encode()

    def json_pieces(self) -> Iterator[bytes]:
        """The samples as the elements of a list, as the library would have them."""
        comma, name = b"", self.name
        for labels, values in self._some():
            samples = [{"name": name, "labels": of, "value": value} for of, value in zip(labels, values, strict=True)]
            yield comma + _encode(samples)[1:-1]
            comma = b","

    def _some(self) -> Iterator[tuple[Sequence[dict[str, str]], Sequence[float]]]:
        for first in range(0, len(self.topics), _TOPICS_A_PIECE):
            end = first + _TOPICS_A_PIECE
            labels = [{"topic": topic} for topic in self.topics[first:end]]
            for of, consumer in zip(labels, self.consumers[first:end], strict=False):
                of["consumer"] = consumer
            yield labels, self.values[first:end]


def _label(name: str, value: str) -> str:
    return f'{name}="{value.translate(_ESCAPED)}"'


def are_truncated(engine: Engine, prefixes: tuple[str, ...] = ()) -> bool:
    """Returns whether more topics or consumers than the series limit are visible to a key with these prefixes."""
    if engine.consumers.count > TOPIC_SERIES_MAX and len(_consumers(engine, prefixes, TOPIC_SERIES_MAX + 1)) > (
        TOPIC_SERIES_MAX
    ):
        return True
    return len(_first(engine, prefixes, TOPIC_SERIES_MAX + 1)) > TOPIC_SERIES_MAX


def _first(engine: Engine, prefixes: tuple[str, ...], count: int) -> list[Topic]:
    """The first topics by name, at the cost of the topics found. Internal topics of the server are left out."""
    names = chain.from_iterable(engine.names_from(prefix, "") for prefix in allowed_prefixes("", prefixes))
    topics = (engine.peek_existing(name) for name in names)
    return list(islice((one for one in topics if one.guard is None or not one.guard.hides(one)), count))


def series_of(engine: Engine, prefixes: tuple[str, ...] = ()) -> list[TopicSeries]:
    """The series of the first topics, by name, that a key with these prefixes may see."""
    topics = _first(engine, prefixes, TOPIC_SERIES_MAX)
    names = [topic.name for topic in topics]
    queues = [topic for topic in topics if topic.config.type is TopicType.QUEUE]
    queue_names = [topic.name for topic in queues]
    jobs = [engine.queues.counters_of(topic) for topic in queues]
    dead = "Jobs moved to the dead-letter topic."
    return [
        TopicSeries("topics_topic_head_seq", "Highest seq assigned.", names, [t.head for t in topics]),
        TopicSeries("topics_topic_earliest_seq", "First live seq.", names, [t.earliest for t in topics]),
        TopicSeries("topics_topic_records_live", "Live records.", names, [t.live_count for t in topics]),
        TopicSeries("topics_topic_bytes_live", "Live payload bytes.", names, [t.live_bytes for t in topics]),
        TopicSeries("topics_topic_queue_ready", "Jobs that can be claimed.", queue_names, [j.ready for j in jobs]),
        TopicSeries(
            "topics_topic_queue_in_flight", "Jobs leased to workers.", queue_names, [j.in_flight for j in jobs]
        ),
        TopicSeries("topics_topic_queue_delayed", "Delayed jobs.", queue_names, [j.delayed for j in jobs]),
        TopicSeries("topics_topic_queue_dead_lettered", dead, queue_names, [j.dead_lettered for j in jobs]),
        *_consumer_series(engine, prefixes),
    ]


def _consumers(engine: Engine, prefixes: tuple[str, ...], count: int) -> list[ConsumerInfo]:
    """The first consumers, by topic and name."""
    found: list[ConsumerInfo] = []
    for prefix in allowed_prefixes("", prefixes):
        found += engine.consumers.list_all(prefix, limit=count - len(found))
    return found


def _consumer_series(engine: Engine, prefixes: tuple[str, ...]) -> list[TopicSeries]:
    """The lag of the first consumers, by topic and name."""
    found = _consumers(engine, prefixes, TOPIC_SERIES_MAX)
    topics, names = [one.topic for one in found], [one.consumer for one in found]
    age = "Age of the first record behind a consumer's cursor in seconds."
    return [
        TopicSeries(
            "topics_consumer_lag_records", "Seqs behind a consumer's cursor.", topics, [one.lag for one in found], names
        ),
        TopicSeries("topics_consumer_lag_seconds", age, topics, [one.lag_ms / 1000 for one in found], names),
    ]


def as_text(series: Sequence[TopicSeries]) -> Iterator[bytes]:
    """The lines of Prometheus's text format, piece by piece."""
    return chain.from_iterable(one.text_pieces() for one in series)


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Snapshot(Collector):
    """Everything measured at one moment."""

    def __init__(
        self,
        state: ServerState,
        engine: Engine | None,
        http: HttpServer | None,
        pipeline: PipelineAnswer | None = None,
        prefixes: tuple[str, ...] = (),
    ) -> None:
        """`prefixes` are those of the requesting key, which sees no other topics."""
        self._state = state
        self._engine = engine
        self._http = http
        self._pipeline = pipeline
        self._prefixes = prefixes
        self.route_counters: RouteCounters | None = None
        self.process: ProcessNumbers | None = None
        self.by_topic = True
        """Whether each topic has separate series."""

    def text(self) -> bytes:
        return b"".join(self.text_pieces())

    def text_pieces(self) -> Iterator[bytes]:
        """The text of Prometheus, piece by piece; everything is measured when the first is asked for."""
        series = self._by_topic()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        yield generate_latest(registry)
        yield from as_text(series)

    def json(self) -> bytes:
        return b"".join(self.json_pieces())

    def json_pieces(self) -> Iterator[bytes]:
        """One object: the summary, then every metric by its name, as a number or, with labels, as a list of samples."""
        series = self._by_topic()
        answer = server_summary(self._state)
        if self._engine is not None:
            answer |= engine_summary(self._engine.stats())
        for metric in self.collect():
            samples = [
                {"name": sample.name, "labels": sample.labels, "value": sample.value} for sample in metric.samples
            ]
            plain = len(samples) == 1 and not samples[0]["labels"]
            answer[_exposed_name(metric)] = samples[0]["value"] if plain else samples
        yield _encode(answer)[:-1]
        for one in series:
            yield b",%b:[" % _encode(one.name)
            yield from one.json_pieces()
            yield b"]"
        yield b"}"

    def _by_topic(self) -> list[TopicSeries]:
        return [] if self._engine is None or not self.by_topic else series_of(self._engine, self._prefixes)

    def collect(self) -> Iterator[Metric]:
        """Everything but the series by topic."""
        state = self._state
        yield _gauge("topics_ready", "1 when requests are served, 0 during recovery and shutdown.", state.ready)
        yield _gauge("topics_recovery_progress", "Progress of the log replay, 0 to 1.", state.recovery_progress)
        yield _gauge("topics_uptime_ms", "Milliseconds since the server started.", state.uptime_ms)
        yield _gauge(
            "topics_primary_term", "Term of this primary; 0 without a lease, as on a standby.", state.primary_term
        )
        yield _gauge(
            "topics_lease_left_ms", "Time for which writes are accepted without a renewal.", state.lease_left_ms
        )
        yield _counter("topics_lease_failures", "Failed renewals of the lease.", state.lease_failures)
        yield _gauge(
            "topics_standby_lag_ms",
            "Age of a standby's state; -1 unless it serves reads.",
            state.standby_lag_ms,
        )
        yield _counter("topics_standby_objects", "Objects of shipped log that were applied.", state.standby_objects)
        yield _counter("topics_standby_restores", "Backups that a standby restored.", state.standby_restores)
        yield _counter("topics_standby_failures", "Failed attempts of a standby to follow.", state.standby_failures)
        yield _gauge("topics_sse_connections", "Open event streams and WebSockets.", state.sse_connections)
        yield _gauge("topics_watch_sessions", "Watch sessions.", state.watch_sessions)
        leases = state.queue_leases_in_flight
        yield _gauge("topics_queue_leases_in_flight", "Jobs leased to workers.", leases)
        yield _counter("topics_webhook_calls", "Webhook calls, successful or not.", state.webhook_calls)
        yield _counter("topics_webhook_failures", "Webhook calls that failed.", state.webhook_failures)
        yield from _search_metrics(state.search)
        if self._http is not None:
            yield from _http_metrics(self._http)
        if self.route_counters is not None:
            yield from _route_metrics(self.route_counters)
        if self.process is not None:
            yield from _process_metrics(self.process)
        if self._pipeline is not None:
            yield from _pipeline_metrics(self._pipeline)
        if self._engine is not None:
            stats = self._engine.stats()
            yield from _engine_metrics(stats)
            yield from _schedule_metrics(stats)
            yield from _wal_metrics(stats)
            yield from _throttle_metrics(stats.throttle)
            if stats.cold_store is not None:
                yield from _cold_store_metrics(stats.cold_store)
            left_out = not self.by_topic or are_truncated(self._engine, self._prefixes)
            yield _gauge("topics_topic_metrics_truncated", "1 when the per-topic series leave topics out.", left_out)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=float(value))


def _search_metrics(stats: SearchStats) -> Iterator[Metric]:
    yield _counter("topics_searches", "Searches, aggregations and routing key lists.", stats.queries)
    yield _counter("topics_search_failures", "Searches that failed.", stats.failures)
    yield _counter("topics_search_seconds", "Total search time in seconds.", stats.seconds)
    yield _counter("topics_search_entries", "Entries examined by searches.", stats.entries)
    spent = CounterMetricFamily(
        "topics_search_budgets_spent",
        "Incomplete searches, by exhausted budget: time, bytes or memory.",
        labels=["budget"],
    )
    spent.add_metric(["time"], stats.out_of_time)
    spent.add_metric(["memory"], stats.out_of_memory)
    spent.add_metric(["bytes"], stats.out_of_bytes)
    yield spent
    yield _counter(
        "topics_search_scanned_bytes",
        "Bytes scanned without an index by searches and filtered reads.",
        stats.scanned_bytes,
    )
    yield _counter("topics_search_processes_lost", "Search processes that ended unexpectedly.", stats.processes_lost)
    fetches = CounterMetricFamily(
        "topics_search_companion_fetches",
        "Index files requested from the object store, by outcome.",
        labels=["outcome"],
    )
    for outcome, count in stats.fetches.items():
        fetches.add_metric([outcome], count)
    yield fetches
    yield _gauge("topics_search_cache_bytes", "Bytes of cached index files of the object store.", stats.cache_bytes)
    yield _gauge("topics_search_index_bytes", "Memory of the in-memory search indexes.", stats.memory_bytes)


def _http_metrics(http: HttpServer) -> Iterator[Metric]:
    counters = http.counters
    yield _gauge("topics_http_connections", "Open connections.", counters.connections_open)
    yield _gauge(
        "topics_http_connections_max",
        "Maximum of open connections, as the file descriptor limit allows.",
        http.connections_max,
    )
    yield _gauge("topics_http_unread_bytes", "Answer bytes that clients have not read.", http.unread_bytes)
    yield _counter("topics_http_connections", "Connections accepted.", counters.connections_total)
    yield _gauge("topics_http2_connections", "Open HTTP/2 connections.", counters.http2_connections_open)
    yield _counter("topics_http2_connections", "HTTP/2 connections accepted.", counters.http2_connections_total)
    yield _counter("topics_http_requests", "Requests with a complete head.", counters.requests)
    yield _counter("topics_http_refused", "Requests refused before a handler saw them.", counters.refused)
    yield _counter("topics_http_received_bytes", "Bytes received.", counters.bytes_in)
    yield _counter("topics_http_sent_bytes", "Bytes sent.", counters.bytes_out)


def _route_metrics(route_counters: RouteCounters) -> Iterator[Metric]:
    said = "Answers by method, route and status; route is empty if none matched."
    answers = CounterMetricFamily("topics_http_route_requests", said, labels=["method", "route", "status"])
    said = "Time from request head to answer; after 1000 answers of a route one in sixteen is measured."
    took = HistogramMetricFamily("topics_http_request_duration_seconds", said, labels=["method", "route"])
    for method, path, counter in route_counters:
        for status, count in counter.answers():
            answers.add_metric([method, path, str(status)], count)
        if counter.looked:
            bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
            below = list(zip(bounds, accumulate(map(float, counter.buckets)), strict=True))
            took.add_metric([method, path], below, counter.spent_s)
    yield answers
    yield took


def _process_metrics(now: ProcessNumbers) -> Iterator[Metric]:
    """Under the names that every dashboard knows."""
    yield _counter("process_cpu_seconds", "CPU time of the server process.", now.cpu_s)
    yield _gauge("process_resident_memory_bytes", "Resident memory of the server process.", now.resident_bytes)
    yield _gauge("process_virtual_memory_bytes", "Virtual memory of the server process.", now.virtual_bytes)
    yield _gauge("process_start_time_seconds", "Start time of the server process, seconds since 1970.", now.started_s)
    yield _gauge("process_threads", "Threads of the server process.", now.threads)
    yield _gauge("process_max_fds", "File descriptor limit of the server process.", now.descriptors_max)


def _pipeline_metrics(pipeline: PipelineAnswer) -> Iterator[Metric]:
    running, rate = pipeline.state == "running", pipeline.last_run.records_per_s if pipeline.last_run else 0.0
    yield _gauge("topics_pipeline_running", "1 while a process runs the pipeline, supervised or by hand.", running)
    yield _gauge(
        "topics_pipeline_lag_segments",
        "Sealed segments not processed by the pipeline, also those not in the catalog yet.",
        pipeline.lag_segments,
    )
    yield _gauge("topics_pipeline_lag_records", "Records of the unprocessed segments.", pipeline.lag_records)
    yield _gauge("topics_pipeline_lag_bytes", "Bytes of the unprocessed segments.", pipeline.lag_bytes)
    yield _gauge("topics_pipeline_lag_ms", "Age of the oldest unprocessed record.", pipeline.lag_ms)
    yield _counter("topics_pipeline_rounds", "Pipeline rounds that had work.", pipeline.rounds)
    yield _counter("topics_pipeline_records", "Records published by the pipeline.", pipeline.records)
    yield _counter("topics_pipeline_bytes", "Bytes of the records published by the pipeline.", pipeline.bytes)
    yield _gauge("topics_pipeline_rows", "Rows that the archive's table shows.", pipeline.rows or 0)
    job = None if pipeline.run is None else pipeline.run.job
    tasks, done = (job.tasks, job.tasks_done) if job is not None else (0, 0)
    yield _gauge("topics_pipeline_job_tasks", "Tasks of the current job.", tasks)
    yield _gauge("topics_pipeline_job_tasks_done", "Finished tasks of the current job.", done)
    yield _counter("topics_pipeline_segments", "Segments processed by the pipeline.", pipeline.segments)
    yield _counter("topics_pipeline_restarts", "Unexpected exits of the pipeline process.", pipeline.restarts)
    yield _gauge("topics_pipeline_failures", "Failed pipeline rounds since the last success.", pipeline.failures)
    worker = pipeline.worker
    memory, start_ms = (worker.memory_bytes, worker.start_ms) if worker is not None else (0, 0)
    yield _gauge(
        "topics_pipeline_memory_bytes",
        "Memory of the pipeline process, Java and task workers after the last round.",
        memory,
    )
    yield _gauge("topics_pipeline_start_ms", "Start-up time of Spark in the pipeline.", start_ms)
    quarantined = len(pipeline.quarantined)
    yield _gauge("topics_pipeline_quarantined_topics", "Topics quarantined by the pipeline.", quarantined)
    yield _gauge("topics_pipeline_records_per_s", "Records per second of the last round.", rate)
    yield from _product_metrics(pipeline.products)


def _product_metrics(products: Sequence[PipelineProduct]) -> Iterator[Metric]:
    """The archive, the families and the other products of the pipeline, each separately."""
    gauges = {
        "lag_segments": "Sealed segments not processed for a product: archive or families (index files).",
        "lag_records": "Records of the unprocessed segments.",
        "lag_ms": "Age of the oldest unprocessed record.",
        "quarantined": "Topics or other subjects quarantined for a product.",
        "records_per_s": "Records per second of a product in its last round with work.",
    }
    counters = {
        "records": "Records processed for a product.",
        "bytes": "Bytes of the records processed for a product.",
        "failures": "Failed topics and skipped rounds of a product.",
    }
    for kinds, family in ((gauges, GaugeMetricFamily), (counters, CounterMetricFamily)):
        for name, text in kinds.items():
            metric = family(f"topics_pipeline_product_{name}", text, labels=["product"])
            for one in products:
                metric.add_metric([one.product], float(getattr(one, name)))
            yield metric


def _schedule_metrics(stats: EngineStats) -> Iterator[Metric]:
    yield _gauge("topics_schedules", "Schedules.", stats.schedules)
    yield _counter("topics_schedule_jobs", "Jobs appended by schedules since the start.", stats.schedule_jobs_total)
    yield _gauge("topics_schedules_failing", "Schedules whose last run failed.", stats.schedules_failing)
    failed = "Failed runs of schedules since the start; they are tried again."
    yield _counter("topics_schedule_failures", failed, stats.schedule_failures_total)


def _engine_metrics(stats: EngineStats) -> Iterator[Metric]:
    yield _gauge("topics_topics", "Topics.", stats.topics)
    by_class = GaugeMetricFamily("topics_topics_by_class", "Topics of each durability class.", labels=["class"])
    for name, count in stats.topics_by_class.items():
        by_class.add_metric([name], count)
    yield by_class
    yield _gauge("topics_queue_topics", "Queue topics.", stats.queue_topics)
    yield _gauge("topics_records_live", "Live records of all topics.", stats.records_live)
    yield _gauge("topics_bytes_live", "Live payload bytes of all topics.", stats.bytes_live)
    yield _gauge("topics_system_topics", "Topics that the server writes, in no other number.", stats.system_topics)
    yield _gauge("topics_system_records_live", "Live records that the server wrote.", stats.system_records_live)
    yield _gauge("topics_system_bytes_live", "Live payload bytes that the server wrote.", stats.system_bytes_live)
    yield _gauge("topics_tail_bytes", "Memory of records that are not in a segment yet.", stats.tail_bytes)
    yield _gauge("topics_memory_kept_bytes", "Memory that counts against max_memory_bytes.", stats.memory_kept_bytes)
    yield _gauge(
        "topics_seal_backlog_bytes", "Payload waiting to be written to segment files.", stats.seal_backlog_bytes
    )
    yield _gauge(
        "topics_seal_failures", "Failed attempts to write a segment since the last success.", stats.seal_failures
    )
    yield _gauge("topics_routers", "Routers.", stats.routers)
    yield _gauge(
        "topics_routers_blocked",
        "Routers that cannot forward, for example into a full destination.",
        stats.routers_blocked,
    )
    yield _gauge("topics_router_lag", "Records not forwarded yet, over all routers.", stats.router_lag)
    yield _gauge(
        "topics_router_forwarded", "Copies made by existing routers since their creation.", stats.forwarded_total
    )
    yield _gauge(
        "topics_dead_letters_waiting", "Live records of the dead-letter topics of queues.", stats.dead_letters_waiting
    )
    yield _gauge(
        "topics_dead_letters_oldest_ms", "Age of the oldest dead letter; 0 without any.", stats.dead_letters_oldest_ms
    )
    yield _gauge(
        "topics_dead_letters_overdue",
        "Dead-letter topics whose oldest record is as old as dead_letter_attention_ms.",
        stats.dead_letters_overdue,
    )
    kept = "Attempts to move a job that its dead-letter topic refused."
    yield _counter("topics_dead_letters_refused", kept, stats.dead_letters_refused)
    gave_up = "Topics that came to evict uncommitted records of a consumer, beyond retain_for_consumers."
    yield _counter("topics_consumer_retention_exceeded", gave_up, stats.consumers_given_up)
    yield _gauge("topics_transactions_open", "Open transactions.", stats.transactions_open)
    yield _gauge(
        "topics_transactions_staged_bytes",
        "Bytes staged by open transactions, part of topics_bytes_live.",
        stats.transactions_staged_bytes,
    )
    yield _counter(
        "topics_transactions_committed", "Transactions committed since the start.", stats.transactions_committed_total
    )
    yield _counter(
        "topics_transactions_aborted", "Transactions aborted or expired since the start.",
        stats.transactions_aborted_total,
    )  # fmt: skip
    yield _counter("topics_checkpoints", "Checkpoints taken.", stats.checkpoints_total)
    yield _gauge("topics_checkpoint_failures", "Failed checkpoints since the last success.", stats.checkpoint_failures)


def _wal_metrics(stats: EngineStats) -> Iterator[Metric]:
    shards = stats.shards
    yield _counter("topics_wal_frames", "Frames written to the log.", sum(s.frames_total for s in shards))
    yield _counter(
        "topics_wal_batches",
        "Group commits; frames per commit show how many writes share one.",
        sum(s.batches_total for s in shards),
    )
    yield _counter("topics_wal_fsyncs", "Syncs (fsync) of the log.", sum(s.fsyncs_total for s in shards))
    yield _counter("topics_wal_bytes_written", "Bytes written to the log.", sum(s.bytes_written_total for s in shards))
    yield _counter("topics_wal_rotations", "Log file rotations.", sum(s.rotations_total for s in shards))
    yield _gauge("topics_wal_queue_depth", "Writes queued for the log.", sum(s.queue_depth for s in shards))
    peak = max((s.queue_depth_peak for s in shards), default=0)
    yield _gauge("topics_wal_queue_depth_peak", "Highest queue depth of a log shard.", peak)
    refused = sum(s.submit_full_total for s in shards)
    yield _counter("topics_wal_submit_full", "Writes refused because the log queue was full.", refused)
    read_only = sum(s.read_only for s in shards)
    yield _gauge(
        "topics_wal_read_only", "Log shards that refuse writes; above 0 for long needs an operator.", read_only
    )
    yield _gauge(
        "topics_disk_full", "1 while the disk is full and only requests that free space are accepted.", stats.disk_full
    )
    yield _fsync_histogram(stats)
    yield _counter("topics_backups", "Completed backups.", stats.backups_total)
    yield _counter("topics_backup_failures", "Failed backups.", stats.backup_failures_total)
    yield _counter("topics_backup_copied_bytes", "Bytes copied to the backup storage.", stats.backup_copied_bytes)
    yield _counter(
        "topics_backup_shipped_bytes", "Log bytes shipped to the backup storage.", stats.backup_shipped_bytes
    )
    yield _counter(
        "topics_backup_shipped_objects", "Objects of shipped log in the backup storage.", stats.backup_shipped_objects
    )
    yield _gauge("topics_remote_waiting", "Acknowledgements of class remote not yet stored.", stats.remote_waiting)
    yield _counter(
        "topics_remote_timeouts", "Writes of class remote that were answered 503 in doubt.", stats.remote_timeouts_total
    )
    yield _counter("topics_backup_ship_failures", "Failed attempts to ship the log.", stats.backup_ship_failures_total)
    lag = -1 if stats.backup_lag_ms is None else stats.backup_lag_ms
    yield _gauge(
        "topics_backup_lag_ms",
        "Age of the newest state in the backup storage; -1 before the first backup.",
        lag,
    )


def _throttle_metrics(stats: ThrottleStats) -> Iterator[Metric]:
    yield _gauge("topics_pressure", "Backpressure, 0 to 1.", stats.pressure)
    readings = GaugeMetricFamily(
        "topics_pressure_reading",
        "Components of the backpressure, 0 to 1: event_loop, deliveries, commits, queue.",
        labels=["of"],
    )
    for name, value in stats.readings.items():
        readings.add_metric([name], value)
    yield readings
    level = "Backpressure level: 0 none, 1 coalesced deliveries, 2 wider commits, 3 deferred topics, 4 refused appends."
    yield _gauge("topics_throttle_level", level, stats.throttle_level)
    yield _gauge("topics_loop_lag_ms", "Lag of the event loop at the last measurement.", stats.loop_lag_ms)
    yield _gauge("topics_commit_ms", "Duration of commits at the last measurement.", stats.commit_ms)
    yield _gauge("topics_coalesce_window_ms", "Current minimum time between deliveries.", stats.coalesce_window_ms)
    window = "Current group commit delay caused by backpressure."
    yield _gauge("topics_commit_window_ms", window, stats.commit_window_ms)
    yield _gauge("topics_scheduler_waiting", "Topics with pending notifications.", stats.topics_waiting)
    yield _gauge("topics_scheduler_deferred", "Topics deferred by backpressure.", stats.topics_deferred)
    yield _counter("topics_scheduler_told", "Notifications sent to watchers.", stats.watchers_told_total)
    joined = "Changes merged into a pending notification."
    yield _counter("topics_scheduler_coalesced", joined, stats.wakes_coalesced_total)
    put_off = "Deferrals of topics by backpressure."
    yield _counter("topics_scheduler_deferrals", put_off, stats.topics_deferred_total)
    yield _counter("topics_throttle_refused", "Appends refused by backpressure.", stats.appends_refused_total)
    yield _gauge("topics_throttle_parked", "Appends waiting for admission.", stats.appends_parked)
    yield _counter("topics_throttle_waits", "Appends that waited for admission.", stats.appends_parked_total)
    yield _counter(
        "topics_throttle_wait_ms", "Total time that appends waited for admission.", stats.append_wait_ms_total
    )


def _cold_store_metrics(stats: StoreStats) -> Iterator[Metric]:
    text = "Completed object store requests, by kind and outcome."
    requests = CounterMetricFamily("topics_cold_store_requests", text, labels=["kind", "outcome"])
    for kind, outcomes in stats.requests.items():
        for outcome, count in outcomes.items():
            requests.add_metric([kind, outcome], count)
    yield requests
    yield _counter("topics_cold_store_received_bytes", "Bytes received from the object store.", stats.received_bytes)
    yield _counter("topics_cold_store_sent_bytes", "Bytes sent to the object store.", stats.sent_bytes)
    paused = "1 while requests to the object store are paused after a failure."
    yield _gauge("topics_cold_store_paused", paused, stats.paused)
    yield _gauge(
        "topics_cold_cache_bytes", "Evictable bytes of cached segments of the object store.", stats.cache_bytes
    )
    yield _counter("topics_cold_cache_hits", "Segments found in the local cache.", stats.cache_hits)
    yield _counter("topics_cold_cache_misses", "Segments fetched from the object store.", stats.cache_misses)


def _fsync_histogram(stats: EngineStats) -> Metric:
    total: dict[int, int] = {}
    for shard in stats.shards:
        for bound, count in shard.fsync_latency_us:
            total[bound] = total.get(bound, 0) + count
    count = sum(s.fsync_latency_count for s in stats.shards)
    buckets = [(str(bound), float(below)) for bound, below in sorted(total.items())] + [("+Inf", float(count))]
    spent = sum(s.fsync_latency_sum_us for s in stats.shards)
    return HistogramMetricFamily(
        "topics_wal_fsync_latency_us", "Duration of a log sync in microseconds.", buckets, spent
    )


def _exposed_name(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type == "counter" else str(metric.name)


def scrape(exchange: Exchange, pieces: Iterator[bytes], content_type: str) -> Task:
    """Answers a scrape, as a task of the fair scheduler.

    Values are measured when the scrape begins. Formatting them takes ten times as long, some tens of milliseconds with
    a thousand topics, so it is done in pieces."""
    formatted: list[bytes] = []
    for piece in pieces:
        formatted.append(piece)
        yield None
    exchange.respond(200, b"".join(formatted), content_type)
