"""Verification of a data folder: finds damage, changes nothing.

It reads everything that a start reads, and checks everything that a start trusts: the snapshots and the invariants of
their states, every frame of the log, every chunk, row, tag and flag of every segment. Effects of a crash, such as a
torn tail or unreferenced files, are notes and not damage.
"""

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import msgspec
from xxhash import xxh3_64_intdigest

from topics.consumers.consumer_state import PART_NAME as CONSUMERS_PART
from topics.consumers.consumer_state import decode_part as decode_consumers
from topics.engine.topic import live_ranges
from topics.log.frame import BlockParts, Frame, named
from topics.log.fs import FileSystem, map_damaged
from topics.log.layout import Layout, number_in, wal_file
from topics.log.replay import Chain, find_orphans, topic_folders
from topics.log.segment import DELETED, SegmentHead
from topics.log.segment_files import SegmentKey
from topics.log.snapshot_files import SegmentState, TopicState, WalPosition
from topics.model.errors import UNFINISHED_RESTORE, Finding, FolderBusyError, quoted
from topics.model.settings import SettingsError
from topics.model.topic_config import decode_config, is_own_name, is_topic_name
from topics.ops.verify.log_check import Account, Hole, LogChecker, LogWalker
from topics.ops.verify.segment_check import SegmentImage, Trouble
from topics.queues.queue_frames import PART_NAME, decode_part
from topics.streams.stream_frames import PART_NAME as STREAM
from topics.transactions.transaction_frames import PART_NAME as TRANSACTIONS_PART
from topics.transactions.transaction_frames import decode_part as decode_transactions
from topics.wire.record_slicing import payload_sizes

# Reports of `topics verify` and `topics repair`: plain values for people and programs alike.


class Report(msgspec.Struct, kw_only=True):
    """The findings of a verification. `findings` is damage; `notes` are effects of a crash and unused files."""

    folder: str
    topics: int = 0
    segments: int = 0
    records: int = 0
    frames: int = 0
    bytes_checked: int = 0
    findings: list[Finding] = []
    notes: list[Finding] = []

    @property
    def sound(self) -> bool:
        return not self.findings


class Loss(msgspec.Struct, frozen=True):
    """Lost records. Readers that pass them get a tombstone from now on."""

    topic: str
    from_seq: int
    to_seq: int
    sure: bool
    """False if the damage hides whether there were any; then the range is the maximum."""


class RepairReport(msgspec.Struct, kw_only=True):
    """The changes of a repair, made or planned."""

    folder: str
    dry_run: bool = False
    found: Report
    losses: list[Loss] = []
    actions: list[str] = []
    """Changes, and losses that could not be repaired, one sentence each."""
    moved: list[str] = []
    """The unused files, as they were found."""
    moved_to: list[str] = []
    """The folders that contain them."""
    after: Report | None = None
    """The verification of the repaired folder; None if nothing was changed."""

    @property
    def sound(self) -> bool:
        return self.after.sound if self.after is not None else self.found.sound


def relative(layout: Layout, path: str) -> str:
    """Returns a path for reports: relative to the data folder, or in full in the cold tier."""
    return path.removeprefix(layout.root + "/")


OnBytes = Callable[[int], None]


