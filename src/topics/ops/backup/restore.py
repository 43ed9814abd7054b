"""Restore: builds a new data folder from a backup, and opens it with an engine to check it.

1. the file `restoring` is created in the new folder; while it exists, no server starts;
2. every file is copied, checked against its checksum: the segments with the delete flags they had, the chain of
   snapshots folded into one that has them all in the folder itself, and the log as far as it is wanted;
3. an engine recovers from it, just as after a crash. Topics that nobody asked for go, seqs that others may have seen
   beyond what is there are told as lost, and one checkpoint makes all of that count;
4. `restoring` goes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from topics.engine.apply import grant
from topics.engine.core import EngineCore, EngineOptions
from topics.engine.engine import Engine
from topics.engine.features import block_in
from topics.engine.recovery import LastRun, note_running, note_stopped
from topics.engine.results import DropResult
from topics.engine.topic import Topic
from topics.log.forward_frames import parts_of
from topics.log.frame import Frame, FrameKind, decode_block, read_frame
from topics.log.fs import BytesLike, FileSystem, write_checked
from topics.log.layout import RESTORED, Layout, is_object_store, wal_file
from topics.log.posix import PosixFileSystem
from topics.log.snapshot_files import SnapshotWriter, encode_topic, note_newest
from topics.model.errors import BackupTargetError, DamagedBackupError, InvalidRequestError, TopicsError, quoted
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import (
    INTERNAL_TOPICS,
    SERVER_TOPICS,
    Durability,
    check_stream_name,
    check_topic_name,
    is_reserved_name,
)
from topics.ops.backup.backup_store import (
    BackupPlace,
    KeptSegment,
    LogPart,
    Manifest,
    damages,
    fold_snapshots,
    log_part,
)
from topics.routers.router_frames import decode_forward
from topics.streams.stream_frames import PART_NAME as STREAM
from topics.streams.stream_state import stream_of
from topics.system.clock import Clock
from topics.system.entropy import Entropy

# Selection of a backup, and of the part of the log after it, for the requested state.


class Target(NamedTuple):
    base: Manifest
    log: list[LogPart]
    """The log after it, as far as the requested state needs it."""
    until: int | None
    """Frames with a later time are ignored; None uses all of the log."""


def newest_of(place: BackupPlace, manifests: list[Manifest]) -> Target:
    """Selects the newest backup and the shipped log after it."""
    if not manifests:
        raise BackupTargetError("the storage has no backup")
    return _behind(place, manifests, manifests[-1])


def numbered(manifests: list[Manifest], number: int) -> Target:
    for manifest in manifests:
        if manifest.number == number:
            return Target(manifest, [], None)
    known = ", ".join(str(manifest.number) for manifest in manifests) or "none"
    raise BackupTargetError(f"backup {number} does not exist. Existing backups: {known}")


def at_moment(place: BackupPlace, manifests: list[Manifest], moment: int) -> Target:
    """Selects the newest state without changes after a time."""
    base = next((manifest for manifest in reversed(manifests) if manifest.moment <= moment), None)
    if base is None:
        oldest = manifests[0].moment if manifests else None
        what = "the storage has no backup" if oldest is None else f"the oldest backup has everything up to {oldest}"
        raise BackupTargetError(f"no backup is as old as {moment}: {what}")
    behind = _behind(place, manifests, base)
    return behind._replace(until=moment if behind.until is None else min(moment, behind.until))


def at_seq_of(place: BackupPlace, manifests: list[Manifest], name: str, seq: int) -> Target:
    """Selects the newest state in which a topic has no higher seq than this."""
    topic_id: int | None = None
    oldest = 0
    for manifest in reversed(manifests):
        # A topic of this name that was deleted before is another topic.
        states = [s for s in place.states(manifest) if s.name == name and topic_id in (None, s.topic_id)]
        found = states[0] if states else None
        if found is not None:
            topic_id, oldest = found.topic_id, found.head
        if topic_id is not None and (found is None or found.head <= seq):
            return _before_seq(place, manifests, manifest, topic_id, seq)
    if topic_id is None:
        raise BackupTargetError(f"no backup has a topic {name}")
    raise BackupTargetError(f"every backup has {name} beyond seq {seq}; the oldest up to {oldest}")


def _before_seq(place: BackupPlace, manifests: list[Manifest], base: Manifest, topic_id: int, seq: int) -> Target:
    behind = _behind(place, manifests, base)
    for kept in behind.log:
        for frame in frames_of(place.read_log(kept)):
            if behind.until is not None and frame.moment > behind.until:
                break
            if any(part.topic_id == topic_id and _last_seq(part) > seq for part in parts_of(frame)):
                # Frames of the same millisecond in other shards may depend on this one.
                return behind._replace(until=frame.moment - 1)
    return behind


def _behind(place: BackupPlace, manifests: list[Manifest], base: Manifest) -> Target:
    """Returns a backup with all of the log after it: from the next backup, or as shipped so far."""
    following = next((manifest for manifest in manifests if manifest.before == base.number), None)
    if following is not None:
        return Target(base, [log_part(kept) for kept in following.log], None)
    shipped = place.shipped(base) if base is manifests[-1] else None
    if shipped is None:
        return Target(base, [], None)
    if shipped.damaged:
        raise DamagedBackupError([(damage.name, damage.why) for damage in shipped.damaged])
    return Target(base, shipped.parts, shipped.moment)


def frames_of(data: memoryview) -> Iterator[Frame]:
    """Yields the frames of a log file of a backup."""
    end = 0
    while isinstance(found := read_frame(data, end), Frame):
        yield found
        end = found.end


def _last_seq(frame: Frame) -> int:
    if frame.kind is FrameKind.FORWARD:
        return decode_forward(frame.body).last_seq
    body = block_in(frame.kind, frame.body)
    if body is None:
        return 0
    block = decode_block(body)
    return block.first_seq + block.count - 1


# Selection and renaming of topics of a backup.


class RequestedTopics(NamedTuple):
    """The selected topics; all if neither names nor prefixes are given."""

    names: Sequence[str] = ()
    prefixes: Sequence[str] = ()
    rename: tuple[str, str] | None = None
    """The prefix of names that is replaced, and its replacement."""

    def takes(self, name: str) -> bool:
        if not self.names and not self.prefixes:
            return True
        return name in self.names or any(name.startswith(prefix) for prefix in self.prefixes)

    def keeps(self, name: str) -> bool:
        """Returns whether a topic is restored; system topics always are."""
        return name in SERVER_TOPICS or self.takes(name)

    def named(self, name: str) -> str:
        if self.rename is None or not name.startswith(self.rename[0]):
            return name
        return self.rename[1] + name.removeprefix(self.rename[0])

    def check(self, found: Iterable[tuple[str, bool]]) -> None:
        """Checks that these topics can have their new names.

        Each is given with whether it is a stream, for which more names are valid. Raises BackupTargetError.
        """
        taken: set[str] = set()
        for name, is_stream in found if self.rename is not None else ():
            new = name if name in SERVER_TOPICS else self.named(name)
            if new in taken:
                raise BackupTargetError(f"two topics would have the name {quoted(new)}")
            taken.add(new)
            if new != name:
                _check_name(new, is_stream)

    def dead_letter(self, queue: str, name: str) -> str:
        """Returns the new name of the dead-letter topic of a renamed queue."""
        new = self.named(name)
        if new == queue:
            raise BackupTargetError(f"{quoted(queue)} would be its own dead letter topic")
        if new != name:
            _check_name(new, is_stream=False)
        return new


ALL = RequestedTopics()


def _check_name(name: str, is_stream: bool) -> None:
    try:
        if not is_stream:
            check_topic_name(name)
            return
        check_stream_name(name)
    except InvalidRequestError as error:
        raise BackupTargetError(error.message) from error
    if is_reserved_name(name):
        raise BackupTargetError(f"{quoted(name)} is a reserved name: no stream can have it")


class RestoredTopic(msgspec.Struct, frozen=True):
    topic: str
    head_seq: int
    records: int
    lost_from: int | None = None
    lost_to: int | None = None
    """Seqs that are reported as lost, because the old server may have assigned them after the restored state."""


class Restored(msgspec.Struct, frozen=True):
    """The result of a restore."""

    backup: int
    lineage: str
    moment: int
    """The last restored change was logged at or before this time."""
    excluded_frames: int
    """Later changes in the backups that were not requested."""
    topics: list[RestoredTopic]


_COPIES = 8
"""Segments that are copied at once; fakes of tests have no locks."""


class Restore:
    """One restore into a folder that does not exist or is empty."""

    def __init__(
        self, place: BackupPlace, fs: FileSystem, layout: Layout, progress: Callable[[int], None] = lambda count: None
    ) -> None:
        """`progress` gets the number of copied bytes."""
        self._place = place
        self._fs = fs
        self._layout = layout
        self._progress = progress
        self._moment = 0
        self._excluded = 0

    def copy(self, target: Target, requested: RequestedTopics = ALL, checks_first: bool = True) -> None:
        """Steps 1 and 2.

        With `checks_first` all files are read twice: a damaged backup is refused before anything is written. Otherwise
        it fails when the damaged file is copied. Invalid names are refused first, as far as the backup has them.
        """
        log = [part.kept for part in target.log if part.kept is not None]
        found = damages(self._place, [*target.base.files(), *log]) if checks_first else []
        if found:
            raise DamagedBackupError([(damage.name, damage.why) for damage in found])
        if requested.rename is not None:
            states = self._place.states(target.base)
            requested.check([(state.name, STREAM in state.parts) for state in states if requested.keeps(state.name)])
        layout = self._layout
        if self._fs.exists(layout.root) and self._fs.list_dir(layout.root):
            raise BackupTargetError(f"{layout.root} is not empty; restore into a new folder")
        for folder in (layout.root, layout.meta, layout.wal, layout.topics()):
            self._fs.make_dirs(folder)
        self._write(layout.restoring, [b"see topics backup restore\n"])
        self._fs.sync_dir(layout.root)
        self._moment = target.base.moment
        # Copied first, because the log after the newest backup is soon replaced by a longer one.
        self._copy_log(target)
        self._copy_segments(target.base.segments)
        for topic_id in {segment.topic_id for segment in target.base.segments}:
            self._fs.sync_dir(layout.topic(topic_id))
        self._fold(target.base)
        # Everything that the last server assigned is copied or not requested, so a crash lost nothing.
        note_running(self._fs, layout, LastRun("", 0, target.base.number))
        note_stopped(self._fs, layout)

    def finish(
        self,
        target: Target,
        requested: RequestedTopics,
        gap: int,
        options: EngineOptions,
        clock: Clock,
        entropy: Entropy,
        reason: LossReason = LossReason.RESTORED,
    ) -> Restored:
        """Steps 3 and 4. `reason` is reported to readers of the skipped seqs."""
        options = msgspec.structs.replace(options, restoring=True, backup_dir=None)
        engine = Engine.recover(self._fs, options, clock, entropy)
        if reason is LossReason.FAILOVER:
            _defer_keys(engine, self._moment)
        topics = _finalize(engine, requested, gap, reason)
        engine.close_inline()
        if requested == ALL:
            # It replaces the lost folder, and continues its archive.
            self._fs.make_dirs(self._layout.pipeline)
            write_checked(self._fs, self._layout.pipeline_history, RESTORED)
        self._fs.remove(self._layout.restoring)
        self._fs.sync_dir(self._layout.root)
        return Restored(target.base.number, self._place.lineage, self._moment, self._excluded, topics)

    def _copy_segments(self, segments: Sequence[KeptSegment]) -> None:
        if not (is_object_store(self._place.root) or isinstance(self._fs, PosixFileSystem)):
            for segment in segments:
                self._copy_segment(segment)
            return
        with ThreadPoolExecutor(_COPIES, "restore") as pool:
            for _ in pool.map(self._copy_segment, segments):
                pass  # Raises the error of the first one that failed.

    def _copy_segment(self, segment: KeptSegment) -> None:
        self._fs.make_dirs(self._layout.topic(segment.topic_id))
        path = self._layout.segment(segment.topic_id, segment.first_seq)
        flags = bytes(segment.count) if segment.flags is None else self._place.read(segment.flags)
        self._write(path + ".data", [self._place.read(segment.data), flags])
        self._write(path + ".idx", [self._place.read(segment.index)])

    def _fold(self, manifest: Manifest) -> None:
        """Writes one snapshot instead of a chain, with every segment in the data folder."""
        for kept in manifest.snapshots:
            number = int(kept.name.removeprefix("snapshots/").removesuffix(".bin"))
            self._write(self._layout.snapshot(number), [self._place.read(kept)])
        folded = fold_snapshots(self._fs, self._layout, manifest.number)
        head = msgspec.structs.replace(folded.head, number=manifest.number + 1, chain=[], dropped=[])
        writer = SnapshotWriter(self._fs, self._layout, head)
        try:
            for topic_id, (state, tail) in folded.topics.items():
                segments = [msgspec.structs.replace(segment, cold=False) for segment in state.segments]
                writer.add(FrameKind.TOPIC, topic_id, encode_topic(msgspec.structs.replace(state, segments=segments)))
                for block in tail:
                    writer.add(FrameKind.APPEND, topic_id, b"", bytes(block))
            writer.finish()
        finally:
            writer.close()
        for number in (*folded.head.chain, manifest.number):
            self._fs.remove(self._layout.snapshot(number))
        note_newest(self._fs, self._layout, head)
        self._fs.sync_dir(self._layout.meta)

    def _copy_log(self, target: Target) -> None:
        """Writes each shard's log up to the first frame that is not requested."""
        cut: set[int] = set()
        files: dict[tuple[int, int], list[memoryview]] = {}
        self._place.read_ahead(dict.fromkeys(part.name for part in target.log if part.kept is None))
        for part in target.log:
            data, end = self._place.read_log(part), 0
            for frame in frames_of(data):
                if part.shard in cut or (target.until is not None and frame.moment > target.until):
                    cut.add(part.shard)
                    self._excluded += 1
                else:
                    end, self._moment = frame.end, max(self._moment, frame.moment)
            if end:
                files.setdefault((part.shard, part.number), []).append(data[:end])
        for (shard, number), pieces in files.items():
            folder = self._layout.shard(shard)
            self._fs.make_dirs(folder)
            self._write(wal_file(folder, number), pieces)
            self._fs.sync_dir(folder)

    def _write(self, path: str, pieces: Sequence[BytesLike]) -> None:
        file = self._fs.open(path, create=True)
        try:
            file.write_whole(pieces)
            file.sync()
        finally:
            file.close()
        self._progress(sum(map(len, pieces)))


