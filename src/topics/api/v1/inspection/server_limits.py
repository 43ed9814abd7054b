"""What an operator has set, in the words of the protocol. A limit that this server does not have is 0."""

from typing import Any

from topics.api.v1.deadlines import REQUEST_TIMEOUT_S
from topics.api.v1.searches import SEARCH_TIMEOUT_MS
from topics.api.v1.writes import APPEND_TIMEOUT_S
from topics.config.settings import Settings
from topics.engine.workers import READERS
from topics.storage.objects.remote import CALL_S

_SEALERS = 1
"""Threads that write segments."""


def configured_limits(settings: Settings, shards: int) -> dict[str, Any]:
    """`shards` are the parts of the log that are written at the same time."""
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
