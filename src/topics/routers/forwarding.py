"""Exactly-once forwarding: copies of a source's records and the router's cursor are one frame, logged and published.

Routers of both guarantees forward this way; exactly-once routers also stamp their copies and search for earlier copies
before the first forward (`plan_search`). `routers.pump` calls it.

A forward uses the same path as an append. Only the mapping is logged, unless the log does not hold the records; the
published block is an ordinary one. The cursor moves with the frame, so a crash can neither duplicate nor lose a copy.

A source with a thousand routers makes a thousand forwards of every batch. So forwards are batched: all forwards of a
tick into the topics of one shard are one submission, staged in one loop and published in another.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from topics.engine.core import EngineCore
from topics.engine.topic import Block, Run, RunReader, Topic, live_ranges
from topics.engine.write_path import FrameDraft, LogOperation, SharedFrame, WritePath
from topics.log.commit_requests import CommitTiming
from topics.log.forward_frames import encode_forwards
from topics.log.frame import BASE_MAX, FrameKind
from topics.model.errors import TopicsError
from topics.model.records import TRAIT_META
from topics.model.router_rules import RouterRules, Stamp
from topics.model.seq_ranges import LossReason
from topics.routers.registry import Registry, Router, make_part
from topics.routers.router_frames import ROUTER_ID_BYTES, ForwardShape, SeqRange
from topics.wire.record_copies import Copies, RecordSlice, render, stamp_in, stamp_mark
from topics.wire.record_encoding import Fragments
from topics.wire.record_slicing import View

_SHARED_MIN = 4
"""The number of forwards of the same records from which they share one frame."""

Finished = Callable[[list[Router], TopicsError | None], None]
"""Called with the routers whose forwards have ended, and the error, if any."""


class Load:
    """The content of a forward: `lost` empty seqs, then copies of the records in `ranges`.

    Routers of one source with the same cursor and the same rules share it.
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
        """Whether it is the same for every router with these rules and this cursor."""
        self._shape = ForwardShape(ranges, rules.preserve_node, rules.preserve_tag, stamp, hops, self.by_value)
        self._rendered: tuple[int, int, int, Fragments] | None = None
        """The last rendering with its first seq, ts and base. Destinations with the same head share it."""
        self._framed: tuple[int, int, int, int, bytes] | None = None
        """The last body of a frame with its first seq, ts, base and moment, less the router's id at its beginning."""

    def first(self, count: int) -> "Load":
        """The load reduced to its first `count` records."""
        assert self.copies is not None
        ranges = _first_of(self.ranges, count)
        copies = self.copies.first(count)
        return Load(self.lost, ranges[-1][1], ranges, copies, self.rules, self.stamp, self.hops, self.by_value)

    def by_its_value(self, copies: Copies) -> "Load":
        """The records in the form that their destination stores."""
        return Load(self.lost, self.upto, self.ranges, copies, self.rules, self.stamp, self.hops, by_value=True)

    def render(self, first_seq: int, ts: int, base: int) -> Fragments:
        assert self.copies is not None
        known = self._rendered
        if known is not None and known[0] == first_seq and known[1] == ts and known[2] == base:
            return known[3]
        fragments = render(self.copies, first_seq, ts, base)
        self._rendered = (first_seq, ts, base, fragments)
        return fragments

    def frame(self, router: Router, first: int, ts: int, base: int, now: int, block: Block | None) -> bytes:
        """Returns the body of the FORWARD frame, without the text of a forward by value."""
        known = self._framed
        if known is None or known[:4] != (first, ts, base, now):
            source_id, count, size, traits = router.source.id, 0, 0, 0
            text_length, rows = 0, b""
            if block is not None:
                count, size, text_length, traits = block.count, block.payload_bytes, len(block.text), block.traits
                rows = block.rows if self.by_value else b""
            whole = self._shape.encode(
                0, source_id, self.upto, first, self.lost, ts, size, count, base, text_length, traits, now
            )
            known = self._framed = (first, ts, base, now, whole[ROUTER_ID_BYTES:] + rows)
        return router.id.to_bytes(ROUTER_ID_BYTES, "little") + known[4]


def _first_of(ranges: list[SeqRange], count: int) -> list[SeqRange]:
    """The ranges cut to their first few seqs."""
    kept: list[SeqRange] = []
    for first, last in ranges:
        kept.append((first, min(last, first + count - 1)))
        count -= last - first + 1
        if count <= 0:
            break
    return kept


class CopyBatch(msgspec.Struct, frozen=True, gc=False):
    """A load for one destination that has passed all checks. A thousand are made for one record, so the class is the
    fastest to instantiate."""

    router: Router
    dest: Topic
    load: Load