class Verification:
    """One verification. A repair also uses its findings that are not in the report."""

    def __init__(self, fs: FileSystem, layout: Layout, same_boot: bool, on_bytes: OnBytes = lambda count: None) -> None:
        self._fs = fs
        self._layout = layout
        self.same_boot = same_boot
        self._on_bytes = on_bytes
        self.chain = Chain(fs, layout)
        self.states: dict[int, TopicState] = {}
        self.report = Report(folder=layout.root)
        self.ledger = LogChecker({}, self._found)
        self.damaged: set[SegmentKey] = set()
        """Segments of the state with any problem."""
        self.unexplained: dict[SegmentKey, bytes] = {}
        """Segments with more delete flags than deletes, with their flags."""
        self.unknown_topics: set[int] = set()
        """Topics that have segment files and nothing else."""

    def total_bytes(self) -> int:
        """The number of bytes that a run will check, for progress; known after the snapshots are read."""
        logs = sum(self._walker(shard).size_from(position.file) for shard, position in self._log_parts())
        return logs + sum(segment.text_bytes for _, segment in self.segments())

    def load(self) -> None:
        """Reads the snapshots; comes first."""
        if self._fs.exists(self._layout.repair_plan):
            self._found(Finding(self._layout.repair_plan, "a repair was begun and not finished; run it again"))
        if self._fs.exists(self._layout.restoring):
            self._found(Finding(self._layout.restoring, UNFINISHED_RESTORE))
        for finding in self.chain.findings:
            self._found(finding)
        for member in self.chain.members:
            for topic_id in member.head.dropped if member.head is not None else ():
                self.states.pop(topic_id, None)
            for damaged in member.topics():
                if damaged.state is not None:
                    self._take_state(damaged.state, damaged.blocks, member.path)
            self.report.frames += member.frames
            self.report.bytes_checked += member.size
            for finding in member.findings:
                self._found(finding)
        self.ledger.accounts = {topic_id: Account.of(state) for topic_id, state in self.states.items()}
        self.ledger.topic_ids = set(self.states)

    def run(self) -> Report:
        """Checks everything after `load`."""
        report = self.report
        for shard, position in self._log_parts():
            self._check_log(shard, position)
        self._check_names()
        for state, segment in self.segments():
            self._check_segment(state, segment)
        named = {key_of(state, segment) for state, segment in self.segments()}
        for path, what in find_orphans(self._fs, self._layout, self.chain, named):
            report.notes.append(Finding(relative(self._layout, path), what))
        report.topics = len(self.ledger.accounts)
        report.records += self.ledger.records
        return report

    def segments(self) -> Iterator[tuple[TopicState, SegmentState]]:
        """Checks every segment that the state names."""
        for state in self.states.values():
            for segment in state.segments:
                yield state, segment

    def shard_of(self, topic_id: int) -> int | None:
        """The shard of a topic's frames; None when it cannot be determined."""
        if self.chain.newest is None:
            return None
        return int(xxh3_64_intdigest(topic_id.to_bytes(8, "little")) % self.chain.newest.shard_count)

    def shards(self) -> list[int]:
        """The shards that have a folder."""
        return [shard for shard, _ in self._log_parts()]

    # Snapshots

    def _take_state(self, state: TopicState, tail: list[tuple[int, BlockParts]], path: str) -> None:
        self.states[state.topic_id] = state
        ranges = [(part.first_seq, part.first_seq + part.count - 1) for _, part in tail]
        self.report.records += sum(last - first + 1 for first, last in ranges)
        for problem in state_problems(state, ranges):
            self._found(Finding(path, f"topic {state.topic_id}: {problem}", topic=state.name))

    def _check_names(self) -> None:
        """Names are unique, and ids are below the next one."""
        names = Counter(account.name for account in self.ledger.accounts.values())
        for name, count in names.items():
            if count > 1:
                self._found(Finding(self._layout.meta, f"{count} topics have the same name", topic=name))
        newest = self.chain.newest
        given_out = newest.next_topic_id if newest is not None else 1
        for topic_id in self.states if newest is not None else ():
            if topic_id >= given_out:
                self._found(Finding(self._layout.meta, f"topic {topic_id} has a number that was never given out"))
        created = max([given_out - 1, *self.ledger.topic_ids])
        folders = topic_folders(self._fs, self._layout) - self.ledger.strangers
        self.unknown_topics = {topic_id for topic_id in folders if topic_id > created}
        for topic_id in sorted(self.unknown_topics):
            what = "a topic's segments, of which neither the snapshots nor the log know"
            self._found(Finding(self._layout.topic(topic_id), what))

    # The log

    def _log_parts(self) -> Iterator[tuple[int, WalPosition]]:
        positions = {p.shard: p for p in self.chain.newest.positions} if self.chain.newest is not None else {}
        try:
            names = self._fs.list_dir(self._layout.wal)
        except FileNotFoundError:
            return
        for name in names:
            shard = number_in(name, "shard-", "")
            if shard is not None:
                yield shard, positions.get(shard, WalPosition(shard, 1, 1))

    def _walker(self, shard: int, on_bytes: Callable[[int], None] = lambda count: None) -> LogWalker:
        walker = LogWalker(self._fs, self._layout.shard(shard), self.same_boot, on_bytes)
        walker.shard = shard
        return walker

    def _check_log(self, shard: int, position: WalPosition) -> None:
        walker, folder = self._walker(shard, self._count), self._layout.shard(shard)

        def take(frame: Frame, number: int) -> None:
            self.ledger.frame(frame, wal_file(folder, number))

        # If the position of the snapshots is unknown, the log begins with its first frame.
        lsn = position.lsn if self.chain.located or self.chain.empty else None
        end = walker.walk(position.file if lsn is not None else 1, lsn, take, self._hole)
        self.report.frames += end.frames
        if end.tear is not None:
            what = f"the log ends in an unfinished write: {end.tear.reason}"
            if end.tear.frames_behind:
                what += f"; {end.tear.frames_behind} frames behind it were never synced and are not part of the log"
            self._note(Finding(wal_file(folder, end.tear.number), what, (end.tear.offset, end.tear.offset)))

    def _count(self, nbytes: int) -> None:
        self.report.bytes_checked += nbytes
        self._on_bytes(nbytes)

    def _hole(self, hole: Hole) -> None:
        self.ledger.hole(hole, lambda topic_id: self.shard_of(topic_id) in (None, hole.shard))

    # Segments

    def _check_segment(self, state: TopicState, segment: SegmentState) -> None:
        image = read_image(self._fs, self._layout, state, segment)
        before = len(self.report.findings)
        for trouble in image.troubles:
            self._trouble(state, segment, trouble)
        if image.whole:
            for trouble in self._flag_troubles(state, segment, image):
                self._trouble(state, segment, trouble)
        if len(self.report.findings) > before:
            self.damaged.add(key_of(state, segment))
        self.report.segments += 1
        self.report.records += segment.count
        self.report.bytes_checked += segment.text_bytes
        self._on_bytes(segment.text_bytes)

    def _flag_troubles(self, state: TopicState, segment: SegmentState, image: SegmentImage) -> Iterator[Trouble]:
        """Checks the flags, and the live records by them, against the state.

        The state may have flags that the file does not have yet. A crash may then have interrupted the write of a flag,
        and that byte can have any value.
        """
        assert image.head is not None
        known = segment.flags if len(segment.flags) == segment.count else b""
        wrong = [i for i, flag in enumerate(image.flags) if flag and self._is_wrong(flag, known[i : i + 1])]
        if wrong:
            what = "a delete flag that should be clear" if known else "a delete flag that is neither set nor clear"
            place = (image.head.flags_at + wrong[0], image.head.flags_at + wrong[-1] + 1)
            yield Trouble(".data", what, place, (wrong[0], wrong[-1]))
            return
        flags = known or image.flags
        marked = flags.count(DELETED)
        if marked > segment.marked and not self.chain.complete:
            return  # If a newer state of the topic may be lost, its deletes may be lost, too.
        if marked != segment.marked:
            if marked > segment.marked:
                self.unexplained[key_of(state, segment)] = flags
            yield Trouble(
                ".data", f"{marked} records are marked as deleted, the topic's state knows of {segment.marked}"
            )
            return
        ranges = live_ranges(flags, max(state.earliest - segment.first_seq, 0), segment.count)
        live = sum(end - begin for begin, end in ranges)
        size = sum(sum(payload_sizes(image.view, begin, end)) for begin, end in ranges)
        if (live, size) != (segment.live, segment.live_bytes):
            yield Trouble(
                ".data",
                f"{live} of its records with {size} bytes are live, the topic's state says {segment.live} "
                f"with {segment.live_bytes}",
            )

    def _is_wrong(self, flag: int, known: bytes) -> bool:
        """Returns whether a set flag in a file cannot have been written by the engine. `known` is the state's flag."""
        if not known or flag != DELETED:
            return flag != DELETED and known != bytes((DELETED,))
        # Set in the file only: a delete of a newer state, if one can be lost.
        return known[0] != DELETED and self.chain.complete

    def _trouble(self, state: TopicState, segment: SegmentState, trouble: Trouble) -> None:
        path = self._layout.segment(state.topic_id, segment.first_seq, segment.cold) + trouble.ending
        first, last = trouble.records if trouble.records is not None else (0, segment.count - 1)
        seqs = (segment.first_seq + first, segment.first_seq + last)
        self._found(Finding(path, trouble.what, trouble.byte_range, seqs, state.name))

    # Reporting

    def _found(self, finding: Finding) -> None:
        self.report.findings.append(msgspec.structs.replace(finding, where=relative(self._layout, finding.where)))

    def _note(self, finding: Finding) -> None:
        self.report.notes.append(msgspec.structs.replace(finding, where=relative(self._layout, finding.where)))


