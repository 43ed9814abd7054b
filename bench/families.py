"""`python -m bench.families`: the processor time to index an entry: in a task, in a merge, and as it comes.

    python -m bench.families --entries 320000 --load flights
    python -m bench.families --beside ../before        another checkout beside this one, in turns

The tasks of the families are run one after the other in one process, without Spark, over the sealed segments of one
stream: the result is the processor time of the process, divided by the entries. Of several rounds the least counts,
because disturbances can only add.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute  # noqa: F401 - tasks load it, once a process

from bench.history_backlog import fill
from bench.history_load import LOADS, Load
from topics.log.catalog_files import read_catalog
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings
from topics.schema.registry import Registry
from topics.search.memory_index.memory_index import MemoryIndex
from topics.search.query.scan import EntryReader
from topics.spark.index_builds.index_plan import subject_of
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.pipeline_worker import make_pipeline
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.segment_scan import Piece
from topics.spark.pipeline.task_packing import FrameRules
from topics.spark.segment_reader import GROUP_BYTES
from topics.system.clock import SystemClock

_HERE = Path(__file__).resolve().parent.parent
_COMPANIONS = 9
_FRESH_ENTRIES = 100_000
_FRESH_BATCHES = (1000, 100, 10)
_decode_piece = msgspec.msgpack.Decoder(Piece).decode


class _Timed(InlineExecutor):
    """Counts the memory of pieces of each kind, without modules and caches that a process loads once."""

    def __init__(self) -> None:
        super().__init__(PosixFileSystem())
        self.build_s = 0.0
        self.merge_s = 0.0

    def parallelism(self) -> int:
        return 2

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        for place, work in enumerate(works):
            piece = _decode_piece(work)
            begun = time.process_time()
            [(_, outcome)] = super().run([work], about)
            took = time.process_time() - begun
            if piece.segments:
                self.build_s += took
            else:
                self.merge_s += took
            yield place, outcome


def build_once(data: Path) -> None:
    """Builds an index file for each segment, without merges."""
    _begun_anew(data, _Timed()).round()


def _begun_anew(data: Path, executor: _Timed) -> Pipeline:
    shutil.rmtree(data / "families", ignore_errors=True)
    return make_pipeline(Settings(data_dir=str(data)), PosixFileSystem(), executor, SystemClock(), frame=_frame(data))


def measure(data: Path, load: Load, entries: int) -> dict[str, float]:
    """Microseconds an entry."""
    executor = _Timed()
    pipeline = _begun_anew(data, executor)
    while pipeline.round():
        pass
    found = {"build": 1e6 * executor.build_s / entries}
    files = _files(data)
    # Rows that were merged twice count twice.
    merged = sum(file["rows"] * file["level"] for file in files)
    if merged:
        found["merge"] = 1e6 * executor.merge_s / merged
    found["bytes"] = sum(file["bytes"] for file in files) / entries
    registry = _registry(data)
    for size in _FRESH_BATCHES:
        found[f"fresh, by {size}"] = _fresh(registry, load, size)
    return found


def _frame(data: Path) -> FrameRules:
    """Rules with merges small enough that this load causes some."""
    size = sum(path.stat().st_size for path in (data / "topics").rglob("*.data"))
    return FrameRules(group_bytes=min(GROUP_BYTES, size // _COMPANIONS))


def _files(data: Path) -> list[dict[str, Any]]:
    """The current index files."""
    manifests = [json.loads(path.read_text()) for path in (data / "families").rglob("manifest.json")]
    return [file for manifest in manifests for file in manifest["files"]]


def _registry(data: Path) -> Registry:
    catalog = read_catalog(PosixFileSystem(), Layout(str(data)))
    assert catalog is not None
    subject = subject_of(catalog.topics[0].contract)
    assert subject is not None
    return subject.registry


def _fresh(registry: Registry, load: Load, size: int) -> float:
    batches = list(_batches(load, min(_FRESH_ENTRIES, 100 * size)))
    index = MemoryIndex(registry.search_config, registry.current_version)
    reader, decoder = EntryReader(registry), index.decoder()
    texts = [raw for batch in batches for raw in batch]
    keys: list[str | None] = [load.key_of(number) for number in range(len(texts))]
    begun = time.process_time()
    for first in range(0, len(texts), size):
        raws = texts[first : first + size]
        reader.fill(index, decoder, list(range(first, first + len(raws))), raws, keys[first : first + size])
    return 1e6 * (time.process_time() - begun) / len(texts)


def _batches(load: Load, count: int) -> Iterator[list[bytes]]:
    texts = load.texts(count)
    while batch := list(islice(texts, 1000)):
        yield batch


def _turn(checkout: Path, data: Path, load: str, entries: int) -> dict[str, float]:
    """One measurement in its own process, with the package of a checkout."""
    command = [sys.executable, "-m", "bench.families", "--data", str(data), "--load", load, "--entries", str(entries)]
    env = {**os.environ, "PYTHONPATH": f"{checkout / 'src'}:{_HERE}"}
    found: dict[str, float] = json.loads(subprocess.run(command, env=env, check=True, capture_output=True).stdout)
    return found


def report(sides: Sequence[Sequence[dict[str, float]]], names: Sequence[str]) -> str:
    lines = [f"{'µs an entry':<16}" + "".join(f"{name:>16}" for name in names)]
    for key in sides[0][0]:
        least = [min(turn[key] for turn in turns) for turns in sides]
        lines.append(f"{key:<16}" + "".join(f"{value:>16.2f}" for value in least))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=320_000)
    parser.add_argument("--load", choices=sorted(LOADS), default="flights")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, help="another checkout, a folder with `src` in it")
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    load: Any = LOADS[arguments.load]
    if arguments.data is not None:
        sys.stdout.write(json.dumps(measure(arguments.data, load, arguments.entries)))
        return
    checkouts = [_HERE] if arguments.beside is None else [arguments.beside.resolve(), _HERE]
    folder = Path(tempfile.mkdtemp(prefix="topics-bench-families-"))
    try:
        fill(folder, 0, arguments.entries, load)
        turns: list[list[dict[str, float]]] = [[] for _ in checkouts]
        for _ in range(arguments.rounds):
            for checkout, taken in zip(checkouts, turns, strict=True):
                taken.append(_turn(checkout, folder, arguments.load, arguments.entries))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(report(turns, [checkout.name for checkout in checkouts]) + "\n")


if __name__ == "__main__":
    main()
