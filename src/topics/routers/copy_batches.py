"""Copy batches: the next records of a router, gathered, filtered and limited to what its destination accepts.

Routers of one source mostly have the same cursor and the same rules. So slices and loads are cached while others are
due, and the work is done once for all of them.
"""

from typing import NamedTuple

import msgspec

from topics.engine.core import EngineCore
from topics.engine.quotas import fits_into, memory_of, records_that_fit
from topics.engine.read import lost_from, match_text
from topics.engine.topic import Block, Run, RunReader, Segment, Topic, live_ranges
from topics.model.errors import BatchTooLargeError, ThrottledError, TopicsError
from topics.model.records import ROW_WORDS
from topics.model.router_rules import TagMatch
from topics.model.seq_ranges import LossReason
from topics.routers.forwarding import Load, absent
from topics.routers.registry import Router, RouterPart
from topics.routers.router_frames import SeqRange
from topics.schema.documents import MAX_PORTION
from topics.streams.chunked_validation import is_schema_refusal
from topics.streams.stream_state import stream_of
from topics.wire.record_copies import CopyChange, RecordSlice, copies_of, cut_copies, filtered, records_of
from topics.wire.record_slicing import View, end_that_fits, tag_texts

# Gathers the next records of a router: from its cursor on, a bounded range of the source's records.
#
# The plan is made on the loop from the topic's state, and records are fetched from immutable runs; so another thread
# can fetch a plan that reads the cold folder.

RECORDS_MAX = 1024
"""The maximum number of source records in one pass of a router."""
TEXT_BYTES_MAX = 1024 * 1024


class GatherPlan(NamedTuple):
    """A consistent view of the range to gather."""

    topic_id: int
    cursor: int
    lost: int
    """The number of records after the cursor that were lost, not deleted on request."""
    start: int
    upto: int
    """The last seq to read."""
    runs: list[tuple[Run, bytes | None]]
    """Each run with its delete flags, if they are in memory, as of that moment."""

    @property
    def cold(self) -> bool:
        return any(isinstance(run, Segment) and run.cold and run.blocks is None for run, _ in self.runs)


class Gathered(msgspec.Struct, frozen=True):
    """The found records: `lost` empty seqs, then the records; the cursor may move to `upto`."""

    lost: int
    upto: int
    slices: list[RecordSlice]
    count: int


def plan_gather(topic: Topic, cursor: int, last: int, held: list[Block] | None = None) -> GatherPlan:
    """Plans the records after a cursor, up to a seq. `held` are blocks that a cap may have evicted already."""
    if held and cursor + 1 < topic.evict_floor:
        plan = _plan_held(topic, cursor, last, held)
        if plan is not None:
            return plan
    lost, at = 0, cursor
    if at + 1 < topic.evict_floor:
        lost = min(topic.evict_floor - 1, last) - at
        at += lost
    end = last
    for known in lost_from(topic, at + 1):
        if known.from_seq > at + 1:
            # Reported by a separate forward, after the records before it.
            end = min(end, known.from_seq - 1)
            break
        gone = min(known.to_seq, last) - at
        # Records that a class without that promise loses in a crash are not lost in its destinations, which have their
        # copies.
        if known.reason is not LossReason.CRASH or topic.config.durability.logged:
            lost += gone
        at += gone
    start, room = max(at + 1, topic.earliest), RECORDS_MAX
    runs: list[tuple[Run, bytes | None]] = []
    for run in topic.runs_from(start) if start <= end else ():
        if run.first_seq > end:
            break
        if room <= 0:
            end = run.first_seq - 1
            break
        runs.append((run, None if run.flags is None else bytes(run.flags)))
        room -= run.live if run.first_seq >= start else 0
    return GatherPlan(topic.id, cursor, lost, start, max(end, at), runs)


