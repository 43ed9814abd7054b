"""The archive as a product of the pipeline."""

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from topics.log.catalog import CatalogTopic
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.spark.archive.archive_plan import ArchiveRules, Rewrite, joined, next_due, rewrites, settle, uncovered
from topics.spark.archive.archive_state import ArchiveState, Copied, Event, Removed, Rewritten
from topics.spark.archive.archive_writer import Copying, Follower, Outcome, rewrite
from topics.spark.archive.ledger import ArchiveStore, heard, owned
from topics.spark.pipeline.products import Chore, Gain, ShutOut, View, Want
from topics.system.entropy import Entropy

NAME = "archive"


class _Charge(msgspec.Struct, frozen=True):
    archive: str
    run: str


class ArchiveTasks:
    """The half that runs in tasks."""

    def begin(self, fs: FileSystem, layout: Layout, charge: bytes) -> "_ArchiveTransform":
        found = msgspec.msgpack.decode(charge, type=_Charge)
        return _ArchiveTransform(Copying(fs, found.archive, found.run))

    def chore(self, fs: FileSystem, layout: Layout, charge: bytes, work: bytes) -> bytes:
        found = msgspec.msgpack.decode(charge, type=_Charge)
        made = rewrite(fs, found.archive, found.run, msgspec.msgpack.decode(work, type=Rewrite))
        return msgspec.msgpack.encode(made)


class _ArchiveTransform:
    def __init__(self, copying: Copying) -> None:
        self._copying = copying

    def take(self, want: Want, batches: Sequence[pa.RecordBatch]) -> None:
        self._copying.take(want.ref, batches)

    def finish(self) -> bytes:
        return msgspec.msgpack.encode(self._copying.finish())


class ArchiveProduct:
    name = NAME

    def __init__(
        self, fs: FileSystem, root: str, rules: ArchiveRules, entropy: Entropy, table: Follower | None = None
    ) -> None:
        self._store = ArchiveStore(fs, root)
        self._rules = rules
        self._entropy = entropy
        self._table = table
        self._begun = False
        self._state: ArchiveState | None = None
        self._shut_out = ShutOut()

    @property
    def state(self) -> ArchiveState:
        """Read once: this process holds the pipeline, so nobody else changes it."""
        if self._state is None:
            self._state = self._store.load()
        return self._state

    def settle(self, view: View, now_ms: int, shut_out: ShutOut) -> None:
        self._shut_out = shut_out
        self._begin(now_ms)
        self._commit(owned(self.state, view.history, view.topics), now_ms)
        events = settle(view.topics, view.changed, view.number, self.state, self._rules, now_ms)
        self._commit([*events, *heard(self.state, view.changed)], now_ms)
        removed = [path for event in events if isinstance(event, Removed) for path in event.paths]
        if removed and self._table is not None:
            self._table.expire(now_ms)
        self._store.remove_files(removed)

    def wants(self, topic: CatalogTopic) -> list[Want]:
        known = self.state.topics.get(topic.topic_id)
        return [Want(ref) for ref in uncovered(topic, known.covered if known is not None else ())]

    def chores(self, now_ms: int, shut_out: ShutOut) -> list[Chore]:
        found = rewrites(self.state, self._rules, now_ms, shut_out.subjects)
        return [Chore(one.subject, 0, msgspec.msgpack.encode(one), one.bytes) for one in found]

    def charge(self) -> bytes:
        return msgspec.msgpack.encode(_Charge(self._store.root, self._entropy.token(8).hex()))

    def commit(self, outcomes: Sequence[bytes], now_ms: int) -> Gain:
        gain, events = Gain(), []
        copied = Copied([], [])
        for encoded in outcomes:
            outcome = msgspec.msgpack.decode(encoded, type=Outcome)
            if outcome.replaced:
                files = [joined(file, outcome.replaced, self.state) for file in outcome.files]
                events.append(Rewritten(outcome.replaced, files, outcome.applied))
            else:
                copied.files.extend(outcome.files)
                copied.covered.extend(outcome.covered)
            gain.topics.update(covered.topic_id for covered in outcome.covered)
            gain.records += outcome.rows
            gain.bytes += outcome.text_bytes
            gain.segments += outcome.segments
        self._commit([*([copied] if copied.covered else []), *events], now_ms)
        return gain

    def due_ms(self) -> int | None:
        return next_due(self.state, self._rules, self._shut_out.subjects)

    def job_failed(self) -> None:
        """Tasks that were done before another failed have left files that nobody will name: they are swept when the
        next round begins, when no task of this one is left."""
        self._begun = False

    def confirmed(self, number: int) -> int:
        """Deletes are masked before anything else is done in a round."""
        return number

    def _begin(self, now_ms: int) -> None:
        """What is behind catches up. Once a process, and behind a job or a commit that failed, what nobody names goes,
        when the table no longer does."""
        if self._table is not None:
            self._table.follow(self.state, (), now_ms)
        if not self._begun:
            self._store.sweep(self.state)
            self._begun = True

    def _commit(self, events: Sequence[Event], now_ms: int) -> None:
        if not events:
            return
        state, begun = self.state, self._begun
        # What fails half way leaves nobody knows what in memory: then the disk is asked again, and swept.
        self._state, self._begun = None, False
        self._store.commit(state, events, now_ms)
        self._state, self._begun = state, begun
        if self._table is not None:
            self._table.follow(state, events, now_ms)
