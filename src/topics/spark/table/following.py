"""What the state of the archive means for the table: its files, each with what is hidden in it."""

from collections.abc import Iterable

from topics.spark.archive.files import DataFile
from topics.spark.archive.masks import Mask
from topics.spark.archive.state import ArchivedTopic, ArchiveState
from topics.spark.archive.store import ArchiveStore
from topics.spark.table.files import Run, TableFile, Wanted
from topics.spark.table.table import ArchiveTable


class TableFollower:
    """Tells the table what changed. Files and topics are never changed in place: another object is another state."""

    def __init__(self, table: ArchiveTable, store: ArchiveStore) -> None:
        self._table = table
        self._store = store
        self._told: tuple[dict[str, DataFile], dict[int, ArchivedTopic]] | None = None

    def follow(self, state: ArchiveState, now_ms: int) -> bool:
        """Makes the table show what the state says; whether anything was to be changed. The first time says all."""
        told, self._told = self._told, None
        changed = self._changed(state, *(told or ({}, {})))
        done = self._table.follow(changed, now_ms, whole=told is None) if changed or told is None else False
        # Only now: whatever failed on the way is told again, and all of it.
        self._told = dict(state.files), dict(state.topics)
        return done

    def expire(self, now_ms: int, at_once: bool = False) -> None:
        """Forgets snapshots that name files which are about to be removed."""
        self._table.expire(now_ms, at_once)

    def _changed(
        self, state: ArchiveState, files: dict[str, DataFile], topics: dict[int, ArchivedTopic]
    ) -> dict[str, Wanted | None]:
        changed: dict[str, Wanted | None] = {
            self._store.path_of(path): None for path in files.keys() - state.files.keys()
        }
        fresh = {path for path, file in state.files.items() if files.get(path) is not file}
        for path in fresh | _with_other_deletes(state, topics):
            changed[self._store.path_of(path)] = self._wanted(state, state.files[path])
        return changed

    def _wanted(self, state: ArchiveState, file: DataFile) -> Wanted:
        runs = tuple(Run(run.topic, run.epoch, run.first_seq, run.last_seq, run.rows) for run in file.runs)
        shown = TableFile(
            self._store.path_of(file.path), file.day, file.bucket, file.rows, file.bytes, file.first_ts, file.last_ts,
            runs,
        )  # fmt: skip
        hidden: dict[int, Mask] = {}
        for run in file.runs if file.hidden_ms else ():
            mask = state.hidden_in(run)
            if len(mask):
                hidden[run.epoch] = hidden[run.epoch].union(mask) if run.epoch in hidden else mask
        return Wanted(shown, hidden)


def _with_other_deletes(state: ArchiveState, known: dict[int, ArchivedTopic]) -> set[str]:
    """Files with runs of topics of which something else is deleted now, or that were dropped."""
    topics = [
        topic_id
        for topic_id, topic in state.topics.items()
        if topic_id in known and known[topic_id].deleted is not topic.deleted
    ]
    return _files_of(state, [*topics, *(known.keys() - state.topics.keys())])


def _files_of(state: ArchiveState, topic_ids: Iterable[int]) -> set[str]:
    return {path for topic_id in topic_ids for path in state.by_topic.get(topic_id, ())}
