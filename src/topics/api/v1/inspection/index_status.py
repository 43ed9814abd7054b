"""`_index_status`: which indexes a stream asks for, and how far they are.

Which families there are follows from what the stream promises; how far each is, `topics.streams.search.coverage` tells.
Everything is about this stream alone and nothing moves by itself, so that the resource changes only when it does.
"""

from typing import Any

from topics.core.moments import write_time
from topics.engine.topic import Topic
from topics.schema.contract import Contract
from topics.schema.profiles.metrics import Metrics
from topics.schema.search import SearchConfig
from topics.streams.contracts import contract_of
from topics.streams.search.coverage import Coverage, Family, HeldUp, IndexCoverage


def index_status(topic: Topic, coverage: IndexCoverage) -> dict[str, Any]:
    contract = contract_of(topic)
    registry = contract.registry
    config, keyed = registry.search_config, registry.routing_key is not None
    # Without a description nothing is indexed, and so nothing is behind.
    wanted = len(topic.segments)
    bundle = coverage.of(topic, "companions")
    return {
        "stream": topic.name,
        "profile": contract.profile.kind,
        "desired_index_plan_generation": coverage.generation(topic),
        "segments": {"total_count": wanted, "uploaded_count": wanted},
        "manifest": _manifest(topic, coverage),
        "routing_key_index": {"configured": keyed, **_run(topic, coverage.of(topic, "routing"), wanted * keyed)},
        "routing_key_lexicon": {"configured": keyed, **_run(topic, coverage.of(topic, "lexicon"), wanted * keyed)},
        "exact_indexes": [] if config is None else _exact(topic, coverage, config),
        "bundled_companions": {
            "object_count": bundle.objects,
            "bytes_at_rest": str(bundle.bytes),
            "fully_indexed_uploaded_segments": config is None or bundle.segments >= wanted,
            # As with what is held up below: only there where it says something.
            **({"cold_bytes_at_rest": str(bundle.cold_bytes)} if bundle.cold_bytes else {}),
        },
        "search_families": [
            _family(topic, coverage, family, fields) for family, fields in declared_families(contract)
        ],
        **(_held_up(coverage.held_up(topic)) if config is not None or keyed else {}),
    }  # fmt: skip


def declared_families(contract: Contract) -> list[tuple[Family, list[str]]]:
    """The families that a stream asks for, each with the fields, or rollups, that are in it."""
    config = contract.registry.search_config
    if config is None:
        return []
    fields = sorted(config.fields.items())
    declared: list[tuple[Family, list[str]]] = [
        ("col", [name for name, field in fields if field.column]),
        ("fts", [name for name, field in fields if field.kind == "text" or field.prefix]),
        ("agg", sorted(config.rollups)),
    ]
    found = [(family, names) for family, names in declared if names]
    if isinstance(contract.profile, Metrics):
        found.append(("mblk", []))
    return found


def _manifest(topic: Topic, coverage: IndexCoverage) -> dict[str, Any]:
    manifest = coverage.manifest(topic)
    return {
        "generation": manifest.generation,
        "uploaded_generation": manifest.generation,
        "last_uploaded_at": _time(manifest.published_ms),
        "last_uploaded_etag": manifest.etag,
        "last_uploaded_size_bytes": None if manifest.bytes is None else str(manifest.bytes),
    }


def _held_up(held: HeldUp | None) -> dict[str, Any]:
    """A field that is only there where something is wrong: other servers of this protocol have none of the kind."""
    if held is None:
        return {}
    times = {"since": _time(held.since_ms), "retry_at": _time(held.retry_at_ms)}
    return {"held_up": {"reason": held.reason, "install": held.install, "attempts": held.attempts, **times}}


def _exact(topic: Topic, coverage: IndexCoverage, config: SearchConfig) -> list[dict[str, Any]]:
    """The exact index of every field that has one."""
    wanted, told = len(topic.segments), []
    for name, field in sorted(config.fields.items()):
        if field.exact and field.kind != "text":
            one = coverage.of(topic, "exact", name)
            stale = bool(one.stale) or (one.segments < wanted and not one.segments)
            run = _run(topic, one, wanted)
            updated = run.pop("updated_at")
            told.append({"name": name, "kind": field.kind, **run, "stale_configuration": stale, "updated_at": updated})
    return told


def _family(topic: Topic, coverage: IndexCoverage, family: Family, fields: list[str]) -> dict[str, Any]:
    one, wanted = coverage.of(topic, family), len(topic.segments)
    return {
        "family": family,
        "fields": fields,
        "plan_generation": coverage.generation(topic),
        "covered_segment_count": one.segments,
        "contiguous_covered_segment_count": one.contiguous,
        **_lag(topic, one, wanted),
        "bytes_at_rest": str(one.bytes),
        "object_count": one.objects,
        "stale_segment_count": one.stale,
        "fully_indexed_uploaded_segments": one.segments >= wanted,
        "updated_at": _time(one.updated_ms),
    }


def _run(topic: Topic, one: Coverage, wanted: int) -> dict[str, Any]:
    return {
        "indexed_segment_count": one.segments,
        **_lag(topic, one, wanted),
        "bytes_at_rest": str(one.bytes),
        "object_count": one.objects,
        "active_run_count": one.runs,
        "retired_run_count": one.retired_runs,
        "fully_indexed_uploaded_segments": one.segments >= wanted,
        "updated_at": _time(one.updated_ms),
    }


def _lag(topic: Topic, one: Coverage, wanted: int) -> dict[str, Any]:
    """How far a family is behind. By the times of entries and not of the clock: a quiet stream falls behind no
    further."""
    behind = None if one.through_ms is None else str(max(topic.last_write_ts - one.through_ms, 0))
    return {"lag_segments": max(wanted - one.segments, 0), "lag_ms": behind}


def _time(millis: int | None) -> str | None:
    return None if millis is None else write_time(millis)
