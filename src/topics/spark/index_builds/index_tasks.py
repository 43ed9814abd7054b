"""Index build tasks: build index files from segments, and merge, move or rewrite index files."""

from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa

from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.log.object_store.store import StoreUnavailable
from topics.search.file_index.file_format import SectionFile, Write
from topics.search.file_index.manifest import (
    CopyDamagedError,
    IndexFileEntry,
    IndexFileSink,
    IndexStore,
    check_named,
    index_file_name,
)
from topics.search.file_index.merge import freeze, merge, unasked_index
from topics.search.file_index.reader import IndexFile, IndexFileHead
from topics.search.query.scan import EntryReader
from topics.spark.index_builds.index_plan import Merge, Move, Moved, Rewrite, pieces, subject_of
from topics.spark.segment_reader import SegmentGoneError, SegmentRef, read_segment
from topics.system.entropy import SystemEntropy


class IndexMade(msgspec.Struct):
    """The result of a task for one stream."""

    topic_id: int
    epoch: int
    topic: str
    generation: str
    files: list[IndexFileEntry] = []
    replaced: list[str] = []
    rows: int = 0
    text_bytes: int = 0
    segments: int = 0
    is_merged: bool = False
    moved: list[Moved] = []
    cold_problem: str = ""
    """The error of an unavailable cold tier. Nothing was built then, and it is not a failure of the stream."""


class IndexOutcome(msgspec.Struct):
    made: list[IndexMade] = []


