"""What the server holds in memory, part by part, with the names that clients of the protocol know.

The protocol was written down for a server on another runtime, with SQLite in it. What does not exist here is 0, null or
empty; docs/streams.md tells which.
"""

from typing import Any

from topics.api.v1.inspection.server_limits import configured_limits
from topics.config.settings import Settings
from topics.core.moments import write_time
from topics.engine.engine import Engine
from topics.streams.search.stats import SearchStats
from topics.system.process_memory import process_memory

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
    """Looks at the memory when it is asked to, and remembers the most that it ever saw."""

    def __init__(self, settings: Settings, shards: int) -> None:
        self._settings = settings
        self._limits = configured_limits(settings, shards)
        self._highest: dict[str, Any] = {}

    def look(self, engine: Engine, search: SearchStats) -> Numbers:
        """The parts, by the names that they have in `runtime.memory` of the server's details."""
        told, core = process_memory(), engine.core
        subsystems = self._subsystems(engine, search)
        mapped = sum(subsystems["mapped_files"].values())
        parts: Numbers = {
            "process": {
                "rss_bytes": told.resident,
                "heap_total_bytes": told.anonymous,
                "heap_used_bytes": sum(subsystems["heap_estimates"].values()),
                "external_bytes": 0,
                "array_buffers_bytes": 0,
            },
            "process_breakdown": {
                "source": "linux_proc_status" if told.known else "none",
                "rss_anon_bytes": told.anonymous,
                "rss_file_bytes": told.files,
                "rss_shmem_bytes": told.shared,
                "js_managed_bytes": 0,
                "js_external_non_array_buffers_bytes": 0,
                "mapped_file_bytes": mapped,
                "sqlite_runtime_bytes": 0,
                "unattributed_anon_bytes": max(told.anonymous - sum(subsystems["heap_estimates"].values()), 0),
                "unattributed_rss_bytes": max(told.resident - mapped, 0),
            },
            "sqlite": SQLITE,
            "gc": GC,
            "subsystems": subsystems,
            "totals": {total: sum(subsystems[group].values()) for total, group in _TOTALS.items()},
        }
        self._remember(parts, write_time(core.wall()))
        # From the kernel, which has looked all the time.
        highest = max(told.highest_resident, told.resident)
        return {
            "pressure_active": core.retention.tail_bytes > self._settings.tail_memory_bytes,
            "pressure_limit_bytes": self._settings.tail_memory_bytes,
            "last_rss_bytes": told.resident,
            "max_rss_bytes": highest,
            **parts,
            "high_water": self._highest,
        }

    def _subsystems(self, engine: Engine, search: SearchStats) -> dict[str, Numbers]:
        core, limits, stats = engine.core, self._limits["caches"], engine.stats()
        cached = 0 if stats.cold_store is None else stats.cold_store.cache_bytes
        shards = core.shards
        return {
            "heap_estimates": {
                "ingest_queue_payload_bytes": sum([shard.queue_bytes for shard in shards]),
                "routing_run_cache_bytes": 0,
                "exact_run_cache_bytes": 0,
                "mock_r2_in_memory_bytes": 0,
                "tail_bytes": core.retention.tail_bytes,
                "seal_backlog_bytes": engine.sealer.backlog_bytes,
            },
            "mapped_files": {
                "segment_cache_mapped_bytes": core.store.mapped_bytes,
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
                "segment_mapped_files": core.store.mapped_count,
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
