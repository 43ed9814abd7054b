"""Recovery: loads the newest snapshots, replays the log after them, then records losses of a crash.

First the log is synced: a killed process may have left writes in the page cache, and a power cut during the start must
not take back what a sealed segment or a removed file already relies on. Then recovery reads. The only files it writes
are segments that are sealed to bound memory, which no snapshot names yet. At the end one checkpoint makes the result
durable and removes the old log. Recovery is idempotent: cut short anywhere, it is run again.
"""

import contextlib
import logging
from collections.abc import Callable
from itertools import zip_longest
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from topics.engine.apply import grant, load_block, load_state
from topics.engine.checkpoint import ChainWeight
from topics.engine.core import EngineCore
from topics.engine.features import block_in
from topics.engine.housekeeping import drop_stale_copies, missing_near, topics_in_store
from topics.engine.quotas import SortedNames
from topics.engine.topic import Block, Topic
from topics.log.frame import (
    Frame,
    FrameKind,
    decode_block,
    decode_ceiling,
    decode_config_change,
    decode_delete,
    decode_evict,
)
from topics.log.fs import FileSystem, read_small, write_small
from topics.log.layout import Layout, number_in
from topics.log.replay import LogDamaged, ShardEnd, ShardReader, topic_id_of
from topics.log.segment_files import SegmentDamaged, SegmentKey
from topics.log.snapshot_files import (
    CLASSES,
    Directory,
    SnapshotFile,
    SnapshotHead,
    StoredTopic,
    WalPosition,
    decode_topic,
    noted_newest,
    snapshot_numbers,
)
from topics.model.errors import UNFINISHED_RESTORE, DamageError, Finding
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import Durability, decode_config
from topics.streams.stream_frames import creation_in
from topics.transactions.transaction_frames import decode_append, decode_committed

# The last run on a data folder: the small file `machine`.
#
#     BOOT RESERVE SINCE CHECK [stopped]
#                           the boot of its machine, how many seqs beyond what the disk knows it let topics give out
#                           (`engine.apply`), and the newest snapshot there was when it began to
#
# CHECK is the XXH3-64, in hexadecimal, of what is before it. The file has all of it twice, each copy padded to 256
# bytes: a damaged byte must not look like a restart of the machine, which would report losses that never happened. A
# copy whose CHECK is right counts.
#
# It is written before the first seq is assigned. A snapshot taken while none were assigned, at the end of a recovery or
# of a clean stop, records it (`SnapshotHead.quiet`): if it is younger than the run, nothing can be missing behind it.
# So neither a run without writes nor a clean stop leaves a hole in any topic's seqs.
#
# `stopped` is added where a clean stop could not take its last checkpoint, on a full disk for instance, while every log
# is synced to its end: then nothing that was logged can be missing either.
#
# A log that failed makes the boot unknown: the kernel may have dropped pages as after a power cut, so the next start
# must not reason that the machine kept running and nothing can be missing.

_NO_BOOT = "-"
_STOPPED = "stopped"
_WORDS = 4
_COPY_BYTES = 256
"""Each copy is padded with spaces, so that changes in place need no space."""


class LastRun(NamedTuple):
    boot_id: str
    reserve: int
    since: int
    """-1 if every assigned seq is in the snapshots."""
    stopped: bool = False
    """Whether it synced its log to the end and stopped."""

    def same_boot(self, boot_id: str) -> bool:
        """Whether the machine has not restarted since, so that its page cache has every write."""
        return bool(boot_id) and boot_id == self.boot_id

    def snapshots_have_all(self, newest: SnapshotHead | None) -> bool:
        """Whether every assigned seq is in the snapshots."""
        return newest is not None and newest.quiet and newest.number > self.since


def read_last_run(fs: FileSystem, layout: Layout) -> LastRun:
    text = read_small(fs, layout.machine)
    raw = [text[begin : begin + _COPY_BYTES].split() for begin in (0, _COPY_BYTES)]
    # A file that begins as an unknown boot was marked in place, which its checksum does not cover.
    marked = [words for words in raw if words and words[0].startswith(_NO_BOOT) and _is_complete(words)]
    proven = [words for words in raw if _is_complete(words) and words[3] == _checksum(" ".join(words[:3]))]
    if proven or marked:
        stopped = any(words[4:] == [_STOPPED] for words in proven or marked)
        if proven:
            return LastRun("" if marked else proven[0][0], int(proven[0][1]), int(proven[0][2]), stopped)
        return LastRun("", max(int(words[1]) for words in marked), max(int(words[2]) for words in marked), stopped)
    words = text.split(" ")
    if len(words) in (3, 4) and words[1].isdecimal() and words[2].isdecimal():
        # An earlier release wrote one copy without a checksum.
        boot = "" if words[0].startswith(_NO_BOOT) else words[0]
        return LastRun(boot, int(words[1]), int(words[2]), words[3:] == [_STOPPED])
    # A release that wrote nothing but the boot reserved seqs by frames alone.
    return LastRun(words[0], 0, -1)


