"""Response bodies and headers of `_search`, `_aggregate` and `_routing_keys`. Fields of the protocol that have no
counterpart here keep their type and are 0, null or empty."""

from collections.abc import Callable, Generator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from topics.api.v1.protocol import Header
from topics.api.v1.search_requests import SearchRequest
from topics.engine.read import chain_of
from topics.engine.topic import Block, Topic
from topics.schema.documents import parse
from topics.search.query.aggregate import Aggregation
from topics.search.query.field_values import number_json, write_date
from topics.search.query.predicates import parse_query, print_query
from topics.search.query.score import Statistics, shown_term, terms_of
from topics.search.query.sort import OFFSET
from topics.search.service.index_file_cache import index_types_of
from topics.search.service.query_execution import Outcome
from topics.search.service.search_service import Fetched, StreamEntryCache
from topics.search.worker.messages import Hits
from topics.streams.stream_state import Position, offset_of, offsets_of
from topics_protocol.rfc3339 import write_time

# The rendered hits of a search.
#
# A page has hundreds of hits, so all of them are encoded at once, and shared work is done once for the page.

_PORTION_HITS = 100
_PORTION_BYTES = 256 * 1024
"""The hits and bytes encoded in one unit of work."""
_NO_HITS = b'"hits":[]'
_encode = msgspec.json.Encoder().encode

Score = int | float
Highlights = dict[str, Any] | UnsetType
Source = msgspec.Raw | UnsetType


class Entries(NamedTuple):
    """The sources of hits, in order."""

    fields: Sequence[Any]
    highlights: Sequence[Highlights]
    sources: Sequence[Source]


class StreamHit(msgspec.Struct, frozen=True, gc=False):
    offset: str
    score: Score
    sort: Sequence[Any]
    fields: Any
    highlights: Highlights = UNSET
    source: Source = UNSET


class TopicHit(msgspec.Struct, frozen=True, gc=False, rename={"seq": "$seq"}):
    seq: int
    score: Score
    sort: Sequence[Any]
    fields: Any
    highlights: Highlights = UNSET
    data: Source = UNSET


class NamedHit(msgspec.Struct, frozen=True, gc=False):
    """A hit of one of several streams."""

    stream: str
    offset: str
    score: Score
    sort: Sequence[Any]
    fields: Any
    highlights: Highlights = UNSET
    source: Source = UNSET


Make = Callable[[SearchRequest, Hits, Entries], Sequence[Any]]
"""A function from hits and their rendered entries to the hits of an answer, such as `stream_hits`."""


class Shown(NamedTuple):
    """The rendered hits of a search, independent of the name of an offset."""

    hits: list[bytes]
    """Their JSON in pieces of some hits each, separated by commas."""
    total: dict[str, Any]
    next_place: list[Any] | None
    decoded: int
    """The number of read entries."""


def is_large(fetched: Fetched) -> bool:
    """Whether rendering takes longer than a unit of work."""
    entries = fetched.entries
    return len(entries) > _PORTION_HITS or sum(map(len, entries.values())) > _PORTION_BYTES


def showing(asked: SearchRequest, outcome: Outcome, fetched: Fetched, make: Make) -> Generator[None, None, Shown]:
    """Renders the hits of a search in portions."""
    result, found = outcome.result, fetched.entries
    # If the entries are too large for one answer, the page is shorter.
    reached = result.hits.between(0, fetched.reached)
    # An entry that was removed after the search is no longer a hit.
    kept = reached if len(found) == len(reached) else reached.only(found)
    pieces: list[bytes] = []
    at = 0
    while at < len(kept):
        if at:
            yield
        raws = _portion(found, kept.seqs[at : at + _PORTION_HITS])
        portion = kept.between(at, at + len(raws))
        at += len(raws)
        entries = shown_entries(asked, raws, _fields(asked, portion.seqs, raws, fetched.seen))
        pieces.append(_encode(make(asked, portion, entries))[1:-1])
    goes_on = len(reached) > 0 and (result.is_full or len(reached) < len(result.hits))
    exact = outcome.complete
    total: dict[str, Any] = {"value": len(kept), "relation": "eq" if exact and not goes_on else "gte"}
    if asked.track_total:
        total = {"value": result.matched, "relation": "eq" if exact else "gte"}
    return Shown(pieces, total, reached.place(len(reached) - 1) if goes_on else None, len(found))


def _portion(found: dict[int, bytes], seqs: list[int]) -> list[bytes]:
    """Returns as many of the first entries as are rendered in one turn."""
    raws = [found[seq] for seq in seqs]
    if sum(map(len, raws)) < _PORTION_BYTES:
        return raws
    ends = accumulate(map(len, raws))
    return raws[: next((number for number, end in enumerate(ends, 1) if end >= _PORTION_BYTES), len(raws))]


def encode_body(body: dict[str, Any], shown: Shown) -> bytes:
    """Returns the JSON of an answer, in which the empty `hits` are replaced by the rendered ones."""
    encoded = _encode(body)
    if not shown.hits:
        return encoded
    # No string of the body contains this, because its quotes would be escaped.
    before, _, after = encoded.partition(_NO_HITS)
    parts = [before, _NO_HITS[:-1], shown.hits[0]]
    for piece in shown.hits[1:]:
        parts += (b",", piece)
    return b"".join((*parts, b"]", after))


