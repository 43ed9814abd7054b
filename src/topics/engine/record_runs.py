"""Runs of records: a block in memory or a segment on disk, with one interface for readers.

A run covers consecutive seqs without holes. `live` and `live_bytes` count what is neither deleted nor below the
topic's first live seq; `flags` marks deleted records with `DELETED`, and is None while nothing in the run was deleted.
"""

import functools
from collections.abc import Iterable, Iterator
from functools import partial
from operator import attrgetter, is_, or_

from topics.log.block import BlockParts, Keys, encode_block_head
from topics.log.segment import DELETED
from topics.log.segment_files import SegmentDamaged, SegmentKey, SegmentStore
from topics.log.snapshot import SegmentState
from topics.model.records import ROW_BYTES, TRAIT_NODES, TRAIT_TAGS, words
from topics.wire.record_slicing import Range, View, payload_sizes

_DELETED = bytes((DELETED,))
_FLAGS = attrgetter("flags")
_LIVE = attrgetter("live")
_LIVE_BYTES = attrgetter("live_bytes")
_PAYLOAD_BYTES = attrgetter("payload_bytes")
_TRAITS = attrgetter("traits")
_IS_NONE = partial(is_, None)


class Block:
    """One appended batch, whole, in memory."""

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
        """When it was written, which its ts need not say; no later than what follows it was (`Applier.append`)."""
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
        """Where the text of a block that follows this one in the same segment begins."""
        return self.base + len(self.text) + 1

    @property
    def memory_bytes(self) -> int:
        return len(self.text) + len(self.rows)

    @property
    def view(self) -> View:
        return View(self.text, words(self.rows), self.base, self.count)


class Segment:
    """A sealed span of the log. Until its files are written its blocks stay here; then only the catalog entry."""

    __slots__ = (
        "blocks", "cold", "count", "first_seq", "first_ts", "first_written", "flag_changes", "flags", "last_ts",
        "last_written", "live", "live_bytes", "marked", "named", "payload_bytes", "synced", "text_bytes", "traits",
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
        """How many records the flags mark as deleted."""
        self.cold = state.cold
        self.blocks: list[Block] | None = None
        self.flags: bytearray | None = bytearray(state.flags) if state.flags else None
        """Kept in memory only while it says more than the file does."""
        self.flag_changes = 1 if state.flags else 0
        """Counts changes of the flags that the file has not seen."""
        self.synced = True
        """Whether both files are known to survive a crash."""
        self.named = False
        """Whether a checkpoint on its way names it: its files must then be written, whatever becomes of it."""

    @classmethod
    def of_blocks(cls, blocks: list[Block]) -> "Segment":
        """The segment that consecutive blocks make, still in memory."""
        first, last = blocks[0], blocks[-1]
        # A tail may have ten thousand blocks, and this runs between two requests: only passes without Python in them.
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
            self.first_written, self.last_written,
        )  # fmt: skip


Run = Block | Segment


class RunReader:
    """Reaches into runs wherever their bytes are."""

    def __init__(self, store: SegmentStore) -> None:
        self.store = store

    def flags(self, topic_id: int, run: Run) -> bytearray | bytes | None:
        """A run's delete flags; None when nothing in it is deleted."""
        flags = run.flags
        if flags is not None or isinstance(run, Block):
            return flags
        if not run.marked:
            return None
        return self.store.flags(SegmentKey(topic_id, run.first_seq, run.cold), run.count)

    def writable_flags(self, topic_id: int, run: Run) -> bytearray:
        """Flags that may be changed; they stay in memory until a checkpoint has put them into the file."""
        if run.flags is None:
            run.flags = bytearray(self.flags(topic_id, run) or bytes(run.count))
        if isinstance(run, Segment):
            run.flag_changes += 1
        return run.flags

    def views(
        self, topic_id: int, run: Run, lo: int, hi: int, check: bool = True
    ) -> Iterator[tuple[View, int, int, int]]:
        """The views that cover records lo up to hi, each with its own lo and hi and the run index of its record 0.

        Without `check` only the rows may be used: the text behind them has not been looked at.
        """
        # Looked at once: while another thread reads, the sealer may take the blocks away at any moment.
        blocks = None if isinstance(run, Block) else run.blocks
        if isinstance(run, Block):
            yield run.view, lo, hi, 0
        elif blocks is None:
            key = SegmentKey(topic_id, run.first_seq, run.cold)
            view = self._checked(key, lo, hi) if check else self.store.rows(key, run.text_bytes)
            yield view, lo, hi, 0
        else:
            for block in blocks:
                offset = block.first_seq - run.first_seq
                if offset < hi and lo < offset + block.count:
                    yield block.view, max(lo - offset, 0), min(hi - offset, block.count), offset

    def _checked(self, key: SegmentKey, lo: int, hi: int) -> View:
        opened = self.store.open(key)
        try:
            opened.check(lo, hi)
        except SegmentDamaged:
            # It may only be a copy that is wrong.
            again = self.store.reopen(key)
            if again is None:
                raise
            opened = again
            opened.check(lo, hi)
        return opened.view

    def payload_bytes(self, topic_id: int, run: Run, ranges: Iterable[Range]) -> int:
        """The bytes of the records in some ranges, as caps count them."""
        total = 0
        for lo, hi in ranges:
            if hi - lo == run.count:
                return run.payload_bytes
            for view, view_lo, view_hi, _ in self.views(topic_id, run, lo, hi, check=False):
                total += sum(payload_sizes(view, view_lo, view_hi))
        return total

    def before(self, topic_id: int, run: Run, ts: int) -> int:
        """How many records from the run's front have a lower ts."""
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
        """How many records from the run's front were written before a moment, whatever their ts says."""
        if isinstance(run, Block):
            return run.count if run.written < deadline else 0
        if run.last_written < deadline:
            return run.count
        if run.first_written >= deadline:
            return 0
        if run.blocks is None:
            # The file may have later times than the segment has by now, but none that matters on this side of its end.
            return self.store.index(SegmentKey(topic_id, run.first_seq, run.cold)).count_written_before(deadline)
        return sum([block.count for block in run.blocks if block.written < deadline])


def block_head(block: Block) -> bytes:
    """Everything of a block's encoding before its text."""
    key = block.key
    return encode_block_head(
        block.first_seq, block.ts, block.payload_bytes, block.base, block.traits,
        key.encode() if isinstance(key, str) else key or b"", block.rows, len(block.text), block.written,
    )  # fmt: skip


def live_ranges(flags: bytes | bytearray | None, lo: int, hi: int) -> list[Range]:
    """The spans between `lo` and `hi` that no flag marks as deleted. Only the exact sentinel means deleted."""
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


def first_live(flags: bytes | bytearray | None, lo: int, hi: int) -> int:
    """The first index between `lo` and `hi` that no flag marks as deleted; `hi` when there is none."""
    if flags is None or lo >= hi or flags[lo] != DELETED:
        return min(lo, hi)
    behind = flags[lo:hi]
    return hi - len(behind.lstrip(_DELETED))


def has_nodes(run: Run) -> bool:
    return bool(run.traits & TRAIT_NODES)
