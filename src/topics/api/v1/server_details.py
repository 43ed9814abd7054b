"""`GET /v1/server/_details` and `GET /v1/server/_mem`: the server's settings and state."""

from collections.abc import Callable
from heapq import heappushpop
from itertools import islice
from typing import Any

import msgspec

from topics.api.app import Call
from topics.api.v1.protocol import NO_STORE, REQUEST_TIMEOUT_S, answer
from topics.api.v1.search import SEARCH_TIMEOUT_MS
from topics.api.v1.writes import APPEND_TIMEOUT_S
from topics.engine.disk_threads import READERS
from topics.engine.engine import Engine
from topics.engine.topic import Topic
from topics.log.object_store.obstore_client import CALL_S
from topics.model.settings import Settings
from topics.search.service.backend import SearchStats
from topics.streams.invalidation import StreamInvalidation
from topics.streams.read import ContentSizes
from topics.streams.streams import Streams
from topics.system.fair_scheduler import Task
from topics.system.process import process_memory
from topics_protocol.rfc3339 import write_time

# Settings by the names of the protocol. A limit that this server does not have is 0.

_SEALERS = 1
"""The number of threads that write segments."""


def configured_limits(settings: Settings, shards: int) -> dict[str, Any]:
    """`shards` is the number of parts of the log that are written concurrently."""
    on_spark = int(settings.pipeline != "off")
    return {
        "caches": {
            "sqlite_cache_bytes": 0,
            "worker_sqlite_cache_bytes": 0,
            "index_run_memory_cache_bytes": settings.search_memory_bytes,
            "index_run_disk_cache_bytes": 0,
            "lexicon_index_cache_bytes": 0,
            "segment_cache_bytes": settings.cold_cache_bytes,
            "companion_toc_cache_bytes": 0,
            "companion_section_cache_bytes": 0,
            "companion_file_cache_bytes": settings.search_cache_bytes,
        },
        "concurrency": {
            "ingest": shards,
            "read": READERS,
            "search": 1,
            "async_index": on_spark,
            "upload": 1,
            "index_build": on_spark,
            "index_compact": 0,
        },
        "ingest": {
            "max_batch_requests": 0,
            "max_batch_bytes": settings.max_body_bytes,
            "max_queue_requests": 0,
            "max_queue_bytes": settings.commit_queue_bytes * shards,
            "busy_timeout_ms": 0,
            "local_backlog_max_bytes": settings.max_total_bytes,
        },
        "search": {
            "companion_batch_segments": 0,
            "companion_yield_blocks": 0,
            "wal_overlay_quiet_period_ms": 0,
            "wal_overlay_max_bytes": settings.search_stream_bytes,
        },
        "segmenting": {
            "segment_max_bytes": settings.segment_max_bytes,
            "segment_target_rows": settings.segment_max_events,
            "segmenter_workers": _SEALERS,
        },
        "timeouts": {
            "append_request_timeout_ms": int(APPEND_TIMEOUT_S * 1000),
            "search_request_timeout_ms": SEARCH_TIMEOUT_MS,
            "resolver_timeout_ms": int(REQUEST_TIMEOUT_S * 1000),
            "object_store_timeout_ms": int(CALL_S * 1000),
        },
        "memory": {"pressure_limit_bytes": settings.tail_memory_bytes},
    }


# Memory of the server by component, under the names of the protocol.
#
# The protocol was specified for a server on another runtime, with SQLite. Fields that do not exist here are 0, null or
# empty; docs/streams/inspection.md lists them.

Numbers = dict[str, Any]

