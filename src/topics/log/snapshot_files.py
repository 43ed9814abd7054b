"""Snapshot files: written beside the old ones under another name, synced, then renamed into place.

At any moment the folder holds one valid chain: a full snapshot and those that add to it. A new file is complete and on
disk before its name appears, and what it replaces is removed only after that name is durable.

Without a reference to the newest snapshot, its loss would leave an older state that looks complete. So `newest` has a
copy of its head, written before the files that the snapshot replaces are removed.

The snapshot format: the state of topics as frames, which replaces the log before it.

    SNAPSHOT_HEAD   msgpack of `SnapshotHead`
    TOPIC           msgpack of `TopicState`, for each topic that changed since the snapshot before (all, in a full one)
      APPEND ...    the blocks of that topic's tail, as they stood in the log
    DIRECTORY       msgpack of `Directory`, about every MiB; only where there are many topics
    SNAPSHOT_END    u64 number of TOPIC frames | with directories: u64 offset of the last DIRECTORY frame

A frame's lsn is its place in the file, from 1. An incremental snapshot names its predecessors in `chain`. The state is
that of the oldest, with the topics of each younger one replaced and its `dropped` ones removed. Payload is copied only
for tails too small for a segment, and only if their topic changed.

A directory has one checksum for everything since the previous directory, and the position of each topic there with the
values that a start needs. So a start with a million topics verifies all bytes, but reads a thousandth of the frames; a
topic is decoded at its first use. The frames stay complete, so a repair loses only the topics that the damage has hit.

`WalPosition` is the start of the replay: everything before that file of that shard is in the snapshot and nothing after
it, because topics are captured as of the rotation to that file.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from topics.log.frame import OVERHEAD_BYTES, BadFrame, Frame, FrameKind, named, read_body, read_frame, seal_frame
from topics.log.fs import File, FileSystem, is_passing, unreadable_range
from topics.log.layout import Layout, number_in
from topics.model.errors import DamageError, Finding
from topics.model.seq_ranges import Ranges, SeqRange

_COUNT = Struct("<Q")
_END = Struct("<QQ")


class WalPosition(msgspec.Struct, array_like=True, frozen=True):
    shard: int
    file: int
    lsn: int
    """The lsn of the first frame of that file."""


class SnapshotHead(msgspec.Struct, array_like=True, frozen=True):
    number: int
    chain: list[int]
    """The snapshots this one adds to, the full one first; empty when it is a full one itself."""
    shard_count: int
    positions: list[WalPosition]
    next_topic_id: int
    now_ms: int
    """The wall-clock time."""
    dropped: list[int]
    quiet: bool = False
    """Whether no seqs were assigned while it was taken: at the end of a recovery or of a clean stop."""
    moment: int = 0
    """The highest moment of the frames before its positions; 0 if unknown."""
    epoch_floor: int = 0
    """The lowest epoch of later topics; 0 in snapshots of earlier releases (`model.topic_epochs`)."""
    deleted_epochs: dict[str, int] = {}
    """The epochs of deleted topics that are not below the floor, by name."""


class SegmentState(msgspec.Struct, array_like=True, frozen=True):
    first_seq: int
    count: int
    payload_bytes: int
    text_bytes: int
    traits: int
    first_ts: int
    last_ts: int
    live: int
    live_bytes: int
    marked: int
    cold: bool
    flags: bytes = b""
    """The delete flags, if some are not in the file yet; otherwise empty."""
    first_written: int = 0
    last_written: int = 0
    """The times at which its first and its last record were written, if they differ from their ts; otherwise 0."""
    content_bytes: int = -1
    """The bytes of all its entries as returned to readers of the stream; -1 if unknown or equal to the stored bytes."""


class LostState(msgspec.Struct, array_like=True, frozen=True):
    first: int
    last: int
    reason: str
    existed: int = -1


class KeyState(msgspec.Struct, array_like=True, frozen=True):
    key: str
    first_seq: int
    count: int
    ts: int


class KeyedState(msgspec.Struct, array_like=True, frozen=True):
    """The idempotency keys of one block."""

    first_seq: int
    count: int
    """The records of one key: all of the block, or one if single records have separate keys."""
    ts: int
    keys: str | dict[str, int]
    """The key of the block, or each key with the position of its record."""
    digests: bytes = b""
    """XXH3-64 of the text of each key's records, big endian, in the order of the keys; empty if unknown."""
    written: int = 0
    """The wall-clock time if it differs from `ts`, otherwise 0."""
    of_data: bool = False
    """The digests cover the data of single records that have nothing else, instead of their text."""


