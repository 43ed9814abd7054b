"""Index manifest: the list of the index files (also known as: companions) of a stream that are in use. It is replaced
atomically once its files are on disk.

    families/<16 hex digits>/manifest.json
    families/<16 hex digits>/<first seq>-<last seq>-<generation>-<run>-<attempt>.companion

The folder has the number of the topic. Two attempts of a task never share a name, so an abandoned attempt cannot write
into the file of another. A file without a manifest entry does not count: a failed task removes it, and the next run of
the pipeline removes the rest. Everything can be rebuilt from the segments, so an unreadable manifest counts as missing.

An index file whose segments are all in the cold tier is there as well, under the same name below `families/` of the
cold folder or object store; manifests stay. It is copied and read back before the manifest lists it, and its file in
the data folder is retired. Listing a store is slow and costs money, so a name is added to the retired files of the
manifest before the file is written. In a cold folder each attempt writes a separate file, `<name>.<run>-<attempt>.tmp`,
and renames it; leftovers are found as in the data folder.

Copies of index files between the data folder and the cold tier, verified by a digest of all their bytes.

An index file may exceed a task's memory, so none is loaded whole: uploads are sent from the mapping, downloads arrive
in pieces.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator

import msgspec
from xxhash import xxh3_64

from topics.log.fs import File, FileSystem, add_checksum, check_json, map_file, naming, read_whole, replace_file
from topics.log.layout import Layout, is_object_store
from topics.log.object_store.tiered_fs import open_ranged
from topics.model.errors import Finding
from topics.model.seq_ranges import Ranges, difference, union
from topics.search.file_index.file_format import TAIL_BYTES, IndexFileDamagedError, IndexPlan, seal_of
from topics.search.file_index.reader import IndexFile

_log = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20


class CopyDamagedError(ValueError):
    """A copy differs from its source."""


class CopyStoppedError(Exception):
    """The copy was cancelled."""


def send(fs: FileSystem, source: str, target: str, attempt: str) -> int:
    """Copies a file of the data folder into the cold tier, synced, and reads it back; returns the digest of its bytes.

    In a folder it is written to the separate path `attempt` and renamed when it is complete, because another attempt
    may be in progress or finished. The name is not synced. Raises CopyDamagedError if the bytes read back differ.
    """
    mapped = map_file(fs, source)
    digest = _digest(mapped[at : at + PIECE_BYTES] for at in range(0, len(mapped), PIECE_BYTES))
    if fs.exists(target) and digest_of(fs, target) == digest:
        # Another attempt has written it, and a reader may use it already, so it is not written again. That attempt may
        # have been killed before fsync; objects in a store are durable.
        if not is_object_store(target):
            _sync(fs, target)
        return digest
    if is_object_store(target):
        # In one piece, because a multipart object would have to be joined.
        _write(fs, target, mapped, digest, len(mapped))
        return digest
    try:
        _write(fs, attempt, mapped, digest, PIECE_BYTES)
        fs.rename(attempt, target)
    except Exception:
        # Files that cannot be removed are left to the next holder of the pipeline.
        with contextlib.suppress(OSError):
            fs.remove(attempt)
        raise
    return digest


def _write(fs: FileSystem, path: str, mapped: memoryview, digest: int, step: int) -> None:
    writer = fs.open(path, create=True)
    try:
        writer.truncate(0)
        for at in range(0, len(mapped), step):
            writer.write_at(at, mapped[at : at + step])
        writer.sync()
    finally:
        writer.close()
    if digest_of(fs, path) != digest:
        raise CopyDamagedError(f"{path} is not what was written")


def fetch(
    fs: FileSystem, source: str, target: str, digest: int | None, is_needed: Callable[[], bool] = lambda: True
) -> None:
    """Copies a file of the cold tier to the local disk, where it need not survive a crash.

    Raises CopyDamagedError for bytes that do not have the digest, if there is one, and leaves them to be removed;
    CopyStoppedError as soon as `is_needed` returns False.
    """
    hashed = xxh3_64()
    reader = open_ranged(fs, source)
    try:
        writer = fs.open(target, create=True)
        try:
            writer.truncate(0)
            at = 0
            for piece in _pieces(reader):
                if not is_needed():
                    raise CopyStoppedError
                writer.write_at(at, piece)
                hashed.update(piece)
                at += len(piece)
        finally:
            writer.close()
    finally:
        reader.close()
    if digest is not None and hashed.intdigest() != digest:
        raise CopyDamagedError(f"{source} is not what was written")


def digest_of(fs: FileSystem, path: str) -> int:
    reader = open_ranged(fs, path)
    try:
        return _digest(_pieces(reader))
    finally:
        reader.close()


def _digest(pieces: Iterator[bytes] | Iterator[memoryview]) -> int:
    hashed = xxh3_64()
    for piece in pieces:
        hashed.update(piece)
    return int(hashed.intdigest())


def _pieces(reader: File) -> Iterator[bytes]:
    for at in range(0, reader.size(), PIECE_BYTES):
        yield reader.read_at(at, PIECE_BYTES)


def _sync(fs: FileSystem, path: str) -> None:
    file = fs.open(path, write=True)
    try:
        file.sync()
    finally:
        file.close()


_MANIFEST = "manifest.json"
_ENDING = ".companion"
_NAME = re.compile(r"(\d{20})-(\d{20})-([0-9a-f]{8})-.*\.companion")
_BEING_COPIED = ".tmp"
_FORMAT = 1


class IndexFileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One index file. It covers all entries from `first` to `last`."""

    name: str
    generation: str
    first: int
    last: int
    rows: int
    bytes: int
    level: int
    segments: int
    """The number of index files merged into it."""
    last_ts: int
    """The time at which the last of its entries was appended."""
    made_ms: int
    gone: int | None = None
    """The number of entries of its range removed before it was built; None in files of earlier versions."""
    spoiled_ms: int | None = None
    """The time since which it is known to contain removed entries."""
    cold: bool = False
    """Whether it is in the cold tier."""
    digest: int | None = None
    """XXH3-64 of all its bytes, if it is in the cold tier."""
    seal: int | None = None
    """The checksum of its directory, which binds the entry to its bytes; None in entries of earlier releases."""
    sizes: dict[str, int] = {}
    """Bytes by owner, see `SectionFile.sizes`; empty in entries of earlier releases."""


