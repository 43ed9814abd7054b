"""Prisma Streams on the same entries and queries: with its default settings, and with segments so large that all
entries stay in its tail.

It is queried once its coverage is complete, or when the time limit is reached.
"""

import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.peers import launch_prisma
from bench.search_client import PATH, Client, fill, post, times_ms
from bench.search_load import DESCRIPTION, KINDS, Kind

WAYS: dict[str, dict[str, str]] = {
    "Prisma Streams": {"DS_SEARCH_CONCURRENCY": "8", "DS_READ_CONCURRENCY": "8"},
    "Prisma, all in its tail": {
        "DS_SEGMENT_MAX_BYTES": str(2**30),
        "DS_SEGMENT_TARGET_ROWS": "10000000",
        "DS_SEARCH_WAL_OVERLAY_MAX_BYTES": str(2**30),
        "DS_SEARCH_CONCURRENCY": "8",
    },
}
_START_S = 30
_INDEX_S = 75
"""The longest time to index appended entries, or to notice that the tail is quiet."""
_ROUNDS = 20
_QUESTION_S = 1.5


def ask_prisma(
    texts: list[bytes],
    way: str,
    description: dict[str, Any] = DESCRIPTION,
    kinds: tuple[Kind, ...] = KINDS,
    index_s: float = _INDEX_S,
) -> tuple[dict[str, float], str]:
    """Medians in milliseconds by the query, and the coverage of its answers."""
    with tempfile.TemporaryDirectory(prefix="topics-bench-prisma-") as folder:
        port = _free_port()
        launch = launch_prisma(**WAYS[way])(Path(folder), port)
        process = subprocess.Popen(
            launch.command, env={**os.environ, **launch.env}, cwd=launch.cwd, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            address = f"127.0.0.1:{port}"
            _wait_ready(address, process)
            # A larger batch does not fit into one of its requests.
            fill(address, description, texts, batch=500)
            covered = _wait_covered(address, index_s, description["search"]["primaryTimestampField"])
            return _ask_all(address, kinds), covered
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ask_all(address: str, kinds: tuple[Kind, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    client = Client(address)
    for kind in kinds:
        body: dict[str, Any] = dict(kind.body)
        try:
            for _ in range(9 if kind.is_paged else 0):
                body["search_after"] = post(f"{PATH}/_search", msgspec.json.encode(body), client)["next_search_after"]
            encoded = msgspec.json.encode(body)
            times = times_ms(address, partial(post, f"{PATH}/_search", encoded), 1, _ROUNDS, _QUESTION_S)
        except (RuntimeError, OSError, TypeError):
            # It refuses some questions, or ends them.
            continue
        found[kind.name] = statistics.median(times)
    client.close()
    return found


def _wait_ready(address: str, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            Client(address).ask("GET", "/health")
            return
        except (OSError, RuntimeError):
            time.sleep(0.1)
    raise RuntimeError("Prisma Streams did not start")


def _wait_covered(address: str, index_s: float, field: str) -> str:
    """Queries for all entries by a `field` that each of them has: it refuses a query without a clause."""
    client, end = Client(address), time.monotonic() + index_s
    missing = -1
    while time.monotonic() < end:
        answer = post(f"{PATH}/_search", b'{"q":"has:%b","size":1}' % field.encode(), client)
        coverage = answer.get("coverage", {})
        if coverage.get("complete"):
            return "complete"
        missing = coverage.get("possible_missing_events_upper_bound", missing)
        time.sleep(0.5)
    return f"{missing:,} entries missing after {index_s:.0f} s"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
