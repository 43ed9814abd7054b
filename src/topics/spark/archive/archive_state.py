"""Archive state: which files are live, which seqs they cover, and which of those are deleted.

It changes only by applying commits, which are lists of events. Pure: the `ledger` module does the I/O.
"""

from collections.abc import Iterable, Iterator

import msgspec

from topics.model.seq_ranges import Ranges, SeqRange, difference, intersection, union
from topics.spark.archive.data_files import ArchiveFile, Mask, Run

# Events of the archive. A commit is a list of events; the ledger stores commits, and both the pipeline and readers
# get the state by applying them in order.

NOT_RECORDED = -1
"""The value in archives of an earlier version, which did not store it."""


class Covered(msgspec.Struct, frozen=True, array_like=True):
    """Seqs of a topic that are archived and never read from the log again."""

    topic_id: int
    epoch: int
    topic: str
    ranges: list[SeqRange]


class Copied(msgspec.Struct, frozen=True, array_like=True, tag="copied"):
    """Sealed records were copied into new files."""

    files: list[ArchiveFile]
    covered: list[Covered]


class Masked(msgspec.Struct, frozen=True, array_like=True, tag="masked"):
    """Records of a topic were deleted and are hidden, though files still hold them."""

    topic_id: int
    deleted: bytes
    """A packed `Mask` of the newly hidden seqs."""
    catalog: int
    """The catalog that listed the delete. Later catalogs repeat it for a while, and seqs that were erased from files
    since then must not be masked again."""


class Dropped(msgspec.Struct, frozen=True, array_like=True, tag="dropped"):
    """Topics were deleted: all their records are hidden."""

    topic_ids: list[int]


class Expired(msgspec.Struct, frozen=True, array_like=True, tag="expired"):
    """Files were retired because they are too old. Their seqs stay covered, so they are not copied again."""

    paths: list[str]


class Uncovered(msgspec.Struct, frozen=True, array_like=True, tag="uncovered"):
    """Seqs whose file was lost are to be copied from the log again."""

    topic_id: int
    ranges: list[SeqRange]


class Rewritten(msgspec.Struct, frozen=True, array_like=True, tag="rewritten"):
    """Files were replaced by others with the same records except deleted ones."""

    old: list[str]
    new: list[ArchiveFile]
    applied: list[tuple[int, bytes]]
    """By topic, packed: the erased seqs, which need no mask any more."""


class Removed(msgspec.Struct, frozen=True, array_like=True, tag="removed"):
    """Retired files are about to be removed from disk."""

    paths: list[str]


class Owned(msgspec.Struct, frozen=True, array_like=True, tag="owned"):
    """The archive belongs to the log of this history, and has all deletes up to a catalog."""

    history: str
    deletes_seen: int = NOT_RECORDED


Event = Copied | Masked | Dropped | Expired | Uncovered | Rewritten | Removed | Owned


class Commit(msgspec.Struct, frozen=True, array_like=True):
    number: int
    """One more than the number of the previous commit."""
    now_ms: int
    events: list[Event]


_NOTHING = Mask.of(())


class ArchivedTopic(msgspec.Struct, frozen=True, gc=False):
    topic_id: int
    epoch: int
    name: str
    covered: tuple[SeqRange, ...] = ()
    deleted: Mask = _NOTHING
    """Hidden seqs that files may still hold."""
    catalog: int = 0
    """The last catalog whose deletes of this topic were applied."""


