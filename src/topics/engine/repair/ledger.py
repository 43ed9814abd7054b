"""The log checked without its payload: every frame decodes, is about a topic that exists, and continues it.

A ledger follows heads and names only, so a look at a folder needs no memory for records, however long the log is.
"""

from collections.abc import Callable
from struct import error as StructError

import msgspec

from topics.core.config import decode_config
from topics.core.durability import Durability
from topics.core.findings import Finding
from topics.engine.repair.lost_records import LostRecords, find_lost_records
from topics.formats import control
from topics.formats.block import decode_block
from topics.formats.carriers import block_in
from topics.formats.frame import Frame, FrameKind
from topics.formats.queue import decode_delay, decode_departure, decode_lease
from topics.formats.routing import decode_forward, decode_router, decode_unroute
from topics.formats.snapshot import TopicState
from topics.formats.stream import creation_in, decode_renewal, head_at_creation, mark_in
from topics.formats.transaction import decode_begun, decode_committed, decode_ended
from topics.schema.contract import decode_contract
from topics.storage.damage.log_walk import Hole

SeqRange = tuple[int, int]


class Account:
    """One topic as the ledger knows it."""

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
            durability = Durability.DISK  # That it cannot be read is told elsewhere.
        return cls(state.name, durability, state.head, state.next_base)


class Ledger:
    def __init__(self, accounts: dict[int, Account], found: Callable[[Finding], None]) -> None:
        self.accounts = accounts
        self._found = found
        self.topic_ids = set(accounts)
        self.first_logged: dict[int, int] = {}
        """For each topic, existing or not, the first seq that the log holds."""
        self.damaged_shards: set[int] = set()
        self.lost_records: dict[tuple[int, int], list[LostRecords] | None] = {}
        """For each damaged place, by its shard and first lsn, the records in it; None where nobody can tell."""
        self.records = 0
        self.strangers: set[int] = set()
        """Topics that frames are about and that nobody created."""

    def frame(self, frame: Frame, path: str) -> None:
        """Takes the next frame of a shard."""
        try:
            self._take(frame, path)
        except (ValueError, KeyError, StructError) as error:
            self._tell(frame, path, f"frame {frame.lsn} makes no sense: {error}")

    def hole(self, hole: Hole, shard_topics: Callable[[int], bool]) -> None:
        """Takes a damaged place; tells what is known of what was in it."""
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
                self._tell(frame, path, f"topic {topic_id} is created a second time")
            durability = decode_config(created.config).durability
            self.accounts[topic_id] = Account(created.name, durability, head_at_creation(frame))
            self.topic_ids.add(topic_id)
        account = self.accounts.get(topic_id)
        if account is None:
            if topic_id not in self.strangers:
                self.strangers.add(topic_id)
                self._tell(frame, path, f"frame {frame.lsn} is about topic {topic_id}, which nobody created")
            body = block_in(frame.kind, frame.body)
            if body is not None:
                self.first_logged.setdefault(topic_id, decode_block(body).first_seq)
            elif frame.kind is FrameKind.FORWARD:
                self.first_logged.setdefault(topic_id, decode_forward(frame.body).first_seq)
            return
        _TAKE[frame.kind](self, account, frame, path)

    def _nothing(self, account: Account, frame: Frame, path: str) -> None:
        """The frame's own content was looked at already, or there is none."""

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
        head, config = control.decode_config_change(frame.body)
        if account.durability.logged:
            self._continue(account, head, frame, path)
        account.head = max(account.head, head)
        account.durability = decode_config(config).durability

    def _continue(self, account: Account, head: int, frame: Frame, path: str) -> None:
        """The topic should stand at `head` before this frame."""
        if head > account.head:
            missing = (account.head + 1, head)
            what = f"records {missing[0]} to {missing[1]} are missing before frame {frame.lsn}"
            self._tell(frame, path, what, account, missing)
        elif head < account.head:
            self._tell(
                frame, path, f"frame {frame.lsn} gives out seqs a second time", account, (head + 1, account.head)
            )

    def _drop(self, account: Account, frame: Frame, path: str) -> None:
        del self.accounts[frame.topic_id]

    def _delete(self, account: Account, frame: Frame, path: str) -> None:
        control.decode_delete(frame.body)

    def _evict(self, account: Account, frame: Frame, path: str) -> None:
        control.decode_evict(frame.body)

    def _ceiling(self, account: Account, frame: Frame, path: str) -> None:
        control.decode_ceiling(frame.body)

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

    def _transaction(self, account: Account, frame: Frame, path: str) -> None:
        _TRANSACTION_BODIES[frame.kind](frame.body)

    def _tell(
        self, frame: Frame, path: str, what: str, account: Account | None = None, seqs: SeqRange | None = None
    ) -> None:
        self._found(Finding(path, what, (frame.start, frame.end), seqs, account.name if account else None))


_QUEUE_BODIES: dict[FrameKind, Callable[[memoryview], object]] = {
    FrameKind.LEASE: decode_lease,
    FrameKind.DELAY: decode_delay,
    FrameKind.DEPARTURE: decode_departure,
}

_TRANSACTION_BODIES: dict[FrameKind, Callable[[memoryview], object]] = {
    FrameKind.TXN_BEGIN: decode_begun,
    FrameKind.TXN_END: decode_ended,
    FrameKind.TXN_COMMIT: decode_committed,
}

_TAKE: dict[FrameKind, Callable[[Ledger, Account, Frame, str], None]] = {
    FrameKind.APPEND: Ledger._append,
    FrameKind.CONFIG: Ledger._configure,
    FrameKind.DROP: Ledger._drop,
    FrameKind.DELETE: Ledger._delete,
    FrameKind.EVICT: Ledger._evict,
    FrameKind.CEILING: Ledger._ceiling,
    FrameKind.CREATE: Ledger._nothing,
    FrameKind.ROUTER: Ledger._router,
    FrameKind.UNROUTE: Ledger._unroute,
    FrameKind.FORWARD: Ledger._forward,
    FrameKind.ARRIVAL: Ledger._append,
    FrameKind.LEASE: Ledger._queue,
    FrameKind.DELAY: Ledger._queue,
    FrameKind.DEPARTURE: Ledger._queue,
    FrameKind.STREAM_APPEND: Ledger._stream_append,
    FrameKind.STREAM_CREATE: Ledger._append,
    FrameKind.STREAM_CLOSE: Ledger._stream_close,
    FrameKind.STREAM_RENEW: Ledger._stream_renew,
    FrameKind.STREAM_RETIRE: Ledger._nothing,
    FrameKind.TXN_BEGIN: Ledger._transaction,
    FrameKind.TXN_STAGE: Ledger._append,
    FrameKind.TXN_END: Ledger._transaction,
    FrameKind.TXN_APPEND: Ledger._append,
    FrameKind.TXN_COMMIT: Ledger._transaction,
    FrameKind.STREAM_CONTRACT: Ledger._stream_contract,
}