SQLITE: Numbers = {
    "available": False,
    "source": "none",
    **dict.fromkeys(
        (
            "memory_used_bytes", "memory_highwater_bytes", "pagecache_used_slots", "pagecache_used_slots_highwater",
            "pagecache_overflow_bytes", "pagecache_overflow_highwater_bytes", "malloc_count", "malloc_count_highwater",
            "open_connections", "prepared_statements",
        ),
        0,
    ),
}  # fmt: skip
GC: Numbers = {
    "forced_gc_count": 0,
    "forced_gc_reclaimed_bytes_total": 0,
    "last_forced_gc_at_ms": None,
    "last_forced_gc_before_bytes": None,
    "last_forced_gc_after_bytes": None,
    "last_forced_gc_reclaimed_bytes": None,
    "heap_snapshots_written": 0,
    "last_heap_snapshot_at_ms": None,
}
_NO_COUNTS = (
    "routing_run_cache_entries", "routing_run_disk_cache_entries", "routing_run_disk_cache_mapped_entries",
    "routing_run_disk_cache_pinned_entries", "exact_run_cache_entries", "exact_run_disk_cache_entries",
    "exact_run_disk_cache_mapped_entries", "exact_run_disk_cache_pinned_entries", "secondary_index_stream_idle_ticks",
    "lexicon_cached_files", "lexicon_mapped_files", "lexicon_pinned_files", "companion_cached_files",
    "companion_mapped_files", "companion_pinned_files", "mock_r2_object_count", "mock_r2_in_memory_bytes",
    "uploader_inflight_segments", "uploader_manifest_inflight_streams", "segmenter_active_builds",
    "segmenter_active_streams", "segmenter_active_rows", "sqlite_pagecache_used_slots",
    "sqlite_pagecache_used_slots_highwater", "sqlite_malloc_count", "sqlite_malloc_count_highwater",
    "sqlite_open_connections", "sqlite_prepared_statements",
)  # fmt: skip
_TOTALS = {
    "heap_estimate_bytes": "heap_estimates", "mapped_file_bytes": "mapped_files", "disk_cache_bytes": "disk_caches",
    "configured_budget_bytes": "configured_budgets", "pipeline_buffer_bytes": "pipeline_buffers",
    "sqlite_runtime_bytes": "sqlite_runtime",
}  # fmt: skip


class Memory:
    """Measures the memory on request, and keeps the maximum."""

    def __init__(self, settings: Settings, shards: int) -> None:
        self._settings = settings
        self._limits = configured_limits(settings, shards)
        self._highest: dict[str, Any] = {}

    def look(self, engine: Engine, search: SearchStats) -> Numbers:
        """Returns the parts, by their names in `runtime.memory` of the server's details."""
        reported = process_memory()
        subsystems = self._subsystems(engine, search)
        mapped = sum(subsystems["mapped_files"].values())
        parts: Numbers = {
            "process": {
                "rss_bytes": reported.resident,
                "heap_total_bytes": reported.anonymous,
                "heap_used_bytes": sum(subsystems["heap_estimates"].values()),
                "external_bytes": 0,
                "array_buffers_bytes": 0,
            },
            "process_breakdown": {
                "source": "linux_proc_status" if reported.known else "none",
                "rss_anon_bytes": reported.anonymous,
                "rss_file_bytes": reported.files,
                "rss_shmem_bytes": reported.shared,
                "js_managed_bytes": 0,
                "js_external_non_array_buffers_bytes": 0,
                "mapped_file_bytes": mapped,
                "sqlite_runtime_bytes": 0,
                "unattributed_anon_bytes": max(reported.anonymous - sum(subsystems["heap_estimates"].values()), 0),
                "unattributed_rss_bytes": max(reported.resident - mapped, 0),
            },
            "sqlite": SQLITE,
            "gc": GC,
            "subsystems": subsystems,
            "totals": {total: sum(subsystems[group].values()) for total, group in _TOTALS.items()},
        }
        self._remember(parts, write_time(engine.wall()))
        # From the kernel, which measures continuously.
        highest = max(reported.highest_resident, reported.resident)
        return {
            "pressure_active": engine.tail_bytes > self._settings.tail_memory_bytes,
            "pressure_limit_bytes": self._settings.tail_memory_bytes,
            "last_rss_bytes": reported.resident,
            "max_rss_bytes": highest,
            **parts,
            "high_water": self._highest,
        }

    def _subsystems(self, engine: Engine, search: SearchStats) -> dict[str, Numbers]:
        limits, stats = self._limits["caches"], engine.stats()
        cached = 0 if stats.cold_store is None else stats.cold_store.cache_bytes
        shards = engine.shards
        return {
            "heap_estimates": {
                "ingest_queue_payload_bytes": sum([shard.queue_bytes for shard in shards]),
                "routing_run_cache_bytes": 0,
                "exact_run_cache_bytes": 0,
                "mock_r2_in_memory_bytes": 0,
                "tail_bytes": engine.tail_bytes,
                "seal_backlog_bytes": engine.sealer.backlog_bytes,
            },
            "mapped_files": {
                "segment_cache_mapped_bytes": engine.segments.open_bytes,
                **dict.fromkeys(_NOT_MAPPED, 0),
            },
            "disk_caches": {"segment_disk_cache_bytes": cached, **dict.fromkeys(_NOT_CACHED, 0)},
            "configured_budgets": {
                "sqlite_cache_budget_bytes": 0,
                "worker_sqlite_cache_budget_bytes": 0,
                "segment_cache_budget_bytes": limits["segment_cache_bytes"],
                **dict.fromkeys(_NO_BUDGETS, 0),
                "search_memory_budget_bytes": limits["index_run_memory_cache_bytes"],
                "tail_memory_budget_bytes": self._settings.tail_memory_bytes,
            },
            "pipeline_buffers": {
                "segmenter_active_payload_bytes": engine.sealer.backlog_bytes,
                "segmenter_active_segment_bytes_estimate": 0,
                "uploader_inflight_segment_bytes": 0,
            },
            "sqlite_runtime": dict.fromkeys(_NO_SQLITE, 0),
            "counts": {
                "ingest_queue_requests": sum([shard.queue_depth for shard in shards]),
                "segment_disk_cache_entries": 0,
                "segment_mapped_files": engine.segments.open_count,
                "segment_pinned_files": 0,
                "pending_upload_segments": engine.sealer.unlisted().segments,
                **dict.fromkeys(_NO_COUNTS, 0),
                "search_index_bytes": search.memory_bytes,
            },
        }

    def _remember(self, parts: Numbers, now: str) -> None:
        subsystems = {name: group for name, group in parts["subsystems"].items() if name != "counts"}
        for name in ("process", "process_breakdown", "sqlite"):
            _raise(self._highest.setdefault(name, {}), parts[name], now)
        for name, group in subsystems.items():
            _raise(self._highest.setdefault("runtime_bytes", {}).setdefault(name, {}), group, now)
        _raise(self._highest.setdefault("runtime_totals", {}), parts["totals"], now)