class TopicPeek(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The first fields of a topic's state: the properties that lists show of a topic that is paged out."""

    topic_id: int
    name: str
    epoch: int
    config: bytes
    head: int
    ceiling: int
    earliest: int
    evict_floor: int
    cap_floor: int
    ttl_floor: int
    created_ts: int


class TopicState(TopicPeek, array_like=True, frozen=True, gc=True):
    """A topic's state in a snapshot, behind the fields of `TopicPeek`."""

    last_ts: int
    last_write_ts: int
    next_base: int
    segments: list[SegmentState]
    lost: list[LostState]
    keys: list[KeyState]
    """Written by earlier releases; newer ones are in `keyed`."""
    tail_flags: list[bytes]
    """The delete flags of each following tail block; empty if nothing in it is deleted."""
    parts: dict[str, bytes] = {}
    """The features' parts, by the name of the feature that owns and encodes the part; see `engine.features`."""
    unlogged: bool = False
    """Whether it may hold records that a replay does not have, so that every eviction is a frame; see EVICT."""
    keyed: list[KeyedState] = []
    """The idempotency keys, block by block, the oldest first."""
    tail_live: int = 0
    """Live records of the tail, and their payload, for callers that do not read the blocks; only if a directory names
    the topic."""
    tail_live_bytes: int = 0


CLASSES = ("ephemeral", "memory", "disk", "fsync", "remote")
"""The classes in the order of their numbers in directories; never changed."""


class Directory(msgspec.Struct, array_like=True, frozen=True):
    """The topics of a span of the file. Topics that can stay paged out are stored as columns."""

    previous: int
    """The offset of the previous directory; 0 if there is none."""
    begin: int
    """The start of the span: the end of the previous directory, or 0. The span ends at this directory."""
    digest: int
    """XXH3-64 of the bytes of the span."""
    others: list[tuple[int, int]]
    """The topics that a start must decode: the offset of the TOPIC frame, and the bytes of all frames."""
    ids: list[int]
    names: list[str]
    offsets: list[int]
    """The offset of each TOPIC frame."""
    sizes: list[int]
    """The bytes of that frame and of the APPEND frames after it."""
    classes: bytes
    """The durability of each, a number of `CLASSES`."""
    live: list[int]
    live_bytes: list[int]
    written: list[int]
    """The time at which the oldest block of each tail was written; 0 if there is none."""


_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(SnapshotHead)
_topic_decoder = msgspec.msgpack.Decoder(TopicState)
_directory_decoder = msgspec.msgpack.Decoder(Directory)


def encode_head(head: SnapshotHead) -> bytes:
    return _encoder.encode(head)


def decode_head(body: memoryview) -> SnapshotHead:
    return _head_decoder.decode(body)


def encode_topic(state: TopicState) -> bytes:
    return _encoder.encode(state)


def decode_topic(body: memoryview) -> TopicState:
    return _topic_decoder.decode(body)


decode_peek = msgspec.msgpack.Decoder(TopicPeek).decode
"""Decodes the first fields of an encoded topic; the rest is skipped."""


def encode_directory(directory: Directory) -> bytes:
    return _encoder.encode(directory)


def decode_directory(body: memoryview) -> Directory:
    """Raises ValueError if its columns differ in length."""
    found = _directory_decoder.decode(body)
    columns = (found.names, found.offsets, found.sizes, found.classes, found.live, found.live_bytes, found.written)
    if any(len(column) != len(found.ids) for column in columns) or any(map(len(CLASSES).__le__, found.classes)):
        raise ValueError("a directory whose columns disagree")
    return found


def encode_end(topics: int, directory: int = 0) -> bytes:
    return _END.pack(topics, directory) if directory else _COUNT.pack(topics)


def decode_end(body: memoryview) -> int:
    return int(_COUNT.unpack_from(body)[0]) if len(body) in (_COUNT.size, _END.size) else -1


def directory_in_end(body: memoryview) -> int:
    """Returns the offset of the last directory; 0 if there is none."""
    return int(_END.unpack(body)[1]) if len(body) == _END.size else 0


# Deletes not yet confirmed by the archive, as stored in snapshots.
#
#     removals    msgpack array of [number, ranges]: the first catalog that told of these deletes, and ranges of
#                 [first, last], each inclusive, ascending, apart
#
# The part is named `removals` in `TopicState.parts`. While a topic is in memory its ranges stay encoded: they are a
# tenth as large, and every checkpoint writes them as they are.

REMOVALS_PART = "removals"

Removal = tuple[int, list[SeqRange]]
PackedRemoval = tuple[int, msgspec.Raw]
"""A removal with its ranges encoded."""

_decoder = msgspec.msgpack.Decoder(list[Removal])
_packed_decoder = msgspec.msgpack.Decoder(list[PackedRemoval])
_ranges_decoder = msgspec.msgpack.Decoder(list[SeqRange])


def encode_removals(removals: list[PackedRemoval]) -> bytes:
    return _encoder.encode(removals) if removals else b""


def decode_removals(part: bytes) -> list[Removal]:
    return _decoder.decode(part) if part else []


def decode_packed(part: bytes) -> list[PackedRemoval]:
    # Copied, because a Raw keeps its whole buffer alive.
    return [(number, ranges.copy()) for number, ranges in _packed_decoder.decode(part)] if part else []


def pack(ranges: Ranges) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(ranges))