def _is_complete(words: list[str]) -> bool:
    return len(words) > _WORDS - 1 and words[1].isdecimal() and words[2].isdecimal()


def _checksum(text: str) -> str:
    return f"{xxh3_64_intdigest(text.encode()):016x}"


def note_running(fs: FileSystem, layout: Layout, run: LastRun) -> None:
    text = f"{run.boot_id or _NO_BOOT} {run.reserve} {run.since}"
    copy = f"{text} {_checksum(text)}".ljust(_COPY_BYTES)
    write_small(fs, layout.machine, 2 * copy, layout.root)


def note_stopped(fs: FileSystem, layout: Layout) -> None:
    """In place: on a full disk there may be no room for another file. If it fails, the next start treats the stop as a
    crash."""
    with contextlib.suppress(OSError):
        text = read_small(fs, layout.machine)
        file = fs.open(layout.machine, write=True)
        try:
            for begin in (0, _COPY_BYTES):
                copy = text[begin : begin + _COPY_BYTES].rstrip()
                if len(copy.split()) == _WORDS:
                    file.write_at(begin + len(copy.encode()), f" {_STOPPED}".encode())
            file.sync()
        finally:
            file.close()


def note_distrust(fs: FileSystem, layout: Layout) -> None:
    """On a disk this bad the attempt may fail as well; then there is nothing more to be done from here."""
    with contextlib.suppress(OSError):
        try:
            file = fs.open(layout.machine, write=True)
            try:
                whole = bytearray(file.read_at(0, 2 * _COPY_BYTES))
                for begin in range(0, len(whole), _COPY_BYTES):
                    whole[begin : begin + 1] = _NO_BOOT.encode()
                file.write_at(0, bytes(whole))
                file.sync()
            finally:
                file.close()
        except OSError:
            fs.remove(layout.machine)
            fs.sync_dir(layout.root)


_log = logging.getLogger(__name__)


