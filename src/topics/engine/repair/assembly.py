"""Putting topics together again from whatever is left: states of snapshots, segment files, loose blocks.

A topic's state is `sure` when it is known to be the newest one. Then only what its segments and its tail have lost is
lost. Otherwise everything else that can be found of the topic is added: blocks whose state is gone, and segment files
that no state names. Where two sources have the same seqs, what is sealed on disk counts before what is in a snapshot.
"""

from bisect import bisect_left, insort
from collections.abc import Callable

from topics.core.config import DEFAULT_CONFIG, decode_config
from topics.core.loss import LossReason
from topics.engine.core import EngineCore
from topics.engine.repair.rescue import Rescued, SeqRange, adopt, catch_up, found_segments, holes, image_of, rescue
from topics.engine.repair.verification import Verification
from topics.engine.state.keys import KeyMemory
from topics.engine.state.runs import Block, Segment, live_ranges
from topics.engine.topic import Topic
from topics.engine.upkeep.sealing import Sealer
from topics.engine.write.seq_reserve import grant
from topics.formats.snapshot import TopicState
from topics.storage.damage.segment_image import SegmentImage
from topics.storage.damage.snapshot_chain import TopicRemains
from topics.storage.fs import FileSystem
from topics.storage.segments import SegmentKey

TellLoss = Callable[[Topic, SeqRange, bool], None]
"""Told a topic, a range that is lost, and whether it is sure that there were records."""


Found = Segment | Block | list[Block]
"""A segment as it is on disk, a block of a tail, or the blocks of a segment that has to be written anew."""


class Runs:
    """What is found of one topic, by seq and without overlaps: whoever comes first has the place."""

    def __init__(self) -> None:
        self.ranges: list[SeqRange] = []
        self.by_first: dict[int, Found] = {}

    def add(self, run: Found) -> bool:
        blocks = run if isinstance(run, list) else [run]
        first, last = blocks[0].first_seq, blocks[-1].last_seq
        place = bisect_left(self.ranges, (first, first))
        overlaps = (place > 0 and self.ranges[place - 1][1] >= first) or (
            place < len(self.ranges) and self.ranges[place][0] <= last
        )
        if not overlaps:
            insort(self.ranges, (first, last))
            self.by_first[first] = run
        return not overlaps

    def covered(self) -> list[SeqRange]:
        """The seqs that are there, holes inside a list of blocks left out."""
        found: list[SeqRange] = []
        for first, last in self.ranges:
            run = self.by_first[first]
            found += [(b.first_seq, b.last_seq) for b in run] if isinstance(run, list) else [(first, last)]
        return found


