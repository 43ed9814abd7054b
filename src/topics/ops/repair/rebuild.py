"""Rebuilds topics from the remaining data: states of snapshots, segment files, loose blocks.

A topic's state is `sure` if it is known to be the newest one. Then only records lost from its segments and its tail are
lost. Otherwise all other data of the topic is added: blocks without a state, and segment files that no state names. If
two sources have the same seqs, sealed segments take precedence over snapshots.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

import msgspec

from topics.engine.apply import grant
from topics.engine.core import EngineCore
from topics.engine.idempotency import KeyMemory
from topics.engine.sealing import Sealer
from topics.engine.topic import Block, Segment, Topic, live_ranges
from topics.log.frame import named
from topics.log.fs import FileSystem
from topics.log.layout import Layout, number_in
from topics.log.replay import DamagedTopic
from topics.log.segment import DELETED
from topics.log.segment_files import SegmentKey
from topics.log.snapshot_files import SegmentState, TopicState
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import DEFAULT_CONFIG, decode_config
from topics.ops.verify.segment_check import SegmentImage
from topics.ops.verify.verification import Verification, map_file, read_image
from topics.wire.record_slicing import payload_sizes

# Salvage from one segment's files: blocks to seal again, and the lost seqs.

SeqRange = tuple[int, int]
"""First and last seq, both included."""


class Rescued(msgspec.Struct):
    """The outcome for one segment."""

    segment: SegmentState | None = None
    """Set if a segment can stay unchanged on disk."""
    blocks: list[Block] = []
    lost: list[SeqRange] = []
    """Seqs of which nothing was found."""
    doubtful: list[SeqRange] = []
    """Existing seqs that are marked as deleted, but may not have been deleted."""


def rescue(
    fs: FileSystem, layout: Layout, state: TopicState, segment: SegmentState, sure: bool, strange: bytes | None
) -> Rescued:
    """Repairs a segment of the state; `sure` means that no newer state existed. `strange` receives its delete flags
    where more are set than ever were.
    """
    copy = msgspec.structs.replace(segment, cold=not segment.cold)
    if strange is None and layout.cold_root is not None:
        other = read_image(fs, layout, state, copy)
        if other.whole and (segment.flags or other.flags.count(DELETED) == segment.marked):
            return Rescued(segment=copy)
    image = read_image(fs, layout, state, segment)
    last_seq = segment.first_seq + segment.count - 1
    if image.head is None:
        return Rescued(lost=[(segment.first_seq, last_seq)])
    flags, unsure = _reconcile_flags(image.flags, segment.marked, sure)
    if len(segment.flags) == len(flags) == segment.count:
        # The state knows better, and the file only follows it, unless a newer state has been lost.
        flags, unsure = segment.flags if sure else _either(segment.flags, image.flags), b""
    elif sure and image.whole:
        erased = _erased_flags(image, flags, segment, state.earliest)
        flags, unsure = _either(flags, erased), _either(unsure, erased) if erased.count(DELETED) > 1 else unsure
    blocks = [
        block for block in _blocks(image, flags) if segment.first_seq <= block.first_seq and block.last_seq <= last_seq
    ]
    lost = holes([(block.first_seq, block.last_seq) for block in blocks], segment.first_seq, last_seq)
    lost = [seqs for seqs in lost if not _all_deleted(seqs, image.head.first_seq, flags)]
    doubts = _marked(unsure, image.head.first_seq)
    if strange is not None:
        doubts += _marked(strange, image.head.first_seq)
    return Rescued(blocks=blocks, lost=lost, doubtful=sorted(doubts))


def catch_up(fs: FileSystem, layout: Layout, state: TopicState, segment: SegmentState) -> SegmentState:
    """Repairs a segment of a state that may be old: its file may have newer delete flags."""
    image = read_image(fs, layout, state, segment)
    flags = _either(image.flags, segment.flags if len(segment.flags) == segment.count else bytes(segment.count))
    live, size = _live(image, flags, state.earliest)
    kept = flags if flags != image.flags else b""
    return msgspec.structs.replace(segment, live=live, live_bytes=size, marked=flags.count(DELETED), flags=kept)


def found_segments(fs: FileSystem, layout: Layout, topic_id: int, skip: set[SegmentKey]) -> Iterator[SegmentKey]:
    """Returns the segments in a topic's folders, the hot copy first if there are two."""
    seen: set[int] = set()
    for cold in (False, True) if layout.cold_root is not None else (False,):
        try:
            names = fs.list_dir(layout.topic(topic_id, cold))
        except FileNotFoundError:
            continue
        firsts = {number_in(name.removesuffix(".data"), "seg-", "") for name in names if name.endswith(".data")}
        for first in sorted(first for first in firsts if first is not None):
            if first not in seen and SegmentKey(topic_id, first, cold) not in skip:
                seen.add(first)
                yield SegmentKey(topic_id, first, cold)


