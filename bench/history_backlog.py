"""Many small streams and one large one in one backlog: how many jobs, how long, how many files.

python -m bench.history_backlog --streams 2000 --large 10000000
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.history_load import FLIGHTS, Load
from bench.peers import our_version
from bench.report import machine
from bench.search_client import array
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.errors import TopicsError
from topics.model.settings import Settings
from topics.search.file_index.manifest import IndexStore
from topics.search.service.backend import InlineSearcher, at_once
from topics.search.service.search_service import StreamSearch
from topics.spark.pipeline.executors import SparkExecutor
from topics.spark.pipeline.pipeline_worker import make_pipeline
from topics.spark.session import SparkOptions, open_session
from topics.streams.append import AppendRequest
from topics.streams.lifecycle import CreateRequest
from topics.streams.streams import Streams
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics.system.process import boot_id

_SMALL_ENTRIES = 50
_BATCH = 1000
_JSON = "application/json"


@dataclass
class Round:
    seconds: float
    jobs: int
    records: int
    failures: int


def fill(folder: Path, streams: int, large: int, load: Load = FLIGHTS) -> None:
    """Fills streams that have the same search description, and seals everything."""
    with _streams(folder) as made:
        for number in range(streams):
            _create(made, f"small-{number}", load)
            _append(made, f"small-{number}", list(load.texts(_SMALL_ENTRIES)))
        if large:
            _create(made, "large", load)
            batch: list[bytes] = []
            for text in load.texts(large):
                batch.append(text)
                if len(batch) == _BATCH:
                    _append(made, "large", batch)
                    batch = []
            if batch:
                _append(made, "large", batch)


@contextmanager
def _streams(folder: Path) -> Iterator[Streams]:
    options = EngineOptions(data_dir=str(folder), wal_shards=1)
    engine = Engine.recover(PosixFileSystem(), options, SystemClock(), SystemEntropy(), boot_id=boot_id())
    searcher = InlineSearcher(time.monotonic)
    yield Streams(engine, search=StreamSearch(engine, searcher, at_once, time.monotonic, stream_bytes=0))
    for topic in list(engine.core.directory.resident.values()):
        engine.core.before_change(topic)
        engine.sealer.cut(topic)
    engine.close_inline()


def _create(streams: Streams, name: str, load: Load) -> None:
    streams.create(name, CreateRequest(content_type=_JSON), _expect_success)
    streams.update_schema(name, msgspec.json.encode(load.description), _expect_success)


def _append(streams: Streams, name: str, texts: list[bytes]) -> None:
    # Bypasses the service, which would index the appended entries.
    streams._appender.append(name, AppendRequest(body=array(texts), content_type=_JSON), _expect_success)


def _expect_success(outcome: Any) -> None:
    if isinstance(outcome, TopicsError):
        raise outcome


def build(folder: Path) -> tuple[list[Round], int]:
    """Runs rounds until nothing is left to do; returns their number and that of the current files."""
    spark = open_session(SparkOptions(master="local[2]", memory="1g", app_name="bench"))
    try:
        tracker, files = spark.sparkContext.statusTracker(), PosixFileSystem()
        pipeline = make_pipeline(Settings(data_dir=str(folder)), files, SparkExecutor(spark), SystemClock())
        rounds, worked = [], True
        while worked:
            before, records, begun = len(tracker.getJobIdsForGroup(None)), pipeline.status.records, time.monotonic()
            worked = pipeline.round()
            jobs = len(tracker.getJobIdsForGroup(None)) - before
            took, quarantined = time.monotonic() - begun, len(pipeline.status.quarantined)
            rounds.append(Round(took, jobs, pipeline.status.records - records, quarantined))
    finally:
        spark.stop()
    store = IndexStore(files, Layout(str(folder)))
    manifests = [store.load(topic_id) for topic_id in store.topic_ids()]
    return rounds, sum(len(manifest.files) for manifest in manifests if manifest is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000, help="how many small streams")
    parser.add_argument("--large", type=int, default=10_000_000, help="entries of the large one")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="topics-bench-backlog-"))
    try:
        begun = time.monotonic()
        fill(folder, arguments.streams, arguments.large)
        sys.stderr.write(f"filled in {time.monotonic() - begun:.0f} s\n")
        rounds, files = build(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    total = sum(one.seconds for one in rounds)
    where = machine({"topics": our_version()})
    lines = [
        f"On {where}: {arguments.streams:,} streams of {_SMALL_ENTRIES} entries and one of {arguments.large:,}, "
        f"{total:.0f} s and {files:,} files.",
        "",
        "| round | jobs | records | seconds |",
        "|---|---|---|---|",
    ]
    lines += [f"| {n} | {one.jobs} | {one.records:,} | {one.seconds:.1f} |" for n, one in enumerate(rounds, 1)]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
