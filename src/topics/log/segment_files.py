"""Segment files: write, open, flip flags, move to the cold tier.

The engine decides which segments to write; this module handles the files. A segment becomes part of the log only when a
snapshot names it, so files are written without a temporary name. A half-written file left by a crash is removed by the
next start. Every method but `write` may be called from any thread.

If the cold tier is an object store, a cold segment's data is fetched for its text only. Its index and its flags are
kept on the local disk (`log.object_store.local_cache`), and `index`, `flags` and `rows` need nothing else.
"""

import errno
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from xxhash import xxh3_64, xxh3_64_intdigest

from topics.log.fs import File, FileSystem, as_refusal, is_passing, lacks_descriptors
from topics.log.layout import Layout, is_object_store
from topics.log.object_store.store import StoreUnavailable
from topics.log.object_store.tiered_fs import NO_USE, TieredFileSystem, TopicUse
from topics.log.segment import (
    CHUNK_BYTES,
    DELETED,
    SegmentHead,
    SegmentIndex,
    check_data,
    encode_data,
    encode_index,
    join_texts,
    read_head,
)
from topics.model.errors import ColdStoreUnavailableError, NewerFormatError, RetryLaterError
from topics.wire.record_slicing import RowsOnly, View, end_that_fits

# Files that are written first and synced later, and the handling of failed syncs.
#
# Linux may count pages as clean that a sync could not write: they are still read, and the next sync succeeds without
# them. So a file whose sync failed is written again before it is synced again. It is read from the file, which has the
# only copy; its checksum verifies that the file is still intact.


class UnsyncedFiles:
    """Thread-safe, but with one call for each file at a time."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._written: dict[str, int] = {}
        """The checksums of files that are not synced yet."""
        self._doubted: set[str] = set()
        """The files whose sync failed."""

    def write(self, path: str, pieces: Sequence[bytes]) -> None:
        """Writes a whole file without a sync."""
        file = self._fs.open(path, create=True)
        try:
            file.write_whole(pieces)
        finally:
            file.close()
        digest = xxh3_64()
        for piece in pieces:
            digest.update(piece)
        self._written[path] = digest.intdigest()
        self._doubted.discard(path)

    def sync(self, path: str) -> None:
        """Syncs a file. Raises `OSError` if it is not certain to be durable as written."""
        file = self._fs.open(path, write=True)
        try:
            if path in self._doubted:
                self._write_again(path, file)
            try:
                file.sync()
            except OSError:
                self._doubted.add(path)
                raise
        finally:
            file.close()
        self.forget(path)

    def forget(self, path: str) -> None:
        """Drops the state of a file that was synced or removed."""
        self._written.pop(path, None)
        self._doubted.discard(path)

    def _write_again(self, path: str, file: File) -> None:
        data = file.read_at(0, file.size())
        if xxh3_64(data).intdigest() != self._written.get(path):
            raise OSError(errno.EIO, "a sync failed, and what it should have written is gone", path)
        file.write_at(0, data)


T = TypeVar("T")
_DELETED_RUNS = re.compile(b"%c+" % DELETED)

_COPY_BYTES = 4 * 1024 * 1024
_SIZES_AT_ONCE = 256
_SIZES_MAX = 100_000
_OPEN_MAX = 256
"""Each open segment holds a descriptor, so small segments must not add up to thousands of them."""


class SegmentKey(NamedTuple):
    """A segment, and the tier of its files."""

    topic_id: int
    first_seq: int
    cold: bool = False


class SegmentDraft(NamedTuple):
    """A segment about to be written: the blocks' parts, and record indexes by tag (its JSON string)."""

    head: SegmentHead
    texts: list[bytes]
    rows: list[bytes]
    blocks: list[tuple[int, int]]
    tags: dict[bytes, list[int]]
    flags: bytes
    written: Sequence[int] = ()
    """The time at which each block was written; empty if it equals the ts."""


