"""Backup store: the backups of one data folder, in a folder or an object store.

Backup format: a JSON manifest that names every file with size and checksum, and is written last.

A place holds the backups of any number of data folders, each in a separate folder, its lineage:

    LINEAGE/snapshots/<16 digits>.bin                                a snapshot file, as it is
    LINEAGE/segments/<16 hex digits>/<20 digits>-<count>.data        a segment's data without its delete flags
    LINEAGE/segments/<16 hex digits>/<20 digits>-<count>.idx         a segment's index, as it is
    LINEAGE/flags/<16 hex digits>/<20 digits>-<16 hex digits>        a segment's delete flags, unless none is set
    LINEAGE/log/shard-NN/<16 digits>.wal                             a log file, up to its last valid frame
    LINEAGE/backups/<16 digits>.json                                 a manifest, numbered as its newest snapshot
    LINEAGE/ship/<16 digits>/<16 digits>.log                         log behind a backup (`ops.backup.shipped_log`)
    LINEAGE/writing                                                  there while a backup is being taken: `Writing`

A backup that was cut short is resumed: what `writing` lists is not copied again. A backup without progress for
`UNFINISHED_MS` is abandoned. Its lineage is removed by the next `prune_unfinished`, unless it has finished backups.

A file counts when a manifest names it. Files are never changed, so backups share what they have in common: a segment is
copied once, and a delete in it costs its flags alone. Files that a crash leaves without a manifest are overwritten by
the next attempt, or removed when old backups are.

The log of a manifest is what was logged between the backup `before` it and itself. With it the state at any moment in
between can be built: from that backup's files and the frames up to the moment. The log behind the newest backup is
shipped while it is being written, as numbered objects that no manifest names (`ops.backup.shipped_log`).
"""

import contextlib
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import msgspec
from xxhash import xxh3_64

from topics.log.frame import Frame, FrameKind
from topics.log.fs import BytesLike, FileSystem, add_checksum, check_json, map_file, read_whole, replace_file
from topics.log.layout import Layout, is_object_store, number_in
from topics.log.object_store.tiered_fs import copy_file, open_ranged, put_new
from topics.log.snapshot_files import SnapshotHead, TopicState, WalPosition, decode_topic, read_snapshot
from topics.ops.backup.shipped_log import (
    Continuity,
    LogSpan,
    ShippedHead,
    ShippedObject,
    decode_shipped,
    encode_shipped,
    ship_folder,
    ship_name,
)

FORMAT = 1
_LOG_NAME = re.compile(r"log/shard-(\d+)/(\d+)\.wal")
_SHIP_NAME = re.compile(r"ship/(\d{16})/(\d{16})\.log")


class KeptFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a backup; its name is below the lineage's folder."""

    name: str
    size: int
    checksum: str
    """XXH3-64 of its bytes, as 16 hexadecimal digits."""


class KeptSegment(msgspec.Struct, frozen=True, array_like=True):
    topic_id: int
    first_seq: int
    count: int
    data: KeptFile
    index: KeptFile
    flags: KeptFile | None
    """None where nothing in it is deleted."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    lineage: str
    number: int
    made_ms: int
    moment: int
    """Everything logged up to this moment is in it (`Frame.moment`)."""
    release: str
    """The version of the server that made it."""
    topics: int
    records: int
    positions: list[WalPosition]
    """Where the log went on behind it."""
    snapshots: list[KeptFile]
    """The full one first; the last has the manifest's number."""
    segments: list[KeptSegment]
    before: int | None = None
    """The backup whose log this one has; None where it has none."""
    log: list[KeptFile] = []
    run: int = 0
    """The first backup of its run, which names the objects with the log behind it."""
    first_shipped: int = 1
    """Objects from this one on may have log behind it."""

    def files(self) -> list[KeptFile]:
        """Every file that must be there for the backup to be whole."""
        parts = [part for s in self.segments for part in (s.data, s.index, s.flags) if part is not None]
        return [*self.snapshots, *parts, *self.log]


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """A backup that is being taken, as far as it has come."""

    format: int = FORMAT
    writer: str = ""
    """Drawn by each attempt: a writer that finds another one's stops."""
    at_ms: int = 0
    """The time of the last progress; 0 in notes of earlier releases, which are empty."""
    files: list[KeptFile] = []
    """The files that are durable at the place."""
    idle: bool = False
    """Whether the attempt has failed and nothing is written: a prune may remove what it copied."""