def unpack(ranges: msgspec.Raw) -> Ranges:
    return _ranges_decoder.decode(ranges)


def packed_bytes(ranges: msgspec.Raw) -> int:
    return len(memoryview(ranges))


class Pieces:
    """Encodes ranges in pieces, so that many of them never take long at once."""

    def __init__(self) -> None:
        self._count = 0
        self._encoded: list[bytes] = []

    def add(self, ranges: Ranges) -> None:
        encoded = _encoder.encode(ranges)
        self._count += len(ranges)
        self._encoded.append(encoded[_array_head(encoded)[0] :])

    def packed(self) -> msgspec.Raw:
        """All of them, as `pack` would have encoded them."""
        count = self._count
        if count < 16:
            head = bytes((0x90 | count,))
        else:
            head = b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
        return msgspec.Raw(head + b"".join(self._encoded))


def _array_head(encoded: bytes | memoryview) -> tuple[int, int]:
    """The length of the head of an encoded list, and the number of its elements."""
    kind = encoded[0]
    if kind == 0xDC:
        return 3, int.from_bytes(encoded[1:3], "big")
    return (5, int.from_bytes(encoded[1:5], "big")) if kind == 0xDD else (1, kind & 0x0F)


_NUMBER_BYTES = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


def packed_ranges(ranges: msgspec.Raw) -> Iterator[SeqRange]:
    """The ranges of an encoded list, one at a time."""
    encoded = memoryview(ranges)
    place, count = _array_head(encoded)
    for _ in range(count):
        pair = []
        place += 1
        for _ in range(2):
            size = _NUMBER_BYTES.get(encoded[place], 0)
            pair.append(int.from_bytes(encoded[place + 1 : place + 1 + size], "big") if size else encoded[place])
            place += 1 + size
        yield pair[0], pair[1]


_BUFFER_BYTES = 1024 * 1024
SPAN_BYTES = 1024 * 1024
"""The size of the span of a directory."""


class TopicEntry(NamedTuple):
    """The fields of a directory entry besides its position."""

    name: str
    durability: str
    live: int
    live_bytes: int
    written: int


class DirectoryDraft:
    """The topics since the last directory."""

    def __init__(self, previous: int, begin: int) -> None:
        self.previous = previous
        self.begin = begin
        self.digest = xxh3_64()
        self.others: list[tuple[int, int]] = []
        self.ids: list[int] = []
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.entries: list[TopicEntry] = []

    def note(self, topic_id: int, offset: int, size: int, entry: TopicEntry | None) -> None:
        if entry is None:
            self.others.append((offset, size))
        else:
            self.ids.append(topic_id)
            self.offsets.append(offset)
            self.sizes.append(size)
            self.entries.append(entry)

    def directory(self) -> Directory:
        names, classes, live, live_bytes, written = (
            map(list, zip(*self.entries, strict=True)) if self.entries else [[]] * 5
        )
        codes = bytes(map(CLASSES.index, classes))
        return Directory(
            self.previous, self.begin, self.digest.intdigest(), self.others, self.ids, names, self.offsets, self.sizes,
            codes, live, live_bytes, written,
        )  # fmt: skip


