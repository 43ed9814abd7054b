"""Tables of streams by their schemas, as a product of the pipeline: it is made of what the archive has.

The archive's round comes first, so what is deleted is hidden here with the same round. Everything else is chores: the
twin of each file that has none.
"""

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from topics.log.catalog import CatalogTopic
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.model.names import is_server_name
from topics.spark.archive.archive_state import ArchiveState
from topics.spark.archive.data_files import ArchiveFile
from topics.spark.iceberg.typed_files import (
    Subject,
    TypedFileResult,
    TypedFileTask,
    folder_of,
    make_twin,
    subject_of,
    twin_of,
)
from topics.spark.pipeline.products import Chore, Gain, ShutOut, Transform, View, Want

if TYPE_CHECKING:
    # Tasks import this module, and have no pyiceberg.
    from topics.spark.iceberg.typed_tables import TypedTable

NAME = "typed"


class TypedTasks:
    """The half that runs in tasks."""

    def begin(self, fs: FileSystem, layout: Layout, charge: bytes) -> Transform:
        raise NotImplementedError("no segment is wanted for these tables")

    def chore(self, fs: FileSystem, layout: Layout, charge: bytes, work: bytes) -> bytes:
        wanted = msgspec.msgpack.decode(work, type=_Work)
        size = make_twin(fs, wanted.twin)
        return msgspec.msgpack.encode(TypedFileResult(wanted.folder, wanted.target, size))


class _Work(msgspec.Struct, frozen=True, array_like=True):
    folder: str
    target: str
    twin: TypedFileTask


class _Stream(NamedTuple):
    topic: CatalogTopic
    subject: Subject


class TypedProduct:
    name = NAME

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
        """By the folders of their tables."""
        self._tables: dict[str, TypedTable] | None = None

    def settle(self, view: View, now_ms: int, shut_out: ShutOut) -> None:
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

    def wants(self, topic: CatalogTopic) -> list[Want]:
        """What it is made of are the archive's files."""
        return []

    def chores(self, now_ms: int, shut_out: ShutOut) -> list[Chore]:
        return [
            self._chore(folder, stream, file)
            for folder, stream in self._streams.items()
            if stream.topic.topic_id not in shut_out.topics
            for file in self._opened()[folder].lacking
        ]

    def charge(self) -> bytes:
        return b""

    def commit(self, outcomes: Sequence[bytes], now_ms: int) -> Gain:
        tables, touched = self._opened(), set()
        for encoded in outcomes:
            made = msgspec.msgpack.decode(encoded, type=TypedFileResult)
            if made.stream in tables:
                tables[made.stream].made(made.target, made.bytes)
                touched.add(made.stream)
        for folder in sorted(touched):
            self._follow(folder, tables[folder], now_ms)
        return Gain()

    def due_ms(self) -> int | None:
        moments = [table.due_ms for table in self._opened().values()]
        return min([moment for moment in moments if moment is not None], default=None)

    def job_failed(self) -> None:
        """What its tasks have made is made again under the same names; what they had begun goes with the process."""

    def confirmed(self, number: int) -> int:
        """Deletes are hidden before anything else is done in a round."""
        return number

    def _note(self, topic: CatalogTopic) -> None:
        folder = folder_of(topic.name)
        subject = subject_of(topic.contract) if self._is_wanted(topic.name) else None
        if subject is None:
            self._streams.pop(folder, None)
        else:
            self._streams[folder] = _Stream(topic, subject)

    def _is_wanted(self, name: str) -> bool:
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
        target = twin_of(file.path, stream.subject.columns.generation)
        twin = TypedFileTask(
            f"{self._root}/{file.path}", f"{self._root}/{folder}/{target}", tuple((row, run.rows) for row, run in runs),
            topic.contract,
        )  # fmt: skip
        share = file.bytes * sum(run.rows for _, run in runs) // file.rows
        return Chore(topic.name, topic.topic_id, msgspec.msgpack.encode(_Work(folder, target, twin)), share)

    def _opened(self) -> "dict[str, TypedTable]":
        """Every table that there is, also of streams that are gone: those are to be emptied."""
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
