"""`python -m bench.spark_packing`: how evenly the work of a round is packed into tasks, without Spark.

Topics with large and with tiny records, streams with search fields and many small topics are sealed in one folder. The
first round of an archive and of index files is packed for a cluster of several cores, and its tasks run one after the
other in this process, each timed. The length of the job on the cores is computed: a core takes the next task when it is
free.
"""

import argparse
import heapq
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.posix import PosixFileSystem
from topics.model.records import Batch, Record
from topics.model.settings import Settings
from topics.spark.pipeline.executors import PRODUCT_TASKS, InlineExecutor
from topics.spark.pipeline.pipeline_worker import make_pipeline
from topics.spark.pipeline.segment_scan import run_piece
from topics.streams.append import AppendRequest
from topics.streams.lifecycle import CreateRequest
from topics.streams.streams import Streams, inline_streams
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics.system.process import boot_id

MB = 1_000_000
JSON = "application/json"
SCHEMA = {
    "type": "object",
    "properties": {"time": {"type": "integer"}, "level": {"type": "string"}, "message": {"type": "string"}},
}
SEARCH = {
    "primaryTimestampField": "time",
    "fields": {
        "time": {"kind": "date", "column": True, "bindings": [{"version": 1, "jsonPointer": "/time"}]},
        "level": {"kind": "keyword", "exact": True, "column": True,
                  "bindings": [{"version": 1, "jsonPointer": "/level"}]},
        "message": {"kind": "text", "analyzer": "unicode_word_v1", "positions": True,
                    "bindings": [{"version": 1, "jsonPointer": "/message"}]},
    },
}  # fmt: skip


def fill(folder: Path, megabytes: float) -> None:
    """About so many megabytes of text for each kind of topic."""
    options = EngineOptions(data_dir=str(folder), wal_shards=1)
    engine = Engine.recover(PosixFileSystem(), options, SystemClock(), SystemEntropy(), boot_id=boot_id())
    streams, size, random = inline_streams(engine), int(megabytes * MB), Random(7)
    _append(
        engine, "wide", size // 16_000, lambda n: b'{"n":%d,"body":"%s"}' % (n, random.randbytes(8000).hex().encode())
    )
    for number in range(2):
        _append(engine, f"tiny.{number}", size // 2 // 40, lambda n: b'{"n":%d}' % n)
        _append(engine, f"orders.{number}", size // 2 // 200, lambda n: _order(n, random))
    for number in range(200):
        _append(engine, f"many.{number}", 50, lambda n: _order(n, random))
    for number in range(2):
        _log(streams, f"logs.{number}", size // 2 // 160, random)
    for topic in list(engine.core.directory.resident.values()):
        engine.core.before_change(topic)
        engine.sealer.cut(topic)
    engine.close_inline()


def _order(n: int, random: Random) -> bytes:
    note = random.randbytes(60).hex().encode()
    return b'{"id":%d,"customer":"customer-%d","total":%d.5,"note":"%s"}' % (n, random.randrange(5000), n % 997, note)


def _append(engine: Engine, name: str, count: int, data: Callable[[int], bytes]) -> None:
    for first in range(0, count, 1000):
        records = [Record(data(n)) for n in range(first, min(first + 1000, count))]
        engine.append(name, Batch(records=records), lambda _: None)


def _log(streams: Streams, name: str, count: int, random: Random) -> None:
    streams.create(name, CreateRequest(content_type=JSON), lambda _: None)
    described = json.dumps({"schema": SCHEMA, "search": SEARCH}).encode()
    streams.update_schema(name, described, lambda _: None)
    for first in range(0, count, 1000):
        entries = [
            {
                "time": n,
                "level": ("info", "warn", "error")[n % 3],
                "message": " ".join(f"word{int(random.paretovariate(0.6)) % 20_000}" for _ in range(12)),
            }
            for n in range(first, min(first + 1000, count))
        ]
        streams.append(name, AppendRequest(body=json.dumps(entries).encode(), content_type=JSON), lambda _: None)


class Timed(InlineExecutor):
    """Runs tasks one after the other, and keeps how long each took."""

    def __init__(self, cores: int) -> None:
        super().__init__(PosixFileSystem())
        self._cores = cores
        self.jobs: list[list[float]] = []

    def parallelism(self) -> int:
        return self._cores

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        if not self.jobs:
            for work in works:  # So that imports and caches are in no time; the files are orphans.
                run_piece(PosixFileSystem(), PRODUCT_TASKS, work)
        times: list[float] = []
        self.jobs.append(times)
        for place, work in enumerate(works):
            begun = time.process_time()
            outcome = run_piece(PosixFileSystem(), PRODUCT_TASKS, work)
            times.append(time.process_time() - begun)
            yield place, outcome


def length_on(cores: int, times: Sequence[float]) -> float:
    """The length of a job whose tasks start in this order, each on the first free core."""
    free = [0.0] * cores
    for one in times:
        heapq.heapreplace(free, free[0] + one)
    return max(free)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=24.0, help="text of each kind of topic")
    parser.add_argument("--cores", type=int, default=8)
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="topics-packing-"))
    try:
        fill(folder / "data", chosen.megabytes)
        executor = Timed(chosen.cores)
        settings = Settings(data_dir=str(folder / "data"), archive="1")
        pipeline = make_pipeline(settings, PosixFileSystem(), executor, SystemClock())
        pipeline.round()
        [times, *_] = executor.jobs
        busy = sum(times)
        print(
            f"{len(times)} tasks, {busy:.1f} s: median {statistics.median(times):.2f} s, longest {max(times):.2f} s, "
            f"on {chosen.cores} cores {length_on(chosen.cores, times):.1f} s, at best {busy / chosen.cores:.1f} s"
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
