"""A topic's state: plain values that only `engine.apply` and related modules change, on the event loop's thread.

The object is small, because a hundred thousand idle topics must fit in memory: state that an idle topic does not need
is None or shared.

Runs of records: a block in memory or a segment on disk, with one interface for readers.

A run covers consecutive seqs without gaps. `live` and `live_bytes` count the records that are neither deleted nor below
the topic's first live seq; `flags` marks deleted records with `DELETED`, and is None while no record of the run was
deleted.
"""

import functools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress
from operator import attrgetter, is_, or_
from typing import Any, Protocol

from topics.engine.idempotency import KeyMemory
from topics.log.frame import BlockParts, Keys, encode_block_head
from topics.log.segment import DELETED
from topics.log.segment_files import OpenSegment, SegmentDamaged, SegmentKey, SegmentStore
from topics.log.snapshot_files import SegmentState
from topics.model.records import ROW_BYTES, TRAIT_NODES, TRAIT_TAGS, Record, words
from topics.model.seq_ranges import LostRange
from topics.model.topic_config import Discard, Durability, TopicConfig
from topics.wire.record_slicing import Range, View, payload_sizes

_WINDOW_BYTES = 1024 * 1024
_DELETED = bytes((DELETED,))
_FLAGS = attrgetter("flags")
_IS_LIVE = bytes([byte != DELETED for byte in range(256)])
"""Translates flags so that live records are true."""
_LIVE = attrgetter("live")
_LIVE_BYTES = attrgetter("live_bytes")
_PAYLOAD_BYTES = attrgetter("payload_bytes")
_TRAITS = attrgetter("traits")
_IS_NONE = partial(is_, None)


class Block:
    """One appended batch in memory."""

    __slots__ = (
        "base", "count", "first_seq", "flags", "key", "live", "live_bytes", "payload_bytes", "rows", "text", "traits",
        "ts", "written",
    )  # fmt: skip

    def __init__(
        self,
        first_seq: int,
        ts: int,
        payload_bytes: int,
        base: int,
        traits: int,
        key: Keys | None,
        rows: bytes,
        text: bytes,
        written: int | None = None,
    ) -> None:
        self.first_seq = first_seq
        self.ts = ts
        self.written = ts if written is None else written
        """The wall clock time of the write, which may differ from its ts; never later than that of the next block
        (`Applier.append`)."""
        self.payload_bytes = self.live_bytes = payload_bytes
        self.count = self.live = len(rows) // ROW_BYTES
        self.base = base
        self.traits = traits
        self.key = key
        self.rows = rows
        self.text = text
        self.flags: bytearray | None = None

    @classmethod
    def of(cls, parts: BlockParts) -> "Block":
        """A block read back from the log."""
        return cls(
            parts.first_seq, parts.ts, parts.payload_bytes, parts.base, parts.traits, parts.key, parts.rows, parts.text,
            parts.written,
        )  # fmt: skip

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    @property
    def next_base(self) -> int:
        """The start of the text of the next block in the same segment."""
        return self.base + len(self.text) + 1

    @property
    def memory_bytes(self) -> int:
        return len(self.text) + len(self.rows)

    @property
    def view(self) -> View:
        return View(self.text, words(self.rows), self.base, self.count)


