"""Typed tables: the Iceberg table of one stream, with a column for each member of its schema."""

import contextlib

import msgspec
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    IcebergType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from topics.log.fs import FileSystem
from topics.schema.typed_columns import DECIMAL_DIGITS, Column, ColumnKind
from topics.spark.archive.archive_state import ArchivedTopic, ArchiveState
from topics.spark.archive.data_files import ArchiveFile, Run, TableFile, TimeBounds, read_footer
from topics.spark.iceberg.manifests import Shape
from topics.spark.iceberg.table import ArchiveTable
from topics.spark.iceberg.typed_files import (
    BASE,
    Subject,
    TypedFileSelection,
    TypedFileSelector,
    bounds_in,
    foreign_file,
)
from topics.spark.segment_reader import has_elapsed

# The Iceberg schema of a typed table. It needs pyiceberg, so tasks do not import it.

_SEQ_ID, _TS_ID = 1, 2
_PLAIN_TYPES: dict[ColumnKind, IcebergType] = {
    "long": LongType(), "double": DoubleType(), "boolean": BooleanType(), "timestamp": TimestamptzType(),
    "string": StringType(), "json": StringType(),
}  # fmt: skip
_DOCS = {
    "_seq": "the entry's number in its stream",
    "_ts": "when it was committed",
    "_node": "who wrote it",
    "_tag": "its tag",
    "_meta": "its headers as JSON text",
    "_rest": "what of the entry is in no column, as JSON text",
}
_BASE = [
    NestedField(
        number, field.name, {"_seq": LongType(), "_ts": TimestamptzType()}.get(field.name, StringType()),
        required=not field.nullable, doc=_DOCS[field.name],
    )
    for number, field in enumerate(BASE, 1)
]  # fmt: skip
_SPEC = PartitionSpec(PartitionField(source_id=_TS_ID, field_id=1000, transform=DayTransform(), name="_day"))
_ORDER = SortOrder(SortField(source_id=_SEQ_ID, transform=IdentityTransform()))


def shape_of(columns: tuple[Column, ...]) -> Shape:
    """The shape of a typed table. It is created with the common columns; schema evolution adds the others."""
    schema = Schema(*_BASE, *map(_field, columns))
    return Shape(schema, _SPEC, _ORDER, Schema(*_BASE), _SEQ_ID, _TS_ID, "_seq", shared=False)


def _field(column: Column) -> NestedField:
    doc = "JSON text" if column.kind == "json" else None
    return NestedField(column.column_id, column.name, _type_of(column), required=False, doc=doc)


def _type_of(column: Column) -> IcebergType:
    if column.kind == "struct":
        return StructType(*map(_field, column.parts))
    if column.kind == "list":
        [element] = column.parts
        return ListType(element.column_id, _type_of(element), element_required=False)
    if column.kind == "decimal":
        return DecimalType(DECIMAL_DIGITS, column.scale)
    return _PLAIN_TYPES[column.kind]


_DATA = "data/"


