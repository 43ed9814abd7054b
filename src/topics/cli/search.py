"""`topics search` and `topics aggregate`: search and aggregate the entries of streams."""

import sys
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from topics.cli.arguments import Switch, counted, moment_ms
from topics.cli.failures import CommandError, UsageError
from topics.cli.output import Form, Output, flush, json_line, line, note, printable, raw_line, table
from topics.cli.server_connection import HERE, Server, connected
from topics.cli.stream import name_of
from topics.cli.topic_options import RecordForm
from topics.schema.search_fields import interval_ms
from topics.system.clock import SystemClock
from topics_client import Aggregate, Client, Coverage, Hit, SearchPage, StreamsSearchPage

_LIMIT = 50
_PAGE_HITS_MAX = 500

Page = SearchPage | StreamsSearchPage

Names = Parameter(negative="", consume_multiple=False)


class Found(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A hit as printed with -o json."""

    stream: str | None = None
    """Set in searches of several streams."""
    offset: str
    score: float
    sort: list[Any]
    fields: dict[str, Any]
    source: msgspec.Raw


def search(
    name: str,
    /,
    *query: Annotated[str, Parameter(allow_leading_hyphen=True)],
    sort: Annotated[
        list[str] | None,
        Names,
        Parameter(help="Sort by a field, _score or offset, with :asc or :desc; may be repeated."),
    ] = None,
    limit: Annotated[int, Parameter(name=["--limit", "-n"], help="The maximum number of hits to print.")] = _LIMIT,
    all_: Annotated[bool, Switch, Parameter(name="--all", help="Print all hits.")] = False,
    field: Annotated[
        list[str] | None, Names, Parameter(help="Print this field instead of the entry; may be repeated.")
    ] = None,
    total: Annotated[bool, Switch, Parameter(help="Print the total number of hits.")] = False,
    explain: Annotated[bool, Switch, Parameter(help="Explain how the query was parsed and what was searched.")] = False,
    rank: Annotated[
        Literal["bm25"] | None,
        Parameter(help="bm25: score by the rarity of the words instead of the number of matches."),
    ] = None,
    output: RecordForm = None,
    server: Server = HERE,
) -> int:
    """Search the entries of one or more streams with a search description.

    Parameters
    ----------
    name
        The name of the stream, or a pattern: * matches within a segment of a name, ** any number of segments.
    query
        The query, such as status:>=500 'message:"card declined"' -service:search; an empty query matches every entry.
    """
    if limit < 1:
        raise UsageError(f"--limit is {limit}; accepted is a whole number of at least 1")
    form: Form = output or ("table" if sys.stdout.isatty() else "raw")
    # A table is printed at the end, because it needs the width of all rows; other forms page by page.
    rows: list[Hit] = []
    left: float = float("inf") if all_ else limit
    stream, place = name_of(name), None
    many = "*" in stream
    if many and explain:
        raise UsageError("--explain needs a single stream")
    first: Page | None = None
    with connected(server) as client:
        while left > 0 and (first is None or place is not None):
            asked: dict[str, Any] = {
                "sort": sort or (), "size": int(min(left, _PAGE_HITS_MAX)), "search_after": place, "fields": field,
                "track_total": total and first is None, "source": field is None, "rank": rank,
            }  # fmt: skip
            page: Page
            if many:
                page = client.search_streams(stream, " ".join(query), **asked)
            else:
                page = client.search(stream, " ".join(query), explain=explain and first is None, **asked)
            first = first or page
            place, left = page.next_search_after, left - len(page.hits)
            if form == "table":
                rows += page.hits
            else:
                _print(page.hits, form, field is not None)
            _note_incomplete(page.coverage, page.timed_out)
    if form == "table":
        _table(rows, field)
    flush()
    if first is not None:
        _note_summary(first, total)
    if place is not None:
        note("there are more: use --limit or --all")
    return 0


def _print(hits: list[Hit], form: Form, only_fields: bool) -> None:
    for hit in hits:
        if form == "json":
            shown = {name: getattr(hit, name) for name in ("stream", "offset", "score", "sort", "fields")}
            json_line(Found(**shown, source=msgspec.Raw(hit.raw)))
        elif only_fields:
            json_line(hit.fields)
        else:
            raw_line(hit.raw)
    flush()


def _table(hits: list[Hit], asked: list[str] | None) -> None:
    """Prints a column for each field with a value in any hit, in the order of declaration."""
    names = asked or list(
        dict.fromkeys(name for hit in hits for name, value in hit.fields.items() if value is not None)
    )
    several = any(hit.stream for hit in hits)
    head = ["STREAM"] if several else []
    rows = [[*([hit.stream] if several else []), *[_cell(hit.fields.get(name)) for name in names]] for hit in hits]
    if head or names:
        table([*head, *[name.upper() for name in names]], rows)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else _json(value)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _note_summary(page: Page, total: bool) -> None:
    if isinstance(page, StreamsSearchPage):
        for one in page.skipped:
            note(f"{one.stream} was skipped: {one.reason}")
        if page.more_streams:
            note(f"only the first {len(page.streams)} streams were searched")
    if total:
        least = "" if page.total.relation == "eq" else "at least "
        note(f"{least}{counted(page.total.value, 'hit')} in all")
    if isinstance(page, SearchPage) and page.explain is not None:
        note(f"query {page.explain['query'] or 'of everything'}, sorted by {', '.join(page.explain['sort'])}")
        for part in page.explain["parts"]:
            note(", ".join(f"{word.replace('_', ' ')} {value}" for word, value in part.items()))


def _note_incomplete(coverage: Coverage, timed_out: bool = False) -> None:
    if not coverage.complete:
        why = "the time limit was reached" if timed_out else "a search budget was exhausted"
        missing = coverage.possible_missing_events_upper_bound
        note(f"{why}: up to {missing} entries were not searched; repeat the query, or narrow it")


_BUCKETS_MAX = 60
_HOUR_MS = 3_600_000
_SHOWN = ("count", "sum", "min", "max", "avg", "p50", "p95", "p99")


def aggregate(
    name: str,
    rollup: str | None = None,
    /,
    *,
    since: Annotated[
        str | None,
        Parameter(
            help="The start time: a time before now, such as 10m, or a date.",
            show_default=lambda _: "1h ago with a rollup, else the first entry",
        ),
    ] = None,
    until: Annotated[
        str | None, Parameter(help="The end time, exclusive, in the form of --since.", show_default=lambda _: "now")
    ] = None,
    interval: Annotated[
        str | None,
        Parameter(
            help="The length of a bucket, such as 1m.",
            show_default=lambda _: "the shortest of the rollup with up to 60 buckets, else one bucket",
        ),
    ] = None,
    by: Annotated[list[str] | None, Names, Parameter(help="Group by this dimension or field; may be repeated.")] = None,
    measure: Annotated[
        list[str] | None,
        Names,
        Parameter(help="Show this measure of the rollup, or without a rollup this field; may be repeated."),
    ] = None,
    top: Annotated[
        int | None, Parameter(help="Without a rollup: show only this number of largest groups in a bucket.")
    ] = None,
    filter: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="Aggregate only entries that match this query.")
    ] = "",
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Aggregate the entries of a stream, by a declared rollup or by any field.

    Parameters
    ----------
    name
        The name of the stream.
    rollup
        The rollup, as listed by `topics schema show`. Without one, entries are counted and --measure fields summarized.
    """
    now_ms = SystemClock().now_ms()
    start = None if since is None else moment_ms(since, "--since", now_ms)
    end = None if until is None else moment_ms(until, "--until", now_ms)
    stream = name_of(name)
    if rollup is not None and top is not None:
        raise UsageError("--top cannot be used with a rollup")
    with connected(server) as client:
        if rollup is None:
            found = client.aggregate(
                stream, start=start, end=end, interval=interval, q=filter, group_by=by, measures=_own(measure), top=top
            )
        else:
            begin, stop = now_ms - _HOUR_MS if start is None else start, now_ms if end is None else end
            step = interval or _interval(client, stream, rollup, stop - begin)
            found = client.aggregate(
                stream, rollup, start=begin, end=stop, interval=step, q=filter, group_by=by, measures=measure
            )
    _show(found, by or [], output)
    flush()
    _note_incomplete(found.coverage)
    return 0


def _own(fields: list[str] | None) -> dict[str, Any]:
    """The measures without a rollup: a count, and a summary of each field."""
    summaries = {field: {"kind": "summary", "field": field, "histogram": "log2_v1"} for field in fields or ()}
    return {"count": {"kind": "count"}, **summaries}


def _interval(client: Client, stream: str, rollup: str, span_ms: int) -> str:
    """The shortest interval of a rollup with at most 60 buckets; else its longest."""
    search = client.get_schema(stream).search or {}
    rollups = search.get("rollups", {})
    if rollup not in rollups:
        known = f"there are {', '.join(rollups)}" if rollups else "it declares none"
        raise CommandError(f"{stream} has no rollup {rollup}: {known}")
    intervals: list[str] = sorted(rollups[rollup]["intervals"], key=lambda text: interval_ms(text) or 0)
    few = [text for text in intervals if span_ms <= _BUCKETS_MAX * (interval_ms(text) or 0)]
    return few[0] if few else intervals[-1]


def _show(found: Aggregate, by: list[str], output: str) -> None:
    groups = [(bucket, group) for bucket in found.buckets for group in bucket.groups]
    if output == "json":
        for bucket, group in groups:
            json_line({"start": bucket.start, "end": bucket.end, "key": group.key, "measures": group.measures})
        return
    rows: list[dict[str, Any]] = [
        {
            **({} if found.interval is None else {"start": bucket.start}),
            # A field may have been given by its alias.
            **dict(zip(by, ("" if value is None else value for value in group.key.values()), strict=False)),
            **_numbers(group.measures),
        }
        for bucket, group in groups
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    if output == "raw":
        for row in rows:
            line("\t".join(printable(str(row.get(name, ""))) for name in names))
    elif rows:
        table([name.upper() for name in names], [[row.get(name, "") for name in names] for row in rows])


def _numbers(measures: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A column for each number of each measure; a count alone has the name of its measure."""
    columns: dict[str, Any] = {}
    for name, values in measures.items():
        for word in _SHOWN:
            if values.get(word) is not None:
                shown = name if list(values) == ["count"] else f"{name} {word}"
                columns[shown] = round(values[word], 3) if isinstance(values[word], float) else values[word]
    return columns
