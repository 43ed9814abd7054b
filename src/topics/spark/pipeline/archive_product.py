"""Archive product: copies sealed segments into the archive, and rewrites archive files to merge or erase records."""

import logging
from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa

from topics.log.catalog import CatalogTopic
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.spark.archive.archive_plan import (
    ArchiveRules,
    Rewrite,
    elapsed,
    joined,
    missing_files,
    next_due,
    reconcile,
    rewrites,
    uncovered,
)
from topics.spark.archive.archive_state import ArchiveState, Copied, Event, Removed, Rewritten
from topics.spark.archive.archive_writer import Follower, Outcome, SegmentCopier, rewrite
from topics.spark.archive.data_files import ArchiveFile, in_parallel, problem_of
from topics.spark.archive.ledger import ArchiveStore, deletes_seen, take_ownership
from topics.spark.pipeline.products import (
    ARCHIVED,
    CatalogView,
    Chore,
    CommitResult,
    OutputMissingError,
    QuarantinedSubjects,
    SegmentRequest,
)
from topics.spark.pipeline.status import ARCHIVE
from topics.spark.segment_reader import has_elapsed
from topics.system.entropy import Entropy

NAME = ARCHIVE
_log = logging.getLogger(__name__)


class _TaskContext(msgspec.Struct, frozen=True):
    archive: str
    run: str


class ArchiveTasks:
    """The part of the product that runs in Spark tasks."""

    def begin(self, fs: FileSystem, layout: Layout, context: bytes) -> "_ArchiveTransform":
        found = msgspec.msgpack.decode(context, type=_TaskContext)
        return _ArchiveTransform(SegmentCopier(fs, found.archive, found.run))

    def chore(self, fs: FileSystem, layout: Layout, context: bytes, work: bytes) -> bytes:
        found = msgspec.msgpack.decode(context, type=_TaskContext)
        made = rewrite(fs, found.archive, found.run, msgspec.msgpack.decode(work, type=Rewrite))
        return msgspec.msgpack.encode(made)


class _ArchiveTransform:
    def __init__(self, copier: SegmentCopier) -> None:
        self._copier = copier

    def take(self, request: SegmentRequest, batches: Sequence[pa.RecordBatch]) -> None:
        self._copier.take(request.ref, batches)

    def finish(self) -> bytes:
        return msgspec.msgpack.encode(self._copier.finish())


