"""What a task of the families does: segments in, companions out; or companions in, one out."""

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from topics.indexing.companions.building import freeze, unasked_index
from topics.indexing.companions.mapped import Companion, CompanionHead
from topics.indexing.companions.merging import merge
from topics.indexing.entries import EntryReader
from topics.spark.families.erasing import Rewrite, pieces
from topics.spark.families.moving import Move, Moved
from topics.spark.families.planning import Merge, subject_of
from topics.spark.segments import SegmentGoneError, SegmentRef, read_segment
from topics.storage.companion_copies import CopyDamagedError
from topics.storage.companions import CompanionFile, CompanionSink, FamilyStore, companion_name
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout
from topics.storage.objects.store import StoreUnavailable


class FamilyMade(msgspec.Struct):
    """What a task made for one stream."""

    topic_id: int
    epoch: int
    topic: str
    generation: str
    files: list[CompanionFile] = []
    replaced: list[str] = []
    rows: int = 0
    text_bytes: int = 0
    segments: int = 0
    is_merged: bool = False
    moved: list[Moved] = []
    cold_problem: str = ""
    """What the cold tier could not do just now. Nothing was made then, and nobody is to blame."""


class FamilyOutcome(msgspec.Struct):
    made: list[FamilyMade] = []


class _Run:
    """Segments of one stream that follow each other, on their way into one companion."""

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


class Indexing:
    """Segments on their way into companions, in one task."""

    def __init__(self, store: FamilyStore, run: str, now_ms: int) -> None:
        self._store = store
        self._run = run
        self._now_ms = now_ms
        self._runs: dict[int, list[_Run]] = {}

    def take(self, ref: SegmentRef, contract: bytes, batches: Sequence[pa.RecordBatch]) -> None:
        runs = self._runs.setdefault(ref.topic_id, [])
        if not runs or not runs[-1].follows(ref):
            runs.append(_Run(ref, contract))
        try:
            runs[-1].take(ref, batches)
        except Exception:
            # Columns of which some have a segment and others have not are of no use: nothing of the stream is kept.
            del self._runs[ref.topic_id]
            raise

    def finish(self) -> FamilyOutcome:
        return FamilyOutcome([self._finish(runs) for runs in self._runs.values() if runs])

    def _finish(self, runs: list[_Run]) -> FamilyMade:
        ref = runs[0].ref
        made = FamilyMade(ref.topic_id, ref.epoch, ref.topic, "")
        for run in runs:
            name = companion_name(run.first, run.last, run.generation, self._run)
            sink = self._store.write(ref.topic_id, name)
            try:
                head = freeze(run.index, run.registry, ref.epoch, run.first, run.last, sink.put)
                sink.finish()
            finally:
                sink.close()
            made.generation = head.generation
            made.files.append(_file(name, head, sink, run.segments, run.last_ts, self._now_ms))
            made.rows += head.rows
            made.text_bytes += run.text_bytes
            made.segments += run.segments
        return made


def merge_files(store: FamilyStore, run: str, now_ms: int, work: Merge) -> FamilyMade:
    """Some companions of a stream as one."""
    files = work.files
    name = companion_name(files[0].first, files[-1].last, files[0].generation, run)
    try:
        sources = [Companion(store.map_near(work.topic_id, file, run)) for file in files]
    except StoreUnavailable as error:
        return _put_off(work.topic_id, work.epoch, work.topic, files[0].generation, error)
    for source in sources:
        # What is damaged must not be written again under a checksum that is right.
        source.check()
    sink = store.write(work.topic_id, name)
    try:
        head = merge(sources, sink.put)
        sink.finish()
    finally:
        sink.close()
    segments = sum(file.segments for file in files)
    made = _file(name, head, sink, segments, files[-1].last_ts, now_ms)
    replaced = [file.name for file in files]
    return FamilyMade(
        work.topic_id, work.epoch, work.topic, head.generation, [made], replaced, head.rows, is_merged=True
    )


def move_file(store: FamilyStore, work: Move) -> FamilyMade:
    """A companion copied into the cold tier."""
    name = work.file.name
    try:
        moved = Moved(name, store.relocate(work.topic_id, name))
    except FileNotFoundError:
        raise
    except (OSError, CopyDamagedError) as error:
        return _put_off(work.topic_id, work.epoch, work.topic, work.generation, error)
    return FamilyMade(work.topic_id, work.epoch, work.topic, work.generation, moved=[moved])


def _put_off(topic_id: int, epoch: int, topic: str, generation: str, error: Exception) -> FamilyMade:
    """What the cold tier is in the way of is tried again later. It costs the stream nothing else: its new entries are
    in the data folder."""
    return FamilyMade(topic_id, epoch, topic, generation, cold_problem=f"{type(error).__name__}: {error}")


def rewrite_file(fs: FileSystem, layout: Layout, run: str, now_ms: int, work: Rewrite) -> FamilyMade:
    """A companion made again, without what is gone: as several smaller ones, which are merged later."""
    made = FamilyMade(work.topic_id, work.epoch, work.topic, work.generation, replaced=[work.file.name])
    for piece in pieces(work.refs):
        indexing = Indexing(FamilyStore(fs, layout), run, now_ms)
        for ref in piece:
            try:
                indexing.take(ref, work.contract, list(read_segment(fs, layout, ref)))
            except SegmentGoneError:
                continue
        for part in indexing.finish().made:
            made.files += part.files
    return made


def _file(
    name: str, head: CompanionHead, sink: CompanionSink, segments: int, last_ts: int, now_ms: int
) -> CompanionFile:
    return CompanionFile(
        name=name, generation=head.generation, first=head.first, last=head.last, rows=head.rows, bytes=sink.size,
        level=head.level, segments=segments, last_ts=last_ts, made_ms=now_ms,
    )  # fmt: skip