def _fields(asked: SearchRequest, seqs: list[int], raws: list[bytes], seen: StreamEntryCache | None) -> list[Any]:
    """Returns the rendered fields of entries, from the cache if possible."""
    if seen is None or asked.fields is not None:
        return asked.shows.of(raws, asked.fields)
    known = seen.shown_by(asked.shows)
    found: list[Any] = list(map(known.get, seqs))
    if None in found:
        new = [place for place, fields in enumerate(found) if fields is None]
        fields = asked.shows.of([raws[place] for place in new])
        seen.note_shown([seqs[place] for place in new], fields)
        for place, value in zip(new, fields, strict=True):
            found[place] = value
    return found


def shown_entries(asked: SearchRequest, raws: list[bytes], fields: list[Any] | None = None) -> Entries:
    """Returns the sources of hits; uses `fields` if given."""
    nothing: list[Any] = [UNSET] * len(raws)
    fields = asked.shows.of(raws, asked.fields) if fields is None else fields
    highlights = nothing
    if asked.highlight is not None:
        highlights = [asked.highlight.of(parse("entry", raw)) for raw in raws]
    return Entries(fields, highlights, list(map(msgspec.Raw, raws)) if asked.source else nothing)


def stream_hits(asked: SearchRequest, hits: Hits, entries: Entries) -> list[StreamHit]:
    offsets = offsets_of(asked.topic, hits.seqs)
    return list(map(StreamHit, offsets, _scores(hits), _shown_places(hits, offsets), *entries))


def named_hits(asked: SearchRequest, hits: Hits, entries: Entries) -> list[NamedHit]:
    name = asked.topic.name
    return [NamedHit(name, *msgspec.structs.astuple(hit)) for hit in stream_hits(asked, hits, entries)]


def topic_hits(asked: SearchRequest, hits: Hits, entries: Entries) -> list[TopicHit]:
    return list(map(TopicHit, hits.seqs, _scores(hits), _shown_places(hits, hits.seqs), *entries))


def _scores(hits: Hits) -> list[Score]:
    return list(map(number_json, hits.scores)) if hits.scores else [0] * len(hits)


def shown_seqs(place: list[Any]) -> list[Any]:
    """A position in the form of /v0."""
    return [number_json(value) for value in place]


def shown_place(asked: SearchRequest, place: list[Any]) -> list[Any]:
    """A position in the form of /v1."""
    names = [key.name for key in asked.sort.keys]
    (offset,) = offsets_of(asked.topic, [place[names.index(OFFSET)]])
    return [offset if name == OFFSET else number_json(value) for name, value in zip(names, place, strict=True)]


