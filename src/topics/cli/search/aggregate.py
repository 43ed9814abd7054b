"""`topics aggregate`."""

from typing import Annotated, Any

from cyclopts import Parameter

from topics.cli.shared.amounts import moment_ms
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.failures import CommandError
from topics.cli.shared.output import Output, flush, json_line, line, note, printable, table
from topics.cli.stream.contents import name_of
from topics.client import Aggregate, Client
from topics.schema.search import interval_ms
from topics.system.clock import SystemClock

_BUCKETS_MAX = 60
_SHOWN = ("count", "sum", "min", "max", "avg", "p50", "p95", "p99")

Names = Parameter(negative="", consume_multiple=False)


def aggregate(
    name: str,
    rollup: str,
    /,
    *,
    since: Annotated[str, Parameter(help="The first moment: so long ago, such as 10m, or a date.")] = "1h",
    until: Annotated[
        str | None, Parameter(help="The moment before which it ends, as --since.", show_default=lambda _: "now")
    ] = None,
    interval: Annotated[
        str | None,
        Parameter(help="How long a bucket is, such as 1m.", show_default=lambda _: "the shortest for up to 60 buckets"),
    ] = None,
    by: Annotated[
        list[str] | None, Names, Parameter(help="Group by this dimension; several times for several.")
    ] = None,
    measure: Annotated[list[str] | None, Names, Parameter(help="Only this measure; several times for several.")] = None,
    filter: Annotated[str, Parameter(allow_leading_hyphen=True, help="Only entries that match this query.")] = "",
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Add up a rollup of a stream over time.

    Parameters
    ----------
    name
        Its name.
    rollup
        The rollup, as `topics schema show` names it.
    """
    now_ms = SystemClock().now_ms()
    start = moment_ms(since, "--since", now_ms)
    end = now_ms if until is None else moment_ms(until, "--until", now_ms)
    stream = name_of(name)
    with connected(server) as client:
        step = interval or _interval(client, stream, rollup, end - start)
        found = client.aggregate(
            stream, rollup, start=start, end=end, interval=step, q=filter, group_by=by, measures=measure
        )
    _show(found, by or [], output)
    flush()
    if not found.coverage.complete:
        missing = found.coverage.possible_missing_events_upper_bound
        note(f"a budget was spent: up to {missing} entries not looked at; ask again, or for less")
    return 0


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
    rows: list[dict[str, Any]] = [
        {
            "start": bucket.start,
            **{dimension: "" if group.key[dimension] is None else group.key[dimension] for dimension in by},
            **_numbers(group.measures),
        }
        for bucket in found.buckets
        for group in bucket.groups
    ]
    if output == "json":
        for bucket in found.buckets:
            for group in bucket.groups:
                json_line({"start": bucket.start, "end": bucket.end, "key": group.key, "measures": group.measures})
        return
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