class ArchiveProduct:
    name = NAME
    cost = ARCHIVED

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        rules: ArchiveRules,
        entropy: Entropy,
        table: Follower | None = None,
        on_note: Callable[[str, bool], None] = lambda note, is_problem: None,
    ) -> None:
        """`on_note` receives what an operator should know, and whether something is left to do about it."""
        self._on_note = on_note
        self._missing: set[str] = set()
        self._nothing_to_rewrite: tuple[int, frozenset[str]] | None = None
        """The state of the archive, and what was quarantined, when there was last nothing to rewrite."""
        self._pinned: frozenset[str] = frozenset()
        self._fs = fs
        self._store = ArchiveStore(fs, root)
        self._rules = rules
        self._entropy = entropy
        self._table = table
        self._begun = False
        self._state: ArchiveState | None = None
        self._quarantined = QuarantinedSubjects()

    @property
    def state(self) -> ArchiveState:
        """The archive state, loaded once: the pipeline lock keeps other processes from changing it."""
        if self._state is None:
            self._state = self._store.load()
        return self._state

    def reconcile(self, view: CatalogView, now_ms: int, quarantined: QuarantinedSubjects) -> None:
        self._quarantined = quarantined
        self._begin(now_ms)
        self._commit(take_ownership(self.state, view.history, view.topics), now_ms)
        self._handle_missing(view, now_ms)
        if self._table is not None and elapsed(self.state, self._rules, now_ms):
            self._pinned = self._table.pinned(now_ms)
        dropped = view.dropped(self.state.topics.keys())
        events = reconcile(
            dropped, view.changed, view.number, self.state, self._rules, now_ms, self._pinned
        )  # fmt: skip
        self._commit([*events, *deletes_seen(self.state, view.changed)], now_ms)
        removed = [path for event in events if isinstance(event, Removed) for path in event.paths]
        if removed and self._table is not None:
            self._table.expire(now_ms)
        self._store.remove_files(removed)

    def _handle_missing(self, view: CatalogView, now_ms: int) -> None:
        """Has missing files rebuilt from the log where it has all of their records, and reports them."""
        missing, self._missing = self._missing & self.state.files.keys(), set()
        if not missing:
            return
        found = missing_files(missing, self.state, view.topics)
        _log.error(
            "files of the archive are missing",
            extra={"files": len(missing), "rebuilt": len(found.rebuilt), "path": min(missing)},
        )
        self._on_note(str(found), bool(found.lost))
        self._commit(found.events, now_ms)

    def missing_segments(self, topic: CatalogTopic) -> list[SegmentRequest]:
        known = self.state.topics.get(topic.topic_id)
        return [SegmentRequest(ref) for ref in uncovered(topic, known.covered if known is not None else ())]

    def chores(self, now_ms: int, quarantined: QuarantinedSubjects) -> list[Chore]:
        due = min([file.hidden_ms for file in self.state.with_hidden_rows()], default=None)
        planned = (self.state.number, quarantined.subjects)
        if planned == self._nothing_to_rewrite and (due is None or not has_elapsed(due, self._rules.erase_ms, now_ms)):
            return []
        found = rewrites(self.state, self._rules, now_ms, quarantined.subjects)
        self._nothing_to_rewrite = planned if not found else None
        return [Chore(one.subject, 0, msgspec.msgpack.encode(one), one.bytes) for one in found]

    def task_context(self) -> bytes:
        return msgspec.msgpack.encode(_TaskContext(self._store.root, self._entropy.token(8).hex()))

    def commit(self, outcomes: Sequence[bytes], now_ms: int) -> CommitResult:
        result, events = CommitResult(), []
        copied = Copied([], [])
        made = [msgspec.msgpack.decode(encoded, type=Outcome) for encoded in outcomes]
        self._check_files([file for outcome in made for file in outcome.files])
        for outcome in made:
            if outcome.replaced:
                files = [joined(file, outcome.replaced, self.state) for file in outcome.files]
                events.append(Rewritten(outcome.replaced, files, outcome.applied))
            else:
                copied.files.extend(outcome.files)
                copied.covered.extend(outcome.covered)
            result.topics.update(covered.topic_id for covered in outcome.covered)
            result.records += outcome.rows
            result.bytes += outcome.text_bytes
            result.segments += outcome.segments
        self._commit([*([copied] if copied.covered else []), *events], now_ms)
        return result

    def _check_files(self, files: Sequence[ArchiveFile]) -> None:
        """Raises OutputMissingError where a file is not as its task wrote it: the ledger must not name it."""
        store = self._store

        def problem(file: ArchiveFile) -> str | None:
            return problem_of(self._fs, store.path_of(file.path), file.bytes, file.tail)

        for found in in_parallel(problem, files, store.root):
            if found is not None:
                raise OutputMissingError(found)

    def due_ms(self) -> int | None:
        return next_due(self.state, self._rules, self._quarantined.subjects, self._pinned)

    def job_failed(self) -> None:
        """Schedules a sweep of orphaned files for the next round, when no task of the failed job runs any more."""
        self._begun = False

    def rows(self) -> int | None:
        return self._table.rows() if self._table is not None else None

    def deletes_applied(self, number: int) -> int:
        """`number`: deletes are masked at the beginning of each round."""
        return number

    def _begin(self, now_ms: int) -> None:
        """Brings the table up to date. Sweeps orphaned files once a process and after a failed job or commit, after the
        table has stopped naming them."""
        if self._table is not None:
            self._table.follow(self.state, (), now_ms)
        if not self._begun:
            self._missing = self._store.sweep(self.state)
            self._begun = True

    def _commit(self, events: Sequence[Event], now_ms: int) -> None:
        if not events:
            return
        state, begun = self.state, self._begun
        # A failed commit leaves the state in memory undefined: it is loaded from disk again, and orphans are swept.
        self._state, self._begun = None, False
        self._store.commit(state, events, now_ms)
        self._state, self._begun = state, begun
        if self._table is not None:
            self._table.follow(state, events, now_ms)