class Segment:
    """A sealed range of a topic. Its blocks stay in memory until its files are written; then only its metadata does."""

    __slots__ = (
        "blocks", "cold", "content_bytes", "count", "first_seq", "first_ts", "first_written", "flag_changes", "flags",
        "last_ts", "last_written", "live", "live_bytes", "marked", "named", "payload_bytes", "synced",
        "text_bytes", "traits",
    )  # fmt: skip

    def __init__(self, state: SegmentState) -> None:
        self.first_seq = state.first_seq
        self.count = state.count
        self.payload_bytes = state.payload_bytes
        self.text_bytes = state.text_bytes
        self.traits = state.traits
        self.first_ts = state.first_ts
        self.last_ts = state.last_ts
        self.first_written = state.first_written or state.first_ts
        self.last_written = state.last_written or state.last_ts
        self.live = state.live
        self.live_bytes = state.live_bytes
        self.marked = state.marked
        """The number of records that the flags mark as deleted."""
        self.cold = state.cold
        self.content_bytes = state.content_bytes
        """See `SegmentState`; includes deleted records."""
        self.blocks: list[Block] | None = None
        self.flags: bytearray | None = bytearray(state.flags) if state.flags else None
        """Kept in memory only while the flags differ from the file."""
        self.flag_changes = 1 if state.flags else 0
        """The number of changes of the flags that are not in the file."""
        self.synced = True
        """Whether both files are known to be synced."""
        self.named = False
        """Whether a checkpoint in progress names it: its files must then be written, even if it is deleted."""

    @classmethod
    def of_blocks(cls, blocks: list[Block]) -> "Segment":
        """Builds the segment of consecutive blocks, still in memory."""
        first, last = blocks[0], blocks[-1]
        # A tail may have ten thousand blocks, and this runs between two requests, so each pass runs in C.
        traits = functools.reduce(or_, set(map(_TRAITS, blocks)))
        segment = cls(
            SegmentState(
                first.first_seq, last.last_seq - first.first_seq + 1, sum(map(_PAYLOAD_BYTES, blocks)),
                last.next_base - 1 - first.base, traits, first.ts, last.ts, sum(map(_LIVE, blocks)),
                sum(map(_LIVE_BYTES, blocks)), 0, False, b"", first.written, last.written,
            )
        )  # fmt: skip
        if not all(map(_IS_NONE, map(_FLAGS, blocks))):
            segment.flags = bytearray().join([block.flags or bytes(block.count) for block in blocks])
            segment.marked = segment.flags.count(DELETED)
        segment.blocks = blocks
        segment.synced = False
        return segment

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    @property
    def has_tags(self) -> bool:
        return bool(self.traits & TRAIT_TAGS)

    def state(self) -> SegmentState:
        return SegmentState(
            self.first_seq, self.count, self.payload_bytes, self.text_bytes, self.traits, self.first_ts, self.last_ts,
            self.live, self.live_bytes, self.marked, self.cold,
            bytes(self.flags) if self.flags is not None and self.flag_changes else b"",
            self.first_written, self.last_written, self.content_bytes,
        )  # fmt: skip


Run = Block | Segment