class _Run:
    """Consecutive segments of one stream that become one index file."""

    def __init__(self, ref: SegmentRef, contract: bytes) -> None:
        subject = subject_of(contract)
        if subject is None:
            raise ValueError("the stream asks for no index")
        self.registry = subject.registry
        self.generation = subject.generation
        self.ref = ref
        self.first = ref.from_seq
        self.last = ref.from_seq - 1
        self.text_bytes = 0
        self.segments = 0
        self.last_ts = 0
        self.index = unasked_index(self.registry)
        self._decoder = self.index.decoder()
        self._reader = EntryReader(self.registry)

    def follows(self, ref: SegmentRef) -> bool:
        return ref.from_seq == self.last + 1

    def take(self, ref: SegmentRef, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            texts = batch["data"].cast(pa.binary()).to_pylist()
            numbers, keys = batch["seq"].to_pylist(), batch["tag"].to_pylist()
            self._reader.fill(self.index, self._decoder, numbers, texts, keys)
            if batch.num_rows:
                self.last_ts = batch["ts"].cast(pa.int64())[-1].as_py() // 1000
        self.last = ref.to_seq
        self.text_bytes += ref.text_bytes
        self.segments += 1


class IndexBuilder:
    """Builds index files from segments in one task."""

    def __init__(self, store: IndexStore, run: str, now_ms: int) -> None:
        self._store = store
        self._run = run
        self._now_ms = now_ms
        self._runs: dict[int, list[_Run]] = {}
        self._written: list[tuple[int, IndexFileEntry]] = []

    def take(self, ref: SegmentRef, contract: bytes, batches: Sequence[pa.RecordBatch]) -> None:
        runs = self._runs.setdefault(ref.topic_id, [])
        if not runs or not runs[-1].follows(ref):
            runs.append(_Run(ref, contract))
        try:
            runs[-1].take(ref, batches)
        except Exception:
            # The columns of the index may be of different lengths now: the whole stream is dropped.
            del self._runs[ref.topic_id]
            raise

    def finish(self) -> IndexOutcome:
        try:
            return IndexOutcome([self._finish(runs) for runs in self._runs.values() if runs])
        except Exception:
            self.discard()
            raise

    def discard(self) -> None:
        """Removes the written files at once: on a full disk their space is needed before the next run."""
        for topic_id, file in self._written:
            self._store.discard(topic_id, (file.name,))

    def _finish(self, runs: list[_Run]) -> IndexMade:
        ref = runs[0].ref
        made = IndexMade(ref.topic_id, ref.epoch, ref.topic, runs[0].generation)
        for run in runs:
            name = index_file_name(run.first, run.last, run.generation, self._run, _new_attempt())
            head, sink = _write(
                self._store, ref.topic_id, name,
                lambda put, run=run: freeze(run.index, run.registry, ref.epoch, run.first, run.last, put),  # type: ignore[misc]
            )  # fmt: skip
            sizes = SectionFile(self._store.map(ref.topic_id, name)).sizes()
            file = _file(name, head, sink, run.segments, run.last_ts, self._now_ms, sizes)
            self._written.append((ref.topic_id, file))
            made.files.append(file)
            made.rows += head.rows
            made.text_bytes += run.text_bytes
            made.segments += run.segments
        return made


def merge_files(store: IndexStore, run: str, now_ms: int, work: Merge) -> IndexMade:
    """Merges index files of a stream into one."""
    files = work.files
    attempt = _new_attempt()
    name = index_file_name(files[0].first, files[-1].last, files[0].generation, run, attempt)
    try:
        sources = [IndexFile(store.map_near(work.topic_id, file, f"{run}-{attempt}")) for file in files]
    except StoreUnavailable as error:
        return _cold_failure(work.topic_id, work.epoch, work.topic, files[0].generation, error)
    for source, file in zip(sources, files, strict=True):
        # Damaged or foreign data must not be rewritten under a valid checksum.
        source.check()
        check_named(source, work.epoch, file)
    head, sink = _write(store, work.topic_id, name, lambda put: merge(sources, put))
    segments = sum(file.segments for file in files)
    sizes = SectionFile(store.map(work.topic_id, name)).sizes()
    made = _file(name, head, sink, segments, files[-1].last_ts, now_ms, sizes)
    replaced = [file.name for file in files]
    return IndexMade(
        work.topic_id, work.epoch, work.topic, head.generation, [made], replaced, head.rows, is_merged=True
    )


def move_file(store: IndexStore, run: str, work: Move) -> IndexMade:
    """Copies an index file into the cold tier."""
    name = work.file.name
    check_named(IndexFile(store.map(work.topic_id, name)), work.epoch, work.file)
    try:
        moved = Moved(name, store.relocate(work.topic_id, name, f"{run}-{_new_attempt()}"))
    except FileNotFoundError:
        raise
    except (OSError, CopyDamagedError) as error:
        return _cold_failure(work.topic_id, work.epoch, work.topic, work.generation, error)
    return IndexMade(work.topic_id, work.epoch, work.topic, work.generation, moved=[moved])


def _cold_failure(topic_id: int, epoch: int, topic: str, generation: str, error: Exception) -> IndexMade:
    """The result for an unavailable cold tier: the work is tried again later. New entries are in the data folder and
    are not affected."""
    return IndexMade(topic_id, epoch, topic, generation, cold_problem=f"{type(error).__name__}: {error}")


def rewrite_file(fs: FileSystem, layout: Layout, run: str, now_ms: int, work: Rewrite) -> IndexMade:
    """Rebuilds an index file without deleted entries, as several smaller ones that are merged later."""
    made = IndexMade(work.topic_id, work.epoch, work.topic, work.generation, replaced=[work.file.name])
    store = IndexStore(fs, layout)
    try:
        for piece in pieces(work.refs):
            made.files += _indexed_again(fs, layout, IndexBuilder(store, run, now_ms), piece, work.contract)
    except Exception:
        store.discard(work.topic_id, [file.name for file in made.files])
        raise
    return made


def _indexed_again(
    fs: FileSystem, layout: Layout, builder: IndexBuilder, refs: Sequence[SegmentRef], contract: bytes
) -> list[IndexFileEntry]:
    for ref in refs:
        try:
            builder.take(ref, contract, list(read_segment(fs, layout, ref)))
        except SegmentGoneError:
            continue
    return [file for part in builder.finish().made for file in part.files]


def _new_attempt() -> str:
    """Returns a unique name: two attempts of one task may run at once, and tasks of a failed job may continue."""
    return SystemEntropy().token(4).hex()


def _write(
    store: IndexStore, topic_id: int, name: str, fill: Callable[[Write], IndexFileHead]
) -> tuple[IndexFileHead, IndexFileSink]:
    """Writes a file with the bytes of `fill`. Returns its head and its sink. A failed file is removed."""
    sink = store.write(topic_id, name)
    try:
        head = fill(sink.put)
        sink.finish()
    except Exception:
        store.discard(topic_id, (name,))
        raise
    finally:
        sink.close()
    return head, sink


def _file(
    name: str,
    head: IndexFileHead,
    sink: IndexFileSink,
    segments: int,
    last_ts: int,
    now_ms: int,
    sizes: dict[str, int],
) -> IndexFileEntry:
    return IndexFileEntry(
        name=name, generation=head.generation, first=head.first, last=head.last, rows=head.rows, bytes=sink.size,
        level=head.level, segments=segments, last_ts=last_ts, made_ms=now_ms, seal=sink.seal,
        sizes=sizes,
    )  # fmt: skip