class Retired(msgspec.Struct, frozen=True):
    """A retired file. Readers that opened it may finish."""

    name: str
    since_ms: int
    cold: bool = False


class IndexManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The index files of one stream."""

    format: int = _FORMAT
    topic_id: int
    epoch: int
    topic: str
    number: int = 0
    """The version of the manifest, incremented at each write."""
    generations: int = 1
    """The number of the plan, incremented when the indexed fields change."""
    generation: str
    """The generation of the current plan.

    Files of other generations serve matching queries until its files are complete.
    """
    plans: dict[str, IndexPlan]
    """Plans by generation: the current one and those of all files."""
    files: tuple[IndexFileEntry, ...] = ()
    """Sorted by seq. Files of one generation do not overlap."""
    retired: tuple[Retired, ...] = ()
    uploads: int = 0
    """The number of files moved to the cold tier so far."""
    updated_ms: int = 0

    def of(self, generation: str) -> list[IndexFileEntry]:
        return [file for file in self.files if file.generation == generation]

    def covered(self, generation: str) -> Ranges:
        return union([(file.first, file.last) for file in self.of(generation)])

    def named(self, cold: bool = False) -> set[str]:
        """All names that may exist in the data folder or in the cold tier."""
        counted = {file.name for file in self.files if file.cold == cold}
        return counted | {file.name for file in self.retired if file.cold == cold}


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(IndexManifest).decode


class IndexStore:
    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._root = layout.families
        self._cold_root = layout.cold_families

    @property
    def has_cold(self) -> bool:
        """Whether there is a cold tier."""
        return self._cold_root is not None

    def folder(self, topic_id: int, cold: bool = False) -> str:
        return f"{self._cold_root if cold else self._root}/{topic_id:016x}"

    def path(self, topic_id: int, name: str, cold: bool = False) -> str:
        return f"{self.folder(topic_id, cold)}/{name}"

    def size(self, topic_id: int) -> int | None:
        """Returns the bytes of the manifest; None if it does not exist."""
        try:
            file = self._fs.open(self.path(topic_id, _MANIFEST))
        except OSError:
            return None
        try:
            return file.size()
        except OSError:
            return None
        finally:
            file.close()

    def topic_ids(self, cold: bool = False) -> list[int]:
        root = self._cold_root if cold else self._root
        return [int(name, 16) for name in self._names(root or "") if len(name) == 16]

    def load(self, topic_id: int) -> IndexManifest | None:
        """Returns the current manifest; None if it is missing or unreadable."""
        path = self.path(topic_id, _MANIFEST)
        data = read_whole(self._fs, path)
        if data is None:
            return None
        try:
            manifest = _decode(check_json(data))
            if manifest.topic_id != topic_id:
                raise ValueError(f"it is the manifest of topic {manifest.topic_id}")
            if manifest.format != _FORMAT:
                raise ValueError(f"it has format {manifest.format}")
        except ValueError as error:
            _log.error("index manifest cannot be read", extra={"path": path, "error": str(error)})
            return None
        return manifest

    def save(self, manifest: IndexManifest) -> None:
        """Publishes a manifest atomically. The files it names must be durable."""
        self._fs.make_dirs(self.folder(manifest.topic_id))
        replace_file(self._fs, self.path(manifest.topic_id, _MANIFEST), add_checksum(_encode(manifest)))

    def write(self, topic_id: int, name: str) -> "IndexFileSink":
        """A new file that is written sequentially."""
        self._fs.make_dirs(self.folder(topic_id))
        return IndexFileSink(self._fs, self.folder(topic_id), name)

    def map(self, topic_id: int, name: str, cold: bool = False) -> memoryview:
        return map_file(self._fs, self.path(topic_id, name, cold))

    def map_near(self, topic_id: int, file: IndexFileEntry, attempt: str) -> memoryview:
        """Like `map`.

        A file in an object store is fetched to the disk while it is mapped, not into memory. A crash leaves the copy
        under a name that is in no manifest.
        """
        path = self.path(topic_id, file.name, file.cold)
        if not is_object_store(path):
            return self.map(topic_id, file.name, file.cold)
        name = f"{attempt}-{file.name}"
        try:
            fetch(self._fs, path, self.path(topic_id, name), file.digest)
            return self.map(topic_id, name)
        finally:
            self.remove_files(topic_id, (name,))

    def relocate(self, topic_id: int, name: str, attempt: str) -> int:
        """Copies an index file into the cold tier and syncs it. Returns its digest. The local file stays."""
        self._fs.make_dirs(self.folder(topic_id, cold=True))
        target = self.path(topic_id, name, cold=True)
        digest = send(self._fs, self.path(topic_id, name), target, f"{target}.{attempt}{_BEING_COPIED}")
        self._fs.sync_dir(self.folder(topic_id, cold=True))
        return digest

    def sweep(self, topic_id: int, manifest: IndexManifest | None, but_of: str | None = None) -> int:
        """Removes files that no manifest names, left by a killed run. Requires the pipeline lock; files of a run whose
        tasks are in progress are kept.
        """
        named = manifest.named() if manifest is not None else set()
        stray = [name for name in self.files(topic_id) if name not in named and not _is_of(name, but_of)]
        self.remove_files(topic_id, stray)
        # An unreachable cold folder must not fail a run.
        with contextlib.suppress(OSError):
            self.remove_files(
                topic_id, [name for name in self._copies(topic_id) if not _is_of(name, but_of)], cold=True
            )
        return len(stray)

    def _copies(self, topic_id: int) -> list[str]:
        """Returns the temporary files of running and killed attempts in a stream's cold folder."""
        if self._cold_root is None or is_object_store(self._cold_root):
            return []
        return [name for name in self._names(self.folder(topic_id, cold=True)) if name.endswith(_BEING_COPIED)]

    def discard(self, topic_id: int, names: Iterable[str]) -> None:
        """Removes files of a failed task, unless a manifest names them. Failures are ignored: the next run of the
        pipeline removes the rest.
        """
        with contextlib.suppress(OSError):
            manifest = self.load(topic_id)
            named = manifest.named() if manifest is not None else set()
            self.remove_files(topic_id, [name for name in names if name not in named])

    def files(self, topic_id: int, cold: bool = False) -> list[str]:
        return [name for name in self._names(self.folder(topic_id, cold)) if name.endswith(_ENDING)]

    def remove_files(self, topic_id: int, names: Iterable[str], cold: bool = False) -> None:
        for name in names:
            try:
                self._fs.remove(self.path(topic_id, name, cold))
            except FileNotFoundError:
                continue

    def remove_cold(self, topic_id: int, names: Iterable[str]) -> None:
        """Removes files from the cold tier and syncs the removal, and the folder with the last file.

        The manifest drops their names next, so a file that reappeared after a crash would never be found.
        """
        folder = self.folder(topic_id, cold=True)
        self.remove_files(topic_id, names, cold=True)
        # A store has no folders, and each of these checks would be a request.
        if is_object_store(folder):
            return
        with contextlib.suppress(FileNotFoundError):
            self.remove_files(topic_id, self._copies(topic_id), cold=True)
            self._fs.sync_dir(folder)
            if not self._fs.list_dir(folder):
                self._fs.remove_dir(folder)
                self._fs.sync_dir(folder.rpartition("/")[0])

    def remove_topic(self, topic_id: int) -> None:
        """Removes all files of a stream, the manifest first, because files without a manifest are ignored."""
        folder = self.folder(topic_id)
        self.remove_files(topic_id, (_MANIFEST,))
        self._fs.sync_dir(folder)
        self.remove_files(topic_id, self._names(folder))
        self._fs.remove_dir(folder)
        self._fs.sync_dir(self._root)

    def _names(self, folder: str) -> list[str]:
        try:
            return self._fs.list_dir(folder)
        except FileNotFoundError:
            return []