class Recovery:
    """Rebuilds the state of `EngineCore` from a data folder. The only files it writes are segments sealed to bound
    memory; no snapshot names them yet, so a start that is cut short leaves orphans and nothing else."""

    def __init__(
        self,
        core: EngineCore,
        fs: FileSystem,
        last: LastRun,
        boot_id: str,
        progress: Callable[[float], None],
    ) -> None:
        self._core = core
        self._fs = fs
        self._same_boot = last.same_boot(boot_id)
        self._last = last
        self._log_is_whole = last.stopped
        """Whether everything that was logged is on the disk, or in the snapshots."""
        self._snapshots_have_all = False
        """Whether every assigned seq is in the snapshots."""
        # Earlier seqs were bounded by the reserve of that run; later ones are bounded by this one.
        core.applier.reserve = last.reserve
        self._progress = progress
        self._positions: dict[int, WalPosition] = {}
        """The start of the log after the snapshots, by shard."""
        self._log_bytes = 0
        self._log_total = 1
        self._commits: set[int] | None = None
        """The ids of all committed transactions in the log, once needed."""
        self.chain: list[int] = []
        self.weight = ChainWeight()
        self.dropped: list[int] = []
        """The topics that the incremental snapshots removed."""
        self.ends: dict[int, ShardEnd] = {}
        self.changed = False
        """Returns whether there are changes that the snapshots do not have."""

    def run(self) -> None:
        self._check_nothing_vanished()
        head = self._load_snapshots()
        positions = {position.shard: position for position in head.positions} if head is not None else {}
        self._positions = positions
        for shard in self._shard_folders():
            ShardReader(self._fs, self._core.layout.shard(shard), self._same_boot).secure()
        # All of it before the first frame is read: progress never goes back.
        for shard in self._shard_folders():
            self._log_total += self._shard_reader(shard).size_from(self._position(shard).file)
        for shard in self._shard_folders():
            self._replay(shard, self._position(shard))
        for position in positions.values():
            self.ends.setdefault(position.shard, ShardEnd(position.lsn, position.file, None, 0))
        if head is not None and head.shard_count != len(self._core.shards):
            self.changed = True
        if not self._snapshots_have_all and self._last.since >= 0:
            # From now on it is quiet: every assigned seq was found or reported as lost.
            self.changed = True
        for topic in self._core.topics.values():
            self._reconcile(topic)
        # Topics restored from here on have lost nothing: they give out seqs by the reserve of this run, which is noted.
        self._core.applier.reserve = self._core.reserve
        self._name_topics()
        self._core.features.reconcile()
        self._core.count_all()
        self._check_segments()
        self._core.applier.overfull.clear()

    # Snapshots

    def _check_nothing_vanished(self) -> None:
        """Without the newest snapshot an older state would look complete, and newer files like garbage."""
        layout = self._core.layout
        if self._fs.exists(layout.repair_plan):
            raise DamageError([Finding(layout.repair_plan, "a repair was begun and not finished; run it again")])
        if self._fs.exists(layout.restoring) and not self._core.options.restoring:
            raise DamageError([Finding(layout.restoring, UNFINISHED_RESTORE)])
        try:
            noted = noted_newest(self._fs, layout)
        except ValueError:
            return  # It only repeats the contents of a snapshot; `verify` reports that it cannot be read.
        newest = max(snapshot_numbers(self._fs, layout), default=0)
        if noted is not None and newest < noted.number:
            raise DamageError([Finding(layout.snapshot(noted.number), "the newest snapshot is missing")])

    def _load_snapshots(self) -> SnapshotHead | None:
        numbers = snapshot_numbers(self._fs, self._core.layout)
        if not numbers:
            return None
        newest = self._open_snapshot(numbers[-1]).head()
        self._snapshots_have_all = self._last.snapshots_have_all(newest)
        self._log_is_whole = self._log_is_whole or self._snapshots_have_all
        self.chain = [*newest.chain, newest.number]
        gone: set[int] = set()
        doubtful: list[int] = []
        # The newest first, so that a topic is read once, and may stay in the snapshot until it is used.
        for number in reversed(self.chain):
            file = self._open_snapshot(number)
            found, reported, before = file.directories(), 0, self._known
            for at, end, directory in found:
                for offset, size in directory.others:
                    self._load_topic(file.topic(offset, size), gone)
                doubtful += self._leave(number, at, end, directory, gone)
                reported += len(directory.others) + len(directory.ids)
            for stored in file.walk() if not found else ():
                self._load_topic(stored, gone)
                reported += 1
            head = file.head()
            gone.update(head.dropped)
            self.weight.found(file.size, reported, self._known - before)
            self.dropped += head.dropped if head.chain else []
            if not found:
                self._core.pager.places.files.pop(number)
        for topic_id in doubtful if self._core.pager.needed else list(self._core.pager.names.values()):
            self._core.topic_at(topic_id)
        self._core.next_topic_id = newest.next_topic_id
        self._core.epochs.restore(newest.epoch_floor, newest.deleted_epochs, newest.next_topic_id)
        return newest

    @property
    def _known(self) -> int:
        """The topics found so far."""
        return len(self._core.topics) + len(self._core.pager.places.by_id)

    def _open_snapshot(self, number: int) -> SnapshotFile:
        files = self._core.pager.places.files
        if number not in files:
            files[number] = SnapshotFile(self._fs, self._core.layout, number)
        return files[number]

    def _leave(self, number: int, at: int, end: int, directory: Directory, gone: set[int]) -> list[int]:
        """Leaves the topics of a directory paged out; returns those that must be loaded before requests are taken."""
        core, ids = self._core, directory.ids
        places = core.pager.places
        known: set[int] = set()
        for others in (core.topics.keys(), places.by_id.keys(), gone):
            known |= others & set(ids) if not others.isdisjoint(ids) else set()
        taken = places.add(number, at, end, directory, known)
        core.pager.add_directory(directory, taken)
        if self._same_boot or self._log_is_whole:
            return []
        # After a power cut, class disk continues above all seqs that may have been assigned (`_reconcile`).
        chosen = set(taken)
        codes = zip(ids, directory.classes, strict=True)
        return [i for i, code in codes if i in chosen and Durability(CLASSES[code]).reserves_seqs]

    def _load_topic(self, stored: StoredTopic, gone: set[int]) -> None:
        core, topic_id = self._core, stored.state.topic_id
        if topic_id in core.topics or topic_id in core.pager.places.by_id or topic_id in gone:
            return
        state = decode_topic(stored.state.body)
        topic = load_state(state, core.applier.reserve, core.features)
        core.topics[topic.id] = topic
        if topic.config.durability is Durability.EPHEMERAL:
            # Now, and not when the log is through: it may hold a change to a class that loses nothing.
            self._lose_unlogged(topic, topic.head)
        for frame, flags in zip_longest(stored.tail, state.tail_flags[: len(stored.tail)], fillvalue=b""):
            assert isinstance(frame, Frame)
            load_block(topic, Block.of(decode_block(frame.body)), flags, core.reader)

    # The log

    def _shard_folders(self) -> list[int]:
        try:
            names = self._fs.list_dir(self._core.layout.wal)
        except FileNotFoundError:
            return []
        return sorted(number for name in names if (number := number_in(name, "shard-", "")) is not None)

    def _position(self, shard: int) -> WalPosition:
        return self._positions.get(shard, WalPosition(shard, 1, 1))

    def _shard_reader(self, shard: int) -> ShardReader:
        return ShardReader(self._fs, self._core.layout.shard(shard), self._same_boot, self._count)

    def _replay(self, shard: int, position: WalPosition) -> None:
        try:
            end = self._shard_reader(shard).replay(position.file, position.lsn, self._apply)
        except LogDamaged as damage:
            raise DamageError([damage.finding]) from damage
        self.ends[shard] = end
        if end.frames or end.tear is not None:
            self.changed = True
        if end.tear is not None:
            _log.warning(
                "torn log tail skipped",
                extra={"shard": shard, "file": end.tear.number, "offset": end.tear.offset, "why": end.tear.reason},
            )

    def walk_log(self, visit: Callable[[Frame], None]) -> None:
        """Yields every frame of the log after the snapshots without applying any."""
        for shard in self._shard_folders():
            position = self._positions.get(shard, WalPosition(shard, 1, 1))
            try:
                ShardReader(self._fs, self._core.layout.shard(shard), self._same_boot).replay(
                    position.file, position.lsn, visit
                )
            except LogDamaged as damage:
                raise DamageError([damage.finding]) from damage

    def lose(self, topic: Topic, first: int, last: int) -> None:
        self._core.applier.gap(topic, first, last, LossReason.CRASH)

    def _count(self, size: int) -> None:
        self._log_bytes += size
        self._progress(min(self._log_bytes / self._log_total, 1.0))

    def _apply(self, frame: Frame) -> None:
        core = self._core
        created = creation_in(frame)
        if created is not None:
            topic = Topic(frame.topic_id, created.name, created.epoch, decode_config(created.config), created.ts, True)
            grant(topic, core.applier.reserve)
            self._begin_topic(topic)
            core.epochs.note_created(created.epoch, created.ts)
            core.next_topic_id = max(core.next_topic_id, topic.id + 1)
        known = core.topic_at(frame.topic_id)
        if known is None:
            raise LogDamaged(
                Finding("wal", f"frame {frame.lsn} refers to topic {frame.topic_id}, which was never created"), None
            )
        try:
            apply = _APPLY.get(frame.kind)
            if apply is not None:
                apply(self, known, frame)
            else:
                core.features.replay(known, frame, self)
                block = block_in(frame.kind, frame.body)
                if block is not None:
                    self._append_block(known, block)
        except SegmentDamaged as damage:
            raise LogDamaged(Finding(damage.path, damage.reason, topic=known.name), None) from damage

    def _begin_topic(self, topic: Topic) -> None:
        """A topic was created; it has its name once everything is read."""
        self._core.topics[topic.id] = topic

    def _created(self, topic: Topic, frame: Frame) -> None:
        """Nothing else to do."""

    def _append(self, topic: Topic, frame: Frame) -> None:
        body = block_in(frame.kind, frame.body)
        assert body is not None
        self._append_block(topic, body)

    def _append_block(self, topic: Topic, body: memoryview) -> None:
        block = Block.of(decode_block(body))
        if block.first_seq != topic.head + 1:
            raise LogDamaged(
                Finding(
                    "wal", f"records {topic.head + 1} to {block.first_seq - 1} are missing",
                    seq_range=(topic.head + 1, block.first_seq - 1), topic=topic.name,
                ),
                None,
            )  # fmt: skip
        self._core.applier.append(topic, block)
        topic.next_base = block.next_base

    def _arrive(self, topic: Topic, frame: Frame) -> None:
        self._append(topic, frame)
        self._core.features.replay(topic, frame, self)

    def _append_if_committed(self, topic: Topic, frame: Frame) -> None:
        """Records of a transaction, which count where its commit is in the log, in whichever shard that is."""
        number, block = decode_append(frame.body)
        if self._is_committed(number):
            self._append_block(topic, block)
        else:
            self._skip_block(topic, block)

    def _is_committed(self, number: int) -> bool:
        if self._commits is None:
            self._commits = set()
            self.walk_log(self._note_commit)
        return number in self._commits

    def _note_commit(self, frame: Frame) -> None:
        if frame.kind is FrameKind.TXN_COMMIT:
            assert self._commits is not None
            self._commits.add(decode_committed(frame.body).number)

    def _skip_block(self, topic: Topic, body: memoryview) -> None:
        """These records were never visible, but later records may have the seqs after them."""
        block = Block.of(decode_block(body))
        self._core.applier.gap(topic, block.first_seq, block.last_seq, None)
        topic.next_base = block.next_base

    def _configure(self, topic: Topic, frame: Frame) -> None:
        head, config = decode_config_change(frame.body)
        self._core.applier.configure(topic, decode_config(config), head)

    def _drop(self, topic: Topic, frame: Frame) -> None:
        self._leave_out(topic)

    def _leave_out(self, topic: Topic) -> None:
        """A topic was deleted; where the checkpoint at the end adds to the snapshots, it has to record this."""
        core = self._core
        core.epochs.note_deleted(topic.name, topic.epoch)
        del core.topics[topic.id]
        if topic.id in core.pager.places.by_id:
            core.directory.resident.pop(topic.name, None)
            core.pager.forget(topic.id)
        if core.pager.indexed:
            core.dropped[0].append(topic.id)

    def _delete(self, topic: Topic, frame: Frame) -> None:
        before_seq, ranges = decode_delete(frame.body)
        self._core.applier.delete(topic, before_seq, ranges)

    def _evict(self, topic: Topic, frame: Frame) -> None:
        evicted, applier = decode_evict(frame.body), self._core.applier
        if evicted.complete:
            applier.complete(topic)
        elif evicted.expired:
            applier.expire(topic, evicted.floor)
        else:
            applier.evict(topic, evicted.floor)

    def _ceiling(self, topic: Topic, frame: Frame) -> None:
        topic.ceiling = max(topic.ceiling, decode_ceiling(frame.body))

    # Effects of a crash

    def _reconcile(self, topic: Topic) -> None:
        """Records lost seqs, and prepares the topic for writes."""
        core = self._core
        durability = topic.config.durability
        head = topic.head
        if durability is Durability.EPHEMERAL:
            # The log of a primary goes on at its head, whatever its ceiling is.
            known = self._snapshots_have_all or core.path.follows
            self._lose_unlogged(topic, head if known else max(head, topic.ceiling))
        elif durability.reserves_seqs and topic.ceiling > head and not (self._same_boot or self._log_is_whole):
            # Seqs up to the ceiling may have been assigned and lost. They are never assigned again, and reads report
            # them. While the machine kept running, the page cache kept every write, and nothing can be missing.
            core.applier.gap(topic, head + 1, topic.ceiling, LossReason.CRASH, 0)
            self.changed = True
        if topic.unlogged:
            topic.unlogged = False
            core.retention.enforce_caps(topic)
            self.changed = True
        core.retention.advance_earliest(topic)
        # The snapshots have this head, or get it before anything is given out.
        topic.ceiling = topic.ceiling_staged = 0
        grant(topic, core.reserve)
        topic.staged_head, topic.staged_ts = topic.head, topic.last_ts
        if topic.staged_config is not topic.config:
            topic.staged_config = topic.config
        topic.shard = core.shard_number(topic.id)

    def _lose_unlogged(self, topic: Topic, last: int) -> None:
        """Class ephemeral: records after the last segment, up to `last`, were in memory only."""
        first = max(
            topic.earliest,
            topic.segments[-1].last_seq + 1 if topic.segments else 0,
            topic.lost[-1].to_seq + 1 if topic.lost else 0,
        )
        if first <= last:
            self._core.applier.gap(topic, first, last, LossReason.CRASH, max(topic.head - first + 1, 0))
            self.changed = True
        if topic.keys is not None:
            # A retried append must not be answered with lost records.
            topic.keys = topic.keys.below(first)

    def _name_topics(self) -> None:
        """Registers the name of every topic; of two topics with one name, the younger gets it.

        A name is given out only while nobody has it. So the creation of the older one failed after its frame was in the
        log, where it could not be taken back, and the name was asked for again, in a shard that still took writes.
        """
        core = self._core
        for topic_id in sorted(core.topics):
            topic = core.topics[topic_id]
            other = core.directory.find(topic.name)
            if other is not None and other is not topic:
                _log.warning("failed topic creation skipped", extra={"topic": other.name})
                older, topic = sorted((topic, other), key=lambda one: one.id)
                self._leave_out(older)
                self.changed = True
            core.directory.add(topic)
        core.names = SortedNames([*core.directory.resident, *core.pager.names])

    def _check_segments(self) -> None:
        """Checks that every segment of the state exists. Its content is verified when it is read, or by verify."""
        core = self._core
        missing = []
        for topic in core.topics.values():
            for segment in topic.segments:
                path = core.store.path(SegmentKey(topic.id, segment.first_seq, segment.cold))
                if segment.blocks is not None:
                    continue  # Made out of the log just now and not written yet: the disk may be full, nothing is lost.
                if segment.cold and core.store.far is not None:
                    continue  # The store may be unreachable; required objects are fetched below.
                if segment.cold and core.layout.cold_root is None:
                    what = "it was moved to a cold folder, and none is set now"
                elif not all(self._fs.exists(path + ending) for ending in (".data", ".idx")):
                    what = "the segment's files are missing"
                else:
                    continue
                seqs = (segment.first_seq, segment.last_seq)
                missing.append(Finding(path, what, seq_range=seqs, topic=topic.name))
        missing += missing_near(core)
        missing += self._unknown_topics()
        if missing:
            raise DamageError(missing)

    def _unknown_topics(self) -> list[Finding]:
        """Topics with files but without a creation: the snapshots and the log are lost, not the topics.

        A topic's creation is on disk before its first segment is written. Without this check a data folder that lost
        its `meta` would start empty and remove every segment as an orphan.
        """
        core, found = self._core, []
        for cold in (False, True) if core.layout.cold_root is not None else (False,):
            folder = core.layout.topics(cold)
            if cold and core.store.far is not None:
                names = topics_in_store(core, self._fs)
            else:
                names = self._fs.list_dir(folder) if self._fs.exists(folder) else []
            for name in names:
                if (topic_id_of(name) or 0) >= core.next_topic_id:
                    what = "a topic's segments, of which neither the snapshots nor the log know"
                    found.append(Finding(f"{folder}/{name}", what))
        return found


