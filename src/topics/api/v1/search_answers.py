"""Answers of searches. What has no counterpart here keeps its type and is 0, null or empty."""

from collections.abc import Callable
from typing import Any

import msgspec

from topics.api.v1.answers import Header
from topics.api.v1.hits import show_hits, shown_place, stream_hits
from topics.api.v1.search_requests import SearchRequest
from topics.core.moments import write_time
from topics.engine.state.runs import Block
from topics.engine.topic import Topic
from topics.indexing.aggregation import Aggregation
from topics.indexing.grammar import parse_query, print_query
from topics.indexing.ranking import Statistics, shown_term, terms_of
from topics.indexing.values import write_date
from topics.streams.offsets import Position, offset_of
from topics.streams.search.families import families_of
from topics.streams.search.fetching import Fetched
from topics.streams.search.outcome import Outcome
from topics.streams.search.packing import chain_of

_ZEROS = (
    "indexed_segment_time_ms", "fts_section_get_ms", "fts_decode_ms", "fts_clause_estimate_ms",
    "scanned_segment_time_ms", "exact_candidate_time_ms",
)  # fmt: skip
_TOLD = (
    "indexed_segments", "indexed_segment_time_ms", "fts_section_get_ms", "fts_decode_ms", "fts_clause_estimate_ms",
    "scanned_segments", "scanned_segment_time_ms", "scanned_tail_docs", "scanned_tail_time_ms",
    "exact_candidate_time_ms", "candidate_doc_ids", "decoded_records", "json_parse_time_ms",
    "segment_payload_bytes_fetched", "sort_time_ms", "peak_hits_held",
)  # fmt: skip
_HEADERS = tuple((f"search-{name.replace('_', '-')}", name) for name in _TOLD)


def search_body(asked: SearchRequest, outcome: Outcome, fetched: Fetched, spent_ms: float) -> dict[str, Any]:
    topic = asked.topic
    shown = show_hits(asked, outcome, fetched, stream_hits)
    took = int(spent_ms)
    explained = {"explain": _explain(asked, outcome)} if asked.explain else {}
    return {
        "stream": topic.name,
        "snapshot_end_offset": offset_of(topic, Position(outcome.head)),
        "took_ms": took,
        "timed_out": outcome.spent == "time",
        "timeout_ms": asked.timeout_ms,
        "coverage": _search_coverage(asked, outcome, took, shown.decoded),
        "total": shown.total,
        "hits": shown.hits,
        "next_search_after": None if shown.next_place is None else shown_after(asked, outcome, shown.next_place),
        **explained,
    }


def _explain(asked: SearchRequest, outcome: Outcome) -> dict[str, Any]:
    topic = asked.topic
    return explain(asked, outcome, lambda seq: offset_of(topic, Position(seq)), "offset")


def explain(asked: SearchRequest, outcome: Outcome, show: Callable[[int], Any], offset: str) -> dict[str, Any]:
    """How the query was understood, and what each part of the plan did. `show` writes an offset, `offset` names it."""
    result = outcome.result
    node = parse_query(asked.query.q)
    parts: list[dict[str, Any]] = [
        {
            "part": "fresh",
            f"first_{offset}": show(outcome.first),
            f"last_{offset}": show(max(outcome.last, outcome.first - 1)),
            "entries": outcome.looked_at_fresh,
        }
    ]
    if outcome.scanned:
        parts.append(
            {
                "part": "scan",
                f"first_{offset}": show(min(part.first for part in outcome.scanned)),
                f"last_{offset}": show(max(part.last for part in outcome.scanned)),
                "entries": result.scanned,
                "bytes": outcome.scanned_bytes,
            }
        )
    if outcome.indexed_segments:
        parts.append({"part": "companions", "segments": outcome.indexed_segments, "entries": result.indexed})
    if outcome.missed:
        parts.append({"part": "omitted", "entries_at_most": outcome.missed, "spent": outcome.spent})
    ranked = {"rank": _explained_rank(asked, outcome)} if asked.query.ranked else {}
    return {
        "query": None if node is None else print_query(node),
        "sort": [f"{key.name}:{'asc' if key.ascending else 'desc'}" for key in asked.sort.keys],
        "matched": result.matched,
        **ranked,
        "parts": parts,
    }


def _explained_rank(asked: SearchRequest, outcome: Outcome) -> dict[str, Any]:
    """What a ranking was made with."""
    counted = Statistics(terms_of(asked.predicate))
    counted.add(statistics_of(asked, outcome))
    return {
        "name": "bm25",
        "fields": {
            name: {"entries": entries, "words": words}
            for name, entries, words in zip(counted.fields, counted.entries, counted.words, strict=True)
        },
        "terms": [
            {"field": term.field, "term": shown_term(term), "entries": found}
            for term, found in zip(counted.terms, counted.found, strict=True)
        ],
    }


def statistics_of(asked: SearchRequest, outcome: Outcome) -> tuple[int, ...]:
    """What hits were ranked by: counted now, or for the first page."""
    return outcome.statistics or asked.query.statistics