class LogPart(NamedTuple):
    """Frames of one log file: a file of a backup, or a span of an object of shipped log."""

    shard: int
    number: int
    start: int
    size: int
    name: str
    kept: KeptFile | None = None
    """The file of a backup."""
    span: int = 0
    """Which span of the object it is."""


class ShippedLog(NamedTuple):
    """The log behind the newest backup, as far as it was shipped."""

    moment: int
    """Everything logged up to this moment is in it. Frames above it may be there as well, but not all of them."""
    parts: list[LogPart]
    """Each shard's in the order in which they were logged."""
    damaged: list["BackupDamaged"]


_Note = TypeVar("_Note", Manifest, Writing)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Manifest)
_writing_decoder = msgspec.json.Decoder(Writing)


def encode_manifest(manifest: Manifest | Writing) -> bytes:
    return add_checksum(_encoder.encode(manifest))


def decode_manifest(data: bytes) -> Manifest:
    """Raises ValueError for invalid manifests and for unknown formats."""
    return _decode(_decoder, data)


def _decode(decoder: msgspec.json.Decoder[_Note], data: bytes) -> _Note:
    try:
        found = decoder.decode(check_json(data))
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    if found.format != FORMAT:
        raise ValueError(f"it has format {found.format}, and format {FORMAT} is known here")
    return found


def manifest_name(number: int) -> str:
    return f"backups/{number:016d}.json"


def snapshot_name(number: int) -> str:
    return f"snapshots/{number:016d}.bin"


def segment_name(topic_id: int, first_seq: int, count: int) -> str:
    """The name of a segment's two files without their endings."""
    return f"segments/{topic_id:016x}/{first_seq:020d}-{count}"


def flags_name(topic_id: int, first_seq: int, checksum: str) -> str:
    return f"flags/{topic_id:016x}/{first_seq:020d}-{checksum}"


def log_name(shard: int, number: int) -> str:
    return f"log/shard-{shard:02d}/{number:016d}.wal"


def log_part(kept: KeptFile) -> LogPart:
    """A log file of a backup."""
    found = _LOG_NAME.fullmatch(kept.name)
    if found is None:
        raise ValueError(f"{kept.name} is not the name of a log file")
    return LogPart(int(found[1]), int(found[2]), 0, kept.size, kept.name, kept)


# The merged contents of a chain of snapshots, topic by topic.


class PlaceLayout(Layout):
    """Where the snapshots of a lineage are at its place."""

    def snapshot(self, number: int) -> str:
        return f"{self.root}/{snapshot_name(number)}"


class FoldedTopic(NamedTuple):
    state: TopicState
    tail: list[memoryview]
    """The bodies of its tail's blocks."""


class Folded(NamedTuple):
    head: SnapshotHead
    """That of the newest snapshot."""
    topics: dict[int, FoldedTopic]


def fold_snapshots(fs: FileSystem, layout: Layout, number: int) -> Folded:
    """The state as the snapshot of that number has it, with those it adds to."""
    newest, frames = read_snapshot(fs, layout, number)
    topics: dict[int, FoldedTopic] = {}
    for earlier in newest.chain:
        _put_over(topics, *read_snapshot(fs, layout, earlier))
    _put_over(topics, newest, frames)
    return Folded(newest, topics)


def _put_over(topics: dict[int, FoldedTopic], head: SnapshotHead, frames: Iterable[Frame]) -> None:
    for topic_id in head.dropped:
        topics.pop(topic_id, None)
    tail: list[memoryview] = []
    for frame in frames:
        if frame.kind is FrameKind.TOPIC:
            tail = []
            topics[frame.topic_id] = FoldedTopic(decode_topic(frame.body), tail)
        else:
            tail.append(frame.body)


_WRITING = "writing"
UNFINISHED_MS = 24 * 3600 * 1000
"""A backup that made no progress for so long is not finished by anybody."""
_LINEAGE = re.compile(r"[0-9a-f]{16}")


