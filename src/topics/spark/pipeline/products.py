"""The frame that products fit into.

A product is something made of sealed segments: the archive is one, index families are others. It has two halves. The
first, `Product`, lives where the round runs: it says which segments of a topic it lacks and what else it has to do, and
publishes what became of it in one step of its own. The second, `TaskHalf`, runs in Spark's tasks: it is handed every
segment that any product wants, once, as Arrow batches, and turns them into an outcome. What travels between the two is
bytes that the product alone understands.

The frame does the rest, the same for all: it looks what has changed in the catalog, reads each segment once for all
products that want it, packs tasks by bytes, finds who is to blame for a failed job, keeps out what fails, and confirms
to the engine those deletes that every product has applied. docs/architecture.md tells how to add a product.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from topics.log.catalog import Catalog, CatalogTopic
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.spark.segment_reader import History, SegmentRef


class Want(msgspec.Struct, frozen=True, array_like=True):
    """A segment that a product lacks, and what of it."""

    ref: SegmentRef
    spec: bytes = b""
    """Whatever the task half has to know about the topic, such as the plan of its indexes."""


class Chore(msgspec.Struct, frozen=True, array_like=True):
    """Work for a task that is no reading of new segments: a file written again, small ones merged."""

    subject: str
    """Who is left out when it fails: a topic's name, or whatever else the product calls it by."""
    topic_id: int
    """The topic's number; 0 when the subject is no topic."""
    work: bytes
    bytes: int
    """How much it reads, about: chores are packed by it."""


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """A topic, or another subject of a product with the number 0, that could not be worked on, and why."""

    topic_id: int
    topic: str
    reason: str


class Gain(msgspec.Struct):
    """What a commit brought."""

    records: int = 0
    bytes: int = 0
    segments: int = 0
    topics: set[int] = set()
    """Topics of which the product lacks less than before: it is asked again what it wants of them."""
    failures: list[Failure] = []


class View(msgspec.Struct, frozen=True):
    """The catalog, and how it differs from the one of the last round. The first time everything has changed."""

    catalog: Catalog
    changed: Sequence[CatalogTopic]
    topics: Mapping[int, CatalogTopic]
    """Every topic by its number: what a product knows and this has not was dropped."""
    history: History
    """Which log it is the catalog of. Where it `takes_over`, what was made before is made anew."""

    @property
    def number(self) -> int:
        return self.catalog.head.number


class ShutOut(msgspec.Struct, frozen=True):
    """What a product leaves alone for now because it failed."""

    topics: frozenset[int] = frozenset()
    subjects: frozenset[str] = frozenset()
    """Names of what is no topic."""


class Product(Protocol):
    """The half that lives where the round runs. One process has it at a time.

    Every method may raise: then the product sits this round out, the others go on, and the round fails in the end.
    Repeated after a crash at any moment, a round comes to the same end.
    """

    @property
    def name(self) -> str: ...

    def settle(self, view: View, now_ms: int, shut_out: ShutOut) -> None:
        """Does what needs no job: masks what was deleted, forgets dropped topics, removes files whose time has come."""
        ...

    def wants(self, topic: CatalogTopic) -> list[Want]:
        """The segments of a topic that it lacks, in order. Asked for topics that changed, and after commits."""
        ...

    def chores(self, now_ms: int, shut_out: ShutOut) -> list[Chore]:
        """What else is to be done, by tasks."""
        ...

    def charge(self) -> bytes:
        """What its task half has to know in every task of a round: where to write, under which run's name."""
        ...

    def commit(self, outcomes: Sequence[bytes], now_ms: int) -> Gain:
        """Publishes outcomes of takes and of chores in one step. A round may have several commits."""
        ...

    def job_failed(self) -> None:
        """A job failed as a whole and is taken apart: what its tasks have written is in no outcome."""
        ...

    def due_ms(self) -> int | None:
        """When it has something to do, even if the catalog stays as it is; None when it has not."""
        ...

    def confirmed(self, number: int) -> int:
        """Up to which catalog its readers are shown no record whose delete that catalog told of; at most `number`.

        The engine forgets a delete once the lowest of these numbers is past it. A product that looks up deletes when it
        is asked, and keeps none, returns `number`.
        """
        ...


class Transform(Protocol):
    """What a product makes of segments, in one task."""

    def take(self, want: Want, batches: Sequence[pa.RecordBatch]) -> None:
        """The wanted records of one segment, all of them, as batches of `RECORD_SCHEMA`; none where all are deleted.

        Segments of a topic come one after the other, in the order of their seqs. To raise is to fail the topic, for
        this product and round: nothing of this segment may be in the outcome then, and no further one of it comes.
        """
        ...

    def finish(self) -> bytes:
        """The outcome, once everything it names is on disk. To raise fails the whole task."""
        ...


class TaskHalf(Protocol):
    """The half that runs in tasks: what a product makes of segments, and how it does a chore."""

    def begin(self, fs: FileSystem, layout: Layout, charge: bytes) -> Transform: ...

    def chore(self, fs: FileSystem, layout: Layout, charge: bytes, work: bytes) -> bytes:
        """Does a chore and returns its outcome. To raise is to fail its subject."""
        ...