def _defer_keys(engine: Engine, moment: int) -> None:
    """Continues the windows of idempotency keys at a server whose clock may be ahead of the last one's, which read
    `moment` last: no key expires early, and none earlier than if nobody had been the primary in between."""
    now = engine.core.wall()
    for topic in engine.core.topics.values():
        if topic.keys is not None and now > moment:
            topic.keys.defer(now - moment, now)


def _finalize(engine: Engine, requested: RequestedTopics, gap: int, reason: LossReason) -> list[RestoredTopic]:
    core = engine.core
    for name in [topic.name for topic in core.topics.values()]:
        if not requested.keeps(name):
            engine.drop_topic(name, False, _check_done)
    requested.check([(topic.name, stream_of(topic) is not None) for topic in core.topics.values()])
    restored = []
    if reason is LossReason.FAILOVER:
        # Topics that were not shipped had ids, which are their epochs.
        core.next_topic_id += gap
    for topic in sorted(core.topics.values(), key=lambda topic: topic.name):
        head = topic.head
        lost: tuple[int, int] | tuple[None, None] = (None, None)
        # No client has a cursor in a system topic. After a takeover, class `remote` has everything that was visible.
        skips = reason is not LossReason.FAILOVER or topic.config.durability is not Durability.REMOTE
        if gap and skips and topic.name not in INTERNAL_TOPICS:
            core.applier.gap(topic, head + 1, head + gap, reason)
            topic.staged_head, topic.ceiling, topic.ceiling_staged = topic.head, 0, 0
            grant(topic, core.reserve)
            lost = (head + 1, head + gap)
        if requested.rename is not None and topic.name not in SERVER_TOPICS:
            _rename(core, topic, requested)
        core.dirty[topic.shard].add(topic)
        restored.append(RestoredTopic(topic.name, head, topic.live_count, *lost))
    return restored


def _rename(core: EngineCore, topic: Topic, requested: RequestedTopics) -> None:
    """Routers refer to topics by id; a queue refers to its dead-letter topic by name."""
    core.rename(topic, requested.named(topic.name))
    name = topic.config.dead_letter
    if name is not None:
        found = requested.dead_letter(topic.name, name)
        core.applier.configure(topic, msgspec.structs.replace(topic.config, dead_letter=found), topic.head)


def _check_done(outcome: DropResult | TopicsError) -> None:
    """An engine without a loop has answered when it returns."""
    if isinstance(outcome, TopicsError):
        raise outcome
