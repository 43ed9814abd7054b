"""`topics top`, a live view of the server's metrics, and `topics bench`, a short benchmark."""

import re
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter
from rich.console import Group
from rich.table import Table
from rich.text import Text

from topics.cli.arguments import by_topic, duration_ms, number, shown_bytes
from topics.cli.failures import UsageError
from topics.cli.output import Output, json_line, line, note, printable, table
from topics.cli.server_connection import HERE, PATIENT_S, Server, connected
from topics.system.clock import Clock, SystemClock
from topics.system.entropy import SystemEntropy
from topics_client import Client, ConnectionFailed, RetryLater

# `topics bench`

_BATCH = 100
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")


class Measure(msgspec.Struct, frozen=True):
    """A row of the benchmark: throughput and latency of one kind of request."""

    what: str
    requests_per_s: float
    records_per_s: float
    bytes_per_s: float
    p50_ms: float
    p99_ms: float


def bench(
    *,
    seconds: Annotated[str, Parameter(help="The duration of each measurement, in seconds or with a unit.")] = "1",
    size: Annotated[int, Parameter(help="The size of a record in bytes.")] = 200,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Measure appends and reads of one client, one request at a time, on a temporary topic.

    The time of the client is included: `make bench-http` measures the server alone.
    """
    span_s = span_of(seconds)
    if span_s <= 0 or size < 2:
        raise UsageError("--seconds must be above 0 and --size at least 2")
    clock, topic = SystemClock(), f"topics-bench-{SystemEntropy().token(6).hex()}"
    value = "x" * (size - 2)
    with connected(server, PATIENT_S) as client:
        try:
            rows = _measure(client, topic, value, span_s, clock)
        finally:
            client.delete_topic(topic)
    if output == "json":
        for row in rows:
            json_line(row)
        return 0
    if output == "raw":
        for row in rows:
            line(f"{row.requests_per_s:.0f}")
        return 0
    table(
        ("WHAT", "REQUESTS/S", "RECORDS/S", "BYTES/S", "P50 MS", "P99 MS"),
        [
            (
                row.what, round(row.requests_per_s), round(row.records_per_s), shown_bytes(row.bytes_per_s),
                row.p50_ms, row.p99_ms,
            )
            for row in rows
        ],
    )  # fmt: skip
    note(f"{size} bytes a record, {span_s:g} s a row, one request at a time")
    return 0


def span_of(seconds: str) -> float:
    """The value of `--seconds`: a bare number is in seconds."""
    return duration_ms(f"{seconds}s" if _NUMBER.fullmatch(seconds) else seconds, "--seconds") / 1000


def _measure(client: Client, topic: str, value: str, span_s: float, clock: Clock) -> list[Measure]:
    def append_one() -> int:
        client.append(topic, value)
        return 1

    def append_many() -> int:
        client.append_many(topic, [value] * _BATCH, return_seqs=False)
        return _BATCH

    def read() -> int:
        return len(client.diff(topic, 0, limit=1000).records)

    size = len(value) + 2
    return [
        timed("append 1", append_one, span_s, size, clock),
        timed(f"append {_BATCH}", append_many, span_s, size, clock),
        timed("read 1000", read, span_s, size, clock),
    ]


def timed(what: str, call: Callable[[], int], span_s: float, size: int, clock: Clock) -> Measure:
    """Measures repeated calls for `span_s` after one warm-up call; `call` returns its number of records."""
    call()
    took: list[float] = []
    records, begun = 0, clock.monotonic()
    now = begun
    while now - begun < span_s:
        records += call()
        before, now = now, clock.monotonic()
        took.append(now - before)
    took.sort()
    whole_s = now - begun
    return Measure(
        what,
        len(took) / whole_s,
        records / whole_s,
        records * size / whole_s,
        round(took[len(took) // 2] * 1000, 2),
        round(took[min(len(took) * 99 // 100, len(took) - 1)] * 1000, 2),
    )


# `topics top`: the view, computed from two samples of the metrics

Sort = Literal["rate", "records", "bytes", "name"]

HEAD = ("TOPIC", "RECORDS", "BYTES", "RATE/S", "READY", "IN FLIGHT", "DELAYED", "DEAD")
_QUEUE = ("ready", "in_flight", "delayed", "dead_lettered")
_LEVELS = ("none", "coalescing", "wider commits", "deferring", "refusing")


class Look(msgspec.Struct, frozen=True):
    """A sample of the metrics."""

    at_s: float
    metrics: dict[str, Any]


class View(msgspec.Struct, frozen=True):
    """The values of the server, and a row for each topic."""

    server: list[tuple[str, str]]
    head: tuple[str, ...]
    rows: list[tuple[str | int | float, ...]]
    is_truncated: bool


def look_at(metrics: dict[str, Any], at_s: float) -> Look:
    return Look(at_s, metrics)


def view_of(before: Look, now: Look, prefix: str, sort: Sort) -> View:
    """The view of two samples. Rates are differences; the counters of a restarted server begin at 0."""
    metrics, span_s = now.metrics, max(now.at_s - before.at_s, 1e-9)

    def rate(name: str) -> float:
        return max(number(metrics, name) - number(before.metrics, name), 0.0) / span_s

    records, sizes = by_topic(metrics, "topics_topic_records_live"), by_topic(metrics, "topics_topic_bytes_live")
    heads, heads_before = by_topic(metrics, "topics_topic_head_seq"), by_topic(before.metrics, "topics_topic_head_seq")
    queues = [by_topic(metrics, f"topics_topic_queue_{name}") for name in _QUEUE]
    rows: list[tuple[str | int | float, ...]] = []
    for topic in records:
        if topic.startswith(prefix):
            grown = max(heads[topic] - heads_before.get(topic, 0.0), 0.0) / span_s
            jobs = tuple(int(counts[topic]) if topic in counts else "" for counts in queues)
            rows.append((topic, int(records[topic]), int(sizes[topic]), round(grown, 1), *jobs))
    if sort != "name":
        place = {"records": 1, "bytes": 2, "rate": 3}[sort]
        rows.sort(key=lambda row: (-float(row[place]), str(row[0])))
    return View(_server(metrics, rate), HEAD, rows, bool(number(metrics, "topics_topic_metrics_truncated")))


def _server(metrics: dict[str, Any], rate: Any) -> list[tuple[str, str]]:
    level = min(int(number(metrics, "topics_throttle_level")), len(_LEVELS) - 1)
    reported = [
        ("topics", f"{number(metrics, 'topics_topics'):.0f}"),
        ("requests/s", f"{rate('topics_http_requests_total'):.0f}"),
        ("written/s", shown_bytes(rate("topics_wal_bytes_written_total"))),
        ("connections", f"{number(metrics, 'topics_http_connections'):.0f}"),
        ("pressure", f"{number(metrics, 'topics_pressure'):.0%} ({_LEVELS[level]})"),
        ("router lag", f"{number(metrics, 'topics_router_lag'):.0f}"),
        ("jobs held", f"{number(metrics, 'topics_queue_leases_in_flight'):.0f}"),
    ]
    for name, metric in (
        ("ROUTERS BLOCKED", "topics_routers_blocked"),
        ("READ ONLY SHARDS", "topics_wal_read_only"),
        ("SEALING FAILS", "topics_seal_failures"),
    ):
        if number(metrics, metric):
            reported.append((name, f"{number(metrics, metric):.0f}"))
    return reported


def top(
    prefix: str = "",
    /,
    *,
    every: Annotated[str, Parameter(help="The refresh interval.")] = "1s",
    sort: Annotated[Sort, Parameter(help="The sort order of topics.")] = "rate",
    once: Annotated[
        bool, Parameter(negative="", show_default=False, help="Take two samples, print the view, and exit.")
    ] = False,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Monitor topics, rates, queues, router lag and backpressure until Ctrl-C.

    Parameters
    ----------
    prefix
        Show only topics with this prefix.
    """
    pause_s = duration_ms(every, "--every") / 1000
    if pause_s < 0.1:
        raise UsageError(f"--every is {every}; accepted is at least 100ms")
    with connected(server) as client:
        before = _look(client)
        if once or output != "table" or not sys.stdout.isatty():
            while True:
                time.sleep(pause_s)
                now = _look(client)
                _print(view_of(before, now, prefix, sort), output)
                before = now
                if once:
                    return 0
        _live(client, before, pause_s, prefix, sort)
    return 0


def _look(client: Client) -> Look:
    return look_at(client.metrics(), SystemClock().monotonic())


def _live(client: Client, before: Look, pause_s: float, prefix: str, sort: Sort) -> None:
    from rich.live import Live  # noqa: PLC0415 - only a terminal needs it

    from topics.cli.output import console  # noqa: PLC0415

    screen = console()
    view, trouble = view_of(before, before, prefix, sort), ""
    with Live(draw(view, screen.height, trouble), console=screen, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(pause_s)
            try:
                now = _look(client)
                view, trouble, before = view_of(before, now, prefix, sort), "", now
            except (ConnectionFailed, RetryLater) as error:
                trouble = f"the server does not answer ({error})"
            live.update(draw(view, screen.height, trouble), refresh=True)


def _print(view: View, output: str) -> None:
    if output == "json":
        json_line(view)
        return
    if output == "table":
        line("  ".join(f"{name} {value}" for name, value in view.server))
        table(view.head, view.rows)
        return
    for row in view.rows:
        line(str(row[0]))


# `topics top`: the live screen

_ABOVE = 4
"""Lines of the screen that are not topics."""


def draw(view: View, height: int, trouble: str) -> Group:
    """The screen: one line for the server, then as many topics as fit."""
    server = Text()
    for name, value in view.server:
        server.append(f"{name} ", style="dim" if name.islower() else "bold red")
        server.append(f"{value}   ", style="bold")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(view.head):
        table.add_column(name, justify="left" if place == 0 else "right", overflow="ellipsis", no_wrap=True)
    room = max(height - _ABOVE, 1)
    for row in view.rows[:room]:
        style = "" if row[3] else "dim"
        table.add_row(*(printable(f"{cell:,}" if isinstance(cell, int | float) else cell) for cell in row), style=style)
    left = len(view.rows) - room
    more = (
        f"{left} more topics"
        if left > 0
        else "the server reports its first 1000 topics only"
        if view.is_truncated
        else ""
    )
    return Group(server, table, Text(trouble or more, style="bold yellow" if trouble else "dim"))
