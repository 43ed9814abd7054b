"""Replay of a shard's log, which distinguishes a torn tail from damage.

A crash may leave the end of the newest file in any shape: a frame cut short, zeros, garbage, or, where the machine
itself went down, holes with later frames behind them, because unsynced writes reach the disk in any order. Such a tail
is not read: none of it was acknowledged as durable, and the checkpoint that ends a recovery removes it. Everything else
is damage, which is always reported:

| at the place where the next frame should be | what it is |
|---|---|
| zeros or garbage, no valid frame behind | the end of the log, or a torn tail: not read |
| valid frames behind, one of which records that this place was synced | damage |
| valid frames behind, and the machine did not restart since | damage: the page cache cannot lose a write |
| valid frames behind, none records a sync, the machine restarted | an unsynced tail torn by a power cut: not read |
| anything but the next frame or the file's unused rest, while a later file is there | damage: a file is synced before |
| a file missing from the row of numbers, or a valid frame with another lsn | damage |
| a frame of an unknown kind or version whose checksum is right | a newer release wrote it: NewerFormatError |

Reading damaged snapshots: every frame that is still valid, and the gaps between them.

`log.snapshot_files` reads a chain for a start, and requires it to be complete. This reader accepts damaged chains: each
topic's state is a separate frame, so damage affects only topics whose frames it hit.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from topics.log.forward_frames import parts_of
from topics.log.frame import (
    OVERHEAD_BYTES,
    BadFrame,
    BlockParts,
    Frame,
    FrameKind,
    decode_block,
    find_frames,
    named,
    read_frame,
)
from topics.log.fs import FileSystem, UnreadableError, map_damaged, map_file, unreadable_range
from topics.log.layout import Layout, number_in, wal_file, wal_numbers
from topics.log.segment_files import SegmentKey
from topics.log.snapshot_files import (
    SnapshotHead,
    TopicState,
    decode_directory,
    decode_end,
    decode_head,
    decode_topic,
    encode_end,
    noted_newest,
    snapshot_numbers,
)
from topics.model.errors import Finding


class Tear(NamedTuple):
    """The position of a torn tail: everything from `offset` of file `number` on, and all later files, is not part of
    the log."""

    number: int
    offset: int
    reason: str
    frames_behind: int


class ShardEnd(NamedTuple):
    """The end of a shard's log."""

    next_lsn: int
    next_number: int
    """A file number that is unused, even by files after a torn tail."""
    tear: Tear | None
    frames: int


class LogDamaged(Exception):
    """The log has damage that no crash explains; `finding` has the position."""

    def __init__(self, finding: Finding, resume: tuple[int, int] | None) -> None:
        super().__init__(finding.what)
        self.finding = finding
        self.resume = resume
        """(file number, offset) of the first valid frame after the damage, for callers that recover the rest."""