class Forward(LogOperation):
    """Publishes the copies for one destination and moves the router's cursor."""

    __slots__ = ("base", "load", "router", "ts")

    def __init__(
        self, path: WritePath, batch: CopyBatch, first_seq: int, block: Block | None, ts: int, base: int
    ) -> None:
        # All fields are set here instead of through another constructor: a thousand of these are made for one record.
        self.path = path
        self.router = batch.router
        self.topic = batch.dest
        self.load = batch.load
        self.frames = ()
        self.block = block
        self.first_seq = first_seq
        self.ceiling = self.last_lsn = 0
        self.needs_sync = False
        self.ts = ts
        self.base = base

    def frame(self, now: int) -> FrameDraft:
        """The separate frame of this forward."""
        load, block = self.load, self.block
        text = block.text if block is not None and load.by_value else b""
        return FrameKind.FORWARD, load.frame(self.router, self.first_seq, self.ts, self.base, now, block), text

    def apply(self, timing: CommitTiming) -> None:
        engine, dest, router, load = self.path.engine, self.topic, self.router, self.load
        if load.lost:
            engine.applier.gap(dest, self.first_seq, self.first_seq + load.lost - 1, LossReason.SOURCE_TRIM)
        block = self.block
        if block is not None:
            if load.hops:
                make_part(dest).note_hops(block.first_seq, block.last_seq, load.hops)
            self.publish()
            router.forwarded += load.count
        source = router.source
        if engine.exists(source):
            engine.before_change(source)
        if load.upto > router.cursor:
            router.cursor = load.upto

    def undo(self, error: TopicsError) -> None:
        """The failure leaves the router's cursor unchanged."""


def _share_frames(forwards: list[Forward], now: int) -> list[SharedFrame]:
    """Gives each logged forward a frame, or a part of a shared one."""
    groups: dict[tuple[int, int, int], list[Forward]] = {}
    last: tuple[int, int, int] | None = None
    alike: list[Forward] = []
    for forward in forwards:
        load, block = forward.load, forward.block
        if not forward.topic.rules.logged:
            continue
        if load.by_value:
            forward.frames = [forward.frame(now)]
            continue
        key = (id(load), forward.ts, len(block.text) if block is not None else 0)
        if key != last:
            last, alike = key, groups.setdefault(key, [])
        alike.append(forward)
    shared: list[SharedFrame] = []
    for group in groups.values():
        if len(group) < _SHARED_MIN:
            for forward in group:
                forward.frames = [forward.frame(now)]
            continue
        source, pattern = group[0].router.source.id, group[0].frame(now)[1]
        routers, dests = [one.router.id for one in group], [one.topic.id for one in group]
        columns = (routers, dests, [one.first_seq for one in group], [one.base for one in group])
        body = encode_forwards(pattern, columns)
        shared.append((FrameKind.FORWARDS, source, body))
    return shared


class Forwarder:
    """Stages forwards."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    def send(self, batches: list[CopyBatch], finished: Finished) -> None:
        """Assigns seqs and logs the frames. No two batches have the same destination."""
        groups: dict[tuple[int, bool, bool], list[CopyBatch]] = {}
        waits = self._core.path.waits
        for batch in batches:
            dest, load = batch.dest, batch.load
            key = (dest.shard, waits(dest, dest.staged_head + load.lost + load.count, False), dest.rules.logged)
            if key in groups:
                groups[key].append(batch)
            else:
                groups[key] = [batch]
        # Forwards without a sync go first, so that they do not wait for the others.
        for group in sorted(groups):
            self._send(group[0], groups[group], finished)

    def _send(self, shard: int, batches: list[CopyBatch], finished: Finished) -> None:
        core = self._core
        core.path.stage_coalesced(shard)
        now = core.wall()
        forwards = self._stage(batches, now)
        shared = _share_frames(forwards, now)
        # No admission check: the caller has already checked.
        core.cross_shard_gate.enter(lambda: None)

        def done(error: TopicsError | None) -> None:
            core.cross_shard_gate.leave()
            finished([batch.router for batch in batches], error)

        core.path.log_together(forwards, done, shared=shared)

    def _stage(self, batches: list[CopyBatch], now: int) -> list[Forward]:
        """Assigns seqs. Destinations with the same head share one list object: a thousand separate lists would be
        scattered in memory, and a shared one stays in the processor's cache."""
        core, path = self._core, self._core.path
        forwards: list[Forward] = []
        like: Load | None = None
        head = ts = begin = first = start = last = base = next_base = 0
        text = rows = b""
        payload_bytes = traits = 0
        for batch in batches:
            dest, load = batch.dest, batch.load
            moment = dest.staged_ts if dest.staged_ts > now else now
            if load is not like or dest.staged_head != head or dest.next_base != begin or moment != ts:
                like, head, begin, ts = load, dest.staged_head, dest.next_base, moment
                first, start, last = head + 1, head + load.lost + 1, head + load.lost + load.count
                base = begin if begin < BASE_MAX else 0
                if load.ranges:
                    text, rows, payload_bytes, traits = load.render(start, ts, base)
                next_base = 0
            block: Block | None = None
            if load.ranges:
                block = Block(start, ts, payload_bytes, base, traits, None, rows, text, now)
                next_base = dest.next_base = next_base or block.next_base
                dest.staged_count += block.count
                dest.staged_bytes += payload_bytes
                core.staged_bytes += payload_bytes
            dest.staged_head, dest.staged_ts = last, ts
            forwards.append(Forward(path, batch, first, block, ts, base))
        return forwards