class IndexFileSink:
    """A file that is written under its final name. It is ignored until a manifest names it."""

    def __init__(self, fs: FileSystem, folder: str, name: str) -> None:
        self._fs = fs
        self._folder = folder
        self._path = f"{folder}/{name}"
        self._file = fs.open(self._path, create=True)
        self._file.truncate(0)
        self.size = 0
        self._tail = b""

    def put(self, data: bytes | memoryview) -> None:
        if len(data):
            with naming(self._path):
                self._file.write_at(self.size, data)
            self.size += len(data)
            self._tail = bytes(data[-TAIL_BYTES:])

    @property
    def seal(self) -> int:
        """Returns the seal of the complete file. The tail must be the last write."""
        return seal_of(self._tail)

    def finish(self) -> None:
        """Syncs the file."""
        self._file.sync()
        self._fs.sync_dir(self._folder)

    def close(self) -> None:
        self._file.close()


def index_file_name(first: int, last: int, generation: str, run: str, attempt: str) -> str:
    return f"{first:020d}-{last:020d}-{generation[:8]}-{run}-{attempt}{_ENDING}"


def parse_index_file_name(name: str) -> tuple[int, int, str] | None:
    """Returns the first and last seq in the name of an index file, and the prefix of its generation."""
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]), found[3])


