"""A forward on its way: seqs of the destination for copies of the source's records, one frame, one publication.

It goes the same way as an append. What is logged is the mapping alone, unless the log does not hold the records; what
is published is a block like any other. The cursor moves with the frame: there is no moment at which a crash could make
a copy twice, or none.
"""

from collections.abc import Callable

from topics.core.durability import Durability
from topics.core.errors import TopicsError
from topics.core.loss import LossReason
from topics.core.routers import RouterRules, Stamp
from topics.engine.appending import Appender
from topics.engine.core import EngineCore
from topics.engine.operations import TopicOperation, unstage
from topics.engine.routing.registry import Router, make_part
from topics.engine.runs import Block
from topics.engine.topic import Topic
from topics.formats.block import BASE_MAX
from topics.formats.frame import FrameKind
from topics.formats.routing import ForwardShape, SeqRange
from topics.storage.commit import CommitTiming
from topics.wire.copies import Copies, render
from topics.wire.fragments import Fragments

Finished = Callable[[Router, TopicsError | None], None]


class Load:
    """What a forward carries: `lost` empty places, then copies of the records in `ranges`.

    Routers of one source that stand at the same place and follow the same rules share it.
    """

    __slots__ = ("_rendered", "_shape", "by_value", "copies", "hops", "lost", "ranges", "rules", "stamp", "upto")

    def __init__(
        self, lost: int, upto: int, ranges: list[SeqRange], copies: Copies | None, rules: RouterRules,
        stamp: Stamp | None, hops: int, by_value: bool,
    ) -> None:  # fmt: skip
        self.lost = lost
        self.upto = upto
        self.ranges = ranges
        self.copies = copies
        self.rules = rules
        self.stamp = stamp
        self.hops = hops
        self.by_value = by_value and copies is not None
        self._shape = ForwardShape(ranges, rules.preserve_node, rules.preserve_tag, stamp, hops, self.by_value)
        self._rendered: tuple[int, int, int, Fragments] | None = None
        """The last rendering with its first seq, ts and base. Destinations that stand alike share it, text and all."""

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
        if block is None:
            return self._shape.encode(router.id, router.source.id, self.upto, first, self.lost, ts, 0, 0, base, 0, 0)
        head = self._shape.encode(
            router.id, router.source.id, self.upto, first, self.lost, ts, block.payload_bytes, block.count, base,
            len(block.text), block.traits,
        )  # fmt: skip
        return head + block.rows if self.by_value else head


def _first_of(ranges: list[SeqRange], count: int) -> list[SeqRange]:
    """The ranges cut to their first few seqs."""
    kept: list[SeqRange] = []
    for first, last in ranges:
        kept.append((first, min(last, first + count - 1)))
        count -= last - first + 1
        if count <= 0:
            break
    return kept


class Forwarder:
    """Stages forwards. Everything that can be refused was checked before."""

    def __init__(self, core: EngineCore, appender: Appender, after: Callable[[Topic], None]) -> None:
        self._core = core
        self._appender = appender
        self._after = after

    def send(self, router: Router, dest: Topic, load: Load, finished: Finished) -> None:
        """Gives out seqs and sends the frame on its way; must be called inside a crossing, which it leaves."""
        core, appender = self._core, self._appender
        shard, durability = core.shards[dest.shard], dest.staged_config.durability
        shard.stage_gathered()
        first = dest.staged_head + 1
        ts = dest.staged_ts = max(core.now(), dest.staged_ts)
        base = dest.next_base if dest.next_base < BASE_MAX else 0
        block: Block | None = None
        if load.ranges:
            text, rows, payload_bytes, traits = load.render(first + load.lost, ts, base)
            block = Block(first + load.lost, ts, payload_bytes, base, traits, None, rows, text)
            dest.next_base = block.next_base
            dest.staged_count += block.count
            dest.staged_bytes += payload_bytes
            core.staged_bytes += payload_bytes
            dest.staged_head += block.count
        last = dest.staged_head = dest.staged_head + load.lost
        pieces: list[bytes] = []
        if durability.logged:
            text = block.text if block is not None and load.by_value else b""
            pieces = shard.frame(FrameKind.FORWARD, dest.id, load.frame(router, first, ts, base, block), text)
        else:
            dest.unlogged = True
        ceiling = appender.reserve(dest, shard, last, ts, pieces)
        needs_sync = (
            durability.acks_after_sync or dest.sync_inflight > 0 or (durability.reserves_seqs and last > dest.ceiling)
        )
        operation = ForwardOperation(
            core, dest, pieces, needs_sync, router, load, first, block, ceiling, self._after, finished
        )
        if pieces or needs_sync:
            shard.submit(operation)
        else:
            operation.committed(CommitTiming())
        if durability is Durability.EPHEMERAL or (ceiling == 0 and durability.reserves_seqs):
            appender.reserve_ahead(dest, shard, last, ts)


class ForwardOperation(TopicOperation):
    """Publishes the copies and moves the cursor; changes two topics, so it is a crossing."""

    __slots__ = ("_after", "_block", "_ceiling", "_finished", "_first", "_load", "_router")

    def __init__(
        self, core: EngineCore, dest: Topic, pieces: list[bytes], needs_sync: bool, router: Router, load: Load,
        first: int, block: Block | None, ceiling: int, after: Callable[[Topic], None], finished: Finished,
    ) -> None:  # fmt: skip
        super().__init__(core, dest, pieces, needs_sync)
        self._router = router
        self._load = load
        self._first = first
        self._block = block
        self._ceiling = ceiling
        self._after = after
        self._finished = finished

    def committed(self, timing: CommitTiming) -> None:
        try:
            super().committed(timing)
        finally:
            self._core.crossings.leave()
            self._finished(self._router, None)

    def failed(self, error: TopicsError) -> None:
        try:
            super().failed(error)
        finally:
            self._core.crossings.leave()
            self._finished(self._router, error)

    def apply(self, timing: CommitTiming) -> None:
        core, dest, load, block = self._core, self.topic, self._load, self._block
        if block is not None:
            unstage(core, dest, block)
        if self._ceiling > dest.ceiling:
            dest.ceiling = self._ceiling
        if load.lost:
            core.applier.gap(dest, self._first, self._first + load.lost - 1, LossReason.SOURCE_TRIM)
        if block is not None:
            if load.hops:
                make_part(dest).note_hops(block.first_seq, block.last_seq, load.hops)
            core.applier.append(dest, block)
            self._after(dest)
        router = self._router
        source = router.source
        if core.topics.get(source.id) is source:
            core.before_change(source)
        router.cursor = max(router.cursor, load.upto)
        router.forwarded += block.count if block is not None else 0

    def undo(self, error: TopicsError) -> None:
        if self._block is not None:
            unstage(self._core, self.topic, self._block)
        self.topic.staged_head = min(self.topic.staged_head, self._first - 1)
