"""Help texts of searches and aggregations: the fields of requests, answers and coverage, for OpenAPI and the docs."""

SEARCH_FIELDS: dict[str, str] = {
    "q": "The query.",
    "size": "1 to 500 hits, 50 by default.",
    "sort": (
        "`_score`, `offset` or a field, each with `:asc` or `:desc` (default); `offset:desc` is the last key. Default: "
        "newest first, or for queries with words by score, primary timestamp and offset, all descending."
    ),
    "search_after": "`next_search_after` of the previous page.",
    "timeout_ms": "At most 3000.",
    "track_total": "Counts all matches in `total`.",
    "explain": "Adds the parsed query and sort, and the work of each part of the plan.",
    "rank": "`bm25` scores by rarity of words.",
    "_source": "`false` leaves out `source`.",
    "fields": "The declared fields to return.",
    "highlight": (
        "`true`, or a list of text fields: adds the text around the first match and its positions: "
        '`{"text": "paid by card", "spans": [[8, 12]]}`.'
    ),
}
SEARCH_ANSWER: dict[str, str] = {
    "stream": "The name of the stream.",
    "took_ms": "The time that the query took.",
    "timed_out": "Whether the query exceeded its time.",
    "snapshot_end_offset": "The end of the stream at the start of the query, which searches up to there.",
    "hits": "`offset`, `score`, `sort` (the sort keys), `fields` (as in the entry), `source` (the entry, promoted).",
    "total": "Hits of this page, with relation `eq` if there are no others.",
    "next_search_after": "The start of the next page, if this page is full.",
    "coverage": "The searched part of the stream.",
}
AGGREGATE_FIELDS: dict[str, str] = {
    "rollup": "A rollup of the search description. Without one, any declared fields can be aggregated.",
    "interval": "With a rollup required, one of its intervals; else such as `10s`, or one bucket without it.",
    "from": "With a rollup required.",
    "to": "With a rollup required; excluded.",
    "q": "Aggregates only entries that match.",
    "group_by": "Dimensions of the rollup; without one, fields with `exact` or `column`.",
    "measures": (
        "Some of the rollup's measures. Without a rollup an object of measures: `count`, or `summary` of a column of "
        "integers or floats, with `histogram` for percentiles; default: one `count`."
    ),
    "timestamp_field": (
        "Without a rollup: a date field; default: the primary timestamp. Entries without it do not count."
    ),
    "top": (
        "Without a rollup: the number of groups per bucket; those with the greatest counts of the first measure are "
        "returned."
    ),
}
COVERAGE: dict[str, str] = {
    "complete": "Whether everything up to the end was searched.",
    "mode": "`complete` or `published` (incomplete).",
    "stream_head_offset": "The end of the stream.",
    "visible_through_offset": "Everything up to here was searched.",
    "possible_missing_events_upper_bound": "Upper bound of the entries not searched.",
    "possible_missing_sealed_rows": "Entries of sealed segments not searched.",
    "possible_missing_wal_rows": "Entries of the log not searched.",
    "possible_missing_uploaded_segments": "The number of segments not searched.",
    "oldest_omitted_append_at": "The time of the first entry not searched, or slightly earlier.",
    "scanned_tail_docs": "Entries examined in the memory index.",
    "indexed_segments": "Segments covered by index files.",
    "index_families_used": "Types of index used: `exact`, `col`, `fts`; for an aggregation `agg` or `col`.",
    "used_rollups": "Whether an aggregation used precomputed sums.",
}