class BackupDamaged(Exception):
    """A file of a backup is missing, or is not what was written."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
        self.why = why


class FencedError(OSError):
    """Another server has taken over: the log that this one ships does not count any more."""

    def __init__(self, name: str) -> None:
        super().__init__(f"another server has taken over and ended the log with {name}")


_AHEAD = 16
_OBJECTS_BYTES = 64 * 1024 * 1024


class _ReadAhead:
    """Loads a list of objects in its order, `_AHEAD` of them at once."""

    def __init__(self, load: Callable[[str], ShippedObject], names: list[str]) -> None:
        self._load = load
        self._names = iter(names)
        self._loading: dict[str, Future[ShippedObject]] = {}
        self._pool = ThreadPoolExecutor(_AHEAD, "shipped-log")
        self._top_up()

    def get(self, name: str) -> ShippedObject:
        loading = self._loading.pop(name, None)
        self._top_up()
        return self._load(name) if loading is None else loading.result()

    def _top_up(self) -> None:
        while len(self._loading) < _AHEAD and (name := next(self._names, None)) is not None:
            self._loading[name] = self._pool.submit(self._load, name)
        if not self._loading:
            # The last one may not have begun: it is not cancelled.
            self._pool.shutdown(wait=False)

    def close(self) -> None:
        """Stops loading: parts that nobody requested are not loaded any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class BackupPlace:
    """The backups of one data folder below a root. One writer at a time; readers whenever they like."""

    def __init__(self, fs: FileSystem, root: str, lineage: str) -> None:
        self._fs = fs
        self.root = root
        self.lineage = lineage
        self._folder = f"{root}/{lineage}"
        self._unsynced: set[str] = set()
        """Folders with new names in them that a crash could still take away."""
        self._ship_folders: set[str] = set()
        self._objects: dict[str, ShippedObject] = {}
        """Objects of shipped log that were read: the last one, or after `read_ahead` as many as `_OBJECTS_BYTES`."""
        self._object_bytes = 0
        self._ahead: _ReadAhead | None = None
        self.written_bytes = 0

    def path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    # Writing

    def put(self, name: str, pieces: Sequence[BytesLike]) -> KeptFile:
        """Writes a file, durable but for its name. It counts once a manifest names it, so no other name is needed."""
        path = self.path(name)
        folder = path.rpartition("/")[0]
        if folder not in self._unsynced:
            self._fs.make_dirs(folder)
            self._unsynced.add(folder)
        digest, size = xxh3_64(), 0
        for piece in pieces:
            digest.update(piece)
            size += len(piece)
        file = self._fs.open(path, create=True)
        try:
            file.write_whole(pieces)
            file.sync()
        finally:
            file.close()
        self.written_bytes += size
        return KeptFile(name, size, digest.hexdigest())

    def adopt(self, origin: "BackupPlace", kept: KeptFile) -> None:
        """Puts a file of another lineage at the same place, without its bytes being sent again. Raises OSError where
        that is impossible."""
        path = self.path(kept.name)
        folder = path.rpartition("/")[0]
        if folder not in self._unsynced:
            self._fs.make_dirs(folder)
            self._unsynced.add(folder)
        copy_file(self._fs, origin.path(kept.name), path)

    def publish(self, manifest: Manifest) -> None:
        """Makes a backup count, in one step. The named files were put before."""
        self._sync_folders()
        path = self.path(manifest_name(manifest.number))
        self._fs.make_dirs(path.rpartition("/")[0])
        replace_file(self._fs, path, encode_manifest(manifest))

    def note_writing(self, writing: Writing) -> None:
        """Until `end_writing` there may be files that no manifest names yet; these are durable."""
        self._fs.make_dirs(self._folder)
        self._sync_folders()
        replace_file(self._fs, self.path(_WRITING), encode_manifest(writing))

    def writing(self) -> Writing | None:
        """The backup that is being taken, or was when its server stopped. A note that cannot be read has no files."""
        data = read_whole(self._fs, self.path(_WRITING))
        if data is None:
            return None
        try:
            return _decode(_writing_decoder, data)
        except ValueError:
            return Writing()

    def has(self, kept: KeptFile) -> bool:
        """Whether a file is there with its size."""
        try:
            file = open_ranged(self._fs, self.path(kept.name))
        except FileNotFoundError:
            return False
        try:
            return file.size() == kept.size
        finally:
            file.close()

    def end_writing(self) -> None:
        if self._fs.exists(self.path(_WRITING)):
            self._fs.remove(self.path(_WRITING))

    @property
    def is_written(self) -> bool:
        """Whether a backup is being taken, or was when its server stopped."""
        return self._fs.exists(self.path(_WRITING))

    def ship(self, head: ShippedHead, spans: Sequence[BytesLike], attempt: str | None = None) -> int:
        """Writes an object of shipped log in one step, durably; how many bytes it has. With an `attempt`, which names
        the writer, it is made only where none is: raises FencedError where a takeover has ended the log before."""
        name = ship_name(head.run, head.number)
        pieces = encode_shipped(head, spans)
        if attempt is not None:
            try:
                put_new(self._fs, self.path(name), b"".join(pieces), attempt)
            except FileExistsError:
                if self._shipped_object(name).head.fence:
                    raise FencedError(name) from None
                # This writer made it, and the answer was lost: nobody else puts log here.
        elif is_object_store(self.root):
            self.put(name, pieces)
        else:
            folder = self.path(name).rpartition("/")[0]
            if folder not in self._ship_folders:
                self._fs.make_dirs(folder)
                self._ship_folders.add(folder)
            replace_file(self._fs, self.path(name), b"".join(pieces))
        return sum(map(len, pieces))

    def fence(
        self, manifest: Manifest, term: int, attempt: str, spans: Sequence[LogSpan] = (),
        pieces: Sequence[BytesLike] = (), moment: int = 0, at: int = 0,
    ) -> None:  # fmt: skip
        """Ends the log behind a backup for good: of what is shipped later, only fences of later terms count. Its writer
        finds out before it acknowledges anything more.

        The owner of the log ends it with the spans that were not shipped, in the object of number `at`. Raises
        FileExistsError where that is taken, and FencedError where a later term has ended the log.
        """
        number = at or self.next_shipped(manifest)
        while True:
            name = ship_name(manifest.run, number)
            end = ShippedHead(
                lineage=self.lineage, run=manifest.run, number=number, confirmed=number - 1,
                moment=max(manifest.moment, moment), spans=list(spans), fence=term,
            )  # fmt: skip
            try:
                put_new(self._fs, self.path(name), b"".join(encode_shipped(end, pieces)), attempt)
            except FileExistsError:
                fence = self._shipped_object(name).head.fence
                if fence > term:
                    raise FencedError(name) from None
                if fence < term and at:
                    raise
                if fence < term:
                    number += 1
                    continue
                # An earlier attempt succeeded, and its answer was lost.
            return

    def next_shipped(self, manifest: Manifest) -> int:
        """The number of the first object behind a backup that there is not."""
        number = manifest.first_shipped
        for known in self._shipped_numbers(manifest):
            if known != number:
                break
            number += 1
        return number

    def withdraw(self, numbers: Iterable[int]) -> None:
        """Backups that do not count any more; their files are still there."""
        for number in numbers:
            self._fs.remove(self.path(manifest_name(number)))
        if self._fs.exists(self.path("backups")):
            self._fs.sync_dir(self.path("backups"))

    def remove(self, name: str) -> None:
        """Removes a file that nothing names any more."""
        if self._fs.exists(self.path(name)):
            self._fs.remove(self.path(name))

    def remove_folders(self) -> None:
        """Removes the folders of a lineage without files."""
        if is_object_store(self.root):
            return  # It has none.
        for kind in ("snapshots", "segments", "flags", "log", "backups", ""):
            folder = f"{self._folder}/{kind}".rstrip("/")
            with contextlib.suppress(FileNotFoundError):
                for below in self._fs.list_dir(folder):
                    self._fs.remove_dir(f"{folder}/{below}")
                self._fs.remove_dir(folder)

    def _sync_folders(self) -> None:
        for folder in sorted(self._unsynced):
            self._fs.sync_dir(folder)
        self._unsynced.clear()

    # Reading

    def numbers(self) -> list[int]:
        """The backups there are, the oldest first."""
        return sorted(n for name in self._list("backups") if (n := number_in(name, "", ".json")) is not None)

    def load(self, number: int) -> Manifest:
        """Raises BackupDamaged for a manifest that is missing or cannot be read."""
        name = manifest_name(number)
        data = read_whole(self._fs, self.path(name))
        if data is None:
            raise BackupDamaged(name, "it is missing")
        try:
            manifest = decode_manifest(data)
        except ValueError as error:
            raise BackupDamaged(name, f"it cannot be read: {error}") from error
        if (manifest.number, manifest.lineage) != (number, self.lineage):
            raise BackupDamaged(name, "it belongs to another backup")
        return manifest

    def shipped(self, manifest: Manifest) -> ShippedLog | None:
        """The log behind a backup, as far as it was shipped; None where there is none."""
        parts: list[LogPart] = []
        damaged: list[BackupDamaged] = []
        moment, confirmed, expected = 0, 0, manifest.first_shipped
        continuity, whole, fence = Continuity(manifest.positions), True, 0
        names = {number: ship_name(manifest.run, number) for number in self._shipped_numbers(manifest)}
        self.read_ahead(names.values())
        for number, name in names.items():
            try:
                head = self._shipped_object(name).head
                whole = whole and number == expected
                if whole and fence and head.fence <= fence:
                    # Too late: it was on its way when a takeover ended the log.
                    expected = number + 1
                    continue
                confirmed = max(confirmed, head.confirmed)
                if whole:
                    fence = head.fence
                    for index, span in continuity.behind(head):
                        parts.append(LogPart(span.shard, span.file, span.start, span.length, name, None, index))
                    # A fence without log does not know the moment of the log before it.
                    moment = head.moment if head.spans or not head.fence else moment
                    expected = number + 1
            except BackupDamaged as damage:
                damaged.append(damage)
                whole = False
            except ValueError as error:
                damaged.append(BackupDamaged(name, str(error)))
                whole = False
        if not damaged and confirmed >= expected:
            damaged.append(BackupDamaged(ship_name(manifest.run, expected), "it is missing"))
        if not parts and not damaged:
            return None
        return ShippedLog(moment, parts, damaged)

    def shipped_object(self, run: int, number: int) -> ShippedObject | None:
        """An object of shipped log; None while there is none of that number. Raises BackupDamaged."""
        name = ship_name(run, number)
        try:
            return self._shipped_object(name)
        except BackupDamaged:
            if self._fs.exists(self.path(name)):
                raise
            return None

    def shipped_moment(self, manifest: Manifest) -> int | None:
        """Up to which moment the log behind a backup was shipped, by the newest object alone; None where there is
        none. Raises BackupDamaged."""
        numbers = self._shipped_numbers(manifest)
        return self._shipped_object(ship_name(manifest.run, numbers[-1])).head.moment if numbers else None

    def _shipped_numbers(self, manifest: Manifest) -> list[int]:
        names = self._list(ship_folder(manifest.run)) if manifest.run else []
        numbers = sorted(number for name in names if (number := number_in(name, "", ".log")) is not None)
        return numbers[bisect_left(numbers, manifest.first_shipped) :]

    def read_ahead(self, names: Iterable[str]) -> None:
        """Objects of shipped log that are needed next, in this order: several are fetched from an object store at
        once."""
        if self._ahead is not None:
            self._ahead.close()
        if is_object_store(self.root):
            self._ahead = _ReadAhead(self._load_object, [name for name in names if name not in self._objects])

    def _shipped_object(self, name: str) -> ShippedObject:
        found = self._objects.get(name)
        if found is None:
            found = self._load_object(name) if self._ahead is None else self._ahead.get(name)
            size = sum(map(len, found.spans))
            if self._ahead is None or self._object_bytes + size > _OBJECTS_BYTES:
                self._objects.clear()
                self._object_bytes = 0
            self._objects[name] = found
            self._object_bytes += size
        return found

    def _load_object(self, name: str) -> ShippedObject:
        try:
            found = decode_shipped(map_file(self._fs, self.path(name)))
        except FileNotFoundError:
            raise BackupDamaged(name, "it is missing") from None
        except (ValueError, msgspec.MsgspecError) as error:
            raise BackupDamaged(name, f"it cannot be read: {error}") from error
        if (found.head.lineage, ship_name(found.head.run, found.head.number)) != (self.lineage, name):
            raise BackupDamaged(name, "it belongs to another backup")
        return found

    def read_log(self, part: LogPart) -> memoryview:
        """The frames of a part of the log, checked."""
        if part.kept is not None:
            return self.read(part.kept)
        return self._shipped_object(part.name).spans[part.span]

    def drop_shipped(self, kept: Sequence[Manifest]) -> None:
        """Removes the shipped log that none of these backups needs."""
        for folder in self._list("ship"):
            needed = [manifest.first_shipped for manifest in kept if ship_folder(manifest.run) == f"ship/{folder}"]
            for name in self._list(f"ship/{folder}"):
                number = number_in(name, "", ".log")
                if not needed or (number is not None and number < min(needed)):
                    self.remove(f"ship/{folder}/{name}")

    def files(self) -> list[str]:
        """The names of all files that backups consist of, whether one names them or not."""
        found = [f"snapshots/{name}" for name in self._list("snapshots")]
        for kind in ("segments", "flags", "log", "ship"):
            found += [f"{kind}/{below}/{name}" for below in self._list(kind) for name in self._list(f"{kind}/{below}")]
        return found

    def states(self, manifest: Manifest) -> list[TopicState]:
        """Every topic as a backup has it."""
        folded = fold_snapshots(self._fs, PlaceLayout(self._folder), manifest.number)
        return [topic.state for topic in folded.topics.values()]

    def read(self, kept: KeptFile) -> memoryview:
        """The bytes of a file, checked."""
        try:
            data = map_file(self._fs, self.path(kept.name))
        except FileNotFoundError:
            raise BackupDamaged(kept.name, "it is missing") from None
        if len(data) != kept.size:
            raise BackupDamaged(kept.name, f"it has {len(data)} bytes instead of {kept.size}")
        if xxh3_64(data).hexdigest() != kept.checksum:
            raise BackupDamaged(kept.name, "a wrong checksum")
        return data

    def _list(self, below: str) -> list[str]:
        try:
            return self._fs.list_dir(self.path(below))
        except FileNotFoundError:
            return []