class SnapshotWriter:
    """Writes one snapshot file; it does not exist until `finish`. With `indexed` it has directories."""

    def __init__(self, fs: FileSystem, layout: Layout, head: SnapshotHead, indexed: bool = False) -> None:
        self._fs = fs
        self._layout = layout
        self._number = head.number
        self._temporary = layout.snapshot(head.number) + ".tmp"
        self._file: File = fs.open(self._temporary, create=True)
        self._file.truncate(0)
        self._offset = 0
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._lsn = 0
        self._topics = 0
        self._draft = DirectoryDraft(0, 0) if indexed else None
        self._last_directory = 0
        self.places: dict[int, tuple[int, int]] = {}
        """The offsets and sizes of the topics that directories name."""
        self.directories: list[tuple[int, int, list[int]]] = []
        """The start and end of each directory, and the start times of its tails."""
        self.add(FrameKind.SNAPSHOT_HEAD, 0, encode_head(head))

    def add(self, kind: FrameKind, topic_id: int, head: bytes, tail: bytes = b"") -> None:
        self._lsn += 1
        self._topics += kind is FrameKind.TOPIC
        pieces = seal_frame(kind, topic_id, self._lsn, 0, head, tail)
        self._buffer += pieces
        self._buffered += sum(map(len, pieces))
        if self._draft is not None:
            for piece in pieces:
                self._draft.digest.update(piece)
        if self._buffered >= _BUFFER_BYTES:
            self._flush()

    def add_topic(
        self, topic_id: int, state: bytes, tail: Iterable[tuple[bytes, bytes]], entry: TopicEntry | None = None
    ) -> None:
        """Writes a topic with the blocks of its tail. With an entry, a directory names it."""
        offset = self._end
        self.add(FrameKind.TOPIC, topic_id, state)
        for head, text in tail:
            self.add(FrameKind.APPEND, topic_id, head, text)
        draft = self._draft
        if draft is None:
            return
        size = self._end - offset
        draft.note(topic_id, offset, size, entry)
        if entry is not None:
            self.places[topic_id] = (offset, size)
        if self._end - draft.begin >= SPAN_BYTES:
            self._add_directory(draft)

    @property
    def _end(self) -> int:
        return self._offset + self._buffered

    def _add_directory(self, draft: DirectoryDraft) -> None:
        self._last_directory, self._draft = self._end, None
        directory = draft.directory()
        self.add(FrameKind.DIRECTORY, 0, encode_directory(directory))
        self.directories.append((self._last_directory, self._end, directory.written))
        self._draft = DirectoryDraft(self._last_directory, self._end)

    def close(self) -> None:
        self._file.close()

    @property
    def size(self) -> int:
        return self._end

    def finish(self) -> int:
        """Publishes the snapshot as the newest one, durably. Returns its size."""
        if self._draft is not None:
            self._add_directory(self._draft)
        self._draft = None
        self.add(FrameKind.SNAPSHOT_END, 0, encode_end(self._topics, self._last_directory))
        self._flush()
        self._file.sync()
        self._fs.rename(self._temporary, self._layout.snapshot(self._number))
        self._fs.sync_dir(self._layout.meta)
        return self._offset

    def _flush(self) -> None:
        data = b"".join(self._buffer)
        self._file.write_at(self._offset, data)
        self._offset += len(data)
        self._buffer, self._buffered = [], 0


def snapshot_numbers(fs: FileSystem, layout: Layout) -> list[int]:
    try:
        names = fs.list_dir(layout.meta)
    except FileNotFoundError:
        return []
    return sorted(n for name in names if (n := number_in(name, "snapshot-", ".bin")) is not None)


def note_newest(fs: FileSystem, layout: Layout, head: SnapshotHead) -> None:
    """Writes a copy of the newest snapshot's head beside it. An outdated copy after a crash is harmless."""
    file = fs.open(layout.newest + ".tmp", create=True)
    try:
        file.truncate(0)
        file.write_at(0, b"".join(seal_frame(FrameKind.SNAPSHOT_HEAD, 0, 1, 0, encode_head(head))))
        file.sync()
    finally:
        file.close()
    fs.rename(layout.newest + ".tmp", layout.newest)


def noted_newest(fs: FileSystem, layout: Layout) -> SnapshotHead | None:
    """Returns the head that `note_newest` wrote; None if there is none. Raises ValueError if it cannot be read."""
    try:
        file = fs.open(layout.newest)
    except FileNotFoundError:
        return None
    try:
        with named(layout.newest):
            found = read_frame(file.map(), 0)
    finally:
        file.close()
    if not isinstance(found, Frame):
        raise ValueError(found.reason if found is not None else "it is empty")
    return decode_head(found.body)