def _shown_places(hits: Hits, offsets: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Returns the sort positions of hits whose offsets are known."""
    columns = [offsets if values is None else map(number_json, values) for values in hits.keys]
    return list(zip(*columns, strict=True))


_ZEROS = (
    "indexed_segment_time_ms", "fts_section_get_ms", "fts_decode_ms", "fts_clause_estimate_ms",
    "scanned_segment_time_ms", "exact_candidate_time_ms",
)  # fmt: skip
_REPORTED = (
    "indexed_segments", "indexed_segment_time_ms", "fts_section_get_ms", "fts_decode_ms", "fts_clause_estimate_ms",
    "scanned_segments", "scanned_segment_time_ms", "scanned_tail_docs", "scanned_tail_time_ms",
    "exact_candidate_time_ms", "candidate_doc_ids", "decoded_records", "json_parse_time_ms",
    "segment_payload_bytes_fetched", "sort_time_ms", "peak_hits_held",
)  # fmt: skip
_HEADERS = tuple((f"search-{name.replace('_', '-')}", name) for name in _REPORTED)


def search_body(asked: SearchRequest, outcome: Outcome, shown: Shown, spent_ms: float) -> dict[str, Any]:
    """Returns the answer without hits, which are encoded separately."""
    topic = asked.topic
    took = int(spent_ms)
    coverage = _search_coverage(asked, outcome, took, shown.decoded)
    explained = {"explain": _explain(asked, outcome)} if asked.explain else {}
    return {
        "stream": topic.name,
        "snapshot_end_offset": coverage["stream_head_offset"],
        "took_ms": took,
        "timed_out": outcome.spent == "time",
        "timeout_ms": asked.timeout_ms,
        "coverage": coverage,
        "total": shown.total,
        "hits": (),
        "next_search_after": None if shown.next_place is None else shown_after(asked, outcome, shown.next_place),
        **explained,
    }


def _explain(asked: SearchRequest, outcome: Outcome) -> dict[str, Any]:
    topic = asked.topic
    return explain(asked, outcome, lambda seq: offset_of(topic, Position(seq)), "offset")


def explain(asked: SearchRequest, outcome: Outcome, show: Callable[[int], Any], offset: str) -> dict[str, Any]:
    """Returns the parsed query and the costs of each part of the plan.

    `show` formats an offset, `offset` is its name.
    """
    result = outcome.result
    node = parse_query(asked.query.q)
    parts: list[dict[str, Any]] = [
        {
            "part": "fresh",
            f"first_{offset}": show(outcome.first),
            f"last_{offset}": show(max(outcome.last, outcome.first - 1)),
            "entries": outcome.looked_at_in_memory,
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
    """Returns the statistics of a ranking."""
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
    """Returns the statistics that ranked the hits: counted now, or from the first page."""
    return outcome.statistics or asked.query.statistics


def shown_after(asked: SearchRequest, outcome: Outcome, place: list[Any]) -> list[Any]:
    """Returns the start of the next page. A ranked page includes its statistics."""
    statistics = statistics_of(asked, outcome)
    return [*shown_place(asked, place), *([statistics] if statistics else [])]


def _search_coverage(asked: SearchRequest, outcome: Outcome, took: int, decoded: int) -> dict[str, Any]:
    result, index_types = outcome.result, list[str]()
    if outcome.indexed_segments:
        index_types = index_types_of(asked.predicate, asked.sort.fields, asked.config)
    return {
        **_coverage(asked.topic, outcome),
        "indexed_segments": outcome.indexed_segments,
        "scanned_segments": outcome.scanned_segments,
        **dict.fromkeys(_ZEROS, 0),
        "scanned_tail_docs": outcome.looked_at_in_memory,
        "scanned_tail_time_ms": took,
        "candidate_doc_ids": result.matched,
        "decoded_records": decoded,
        "json_parse_time_ms": 0,
        "segment_payload_bytes_fetched": outcome.scanned_bytes,
        "sort_time_ms": 0,
        "peak_hits_held": len(result.hits),
        "index_families_used": index_types,
    }


def _coverage(topic: Topic, outcome: Outcome) -> dict[str, Any]:
    """Returns the coverage fields of every answer."""
    first_missed = outcome.first_missed
    head = visible = offset_of(topic, Position(outcome.head))
    if first_missed is not None:
        visible = offset_of(topic, Position(first_missed - 1))
    return {
        "mode": "published" if outcome.missed else "complete",
        "complete": outcome.complete,
        "stream_head_offset": head,
        "visible_through_offset": visible,
        "visible_through_primary_timestamp_max": None,
        "oldest_omitted_append_at": None if first_missed is None else _appended_at(topic, first_missed),
        "possible_missing_events_upper_bound": outcome.missed,
        "possible_missing_uploaded_segments": outcome.missed_segments,
        "possible_missing_sealed_rows": outcome.missed_sealed,
        "possible_missing_wal_rows": outcome.missed_tail,
    }


def _appended_at(topic: Topic, seq: int) -> str | None:
    """Returns the append time of an entry, or a slightly earlier one."""
    for part, _, _ in chain_of(topic, seq, seq):
        run = part.run_from(seq)
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
            "scanned_tail_docs": outcome.looked_at_in_memory,
            "index_families_used": _aggregate_index_types(outcome),
        },
        "buckets": msgspec.Raw(outcome.result.buckets),
    }


def _aggregate_index_types(outcome: Outcome) -> list[str]:
    if not outcome.indexed_segments:
        return []
    return ["agg"] if outcome.result.rolled else ["col"]


def _memory_segments(topic: Topic, outcome: Outcome) -> int:
    """The number of segments answered by the memory index."""
    return sum([outcome.first <= segment.first_seq and segment.last_seq <= outcome.last for segment in topic.segments])


def keys_body(topic: Topic, outcome: Outcome, spent_ms: float) -> dict[str, Any]:
    result, in_memory = outcome.result, _memory_segments(topic, outcome)
    last_sealed = topic.segments[-1].last_seq if topic.segments else 0
    tail_rows = max(outcome.last - max(outcome.first, last_sealed + 1) + 1, 0)
    return {
        "stream": topic.name,
        "source": {"kind": "routing_key", "name": ""},
        "took_ms": int(spent_ms),
        "coverage": {
            "complete": outcome.complete,
            "indexed_segments": outcome.indexed_segments + in_memory,
            "scanned_uploaded_segments": outcome.scanned_cold_segments,
            "scanned_local_segments": outcome.scanned_segments - outcome.scanned_cold_segments,
            "scanned_wal_rows": min(tail_rows, outcome.looked_at_in_memory),
            "possible_missing_uploaded_segments": outcome.missed_cold_segments,
            "possible_missing_local_segments": outcome.missed_segments - outcome.missed_cold_segments,
        },
        "timing": {
            "lexicon_run_get_ms": 0,
            "lexicon_decode_ms": 0,
            "lexicon_enumerate_ms": 0,
            "lexicon_merge_ms": 0,
            "fallback_scan_ms": 0,
            "fallback_segment_get_ms": 0,
            "fallback_wal_scan_ms": 0,
            "lexicon_runs_loaded": outcome.index_files,
        },
        "keys": list(result.keys),
        "next_after": result.keys[-1] if result.is_full and result.keys else None,
    }
