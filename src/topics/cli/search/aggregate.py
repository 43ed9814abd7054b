"""`topics aggregate`."""

from typing import Annotated, Any

from cyclopts import Parameter

from topics.cli.shared.amounts import moment_ms
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.failures import CommandError, UsageError
from topics.cli.shared.output import Output, flush, json_line, line, note, printable, table
from topics.cli.stream.contents import name_of
from topics.client import Aggregate, Client
from topics.schema.search import interval_ms
from topics.system.clock import SystemClock

_BUCKETS_MAX = 60
_HOUR_MS = 3_600_000
_SHOWN = ("count", "sum", "min", "max", "avg", "p50", "p95", "p99")

Names = Parameter(negative="", consume_multiple=False)


def aggregate(
    name: str,
    rollup: str | None = None,
    /,
    *,
    since: Annotated[
        str | None,
        Parameter(
            help="The first moment: so long ago, such as 10m, or a date.",
            show_default=lambda _: "1h of a rollup, else all there is",
        ),
    ] = None,
    until: Annotated[
        str | None, Parameter(help="The moment before which it ends, as --since.", show_default=lambda _: "now")
    ] = None,
    interval: Annotated[
        str | None,
        Parameter(
            help="How long a bucket is, such as 1m.",
            show_default=lambda _: "the shortest of the rollup for up to 60 buckets, else all is one",
        ),
    ] = None,
    by: Annotated[
        list[str] | None, Names, Parameter(help="Group by this dimension, or field; several times for several.")
    ] = None,
    measure: Annotated[
        list[str] | None,
        Names,
        Parameter(help="Only this measure of the rollup, or without one this field; several times for several."),
    ] = None,
    top: Annotated[int | None, Parameter(help="Without a rollup: so many groups of a bucket, the largest.")] = None,
    filter: Annotated[str, Parameter(allow_leading_hyphen=True, help="Only entries that match this query.")] = "",
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Add up entries of a stream, by a rollup that it declares or by any of its fields.

    Parameters
    ----------
    name
        Its name.
    rollup
        The rollup, as `topics schema show` names it; without one, entries are counted and fields summed up as told.
    """
    now_ms = SystemClock().now_ms()
    start = None if since is None else moment_ms(since, "--since", now_ms)
    end = None if until is None else moment_ms(until, "--until", now_ms)
    stream = name_of(name)
    if rollup is not None and top is not None:
        raise UsageError("--top goes without a rollup")
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
    if not found.coverage.complete:
        missing = found.coverage.possible_missing_events_upper_bound
        note(f"a budget was spent: up to {missing} entries not looked at; ask again, or for less")
    return 0


def _own(fields: list[str] | None) -> dict[str, Any]:
    """How many, and a summary of each field."""
    summaries = {field: {"kind": "summary", "field": field, "histogram": "log2_v1"} for field in fields or ()}
    return {"count": {"kind": "count"}, **summaries}


def _interval(client: Client, stream: str, rollup: str, span_ms: int) -> str:
    """The shortest interval of a rollup that does not make too many buckets; else its longest."""
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
            # A field may have been named by its alias.
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
    """A column for each number of each measure; the name of a count alone is that of its measure."""
    columns: dict[str, Any] = {}
    for name, values in measures.items():
        for word in _SHOWN:
            if values.get(word) is not None:
                shown = name if list(values) == ["count"] else f"{name} {word}"
                columns[shown] = round(values[word], 3) if isinstance(values[word], float) else values[word]
    return columns