class ShardReader:
    """Reads a shard's frames from a position on; `on_bytes` gets the number of bytes read, for progress."""

    def __init__(
        self, fs: FileSystem, folder: str, same_boot: bool, on_bytes: Callable[[int], None] = lambda count: None
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._same_boot = same_boot
        self._on_bytes = on_bytes

    def numbers(self) -> list[int]:
        try:
            names = self._fs.list_dir(self._folder)
        except FileNotFoundError:
            return []
        return wal_numbers(names)

    def secure(self) -> None:
        """Syncs the newest file; every other one was synced before the next was started."""
        for number in self.numbers()[-1:]:
            file = self._fs.open(wal_file(self._folder, number))
            try:
                file.sync()
            finally:
                file.close()

    def size_from(self, first_number: int) -> int:
        """Returns the maximum number of bytes of log, for progress."""
        total = 0
        for number in self.numbers():
            if number >= first_number:
                file = self._fs.open(wal_file(self._folder, number))
                total += file.size()
                file.close()
        return total

    def replay(self, first_number: int, first_lsn: int, apply: Callable[[Frame], None]) -> ShardEnd:
        """Passes every frame from `first_lsn` on to `apply`, in order."""
        expected, frames = first_lsn, 0
        numbers = [number for number in self.numbers() if number >= first_number]
        for place, number in enumerate(numbers):
            if number != first_number + place:
                finding = Finding(self._folder, f"log file {first_number + place} is missing")
                raise LogDamaged(finding, (number, 0))
            try:
                buffer = self._map(number)
            except UnreadableError as error:
                what = f"the log cannot be read: {error.strerror}"
                finding = Finding(wal_file(self._folder, number), what, byte_range=unreadable_range(error))
                raise LogDamaged(finding, None) from error
            offset = 0
            with named(wal_file(self._folder, number)):
                while isinstance(found := read_frame(buffer, offset), Frame) and found.lsn == expected:
                    if found.kind is FrameKind.FORWARDS:
                        for part in parts_of(found):
                            apply(part)
                    else:
                        apply(found)
                    expected, frames, offset = expected + 1, frames + 1, found.end
                    self._on_bytes(found.end - found.start)
                tear = self._judge(found, buffer, number, offset, expected, numbers[place + 1 :])
            if tear is not None:
                return ShardEnd(expected, numbers[-1] + 1, tear, frames)
        return ShardEnd(expected, first_number + len(numbers), None, frames)

    def _judge(
        self,
        found: Frame | BadFrame | None,
        buffer: memoryview,
        number: int,
        offset: int,
        expected: int,
        later: list[int],
    ) -> Tear | None:
        """Classifies the bytes at the position of frame `expected`; None if the log continues in the next file."""
        behind = list(find_frames(buffer, offset))
        if not behind and found is None and later and self._begins_with(later[0], expected):
            # The common case; scanning all later files for each file would take too long in a long log.
            return None
        if not behind and later:
            behind = self._first_frames(later)
            # A hole at the start of the next file is classified there: a power cut may tear that file's first write.
            if found is None and (not behind or behind[0].start > 0 or behind[0].lsn == expected):
                return None
        if not behind and not later:
            if found is None and not any(bytes(buffer[offset : offset + 64])):
                return None
            reason = found.reason if isinstance(found, BadFrame) else "bytes that are not a frame"
            return Tear(number, offset, reason, 0)
        what = _describe(found, expected)
        # A crash neither puts a valid frame into another's place nor damages a file that was synced before the next was
        # created.
        unexplained = self._same_boot or bool(later) or isinstance(found, Frame)
        if unexplained or max(frame.synced for frame in behind) >= expected:
            end = behind[0].start if behind and behind[0].start > offset else len(buffer)
            reported = "with valid frames behind it" if behind else "in a file that was finished"
            finding = Finding(wal_file(self._folder, number), f"{what}, {reported}", byte_range=(offset, end))
            resume = self._place_of(behind[0], buffer, number, later) if behind else (later[0], 0)
            raise LogDamaged(finding, resume)
        return Tear(number, offset, what, len(behind))

    def _begins_with(self, number: int, lsn: int) -> bool:
        with named(wal_file(self._folder, number)):
            first = read_frame(self._map(number), 0)
        return isinstance(first, Frame) and first.lsn == lsn

    def _first_frames(self, numbers: list[int]) -> list[Frame]:
        found: list[Frame] = []
        for number in numbers:
            with named(wal_file(self._folder, number)):
                found.extend(find_frames(self._map(number), 0))
        return found

    def _place_of(self, frame: Frame, buffer: memoryview, number: int, later: list[int]) -> tuple[int, int]:
        if any(frame is other or frame.lsn == other.lsn for other in find_frames(buffer, 0)):
            return number, frame.start
        return (later[0] if later else number), frame.start

    def _map(self, number: int) -> memoryview:
        return map_file(self._fs, wal_file(self._folder, number))


def _describe(found: Frame | BadFrame | None, expected: int) -> str:
    if isinstance(found, BadFrame):
        return f"{found.reason} where frame {expected} should be"
    if isinstance(found, Frame):
        return f"frame {found.lsn} where frame {expected} should be"
    return f"zeros where frame {expected} should be"


_END_BYTES = (OVERHEAD_BYTES + len(encode_end(0)), OVERHEAD_BYTES + len(encode_end(0, 1)))


class DamagedTopic(msgspec.Struct):
    """A topic in one snapshot: its state, unless it is lost, and the remaining blocks of its tail."""

    topic_id: int
    state: TopicState | None
    blocks: list[tuple[int, BlockParts]]
    """Blocks with their position in the tail, counted from the first remaining one if the state is lost."""


class Member:
    """One snapshot of the chain."""

    def __init__(self, fs: FileSystem, layout: Layout, number: int) -> None:
        self.number = number
        self.path = layout.snapshot(number)
        self.head: SnapshotHead | None = None
        self.findings: list[Finding] = []
        self.complete = False
        """Whether every topic of the snapshot is known to be readable."""
        self.lost_bytes: int | None = 0
        """The number of damaged bytes; None if the number of missing bytes is unknown."""
        self.frames = 0
        self._frames: list[tuple[int, FrameKind]] = []
        self._buffer = memoryview(b"")
        try:
            self._buffer = map_damaged(fs, self.path)
        except FileNotFoundError:
            self.findings.append(Finding(self.path, "a snapshot that is part of the state is missing"))
            self.lost_bytes = None
            return
        with named(self.path):
            self._read()

    @property
    def size(self) -> int:
        return len(self._buffer)

    def _read(self) -> None:
        offset, previous, topics, ended = 0, 0, 0, False
        span: list[Frame] = []
        while not ended:
            found = read_frame(self._buffer, offset)
            if not isinstance(found, Frame) or found.lsn <= previous:
                behind = next((f for f in find_frames(self._buffer, offset + 1) if f.lsn > previous), None)
                end = behind.start if behind is not None else len(self._buffer)
                reason = found.reason if isinstance(found, BadFrame) else "it ends before its end"
                whole = not self.findings
                self._damaged(f"the snapshot is damaged: {reason}", offset, end)
                if behind is None:
                    # Only the last frame is this short. Otherwise the length of the missing part is unknown.
                    self.complete = whole and end - offset in _END_BYTES
                    self.lost_bytes = self.lost_bytes if self.complete else None
                    return
                found = behind
            elif found.lsn != previous + 1:
                self._damaged("frames of the snapshot are missing", found.start, found.start)
            self._frames.append((found.start, found.kind))
            previous, offset = found.lsn, found.end
            topics += found.kind is FrameKind.TOPIC
            if found.kind is FrameKind.SNAPSHOT_HEAD:
                self._take_head(found)
            elif found.kind is FrameKind.TOPIC:
                span.append(found)
            elif found.kind is FrameKind.DIRECTORY:
                if not self.findings and not _proves_damage(found, span, self._buffer):
                    self._damaged("a directory does not tell what is in the snapshot", found.start, found.end)
                span = []
            elif found.kind is FrameKind.SNAPSHOT_END:
                ended, self.complete = True, decode_end(found.body) == topics
        self.frames = len(self._frames)
        if not self.complete and not self.findings:
            self._damaged("the snapshot does not match the count at its end", 0, len(self._buffer))

    def _take_head(self, frame: Frame) -> None:
        try:
            head = decode_head(frame.body)
        except ValueError as error:
            self._damaged(f"its head is malformed: {error}", frame.start, frame.end)
            return
        if head.number == self.number:
            self.head = head
        else:
            self._damaged("it is another snapshot than its name says", frame.start, frame.end)

    def _damaged(self, what: str, begin: int, end: int) -> None:
        self.findings.append(Finding(self.path, what, byte_range=(begin, end)))
        self.lost_bytes = (self.lost_bytes or 0) + end - begin

    def topics(self) -> Iterator[DamagedTopic]:
        """Yields everything that is readable, topic by topic in the order of the file."""
        current: DamagedTopic | None = None
        state_lsn = 0
        for start, kind in self._frames:
            if kind not in (FrameKind.TOPIC, FrameKind.APPEND):
                continue
            frame = read_frame(self._buffer, start)
            assert isinstance(frame, Frame)
            if kind is FrameKind.TOPIC or current is None or current.topic_id != frame.topic_id:
                if current is not None:
                    yield current
                current, state_lsn = DamagedTopic(frame.topic_id, None, []), frame.lsn
            try:
                if kind is FrameKind.TOPIC:
                    current.state = decode_topic(frame.body)
                else:
                    place = frame.lsn - state_lsn - (current.state is not None)
                    current.blocks.append((place, decode_block(frame.body)))
            except ValueError as error:
                self._damaged(f"a malformed frame: {error}", frame.start, frame.end)
                self.complete = self.complete and kind is not FrameKind.TOPIC
        if current is not None:
            yield current


def _proves_damage(frame: Frame, span: list[Frame], buffer: memoryview) -> bool:
    """Returns whether a directory agrees with the frames of the topics before it, because a start trusts it."""
    try:
        said = decode_directory(frame.body)
        states = {topic.start: (topic.topic_id, decode_topic(topic.body)) for topic in span}
    except ValueError:
        return False
    rows = zip(said.ids, said.names, said.live, said.live_bytes, strict=True)
    named = dict(zip(said.offsets, rows, strict=True))
    found = {at: (i, state.name, state.tail_live, state.tail_live_bytes) for at, (i, state) in states.items()}
    others = [at for at, _ in said.others]
    return (
        said.digest == xxh3_64_intdigest(buffer[said.begin : frame.start])
        and sorted([*named, *others]) == sorted(found)
        and all(found[at] == row for at, row in named.items())
    )


class Chain:
    """Returns the snapshots that make up the state, the full one first, as far as they exist."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self.findings: list[Finding] = []
        numbers = snapshot_numbers(fs, layout)
        noted = self._note(fs, layout)
        found = {number: Member(fs, layout, number) for number in numbers}
        heads = [member.head for member in found.values() if member.head is not None]
        heads += [noted] if noted is not None else []
        self.newest = max(heads, key=lambda head: head.number, default=None)
        """The head of the newest snapshot; None if no snapshot is readable."""
        named = [*self.newest.chain, self.newest.number] if self.newest is not None else []
        last = named[-1] if named else 0
        named += [number for number in numbers if number > last]
        self.members = [found.get(number) or Member(fs, layout, number) for number in named]
        self.replaced = [number for number in numbers if number not in named]
        """Snapshots that a newer one has replaced, left by a crash."""
        self.highest = max([*numbers, last])
        self.located = self.newest is not None and self.highest == self.newest.number
        """Whether the log position of the newest snapshot is known."""

    def _note(self, fs: FileSystem, layout: Layout) -> SnapshotHead | None:
        try:
            return noted_newest(fs, layout)
        except ValueError as error:
            self.findings.append(Finding(layout.newest, f"the note about the newest snapshot is damaged: {error}"))
            return None

    @property
    def empty(self) -> bool:
        return not self.members

    @property
    def complete(self) -> bool:
        """Whether it is certain that no topic's state is missing."""
        return all(member.complete for member in self.members)


# Files in a data folder that are not part of the state: leftovers of a crash, and unknown files.

_OWN = (
    ".topics.lock", "archive", "backup", "families", "machine", "meta", "near", "pipeline", "repair", "reserve",
    "restoring", "topics", "wal",
)  # fmt: skip
_OWN_META = ("catalog", "newest")


def find_orphans(fs: FileSystem, layout: Layout, chain: Chain, named: set[SegmentKey]) -> Iterator[tuple[str, str]]:
    """Returns the path and a description of each such file.

    None of them is damage, and the next start removes most of them.
    """
    for name in _names(fs, layout.root):
        if name not in _OWN and number_in(name, "damaged-", "") is None:
            yield f"{layout.root}/{name}", "it does not belong to the log"
    yield from _meta(fs, layout, chain)
    yield from _logs(fs, layout, chain)
    for cold in (False, True) if layout.cold_root is not None else (False,):
        yield from _segments(fs, layout, named, cold)


def _meta(fs: FileSystem, layout: Layout, chain: Chain) -> Iterator[tuple[str, str]]:
    for number in chain.replaced:
        yield layout.snapshot(number), "a newer snapshot has replaced it"
    for name in _names(fs, layout.meta):
        if name.endswith(".tmp"):
            yield f"{layout.meta}/{name}", "a snapshot that was never finished"
        elif (
            name not in _OWN_META
            and number_in(name, "snapshot-", ".bin") is None
            and number_in(name, "catalog-", "") is None
        ):
            yield f"{layout.meta}/{name}", "it does not belong to the log"


def _logs(fs: FileSystem, layout: Layout, chain: Chain) -> Iterator[tuple[str, str]]:
    positions = {p.shard: p.file for p in chain.newest.positions} if chain.newest is not None and chain.located else {}
    for folder in _names(fs, layout.wal):
        shard = number_in(folder, "shard-", "")
        if shard is None:
            yield f"{layout.wal}/{folder}", "it does not belong to the log"
            continue
        for name in _names(fs, layout.shard(shard)):
            number = number_in(name, "", ".wal")
            if number is None:
                yield f"{layout.shard(shard)}/{name}", "it does not belong to the log"
            elif number < positions.get(shard, 0):
                yield f"{layout.shard(shard)}/{name}", "a log file that the snapshots have absorbed"


def _segments(fs: FileSystem, layout: Layout, named: set[SegmentKey], cold: bool) -> Iterator[tuple[str, str]]:
    for folder in _names(fs, layout.topics(cold)):
        topic_id, path = topic_id_of(folder), f"{layout.topics(cold)}/{folder}"
        if topic_id is None:
            yield path, "it does not belong to the log"
            continue
        for name in _names(fs, path):
            first = number_in(name.removesuffix(".data").removesuffix(".idx"), "seg-", "")
            if first is None:
                yield f"{path}/{name}", "it does not belong to the log"
            elif SegmentKey(topic_id, first, cold) not in named:
                yield f"{path}/{name}", "a segment file that no snapshot names"


def topic_folders(fs: FileSystem, layout: Layout) -> set[int]:
    """Returns the numbers of all topics that have a folder in either tier."""
    tiers = (False, True) if layout.cold_root is not None else (False,)
    found = {topic_id_of(name) for cold in tiers for name in _names(fs, layout.topics(cold))}
    return {topic_id for topic_id in found if topic_id is not None}


def topic_id_of(folder: str) -> int | None:
    """Returns the topic number of a folder's name; None for any other name."""
    digits = len(folder) == 16 and all(digit in "0123456789abcdef" for digit in folder)
    return int(folder, 16) if digits else None


def _names(fs: FileSystem, folder: str) -> list[str]:
    try:
        return fs.list_dir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
