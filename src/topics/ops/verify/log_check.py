"""Log check without payloads: every frame decodes, belongs to a topic that exists, and continues it.

The checker follows heads and names only, so it needs no memory for records, however long the log is.
"""

from collections.abc import Callable, Mapping
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, Protocol

import msgspec

from topics.consumers.consumer_state import decode_mark
from topics.engine.features import BLOCK_KINDS, block_in
from topics.log.forward_frames import decode_forwards, parts_of
from topics.log.frame import (
    BASE_MAX,
    BLOCK_HEAD,
    CHECKSUM_BYTES,
    HEADER_BYTES,
    MAGIC,
    OVERHEAD_BYTES,
    BadFrame,
    Frame,
    FrameKind,
    decode_block,
    decode_ceiling,
    decode_config_change,
    decode_delete,
    decode_evict,
    find_frames,
    key_places,
    named,
    read_frame,
)
from topics.log.fs import FileSystem, UnreadableError, map_damaged, map_file
from topics.log.layout import wal_file
from topics.log.replay import LogDamaged, ShardEnd, ShardReader, Tear
from topics.log.snapshot_files import TopicState
from topics.model.errors import Finding
from topics.model.records import ROW_BYTES
from topics.model.topic_config import Durability, decode_config
from topics.queues.queue_frames import decode_delay, decode_departure, decode_event, decode_lease
from topics.routers.router_frames import decode_forward, decode_router, decode_unroute
from topics.schedules.schedule_frames import decode_schedule
from topics.schema.contract import decode_contract
from topics.streams.stream_frames import creation_in, decode_renewal, head_at_creation, mark_in
from topics.transactions.transaction_frames import decode_begun, decode_committed, decode_ended

# Guesses at the contents of damaged frames, so that a loss can be reported with its topic and its seqs.
#
# Nothing here is proven: one byte is wrong and nobody knows which. Two things make a guess worth having. The frames
# must fill the damaged place exactly, with consecutive lsns; and a frame marked APPEND or ARRIVAL must have the inner
# lengths of one, a FORWARD those of a forward, and no other frame may have any of them, because one wrong byte can
# break the one or the other but never make both agree. Whether the topic and the seqs are believed is decided by who
# knows the topics (`ops.verify.log_check`).

_HEADER = Struct("<4sIQQQB7x")
_RECORD_BYTES_MIN = ROW_BYTES + len(b'{"$seq":1,"$ts":1,"data":0}')
_GIVE_OUT_SEQS = (
    FrameKind.APPEND, FrameKind.ARRIVAL, FrameKind.STREAM_APPEND, FrameKind.FORWARD, FrameKind.TXN_STAGE,
    FrameKind.TXN_APPEND, FrameKind.FENCE, FrameKind.SCHEDULE,
)  # fmt: skip
_OF_SNAPSHOTS = (FrameKind.SNAPSHOT_HEAD, FrameKind.TOPIC, FrameKind.SNAPSHOT_END, FrameKind.DIRECTORY)
_LOGGED = {int(kind): kind for kind in FrameKind if kind not in _OF_SNAPSHOTS}


class DamagedFrame(NamedTuple):
    """The presumed content of a damaged frame. The numbers after the topic are 0 unless it assigned seqs."""

    kind: FrameKind
    topic_id: int
    first_seq: int = 0
    records: int = 0
    base: int = 0
    text_bytes: int = 0

    @property
    def next_base(self) -> int:
        """The start of the following text of the same topic."""
        return self.base + self.text_bytes + 1 if self.text_bytes else self.base