def key_of(state: TopicState, segment: SegmentState) -> SegmentKey:
    return SegmentKey(state.topic_id, segment.first_seq, segment.cold)


def read_image(fs: FileSystem, layout: Layout, state: TopicState, segment: SegmentState) -> SegmentImage:
    """Returns the files of a segment of the state."""
    path = layout.segment(state.topic_id, segment.first_seq, segment.cold)
    expected = SegmentHead(
        state.topic_id, state.epoch, segment.first_seq, segment.payload_bytes, segment.first_ts, segment.last_ts,
        segment.count, 0, segment.text_bytes, segment.traits, state.name,
    )  # fmt: skip
    with named(path):
        return SegmentImage(map_file(fs, path + ".data"), map_file(fs, path + ".idx"), expected)


def map_file(fs: FileSystem, path: str) -> memoryview | None:
    """Returns a file's bytes; None if it is missing. Bytes that the disk cannot read count as damaged."""
    try:
        return map_damaged(fs, path)
    except (FileNotFoundError, NotADirectoryError):
        return None


# Opening a data folder with a tool: checks that it is one, that it is free, and that its tiers are complete.

_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def hold_folder(fs: FileSystem, layout: Layout, note: str, *, read_only: bool) -> Iterator[None]:
    """Takes the lock of the folder. Raises FolderBusyError, or SettingsError without a data folder.

    A check without changes may run on a read-only medium, where no server can run either, and leaves no lock file in a
    copy of a folder without one.
    """
    if not any(fs.exists(folder) for folder in (layout.meta, layout.wal, layout.topics())):
        raise SettingsError(f"{layout.root} is not a data folder of topics")
    lock = None
    try:
        if not read_only or fs.exists(layout.lock):
            lock = fs.lock(layout.lock, note)
    except BlockingIOError as error:
        raise FolderBusyError(layout.root, str(error)) from error
    except OSError as error:
        if not read_only or error.errno not in _UNWRITABLE:
            raise
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def check_cold_folder(fs: FileSystem, layout: Layout, look: Verification) -> None:
    """Refuses a cold folder that seems to be unmounted, because it would count as lost."""
    if not any(segment.cold for _, segment in look.segments()):
        return
    if layout.cold_root is None:
        raise SettingsError("some segments were moved to a cold folder: give its path with --cold-dir")
    if not fs.exists(layout.topics(cold=True)):
        raise SettingsError(f"some segments were moved to a cold folder, and {layout.cold_root} does not look like it")