def image_of(fs: FileSystem, layout: Layout, key: SegmentKey) -> SegmentImage | None:
    """Reads a segment without a state; None if its content contradicts its name."""
    path = layout.segment(*key)
    with named(path):
        image = SegmentImage(map_file(fs, path + ".data"), map_file(fs, path + ".idx"), None)
    head = image.head
    return image if head is not None and (head.topic_id, head.first_seq) == key[:2] else None


def adopt(image: SegmentImage, cold: bool, earliest: int) -> Rescued:
    """Returns a segment that no state names, as part of a topic whose first live seq is not below `earliest`."""
    head = image.head
    assert head is not None
    flags = bytes(flag if flag == DELETED else 0 for flag in image.flags)
    last_seq = head.first_seq + head.count - 1
    if not image.whole:
        blocks = list(_blocks(image, flags))
        lost = holes([(block.first_seq, block.last_seq) for block in blocks], head.first_seq, last_seq)
        return Rescued(blocks=blocks, lost=lost)
    live, size = _live(image, flags, earliest)
    return Rescued(
        segment=SegmentState(
            head.first_seq, head.count, head.payload_bytes, head.text_bytes, head.traits, head.first_ts, head.last_ts,
            live, size, flags.count(DELETED), cold, b"", image.written[0], image.written[-1],
        )
    )  # fmt: skip


def holes(covered: list[SeqRange], first: int, last: int) -> list[SeqRange]:
    """Returns the seqs between two seqs that ascending ranges do not cover."""
    found, at = [], first
    for begin, end in covered:
        if at < begin:
            found.append((at, min(begin - 1, last)))
        at = max(at, end + 1)
    if at <= last:
        found.append((at, last))
    return [seqs for seqs in found if seqs[0] <= seqs[1]]


def _live(image: SegmentImage, flags: bytes, earliest: int) -> tuple[int, int]:
    """Returns the number of live records, and their payload."""
    assert image.head is not None
    ranges = live_ranges(flags, max(earliest - image.head.first_seq, 0), image.head.count)
    size = sum(sum(payload_sizes(image.view, begin, end)) for begin, end in ranges)
    return sum(end - begin for begin, end in ranges), size


def _blocks(image: SegmentImage, flags: bytes) -> Iterator[Block]:
    assert image.head is not None
    for part in image.parts():
        block = Block.of(part)
        at = part.first_seq - image.head.first_seq
        mine = flags[at : at + part.count]
        if DELETED in mine:
            block.flags = bytearray(mine)
        yield block


def _reconcile_flags(flags: bytes, marked: int, sure: bool) -> tuple[bytes, bytes]:
    """Returns the readable flags, set or clear, and the set ones that are uncertain.

    The total of set flags is known. When the readable ones reach it, the others are clear; when all others are needed,
    they are set. In between they count as set, because a deleted record must not return; readers of the others get a
    tombstone. When more flags are set than the total, without a newer state, each set flag is uncertain.
    """
    unknown = [index for index, flag in enumerate(flags) if flag not in (0, DELETED)]
    missing = marked - flags.count(DELETED)
    reconciled = bytearray(flags)
    for index in unknown:
        reconciled[index] = DELETED if missing > 0 else 0
    unsure = bytearray(len(flags))
    if 0 < missing < len(unknown):
        for index in unknown:
            unsure[index] = DELETED
    elif missing < 0 and sure:
        unsure = bytearray(DELETED if flag == DELETED else 0 for flag in flags)
    return bytes(reconciled), bytes(unsure)


def _erased_flags(image: SegmentImage, flags: bytes, segment: SegmentState, earliest: int) -> bytes:
    """Returns the records whose set flag may now read as clear, without a trace of the damage.

    The number and the bytes of live records are known: a single surplus record can be recognized by its size, or
    narrowed down to records of that size. If several are surplus, all are uncertain.
    """
    live, size = _live(image, flags, earliest)
    too_many, too_large = live - segment.live, size - segment.live_bytes
    erased = bytearray(len(flags))
    if too_many <= 0:
        return bytes(erased)
    assert image.head is not None
    for lo, hi in live_ranges(flags, max(earliest - image.head.first_seq, 0), image.head.count):
        for index, nbytes in enumerate(payload_sizes(image.view, lo, hi), lo):
            if nbytes == too_large if too_many == 1 else nbytes <= too_large:
                erased[index] = DELETED
    return bytes(erased)


def _either(flags: bytes, others: bytes) -> bytes:
    """Combines two delete flags: records that either marks as deleted."""
    return bytes(DELETED if DELETED in pair else 0 for pair in zip(flags, others, strict=True))


def _marked(flags: bytes, first_seq: int) -> list[SeqRange]:
    inverted = bytes(0 if flag == DELETED else DELETED for flag in flags)
    return [(first_seq + lo, first_seq + hi - 1) for lo, hi in live_ranges(inverted, 0, len(inverted))]


def _all_deleted(seqs: SeqRange, first_seq: int, flags: bytes) -> bool:
    mine = flags[seqs[0] - first_seq : seqs[1] - first_seq + 1] if seqs[0] >= first_seq else b""
    return bool(mine) and mine.count(DELETED) == seqs[1] - seqs[0] + 1