class RunReader:
    """Access to runs in memory or on disk."""

    def __init__(self, store: SegmentStore) -> None:
        self.store = store

    def flags(self, topic_id: int, run: Run) -> bytearray | bytes | None:
        """A run's delete flags; None if no record in it is deleted."""
        flags = run.flags
        if flags is not None or isinstance(run, Block):
            return flags
        if not run.marked:
            return None
        return self.store.flags(SegmentKey(topic_id, run.first_seq, run.cold), run.count)

    def writable_flags(self, topic_id: int, run: Run) -> bytearray:
        """Mutable flags; they stay in memory until a checkpoint has written them to the file."""
        if run.flags is None:
            run.flags = bytearray(self.flags(topic_id, run) or bytes(run.count))
        if isinstance(run, Segment):
            run.flag_changes += 1
        return run.flags

    def views(
        self, topic_id: int, run: Run, lo: int, hi: int, check: bool = True, window_bytes: int = _WINDOW_BYTES
    ) -> Iterator[tuple[View, int, int, int]]:
        """Yields the views that cover records lo to before hi, each with its own lo and hi and the run index of its
        record 0.

        A sealed segment is read from its file when its view is requested, `window_bytes` of text at a time or one
        record. Without `check` only the rows may be used: no text is read.
        """
        # Read once: while another thread reads, the sealer may remove the blocks at any moment.
        blocks = None if isinstance(run, Block) else run.blocks
        if isinstance(run, Block):
            yield run.view, lo, hi, 0
        elif blocks is None:
            key = SegmentKey(topic_id, run.first_seq, run.cold)
            if not check:
                yield self.store.rows(key, run.text_bytes), lo, hi, 0
                return
            opened = self.open(topic_id, run)
            while lo < hi:
                try:
                    view = opened.window(lo, hi, window_bytes)
                except SegmentDamaged:
                    # Only a local copy may be damaged.
                    again = self.store.reopen(key)
                    if again is None:
                        raise
                    view = again.window(lo, hi, window_bytes)
                yield view, 0, view.count, lo
                lo += view.count
        else:
            for block in blocks:
                offset = block.first_seq - run.first_seq
                if offset < hi and lo < offset + block.count:
                    yield block.view, max(lo - offset, 0), min(hi - offset, block.count), offset

    def open(self, topic_id: int, segment: Segment) -> OpenSegment:
        """Opens the files of a segment without blocks, and verifies that they match the topic's state."""
        opened = self.store.open(SegmentKey(topic_id, segment.first_seq, segment.cold))
        if opened.count != segment.count or opened.text_bytes != segment.text_bytes:
            raise SegmentDamaged(opened.path, "it is another segment than the topic's state names", 0, -1)
        return opened

    def payload_bytes(self, topic_id: int, run: Run, ranges: Iterable[Range]) -> int:
        """Returns the bytes of the records in some ranges, as counted for caps."""
        total = 0
        for lo, hi in ranges:
            if hi - lo == run.count:
                return run.payload_bytes
            for view, view_lo, view_hi, _ in self.views(topic_id, run, lo, hi, check=False):
                total += sum(payload_sizes(view, view_lo, view_hi))
        return total

    def live_bytes(self, topic_id: int, run: Run, flags: bytes | bytearray | None, lo: int, hi: int) -> int:
        """The bytes of the records between `lo` and `hi` that no flag marks as deleted."""
        if flags is None or not flags.count(_DELETED, lo, hi):
            return self.payload_bytes(topic_id, run, [(lo, hi)])
        total = 0
        for view, view_lo, view_hi, offset in self.views(topic_id, run, lo, hi, check=False):
            live = flags[offset + view_lo : offset + view_hi].translate(_IS_LIVE)
            total += sum(compress(payload_sizes(view, view_lo, view_hi), live))
        return total

    def before(self, topic_id: int, run: Run, ts: int) -> int:
        """The number of records at the run's front with a lower ts."""
        if isinstance(run, Block):
            return run.count if run.ts < ts else 0
        if run.last_ts < ts:
            return run.count
        if run.first_ts >= ts:
            return 0
        if run.blocks is None:
            return self.store.index(SegmentKey(topic_id, run.first_seq, run.cold)).count_before(ts)
        return sum([block.count for block in run.blocks if block.ts < ts])

    def written_before(self, topic_id: int, run: Run, deadline: int) -> int:
        """The number of records at the run's front that were written before a moment, regardless of their ts."""
        if isinstance(run, Block):
            return run.count if run.written < deadline else 0
        if run.last_written < deadline:
            return run.count
        if run.first_written >= deadline:
            return 0
        if run.blocks is None:
            # The file may have later times than the segment has now, but none before the segment's end.
            return self.store.index(SegmentKey(topic_id, run.first_seq, run.cold)).count_written_before(deadline)
        return sum([block.count for block in run.blocks if block.written < deadline])


def block_head(block: Block) -> bytes:
    """The part of a block's encoding before its text."""
    key = block.key
    return encode_block_head(
        block.first_seq, block.ts, block.payload_bytes, block.base, block.traits,
        key.encode() if isinstance(key, str) else key or b"", block.rows, len(block.text), block.written,
    )  # fmt: skip


def live_ranges(flags: bytes | bytearray | None, lo: int, hi: int) -> list[Range]:
    """Yields the ranges between `lo` and `hi` that no flag marks as deleted. Only the exact sentinel means deleted."""
    if flags is None:
        return [(lo, hi)] if lo < hi else []
    ranges = []
    while lo < hi:
        end = flags.find(_DELETED, lo, hi)
        if end < 0:
            end = hi
        if lo < end:
            ranges.append((lo, end))
        lo = end
        while lo < hi and flags[lo] == DELETED:
            lo += 1
    return ranges


def count_live(flags: bytes | bytearray | None, lo: int, hi: int) -> int:
    """The number of records between `lo` and `hi` that no flag marks as deleted."""
    return max(hi - lo, 0) - (flags.count(_DELETED, lo, hi) if flags is not None and lo < hi else 0)


def last_live(flags: bytes | bytearray | None, lo: int, hi: int) -> int:
    """The last index between `lo` and `hi` that no flag marks as deleted; -1 if there is none."""
    if flags is None or lo >= hi:
        return hi - 1 if lo < hi else -1
    place = lo + len(flags[lo:hi].rstrip(_DELETED)) - 1
    return place if place >= lo else -1


