"""The table of one stream: which typed files there are, which are shown, and which are to go."""

import contextlib

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.types import LongType, TimestamptzType

from topics.spark.archive.files import DataFile, Run
from topics.spark.archive.state import ArchivedTopic, ArchiveState
from topics.spark.deadlines import is_over
from topics.spark.table.files import Wanted
from topics.spark.table.schema import Shape
from topics.spark.table.table import ArchiveTable
from topics.spark.typed.choosing import Choice, Chooser
from topics.spark.typed.shape import shape_of
from topics.spark.typed.twins import Subject
from topics.storage.fs import FileSystem

_DATA = "data/"


class TypedTable:
    """`root` is the archive's, `folder` that of the table below it. `keep_ms` is how long a file stays for those who
    read it when it is shown no longer."""

    def __init__(self, fs: FileSystem, root: str, folder: str, table: ArchiveTable, keep_ms: int) -> None:
        self._fs = fs
        self._root = root
        self._folder = f"{root}/{folder}"
        self._table = table
        self._keep_ms = keep_ms
        self._opened = False
        self._made: dict[str, int] = {}
        """Every typed file that is there, with its length."""
        self._shown: dict[str, DataFile] = {}
        self._rows = 0
        """How many rows of them nothing hides."""
        self._retired: dict[str, int] = {}
        """Files that are neither shown nor will be, and since when."""
        self._changes = 0
        self._seen: tuple[object, ...] = ()
        self._choice = Choice({}, [])
        self._generation = ""
        """What is shown is of this one; empty where nobody has looked."""

    @property
    def lacking(self) -> list[DataFile]:
        """Files of the archive whose twin has yet to be made."""
        return self._choice.lacking

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it, nor anything left of what was."""
        return not self._made and not self._shown

    @property
    def due_ms(self) -> int | None:
        return min(self._retired.values()) + self._keep_ms if self._retired else None

    def made(self, target: str, size: int) -> None:
        self._made[target] = size
        self._changes += 1

    def follow(self, state: ArchiveState, topic_id: int, subject: Subject, now_ms: int) -> None:
        """Shows what the archive shows of the stream, as far as its files are made."""
        topic = state.topics.get(topic_id)
        paths = frozenset(state.by_topic.get(topic_id, ()))
        seen = (topic_id, _Same(topic), paths, subject.columns.generation, self._changes)
        if seen == self._seen:
            return
        shape = shape_of(subject.columns.columns)
        self._open(shape, now_ms)
        chooser = Chooser(self._fs, self._root, self._folder, state, topic_id)
        self._choice = chooser.choose(subject.columns.generation, self._made, self._shown)
        if self._choice.current:
            self._table.shape = shape
        self._show(now_ms)
        self._seen = seen

    def clear(self, now_ms: int) -> None:
        """Shows nothing any longer: the stream is gone, or nobody wants it typed."""
        self._open(shape_of(()), now_ms)
        self._choice = Choice({}, [])
        self._show(now_ms)

    def clean(self, now_ms: int) -> None:
        """Removes files whose time is over, and before that the snapshots that named them."""
        over = [path for path, since in self._retired.items() if is_over(since, self._keep_ms, now_ms)]
        if over:
            self._table.expire(now_ms)
        for path in over:
            self._fs.remove(f"{self._folder}/{path}")
            del self._retired[path], self._made[path]

    def drop(self) -> None:
        """Removes what is left of a table that is empty."""
        self._table.drop()
        for name in ("data", "deletes", "metadata"):
            folder = f"{self._folder}/{name}"
            for file in _names(self._fs, folder):
                self._fs.remove(f"{folder}/{file}")
            _remove_folder(self._fs, folder)
        _remove_folder(self._fs, self._folder)

    def _show(self, now_ms: int) -> None:
        choice, shown, whole = self._choice, self._shown, not self._opened
        # Whatever fails from here on, what there is is looked at again before anything else is done.
        self._opened, self._seen = False, ()
        same = choice.current and self._generation == choice.generation
        fresh = [one for path, one in choice.wanted.items() if same and path not in shown and self._is_apart(one)]
        if fresh:
            # New entries are a snapshot of their own, so that a stream over the table need not look at any other.
            self._table.follow({one.path: one for one in fresh}, now_ms)
        rows = sum(map(_rows, choice.wanted.values()))
        same_rows = same and rows == self._rows + sum(map(_rows, fresh))
        changed: dict[str, Wanted | None] = {f"{self._folder}/{path}": None for path in shown}
        changed |= {one.path: one for one in choice.wanted.values()}
        self._table.follow(changed, now_ms, whole, same_rows)
        self._shown = {path: one.file for path, one in choice.wanted.items()}
        self._rows, self._generation = rows, choice.generation if choice.current else self._generation
        self._retire(now_ms)
        self._opened = True

    def _is_apart(self, one: Wanted) -> bool:
        """Whether nothing that is shown has any of its seqs."""
        first, last = one.file.runs[0].first_seq, one.file.runs[-1].last_seq
        return all(
            file.runs[-1].last_seq < first or last < file.runs[0].first_seq for file in self._shown.values()
        )  # fmt: skip

    def _retire(self, now_ms: int) -> None:
        needed = self._choice.wanted.keys() | self._choice.coming
        kept = {path: since for path, since in self._retired.items() if path not in needed}
        self._retired = {**dict.fromkeys(self._made.keys() - needed, now_ms), **kept}

    def _open(self, shape: Shape, now_ms: int) -> None:
        """Looks what is there, once, and again when something failed. The columns stay until others are shown."""
        if self._opened:
            return
        self._table.shape = shape
        self._shown = dict(map(self._told, self._table.entries()))
        self._table.shape = shape._replace(schema=self._table.schema or shape.schema)
        self._made, self._retired, self._rows, self._generation = {}, {}, 0, ""
        # Of what is shown no longer nobody knows since when; it was not later than the last change of the table.
        since = self._table.updated_ms or now_ms
        for name in _names(self._fs, f"{self._folder}/data"):
            path = _DATA + name
            if not name.endswith(".parquet"):
                # A task of a driver that died may be removing it at this very moment.
                with contextlib.suppress(FileNotFoundError):
                    self._fs.remove(f"{self._folder}/{path}")
                continue
            self._made[path] = self._shown[path].bytes if path in self._shown else self._length(path)
            if path not in self._shown:
                self._retired[path] = since

    def _length(self, path: str) -> int:
        file = self._fs.open(f"{self._folder}/{path}")
        try:
            return file.size()
        finally:
            file.close()

    def _told(self, entry: Entry) -> tuple[str, DataFile]:
        """A file as the table's own manifests tell of it: what it spans, and not where it has gaps."""
        path = entry.file_path.removeprefix(f"{self._folder}/")
        lower, upper, shape = entry.lower_bounds, entry.upper_bounds, self._table.shape
        first, last = (int(from_bytes(LongType(), one[shape.seq_id])) for one in (lower, upper))
        begin, end = (int(from_bytes(TimestamptzType(), one[shape.ts_id])) // 1000 for one in (lower, upper))
        run = Run(0, 0, "", first, last, entry.record_count, begin, end)
        return path, DataFile(path, entry.partition[0], 0, entry.file_size_in_bytes, (run,))


def _rows(one: Wanted) -> int:
    return one.file.rows - sum(mask.count() for mask in one.hidden)


class _Same:
    """Equal to another one of the very same value: the archive never changes one, it puts another in its place."""

    def __init__(self, topic: ArchivedTopic | None) -> None:
        self._topic = topic

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._topic is self._topic

    __hash__ = None  # type: ignore[assignment] # It is no key of anything.


def _names(fs: FileSystem, folder: str) -> list[str]:
    try:
        return fs.list_dir(folder)
    except FileNotFoundError:
        return []


def _remove_folder(fs: FileSystem, folder: str) -> None:
    try:
        fs.remove_dir(folder)
    except FileNotFoundError:
        return