def lineages(fs: FileSystem, root: str) -> list[str]:
    """The data folders that have backups at a place."""
    try:
        names = fs.list_dir(root)
    except FileNotFoundError:
        return []
    # A place may be the top of a disk, and hold what is nobody's backup and cannot be looked into.
    return [name for name in names if _LINEAGE.fullmatch(name) and BackupPlace(fs, root, name).numbers()]


def damages(place: BackupPlace, files: Iterable[KeptFile]) -> list[BackupDamaged]:
    """Every file of a backup that is not as it was written."""
    found = []
    for kept in files:
        try:
            place.read(kept)
        except BackupDamaged as damage:
            found.append(damage)
    return found


# Old backups go, with every file that only they had.


class PlaceBusy(Exception):
    """A backup is being taken: what it has put already cannot be told from what may go."""


def prune(place: BackupPlace, keep: int, own: bool = False, now_ms: int = 0) -> int:
    """Removes all but the newest backups, and every file that none of the kept ones has; returns the number of files.
    The files of a backup that is abandoned by `now_ms` are removed, too.

    `own` means that the caller is the writer of this place and takes no backup now. The manifests are removed first, so
    that a crash leaves no incomplete backup. The files are listed before the check for a backup in progress: its later
    files are not in the list, and its earlier ones are in its manifest.
    """
    files = place.files()
    if place.is_written and not own:
        writing = place.writing()
        if not (writing is not None and writing.idle) and not is_abandoned(place, now_ms):
            raise PlaceBusy
        # First, so that nobody resumes what goes now.
        place.end_writing()
    numbers = place.numbers()
    kept = [place.load(number) for number in numbers[-keep:]]
    names = {found.name for manifest in kept for found in manifest.files()}
    place.withdraw(numbers[:-keep])
    removed = 0
    for name in files:
        if name not in names and not (kept and _is_behind(name, kept[-1])):
            place.remove(name)
            removed += 1
    return removed