TellLoss = Callable[[Topic, SeqRange, bool], None]
"""Called with a topic, a lost range, and whether records certainly existed in it."""


Found = Segment | Block | list[Block]
"""An unchanged segment on disk, a block of a tail, or the blocks of a segment to be rewritten."""


class Runs:
    """The salvaged runs of one topic, by seq and without overlaps: the first one found has precedence."""

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
        """Returns the existing seqs, without gaps inside a list of blocks."""
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
        self.damaged: dict[int, DamagedTopic] = {}
        self.loose: dict[int, list[Block]] = {}
        self.unsure: set[int] = set()
        """Topics whose state may be older than the newest snapshot."""
        self.configless: set[int] = set()
        """Topics whose config is lost."""
        self.names: dict[int, str] = {}
        self._epochs: dict[int, int] = {}
        """Names learned from segment files."""
        self.replaced: set[SegmentKey] = set()
        """Segments whose files become unused."""
        self.actions: list[str] = []

    def collect(self) -> set[int]:
        """Reads the snapshots; returns the numbers of the topics that are known to be deleted."""
        dropped: set[int] = set()
        for member in self._look.chain.members:
            if not member.complete:
                self.unsure |= set(self.damaged)
            for topic_id in member.head.dropped if member.head is not None else ():
                dropped.add(topic_id)
                self.damaged.pop(topic_id, None)
                self.loose.pop(topic_id, None)
            for damaged in member.topics():
                if damaged.state is None:
                    self.loose[damaged.topic_id] = [Block.of(part) for _, part in damaged.blocks]
                else:
                    self.damaged[damaged.topic_id] = damaged
                    self.unsure.discard(damaged.topic_id)
                    self.loose.pop(damaged.topic_id, None)
        self.unsure |= set(self.loose)
        return dropped

    def build(self, topic_id: int) -> Topic | None:
        """Builds a topic from all of its data; None if there is none."""
        damaged = self.damaged.get(topic_id)
        state = damaged.state if damaged is not None else None
        runs, lost, doubtful = Runs(), [], []
        if damaged is not None and state is not None:
            for segment in state.segments:
                rescued = self._named_segment(state, SegmentKey(topic_id, segment.first_seq, segment.cold))
                self._add(runs, rescued)
                lost += rescued.lost
                doubtful += rescued.doubtful
            tail, missing = _tail_of(damaged, state)
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
        # Ranges below the first live record are removed anyway; ranges remembered as lost are reported already.
        earliest = state.earliest if state is not None else 1
        for seqs in _merged(lost):
            for first, last in holes(runs.covered(), *seqs):
                known = self._report(topic, known, max(first, earliest), last, sure=True)
        for first, last in _merged(doubtful):
            # Damage may have taken the flags of records together with their text.
            known = self._report(topic, known, first, last, sure=False)
        return topic

    def _report(self, topic: Topic, known: list[SeqRange], first: int, last: int, *, sure: bool) -> list[SeqRange]:
        """Records the part of a range that is lost and not recorded yet; returns all recorded losses."""
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
        """Adds segment files that no state names, if the state or the log may be incomplete.

        Returns the lost ranges in them.
        """
        look, layout = self._look, self._core.layout
        damaged = look.ledger.damaged_shards
        # Segments of unknown topics remain when a log has vanished completely.
        log_damaged = bool(look.unknown_topics or (damaged and look.shard_of(topic_id) in (None, *damaged)))
        if state is not None and topic_id not in self.unsure and not log_damaged:
            return []
        skip = {SegmentKey(topic_id, segment.first_seq, segment.cold) for segment in state.segments} if state else set()
        lost: list[SeqRange] = []
        for key in found_segments(self._fs, layout, topic_id, skip):
            image = image_of(self._fs, layout, key)
            if image is not None and image.head is not None and image.proven:
                self.names[topic_id], self._epochs[topic_id] = image.head.name, image.head.epoch
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
        """Returns a segment file as part of the topic, unless the state or the log has its records."""
        logged = self._look.ledger.first_logged.get(key.topic_id)
        if image is None or image.head is None:
            self.replaced.add(key)
            return None
        last_seq = image.head.first_seq + image.head.count - 1
        if state is not None and last_seq <= state.head:
            return None  # The state includes these records but not the file, so all of them may be deleted.
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
        """Returns a topic of which only the number is certain."""
        self.configless.add(topic_id)
        name = self.names.get(topic_id, f"recovered-{topic_id}")
        # Without a segment its epoch is not known: with the id, a cursor of any epoch starts over.
        topic = Topic(topic_id, name, self._epochs.get(topic_id, topic_id), DEFAULT_CONFIG, 0)
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
        # After the gaps, which treat a topic without records so far as empty.
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


def _tail_of(damaged: DamagedTopic, state: TopicState) -> tuple[list[Block], list[SeqRange]]:
    """Returns the blocks of a tail with their delete flags, and the seqs of missing blocks."""
    blocks: dict[int, Block] = {}
    for place, part in damaged.blocks:
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