def nth_live(flags: bytes | bytearray | None, lo: int, hi: int, number: int) -> int:
    """The index of the nth record from `lo` on that no flag marks as deleted. At least n must exist."""
    if flags is None:
        return lo + number - 1
    while hi - lo > 1:
        middle = (lo + hi) // 2
        there = count_live(flags, lo, middle)
        if there >= number:
            hi = middle
        else:
            lo, number = middle, number - there
    return lo


def first_live(flags: bytes | bytearray | None, lo: int, hi: int) -> int:
    """The first index between `lo` and `hi` that no flag marks as deleted; `hi` if there is none."""
    if flags is None or lo >= hi or flags[lo] != DELETED:
        return min(lo, hi)
    behind = flags[lo:hi]
    return hi - len(behind.lstrip(_DELETED))


def has_nodes(run: Run) -> bool:
    return bool(run.traits & TRAIT_NODES)


# Write rules: the effect of a topic's config, guard and lifecycle on writers.
#
# Every writer reads them from one object of the topic, which is replaced when one of these changes (`Topic.rules`). So
# the fast path and the general path use the same rules. Topics with equal rules share the object, which most of a
# hundred thousand topics do.


class Rules:
    __slots__ = (
        "acks_after_sync", "ceilings", "closing", "created", "guarded", "keyed", "logged", "plain", "rejects",
        "remote", "reserves", "shares", "takes_all", "usual", "waits",
    )  # fmt: skip

    def __init__(self, config: TopicConfig, published: bool, created: bool, guarded: bool, closing: bool) -> None:
        """`published` states that readers see this config as well; a config in flight is not published."""
        durability = config.durability
        self.created = created
        self.guarded = guarded
        self.closing = closing
        self.logged = durability.logged
        self.acks_after_sync = durability.acks_after_sync
        self.remote = durability is Durability.REMOTE
        """Whether acknowledgements wait for the backup storage."""
        self.reserves = durability.reserves_seqs
        self.ceilings = durability.reserves_seqs or not durability.logged
        """Whether its seqs are visible before they are on the disk, so that they need a ceiling."""
        self.waits = durability.acks_after_sync or not created
        """Whether every operation logged for it waits for a sync."""
        self.rejects = config.discard is Discard.REJECT and bool(config.cap_records or config.cap_bytes)
        """Whether it rejects records that do not fit, instead of evicting the oldest."""
        self.usual = not guarded and not closing
        """Whether operations need no check: the topic exists for every client. A deleted topic stays closing."""
        self.takes_all = not guarded and not self.rejects
        """Whether it accepts every record that the server has room for."""
        self.shares = (
            not self.rejects and created and not closing and durability.logged and not config.ttl_ms and published
            and not self.remote
        )  # fmt: skip
        """Whether single records may share a block, because no guard checks them. Records of class `remote` are checked
        one by one, since the backup storage may refuse them."""
        self.plain = self.shares and not guarded
        """Whether appends may be coalesced: no feature of the topic checks each request separately."""
        self.keyed = self.plain and config.idempotency_window_ms > 0
        """Whether appends with an idempotency key may be coalesced, too: if keys are not remembered, a block may
        contain one twice."""


_SHARED_MAX = 4096
_shared: dict[tuple[int, bool, bool, bool, bool], tuple[TopicConfig, Rules]] = {}
"""Rules by the id of their config, which they keep alive, so that its id stays unique. Configs are shared, too."""


def rules_of(config: TopicConfig, published: bool, created: bool, guarded: bool, closing: bool) -> Rules:
    key = (id(config), published, created, guarded, closing)
    found = _shared.get(key)
    if found is None:
        if len(_shared) >= _SHARED_MAX:
            _shared.clear()
        found = _shared[key] = (config, Rules(config, published, created, guarded, closing))
    return found[1]


SEQ_BASE = 1

Records = Callable[[], Sequence[Record]]
"""The records of a write. A function, because most guards do not read them."""


