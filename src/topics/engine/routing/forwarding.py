"""Forwards on their way: seqs of destinations for copies of a source's records, a frame and a publication for each.

A forward goes the same way as an append. What is logged is the mapping alone, unless the log does not hold the records;
what is published is a block like any other. The cursor moves with the frame: there is no moment at which a crash could
make a copy twice, or none.

A source with a thousand routers makes a thousand forwards of every batch. So forwards travel together: everything that
a tick forwards into the topics of one shard is one submission, staged in one loop and published in another.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from topics.core.durability import Durability
from topics.core.errors import TopicsError
from topics.core.loss import LossReason
from topics.core.routers import RouterRules, Stamp
from topics.engine.appending import Appender
from topics.engine.core import EngineCore
from topics.engine.operations import unstage
from topics.engine.routing.registry import Router, make_part
from topics.engine.runs import Block
from topics.engine.topic import Topic
from topics.formats.block import BASE_MAX
from topics.formats.frame import FrameKind
from topics.formats.routing import ROUTER_ID_BYTES, ForwardShape, SeqRange
from topics.storage.commit import AT_ONCE, CommitTiming, Shard, Submission
from topics.wire.copies import Copies, render
from topics.wire.fragments import Fragments

Finished = Callable[[list[Router], TopicsError | None], None]
"""Told which routers have nothing on their way any more, and what went wrong, if anything."""

_log = logging.getLogger(__name__)


class Load:
    """What a forward carries: `lost` empty places, then copies of the records in `ranges`.

    Routers of one source that stand at the same place and follow the same rules share it.
    """

    __slots__ = (
        "_framed", "_rendered", "_shape", "by_value", "copies", "count", "hops", "lost", "ranges", "rules", "shared",
        "stamp", "upto",
    )  # fmt: skip

    def __init__(
        self, lost: int, upto: int, ranges: list[SeqRange], copies: Copies | None, rules: RouterRules,
        stamp: Stamp | None, hops: int, by_value: bool,
    ) -> None:  # fmt: skip
        self.lost = lost
        self.upto = upto
        self.ranges = ranges
        self.copies = copies
        self.count = len(copies.rests) if copies is not None else 0
        self.rules = rules
        self.stamp = stamp
        self.hops = hops
        self.by_value = by_value and copies is not None
        self.shared = False
        """Whether it is the same for every router with these rules that stands at the same place."""
        self._shape = ForwardShape(ranges, rules.preserve_node, rules.preserve_tag, stamp, hops, self.by_value)
        self._rendered: tuple[int, int, int, Fragments] | None = None
        """The last rendering with its first seq, ts and base. Destinations that stand alike share it, text and all."""
        self._framed: tuple[int, int, int, bytes] | None = None
        """The same for the body of the frame, less the router's id with which it begins."""

    def first(self, count: int) -> "Load":
        """As much of it as the first few records."""
        assert self.copies is not None
        ranges = _first_of(self.ranges, count)
        copies = self.copies.first(count)
        return Load(self.lost, ranges[-1][1], ranges, copies, self.rules, self.stamp, self.hops, self.by_value)

    def render(self, first_seq: int, ts: int, base: int) -> Fragments:
        assert self.copies is not None
        known = self._rendered
        if known is not None and known[0] == first_seq and known[1] == ts and known[2] == base:
            return known[3]
        fragments = render(self.copies, first_seq, ts, base)
        self._rendered = (first_seq, ts, base, fragments)
        return fragments

    def frame(self, router: Router, first: int, ts: int, base: int, block: Block | None) -> bytes:
        """The body of the FORWARD frame, but for the text of one by value."""
        known = self._framed
        if known is None or known[0] != first or known[1] != ts or known[2] != base:
            source_id, count, size, traits = router.source.id, 0, 0, 0
            text_length, rows = 0, b""
            if block is not None:
                count, size, text_length, traits = block.count, block.payload_bytes, len(block.text), block.traits
                rows = block.rows if self.by_value else b""
            whole = self._shape.encode(
                0, source_id, self.upto, first, self.lost, ts, size, count, base, text_length, traits
            )
            known = self._framed = (first, ts, base, whole[ROUTER_ID_BYTES:] + rows)
        return router.id.to_bytes(ROUTER_ID_BYTES, "little") + known[3]


def _first_of(ranges: list[SeqRange], count: int) -> list[SeqRange]:
    """The ranges cut to their first few seqs."""
    kept: list[SeqRange] = []
    for first, last in ranges:
        kept.append((first, min(last, first + count - 1)))
        count -= last - first + 1
        if count <= 0:
            break
    return kept


class Parcel(NamedTuple):
    """A load for one destination, with everything checked that could refuse it."""

    router: Router
    dest: Topic
    load: Load


class Staged(NamedTuple):
    """One that has its seqs."""

    router: Router
    dest: Topic
    load: Load
    first: int
    block: Block | None
    ceiling: int

    @property
    def last(self) -> int:
        return self.first + self.load.lost + self.load.count - 1


