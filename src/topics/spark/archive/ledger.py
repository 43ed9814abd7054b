"""Archive ledger: numbered commits and checkpoints of the state; data files count once a commit names them.

    ledger/state-<number>.bin     the whole state after a commit
    ledger/commit-<number>.bin    one commit
    data/...                      files (`data_files`)

The current state is the newest whole state with every commit after it. A commit is one file, renamed into place after
the data files it names are on disk: so it is atomic for all of its topics, and a killed run leaves the previous state
and at most some orphaned files. A whole state (a checkpoint) is written when the commits after the last one have become
as long as it; then they are removed. Every ledger file is

    offset  size  field
         0     8  magic "TPARC001"
         8     n  msgpack of the commit, or of the state
       8+n     8  XXH3-64 of every byte before it
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import TypeVar

import msgspec
from xxhash import xxh3_64_intdigest

from topics.log.catalog import CatalogTopic
from topics.log.fs import FileSystem, read_whole, replace_file
from topics.model.errors import TopicsError
from topics.model.seq_ranges import SeqRange
from topics.spark.archive.archive_plan import newest_delete
from topics.spark.archive.archive_state import NOT_RECORDED, ArchivedTopic, ArchiveState, Commit, Dropped, Event, Owned
from topics.spark.archive.data_files import ArchiveFile, Mask, in_parallel
from topics.spark.segment_reader import History

T = TypeVar("T")

MAGIC = b"TPARC001"
_CHECKSUM = Struct("<Q")
_NAME = re.compile(r"(state|commit)-(\d{16})\.bin")
_LOAD_ATTEMPTS = 10
_WHOLE_AFTER_COMMITS = 64
_WHOLE_BYTES_MIN = 64 * 1024


class ArchiveDamagedError(TopicsError):
    """The ledger cannot be read. There is no repair: a guess could archive records twice, or show deleted ones."""


class _WrittenTopic(msgspec.Struct, frozen=True, array_like=True, gc=False):
    topic_id: int
    epoch: int
    name: str
    covered: tuple[SeqRange, ...]
    deleted: bytes
    catalog: int


class _WrittenState(msgspec.Struct, frozen=True, array_like=True):
    number: int
    updated_ms: int
    topics: list[_WrittenTopic]
    files: list[ArchiveFile]
    retired: list[tuple[str, int]]
    history: str = ""
    deletes_seen: int = NOT_RECORDED


class ArchiveStore:
    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self.root = root
        self._whole_bytes = 0
        self._since_whole = 0
        self._commits = 0

    def path_of(self, file: str) -> str:
        return f"{self.root}/{file}"

    def load(self) -> ArchiveState:
        """The current state; an empty one where there is no archive.

        Retries when a whole state replaces commits during the read.
        """
        for _ in range(_LOAD_ATTEMPTS):
            try:
                return self._load_once()
            except FileNotFoundError:
                continue
        raise ArchiveDamagedError(f"{self.root}/ledger: it changes faster than it can be read")

    def commit(self, state: ArchiveState, events: Sequence[Event], now_ms: int) -> None:
        """Applies events to a state and commits them. The files they name must be on disk."""
        commit = Commit(state.number + 1, now_ms, list(events))
        data = _framed(commit)
        # Applied in memory first: an invalid commit must not be written.
        state.apply(commit)
        self._fs.make_dirs(f"{self.root}/ledger")
        replace_file(self._fs, self._ledger("commit", commit.number), data)
        self._since_whole += len(data)
        self._commits += 1
        if self._since_whole > max(self._whole_bytes, _WHOLE_BYTES_MIN) or self._commits >= _WHOLE_AFTER_COMMITS:
            self.save(state)

    def save(self, state: ArchiveState) -> None:
        """Writes the whole state, and removes the ledger files before it."""
        data = _framed(_written(state))
        self._fs.make_dirs(f"{self.root}/ledger")
        replace_file(self._fs, self._ledger("state", state.number), data)
        self._whole_bytes, self._since_whole, self._commits = len(data), 0, 0
        for kind, number in self._names():
            if number < state.number or (kind == "commit" and number == state.number):
                self._remove(self._ledger(kind, number))

    def sweep(self, state: ArchiveState) -> set[str]:
        """Removes orphaned data files, which killed runs left; returns the live files that are missing.

        The caller must hold the pipeline lock.
        """
        named, found = state.named(), set(self._data_files("data"))
        for path in sorted(found - named):
            # A task of a dead driver may be removing the same file.
            self._remove(self.path_of(path))
        return state.files.keys() - found

    def remove_files(self, paths: Iterable[str]) -> None:
        """Removes files, and folders that are empty then."""
        folders = set()
        for path in paths:
            self._remove(self.path_of(path))
            folders.add(self.path_of(path).rpartition("/")[0])
        for folder in sorted(folders):
            for empty in (folder, folder.rpartition("/")[0]):
                # An object store has no empty folders.
                if self._fs.exists(empty) and not self._list(empty):
                    self._fs.remove_dir(empty)

    def _load_once(self) -> ArchiveState:
        names = self._names()
        wholes = [number for kind, number in names if kind == "state"]
        newest = max(wholes, default=0)
        state = ArchiveState()
        if wholes:
            data = self._read("state", newest)
            self._whole_bytes = len(data)
            state = _restored(self._decoded("state", newest, data, _WrittenState))
            if state.number != newest:
                raise ArchiveDamagedError(f"{self._ledger('state', newest)}: it is the state of commit {state.number}")
        later = sorted(number for kind, number in names if kind == "commit" and number > newest)
        self._since_whole, self._commits = 0, len(later)
        for number in later:
            data = self._read("commit", number)
            self._since_whole += len(data)
            try:
                state.apply(self._decoded("commit", number, data, Commit))
            except (ValueError, KeyError) as error:
                if self._names() != names:
                    raise FileNotFoundError from error
                raise ArchiveDamagedError(f"{self._ledger('commit', number)}: {error}") from error
        return state

    def _decoded(self, kind: str, number: int, data: bytes, form: type[T]) -> T:
        path = self._ledger(kind, number)
        if data[:8] != MAGIC:
            raise ArchiveDamagedError(f"{path}: not a ledger file of a known version")
        if len(data) < 16 or xxh3_64_intdigest(data[:-8]) != _CHECKSUM.unpack(data[-8:])[0]:
            raise ArchiveDamagedError(f"{path}: wrong checksum")
        return msgspec.msgpack.decode(data[8:-8], type=form)

    def _names(self) -> list[tuple[str, int]]:
        matches = [_NAME.fullmatch(name) for name in self._list(f"{self.root}/ledger")]
        return [(match[1], int(match[2])) for match in matches if match is not None]

    def _ledger(self, kind: str, number: int) -> str:
        return f"{self.root}/ledger/{kind}-{number:016d}.bin"

    def _read(self, kind: str, number: int) -> bytes:
        data = read_whole(self._fs, self._ledger(kind, number))
        if data is None:
            raise FileNotFoundError(self._ledger(kind, number))
        return data

    def _data_files(self, folder: str) -> list[str]:
        """Every file below the days and buckets of a folder. An object store is asked for many of them at once."""
        inner = [f"{folder}/{name}" for name in self._list(self.path_of(folder))]
        for _ in range(2):
            listed = in_parallel(lambda one: self._list(self.path_of(one)), inner, self.root)
            inner = [f"{one}/{name}" for one, names in zip(inner, listed, strict=True) for name in names]
        return inner

    def _list(self, folder: str) -> list[str]:
        try:
            return self._fs.list_dir(folder)
        except FileNotFoundError:
            return []

    def _remove(self, path: str) -> None:
        try:
            self._fs.remove(path)
        except FileNotFoundError:
            return


def _framed(content: object) -> bytes:
    body = MAGIC + msgspec.msgpack.encode(content)
    return body + _CHECKSUM.pack(xxh3_64_intdigest(body))


def _written(state: ArchiveState) -> _WrittenState:
    topics = [
        _WrittenTopic(one.topic_id, one.epoch, one.name, one.covered, one.deleted.packed(), one.catalog)
        for one in state.topics.values()
    ]
    return _WrittenState(
        state.number,
        state.updated_ms,
        topics,
        list(state.files.values()),
        list(state.retired.items()),
        state.history,
        state.deletes_seen,
    )


def _restored(written: _WrittenState) -> ArchiveState:
    state = ArchiveState()
    state.number, state.updated_ms = written.number, written.updated_ms
    written.topics.reverse()
    while written.topics:
        # Each is freed as soon as it is taken: there may be millions.
        one = written.topics.pop()
        state.topics[one.topic_id] = ArchivedTopic(
            one.topic_id, one.epoch, one.name, one.covered, Mask.unpacked(one.deleted), one.catalog
        )
    for file in written.files:
        state.files[file.path] = file
        state.list_runs(file)
    state.retired = dict(written.retired)
    state.history, state.deletes_seen = written.history, written.deletes_seen
    return state


# Ownership: an archive belongs to one log history, and is not continued with the records of another.

_log = logging.getLogger(__name__)


class OtherHistoryError(TopicsError):
    """The archive belongs to another log and must not be taken over, or has the only copy of its records."""


class MissedDeletesError(TopicsError):
    """Another archive was used meanwhile, and the engine has forgotten the deletes since then."""


def deletes_seen(state: ArchiveState, changed: Iterable[CatalogTopic]) -> Sequence[Event]:
    """The event that records the newest delete of a catalog; None if there is no newer one."""
    newest = newest_delete(changed)
    return [Owned(state.history, newest)] if newest > state.deletes_seen else ()


def take_ownership(state: ArchiveState, history: History, topics: Mapping[int, CatalogTopic]) -> Sequence[Event]:
    """The events that bind the archive to a log history. An archive of another history is emptied first, so that no
    record is archived twice. Raises OtherHistoryError or MissedDeletesError.
    """
    if state.history == history.name:
        if state.deletes_seen == NOT_RECORDED:
            return [Owned(history.name, history.acked_delete)]
        if state.topics and state.deletes_seen < history.acked_delete:
            raise MissedDeletesError(
                f"the archive would show deleted records: it has the deletes up to catalog {state.deletes_seen}, those "
                f"up to {history.acked_delete} were acknowledged for another archive. Move it away to start a new one"
            )
        return ()
    if not state.topics or not (state.history or history.takes_over):
        return [Owned(history.name, history.acked_delete)]
    if not history.takes_over:
        raise OtherHistoryError(
            f"the archive is of the log {state.history}, and this data folder is another "
            "one: give it a separate archive with archive_dir"
        )
    for topic_id, topic in topics.items():
        only = _only_here(state, topic_id, topic.earliest)
        if only:
            raise OtherHistoryError(
                f"the data folder went back to an older state, and the archive has {only} record(s) of {topic.name} "
                "that the log no longer has: move the archive away to keep them, and a new one is begun"
            )
    _log.warning("the archive is begun anew: the log has another history", extra={"topics": len(state.topics)})
    return [Dropped(sorted(state.topics)), Owned(history.name, history.acked_delete)]


def _only_here(state: ArchiveState, topic_id: int, earliest: int) -> int:
    """The number of live archived records before the first record of the log."""
    known = state.topics.get(topic_id)
    if known is None or earliest <= 1:
        return 0
    shown = Mask.of(state.spans_of(topic_id)).minus(known.deleted)
    return shown.intersection(Mask.of([(1, earliest - 1)])).count()