class ArchiveState:
    def __init__(self) -> None:
        self.number = 0
        self.updated_ms = 0
        self.history = ""
        """The history name of the log it belongs to; empty before the first `Owned`."""
        self.deletes_seen = NOT_RECORDED
        """The newest catalog whose deletes were applied."""
        self.topics: dict[int, ArchivedTopic] = {}
        self.files: dict[str, ArchiveFile] = {}
        self.retired: dict[str, int] = {}
        """Retired files with the time of their retirement. They stay on disk for a while for their readers."""
        self.by_topic: dict[int, tuple[str, ...]] = {}
        """The live files with runs of a topic, dropped topics included."""
        self._runs: dict[str, dict[int, list[tuple[int, Run]]]] = {}
        """A cache by file and topic."""

    def apply(self, commit: Commit) -> None:
        """Applies a commit. Raises ValueError if it is not the next one for this state."""
        if commit.number != self.number + 1:
            raise ValueError(f"commit {commit.number} does not follow {self.number}")
        for event in commit.events:
            self._apply(event, commit.now_ms)
        self.number, self.updated_ms = commit.number, commit.now_ms

    # Queries

    def files_of(self, topic_id: int) -> list[ArchiveFile]:
        """In the order of their seqs."""
        paths = self.by_topic.get(topic_id, ())
        return [
            self.files[path] for path in sorted(paths, key=lambda path: self.runs_in(path, topic_id)[0][1].first_seq)
        ]

    def runs_of(self, topic_id: int) -> list[Run]:
        """In the order of their seqs."""
        runs = [run for path in self.by_topic.get(topic_id, ()) for _, run in self.runs_in(path, topic_id)]
        return sorted(runs, key=lambda run: run.first_seq)

    def runs_in(self, path: str, topic_id: int) -> list[tuple[int, Run]]:
        """The runs of a topic in a live file, each with the number of its first row."""
        if path not in self._runs:
            # A file may have runs of thousands of topics, and a caller usually asks for many of them.
            found: dict[int, list[tuple[int, Run]]] = {}
            for row, run in self.files[path].starts():
                found.setdefault(run.topic_id, []).append((row, run))
            self._runs[path] = found
        return self._runs[path].get(topic_id, [])

    def hidden_in(self, run: Run) -> Mask:
        """The hidden seqs of a run: deleted ones, or all for a dropped topic."""
        topic = self.topics.get(run.topic_id)
        if topic is None:
            return Mask.of([(run.first_seq, run.last_seq)])
        return topic.deleted.within(run.first_seq, run.last_seq)

    def with_hidden_rows(self) -> Iterator[ArchiveFile]:
        """The live files with hidden rows."""
        return (file for file in self.files.values() if file.hidden_ms)

    def named(self) -> set[str]:
        """Every live or retired file."""
        return self.files.keys() | self.retired.keys()

    # Event handlers

    def _apply(self, event: Event, now_ms: int) -> None:
        match event:
            case Copied():
                self._copied(event)
            case Masked():
                self._masked(event, now_ms)
            case Dropped():
                self._dropped(event, now_ms)
            case Expired():
                self._trim(self._retire(event.paths, now_ms))
            case Uncovered():
                topic = self.topics[event.topic_id]
                left = tuple(difference(topic.covered, event.ranges))
                self.topics[event.topic_id] = msgspec.structs.replace(topic, covered=left)
            case Rewritten():
                self._rewritten(event, now_ms)
            case Owned():
                self.history, self.deletes_seen = event.history, event.deletes_seen
            case Removed():
                for path in event.paths:
                    self.retired.pop(path, None)

    def _copied(self, event: Copied) -> None:
        for covered in event.covered:
            topic = self._topic(covered)
            fresh = union(covered.ranges)
            if intersection(fresh, topic.covered):
                raise ValueError(f"topic {topic.name}: records {fresh} are archived already")
            changed = msgspec.structs.replace(topic, covered=tuple(union(topic.covered, fresh)))
            self.topics[topic.topic_id] = changed
        for file in event.files:
            self._add(file)

    def _topic(self, covered: Covered) -> ArchivedTopic:
        known = self.topics.get(covered.topic_id)
        return known if known is not None else ArchivedTopic(covered.topic_id, covered.epoch, covered.topic)

    def _masked(self, event: Masked, now_ms: int) -> None:
        topic, deleted = self.topics[event.topic_id], Mask.unpacked(event.deleted)
        self.topics[event.topic_id] = msgspec.structs.replace(
            topic, deleted=topic.deleted.union(deleted), catalog=event.catalog
        )
        for path in self.by_topic.get(event.topic_id, ()):
            file = self.files[path]
            runs = self.runs_in(path, event.topic_id)
            if not file.hidden_ms and any(len(deleted.within(run.first_seq, run.last_seq)) for _, run in runs):
                self.files[path] = msgspec.structs.replace(file, hidden_ms=now_ms)

    def _dropped(self, event: Dropped, now_ms: int) -> None:
        touched = set()
        for topic_id in event.topic_ids:
            self.topics.pop(topic_id, None)
            touched |= set(self.by_topic.get(topic_id, ()))
        dead = [path for path in touched if all(run.topic_id not in self.topics for run in self.files[path].runs)]
        self._retire(sorted(dead), now_ms)
        for path in touched.difference(dead):
            file = self.files[path]
            self.files[path] = msgspec.structs.replace(file, hidden_ms=file.hidden_ms or now_ms)

    def _rewritten(self, event: Rewritten, now_ms: int) -> None:
        missing = [path for path in event.old if path not in self.files]
        if missing:
            raise ValueError(f"{', '.join(missing)} no longer count")
        # Which of the remaining deletes is the oldest is unknown, so the earliest deadline is kept for all.
        since = min([self.files[path].hidden_ms for path in event.old if self.files[path].hidden_ms], default=now_ms)
        touched = self._retire(event.old, now_ms)
        for topic_id, applied in event.applied:
            topic = self.topics.get(topic_id)
            if topic is not None:
                left = topic.deleted.minus(Mask.unpacked(applied))
                self.topics[topic_id] = msgspec.structs.replace(topic, deleted=left)
        for file in event.new:
            masked = any(len(self.hidden_in(run)) for run in file.runs)
            self._add(msgspec.structs.replace(file, hidden_ms=since if masked else 0))
        self._trim(touched)

    def _add(self, file: ArchiveFile) -> None:
        if file.path in self.files or file.path in self.retired:
            raise ValueError(f"{file.path} was written twice")
        self.files[file.path] = file
        self.list_runs(file)

    def list_runs(self, file: ArchiveFile) -> None:
        """Lists a live file by the topics of its runs."""
        alone = (file.path,)  # Shared by all topics that are in no other file.
        for run in file.runs:
            held = self.by_topic.get(run.topic_id)
            if held is None:
                self.by_topic[run.topic_id] = alone
            elif held[-1] != file.path:
                self.by_topic[run.topic_id] = (*held, file.path)

    def _retire(self, paths: Iterable[str], now_ms: int) -> set[int]:
        """Retires files; returns the topics that had runs in them."""
        touched, gone = set(), set[str]()
        for path in paths:
            file = self.files.pop(path)
            self._runs.pop(path, None)
            self.retired[path] = now_ms
            gone.add(path)
            touched.update([run.topic_id for run in file.runs])
        for topic_id in touched:
            left = tuple([path for path in self.by_topic.get(topic_id, ()) if path not in gone])
            if left:
                self.by_topic[topic_id] = left
            else:
                self.by_topic.pop(topic_id, None)
        return touched

    def _trim(self, topic_ids: Iterable[int]) -> None:
        """Drops masks of seqs that no run spans."""
        for topic_id in topic_ids:
            topic = self.topics.get(topic_id)
            if topic is not None and len(topic.deleted):
                held = Mask.of(self.spans_of(topic_id))
                self.topics[topic_id] = msgspec.structs.replace(topic, deleted=topic.deleted.intersection(held))

    def spans_of(self, topic_id: int) -> Ranges:
        """The seqs that the runs of a topic span."""
        return union([(run.first_seq, run.last_seq) for run in self.runs_of(topic_id)])
