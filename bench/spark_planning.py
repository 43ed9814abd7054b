"""`python -m bench.spark_planning`: what a checkpoint and a round of the pipeline cost at many topics, without Spark.

A synthetic folder has topics with ten sealed segments each, all of them archived. Measured are the publication of the
catalog, and rounds of a pipeline with an archive: the first one of a process, one without changes, and one in which a
hundred topics have a new segment. Tasks do nothing, so that the time is that of planning. Each size runs in its own
process. Times are processor time; the peak memory is that of the pipeline's process without Java.
"""

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from topics.log.catalog import CatalogHead, CatalogSegment, CatalogTopic, encode_topic
from topics.log.catalog_files import CatalogWriter
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.spark.archive.archive_plan import ArchiveRules
from topics.spark.archive.archive_state import ArchivedTopic, ArchiveState
from topics.spark.archive.data_files import ArchiveFile, Run
from topics.spark.archive.ledger import ArchiveStore
from topics.spark.pipeline.archive_product import ArchiveProduct
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.segment_scan import PieceOutcome
from topics.spark.pipeline.status import WorkerStatus
from topics.spark.segment_reader import bucket_of
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy

SEGMENTS = 10
RECORDS = 100
"""The records of a segment."""
CHANGED = 100
TOPICS_A_FILE = 1000
_DAY_MS = 86_400_000


def topic(number: int, segments: int) -> CatalogTopic:
    listed = [CatalogSegment(1 + n * RECORDS, RECORDS, 20_000, 0, n, n, 0, False) for n in range(segments)]
    head = segments * RECORDS
    return CatalogTopic(number, f"tenants.{number % 1000}.orders-{number}", 1, b"{}", head, 1, 1, listed, [], [])


def archive(layout: Layout, topics: int) -> None:
    """An archive that has every segment."""
    state = ArchiveState()
    for first in range(1, topics + 1, TOPICS_A_FILE):
        runs = []
        for number in range(first, min(first + TOPICS_A_FILE, topics + 1)):
            name, last = f"tenants.{number % 1000}.orders-{number}", SEGMENTS * RECORDS
            state.topics[number] = ArchivedTopic(number, 1, name, ((1, last),))
            runs.append(Run(number, 1, name, 1, last, last, 0, SEGMENTS))
        path = f"data/day=1970-01-01/topic_bucket={bucket_of(runs[0].topic)}/{first}.parquet"
        state.files[path] = ArchiveFile(path, 0, bucket_of(runs[0].topic), 200_000_000, tuple(runs))
        there = Path(layout.archive, path)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.touch()
    state.number, state.updated_ms, state.history, state.deletes_seen = 1, 1, "", 0
    ArchiveStore(PosixFileSystem(), layout.archive).save(state)


class Nothing:
    """Tasks without an effect."""

    def parallelism(self) -> int:
        return 8

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        for place in range(len(works)):
            yield place, msgspec.msgpack.encode(PieceOutcome())

    def footprint(self) -> WorkerStatus | None:
        return None

    def probe(self) -> None:
        """Succeeds."""


class Server:
    """Publishes catalogs."""

    def __init__(self, layout: Layout, topics: int) -> None:
        self._writer = CatalogWriter(PosixFileSystem(), layout)
        self._topics = {number: encode_topic(topic(number, SEGMENTS)) for number in range(1, topics + 1)}
        self._number = 0
        self._changed = set(self._topics)

    def publish(self) -> None:
        self._number += 1
        head = CatalogHead(self._number, self._number, len(self._topics), True, True)
        self._writer.publish(head, self._topics, self._changed)
        self._changed = set()

    def grow(self) -> None:
        """Some topics get another segment."""
        for number in range(1, CHANGED + 1):
            self._topics[number] = encode_topic(topic(number, SEGMENTS + self._number))
            self._changed.add(number)


def seconds(do: Callable[[], object]) -> float:
    """Processor time, which is about the same on a busy machine."""
    begun = time.process_time()
    do()
    return time.process_time() - begun


def serve(folder: str, topics: int) -> None:
    layout = Layout(folder)
    Path(layout.meta).mkdir(parents=True)
    server = Server(layout, topics)
    whole = seconds(server.publish)
    server.grow()
    print(
        f"  checkpoint: whole catalog {whole:.2f} s, {CHANGED} changed topics {seconds(server.publish):.3f} s",
        flush=True,
    )
    archive(layout, topics)
    sys.stdin.readline()
    server.grow()
    server.publish()
    print("published", flush=True)


def run(folder: str, topics: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.spark_planning", "--serve", folder, "--topics", str(topics)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        print(server.stdout.readline(), end="")
        while not Path(folder, "archive", "ledger").exists():
            time.sleep(0.1)
        layout = Layout(folder)
        Path(layout.pipeline).mkdir()
        product = ArchiveProduct(PosixFileSystem(), layout.archive, ArchiveRules(), SystemEntropy())
        made = Pipeline(PosixFileSystem(), layout, [product], Nothing(), SystemClock())
        first = seconds(made.round)
        # The hundred topics with a new segment stay, because the tasks copy nothing.
        still = seconds(made.round)
        server.stdin.write("\n")
        server.stdin.flush()
        server.stdout.readline()
        changed = seconds(made.round)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"  rounds: first {first:.2f} s, nothing changed {still:.3f} s, {CHANGED} changed topics {changed:.3f} s; "
        f"peak memory {memory:.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", metavar="FOLDER")
    parser.add_argument("--run", metavar="FOLDER")
    parser.add_argument("--topics", type=int)
    chosen = parser.parse_args()
    if chosen.serve is not None:
        serve(chosen.serve, chosen.topics)
        return
    if chosen.run is not None:
        run(chosen.run, chosen.topics)
        return
    for size in [chosen.topics] if chosen.topics is not None else (10_000, 100_000, 1_000_000):
        print(f"{size:,} topics, {size * SEGMENTS:,} segments", flush=True)
        folder = tempfile.mkdtemp(prefix="topics-planning-")
        try:
            command = [sys.executable, "-m", "bench.spark_planning", "--run", folder, "--topics", str(size)]
            subprocess.run(command, check=True)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
