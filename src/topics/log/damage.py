"""Reading damaged snapshots: every frame that is still valid, and what is missing between them.

`log.snapshot_files` reads a chain that must be whole, for starting. Here nothing is refused: each topic's state is a
frame of its own, so damage costs the topics whose frames it hit and no others.
"""

from collections.abc import Iterator

import msgspec
from xxhash import xxh3_64_intdigest

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
from topics.log.fs import FileSystem
from topics.log.layout import Layout, number_in
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

_END_BYTES = (OVERHEAD_BYTES + len(encode_end(0)), OVERHEAD_BYTES + len(encode_end(0, 1)))


class DamagedTopic(msgspec.Struct):
    """A topic in one snapshot: its state, unless that is lost, and those blocks of its tail that are left."""

    topic_id: int
    state: TopicState | None
    blocks: list[tuple[int, BlockParts]]
    """Each with its place in the tail; counted from the first that is left where the state is lost."""


class Member:
    """One snapshot of the chain."""

    def __init__(self, fs: FileSystem, layout: Layout, number: int) -> None:
        self.number = number
        self.path = layout.snapshot(number)
        self.head: SnapshotHead | None = None
        self.findings: list[Finding] = []
        self.complete = False
        """Whether every topic that was in it is known to be still there."""
        self.lost_bytes: int | None = 0
        """How many bytes of it are damaged; None when nobody knows how many are missing."""
        self.frames = 0
        self._frames: list[tuple[int, FrameKind]] = []
        self._buffer = memoryview(b"")
        try:
            file = fs.open(self.path)
        except FileNotFoundError:
            self.findings.append(Finding(self.path, "a snapshot that is part of the state is missing"))
            self.lost_bytes = None
            return
        try:
            self._buffer = file.map()
        finally:
            file.close()
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
                    # Nothing but the last frame is as short as that. Otherwise nobody knows how much was cut off.
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
            self._damaged("the snapshot does not hold what its end says", 0, len(self._buffer))

    def _take_head(self, frame: Frame) -> None:
        try:
            head = decode_head(frame.body)
        except ValueError as error:
            self._damaged(f"its head makes no sense: {error}", frame.start, frame.end)
            return
        if head.number == self.number:
            self.head = head
        else:
            self._damaged("it is another snapshot than its name says", frame.start, frame.end)

    def _damaged(self, what: str, begin: int, end: int) -> None:
        self.findings.append(Finding(self.path, what, byte_range=(begin, end)))
        self.lost_bytes = (self.lost_bytes or 0) + end - begin

    def topics(self) -> Iterator[DamagedTopic]:
        """Everything that is left, topic by topic in the order of the file."""
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
                self._damaged(f"a frame that makes no sense: {error}", frame.start, frame.end)
                self.complete = self.complete and kind is not FrameKind.TOPIC
        if current is not None:
            yield current


def _proves_damage(frame: Frame, span: list[Frame], buffer: memoryview) -> bool:
    """Whether a directory says of the topics before it what their frames say: a start takes its word for it."""
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
    """The snapshots that make up the state, the full one first, as far as they can be found."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self.findings: list[Finding] = []
        numbers = snapshot_numbers(fs, layout)
        noted = self._note(fs, layout)
        found = {number: Member(fs, layout, number) for number in numbers}
        heads = [member.head for member in found.values() if member.head is not None]
        heads += [noted] if noted is not None else []
        self.newest = max(heads, key=lambda head: head.number, default=None)
        """The head of the newest snapshot; None when no snapshot can be read."""
        named = [*self.newest.chain, self.newest.number] if self.newest is not None else []
        last = named[-1] if named else 0
        named += [number for number in numbers if number > last]
        self.members = [found.get(number) or Member(fs, layout, number) for number in named]
        self.replaced = [number for number in numbers if number not in named]
        """Snapshots that a newer one has replaced; a crash left them."""
        self.highest = max([*numbers, last])
        self.located = self.newest is not None and self.highest == self.newest.number
        """Whether it is known where in the log the newest snapshot stands."""

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
        """Whether no topic's state can be missing."""
        return all(member.complete for member in self.members)


# Files in a data folder that are no part of the state: what a crash left, and what does not belong there.

_OWN = (
    ".topics.lock", "archive", "backup", "families", "machine", "meta", "near", "pipeline", "repair", "reserve",
    "restoring", "topics", "wal",
)  # fmt: skip
_OWN_META = ("catalog", "newest")


def find_orphans(fs: FileSystem, layout: Layout, chain: Chain, named: set[SegmentKey]) -> Iterator[tuple[str, str]]:
    """Each such file's path and what it is. None of them is damage, and the next start removes most of them."""
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
        elif name not in _OWN_META and number_in(name, "snapshot-", ".bin") is None:
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
    """The numbers of all topics that have a folder, in either tier."""
    tiers = (False, True) if layout.cold_root is not None else (False,)
    found = {topic_id_of(name) for cold in tiers for name in _names(fs, layout.topics(cold))}
    return {topic_id for topic_id in found if topic_id is not None}


def topic_id_of(folder: str) -> int | None:
    """The number of the topic that a folder's name stands for; None for any other name."""
    digits = len(folder) == 16 and all(digit in "0123456789abcdef" for digit in folder)
    return int(folder, 16) if digits else None


def _names(fs: FileSystem, folder: str) -> list[str]:
    try:
        return fs.list_dir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