def _is_of(name: str, run: str | None) -> bool:
    """Returns whether a task of this run writes the file or has fetched it."""
    return run is not None and f"{run}-" in name


def check_named(index_file: IndexFile, epoch: int, file: IndexFileEntry) -> None:
    """Raises IndexFileDamagedError if the file does not match its manifest entry."""
    head = index_file.head
    found = (head.epoch, head.first, head.last, head.rows)
    if found != (epoch, file.first, file.last, file.rows) or file.seal not in (None, index_file.seal):
        raise IndexFileDamagedError("it is not the companion that the manifest names")


def left_uncovered(first: int, last: int, covered: Ranges) -> Ranges:
    """Returns the uncovered parts of a range."""
    return difference([(first, last)], covered)


# Verification of index files. A damaged file loses no data: searches skip it, and the pipeline rebuilds it.

_AGAIN = "searches pass it over; `topics pipeline rebuild` makes it again"


def check_index_files(fs: FileSystem, layout: Layout) -> Iterator[Finding]:
    """Yields every difference between manifests and files; reads every byte, in the cold tier as well."""
    store = IndexStore(fs, layout)
    for topic_id in store.topic_ids():
        manifest = store.load(topic_id)
        if manifest is None:
            yield Finding(
                _where(topic_id, "manifest.json"), "it is missing or cannot be read: the pipeline begins anew"
            )
            continue
        for file in manifest.files:
            problem = _problem(fs, store, manifest, file)
            if problem is not None:
                yield Finding(
                    _where(topic_id, file.name, file.cold),
                    f"{problem}: {_AGAIN}",
                    seq_range=(file.first, file.last),
                    topic=manifest.topic,
                )


def _where(topic_id: int, name: str, cold: bool = False) -> str:
    return f"{'the cold tier, ' if cold else ''}families/{topic_id:016x}/{name}"


def _problem(fs: FileSystem, store: IndexStore, manifest: IndexManifest, file: IndexFileEntry) -> str | None:
    if file.cold and not store.has_cold:
        return "it is in a cold tier that is not named"
    path = store.path(manifest.topic_id, file.name, file.cold)
    try:
        if is_object_store(path):
            # In pieces: the file may be larger than the memory.
            return None if digest_of(fs, path) == file.digest else "it is not what was put there"
        index_file = IndexFile(store.map(manifest.topic_id, file.name, file.cold))
        index_file.check()
        check_named(index_file, manifest.epoch, file)
    except FileNotFoundError:
        return "it is missing"
    except (OSError, IndexFileDamagedError) as error:
        return str(error)
    return None