_APPLY: dict[FrameKind, Callable[[Recovery, Topic, Frame], None]] = {
    FrameKind.CREATE: Recovery._created,
    FrameKind.APPEND: Recovery._append,
    FrameKind.ARRIVAL: Recovery._arrive,
    FrameKind.CONFIG: Recovery._configure,
    FrameKind.DROP: Recovery._drop,
    FrameKind.DELETE: Recovery._delete,
    FrameKind.EVICT: Recovery._evict,
    FrameKind.CEILING: Recovery._ceiling,
    FrameKind.TXN_STAGE: Recovery._arrive,
    FrameKind.TXN_APPEND: Recovery._append_if_committed,
}


def remove_orphans(core: EngineCore, fs: FileSystem) -> int:
    """Removes unreferenced segment files, which a crash during sealing, relocation or deletion left behind.

    An object store is tidied up later (`engine.housekeeping`).
    """
    removed = 0
    drop_stale_copies(core)
    has_cold_folder = core.layout.cold_root is not None and core.store.far is None
    named = {
        (topic.id, segment.first_seq, segment.cold) for topic in core.topics.values() for segment in topic.segments
    }
    for cold in (False, True) if has_cold_folder else (False,):
        try:
            folders = fs.list_dir(core.layout.topics(cold))
        except FileNotFoundError:
            continue
        for folder in folders:
            topic_id, path = topic_id_of(folder), f"{core.layout.topics(cold)}/{folder}"
            if topic_id is None:
                continue
            try:
                found = fs.list_dir(path)
            except NotADirectoryError:
                continue
            # Files with other names are unknown and stay.
            names = {name: number_in(name.rsplit(".", 1)[0], "seg-", "") for name in found}
            unnamed = [name for name, first in names.items() if first and (topic_id, first, cold) not in named]
            for name in unnamed:
                fs.remove(f"{path}/{name}")
            removed += len(unnamed)
            if topic_id not in core.topics and len(unnamed) == len(names):
                fs.remove_dir(path)
    return removed