def _raise(highest: dict[str, Any], values: Numbers, now: str) -> None:
    for name, value in values.items():
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if is_number and (name not in highest or value > highest[name]["value"]):
            highest[name] = {"value": value, "at": now}


_NOT_MAPPED = (
    "routing_run_disk_cache_mapped_bytes", "exact_run_disk_cache_mapped_bytes", "lexicon_index_mapped_bytes",
    "companion_bundle_mapped_bytes",
)  # fmt: skip
_NOT_CACHED = (
    "routing_run_disk_cache_bytes", "exact_run_disk_cache_bytes", "lexicon_disk_cache_bytes",
    "companion_disk_cache_bytes",
)  # fmt: skip
_NO_BUDGETS = (
    "routing_run_cache_budget_bytes", "routing_run_disk_cache_budget_bytes", "exact_run_cache_budget_bytes",
    "exact_run_disk_cache_budget_bytes", "lexicon_disk_cache_budget_bytes", "companion_disk_cache_budget_bytes",
)  # fmt: skip
_NO_SQLITE = (
    "sqlite_memory_used_bytes", "sqlite_memory_highwater_bytes", "sqlite_pagecache_overflow_bytes",
    "sqlite_pagecache_overflow_highwater_bytes",
)  # fmt: skip


# The largest streams by several measures, among those that a key may use.
#
# There may be a million streams, and counting all of them takes a second. So they are counted in portions, with other
# requests in between. Requests for the same prefixes share one count.

TOP = 5
_STREAMS_A_TURN = 500
_KEY_BYTES = 100
"""The approximate memory of a key in a journal, in bytes."""

TopDone = Callable[[dict[str, Any]], None]


