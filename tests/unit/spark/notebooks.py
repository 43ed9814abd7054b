"""A small product for tests of the frame: it notes the seqs it was shown, and publishes them as one file."""

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from topics.log.catalog import CatalogTopic
from topics.log.fs import FileSystem, read_whole, replace_file
from topics.log.layout import Layout
from topics.model.seq_ranges import covers, union
from topics.spark.archive.archive_plan import uncovered
from topics.spark.pipeline.products import (
    ARCHIVED,
    CatalogView,
    Chore,
    CommitResult,
    QuarantinedSubjects,
    SegmentRequest,
)

Notes = dict[str, list[tuple[int, int]]]


class Notebook:
    """Both halves at once. `allergic` topics fail in its tasks; `confirms` is how far it confirms at most."""

    cost = ARCHIVED

    def __init__(self, fs: FileSystem, name: str) -> None:
        self.name = name
        self._fs = fs
        self._path = f"data/pipeline/{name}.json"
        self.allergic: set[str] = set()
        self.confirms: int | None = None
        self.broken: Exception | None = None
        self.chores_left: list[Chore] = []
        self.asked: list[str] = []
        self.commits = 0

    def notes(self) -> Notes:
        data = read_whole(self._fs, self._path)
        return msgspec.json.decode(data, type=Notes) if data is not None else {}

    # The place of the round

    def reconcile(self, view: CatalogView, now_ms: int, quarantined: QuarantinedSubjects) -> None:
        if self.broken is not None:
            raise self.broken

    def missing_segments(self, topic: CatalogTopic) -> list[SegmentRequest]:
        self.asked.append(topic.name)
        return [SegmentRequest(ref, topic.name.encode()) for ref in uncovered(topic, self.notes().get(topic.name, []))]

    def chores(self, now_ms: int, quarantined: QuarantinedSubjects) -> list[Chore]:
        return [chore for chore in self.chores_left if chore.subject not in quarantined.subjects]

    def task_context(self) -> bytes:
        return self.name.encode()

    def commit(self, outcomes: Sequence[bytes], now_ms: int) -> CommitResult:
        self.commits += 1
        notes, result = self.notes(), CommitResult()
        for outcome in outcomes:
            found = msgspec.json.decode(outcome)
            self.chores_left = [chore for chore in self.chores_left if chore.subject != found.get("chore")]
            for topic_id, topic, first, last in found.get("seen", []):
                assert not covers(notes.get(topic, []), first, last), "a segment was taken twice"
                notes[topic] = union(notes.get(topic, []), [(first, last)])
                result.topics.add(topic_id)
                result.records += last - first + 1
                result.segments += 1
        self._fs.make_dirs("data/pipeline")
        replace_file(self._fs, self._path, msgspec.json.encode(notes))
        return result

    def due_ms(self) -> int | None:
        return None

    def job_failed(self) -> None:
        """Nothing of it is left: a notebook writes with its commits alone."""

    def rows(self) -> int | None:
        return None

    def deletes_applied(self, number: int) -> int:
        return number if self.confirms is None else self.confirms

    # In tasks

    def begin(self, fs: FileSystem, layout: Layout, context: bytes) -> "_Page":
        assert context == self.name.encode()
        return _Page(self.allergic)

    def chore(self, fs: FileSystem, layout: Layout, context: bytes, work: bytes) -> bytes:
        if work == b"bad":
            raise ValueError("a bad chore")
        return msgspec.json.encode({"chore": work.decode()})


class _Page:
    def __init__(self, allergic: set[str]) -> None:
        self._allergic = allergic
        self._seen: list[tuple[int, str, int, int]] = []

    def take(self, request: SegmentRequest, batches: Sequence[pa.RecordBatch]) -> None:
        ref = request.ref
        assert request.spec == ref.topic.encode()
        if ref.topic in self._allergic:
            raise ValueError("it cannot stand it")
        seqs = [seq for batch in batches for seq in batch["seq"].to_pylist()]
        first, last = max(ref.first_seq, ref.from_seq), min(ref.first_seq + ref.count - 1, ref.to_seq)
        assert seqs == list(range(first, last + 1))
        self._seen.append((ref.topic_id, ref.topic, first, last))

    def finish(self) -> bytes:
        return msgspec.json.encode({"seen": self._seen})