def _plan_held(topic: Topic, cursor: int, last: int, held: list[Block]) -> GatherPlan | None:
    """Records that a cap evicted from the topic and that are still in memory: they are not lost to the routers."""
    blocks = [block for block in held if block.last_seq > cursor and block.first_seq <= last]
    if not blocks:
        return None
    start = max(cursor + 1, blocks[0].first_seq)
    runs: list[tuple[Run, bytes | None]] = []
    end = start - 1
    for block in blocks:
        if block.first_seq > end + 1:
            break
        runs.append((block, None if block.flags is None else bytes(block.flags)))
        end = min(block.last_seq, last)
    return GatherPlan(topic.id, cursor, start - 1 - cursor, start, end, runs)


def fetch(plan: GatherPlan, reader: RunReader) -> Gathered:
    """Fetches the records. Raises SegmentDamaged if they cannot be read."""
    slices: list[RecordSlice] = []
    count, room, upto = 0, TEXT_BYTES_MAX, plan.upto
    for run, known in plan.runs:
        flags = known if known is not None else reader.flags(plan.topic_id, run)
        lo = max(plan.start - run.first_seq, 0)
        hi = min(plan.upto + 1 - run.first_seq, run.count)
        for begin, live_end in live_ranges(flags, lo, hi):
            end = min(live_end, begin + RECORDS_MAX - count)
            for view, view_lo, view_hi, offset in reader.views(plan.topic_id, run, begin, end):
                fit = end_that_fits(view, view_lo, view_hi, room)
                if fit == view_lo and not count:
                    fit += 1
                if fit > view_lo:
                    slices.append(_held(RecordSlice(view, view_lo, fit, run.first_seq + offset), run))
                    count += fit - view_lo
                    room -= view.start(fit) - view.start(view_lo)
                if fit < view_hi:
                    return Gathered(plan.lost, run.first_seq + offset + fit - 1, slices, count)
            if count >= RECORDS_MAX:
                upto = run.first_seq + end - 1
                return Gathered(plan.lost, upto, slices, count)
    return Gathered(plan.lost, upto, slices, count)


def _held(slice_: RecordSlice, run: Run) -> RecordSlice:
    """A slice that is independent of the segment's files, which may be removed at any moment."""
    if isinstance(run, Block) or run.blocks is not None:
        return slice_
    view, lo, hi, origin = slice_
    rows = memoryview(view.rows[ROW_WORDS * lo : ROW_WORDS * hi].tobytes()).cast("I")
    return RecordSlice(View(bytes(view.whole(lo, hi)), rows, rows[0], hi - lo), 0, hi - lo, origin + lo)


_SHARED_MAX = 64
"""Maximum number of cached source ranges."""

Place = tuple[int, int, int]
"""A source's id, a cursor in it, and the last seq to read."""


