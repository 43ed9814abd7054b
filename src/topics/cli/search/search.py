"""`topics search`."""

import sys
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from topics.cli.shared.amounts import counted
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.failures import UsageError
from topics.cli.shared.output import Form, flush, json_line, note, raw_line, table
from topics.cli.stream.contents import name_of
from topics.cli.topic.printing import RecordForm
from topics.client import Hit, SearchPage, StreamsSearchPage

_LIMIT = 50
_PAGE_HITS_MAX = 500

Page = SearchPage | StreamsSearchPage

Switch = Parameter(negative="", show_default=False)
Names = Parameter(negative="", consume_multiple=False)


class Found(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A hit as it is printed for programs."""

    stream: str | None = None
    """Of several."""
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
        Parameter(help="By which field, _score or offset, with :asc or :desc; several times for several."),
    ] = None,
    limit: Annotated[int, Parameter(name=["--limit", "-n"], help="Print at most so many.")] = _LIMIT,
    all_: Annotated[bool, Switch, Parameter(name="--all", help="Print all that are found.")] = False,
    field: Annotated[
        list[str] | None, Names, Parameter(help="Show this field instead of the entry; several times for several.")
    ] = None,
    total: Annotated[bool, Switch, Parameter(help="Count all that match, and say how many.")] = False,
    explain: Annotated[
        bool, Switch, Parameter(help="Say how the query was understood, and what was looked at.")
    ] = False,
    rank: Annotated[
        Literal["bm25"] | None,
        Parameter(help="bm25: score by how rare the words are, instead of by how many match."),
    ] = None,
    output: RecordForm = None,
    server: Server = HERE,
) -> int:
    """Find entries of a stream that has a search description, or of several.

    Parameters
    ----------
    name
        Its name, or a pattern: * is a part of one segment of a name, ** any number of segments.
    query
        What to find, such as status:>=500 'message:"card declined"' -service:search; nothing finds everything.
    """
    if limit < 1:
        raise UsageError(f"--limit is {limit}; accepted is a whole number of at least 1")
    form: Form = output or ("table" if sys.stdout.isatty() else "raw")
    # One table needs one width for all of it, so that it is printed at the end; the rest as it comes.
    rows: list[Hit] = []
    left: float = float("inf") if all_ else limit
    stream, place = name_of(name), None
    many = "*" in stream
    if many and explain:
        raise UsageError("--explain is for one stream")
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
            if not page.coverage.complete:
                _tell_incomplete(page)
    if form == "table":
        _table(rows, field)
    flush()
    if first is not None:
        _tell(first, total)
    if place is not None:
        note("there are more: --limit or --all shows them")
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
    """A column for each field that says something in any of them, in the order of their declaration."""
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


def _tell(page: Page, total: bool) -> None:
    if isinstance(page, StreamsSearchPage):
        for one in page.skipped:
            note(f"{one.stream} was left out: {one.reason}")
        if page.more_streams:
            note(f"only the first {len(page.streams)} streams were searched")
    if total:
        least = "" if page.total.relation == "eq" else "at least "
        note(f"{least}{counted(page.total.value, 'hit')} in all")
    if isinstance(page, SearchPage) and page.explain is not None:
        note(f"query {page.explain['query'] or 'of everything'}, sorted by {', '.join(page.explain['sort'])}")
        for part in page.explain["parts"]:
            note(", ".join(f"{word.replace('_', ' ')} {value}" for word, value in part.items()))


def _tell_incomplete(page: Page) -> None:
    missing = page.coverage.possible_missing_events_upper_bound
    why = "time ran out" if page.timed_out else "a budget was spent"
    note(f"{why}: up to {missing} entries not looked at; ask again, or for less")
