"""`_details`: everything about one stream in one answer.

It says nothing of other streams or of the server as a whole: whoever waits for news of a stream must not be woken by
somebody else's.
"""

from typing import Any

import msgspec

from topics.api.v1.inspection.index_status import index_status
from topics.core.moments import write_time
from topics.core.rows import ROW_BYTES
from topics.engine.streams.state import stream_of
from topics.engine.topic import Topic
from topics.schema.profiles.resource import profile_json
from topics.schema.registry import registry_json
from topics.streams.contracts import contract_of
from topics.streams.lifecycle import describe
from topics.streams.search.coverage import Family, IndexCoverage
from topics.streams.service import Streams

_INDEX_FAMILIES: tuple[Family, ...] = ("routing", "lexicon", "companions")


def stream_details(topic: Topic, streams: Streams) -> dict[str, Any]:
    contract, coverage = contract_of(topic), streams.coverage
    return {
        "stream": _summary(topic),
        "profile": msgspec.Raw(profile_json(contract.profile)),
        "schema": msgspec.Raw(registry_json(contract.registry, topic.name)),
        "index_status": index_status(topic, coverage),
        "storage": storage_of(topic, coverage),
        # Requests to the object store are counted for the server as a whole.
        "object_store_requests": {**dict.fromkeys(_REQUESTS, "0"), "by_artifact": []},
    }


_REQUESTS = ("puts", "reads", "gets", "heads", "lists", "deletes")


def tail_text_bytes(topic: Topic) -> int:
    """What the unsealed entries hold, as they are stored."""
    return topic.tail_bytes - ROW_BYTES * topic.tail_count


def _summary(topic: Topic) -> dict[str, Any]:
    info, state, segments = describe(topic), stream_of(topic), topic.segments
    sealed = str(segments[-1].last_seq - 1 if segments else -1)
    written = write_time(topic.last_write_ts or topic.created_ts)
    pending_rows, pending_bytes = str(topic.tail_count), str(sum([block.payload_bytes for block in topic.tail]))
    return {
        "name": topic.name,
        "content_type": info.content_type,
        "profile": info.profile,
        "created_at": write_time(topic.created_ts),
        "updated_at": written,
        "expires_at": None if info.deadline_ms is None else write_time(info.deadline_ms),
        "ttl_seconds": info.ttl_s,
        "stream_seq": state.last_seq if state is not None else None,
        "closed": info.closed,
        "epoch": topic.epoch,
        "next_offset": str(topic.head),
        "sealed_through": sealed,
        "uploaded_through": sealed,
        "segment_count": len(segments),
        "uploaded_segment_count": len(segments),
        "pending_rows": pending_rows,
        "pending_bytes": pending_bytes,
        "total_size_bytes": str(topic.live_bytes),
        "wal_rows": pending_rows,
        "wal_bytes": pending_bytes,
        "last_append_at": written,
        "last_segment_cut_at": write_time(segments[-1].last_written if segments else topic.created_ts),
    }


def storage_of(topic: Topic, coverage: IndexCoverage) -> dict[str, Any]:
    """Where the bytes of a stream are. Objects are what lies in the cold tier; local is what does not."""
    cold = [segment.text_bytes for segment in topic.segments if segment.cold]
    unwritten = sum([segment.text_bytes for segment in topic.segments if segment.blocks is not None])
    local = sum([segment.text_bytes for segment in topic.segments if not segment.cold and segment.blocks is None])
    runs = {family: coverage.of(topic, family) for family in _INDEX_FAMILIES}
    config = contract_of(topic).registry.search_config
    exact = [
        coverage.of(topic, "exact", name) for name, field in (config.fields if config else {}).items() if field.exact
    ]
    # All families are in the same files.
    companions = runs["companions"]
    indexes, near = companions.cold_bytes, companions.bytes - companions.cold_bytes
    manifest, tail = coverage.manifest(topic).bytes or 0, tail_text_bytes(topic)
    return {
        "object_storage": {
            "total_bytes": str(sum(cold) + indexes + manifest),
            "segments_bytes": str(sum(cold)),
            "indexes_bytes": str(indexes),
            "manifest_and_meta_bytes": str(manifest),
            "manifest_bytes": str(manifest),
            "schema_registry_bytes": "0",
            "segment_object_count": len(cold),
            "routing_index_object_count": runs["routing"].objects,
            "routing_lexicon_object_count": runs["lexicon"].objects,
            "exact_index_object_count": sum([one.objects for one in exact]),
            "bundled_companion_object_count": runs["companions"].objects,
        },
        "local_storage": {
            "total_bytes": str(tail + unwritten + local + near),
            "wal_retained_bytes": str(tail),
            "pending_tail_bytes": str(tail),
            "pending_sealed_segment_bytes": str(unwritten),
            "segment_cache_bytes": str(local),
            "companion_cache_bytes": str(near),
            **dict.fromkeys(_NO_CACHES, "0"),
        },
        "companion_families": {
            "exact_bytes": str(sum([one.bytes for one in exact])),
            **{f"{family}_bytes": str(coverage.of(topic, family).bytes) for family in _SECTIONS},
        },
    }


_SECTIONS: tuple[Family, ...] = ("col", "fts", "agg", "mblk")
_NO_CACHES = (
    "routing_index_cache_bytes", "exact_index_cache_bytes", "lexicon_index_cache_bytes", "sqlite_shared_total_bytes",
)  # fmt: skip
"""Parts of a local store that this server does not have."""
