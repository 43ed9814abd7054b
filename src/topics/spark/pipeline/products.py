"""Product interface of the pipeline: what is built from sealed segments, such as the archive and index files.

A product has two parts. `Product` runs in the pipeline process: it returns the segments of a topic that it is missing
and its other work, and publishes results atomically. `ProductTasks` runs in Spark tasks: it receives every requested
segment once, as Arrow batches, and turns them into an outcome. Both exchange bytes that only the product understands.

The pipeline does the rest for all products: it diffs the catalog, reads each segment once for all products that
request it, packs tasks by cost, bisects failed jobs, quarantines failing topics, and acknowledges to the engine the
deletes that every product has applied. docs/architecture.md describes how to add a product.
"""

from collections.abc import Collection, KeysView, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa

from topics.log.catalog import CatalogHead, CatalogTopic
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.model.errors import TopicsError
from topics.spark.segment_reader import History, SegmentRef


class SegmentRequest(msgspec.Struct, frozen=True, array_like=True):
    """A segment that a product is missing, and the range of it that it needs."""

    ref: SegmentRef
    spec: bytes = b""
    """The topic's data for tasks, such as its index plan."""


class Cost(NamedTuple):
    """The work of a product on a segment, in bytes of text that are archived meanwhile. `bench.spark_packing` measures
    it."""

    a_byte: float
    a_record: float


ARCHIVED = Cost(1.0, 30.0)
"""The cost of a copy to the archive."""


class Chore(msgspec.Struct, frozen=True, array_like=True):
    """Maintenance work of a task, such as compaction: a file rewritten, small files merged."""

    subject: str
    """The subject that is quarantined when it fails: a topic, or another name that the product uses."""
    topic_id: int
    """0 when the subject is not a topic."""
    work: bytes
    bytes: int
    """The approximate bytes it reads."""
    work_cost: int = 0
    """Its cost, if that differs from its bytes."""

    @property
    def cost(self) -> int:
        return self.work_cost or self.bytes


class OutputMissingError(TopicsError):
    """A file that a task reported is not where this process looks for it, or is another one. It was not published."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"a task reported a file that is not there: {problem}. Every worker must see the data folder and the "
            "archive under the same paths as the driver"
        )


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """A topic, or another subject with topic id 0, that a product failed on, and why."""

    topic_id: int
    topic: str
    reason: str


class CommitResult(msgspec.Struct):
    """The amounts that a commit published."""

    records: int = 0
    bytes: int = 0
    segments: int = 0
    topics: set[int] = set()
    """Topics whose missing segments changed and are asked for again."""
    failures: list[Failure] = []


class CatalogView(msgspec.Struct, frozen=True):
    """The catalog and its diff to the previous round. In the first round every topic has changed."""

    head: CatalogHead
    changed: Collection[CatalogTopic]
    topics: Mapping[int, CatalogTopic]
    """Every topic by its id. Topics that a product knows and the catalog does not were dropped."""
    history: History
    """The history of the log. Where it `takes_over`, products are rebuilt."""
    gone: frozenset[int] | None = None
    """The topics that were dropped since the previous round; None in the first round, where that is unknown."""

    @property
    def number(self) -> int:
        return self.head.number

    def dropped(self, known: KeysView[int]) -> set[int]:
        """The topics that are known and no longer in the catalog."""
        return set(known & self.gone) if self.gone is not None else set(known - self.topics.keys())


class QuarantinedSubjects(msgspec.Struct, frozen=True):
    """The topics and other subjects that a product skips for now because they failed."""

    topics: frozenset[int] = frozenset()
    subjects: frozenset[str] = frozenset()
    """Names of subjects that are not topics."""


class Product(Protocol):
    """The part of a product that runs in the pipeline process, in one process at a time.

    Every method may raise: then the product is skipped for this round, the others continue, and the round fails at its
    end. Rounds are idempotent: repeated after a crash at any moment, a round has the same result.
    """

    @property
    def name(self) -> str: ...

    @property
    def cost(self) -> Cost:
        """The cost of a segment for this product."""
        ...

    def reconcile(self, view: CatalogView, now_ms: int, quarantined: QuarantinedSubjects) -> None:
        """Does the work that needs no job: masks deletes, forgets dropped topics, removes expired files."""
        ...

    def missing_segments(self, topic: CatalogTopic) -> list[SegmentRequest]:
        """The segments of a topic that it is missing, in order. Called for changed topics, and after commits."""
        ...

    def chores(self, now_ms: int, quarantined: QuarantinedSubjects) -> list[Chore]:
        """Its maintenance work for tasks."""
        ...

    def task_context(self) -> bytes:
        """The data for every task of a round: where to write, and the name of the run."""
        ...

    def commit(self, outcomes: Sequence[bytes], now_ms: int) -> CommitResult:
        """Publishes outcomes of segments and chores atomically. A round may have several commits."""
        ...

    def job_failed(self) -> None:
        """Called when a job failed and is bisected: files that its tasks wrote are in no outcome."""
        ...

    def due_ms(self) -> int | None:
        """When it has work even if the catalog does not change; None for never."""
        ...

    def rows(self) -> int | None:
        """The rows that its tables show; None where it has no table."""
        ...

    def deletes_applied(self, number: int) -> int:
        """The catalog, at most `number`, up to which its readers see no deleted record.

        The engine forgets a delete once the lowest of these numbers is past it. A product that looks deletes up when it
        is read returns `number`.
        """
        ...


class Transform(Protocol):
    """Builds the outcome of a product from segments, in one task."""

    def take(self, request: SegmentRequest, batches: Sequence[pa.RecordBatch]) -> None:
        """Adds all requested records of one segment, as batches of `RECORD_SCHEMA`; none where all are deleted.

        Segments of a topic arrive in seq order. An exception fails the topic for this product and round: then nothing
        of the segment may be in the outcome, and no further segment of the topic arrives.
        """
        ...

    def finish(self) -> bytes:
        """The outcome, once everything it names is on disk. An exception fails the whole task."""
        ...


class ProductTasks(Protocol):
    """The part of a product that runs in Spark tasks."""

    def begin(self, fs: FileSystem, layout: Layout, context: bytes) -> Transform: ...

    def chore(self, fs: FileSystem, layout: Layout, context: bytes, work: bytes) -> bytes:
        """Does a chore and returns its outcome. An exception fails its subject."""
        ...