class SegmentDamaged(Exception):
    """A segment is damaged; the range of record indexes is exact."""

    def __init__(self, path: str, reason: str, first: int, last: int) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.first = first
        self.last = last


UNREADABLE = (SegmentDamaged, RetryLaterError)
"""Errors that make a segment unreadable, permanently or temporarily."""


class OpenSegment:
    """An open segment: its index is in memory, its text and its flags are read from the file on demand.

    Nothing is mapped: an unreadable or truncated page would kill the process with SIGBUS, while a read fails (decision
    0150). Chunks of the text are verified at their first read.
    """

    def __init__(self, path: str, data: File, index: memoryview) -> None:
        self.path = path
        self._data = data
        self._read_at = data.read_at
        self.head, self._checksums = read_head(data)
        self.index = SegmentIndex(index)
        if (self.index.topic_id, self.index.first_seq, self.index.count) != (
            self.head.topic_id, self.head.first_seq, self.head.count,
        ):  # fmt: skip
            raise ValueError("its index belongs to another segment")
        self.view = RowsOnly(b"", self.index.rows, self.head.bias, self.head.count, self.head.text_bytes)
        self.count = self.head.count
        self.text_bytes = self.head.text_bytes
        self._rows, self._bias = self.index.rows, self.head.bias
        self._text_at = self.head.text_at
        self._checked = bytearray(self.head.chunks)
        self._unchecked = self.head.chunks
        """The number of chunks that were not read yet."""
        self._large: dict[int, View] = {}
        self.open_bytes = self.head.file_bytes + len(index)

    def window(self, lo: int, hi: int, budget: int) -> View:
        """Reads the fragments from `lo` to before `hi`, at most a budget of bytes but at least one.

        Returns a view that starts with the first of them.
        """
        rows, bias = self._rows, self._bias
        start = rows[3 * lo]
        begin = start - bias
        size = (rows[3 * hi] - bias - 1 if hi < self.count else self.text_bytes) - begin
        if size > budget:
            hi = max(end_that_fits(self.view, lo, hi, budget), lo + 1)
            size = self.view.start(hi) - 1 - begin
            if size > budget:
                return self._large_record(lo, begin, size)
        if not self._unchecked:
            # The common case, kept short.
            try:
                text = self._read_at(self._text_at + begin, size)
            except OSError:
                text = b""
            if len(text) == size:
                return View(text, rows[3 * lo : 3 * hi], start, hi - lo)
        return View(self.text(begin, begin + size), rows[3 * lo : 3 * hi], start, hi - lo)

    def _large_record(self, lo: int, begin: int, size: int) -> View:
        """A record larger than the budget: a stream returns it in parts, so the last one is cached."""
        kept = self._large.get(lo)
        if kept is None:
            self._large.clear()
            rows = self._rows[3 * lo : 3 * lo + 3]
            kept = self._large[lo] = View(self.text(begin, begin + size), rows, rows[0], 1)
        return kept

    def text(self, begin: int, end: int) -> bytes:
        """Returns a part of the text, verified. Raises SegmentDamaged with the records that cannot be read."""
        first, last = begin // CHUNK_BYTES, (end - 1) // CHUNK_BYTES
        try:
            if self._unchecked and self._checked.find(0, first, last + 1) >= 0:
                return self._checked_text(begin, end, first, last)
            text = self._read_at(self._text_at + begin, end - begin)
        except OSError as error:
            raise self._unreadable(first, last, error) from error
        if len(text) != end - begin:
            raise self._damaged("the file is shorter than it was", (begin + len(text)) // CHUNK_BYTES, last)
        return text

    def _checked_text(self, begin: int, end: int, first: int, last: int) -> bytes:
        """Reads whole chunks, and verifies each at its first read."""
        offset = first * CHUNK_BYTES
        whole = self._data.read_at(self._text_at + offset, min((last + 1) * CHUNK_BYTES, self.head.text_bytes) - offset)
        with memoryview(whole) as view:
            for chunk in range(first, last + 1):
                if self._checked[chunk]:
                    continue
                if xxh3_64_intdigest(view[chunk * CHUNK_BYTES - offset :][:CHUNK_BYTES]) != self._checksums[chunk]:
                    raise self._damaged("a wrong checksum", chunk, chunk)
                self._checked[chunk] = 1
            self._unchecked = self._checked.count(0)
        if len(whole) < end - offset:
            raise self._damaged("the file is shorter than it was", (offset + len(whole)) // CHUNK_BYTES, last)
        return whole[begin - offset : end - offset]

    def _unreadable(self, first: int, last: int, error: OSError) -> Exception:
        """Returns the error for a failed read: a refusal if it is transient, otherwise the records of the unreadable
        chunks."""
        if is_passing(error):
            return as_refusal(error)
        bad = [chunk for chunk in range(first, last + 1) if not self._is_readable(chunk)]
        if not bad:
            bad = [first, last]
        behind = next((chunk for chunk, after in pairwise(bad) if after != chunk + 1), bad[-1])
        return self._damaged(f"it cannot be read: {error.strerror or error}", bad[0], behind)

    def _is_readable(self, chunk: int) -> bool:
        try:
            self._data.read_at(self._text_at + chunk * CHUNK_BYTES, CHUNK_BYTES)
        except OSError:
            return False
        return True

    def _damaged(self, why: str, first: int, last: int) -> "SegmentDamaged":
        return SegmentDamaged(self.path + ".data", why, self.records_in(first)[0], self.records_in(last)[1])

    def records_in(self, chunk: int) -> tuple[int, int]:
        """Returns the indexes of the first and the last record that have a byte in a chunk."""
        begin, end = chunk * CHUNK_BYTES, min((chunk + 1) * CHUNK_BYTES, self.head.text_bytes)
        starts = [self.view.start(index) for index in range(self.head.count)]
        touched = [i for i, s in enumerate(starts) if s < end and self.view.start(i + 1) - 1 > begin]
        return touched[0], touched[-1]

    def flags(self) -> bytes:
        """Returns the delete flags from the file."""
        return _exactly(self._data.read_at(self.head.flags_at, self.head.count), self.head.count)


class SegmentStore:
    def __init__(self, fs: FileSystem, layout: Layout, cache_bytes: int) -> None:
        self._fs = fs
        self._layout = layout
        self._cache_bytes = cache_bytes
        self._cache: OrderedDict[SegmentKey, OpenSegment] = OrderedDict()
        self._cached = 0
        self._lock = threading.Lock()
        self._folders: set[str] = set()
        self._index_bytes: dict[SegmentKey, int] = {}
        self._unsynced = UnsyncedFiles(fs)
        self._flipped: dict[int, set[SegmentKey]] = {}
        """Segments whose flags are known to be synced, by topic."""
        self.serving = False
        """Whether the server serves requests: a failing start reports the system's error text."""
        self._far: TieredFileSystem | None = None
        if is_object_store(layout.cold_root):
            if not isinstance(fs, TieredFileSystem):
                raise ValueError("a cold tier in an object store needs the file system of storage.objects.tiers")
            self._far = fs
        self._far_indexes: OrderedDict[SegmentKey, SegmentIndex] = OrderedDict()
        """Indexes of segments in an object store, without their data."""

    @property
    def open_bytes(self) -> int:
        """The bytes of all open segments."""
        return self._cached

    @property
    def open_count(self) -> int:
        return len(self._cache)

    def path(self, key: SegmentKey) -> str:
        return self._layout.segment(key.topic_id, key.first_seq, key.cold)

    def write(self, draft: SegmentDraft) -> None:
        """Writes both files, unsynced: the log still has every record until a snapshot takes over."""
        head = draft.head
        self._make_folder(self._layout.topic(head.topic_id))
        path = self._layout.segment(head.topic_id, head.first_seq)
        self._unsynced.write(path + ".data", encode_data(head, join_texts(draft.texts), draft.flags))
        rows = b"".join(draft.rows)
        self._unsynced.write(
            path + ".idx", encode_index(head.topic_id, head.first_seq, rows, draft.blocks, draft.tags, draft.written)
        )

    def sync(self, key: SegmentKey) -> None:
        """Syncs both files; `sync_folder` syncs their names."""
        for ending in (".data", ".idx"):
            self._unsynced.sync(self.path(key) + ending)

    def sync_folder(self, topic_id: int, cold: bool = False) -> None:
        self._fs.sync_dir(self._layout.topic(topic_id, cold))

    def open(self, key: SegmentKey) -> OpenSegment:
        """Returns an open segment, opening it if needed.

        Raises SegmentDamaged for the whole segment if it cannot be read.
        """
        found = self._cache.get(key)
        if found is not None:
            # Without the lock: another thread may have evicted it just now, which does not close it.
            try:
                self._cache.move_to_end(key)
            except KeyError:
                pass
            return found
        opened = self._careful(key, lambda path: self._opened(key, path))
        with self._lock:
            found = self._cache.get(key)
            if found is not None:
                # Another thread was faster.
                return found
            self._cache[key] = opened
            self._cached += opened.open_bytes
            while len(self._cache) > 1 and (self._cached > self._cache_bytes or len(self._cache) > _OPEN_MAX):
                _, oldest = self._cache.popitem(last=False)
                self._cached -= oldest.open_bytes
        return opened

    def _opened(self, key: SegmentKey, path: str) -> OpenSegment:
        data = self._fs.open(path + ".data")
        try:
            opened = OpenSegment(path, data, self._read(path + ".idx"))
        except BaseException:
            data.close()
            raise
        _check_identity(key, opened.index)
        return opened

    def index(self, key: SegmentKey) -> SegmentIndex:
        """Returns a segment's index. In an object store its data is not fetched."""
        if not self.is_far(key):
            return self.open(key).index
        with self._lock:
            found = self._far_indexes.get(key)
            if found is not None:
                self._far_indexes.move_to_end(key)
                return found
        index = self._careful(key, lambda path: _check_identity(key, SegmentIndex(self._read(path + ".idx"))))
        with self._lock:
            self._far_indexes[key] = index
            while len(self._far_indexes) > _OPEN_MAX:
                self._far_indexes.popitem(last=False)
        return index

    def index_bytes(self, keys: Sequence[SegmentKey]) -> int:
        """Returns the bytes of the `.idx` files of segments.

        A bounded number of unknown sizes is read; the others are estimated from the known ones.
        """
        known = self._index_bytes
        for key in [key for key in keys if key not in known][:_SIZES_AT_ONCE]:
            size = self._index_size(key)
            if size is not None:
                known[key] = size
        while len(known) > _SIZES_MAX:
            del known[next(iter(known))]
        found = [known[key] for key in keys if key in known]
        return sum(found) * len(keys) // len(found) if found else 0

    def _index_size(self, key: SegmentKey) -> int | None:
        path = self.path(key) + ".idx"
        if self._far is not None and self.is_far(key):
            near = self._far.near(path)
            return None if near is None else len(near)
        try:
            file = self._fs.open(path)
        except OSError:
            return None
        try:
            return file.size()
        except OSError:
            return None
        finally:
            file.close()

    def topic_use(self, topic_id: int) -> TopicUse:
        """Returns the requests to the object store for a topic, and its copies on the local disk."""
        return NO_USE if self._far is None else self._far.of_topic(topic_id)

    def rows(self, key: SegmentKey, text_bytes: int) -> View:
        """Returns the positions of a segment's fragments, without reading them."""
        if not self.is_far(key):
            return self.open(key).view
        index = self.index(key)
        # The first fragment is at the start of the text, so its row has the base of the coordinates.
        return RowsOnly(b"", index.rows, index.rows[0], index.count, text_bytes)

    def flags(self, key: SegmentKey, count: int) -> bytes:
        """Returns a segment's delete flags from the file; it has `count` records."""
        if not self.is_far(key):
            return self._careful(key, lambda path: self.open(key).flags())
        far = self._far
        assert far is not None
        return self._careful(key, lambda path: _exactly(far.tail(path + ".data", count), count))

    def is_far(self, key: SegmentKey) -> bool:
        """Returns whether a segment is in an object store."""
        return key.cold and self._far is not None

    @property
    def far(self) -> TieredFileSystem | None:
        """Returns the file system if its cold tier is an object store."""
        return self._far

    def reopen(self, key: SegmentKey) -> OpenSegment | None:
        """Reads a damaged segment again from the object store; None if it is not in one."""
        if not self._drop_bad_copies(key):
            return None
        self.forget(key)
        return self.open(key)

    def _careful(self, key: SegmentKey, read: Callable[[str], T]) -> T:
        """Reads a segment's files.

        A segment that is unreachable, or of which only the local copy is bad, is not damaged.
        """
        path = self.path(key)
        try:
            try:
                return read(path)
            except StoreUnavailable:
                raise
            except (ValueError, OSError) as error:
                if lacks_descriptors(error):
                    # Most descriptors belong to open segments that have no reader currently.
                    self._close_all()
                elif is_passing(error) or not self._drop_bad_copies(key):
                    raise
                return read(path)
        except StoreUnavailable as error:
            raise ColdStoreUnavailableError(error.why) from error
        except NewerFormatError as error:
            # The file is intact, but the reader gets the range that is unreadable; a repair stops here.
            raise SegmentDamaged(path, f"it is {error.what}, which this release does not know", 0, -1) from error
        except (ValueError, OSError) as error:
            if isinstance(error, OSError) and is_passing(error):
                if not self.serving:
                    raise
                raise as_refusal(error) from error
            raise SegmentDamaged(path, str(error), 0, -1) from error

    def _drop_bad_copies(self, key: SegmentKey) -> bool:
        """Drops local copies of a segment that may be wrong. Returns whether it can be fetched again.

        Without index and flags the loop and a start would have to wait for the store, so these are dropped only if they
        are wrong themselves, which their checksum shows for flags.
        """
        far = self._far
        if far is None or not key.cold:
            return False
        path = self.path(key)
        far.drop_copies(path + ".data")
        index = far.near(path + ".idx")
        if index is None or not _is_index_of(key, index):
            far.drop_copies(path + ".idx")
        return True

    def _close_all(self) -> None:
        with self._lock:
            self._cache.clear()
            self._far_indexes.clear()
            self._cached = 0

    def forget(self, key: SegmentKey) -> None:
        """Closes a segment as soon as it has no reader."""
        with self._lock:
            self._far_indexes.pop(key, None)
            found = self._cache.pop(key, None)
            if found is not None:
                self._cached -= found.open_bytes

    def flip(self, key: SegmentKey, flags: bytes) -> None:
        """Marks records as deleted in place and syncs. Each has its own byte, so no crash can tear it.

        A mark that can be read need not be durable: its sync may have failed, also in an earlier process. So all marks
        are written again until a sync has succeeded.

        An object is fetched and written back whole, and the response of a store or a proxy may be truncated, so it is
        verified before it is written. Raises SegmentDamaged for damage or a missing file.
        """
        flipped = self._flipped.setdefault(key.topic_id, set())
        certain = key in flipped
        flipped.discard(key)
        path = self.path(key) + ".data"
        try:
            file = self._fs.open(path, write=True)
        except FileNotFoundError as error:
            raise SegmentDamaged(path, "it is missing", 0, -1) from error
        try:
            if self.is_far(key):
                _check_object(path, key, file.map(), len(flags))
            start = file.size() - len(flags)
            stored = file.read_at(start, len(flags)) if certain else bytes(len(flags))
            for run in _DELETED_RUNS.finditer(flags):
                if stored[run.start() : run.end()] != run.group():
                    file.write_at(start + run.start(), run.group())
            file.sync()
        finally:
            file.close()
        flipped.add(key)

    def relocate(self, key: SegmentKey) -> None:
        """Copies a segment to the cold tier and syncs it; the hot files stay until a snapshot records the move."""
        target = SegmentKey(key.topic_id, key.first_seq, cold=True)
        folder = self._layout.topic(key.topic_id, cold=True)
        self._make_folder(folder)
        for ending in (".data", ".idx"):
            self._copy(self.path(key) + ending, self.path(target) + ending)
        self._fs.sync_dir(folder)
        if self.is_far(target):
            self.bring_near(target, self.open(key).index.count)

    def bring_near(self, key: SegmentKey, count: int) -> None:
        """Fetches index and flags of a segment to the local disk, if they are not there."""
        self.index(key)
        self.flags(key, count)

    def remove(self, key: SegmentKey) -> None:
        """Removes the files. Missing ones are not an error, because a crash may have interrupted an earlier attempt."""
        self.forget(key)
        self._flipped.get(key.topic_id, set()).discard(key)
        for ending in (".data", ".idx"):
            self._unsynced.forget(self.path(key) + ending)
            try:
                self._fs.remove(self.path(key) + ending)
            except FileNotFoundError:
                continue

    def remove_topic(self, topic_id: int) -> None:
        """Removes all files of a deleted topic in both tiers."""
        with self._lock:
            held = [key for key in (*self._cache, *self._far_indexes) if key.topic_id == topic_id]
        for key in held:
            self.forget(key)
        self._flipped.pop(topic_id, None)
        for cold in (False, True) if self._layout.cold_root is not None else (False,):
            folder = self._layout.topic(topic_id, cold)
            try:
                names = self._fs.list_dir(folder)
            except FileNotFoundError:
                continue
            for name in names:
                self._unsynced.forget(f"{folder}/{name}")
                self._fs.remove(f"{folder}/{name}")
            self._fs.remove_dir(folder)
            self._folders.discard(folder)

    def _make_folder(self, folder: str) -> None:
        if folder not in self._folders:
            self._fs.make_dirs(folder)
            self._folders.add(folder)

    def _copy(self, source: str, target: str) -> None:
        reader = self._fs.open(source)
        writer = self._fs.open(target, create=True)
        try:
            writer.truncate(0)
            for offset in range(0, reader.size(), _COPY_BYTES):
                writer.write_at(offset, reader.read_at(offset, _COPY_BYTES))
            writer.sync()
        finally:
            reader.close()
            writer.close()

    def _read(self, path: str) -> memoryview:
        file = self._fs.open(path)
        try:
            return memoryview(file.read_at(0, file.size()))
        finally:
            file.close()


def _check_identity(key: SegmentKey, index: SegmentIndex) -> SegmentIndex:
    """Returns the index if it belongs to the segment of that name. Raises ValueError otherwise."""
    if (index.topic_id, index.first_seq) != (key.topic_id, key.first_seq):
        raise ValueError(f"it is the segment of topic {index.topic_id} that begins at {index.first_seq}")
    return index


def _is_index_of(key: SegmentKey, data: memoryview) -> bool:
    try:
        index = SegmentIndex(data)
    except ValueError:
        return False
    return (index.topic_id, index.first_seq) == (key.topic_id, key.first_seq)


def _check_object(path: str, key: SegmentKey, data: memoryview, count: int) -> None:
    try:
        head = check_data(data)
        if (head.topic_id, head.first_seq, head.count) != (key.topic_id, key.first_seq, count):
            raise ValueError("it is another segment")
    except ValueError as error:
        raise SegmentDamaged(path, str(error), 0, -1) from error


def _exactly(data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise ValueError(f"it is shorter than its {length} delete flags")
    return data