def read_snapshot(fs: FileSystem, layout: Layout, number: int) -> tuple[SnapshotHead, Iterator[Frame]]:
    """Returns the head of a snapshot and its frames between head and end. The whole file is verified first.

    A snapshot is renamed into place when it is complete, so a broken one is damage and never the result of a crash.
    """
    path = layout.snapshot(number)
    try:
        file = fs.open(path)
    except FileNotFoundError:
        raise DamageError([Finding(path, "a snapshot that a newer one builds on is missing")]) from None
    try:
        buffer = file.map()
    except OSError as error:
        if is_passing(error):
            raise
        what = f"the snapshot cannot be read: {error.strerror or error}"
        raise DamageError([Finding(path, what, byte_range=unreadable_range(error))]) from error
    finally:
        file.close()
    problem, offset, topics, previous = "it has no end", 0, 0, 0
    head: SnapshotHead | None = None
    while True:
        with named(path):
            found = read_frame(buffer, offset)
        if not isinstance(found, Frame):
            problem = found.reason if isinstance(found, BadFrame) else problem
            raise DamageError([Finding(path, f"the snapshot is damaged: {problem}", byte_range=(offset, len(buffer)))])
        if found.lsn != previous + 1 or (head is None) != (found.kind is FrameKind.SNAPSHOT_HEAD):
            raise DamageError([Finding(path, "the snapshot's frames are out of order", byte_range=(offset, found.end))])
        if head is None:
            head = decode_head(found.body)
        topics += found.kind is FrameKind.TOPIC
        previous, offset = found.lsn, found.end
        if found.kind is FrameKind.SNAPSHOT_END:
            break
    if decode_end(found.body) != topics or head.number != number:
        raise DamageError([Finding(path, "the snapshot does not match the count at its end")])
    return head, _frames(buffer)


def _frames(buffer: memoryview) -> Iterator[Frame]:
    offset = 0
    while True:
        found = read_frame(buffer, offset)
        if not isinstance(found, Frame) or found.kind is FrameKind.SNAPSHOT_END:
            return
        offset = found.end
        if found.kind not in (FrameKind.SNAPSHOT_HEAD, FrameKind.DIRECTORY):
            yield found


def remove_snapshots(fs: FileSystem, layout: Layout, keep: set[int]) -> None:
    """Removes snapshots that a newer full one replaced, and unfinished files."""
    try:
        names = fs.list_dir(layout.meta)
    except FileNotFoundError:
        return
    for name in names:
        number = number_in(name, "snapshot-", ".bin")
        if name.endswith(".tmp") or (number is not None and number not in keep):
            fs.remove(f"{layout.meta}/{name}")


# Snapshots opened by their directories: verified span by span, and kept open to read single topics.
#
# A span of about a MiB has one checksum, in the directory after it, so the file is verified at the speed of the disk
# and not of decoding frames. If a checksum is wrong, the frames are read one by one to find the damaged one. A snapshot
# without directories, of few topics or of an earlier release, is read frame by frame.

_END_BYTES = OVERHEAD_BYTES + len(encode_end(0, 1))
_PEEK_BYTES = 1024
"""Sufficient for the state of nearly every topic that can be paged out."""


class StoredTopic(NamedTuple):
    """The frames of one topic."""

    state: Frame
    tail: list[Frame]


class FoundDirectory(NamedTuple):
    at: int
    end: int
    directory: Directory