class TopStreams:
    """The largest streams, counted by one task of the fair scheduler after the other."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, ...], list[TopDone]] = {}

    def find(self, streams: Streams, prefixes: tuple[str, ...], done: TopDone) -> None:
        """Calls back with the largest streams within prefixes; no prefixes mean all."""
        if prefixes in self._waiting:
            self._waiting[prefixes].append(done)
            return
        self._waiting[prefixes] = [done]
        streams.engine.run_task(self._count(streams, prefixes), self)

    def _count(self, streams: Streams, prefixes: tuple[str, ...]) -> Task:
        best, after = _Best(), ""
        # From a name on and not from an index: streams may be created and deleted between two turns.
        while some := list(islice(streams.topics("", after, 0, prefixes), _STREAMS_A_TURN)):
            for topic in some:
                best.see(topic)
            after = some[-1].name
            yield None
        found: dict[str, Any] = {"local_storage_bytes": [], "pending_wal_bytes": []}
        for size, topic in best.stored():
            found["local_storage_bytes"].append(_stored(size, topic, streams))
            yield None
        for topic in best.pending():
            found["pending_wal_bytes"].append(_pending(topic, streams))
            yield None
        found |= {"notifier_waiters": best.waited(), "touch_journal_filter_bytes": _journals(streams, prefixes)}
        for done in self._waiting.pop(prefixes):
            done(found)


class _Best:
    """The streams with the highest numbers so far, as small heaps."""

    def __init__(self) -> None:
        self._stored: list[tuple[int, str, Topic]] = [(0, "", _NONE)] * TOP
        self._pending: list[tuple[int, str, Topic]] = [(0, "", _NONE)] * TOP
        self._waited: list[tuple[int, str, Topic]] = [(0, "", _NONE)] * TOP

    def see(self, topic: Topic) -> None:
        # Most streams are idle, with all numbers 0.
        if topic.live_bytes > self._stored[0][0]:
            heappushpop(self._stored, (_local_bytes(topic), topic.name, topic))
        if topic.tail_bytes > self._pending[0][0]:
            heappushpop(self._pending, (topic.tail_bytes, topic.name, topic))
        if topic.waiters and len(topic.waiters) > self._waited[0][0]:
            heappushpop(self._waited, (len(topic.waiters), topic.name, topic))

    def stored(self) -> list[tuple[int, Topic]]:
        return [(size, topic) for size, _, topic in _first(self._stored)]

    def pending(self) -> list[Topic]:
        return [topic for _, _, topic in _first(self._pending)]

    def waited(self) -> list[dict[str, Any]]:
        return [{"stream": name, "waiters": count} for count, name, _ in _first(self._waited)]


def _local_bytes(topic: Topic) -> int:
    """Returns the live bytes that are not in the cold tier."""
    return topic.live_bytes - sum([segment.live_bytes for segment in topic.segments if segment.cold])


_NONE: Any = None


def _first(heap: list[tuple[int, str, Topic]]) -> list[tuple[int, str, Topic]]:
    return sorted([entry for entry in heap if entry[0]], key=lambda entry: (-entry[0], entry[1]))


def _stored(size: int, topic: Topic, streams: Streams) -> dict[str, Any]:
    """`size` is the live bytes on the local disk, entries of bytes as base64."""
    sealed = max(size - sum([block.live_bytes for block in topic.tail]), 0)
    pending = ContentSizes(topic, streams.engine.reader).pending
    return {
        "stream": topic.name, "bytes": sealed + pending, "wal_retained_bytes": pending,
        "segment_cache_bytes": sealed, "index_cache_bytes": 0,
    }  # fmt: skip


def _pending(topic: Topic, streams: Streams) -> dict[str, Any]:
    pending = ContentSizes(topic, streams.engine.reader).pending
    return {"stream": topic.name, "pending_wal_bytes": pending, "pending_rows": topic.tail_count}


def _journals(streams: Streams, prefixes: tuple[str, ...]) -> list[dict[str, Any]]:
    seen = [one for one in streams.active_invalidations() if not prefixes or one.topic.name.startswith(prefixes)]
    return [_journal(one) for one in sorted(seen, key=lambda one: (-one.journal.size, one.topic.name))[:TOP]]


def _journal(touch: StreamInvalidation) -> dict[str, Any]:
    return {
        "stream": touch.topic.name, "journal_filter_bytes": touch.journal.size * _KEY_BYTES,
        "dirty": touch.journal.has_pending, "touch_mode": touch.budget.mode,
    }  # fmt: skip


_encode = msgspec.json.Encoder().encode
_AUTO_TUNE = {
    "enabled": False, "requested_memory_mb": None, "preset_mb": None, "effective_memory_limit_mb": None,
}  # fmt: skip


class ServerRoutes:
    """The handlers; each gets the streams of the call's engine."""

    def __init__(self, settings: Settings, shards: int) -> None:
        self._limits = configured_limits(settings, shards)
        self._memory = Memory(settings, shards)
        self._top = TopStreams()

    def details(self, call: Call, streams: Streams) -> None:
        def reported(top: dict[str, Any]) -> None:
            _answer(
                call,
                {
                    "auto_tune": _AUTO_TUNE,
                    "configured_limits": self._limits,
                    "runtime": {
                        "memory": self._memory.look(call.engine, streams.search.stats()),
                        **self._runtime(call.engine, streams),
                        "top_streams": top,
                    },
                },
            )

        self._top.find(streams, call.key.prefixes, reported)

    def memory(self, call: Call, streams: Streams) -> None:
        def reported(top: dict[str, Any]) -> None:
            engine = call.engine
            memory = self._memory.look(engine, streams.search.stats())
            subsystems = dict(memory["subsystems"])
            counts = subsystems.pop("counts")
            _answer(
                call,
                {
                    "ts": write_time(engine.wall()),
                    "process": memory["process"],
                    "process_breakdown": memory["process_breakdown"],
                    "sqlite": SQLITE,
                    "gc": GC,
                    "high_water": memory["high_water"],
                    "counters": _counters(engine, streams),
                    "runtime_counts": counts,
                    "runtime_bytes": subsystems,
                    "runtime_totals": memory["totals"],
                    "top_streams": top,
                },
            )

        self._top.find(streams, call.key.prefixes, reported)

    def _runtime(self, engine: Engine, streams: Streams) -> Numbers:
        limits = self._limits
        shards, most = engine.shards, limits["ingest"]["local_backlog_max_bytes"]
        queued = sum([shard.queue_depth for shard in shards])
        active = {
            "ingest": sum([bool(shard.queue_depth) for shard in shards]),
            "search": min(streams.search.under_way, limits["concurrency"]["search"]),
        }
        waiting = {
            "ingest": max(queued - active["ingest"], 0),
            "search": max(streams.search.under_way - active["search"], 0),
        }
        return {
            "ingest_queue": {
                "requests": queued,
                "bytes": sum([shard.queue_bytes for shard in shards]),
                "full": any([shard.full for shard in shards]),
            },
            "local_backpressure": {
                "enabled": most > 0,
                "current_bytes": engine.stored_bytes,
                "max_bytes": most,
                "over_limit": 0 < most <= engine.stored_bytes,
            },
            "uploads": {"pending_segments": engine.sealer.unlisted().segments},
            "concurrency": {
                gate: {
                    "configured_limit": limits["concurrency"][gate], "current_limit": limits["concurrency"][gate],
                    "active": active.get(gate, 0), "queued": waiting.get(gate, 0),
                }
                for gate in ("ingest", "read", "search", "async_index")
            },
        }  # fmt: skip


def _counters(engine: Engine, streams: Streams) -> Numbers:
    """Gauges that grow when memory leaks."""
    return {
        "topics.topics": engine.topic_count,
        "topics.routers": len(engine.routing.registry.by_name),
        "topics.tail_bytes": engine.tail_bytes,
        "topics.transactions_open": len(engine.transactions.table.open),
        "topics.touched_streams": len(streams.active_invalidations()),
        "topics.searches_under_way": streams.search.under_way,
        "topics.search_index_bytes": streams.search.stats().memory_bytes,
        "topics.trash": engine.trash_count,
    }


def _answer(call: Call, document: Numbers) -> None:
    answer(call, 200, (NO_STORE,), _encode(document), "application/json")