# Invariants of a topic's state in a snapshot.

Seqs = tuple[int, int]


def state_problems(state: TopicState, tail: list[Seqs]) -> Iterator[str]:
    """Returns the contradictions in a state; `tail` has the seqs of each following block."""
    yield from _config_problems(state)
    if not 1 <= state.evict_floor <= state.earliest <= state.head + 1:
        yield (
            f"its watermarks are out of order: evicted below {state.evict_floor}, first live {state.earliest}, "
            f"head {state.head}"
        )
    if max(state.cap_floor, state.ttl_floor) > state.evict_floor:
        yield "a cap or a time evicted more than was evicted in all"
    if len(state.tail_flags) != len(tail):
        yield f"its tail has {len(tail)} blocks instead of {len(state.tail_flags)}"
    for flags, (first, last) in zip(state.tail_flags, tail, strict=False):
        if flags and len(flags) != last - first + 1:
            yield f"the delete flags of the block at {first} have the wrong length"
    segments = [(segment.first_seq, segment.first_seq + segment.count - 1) for segment in state.segments]
    runs = [*segments, *tail]
    if any(first > last for first, last in runs) or not _ascending(runs):
        yield "its segments and blocks overlap or are out of order"
    if runs and runs[-1][1] > state.head:
        yield f"it holds record {runs[-1][1]} and its head is {state.head}"
    if any(segment.flags and len(segment.flags) != segment.count for segment in state.segments):
        yield "the delete flags of a segment have the wrong length"
    times = [time for segment in state.segments for time in (segment.first_ts, segment.last_ts)]
    if any(before > after for before, after in pairwise([*times, state.last_ts])):
        yield "its times run back"
    lost = [(lost.first, lost.last) for lost in state.lost]
    if any(first > last for first, last in lost) or not _ascending(lost) or (lost and lost[-1][1] > state.head):
        yield "its lost ranges overlap, are out of order or lie beyond its head"
    yield from _queue_problems(state)
    yield from _transaction_problems(state)
    yield from _consumer_problems(state)
    if any(last > state.head for last in _last_keyed(state)):
        yield "it knows an idempotency key of records beyond its head"