class Guard(Protocol):
    """Staged records of transactions belong to the user."""

    def check_append(self, topic: "Topic") -> None:
        """Raises if the topic accepts no records from any source."""
        ...

    def admit(self, topic: "Topic", records: Records, moved: bool, prepared: Any = None) -> Sequence[Record] | None:
        """Returns the records to store, or None if they are stored unchanged; raises if a record is not valid for the
        topic. `moved` states that they were first written to another topic."""
        ...

    def indifferent(self, topic: "Topic", streams: bool) -> bool:
        """Returns whether it currently accepts every record unchanged and without side effects, for users of streams or
        of topics. Called for each record, so it must be fast; False is always correct."""
        ...

    def rewrites(self, topic: "Topic") -> bool:
        """Whether `admit` may change records before they are stored."""
        ...

    def postpones(self, topic: "Topic", records: Sequence[Record], prepared: Any, retry: Callable[[Any], None]) -> bool:
        """Returns whether the decision is postponed, because the records are checked in portions or wait behind others
        that are. Then `retry` is called once: with the checked records, for this method and `admit`, or with None in
        their turn."""
        ...

    def hides(self, topic: "Topic") -> bool:
        """Whether the topic is hidden from users of topics: it is gone for everyone, or its name belongs to streams."""
        ...

    def over(self, topic: "Topic") -> bool:
        """Whether the topic is kept but is hidden from every client, including readers."""
        ...

    def content_type(self, topic: "Topic") -> str | None:
        """The content type of a topic that was used as a stream."""
        ...

    def sweep(self, topic: "Topic") -> None:
        """Begins to delete an expired topic."""
        ...

    def drop(self, topic: "Topic", done: Callable[..., None]) -> None:
        """Deletes the topic as its kind demands."""
        ...

    def removed(self, topic: "Topic") -> None:
        """Called after the topic was deleted."""
        ...

    def release(self, source: "Topic") -> None:
        """Called after a fork that read this topic's records was deleted."""
        ...


class Inheritance:
    """Inherited records of a fork, read from the topic that holds them: a link of the chain of forks.

    The work of a read must not grow with the number of forks between a stream and the stream that holds the records,
    and must not recurse. `_parent` skips ancestors without inherited records, so that `upto` shrinks at every step, and
    `_jump` skips far up the chain: together they find the holder of a seq in a logarithmic number of steps (jump
    pointers of a skew-binary list), with two fields for each fork.
    """

    __slots__ = ("_depth", "_first", "_generation", "_hidden", "_jump", "_parent", "below", "topic", "upto")

    deletes = 0
    """The number of deletes of inherited records in all topics: each invalidates the cached floors."""

    def __init__(self, topic: "Topic | None", upto: int, below: int) -> None:
        self.topic = topic
        """The source; None only until recovery has read the whole log."""
        self.upto = upto
        """The last inherited seq; the topic's own records begin after it."""
        self.below = below
        """Inherited records with a lower seq were deleted here."""
        self._parent: Topic | None = None
        self._jump: Topic | None = None
        self._depth = 0
        self._first = SEQ_BASE
        self._hidden, self._generation = 0, -1

    @property
    def parent(self) -> "Topic":
        """The nearest ancestor that holds any of the inherited records; the oldest if none does."""
        if self._parent is None:
            self._link_all()
        assert self._parent is not None
        return self._parent

    def holder(self, seq: int) -> "tuple[Topic, int]":
        """The ancestor that holds an inherited seq, and the last seq that is inherited from it."""
        at = self
        while True:
            parent = at.parent
            assert at._jump is not None
            far, near = at._jump.origin, parent.origin
            if far is not None and seq <= far.upto:
                at = far
            elif near is not None and seq <= near.upto:
                at = near
            else:
                return parent, at.upto

    def hidden_below(self) -> int:
        """The seq below which inherited records were deleted, in this topic or in one between it and their holder."""
        path, at = list[Inheritance](), self
        while at._generation != Inheritance.deletes:
            path.append(at)
            above = at.topic.origin if at.topic is not None else None
            if above is None:
                break
            at = above
        for link in reversed(path):
            above = link.topic.origin if link.topic is not None else None
            # A delete applies to records that the source inherits or holds, not to a fork's own records with the same
            # seqs.
            hidden = min(above._hidden, link.upto + 1) if above is not None else 0
            link._hidden, link._generation = max(link.below, hidden), Inheritance.deletes
        return self._hidden

    def delete_below(self, seq: int) -> None:
        """Hides inherited records in this topic and in its forks."""
        if seq > self.below:
            self.below = seq
            Inheritance.deletes += 1

    def first_readable(self) -> int | None:
        """The first inherited seq that is live; None if there is none."""
        seq, hidden = self._first, self.hidden_below()
        while (seq := max(seq, hidden)) <= self.upto:
            holder, last = self.holder(seq)
            if (found := max(seq, holder.earliest)) <= last:
                # Removed records stay removed: the next call begins here.
                self._first = found
                return found
            seq = last + 1
        self._first = self.upto + 1
        return None

    def _link_all(self) -> None:
        """Links this topic and its unlinked ancestors, the oldest first."""
        path, at = list[Inheritance](), self
        while at._parent is None:
            path.append(at)
            assert at.topic is not None
            if at.topic.origin is None:
                break
            at = at.topic.origin
        for link in reversed(path):
            link._link()

    def _link(self) -> None:
        source = self.topic
        assert source is not None
        above = source.origin
        if above is not None and self.upto <= above.upto:
            source, _ = above.holder(self.upto)
            above = source.origin
        self._parent = self._jump = source
        self._depth = 1
        if above is not None:
            self._depth = above._depth + 1
            assert above._jump is not None
            far = above._jump.origin
            if far is not None and far._jump is not None:
                farther = far._jump.origin
                if above._depth - far._depth == far._depth - (farther._depth if farther is not None else 0):
                    self._jump = far._jump