def shown_after(asked: SearchRequest, outcome: Outcome, place: list[Any]) -> list[Any]:
    """Where the next page goes on. A ranked one brings what it is ranked by."""
    statistics = statistics_of(asked, outcome)
    return [*shown_place(asked, place), *([statistics] if statistics else [])]


def _search_coverage(asked: SearchRequest, outcome: Outcome, took: int, decoded: int) -> dict[str, Any]:
    result, families = outcome.result, list[str]()
    if outcome.indexed_segments:
        families = families_of(asked.predicate, asked.sort.fields, asked.config)
    return {
        **_coverage(asked.topic, outcome),
        "indexed_segments": outcome.indexed_segments,
        "scanned_segments": outcome.scanned_segments,
        **dict.fromkeys(_ZEROS, 0),
        "scanned_tail_docs": outcome.looked_at_fresh,
        "scanned_tail_time_ms": took,
        "candidate_doc_ids": result.matched,
        "decoded_records": decoded,
        "json_parse_time_ms": 0,
        "segment_payload_bytes_fetched": outcome.scanned_bytes,
        "sort_time_ms": 0,
        "peak_hits_held": len(result.hits),
        "index_families_used": families,
    }


def _coverage(topic: Topic, outcome: Outcome) -> dict[str, Any]:
    """What all queries say about what they cover."""
    first_missed = outcome.first_missed
    visible = outcome.head if first_missed is None else first_missed - 1
    return {
        "mode": "published" if outcome.missed else "complete",
        "complete": outcome.complete,
        "stream_head_offset": offset_of(topic, Position(outcome.head)),
        "visible_through_offset": offset_of(topic, Position(visible)),
        "visible_through_primary_timestamp_max": None,
        "oldest_omitted_append_at": None if first_missed is None else _appended_at(topic, first_missed),
        "possible_missing_events_upper_bound": outcome.missed,
        "possible_missing_uploaded_segments": outcome.missed_segments,
        "possible_missing_sealed_rows": outcome.missed_sealed,
        "possible_missing_wal_rows": outcome.missed_tail,
    }


def _appended_at(topic: Topic, seq: int) -> str | None:
    """When an entry was appended, or a little earlier."""
    for part, begin, end in chain_of(topic):
        run = part.run_from(seq) if begin <= seq <= end else None
        if run is not None:
            return write_time(run.ts if isinstance(run, Block) else run.first_ts)
    return None


def search_headers(body: dict[str, Any]) -> tuple[Header, ...]:
    coverage = body["coverage"]
    return (
        ("search-timed-out", _flag(body["timed_out"])),
        ("search-timeout-ms", str(body["timeout_ms"])),
        ("search-took-ms", str(body["took_ms"])),
        ("search-total-relation", body["total"]["relation"]),
        ("search-coverage-complete", _flag(coverage["complete"])),
        ("search-index-families-used", ",".join(coverage["index_families_used"])),
        *[(header, str(coverage[name])) for header, name in _HEADERS],
    )


def _flag(value: bool) -> str:
    return "true" if value else "false"


def aggregate_body(topic: Topic, ask: Aggregation, outcome: Outcome) -> dict[str, Any]:
    return {
        "stream": topic.name,
        "rollup": ask.name or None,
        "from": write_date(ask.from_ms),
        "to": write_date(ask.to_ms),
        "interval": ask.interval or None,
        "coverage": {
            **_coverage(topic, outcome),
            "used_rollups": outcome.result.rolled,
            "indexed_segments": outcome.indexed_segments,
            "scanned_segments": outcome.scanned_segments,
            "scanned_tail_docs": outcome.looked_at_fresh,
            "index_families_used": _aggregate_families(outcome),
        },
        "buckets": msgspec.Raw(outcome.result.buckets),
    }


def _aggregate_families(outcome: Outcome) -> list[str]:
    if not outcome.indexed_segments:
        return []
    return ["agg"] if outcome.result.rolled else ["col"]


def keys_body(topic: Topic, outcome: Outcome, spent_ms: float) -> dict[str, Any]:
    result = outcome.result
    return {
        "stream": topic.name,
        "source": {"kind": "routing_key", "name": ""},
        "took_ms": int(spent_ms),
        "coverage": {
            "complete": outcome.complete,
            "indexed_segments": outcome.indexed_segments,
            "scanned_uploaded_segments": 0,
            "scanned_local_segments": outcome.scanned_segments,
            "scanned_wal_rows": outcome.looked_at_fresh,
            "possible_missing_uploaded_segments": 0,
            "possible_missing_local_segments": outcome.missed_segments,
        },
        "timing": {
            "lexicon_run_get_ms": 0,
            "lexicon_decode_ms": 0,
            "lexicon_enumerate_ms": 0,
            "lexicon_merge_ms": 0,
            "fallback_scan_ms": 0,
            "fallback_segment_get_ms": 0,
            "fallback_wal_scan_ms": 0,
            "lexicon_runs_loaded": 0,
        },
        "keys": list(result.keys),
        "next_after": result.keys[-1] if result.is_full and result.keys else None,
    }
