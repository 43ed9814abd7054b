"""`python -m bench.remote`: latency, rate and uploads of durability class `remote` by the latency of the object store.

An S3 server on loopback (`tests/s3.py`) is reached through a proxy that adds a round trip time. Class fsync of the same
server is measured in turns with it, so every row has a ratio whose two sides met the same machine.
"""

import argparse
import asyncio
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from bench.command import end_with_servers
from bench.load import Load, Result, Workload
from bench.peers import OURS, Launch, Running, launch_topics, own_cores, running
from bench.protocols import Topics
from bench.report import Sheet, machine, write_results
from tests.s3 import S3Server
from topics import __version__

_CHUNK_BYTES = 256 * 1024
WORKLOADS = (
    Workload("1x1", "1 record, 1 connection", 1, 1),
    Workload("16x1", "1 record, 16 connections", 16, 1),
    Workload("256x1", "1 record, 256 connections", 256, 1),
    Workload("16x100", "100 records, 16 connections", 16, 100),
)
_METHOD = """\
One server on one core, records of 200 bytes. The object store is in memory, behind a proxy that adds the given round
trip time to every request. Class `fsync` is measured in turns with class `remote`, with the
same records. Uploads are those of the log, `remote_flush_ms` is 50 where no other value is given."""


class DelayingProxy:
    """Passes TCP connections on to a port of loopback; bytes arrive `delay_s` later than they were sent."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._target = port
        self._delay_s = delay_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop
        )  # fmt: skip
        self._server = starting.result(10)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Closes all connections."""

        def end() -> None:
            self._server.close()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.call_soon(self._loop.stop)

        self._loop.call_soon_threadsafe(end)
        self._thread.join(10)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def send(data: bytes) -> None:
            if not writer.is_closing():
                writer.write(data)

        try:
            while data := await reader.read(_CHUNK_BYTES):
                self._loop.call_later(self._delay_s, send, data)
        except OSError:
            pass
        finally:
            self._loop.call_later(self._delay_s, writer.close)


@dataclass
class Row:
    """One workload at one round trip time and one pause between uploads."""

    rtt_ms: int
    flush_ms: int
    workload: Workload
    remote: Result
    fsync: Result
    puts_per_s: float
    bytes_per_s: float

    @property
    def ratio(self) -> float:
        return self.remote.records_per_s / self.fsync.records_per_s


def _shipped(target: Running) -> tuple[float, float]:
    """The uploads of log so far and their bytes."""
    with urllib.request.urlopen(f"http://{target.address}/v0/metrics?topics=false", timeout=30) as answer:
        lines = [line.split() for line in answer.read().decode().splitlines() if line[:1] != "#"]
    values = {words[0]: words[1] for words in lines if len(words) > 1}
    found = [values[f"topics_backup_shipped_{what}_total"] for what in ("objects", "bytes")]
    return float(found[0]), float(found[1])


@contextmanager
def serving(store: S3Server, bucket: str, rtt_ms: int, flush_ms: int, core: int | None) -> Iterator[Running]:
    """A server whose backup storage has this round trip time."""
    port = int(store.environment["AWS_ENDPOINT_URL"].rpartition(":")[2])
    proxy = DelayingProxy(port, rtt_ms / 2000)

    def launch(data: Path, port: int) -> Launch:
        ours = launch_topics(data, port)
        far = {
            **store.environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}", "TOPICS_BACKUP_DIR": bucket,
            "TOPICS_REMOTE_FLUSH_MS": str(flush_ms),
        }  # fmt: skip
        return replace(ours, env={**ours.env, **far})

    try:
        with running(replace(OURS["fsync"], launch=launch), core) as target:
            yield target
    finally:
        proxy.close()


def measure(load: Load, target: Running, rtt_ms: int, flush_ms: int, workloads: Sequence[Workload]) -> Iterator[Row]:
    remote, fsync = Topics("remote"), Topics("fsync")
    for workload in workloads:
        places = f"remote-{workload.key}", f"fsync-{workload.key}"
        fsync.make(target.address, places[1])
        beside = load.measure(target, places[1], workload)
        # Answered once everything that class fsync has logged is uploaded.
        remote.make(target.address, places[0])
        before = _shipped(target)
        found = load.measure(target, places[0], workload)
        after = _shipped(target)
        # The generator warms up before it measures.
        seconds = load.seconds + load.warm_up_s
        puts_per_s, bytes_per_s = [(end - begin) / seconds for begin, end in zip(before, after, strict=True)]
        yield Row(rtt_ms, flush_ms, workload, found, beside, puts_per_s, bytes_per_s)


def report(rows: Sequence[Row], console: Console) -> str:
    sheet = Sheet(console)
    sheet.paragraph(f"Measured with `python -m bench.remote` on {machine({'topics': __version__})}.")
    sheet.paragraph(_METHOD)
    sheet.table(
        "Class remote by the round trip time of the storage",
        [
            "round trip", "flush", "workload", "records/s", "p50", "p99", "uploads/s", "uploaded", "fsync records/s",
            "ratio",
        ],
        [
            [
                f"{row.rtt_ms} ms", f"{row.flush_ms} ms", row.workload.title, f"{row.remote.records_per_s:,.0f}",
                f"{row.remote.p50_ms:,.0f} ms", f"{row.remote.p99_ms:,.0f} ms", f"{row.puts_per_s:.1f}",
                f"{row.bytes_per_s / 1e6:.2f} MB/s", f"{row.fsync.records_per_s:,.0f}", f"{row.ratio:.3f}",
            ]
            for row in rows
        ],
    )  # fmt: skip
    sheet.noise([row.remote.other_cpu for row in rows])
    return sheet.text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rtt", default="0,20,80", help="round trip times to the storage, in ms")
    parser.add_argument("--flush", default="50", help="values of remote_flush_ms")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--write", action="store_true", help="write the report into bench/results/remote.md")
    arguments = parser.parse_args()
    end_with_servers("bench.remote")
    server_core, load_core = own_cores()
    load = Load(load_core, arguments.seconds, warm_up_s=0.5, patience_s=0)
    rows: list[Row] = []
    with S3Server() as store:
        for rtt_ms in map(int, arguments.rtt.split(",")):
            for flush_ms in map(int, arguments.flush.split(",")):
                bucket = store.make_bucket(f"rtt-{rtt_ms}-{flush_ms}")
                with serving(store, bucket, rtt_ms, flush_ms, server_core) as target:
                    rows += measure(load, target, rtt_ms, flush_ms, WORKLOADS)
    text = report(rows, Console(width=160))
    if arguments.write:
        write_results(text, "remote", "Durability class remote")


if __name__ == "__main__":
    main()