class Pager(Protocol):
    def restore(self, topic: "Topic") -> None:
        """Makes the object of a topic that is paged out the resident one."""
        ...


class Topic:
    __slots__ = (
        "__weakref__", "_closing", "_created", "_guard", "_staged_config", "cap_floor", "capture_due", "ceiling",
        "ceiling_staged", "coalesced", "config", "created_ts", "deletion_waiters", "earliest", "epoch", "evict_floor",
        "evicting", "head", "hidden_from", "id", "kept_bytes", "keys", "last_consumed_ts", "last_read_ts", "last_ts",
        "last_write_ts", "live_bytes", "live_count", "lost", "name", "next_base", "origin", "paged_out_by", "parts",
        "reserve", "reserved_at", "rules", "segments", "shard", "staged_bytes", "staged_count", "staged_head",
        "staged_ts", "sync_inflight", "tags", "tail", "tail_bytes", "tail_count", "ttl_floor", "unlogged", "waiters",
    )  # fmt: skip

    def __init__(
        self, topic_id: int, name: str, epoch: int, config: TopicConfig, created_ts: int, created: bool = False
    ) -> None:
        self.id, self.name, self.epoch = topic_id, name, epoch
        self.config = self._staged_config = config
        self.created_ts, self.shard = created_ts, 0
        self._created, self._closing = created, False
        self.capture_due = False
        """Whether a checkpoint must capture this topic's state before the next change."""
        self.paged_out_by: Pager | None = None
        """Set while the topic is paged out and this object is still referenced (`engine.topic_paging`)."""

        self.head = self.hidden_from = 0
        """The last seq that is published, and the first one that readers do not see yet (`engine.remote_acks`); 0 if
        they see all."""
        """The highest published seq."""
        self.earliest = SEQ_BASE
        """The first live seq; head + 1 if there is none. All lower seqs are removed."""
        self.evict_floor = SEQ_BASE
        """Every seq below it was evicted by a cap or by time. Only this floor triggers tombstones for evictions."""
        self.cap_floor = self.ttl_floor = SEQ_BASE
        self.live_count = self.live_bytes = self.last_ts = 0

        self.staged_head = 0
        """The highest assigned seq; equals `head` if no append is in flight."""
        self.staged_ts = self.staged_count = self.staged_bytes = self.next_base = 0
        self.sync_inflight = 0
        """The number of operations of this topic that wait for a sync. Later operations must not overtake them."""
        self.ceiling = 0
        """The ceiling: no seq above it is assigned before the ceiling is on disk (class disk)."""
        self.ceiling_staged = self.reserve = self.reserved_at = 0

        self.segments: list[Segment] = []
        self.tail: list[Block] = []
        self.tail_count = self.tail_bytes = 0
        """Records in the tail's blocks, and the memory these hold."""
        self.unlogged = False
        """The topic holds records that replay would not restore, so replay would evict less: meanwhile each eviction by
        a cap is a separate, logged decision."""
        self.evicting = False
        """Whether such a decision is in flight."""
        self.lost: list[LostRange] | None = None
        self.keys: KeyMemory | None = None
        self.kept_bytes = 0
        """Its size in the memory budgets (`engine.quotas.KeptMemory`)."""
        self.coalesced: Any = None
        """Single records that wait for the end of the tick (`engine.coalesce`), or None."""
        self.tags: object | None = None
        self.parts: dict[str, object] | None = None
        """State of features (queue, router source, stream), by feature name."""
        self._guard: Guard | None = None
        self.rules = rules_of(config, True, created, False, False)
        """The write rules of the topic, including changes in flight."""
        self.origin: Inheritance | None = None
        self.waiters: list[Callable[[], None]] | None = None
        self.deletion_waiters: list[Callable[[], None]] | None = None
        """Operations that arrived while the topic was being deleted; they apply to the next topic of its name."""
        self.last_write_ts = self.last_read_ts = self.last_consumed_ts = 0

    # Inputs of the write rules

    def _rule_anew(self) -> None:
        config = self._staged_config
        self.rules = rules_of(config, config is self.config, self._created, self._guard is not None, self._closing)

    @property
    def created(self) -> bool:
        """False while the topic's creation is in flight: the topic is not visible yet."""
        return self._created

    @created.setter
    def created(self, created: bool) -> None:
        self._created = created
        self._rule_anew()

    @property
    def closing(self) -> bool:
        """True while the topic's deletion is in flight."""
        return self._closing

    @closing.setter
    def closing(self, closing: bool) -> None:
        self._closing = closing
        self._rule_anew()

    @property
    def guard(self) -> Guard | None:
        return self._guard

    @guard.setter
    def guard(self, guard: Guard | None) -> None:
        self._guard = guard
        self._rule_anew()

    @property
    def staged_config(self) -> TopicConfig:
        """The config after all operations in flight, which decides new operations."""
        return self._staged_config

    @staged_config.setter
    def staged_config(self, config: TopicConfig) -> None:
        self._staged_config = config
        self._rule_anew()

    def configure(self, config: TopicConfig) -> None:
        """Publishes the config to readers."""
        self.config = config
        self.staged_config = config

    @property
    def next_seq(self) -> int:
        return self.head + 1

    @property
    def visible_head(self) -> int:
        """The last seq that readers see."""
        return self.hidden_from - 1 if self.hidden_from else self.head

    def notify_on_change(self, woken: Callable[[], None]) -> None:
        """Calls back once after the next change."""
        if self.paged_out_by is not None:
            self.paged_out_by.restore(self)
        if self.waiters is None:
            self.waiters = [woken]
        else:
            self.waiters.append(woken)

    def cancel_notify(self, woken: Callable[[], None]) -> None:
        """Removes the callback, if it is still pending."""
        if self.waiters is not None and woken in self.waiters:
            self.waiters.remove(woken)

    def notify_on_delete(self, again: Callable[[], None]) -> None:
        """Calls back once the topic is deleted, or the deletion failed."""
        if self.deletion_waiters is None:
            self.deletion_waiters = []
        # Appends in place: tens of thousands may wait for one deletion.
        self.deletion_waiters.append(again)

    def runs_from(self, seq: int) -> Iterator[Run]:
        """The runs that hold `seq` or a later seq, in order."""
        segments, tail = self.segments, self.tail
        if segments and segments[-1].last_seq >= seq:
            yield from segments[bisect_left(segments, seq, key=_last_seq) :]
            yield from tail[:]
        elif tail:
            yield from tail[bisect_left(tail, seq, key=_last_seq) :]

    def run_from(self, seq: int) -> Run | None:
        """The first run that holds `seq` or a later seq."""
        segments, tail = self.segments, self.tail
        if segments and segments[-1].last_seq >= seq:
            return segments[bisect_left(segments, seq, key=_last_seq)]
        if not tail:
            return None
        # With batches of equal size the distance gives the index; a queue looks up its jobs here.
        first = tail[0]
        place = (seq - first.first_seq) // first.count
        if 0 <= place < len(tail) and 0 <= seq - (guess := tail[place]).first_seq < guess.count:
            return guess
        place = bisect_left(tail, seq, key=_last_seq)
        return tail[place] if place < len(tail) else None

    def has_segment(self, segment: Segment) -> bool:
        """Returns whether a segment still holds live records."""
        place = bisect_left(self.segments, segment.last_seq, key=_last_seq)
        return place < len(self.segments) and self.segments[place] is segment

    def first_run(self) -> Run | None:
        if self.segments:
            return self.segments[0]
        return self.tail[0] if self.tail else None


def _last_seq(run: Run) -> int:
    return run.first_seq + run.count - 1