class Packer:
    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._gathered: dict[Place, Gathered] = {}
        self._loads: dict[tuple[object, ...], Load] = {}

    def forget(self, others_are_due: bool) -> None:
        """Evicts unused ranges. Called after a tick."""
        if not others_are_due or len(self._gathered) > _SHARED_MAX:
            self._gathered.clear()
            self._loads.clear()

    def known(self, place: Place) -> Gathered | None:
        return self._gathered.get(place)

    def keep(self, place: Place, gathered: Gathered) -> None:
        self._gathered[place] = gathered

    def gather(self, source: Topic, part: RouterPart, place: Place) -> Gathered | GatherPlan:
        """The records of a range; only a plan if the cold folder must be read, which is not allowed on the loop."""
        plan = plan_gather(source, place[1], place[2], part.held)
        if plan.cold:
            return plan
        gathered = self._gathered[place] = fetch(plan, self._core.reader)
        return gathered

    def load(self, router: Router, part: RouterPart, gathered: Gathered, hops: int) -> Load:
        """The copies for a router; routers with the same rules share them."""
        rules, stamp = router.rules, router.stamp()
        # Decided now and not at gathering: a checkpoint may have happened in between.
        by_value = not in_log(router.source, part, router.cursor + 1)
        key = (id(gathered), rules, stamp, hops, by_value)
        known = self._loads.get(key)
        if known is not None:
            return known
        slices: list[RecordSlice] = gathered.slices
        if rules.filter is not None:
            slices = filtered(slices, _passing(slices, rules.filter))
        if router.present:
            slices = filtered(slices, absent(slices, router.present))
        copies = cut_copies(slices, CopyChange(rules.preserve_node, rules.preserve_tag, stamp)) if slices else None
        load = Load(gathered.lost, gathered.upto, _ranges(slices), copies, rules, stamp, hops, by_value)
        if not router.present:
            self._loads[key] = load
            # A stamp contains the router's name.
            load.shared = stamp is None
        return load

    def takes_all(self, dest: Topic) -> bool:
        """Returns whether a destination accepts every load, so that no check for room is needed."""
        return dest.rules.takes_all and not self._core.metered and not self._core.memory.pressed

    def admitted(self, dest: Topic, load: Load) -> Load | TopicsError:
        """The accepted part of a load: all of it, or the records before the first refused one. The error if nothing is
        accepted, not even a gap: a stream may be closed or expired."""
        if dest.guard is None:
            return load
        state = stream_of(dest)
        if load.count > MAX_PORTION and state is not None and state.staged_description is not None:
            # Checking records takes longer than forwarding them.
            load = load.first(MAX_PORTION)
        copies = load.copies
        try:
            records = self._core.path.admit(dest, lambda: records_of(copies) if copies is not None else (), moved=True)
        except TopicsError as error:
            before = _taken_before(error, load.count)
            return self.admitted(dest, load.first(before)) if before else error
        # Replay cannot find a changed record in the source.
        return load if records is None else load.by_its_value(copies_of(records))

    def fitting(self, dest: Topic, load: Load) -> Load | TopicsError:
        """The part of a load that fits into the destination; the error if nothing fits."""
        core, copies = self._core, load.copies
        if copies is None:
            return load
        core.expire(dest)
        taken, refused = records_that_fit(dest, copies.sizes, core.limits.max_total_bytes, core.used_bytes)
        if core.metered and taken:
            within = fits_into(core.quotas, dest, copies.sizes[:taken])
            taken, refused = (taken, refused) if within == taken else (within, core.quotas.over_bytes())
        if core.memory.pressed and taken and not dest.rules.logged:
            try:
                core.memory.check(dest, memory_of(taken, sum(copies.sizes[:taken])))
            except ThrottledError as error:
                taken, refused = 0, error
        if refused is None:
            return load
        return load.first(taken) if taken else refused


def _taken_before(refusal: TopicsError, count: int) -> int:
    """The number of records before the refused one, if records are refused for their content."""
    if not is_schema_refusal(refusal) or count <= 1:
        return 0
    if isinstance(refusal, BatchTooLargeError):
        return count // 2
    index = refusal.detail.get("index")
    return index if isinstance(index, int) else 0


def in_log(source: Topic, part: RouterPart, seq: int) -> bool:
    """Returns whether the log after the last checkpoint holds this record, and so all later ones."""
    return seq > part.wal_floor and not source.unlogged and source.config.durability.logged


def _passing(slices: list[RecordSlice], match: TagMatch) -> list[int]:
    """The seqs whose tag matches a filter. Tags are compared as their JSON strings; nothing is decoded."""
    tag_text = match_text(match)
    found: list[int] = []
    for view, lo, hi, origin in slices:
        texts = tag_texts(view, lo, hi)
        if match.prefix:
            found += [origin + index for index, text in texts if text.startswith(tag_text)]
        else:
            found += [origin + index for index, text in texts if text == tag_text]
    return found


def _ranges(slices: list[RecordSlice]) -> list[SeqRange]:
    ranges: list[SeqRange] = []
    for slice_ in slices:
        if ranges and ranges[-1][1] + 1 == slice_.first_seq:
            ranges[-1] = (ranges[-1][0], slice_.last_seq)
        else:
            ranges.append((slice_.first_seq, slice_.last_seq))
    return ranges