class Assembler:
    def __init__(self, core: EngineCore, fs: FileSystem, sealer: Sealer, look: Verification, lost: TellLoss) -> None:
        self._core = core
        self._fs = fs
        self._sealer = sealer
        self._look = look
        self._lost = lost
        self.remains: dict[int, TopicRemains] = {}
        self.loose: dict[int, list[Block]] = {}
        self.unsure: set[int] = set()
        """Topics whose state may be older than the newest snapshot."""
        self.configless: set[int] = set()
        """Topics whose config is lost."""
        self.names: dict[int, str] = {}
        """Names learned from segment files."""
        self.replaced: set[SegmentKey] = set()
        """Segments whose files go out of use."""
        self.actions: list[str] = []

    def gather(self) -> set[int]:
        """Reads the snapshots; returns the numbers of the topics that are known to be deleted."""
        dropped: set[int] = set()
        for member in self._look.chain.members:
            if not member.complete:
                self.unsure |= set(self.remains)
            for topic_id in member.head.dropped if member.head is not None else ():
                dropped.add(topic_id)
                self.remains.pop(topic_id, None)
                self.loose.pop(topic_id, None)
            for remains in member.topics():
                if remains.state is None:
                    self.loose[remains.topic_id] = [Block.of(part) for _, part in remains.blocks]
                else:
                    self.remains[remains.topic_id] = remains
                    self.unsure.discard(remains.topic_id)
                    self.loose.pop(remains.topic_id, None)
        self.unsure |= set(self.loose)
        return dropped

    def build(self, topic_id: int) -> Topic | None:
        """Makes one topic from everything there is of it; None when there is nothing."""
        remains = self.remains.get(topic_id)
        state = remains.state if remains is not None else None
        runs, lost, doubtful = Runs(), [], []
        if remains is not None and state is not None:
            for segment in state.segments:
                rescued = self._named_segment(state, SegmentKey(topic_id, segment.first_seq, segment.cold))
                self._add(runs, rescued)
                lost += rescued.lost
                doubtful += rescued.doubtful
            tail, missing = _tail_of(remains, state)
            lost += missing
        else:
            tail = []
        lost += self._add_found(topic_id, state, runs)
        for block in [*self.loose.get(topic_id, ()), *tail]:
            runs.add(block)
        if state is None and not runs.ranges:
            return None
        topic = self._topic(topic_id, state, runs)
        self._fill(topic, runs)
        if topic_id in self.unsure or state is None:
            lost += holes(runs.covered(), state.head + 1 if state is not None else 1, topic.head)
        known = [(lost.first, lost.last) for lost in state.lost] if state is not None else []
        # What lies below the first live record is gone anyway; what is remembered as lost is told already.
        earliest = state.earliest if state is not None else 1
        for seqs in _merged(lost):
            for first, last in holes(runs.covered(), *seqs):
                known = self._tell(topic, known, max(first, earliest), last, sure=True)
        for first, last in _merged(doubtful):
            # Damage may have taken the flags of records together with their text.
            known = self._tell(topic, known, first, last, sure=False)
        return topic

    def _tell(self, topic: Topic, known: list[SeqRange], first: int, last: int, *, sure: bool) -> list[SeqRange]:
        """Tells of what is lost in a range and not known to be; returns what is known then."""
        parts = holes(known, first, last)
        for part in parts:
            self._lost(topic, part, sure)
        return sorted([*known, *parts])

    # Segments

    def _named_segment(self, state: TopicState, key: SegmentKey) -> Rescued:
        segment = next(s for s in state.segments if s.first_seq == key.first_seq)
        sure = key.topic_id not in self.unsure
        if key not in self._look.damaged:
            return Rescued(segment=segment if sure else catch_up(self._fs, self._core.layout, state, segment))
        rescued = rescue(self._fs, self._core.layout, state, segment, sure, self._look.unexplained.get(key))
        self.replaced.add(key)
        what = "was replaced by its copy in the other folder" if rescued.segment is not None else "was written anew"
        if rescued.segment is None and not rescued.blocks:
            what = "is lost"
        self.actions.append(f"topic {state.name}: the segment from {key.first_seq} on {what}")
        return rescued

    def _add_found(self, topic_id: int, state: TopicState | None, runs: Runs) -> list[SeqRange]:
        """Adds segment files that no state names where the state or the log cannot be trusted to have it all.

        Returns what is lost in them.
        """
        look, layout = self._look, self._core.layout
        damaged = look.ledger.damaged_shards
        # Segments of topics that nobody created are what is left when a log vanished as a whole.
        log_damaged = bool(look.unknown_topics or (damaged and look.shard_of(topic_id) in (None, *damaged)))
        if state is not None and topic_id not in self.unsure and not log_damaged:
            return []
        skip = {SegmentKey(topic_id, segment.first_seq, segment.cold) for segment in state.segments} if state else set()
        lost: list[SeqRange] = []
        for key in found_segments(self._fs, layout, topic_id, skip):
            image = image_of(self._fs, layout, key)
            if image is not None and image.head is not None and image.proven:
                self.names[topic_id] = image.head.name
            rescued = self._adopted(key, image, state, log_damaged)
            if rescued is not None and self._add(runs, rescued):
                lost += rescued.lost
                name = state.name if state is not None else self.names.get(topic_id, f"recovered-{topic_id}")
                self.actions.append(
                    f"topic {name}: the segment file from {key.first_seq} on was taken in again: the snapshots or the "
                    "log may have lost its records"
                )
        return lost

    def _adopted(
        self, key: SegmentKey, image: SegmentImage | None, state: TopicState | None, log_damaged: bool
    ) -> Rescued | None:
        """A segment file as part of the topic, unless the state or the log has its records anyway."""
        logged = self._look.ledger.first_logged.get(key.topic_id)
        if image is None or image.head is None:
            self.replaced.add(key)
            return None
        last_seq = image.head.first_seq + image.head.count - 1
        if state is not None and last_seq <= state.head:
            return None  # The state knew of these records and had no use for the file: they may all be deleted.
        if logged is not None and last_seq >= logged:
            return adopt(image, key.cold, state.earliest if state else 1) if image.whole and log_damaged else None
        if not image.whole:
            self.replaced.add(key)
        return adopt(image, key.cold, state.earliest if state else 1)

    def _add(self, runs: Runs, rescued: Rescued) -> bool:
        if rescued.segment is not None:
            return runs.add(Segment(rescued.segment))
        return runs.add(rescued.blocks) if rescued.blocks else False

    # The topic

    def _topic(self, topic_id: int, state: TopicState | None, runs: Runs) -> Topic:
        if state is None:
            topic = self.stranger(topic_id)
            topic.earliest = runs.ranges[0][0]
        else:
            topic = self._from_state(state)
            topic.created = True
            self._core.topics[topic_id] = topic
            self._core.features.load(topic, state.parts)
        topic.head = max(topic.head, runs.ranges[-1][1] if runs.ranges else 0)
        return topic

    def stranger(self, topic_id: int) -> Topic:
        """A topic of which only its number is sure."""
        self.configless.add(topic_id)
        name = self.names.get(topic_id, f"recovered-{topic_id}")
        topic = Topic(topic_id, name, topic_id, DEFAULT_CONFIG, 0)
        topic.created = True
        self._core.topics[topic_id] = topic
        return topic

    def _from_state(self, state: TopicState) -> Topic:
        try:
            config = decode_config(state.config)
        except ValueError:
            config = DEFAULT_CONFIG
            self.configless.add(state.topic_id)
        topic = Topic(state.topic_id, state.name, state.epoch, config, state.created_ts)
        topic.head, topic.ceiling, topic.unlogged = state.head, state.ceiling, state.unlogged
        grant(topic, self._core.applier.reserve)
        topic.last_ts, topic.last_write_ts, topic.next_base = state.last_ts, state.last_write_ts, state.next_base
        for lost in sorted(state.lost, key=lambda lost: lost.first):
            self._core.applier.gap(topic, lost.first, min(lost.last, state.head), LossReason(lost.reason))
        # Behind the gaps, which take a topic whose records come later for an empty one.
        topic.earliest = min(state.earliest, state.head + 1)
        topic.evict_floor = min(state.evict_floor, topic.earliest)
        topic.cap_floor, topic.ttl_floor = (min(f, topic.evict_floor) for f in (state.cap_floor, state.ttl_floor))
        topic.keys = KeyMemory.load(state.keyed, state.keys)
        try:
            self._core.features.load(topic, state.parts)
        except (ValueError, KeyError) as error:
            self.actions.append(f"topic {state.name}: what it was besides a log is lost: {error}")
        return topic

    def _fill(self, topic: Topic, runs: Runs) -> None:
        """Gives a topic its runs in order. Blocks in front of a segment are sealed, since a tail is the end."""
        for first, _ in runs.ranges:
            run = runs.by_first[first]
            if isinstance(run, Segment):
                if topic.tail:
                    self._sealer.cut(topic)
                topic.segments.append(run)
                topic.live_count += run.live
                topic.live_bytes += run.live_bytes
                topic.last_ts = max(topic.last_ts, run.last_ts)
            elif isinstance(run, Block):
                self._add_block(topic, run)
            else:
                for block in run:
                    self._add_block(topic, block)
                self._sealer.cut(topic)
        topic.last_write_ts = topic.last_write_ts or topic.last_ts

    def _add_block(self, topic: Topic, block: Block) -> None:
        ranges = live_ranges(block.flags, max(topic.earliest - block.first_seq, 0), block.count)
        if ranges != [(0, block.count)]:
            block.live = sum(end - begin for begin, end in ranges)
            block.live_bytes = self._core.reader.payload_bytes(topic.id, block, ranges)
        topic.tail.append(block)
        topic.tail_count += block.count
        topic.tail_bytes += block.memory_bytes
        topic.live_count += block.live
        topic.live_bytes += block.live_bytes
        topic.last_ts = max(topic.last_ts, block.ts)
        if block.last_seq == topic.head:
            topic.next_base = block.next_base


def _tail_of(remains: TopicRemains, state: TopicState) -> tuple[list[Block], list[SeqRange]]:
    """The blocks of a tail with their delete flags, and the seqs of those that are missing."""
    blocks: dict[int, Block] = {}
    for place, part in remains.blocks:
        block = Block.of(part)
        flags = state.tail_flags[place] if place < len(state.tail_flags) else b""
        if len(flags) == block.count:
            block.flags = bytearray(flags)
        blocks[place] = block
    lost: list[SeqRange] = []
    before = max([s.first_seq + s.count - 1 for s in state.segments], default=0)
    before = max(before, state.earliest - 1)
    for place in range(len(state.tail_flags) + 1):
        if place in blocks:
            before = blocks[place].last_seq
        elif place < len(state.tail_flags):
            later = [blocks[p].first_seq for p in blocks if p > place]
            lost.append((before + 1, min(later) - 1 if later else state.head))
    return [blocks[place] for place in sorted(blocks)], lost


def _merged(ranges: list[SeqRange]) -> list[SeqRange]:
    found: list[SeqRange] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found
