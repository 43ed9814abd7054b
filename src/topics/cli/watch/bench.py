"""`topics bench`: what one's own server does, from here, in a few seconds."""

from collections.abc import Callable
from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.shared.amounts import duration_ms, shown_bytes
from topics.cli.shared.connection import HERE, PATIENT_S, Server, connected
from topics.cli.shared.failures import UsageError
from topics.cli.shared.output import Output, json_line, line, note, table
from topics.client import Client
from topics.system.clock import Clock, SystemClock
from topics.system.dice import SystemDice

_BATCH = 100


class Measure(msgspec.Struct, frozen=True):
    """One row: how many requests and records a second, and how long a request took."""

    what: str
    requests_per_s: float
    records_per_s: float
    bytes_per_s: float
    p50_ms: float
    p99_ms: float


def bench(
    *,
    seconds: Annotated[str, Parameter(help="How long each row is measured.")] = "1s",
    size: Annotated[int, Parameter(help="Bytes of a record.")] = 200,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Measure appends and reads of one client, one request at a time, on a topic that is deleted afterwards.

    The client's own work is part of it: `make bench-http` measures the server by itself.
    """
    span_s = duration_ms(seconds, "--seconds") / 1000
    if span_s <= 0 or size < 2:
        raise UsageError("--seconds must be above 0 and --size at least 2")
    clock, topic = SystemClock(), f"topics-bench-{SystemDice().token(6).hex()}"
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
    note(f"{size} bytes a record, {seconds} a row, one request at a time")
    return 0


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
    """Calls again and again for so long, once before to warm up; `call` returns how many records it moved."""
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