class SnapshotFile:
    """An open snapshot from which topics are read on demand. The file is closed with its last user.

    Nothing is mapped: an unreadable page would kill the process, long after the start that verified it (decision 0150).
    """

    def __init__(self, fs: FileSystem, layout: Layout, number: int) -> None:
        self._fs, self._layout = fs, layout
        self.number = number
        self.path = layout.snapshot(number)
        try:
            self._file = fs.open(self.path)
        except FileNotFoundError:
            raise DamageError([Finding(self.path, "a snapshot that a newer one builds on is missing")]) from None
        self.size = self._file.size()
        end = self._frame(max(self.size - _END_BYTES, 0), self.size)
        indexed = end is not None and end.kind is FrameKind.SNAPSHOT_END
        self._topics = decode_end(end.body) if end is not None and indexed else 0
        self._last_directory = directory_in_end(end.body) if end is not None and indexed else 0

    def head(self) -> SnapshotHead:
        """Returns the snapshot's head record; the frames after it are not verified."""
        found = self._frame(0, self.size)
        if found is None or found.kind is not FrameKind.SNAPSHOT_HEAD:
            raise self._damaged()
        head = decode_head(found.body)
        if head.number != self.number:
            raise self._damaged()
        return head

    def directories(self) -> list[FoundDirectory]:
        """Returns all directories in the order of the file, which verifies it; empty if it has none.

        Raises DamageError.
        """
        if not self._last_directory:
            return []
        found = self._checked()
        listed = sum([len(directory.ids) + len(directory.others) for _, _, directory in found])
        if found[0].directory.begin or listed != self._topics:
            raise self._damaged()
        return found

    def _checked(self) -> list[FoundDirectory]:
        found: list[FoundDirectory] = []
        at, end = self._last_directory, self.size - _END_BYTES
        while at:
            directory = self.directory(at, end)
            begin = directory.begin
            if not directory.previous <= begin < at:
                raise self._damaged()
            try:
                span = self._read(begin, at - begin)
            except ValueError:
                raise self._damaged() from None
            if xxh3_64_intdigest(span) != directory.digest:
                raise self._damaged()
            found.append(FoundDirectory(at, end, directory))
            at, end = directory.previous, begin
        found.reverse()
        return found

    def directory(self, at: int, end: int) -> Directory:
        """Reads one directory. Raises DamageError if it has changed."""
        frame = self._frame(at, end)
        if frame is None or frame.kind is not FrameKind.DIRECTORY or frame.end != end:
            raise self._damaged()
        try:
            return decode_directory(frame.body)
        except ValueError:
            raise self._damaged() from None

    def walk(self) -> Iterator[StoredTopic]:
        """Yields every topic of a snapshot without directories, which is verified first. Raises DamageError."""
        stored: StoredTopic | None = None
        for frame in read_snapshot(self._fs, self._layout, self.number)[1]:
            if frame.kind is FrameKind.TOPIC:
                if stored is not None:
                    yield stored
                stored = StoredTopic(frame, [])
            elif stored is not None:
                stored.tail.append(frame)
        if stored is not None:
            yield stored

    def topic(self, offset: int, size: int) -> StoredTopic:
        """Returns the frames of a topic that a directory names. Raises ValueError if they are missing or damaged."""
        data = self._read(offset, size)
        frames: list[Frame] = []
        at = 0
        while at < size:
            with named(self.path):
                found = read_frame(data, at)
            if not isinstance(found, Frame):
                raise ValueError(f"the bytes at {offset + at} of {self.path} are not a frame")
            frames.append(found)
            at = found.end
        if not frames or frames[0].kind is not FrameKind.TOPIC:
            raise ValueError(f"no topic at {offset} of {self.path}")
        return StoredTopic(frames[0], frames[1:])

    def state(self, offset: int) -> Frame:
        """Returns the first frame only: a topic without its tail."""
        found = self._frame(offset, self.size)
        if found is None or found.kind is not FrameKind.TOPIC:
            raise ValueError(f"no topic at {offset} of {self.path}")
        return found

    def state_body(self, offset: int, size: int) -> memoryview:
        """Returns the body of that frame, for lists: a page reads a hundred of them.

        `size` is the size of the whole topic.
        """
        data = self._read(offset, min(size, _PEEK_BYTES))
        length = int.from_bytes(data[4:8], "little")
        if len(data) < length <= size:
            data = self._read(offset, length)
        return read_body(data, 0, FrameKind.TOPIC)

    def _read(self, offset: int, size: int) -> memoryview:
        """Reads bytes of the file. Raises ValueError if the disk cannot read them."""
        try:
            return memoryview(self._file.read_at(offset, size))
        except OSError as error:
            if is_passing(error):
                raise
            raise ValueError(f"the disk cannot read it: {error.strerror or error}") from error

    def _frame(self, offset: int, end: int) -> Frame | None:
        """Returns the frame at an offset, if it is valid and ends no later than `end`; its offsets refer to the
        file."""
        try:
            length = int.from_bytes(self._read(offset + 4, 4), "little")
            data = self._read(offset, min(length, end - offset))
        except ValueError:
            return None
        with named(self.path):
            found = read_frame(data, 0)
        return found._replace(start=offset, end=offset + found.end) if isinstance(found, Frame) else None

    def _damaged(self) -> DamageError:
        """The error for a damaged snapshot, found by checking every frame."""
        try:
            read_snapshot(self._fs, self._layout, self.number)
        except DamageError as error:
            return error
        return DamageError([Finding(self.path, "the snapshot's directories do not tell what is in it")])