class Forwarder:
    """Stages forwards."""

    def __init__(self, core: EngineCore, appender: Appender, after: Callable[[Topic], None]) -> None:
        self._core = core
        self._appender = appender
        self._after = after

    def send(self, parcels: list[Parcel], finished: Finished) -> None:
        """Gives out seqs and sends the frames on their way. No two parcels go to the same destination."""
        groups: dict[tuple[int, bool], list[Parcel]] = {}
        for parcel in parcels:
            groups.setdefault((parcel.dest.shard, self._needs_sync(parcel)), []).append(parcel)
        # Those that need no sync go first: they are not to wait for the others.
        for shard, needs_sync in sorted(groups):
            self._send(self._core.shards[shard], groups[shard, needs_sync], needs_sync, finished)

    def _needs_sync(self, parcel: Parcel) -> bool:
        dest, load = parcel.dest, parcel.load
        durability = dest.staged_config.durability
        if durability.acks_after_sync or dest.sync_inflight > 0:
            return True
        return durability.reserves_seqs and dest.staged_head + load.lost + load.count > dest.ceiling

    def _send(self, shard: Shard, parcels: list[Parcel], needs_sync: bool, finished: Finished) -> None:
        core, appender = self._core, self._appender
        shard.stage_gathered()
        now = core.now()
        pieces: list[bytes] = []
        staged: list[Staged] = []
        for parcel in parcels:
            staged.append(self._stage(shard, parcel, now, pieces))
            parcel.dest.sync_inflight += needs_sync
        core.crossings.enter(_begin)
        forwards = Forwards(core, pieces, needs_sync, staged, self._after, finished)
        if pieces or needs_sync:
            shard.submit(forwards)
        else:
            forwards.committed(AT_ONCE)
        for forward in staged:
            durability = forward.dest.staged_config.durability
            if durability is Durability.EPHEMERAL or (not forward.ceiling and durability.reserves_seqs):
                appender.reserve_ahead(forward.dest, shard, forward.last, now)

    def _stage(self, shard: Shard, parcel: Parcel, now: int, pieces: list[bytes]) -> Staged:
        router, dest, load = parcel
        first = dest.staged_head + 1
        ts = dest.staged_ts = now if now > dest.staged_ts else dest.staged_ts
        base = dest.next_base if dest.next_base < BASE_MAX else 0
        block: Block | None = None
        if load.ranges:
            text, rows, payload_bytes, traits = load.render(first + load.lost, ts, base)
            block = Block(first + load.lost, ts, payload_bytes, base, traits, None, rows, text)
            dest.next_base = block.next_base
            dest.staged_count += block.count
            dest.staged_bytes += payload_bytes
            self._core.staged_bytes += payload_bytes
        last = dest.staged_head = dest.staged_head + load.lost + load.count
        if dest.staged_config.durability.logged:
            text = block.text if block is not None and load.by_value else b""
            pieces += shard.frame(FrameKind.FORWARD, dest.id, load.frame(router, first, ts, base, block), text)
        else:
            dest.unlogged = True
        return Staged(router, dest, load, first, block, self._appender.reserve(dest, shard, last, ts, pieces))


def _begin() -> None:
    """Nothing waits for a crossing to be let in: whoever forwards has looked whether it would be."""


class Forwards(Submission):
    """Publishes copies and moves cursors; changes topics of two shards, so it is a crossing."""

    __slots__ = ("_after", "_core", "_finished", "_staged")

    def __init__(
        self, core: EngineCore, pieces: list[bytes], needs_sync: bool, staged: list[Staged],
        after: Callable[[Topic], None], finished: Finished,
    ) -> None:  # fmt: skip
        super().__init__(pieces, needs_sync)
        self._core = core
        self._staged = staged
        self._after = after
        self._finished = finished

    def committed(self, timing: CommitTiming) -> None:
        for forward in self._staged:
            try:
                self._publish(forward)
            except Exception:
                # What went wrong with one destination must not keep the copies from the others.
                _log.exception("a forward failed", extra={"router": forward.router.name})
        self._end(None)

    def failed(self, error: TopicsError) -> None:
        for _, dest, _, first, block, _ in self._staged:
            dest.sync_inflight -= self.needs_sync
            if block is not None:
                unstage(self._core, dest, block)
            dest.staged_head = min(dest.staged_head, first - 1)
        self._end(error)

    def _end(self, error: TopicsError | None) -> None:
        self._core.crossings.leave()
        self._finished([forward.router for forward in self._staged], error)

    def _publish(self, forward: Staged) -> None:
        router, dest, load, first, block, ceiling = forward
        core, applier = self._core, self._core.applier
        dest.sync_inflight -= self.needs_sync
        core.before_change(dest)
        before, floor, unlogged = dest.live_bytes, dest.evict_floor, dest.unlogged and bool(dest.segments)
        if ceiling > dest.ceiling:
            dest.ceiling = ceiling
        if load.lost:
            applier.gap(dest, first, first + load.lost - 1, LossReason.SOURCE_TRIM)
        if block is not None:
            unstage(core, dest, block)
            if load.hops:
                make_part(dest).note_hops(block.first_seq, block.last_seq, load.hops)
            applier.append(dest, block)
            self._after(dest)
            core.total_bytes += dest.live_bytes - before
            router.forwarded += load.count
        if unlogged and dest.evict_floor > floor:
            core.log_eviction(dest, expired=False)
        if dest.waiters:
            core.wake(dest)
        source = router.source
        if core.topics.get(source.id) is source:
            core.before_change(source)
        if load.upto > router.cursor:
            router.cursor = load.upto