class TypedTable:
    """`root` is the archive's folder, `folder` the table's folder below it.

    `keep_ms` is the time for which a hidden file stays for its readers.
    """

    def __init__(self, fs: FileSystem, root: str, folder: str, table: ArchiveTable, keep_ms: int) -> None:
        self._fs = fs
        self._root = root
        self._folder = f"{root}/{folder}"
        self._table = table
        self._keep_ms = keep_ms
        self._opened = False
        self._made: dict[str, int] = {}
        """Every existing typed file with its length."""
        self._bounds: dict[str, TimeBounds] = {}
        """The bounds of the times in files, as far as they are known."""
        self._shown: dict[str, ArchiveFile] = {}
        self._rows = 0
        """The number of visible rows."""
        self._pinned: set[str] = set()
        """Retired files that a tag or branch names."""
        self._retired: dict[str, int] = {}
        """Files that are no longer needed, with the time since which."""
        self._changes = 0
        self._seen: tuple[object, ...] = ()
        self._choice = TypedFileSelection({}, [])
        self._generation = ""
        """The generation of the shown files; empty if unknown."""

    @property
    def unbuilt(self) -> list[ArchiveFile]:
        """Archive files whose typed file is not built yet."""
        return self._choice.unbuilt

    @property
    def empty(self) -> bool:
        """Whether it shows no file and none is left on disk."""
        return not self._made and not self._shown

    @property
    def rows(self) -> int:
        """The rows that it shows."""
        return self._rows

    @property
    def due_ms(self) -> int | None:
        since = [since for path, since in self._retired.items() if path not in self._pinned]
        return min(since) + self._keep_ms if since else None

    def made(self, target: str, size: int, bounds: TimeBounds) -> None:
        self._made[target], self._bounds[target] = size, bounds
        self._changes += 1

    def follow(self, state: ArchiveState, topic_id: int, subject: Subject, now_ms: int) -> None:
        """Shows the archived entries of the stream, as far as typed files are built."""
        topic = state.topics.get(topic_id)
        paths = frozenset(state.by_topic.get(topic_id, ()))
        seen = (topic_id, _Same(topic), paths, subject.columns.generation, self._changes)
        if seen == self._seen:
            return
        shape = shape_of(subject.columns.columns)
        self._open(shape, now_ms)
        chooser = TypedFileSelector(self._fs, self._root, self._folder, state, topic_id)
        choice = chooser.choose(subject.columns.generation, self._made, self._shown)
        self._choice = choice._replace(desired={path: self._bounded(path, one) for path, one in choice.desired.items()})
        if self._choice.current:
            self._table.shape = shape
        self._show(now_ms)
        self._seen = seen

    def clear(self, now_ms: int) -> None:
        """Shows nothing: the stream is gone, or is no longer selected by the settings."""
        self._open(shape_of(()), now_ms)
        self._choice = TypedFileSelection({}, [])
        self._show(now_ms)

    def clean(self, now_ms: int) -> None:
        """Removes retired files after `keep_ms`, and the snapshots that named them first."""
        over = [path for path, since in self._retired.items() if has_elapsed(since, self._keep_ms, now_ms)]
        if over:
            self._pinned = {path.removeprefix(f"{self._folder}/") for path in self._table.pinned(now_ms)}
            over = [path for path in over if path not in self._pinned]
        if over:
            self._table.expire(now_ms)
        for path in over:
            self._fs.remove(f"{self._folder}/{path}")
            del self._retired[path], self._made[path]
            self._bounds.pop(path, None)

    def problems(self) -> list[tuple[str, str]]:
        """Returns the unreadable parts of the table: its metadata, and files that are lost, have another length or are
        those of another table."""
        found = self._table.problems(None)
        wrong = {where for where, _ in found}
        paths = [f"{self._folder}/{_DATA}{name}" for name in _names(self._fs, f"{self._folder}/{_DATA[:-1]}")]
        foreign = ((path, foreign_file(self._fs, path)) for path in paths if path.endswith(".parquet"))
        return found + [(path, what) for path, what in foreign if what is not None and path not in wrong]

    def discard(self, path: str) -> None:
        """Removes a damaged data file, so that the next round builds it again."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.remove(path)

    def drop(self) -> None:
        """Drops an empty table and removes its files."""
        self._table.drop()
        for name in ("data", "deletes", "metadata"):
            folder = f"{self._folder}/{name}"
            for file in _names(self._fs, folder):
                self._fs.remove(f"{folder}/{file}")
            _remove_folder(self._fs, folder)
        _remove_folder(self._fs, self._folder)

    def _show(self, now_ms: int) -> None:
        choice, shown, whole = self._choice, self._shown, not self._opened
        # After any failure from here on, the table is opened again.
        self._opened, self._seen = False, ()
        same = choice.current and self._generation == choice.generation
        fresh = [one for path, one in choice.desired.items() if same and path not in shown and self._overlaps_none(one)]
        if fresh:
            # Appends get their own snapshot, so that streaming readers can skip all others.
            self._table.follow({one.path: one for one in fresh}, now_ms)
        rows = sum(map(_rows, choice.desired.values()))
        same_rows = same and rows == self._rows + sum(map(_rows, fresh))
        changed: dict[str, TableFile | None] = {f"{self._folder}/{path}": None for path in shown}
        changed |= {one.path: one for one in choice.desired.values()}
        self._table.follow(changed, now_ms, whole, same_rows)
        self._shown = {path: one.file for path, one in choice.desired.items()}
        self._rows, self._generation = rows, choice.generation if choice.current else self._generation
        self._retire(now_ms)
        self._opened = True

    def _bounded(self, path: str, one: TableFile) -> TableFile:
        """With the bounds of the times in the file, which are read from a file that another process has made."""
        if path not in self._bounds:
            self._bounds[path] = bounds_in(read_footer(self._fs, one.path))
        return msgspec.structs.replace(one, bounds=self._bounds[path])

    def _overlaps_none(self, one: TableFile) -> bool:
        """Whether no shown file overlaps its seqs."""
        first, last = one.file.runs[0].first_seq, one.file.runs[-1].last_seq
        return all(
            file.runs[-1].last_seq < first or last < file.runs[0].first_seq for file in self._shown.values()
        )  # fmt: skip

    def _retire(self, now_ms: int) -> None:
        needed = self._choice.desired.keys() | self._choice.expected
        kept = {path: since for path, since in self._retired.items() if path not in needed}
        self._retired = {**dict.fromkeys(self._made.keys() - needed, now_ms), **kept}

    def _open(self, shape: Shape, now_ms: int) -> None:
        """Reads the table and its folder, once and after failures. The columns stay until files of others are shown."""
        if self._opened:
            return
        self._table.shape = shape
        self._bounds = {}
        there = set(_names(self._fs, f"{self._folder}/data"))
        shown = dict(map(self._shown_file, self._table.entries()))
        # A file that was lost is built again, and the first commit takes it out of the table.
        self._shown = {path: file for path, file in shown.items() if path.removeprefix(_DATA) in there}
        self._table.shape = shape._replace(schema=self._table.schema or shape.schema)
        self._made, self._retired, self._rows, self._generation = {}, {}, 0, ""
        # The time since which a file is hidden is unknown; at the latest it is the last change of the table.
        since = self._table.updated_ms or now_ms
        for name in sorted(there):
            path = _DATA + name
            if not name.endswith(".parquet"):
                # A task of a dead driver may be removing the same file.
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

    def _shown_file(self, entry: Entry) -> tuple[str, ArchiveFile]:
        """A file from its manifest entry: its seq range without its gaps."""
        path = entry.file_path.removeprefix(f"{self._folder}/")
        lower, upper, shape = entry.lower_bounds, entry.upper_bounds, self._table.shape
        first, last = (int(from_bytes(LongType(), one[shape.seq_id])) for one in (lower, upper))
        begin, end = (_micros(one[shape.ts_id]) // 1000 for one in (lower, upper))
        times = [number for number in lower if number not in (shape.seq_id, shape.ts_id) and number in upper]
        self._bounds[path] = tuple((number, _micros(lower[number]), _micros(upper[number])) for number in times)
        run = Run(0, 0, "", first, last, entry.record_count, begin, end)
        return path, ArchiveFile(path, entry.partition[0], 0, entry.file_size_in_bytes, (run,))


def _micros(bound: bytes) -> int:
    return int(from_bytes(TimestamptzType(), bound))


def _rows(one: TableFile) -> int:
    return one.file.rows - sum(mask.count() for mask in one.hidden)


class _Same:
    """Compares by identity: the archive replaces these values instead of changing them."""

    def __init__(self, topic: ArchivedTopic | None) -> None:
        self._topic = topic

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._topic is self._topic

    __hash__ = None  # type: ignore[assignment] # Not hashable.


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