def is_abandoned(place: BackupPlace, now_ms: int) -> bool:
    """Whether the backup that is being taken made no progress for `UNFINISHED_MS`. A note without a time, or none
    beside a first backup, as earlier releases left it, gets the time of the first look."""
    writing = place.writing()
    if writing is None and place.numbers():
        return False
    writing = writing or Writing(idle=True)
    if not writing.at_ms and now_ms:
        place.note_writing(msgspec.structs.replace(writing, at_ms=now_ms))
    return bool(writing.at_ms) and now_ms - writing.at_ms >= UNFINISHED_MS


def prune_unfinished(fs: FileSystem, root: str, now_ms: int) -> list[str]:
    """Removes the lineages of first backups that nobody finishes; returns their names."""
    removed = []
    for name in fs.list_dir(root) if fs.exists(root) else ():
        place = BackupPlace(fs, root, name)
        if _LINEAGE.fullmatch(name) and not place.numbers() and is_abandoned(place, now_ms):
            # The note goes last: what is left by a crash in between is found again.
            for file in place.files():
                place.remove(file)
            place.end_writing()
            place.remove_folders()
            removed.append(name)
    return removed


def _is_behind(name: str, newest: Manifest) -> bool:
    """Whether a file is of the log behind the newest backup: that is shipped at any time."""
    found = _SHIP_NAME.fullmatch(name)
    if found is None:
        return False
    run, number = int(found[1]), int(found[2])
    return run > newest.run or (run == newest.run and number >= newest.first_shipped)