def records_at_most(size: int) -> int:
    """Returns the maximum number of records in this many bytes of log: an upper bound of the records in a damaged
    place."""
    return max(size // _RECORD_BYTES_MIN, 1)


def read_damaged_frames(
    buffer: memoryview, start: int, end: int, first_lsn: int, next_lsn: int | None
) -> list[DamagedFrame]:
    """Returns the presumed frames between two offsets; empty if they cannot be distinguished.

    `next_lsn` is the lsn of the valid frame behind them, None when there is none in this file.
    """
    found: list[DamagedFrame] = []
    while start < end and any(buffer[start : min(start + HEADER_BYTES, end)]):
        if end - start < OVERHEAD_BYTES:
            return []
        magic, length, lsn, _, topic_id, kind = _HEADER.unpack_from(buffer, start)
        wrong = magic != MAGIC or lsn != first_lsn + len(found) or kind not in _LOGGED
        if wrong or not OVERHEAD_BYTES <= length <= end - start:
            return []
        body = buffer[start + HEADER_BYTES : start + length - CHECKSUM_BYTES]
        readings = _readings(body, topic_id)
        # A body that holds records for another kind shows that the kind is the damaged byte.
        if readings.keys() - {_LOGGED[kind]} or (kind in _GIVE_OUT_SEQS and not readings) or _has_forwards(body, kind):
            return []
        found.append(readings.get(_LOGGED[kind]) or DamagedFrame(_LOGGED[kind], topic_id))
        start += length
    if next_lsn is not None and first_lsn + len(found) != next_lsn:
        return []
    return found


def _has_forwards(body: memoryview, kind: int) -> bool:
    """Whether it forwarded to many topics; the ones with the same position cannot be distinguished."""
    if kind == FrameKind.FORWARDS:
        return True
    try:
        decode_forwards(body)
    except ValueError:
        return False
    return True


def _readings(body: memoryview, topic_id: int) -> dict[FrameKind, DamagedFrame]:
    """The ways to find records in a frame's body, by the kind of the frame."""
    forward = _read_forward(body, topic_id)
    found = {} if forward is None else {FrameKind.FORWARD: forward}
    for kind in BLOCK_KINDS:
        try:
            block = block_in(kind, body)
            damaged = _read_block(kind, block, topic_id) if block is not None else None
        except (ValueError, StructError):
            continue
        if damaged is not None:
            found[kind] = damaged
    return found


def _read_block(kind: FrameKind, body: memoryview, topic_id: int) -> DamagedFrame | None:
    if len(body) < BLOCK_HEAD.size:
        return None
    first_seq, _, _, count, base, text, layout, _, key = BLOCK_HEAD.unpack_from(body, 0)
    if not count or key_places(body, layout, key)[1] + count * ROW_BYTES + text != len(body):
        return None
    return DamagedFrame(kind, topic_id, first_seq, count, base, text)


def _read_forward(body: memoryview, topic_id: int) -> DamagedFrame | None:
    """Returns the body as a forward, if its lengths agree and its ranges add up."""
    try:
        forward = decode_forward(body)
    except ValueError:
        return None
    records = forward.lost + forward.count
    return DamagedFrame(FrameKind.FORWARD, topic_id, forward.first_seq, records, forward.base, forward.text_length)


# Walking a shard's log to its end over any damage, for those who look for damage and those who mend it.
#
# The verdicts are those of `log.replay`; but here the walk continues after a damaged place with the next valid frame
# and reports how much is missing between the two.

_BATCH_RECORDS_MAX = 10_000
_FILE_BYTES = 64 * 1024 * 1024
"""The maximum sizes of a frame and of a log file by default."""


class Hole(NamedTuple):
    """A damaged place of a log: the finding, and the possible losses."""

    finding: Finding
    shard: int
    first_lsn: int
    next_lsn: int | None
    """The lsn of the valid frame after it; None if there is none."""
    records_max: int
    """The maximum number of records in it."""
    damaged: list[DamagedFrame]
    """The presumed frames; empty if they cannot be distinguished."""

    @property
    def frames(self) -> int | None:
        """The number of missing frames, if known."""
        return self.next_lsn - self.first_lsn if self.next_lsn is not None else None


class LogWalker(ShardReader):
    """Reads past damage. Nothing is changed."""

    shard = 0

    def __init__(
        self, fs: FileSystem, folder: str, same_boot: bool, on_bytes: Callable[[int], None] = lambda count: None
    ) -> None:
        super().__init__(fs, folder, same_boot, on_bytes)
        self._unreadable: dict[int, UnreadableError] = {}
        """The log files that the disk cannot read, by number."""

    def walk(
        self,
        first_number: int,
        first_lsn: int | None,
        apply: Callable[[Frame, int], None],
        damaged: Callable[[Hole], None],
    ) -> ShardEnd:
        """Passes every valid frame with the number of its file to `apply`, and every damaged place to `damaged`.

        Without a `first_lsn` the start of the log is unknown, and it begins with the first existing frame.
        """
        numbers = [number for number in self.numbers() if number >= first_number]
        expected, frames = first_lsn or 1, 0
        requested = first_number if first_lsn is not None or not numbers else numbers[0]
        loose = first_lsn is None
        """Whether any higher lsn is valid for the next frame, because the gap before it was reported already."""
        for place, number in enumerate(numbers):
            later = numbers[place + 1 :]
            if number != requested:
                damaged(self._missing_files(requested, number, expected, [number, *later]))
                loose = True
            requested = number + 1
            buffer, offset = self._map(number), 0
            with named(wal_file(self._folder, number)):
                while True:
                    found = read_frame(buffer, offset)
                    if isinstance(found, Frame) and (found.lsn == expected or (loose and found.lsn > expected)):
                        for part in self._parts(found):
                            apply(part, number)
                        expected, frames, offset, loose = found.lsn + 1, frames + 1, found.end, False
                        self._on_bytes(found.end - found.start)
                        continue
                    try:
                        tear = self._judge(found, buffer, number, offset, expected, later)
                    except LogDamaged as damage:
                        behind = next((frame for frame in find_frames(buffer, offset) if frame.lsn >= expected), None)
                        damaged(self._hole(damage.finding, buffer, number, offset, behind, expected, later))
                        loose = True
                        if behind is None:
                            break
                        offset = behind.start
                        continue
                    if tear is not None:
                        return ShardEnd(expected, numbers[-1] + 1, tear, frames)
                    break
        return ShardEnd(expected, requested, None, frames)

    def _map(self, number: int) -> memoryview:
        path = wal_file(self._folder, number)
        try:
            return map_file(self._fs, path)
        except UnreadableError as error:
            self._unreadable[number] = error
            return map_damaged(self._fs, path)

    def _judge(
        self,
        found: Frame | BadFrame | None,
        buffer: memoryview,
        number: int,
        offset: int,
        expected: int,
        later: list[int],
    ) -> Tear | None:
        tear = super()._judge(found, buffer, number, offset, expected, later)
        unreadable = self._unreadable.get(number)
        if tear is None or unreadable is None or unreadable.end <= offset:
            return tear
        # No crash makes a sector unreadable, and frames that were synced may have been in it.
        what = f"the log cannot be read: {unreadable.strerror}"
        place = (min(offset, unreadable.begin), unreadable.end)
        raise LogDamaged(Finding(wal_file(self._folder, number), what, byte_range=place), None)

    def _parts(self, frame: Frame) -> list[Frame]:
        try:
            return list(parts_of(frame))
        except ValueError:
            # The decoder that gets the frame rejects it.
            return [frame]

    def _missing_files(self, requested: int, number: int, expected: int, later: list[int]) -> Hole:
        which = f"log file {requested} is" if number == requested + 1 else f"log files {requested} to {number - 1} are"
        behind = next((frame for frame in self._first_frames(later) if frame.lsn >= expected), None)
        next_lsn = behind.lsn if behind is not None else None
        finding = Finding(wal_file(self._folder, requested), f"{which} missing")
        return Hole(finding, self.shard, expected, next_lsn, _records_in_frames(expected, next_lsn), [])

    def _hole(
        self,
        finding: Finding,
        buffer: memoryview,
        number: int,
        offset: int,
        behind: Frame | None,
        expected: int,
        later: list[int],
    ) -> Hole:
        end = behind.start if behind is not None else len(buffer)
        if behind is None:
            behind = next((frame for frame in self._first_frames(later) if frame.lsn >= expected), None)
        next_lsn = behind.lsn if behind is not None else None
        # Where the bytes end with the file, or frames are missing without a byte in their place, some may have been cut
        # off: then only the number of the frames states how much.
        cut = end == len(buffer) or end == offset
        records_max = _records_in_frames(expected, next_lsn) if cut else records_at_most(end - offset)
        finding = Finding(wal_file(self._folder, number), finding.what, byte_range=(offset, end))
        damaged = read_damaged_frames(buffer, offset, end, expected, next_lsn)
        return Hole(finding, self.shard, expected, next_lsn, records_max, damaged)


def _records_in_frames(first_lsn: int, next_lsn: int | None) -> int:
    return (next_lsn - first_lsn) * _BATCH_RECORDS_MAX if next_lsn is not None else records_at_most(_FILE_BYTES)


# Attribution of damaged records to topics: exactly, where that can be proven, or not at all.
#
# The topic id of a damaged frame is not sufficient, since the damaged byte may be in that id. But a block also contains
# its first seq and the start of its text in the topic's running coordinate, and both must continue the topic. If
# exactly one topic of the shard fits, and the frame names it, a single wrong byte cannot be the cause.


class TopicEnd(Protocol):
    """The part of a topic's state that decides whether a block continues it."""

    head: int
    next_base: int


class LostRecords(NamedTuple):
    """Records of one topic that were in a damaged place."""

    topic_id: int
    from_seq: int
    to_seq: int
    next_base: int


def find_lost_records(hole: Hole, topics: Mapping[int, TopicEnd]) -> list[LostRecords] | None:
    """Returns the records in a gap; None if they cannot be determined.

    `topics` are the topics whose frames may be in it.
    """
    if hole.next_lsn == hole.first_lsn:
        return []  # No frame is missing: what was damaged is the unused rest of a file.
    if not hole.damaged:
        return None
    found: list[LostRecords] = []
    heads: dict[int, tuple[int, int]] = {}
    for damaged in hole.damaged:
        if not damaged.records:
            continue
        place = (damaged.first_seq, damaged.base)
        fitting = [
            topic_id
            for topic_id, topic in topics.items()
            if place == heads.get(topic_id, (topic.head + 1, _base(topic.next_base)))
        ]
        if fitting != [damaged.topic_id]:
            return None
        next_base = damaged.next_base
        last = damaged.first_seq + damaged.records - 1
        heads[damaged.topic_id] = (last + 1, _base(next_base))
        found.append(LostRecords(damaged.topic_id, damaged.first_seq, last, next_base))
    return found


def _base(next_base: int) -> int:
    return next_base if next_base < BASE_MAX else 0


SeqRange = tuple[int, int]


class Account:
    """The state of a topic in this check."""

    __slots__ = ("durability", "head", "name", "next_base")

    def __init__(self, name: str, durability: Durability, head: int = 0, next_base: int = 0) -> None:
        self.name = name
        self.durability = durability
        self.head = head
        self.next_base = next_base

    @classmethod
    def of(cls, state: TopicState) -> "Account":
        try:
            durability = decode_config(state.config).durability
        except ValueError:
            durability = Durability.DISK  # The read error is reported elsewhere.
        return cls(state.name, durability, state.head, state.next_base)


class LogChecker:
    def __init__(self, accounts: dict[int, Account], found: Callable[[Finding], None]) -> None:
        self.accounts = accounts
        self._found = found
        self.topic_ids = set(accounts)
        self.first_logged: dict[int, int] = {}
        """The first seq in the log of each topic, existing or not."""
        self.damaged_shards: set[int] = set()
        self.lost_records: dict[tuple[int, int], list[LostRecords] | None] = {}
        """For each damaged place, by its shard and first lsn, the records in it; None where they cannot be determined.
        """
        self.records = 0
        self.strangers: set[int] = set()
        """Topics of frames without a creation."""

    def frame(self, frame: Frame, path: str) -> None:
        """Adds the next frame of a shard."""
        try:
            self._take(frame, path)
        except (ValueError, KeyError, StructError) as error:
            self._report(frame, path, f"frame {frame.lsn} is malformed: {error}")

    def hole(self, hole: Hole, shard_topics: Callable[[int], bool]) -> None:
        """Adds a damaged place; returns the known part of its content."""
        self.damaged_shards.add(hole.shard)
        lost = find_lost_records(hole, {i: a for i, a in self.accounts.items() if shard_topics(i)})
        self.lost_records[hole.shard, hole.first_lsn] = lost
        if not lost:
            self._found(hole.finding)
        for gone in lost or ():
            account = self.accounts[gone.topic_id]
            account.head, account.next_base = gone.to_seq, gone.next_base
            seqs = (gone.from_seq, gone.to_seq)
            self._found(msgspec.structs.replace(hole.finding, seq_range=seqs, topic=account.name))

    def _take(self, frame: Frame, path: str) -> None:
        topic_id = frame.topic_id
        created = creation_in(frame)
        if created is not None:
            if topic_id in self.accounts:
                self._report(frame, path, f"topic {topic_id} is created a second time")
            durability = decode_config(created.config).durability
            self.accounts[topic_id] = Account(created.name, durability, head_at_creation(frame))
            self.topic_ids.add(topic_id)
        account = self.accounts.get(topic_id)
        if account is None:
            if topic_id not in self.strangers:
                self.strangers.add(topic_id)
                self._report(frame, path, f"frame {frame.lsn} refers to topic {topic_id}, which was never created")
            body = block_in(frame.kind, frame.body)
            if body is not None:
                self.first_logged.setdefault(topic_id, decode_block(body).first_seq)
            elif frame.kind is FrameKind.FORWARD:
                self.first_logged.setdefault(topic_id, decode_forward(frame.body).first_seq)
            return
        _TAKE[frame.kind](self, account, frame, path)

    def _nothing(self, account: Account, frame: Frame, path: str) -> None:
        """The frame's content was checked already, or there is none."""

    def _append(self, account: Account, frame: Frame, path: str) -> None:
        body = block_in(frame.kind, frame.body)
        if body is None:
            return
        block = decode_block(body)
        self._continue(account, block.first_seq - 1, frame, path)
        self.records += block.count
        self.first_logged.setdefault(frame.topic_id, block.first_seq)
        account.head = block.first_seq + block.count - 1
        account.next_base = block.base + len(block.text) + 1

    def _forward(self, account: Account, frame: Frame, path: str) -> None:
        forward = decode_forward(frame.body)
        self._continue(account, forward.first_seq - 1, frame, path)
        self.records += forward.count
        self.first_logged.setdefault(frame.topic_id, forward.first_seq)
        account.head, account.next_base = forward.last_seq, forward.next_base

    def _router(self, account: Account, frame: Frame, path: str) -> None:
        decode_router(frame.body)

    def _unroute(self, account: Account, frame: Frame, path: str) -> None:
        decode_unroute(frame.body)

    def _configure(self, account: Account, frame: Frame, path: str) -> None:
        head, config = decode_config_change(frame.body)
        if account.durability.logged:
            self._continue(account, head, frame, path)
        account.head = max(account.head, head)
        account.durability = decode_config(config).durability

    def _continue(self, account: Account, head: int, frame: Frame, path: str) -> None:
        """Checks that the topic is at `head` before this frame."""
        if head > account.head:
            missing = (account.head + 1, head)
            what = f"records {missing[0]} to {missing[1]} are missing before frame {frame.lsn}"
            self._report(frame, path, what, account, missing)
        elif head < account.head:
            self._report(
                frame, path, f"frame {frame.lsn} gives out seqs a second time", account, (head + 1, account.head)
            )

    def _drop(self, account: Account, frame: Frame, path: str) -> None:
        del self.accounts[frame.topic_id]

    def _delete(self, account: Account, frame: Frame, path: str) -> None:
        decode_delete(frame.body)

    def _evict(self, account: Account, frame: Frame, path: str) -> None:
        decode_evict(frame.body)

    def _ceiling(self, account: Account, frame: Frame, path: str) -> None:
        decode_ceiling(frame.body)

    def _queue(self, account: Account, frame: Frame, path: str) -> None:
        _QUEUE_BODIES[frame.kind](frame.body)

    def _stream_append(self, account: Account, frame: Frame, path: str) -> None:
        mark_in(frame)
        self._append(account, frame, path)

    def _stream_close(self, account: Account, frame: Frame, path: str) -> None:
        mark_in(frame)

    def _stream_renew(self, account: Account, frame: Frame, path: str) -> None:
        decode_renewal(frame.body)

    def _stream_contract(self, account: Account, frame: Frame, path: str) -> None:
        decode_contract(frame.body)

    def _consumer(self, account: Account, frame: Frame, path: str) -> None:
        decode_mark(frame.body)

    def _schedule(self, account: Account, frame: Frame, path: str) -> None:
        decode_schedule(frame.body)
        self._append(account, frame, path)

    def _transaction(self, account: Account, frame: Frame, path: str) -> None:
        _TRANSACTION_BODIES[frame.kind](frame.body)

    def _report(
        self, frame: Frame, path: str, what: str, account: Account | None = None, seqs: SeqRange | None = None
    ) -> None:
        self._found(Finding(path, what, (frame.start, frame.end), seqs, account.name if account else None))


_QUEUE_BODIES: dict[FrameKind, Callable[[memoryview], object]] = {
    FrameKind.LEASE: decode_lease,
    FrameKind.DELAY: decode_delay,
    FrameKind.DEPARTURE: decode_departure,
    FrameKind.QUEUE: decode_event,
}

_TRANSACTION_BODIES: dict[FrameKind, Callable[[memoryview], object]] = {
    FrameKind.TXN_BEGIN: decode_begun,
    FrameKind.TXN_END: decode_ended,
    FrameKind.TXN_COMMIT: decode_committed,
}

_TAKE: dict[FrameKind, Callable[[LogChecker, Account, Frame, str], None]] = {
    FrameKind.APPEND: LogChecker._append,
    FrameKind.CONFIG: LogChecker._configure,
    FrameKind.DROP: LogChecker._drop,
    FrameKind.DELETE: LogChecker._delete,
    FrameKind.EVICT: LogChecker._evict,
    FrameKind.CEILING: LogChecker._ceiling,
    FrameKind.CREATE: LogChecker._nothing,
    FrameKind.ROUTER: LogChecker._router,
    FrameKind.UNROUTE: LogChecker._unroute,
    FrameKind.FORWARD: LogChecker._forward,
    FrameKind.ARRIVAL: LogChecker._append,
    FrameKind.LEASE: LogChecker._queue,
    FrameKind.DELAY: LogChecker._queue,
    FrameKind.DEPARTURE: LogChecker._queue,
    FrameKind.QUEUE: LogChecker._queue,
    FrameKind.STREAM_APPEND: LogChecker._stream_append,
    FrameKind.STREAM_CREATE: LogChecker._append,
    FrameKind.STREAM_CLOSE: LogChecker._stream_close,
    FrameKind.STREAM_RENEW: LogChecker._stream_renew,
    FrameKind.STREAM_RETIRE: LogChecker._nothing,
    FrameKind.TXN_BEGIN: LogChecker._transaction,
    FrameKind.TXN_STAGE: LogChecker._append,
    FrameKind.TXN_END: LogChecker._transaction,
    FrameKind.TXN_APPEND: LogChecker._append,
    FrameKind.TXN_COMMIT: LogChecker._transaction,
    FrameKind.STREAM_CONTRACT: LogChecker._stream_contract,
    FrameKind.CONSUMER: LogChecker._consumer,
    FrameKind.FENCE: LogChecker._append,
    FrameKind.SCHEDULE: LogChecker._schedule,
}
