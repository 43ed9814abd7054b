"""What the archive's state means for the table: its files, each with what is deleted in it."""

from collections.abc import Iterable, Sequence

from topics.spark.archive.events import Copied, Dropped, Event, Masked, Owned, Removed, Rewritten
from topics.spark.archive.files import DataFile
from topics.spark.archive.masks import Mask
from topics.spark.archive.state import ArchiveState
from topics.spark.table.files import Wanted
from topics.spark.table.table import ArchiveTable

_NOTHING = Mask.of(())


class TableFollower:
    """Tells the table what changed, and everything where that is not known."""

    def __init__(self, table: ArchiveTable, root: str) -> None:
        self._table = table
        self._root = root
        self._told: int | None = None
        """The number of the commit up to which the table was told; none when nobody knows."""

    def follow(self, state: ArchiveState, events: Sequence[Event], now_ms: int) -> bool:
        told, self._told = self._told, None
        # The events are those of one commit. A commit that failed may be in the ledger all the same.
        next_one = told is not None and state.number == told + bool(events)
        done = self._follow(state, events, now_ms) if next_one else self._follow_all(state, now_ms)
        # Only now: what failed on the way is told again, and all of it.
        self._told = state.number
        return done

    def _follow_all(self, state: ArchiveState, now_ms: int) -> bool:
        return self._table.follow(self._changed(state, state.files), now_ms, whole=True)

    def _follow(self, state: ArchiveState, events: Sequence[Event], now_ms: int) -> bool:
        """New records are a snapshot of their own, so that a stream over the table need not look at any other."""
        added = [event for event in events if isinstance(event, Copied)]
        others = [event for event in events if not isinstance(event, Copied)]
        done = False
        if added:
            fresh = [file.path for event in added for file in event.files]
            wanted = {self._path(path): self._wanted(state, state.files[path]) for path in fresh}
            done = self._table.follow(wanted, now_ms)
        if others:
            # What is written out of files was hidden before: rows neither come nor go.
            same_rows = all(isinstance(event, Rewritten | Removed | Owned) for event in others)
            changed = self._changed(state, touched(state, others))
            done |= self._table.follow(changed, now_ms, same_rows=same_rows)
        return done

    def expire(self, now_ms: int) -> None:
        self._table.expire(now_ms)

    def _changed(self, state: ArchiveState, paths: Iterable[str]) -> dict[str, Wanted | None]:
        changed: dict[str, Wanted | None] = {self._path(path): None for path in state.retired}
        return changed | {
            self._path(path): self._wanted(state, state.files[path]) for path in paths if path in state.files
        }

    def _wanted(self, state: ArchiveState, file: DataFile) -> Wanted:
        return Wanted(self._path(file.path), file, hidden_runs(state, file))

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"


def touched(state: ArchiveState, events: Iterable[Event]) -> set[str]:
    """The files that events may have changed, but for those that no longer count."""
    paths: set[str] = set()
    for event in events:
        match event:
            case Rewritten():
                paths.update(file.path for file in event.new)
            case Masked():
                paths |= state.by_topic.get(event.topic_id, set())
            case Dropped():
                for topic_id in event.topic_ids:
                    paths |= state.by_topic.get(topic_id, set())
            case _:
                pass
    return paths


def hidden_runs(state: ArchiveState, file: DataFile) -> tuple[Mask, ...]:
    """What of each run of a file is deleted. A file may have runs of thousands of topics, of which few have any."""
    if not file.hidden_ms:
        return ()
    topics = state.topics
    found = []
    for run in file.runs:
        topic = topics.get(run.topic_id)
        found.append(_NOTHING if topic is not None and not len(topic.deleted) else state.hidden_in(run))
    return tuple(found)
