"""`python -m bench.history_cost`: the processor time that a search over history takes, question by question.

    python -m bench.history_cost --entries 1000000
    python -m bench.history_cost --beside ../before        another checkout beside this one, in turns

Measures in one process, without Spark and without a server, the steps that `bench.history` measures over HTTP: queries
on the index files of one stream, and reads of the entries of the hits from its segments. Reports the processor time of
the process, the median of a round; of several rounds the least counts, because disturbances can only add. Both sides
are asked of the same files, which this one builds, and must find the same.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from bench.history_backlog import fill
from bench.history_load import LOADS, Load
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings
from topics.search.service.backend import InlineSearcher, at_once
from topics.search.service.index_file_cache import IndexFiles
from topics.search.service.search_service import StreamSearch
from topics.search.worker.messages import SearchQuery
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.pipeline_worker import make_pipeline
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics.system.process import boot_id, tune_allocator, tune_collector

_HERE = Path(__file__).resolve().parent.parent
_PAGE = 50
_TIMEOUT_S = 60.0
_TIMES = 60
_PAGES = 9


def build(data: Path, load: Load, entries: int) -> None:
    """A sealed stream whose index files are merged as the pipeline merges them."""
    fill(data, 0, entries, load)
    files = PosixFileSystem()
    pipeline = make_pipeline(Settings(data_dir=str(data)), files, InlineExecutor(files), SystemClock())
    while pipeline.round():
        pass


class Asker:
    """Queries one stream like a server, with the search process's code on its own stack."""

    def __init__(self, data: Path) -> None:
        options = EngineOptions(data_dir=str(data), wal_shards=1)
        files = PosixFileSystem()
        self._engine = Engine.recover(files, options, SystemClock(), SystemEntropy(), boot_id=boot_id())
        index_files = IndexFiles(files, Layout(str(data)), time.monotonic)
        self._search = StreamSearch(
            self._engine,
            InlineSearcher(time.monotonic),
            at_once,
            time.monotonic,
            stream_bytes=0,
            index_files=index_files,
        )
        self._topic = max(self._engine.core.directory.resident.values(), key=lambda topic: topic.head)

    def ask(self, query: SearchQuery) -> list[Any]:
        """The hits of a query with their entries."""
        found: list[Any] = []
        self._search.query(self._topic, query, _TIMEOUT_S, found.append)
        hits = list(found.pop().result.hits)
        self._search.fetch(self._topic, [hit.seq for hit in hits], found.append)
        assert len(found.pop().entries) == len(hits)
        return hits

    def close(self) -> None:
        self._engine.close_inline()


def measure(data: Path, load: Load) -> dict[str, tuple[float, int]]:
    """For each query its milliseconds, and a number that identifies its hits."""
    tune_allocator()
    asker = Asker(data)
    tune_collector()
    found = {}
    for kind in load.kinds:
        body: dict[str, Any] = dict(kind.body)
        query = SearchQuery(body["q"], tuple(body.get("sort", ())), _PAGE)
        for _ in range(_PAGES if kind.is_paged else 0):
            query = SearchQuery(query.q, query.sort, _PAGE, asker.ask(query)[-1].place)
        hits = asker.ask(query)
        times = []
        for _ in range(_TIMES):
            begun = time.process_time()
            asker.ask(query)
            times.append(1000 * (time.process_time() - begun))
        found[kind.name] = (statistics.median(times), crc32(repr([(hit.seq, hit.score) for hit in hits]).encode()))
    asker.close()
    return found


def _turn(checkout: Path, data: Path, load: str) -> dict[str, tuple[float, int]]:
    """One round in its own process, with the package of a checkout."""
    command = [sys.executable, "-m", "bench.history_cost", "--data", str(data), "--load", load]
    env = {**os.environ, "PYTHONPATH": f"{checkout / 'src'}:{_HERE}"}
    found: dict[str, Any] = json.loads(subprocess.run(command, env=env, check=True, capture_output=True).stdout)
    return {name: (milliseconds, reported) for name, (milliseconds, reported) in found.items()}


def report(sides: Sequence[Sequence[dict[str, tuple[float, int]]]], names: Sequence[str]) -> str:
    lines = [f"{'ms':<16}" + "".join(f"{name:>16}" for name in names)]
    for key in sides[0][0]:
        if len({turn[key][1] for turns in sides for turn in turns}) > 1:
            raise RuntimeError(f"not everybody found the same: {key}")
        least = [min(turn[key][0] for turn in turns) for turns in sides]
        lines.append(f"{key:<16}" + "".join(f"{value:>16.2f}" for value in least))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--load", choices=sorted(LOADS), default="flights")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, help="another checkout, a folder with `src` in it")
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.data is not None:
        sys.stdout.write(json.dumps(measure(arguments.data, LOADS[arguments.load])))
        return
    checkouts = [_HERE] if arguments.beside is None else [arguments.beside.resolve(), _HERE]
    folder = Path(tempfile.mkdtemp(prefix="topics-bench-history-cost-"))
    try:
        build(folder, LOADS[arguments.load], arguments.entries)
        turns: list[list[dict[str, tuple[float, int]]]] = [[] for _ in checkouts]
        for _ in range(arguments.rounds):
            for checkout, taken in zip(checkouts, turns, strict=True):
                taken.append(_turn(checkout, folder, arguments.load))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(report(turns, [checkout.name for checkout in checkouts]) + "\n")


if __name__ == "__main__":
    main()