# The forwards of one tick: batches for destinations that accept every record.
#
# The routers of one source mostly have the same cursor, the same rules and destinations with the same config. Then the
# first decides for all: the others get the same load after a few comparisons.


class ForwardBatches:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._batches: list[CopyBatch] = []
        self._examples: dict[int, CopyBatch] = {}
        """The last forward that can serve as an example for others, by the shard of its destination. Its router's
        cursor does not move meanwhile."""

    def add(self, batch: CopyBatch, is_example: bool) -> None:
        """`is_example` states that the outcome holds for every router of the source that equals this one in the fields
        that `goes_along` compares."""
        batch.router.inflight = True
        self._batches.append(batch)
        if is_example:
            self._examples[batch.dest.shard] = batch

    def goes_along(self, router: Router) -> bool:
        """Repeats the forward of another router of the same source, if only the destination differs.

        The checks are the pump's own, as far as their outcome may differ between the two.
        """
        dest = router.dest
        example = self._examples.get(dest.shard) if dest is not None else None
        if example is None or dest is None:
            return False
        known, like = example.router, example.dest
        if (
            router.source is not known.source
            or router.cursor != known.cursor
            or (router.rules is not known.rules and router.rules != known.rules)
            # Equal configs have the same rules object.
            or (dest.rules is not like.rules and dest.staged_config != like.staged_config)
            or not dest.rules.usual
            or router.closing
            or router.inflight
            or router.cyclic
            or router.dedupe_upto > router.cursor
            or not router.alone
        ):
            return False
        # Every router starts with its own rules object; sharing one makes the next comparison an identity check.
        router.rules = known.rules
        router.inflight = True
        self._batches.append(CopyBatch(router, dest, example.load))
        return True

    def take(self) -> list[CopyBatch]:
        """Returns the forwards so far and starts anew."""
        batches, self._batches = self._batches, []
        self._examples.clear()
        return batches


# Deduplication of an `exactly_once` router: its earlier copies are the evidence of what it has copied.
#
# Normally the cursor prevents duplicate copies. It cannot if a router is deleted and created again over records that
# the first one has copied. Then, once, the destination is searched for copies that carry this router's stamp. Records
# that were deleted or evicted there since have left no evidence and are copied again.


class CopyLookup(NamedTuple):
    """A consistent view of the runs to search."""

    topic_id: int
    stamp: Stamp
    earliest: int
    runs: list[tuple[Run, bytes | None]]


def plan_search(dest: Topic, stamp: Stamp) -> CopyLookup:
    runs = [
        (run, None if run.flags is None else bytes(run.flags))
        for run in dest.runs_from(dest.earliest)
        if run.traits & TRAIT_META
    ]
    return CopyLookup(dest.id, stamp, dest.earliest, runs)


def find_copies(search: CopyLookup, reader: RunReader) -> list[SeqRange]:
    """The source seqs whose copies exist. It reads only immutable state, so it may run on any thread."""
    found: set[int] = set()
    for run, flags in search.runs:
        known = flags if flags is not None else reader.flags(search.topic_id, run)
        for begin, end in live_ranges(known, max(search.earliest - run.first_seq, 0), run.count):
            for view, lo, hi, _ in reader.views(search.topic_id, run, begin, end):
                found.update(_stamped(view, lo, hi, search.stamp))
    return as_ranges(sorted(found))


def _stamped(view: View, lo: int, hi: int, stamp: Stamp) -> list[int]:
    """The source seqs in the stamps of fragments; only fragments that contain the mark are parsed."""
    text, mark = bytes(view.whole(lo, hi)), stamp_mark(stamp)
    offset = view.start(lo)
    starts = [view.start(index) - offset for index in range(lo, hi)]
    found: list[int] = []
    at = text.find(mark)
    while at >= 0:
        index = lo + bisect_right(starts, at) - 1
        seq = stamp_in(view, index, stamp)
        if seq is not None:
            found.append(seq)
        at = text.find(mark, view.start(index + 1) - offset)
    return found


def as_ranges(seqs: list[int]) -> list[SeqRange]:
    ranges: list[SeqRange] = []
    for seq in seqs:
        if ranges and ranges[-1][1] + 1 == seq:
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return ranges


def absent(slices: list[RecordSlice], present: list[SeqRange]) -> list[int]:
    """The seqs of some slices that are in none of the ranges."""
    kept: list[int] = []
    lasts = [last for _, last in present]
    for slice_ in slices:
        for seq in range(slice_.first_seq, slice_.last_seq + 1):
            place = bisect_right(lasts, seq - 1)
            if place == len(present) or seq < present[place][0]:
                kept.append(seq)
    return kept
