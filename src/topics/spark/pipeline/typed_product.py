"""Typed tables product: builds a typed file for each archive file of a stream with a schema.

The archive is reconciled first, so deletes are hidden here in the same round. All other work is chores: one for each
archive file without a typed file.
"""

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from topics.log.catalog import CatalogTopic
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.model.topic_config import is_server_name
from topics.spark.archive.archive_state import ArchiveState
from topics.spark.archive.data_files import ArchiveFile, problem_of
from topics.spark.iceberg.typed_files import (
    Subject,
    TypedFileResult,
    TypedFileTask,
    folder_of,
    subject_of,
    typed_file_path,
    write_typed_file,
)
from topics.spark.pipeline.products import (
    CatalogView,
    Chore,
    CommitResult,
    Cost,
    OutputMissingError,
    QuarantinedSubjects,
    SegmentRequest,
    Transform,
)

if TYPE_CHECKING:
    # Tasks import this module, and have no pyiceberg.
    from topics.spark.iceberg.typed_tables import TypedTable

NAME = "typed"
_ROW_COST = 700
"""An entry is parsed and promoted one by one, which takes much longer than to copy it."""


class TypedTasks:
    """The part of the product that runs in Spark tasks."""

    def begin(self, fs: FileSystem, layout: Layout, context: bytes) -> Transform:
        raise NotImplementedError("typed tables are built from archive files, not from segments")

    def chore(self, fs: FileSystem, layout: Layout, context: bytes, work: bytes) -> bytes:
        task = msgspec.msgpack.decode(work, type=_Work)
        size, bounds = write_typed_file(fs, task.typed_file)
        return msgspec.msgpack.encode(TypedFileResult(task.folder, task.target, size, bounds))


class _Work(msgspec.Struct, frozen=True, array_like=True):
    folder: str
    target: str
    typed_file: TypedFileTask


class _Stream(NamedTuple):
    topic: CatalogTopic
    subject: Subject


class TypedProduct:
    name = NAME
    cost = Cost(0.0, 0.0)

    def __init__(
        self, fs: FileSystem, root: str, patterns: Sequence[str], archive: Callable[[], ArchiveState],
        make_table: "Callable[[str], TypedTable]",
    ) -> None:  # fmt: skip
        self._fs = fs
        self._root = root
        self._patterns = patterns
        self._archive = archive
        self._make_table = make_table
        self._streams: dict[str, _Stream] = {}
        """By the folder of the table."""
        self._tables: dict[str, TypedTable] | None = None

    def reconcile(self, view: CatalogView, now_ms: int, quarantined: QuarantinedSubjects) -> None:
        tables = self._opened()
        gone = [folder for folder, one in self._streams.items() if one.topic.topic_id not in view.topics]
        for folder in gone:
            del self._streams[folder]
        for topic in view.changed:
            self._note(topic)
        for folder in self._streams:
            if folder not in tables:
                tables[folder] = self._make_table(folder)
        for folder, table in list(tables.items()):
            self._follow(folder, table, now_ms)
            table.clean(now_ms)
            if folder not in self._streams and table.empty:
                table.drop()
                del tables[folder]

    def missing_segments(self, topic: CatalogTopic) -> list[SegmentRequest]:
        """None: typed files are built from archive files."""
        return []

    def chores(self, now_ms: int, quarantined: QuarantinedSubjects) -> list[Chore]:
        return [
            self._chore(folder, stream, file)
            for folder, stream in self._streams.items()
            if stream.topic.topic_id not in quarantined.topics
            for file in self._opened()[folder].unbuilt
        ]

    def task_context(self) -> bytes:
        return b""

    def commit(self, outcomes: Sequence[bytes], now_ms: int) -> CommitResult:
        tables, touched = self._opened(), set()
        for encoded in outcomes:
            made = msgspec.msgpack.decode(encoded, type=TypedFileResult)
            if made.stream in tables:
                problem = problem_of(self._fs, f"{self._root}/{made.stream}/{made.target}", made.bytes)
                if problem is not None:
                    raise OutputMissingError(problem)
                tables[made.stream].made(made.target, made.bytes, made.bounds)
                touched.add(made.stream)
        for folder in sorted(touched):
            self._follow(folder, tables[folder], now_ms)
        return CommitResult()

    def due_ms(self) -> int | None:
        moments = [table.due_ms for table in self._opened().values()]
        return min([moment for moment in moments if moment is not None], default=None)

    def job_failed(self) -> None:
        """Nothing to do: a retry writes the same names, and temporary files are removed by the next process."""

    def rows(self) -> int | None:
        return sum(table.rows for table in self._opened().values())

    def deletes_applied(self, number: int) -> int:
        """`number`: deletes are hidden at the beginning of each round."""
        return number

    def _note(self, topic: CatalogTopic) -> None:
        folder = folder_of(topic.name)
        subject = subject_of(topic.contract) if self._is_selected(topic.name) else None
        if subject is None:
            self._streams.pop(folder, None)
        else:
            self._streams[folder] = _Stream(topic, subject)

    def _is_selected(self, name: str) -> bool:
        return not is_server_name(name) and any(fnmatch.fnmatchcase(name, pattern) for pattern in self._patterns)

    def _follow(self, folder: str, table: "TypedTable", now_ms: int) -> None:
        stream = self._streams.get(folder)
        if stream is None:
            table.clear(now_ms)
        else:
            table.follow(self._archive(), stream.topic.topic_id, stream.subject, now_ms)

    def _chore(self, folder: str, stream: _Stream, file: ArchiveFile) -> Chore:
        topic, state = stream.topic, self._archive()
        runs = state.runs_in(file.path, topic.topic_id)
        target = typed_file_path(file.path, stream.subject.columns.generation)
        typed_file = TypedFileTask(
            f"{self._root}/{file.path}", f"{self._root}/{folder}/{target}", tuple((row, run.rows) for row, run in runs),
            topic.contract, file.bytes, file.tail,
        )  # fmt: skip
        rows = sum(run.rows for _, run in runs)
        work = msgspec.msgpack.encode(_Work(folder, target, typed_file))
        return Chore(topic.name, topic.topic_id, work, file.bytes * rows // file.rows, _ROW_COST * rows)

    def _opened(self) -> "dict[str, TypedTable]":
        """Every existing table, also of streams that are gone, which have to be emptied."""
        if self._tables is None:
            self._tables = {folder: self._make_table(folder) for folder in typed_folders(self._fs, self._root)}
        return self._tables


def typed_folders(fs: FileSystem, root: str) -> Iterator[str]:
    try:
        names = fs.list_dir(f"{root}/typed")
    except FileNotFoundError:
        return
    for name in names:
        yield f"typed/{name}"