def _last_keyed(state: TopicState) -> Iterator[int]:
    """Returns the last seqs of idempotency keys."""
    for key in state.keys:
        yield key.first_seq + key.count - 1
    for keyed in state.keyed:
        place = 0 if isinstance(keyed.keys, str) else max(keyed.keys.values(), default=0)
        yield keyed.first_seq + place + keyed.count - 1


def _config_problems(state: TopicState) -> Iterator[str]:
    # More names are valid for a stream than for a topic of /v0.
    if not (is_topic_name(state.name) or is_own_name(state.name) or STREAM in state.parts):
        yield f"{quoted(state.name)} is not the name of a topic"
    try:
        config = decode_config(state.config)
    except ValueError as error:
        yield f"its config is malformed: {error}"
        return
    if config.durability.reserves_seqs and 0 < state.ceiling < state.head:
        yield f"its head {state.head} is above the ceiling {state.ceiling}"


def _queue_problems(state: TopicState) -> Iterator[str]:
    if PART_NAME not in state.parts:
        return
    try:
        part = decode_part(state.parts[PART_NAME])
    except ValueError as error:
        yield f"its queue is malformed: {error}"
        return
    leased = {lease.seq for lease in part.leases}
    if len(leased) < len(part.leases) or any(seq in leased for seq, _ in (*part.delayed, *part.delivered)):
        yield "a job of its queue is in two states at once"
    # A delay may refer to jobs beyond the head, because it is logged before them.
    if any(seq > state.head for seq in leased) or any(seq > state.head for seq, _ in part.delivered):
        yield "its queue knows jobs beyond its head"


def _consumer_problems(state: TopicState) -> Iterator[str]:
    try:
        marks = decode_consumers(state.parts.get(CONSUMERS_PART, b"\x90"))
    except ValueError as error:
        yield f"its consumers are malformed: {error}"
        return
    if any(mark.seq > state.head for mark in marks):
        yield "a consumer committed a seq beyond its head"


def _transaction_problems(state: TopicState) -> Iterator[str]:
    if TRANSACTIONS_PART not in state.parts:
        return
    try:
        part = decode_transactions(state.parts[TRANSACTIONS_PART])
    except ValueError as error:
        yield f"its transactions are malformed: {error}"
        return
    if any(one.first_seq + one.count - 1 > state.head for entry in part.open for one in entry.parts):
        yield "a transaction has staged records beyond its head"


def _ascending(ranges: Iterable[Seqs]) -> bool:
    return all(before[1] < after[0] for before, after in pairwise(ranges))
