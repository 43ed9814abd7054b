"""Replay of router frames in recovery, and routers in checkpoints.

A forward is a frame of its destination and moves a cursor of its source. The two may be in different shards, which are
read one after the other, and the source may be gone by the end of the log. So the cursor moves are kept until
everything is read, and are then applied to the routers that remain. A router is identified by its own id, so a router
that was deleted and created again under the same name is a different one.
"""

import logging
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from topics.engine.core import EngineCore
from topics.engine.features import Rebuild, block_in
from topics.engine.topic import Block, Topic
from topics.log.frame import Frame, FrameKind, block_first_seq, decode_block, read_frame
from topics.log.replay import LogDamaged
from topics.model.errors import Finding
from topics.model.records import ROW_BYTES, words
from topics.model.seq_ranges import LossReason
from topics.routers.registry import PART, Registry, Router, RouterPart, make_part, part_of, rules_of
from topics.routers.router_frames import (
    Forward,
    SeqRange,
    decode_forward,
    decode_router,
    decode_routers,
    decode_unroute,
    encode_routers,
    forward_first_seq,
)
from topics.streams.stream_state import is_retired
from topics.wire.record_copies import CopyChange, RecordSlice, cut_copies, render
from topics.wire.record_encoding import Fragments
from topics.wire.record_slicing import View

# Rebuilds copies from the log: finds the frames that forwards refer to, and the records in them.
#
# A forward names records of its source, not payload. A replay cannot use the current state of the source: it may have
# been trimmed or deleted, and its shard may be read before or after. Only the log counts. So the first forward triggers
# one more pass over the log, which records only the places of the frames of every source: sixteen bytes a frame. A
# topic is a source from its first router on, and forwards never refer to earlier frames.

Walk = Callable[[Callable[[Frame], None]], None]
"""Passes every frame of the log, in all shards, to a function."""

_MEMO_BYTES = 16 * 1024 * 1024
_OFFSET_BITS = 40
_LOOSE = 1 << 63


class Piece(msgspec.Struct, frozen=True):
    """Copies with consecutive seqs of the destination."""

    first_seq: int
    base: int
    fragments: Fragments

    @property
    def count(self) -> int:
        return len(self.fragments.rows) // ROW_BYTES

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    def record_slice(self) -> RecordSlice:
        view = View(self.fragments.text, words(self.fragments.rows), self.base, self.count)
        return RecordSlice(view, 0, self.count, self.first_seq)


class _Frames:
    """The frames of a topic: their first seqs, ascending, and their places."""

    __slots__ = ("first_seqs", "places")

    def __init__(self) -> None:
        self.first_seqs = array("Q")
        self.places = array("Q")


class LogIndex:
    def __init__(self, sources: set[int], walk: Walk) -> None:
        self._sources = set(sources)
        self._buffers: list[memoryview] = []
        self._loose: list[Frame] = []
        """Frames that the log contains as a part of another frame."""
        self._frames: dict[int, _Frames] = {}
        self._memo: dict[int, list[RecordSlice]] = {}
        self._memo_bytes = 0
        walk(self._note)

    def copies(self, forward: Forward) -> list[Piece]:
        """The copies of a forward, as far as the log still holds their records."""
        if forward.by_value:
            fragments = Fragments(forward.text, forward.rows, forward.payload_bytes, forward.traits)
            return [Piece(forward.first_seq + forward.lost, forward.base, fragments)]
        if self._memo_bytes > _MEMO_BYTES:
            self._memo, self._memo_bytes = {}, 0
        for place in self._places(forward):
            self._resolve(place)
        return self._derive(forward)

    def _note(self, frame: Frame) -> None:
        if frame.kind is FrameKind.ROUTER:
            self._sources.add(frame.topic_id)
        elif frame.topic_id in self._sources and (first_seq := _first_seq(frame)) is not None:
            frames = self._frames.setdefault(frame.topic_id, _Frames())
            frames.first_seqs.append(first_seq)
            frames.places.append(self._place(frame))

    def _place(self, frame: Frame) -> int:
        if frame.is_part:
            self._loose.append(frame)
            return _LOOSE | len(self._loose) - 1
        buffer = memoryview(frame.body.obj)
        if not self._buffers or self._buffers[-1].obj is not buffer.obj:
            self._buffers.append(buffer)
        return len(self._buffers) - 1 << _OFFSET_BITS | frame.start

    def _places(self, forward: Forward) -> list[int]:
        """The frames with the records that a forward refers to."""
        frames = self._frames.get(forward.source_id)
        if frames is None:
            return []
        found: list[int] = []
        for first, last in forward.ranges:
            index = max(bisect_right(frames.first_seqs, first) - 1, 0)
            while index < len(frames.places) and frames.first_seqs[index] <= last:
                place = frames.places[index]
                if not found or found[-1] != place:
                    found.append(place)
                index += 1
        return found

    def _resolve(self, place: int) -> None:
        """Finds the records in a frame; resolves its own references first, in a chain of any length."""
        pending = [place]
        while pending:
            place = pending[-1]
            if place in self._memo:
                pending.pop()
                continue
            frame = self._frame(place)
            block = block_in(frame.kind, frame.body)
            if block is not None:
                parts = decode_block(block)
                view = View(parts.text, words(parts.rows), parts.base, parts.count)
                self._remember(place, [RecordSlice(view, 0, parts.count, parts.first_seq)])
                continue
            forward = decode_forward(frame.body)
            if not forward.by_value:
                missing = [other for other in self._places(forward) if other not in self._memo]
                if missing:
                    pending += missing
                    continue
            self._remember(place, [piece.record_slice() for piece in self._derive(forward)])

    def _frame(self, place: int) -> Frame:
        if place & _LOOSE:
            return self._loose[place ^ _LOOSE]
        frame = read_frame(self._buffers[place >> _OFFSET_BITS], place & ((1 << _OFFSET_BITS) - 1))
        assert isinstance(frame, Frame), "a frame that was valid a moment ago"
        return frame

    def _remember(self, place: int, slices: list[RecordSlice]) -> None:
        self._memo[place] = slices
        self._memo_bytes += sum([len(slice_.view.text) + 200 for slice_ in slices])

    def _derive(self, forward: Forward) -> list[Piece]:
        """The copies of a forward, from resolved frames."""
        if forward.by_value:
            return self.copies(forward)
        return _copies_of(forward, [slice_ for place in self._places(forward) for slice_ in self._memo[place]])


def _copies_of(forward: Forward, known: Sequence[RecordSlice]) -> list[Piece]:
    """The copies of a forward that names records of its source, as far as those are known."""
    pieces: list[Piece] = []
    group: list[RecordSlice] = []
    seq, start, base = forward.first_seq + forward.lost, 0, forward.base

    def finish() -> None:
        nonlocal base
        if group:
            copies = cut_copies(group, CopyChange(forward.keep_node, forward.keep_tag, forward.stamp))
            pieces.append(Piece(start, base, render(copies, start, forward.ts, base)))
            base += len(pieces[-1].fragments.text) + 1
            group.clear()

    for forwarded in forward.ranges:
        for slice_, count in _covering(known, forwarded):
            if slice_ is None:
                finish()
            else:
                start = start if group else seq
                group.append(slice_)
            seq += count
    finish()
    return pieces


_RECENT_BYTES = 16 * 1024 * 1024


class SourceRecords:
    """The copies of forwards for a standby, which replays them in a running engine: the source has the records by then.

    Records that a cap evicted a moment before are kept, up to a number of bytes: a primary forwards them first.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._recent: deque[tuple[int, Block]] = deque()
        self._bytes = 0
        core.applier.before_caps.subscribe(self._keep)

    def _keep(self, topic: Topic, block: Block) -> None:
        part = part_of(topic)
        if part is None or not part.routers:
            return
        self._recent.append((topic.id, block))
        self._bytes += block.memory_bytes
        while self._bytes > _RECENT_BYTES:
            self._bytes -= self._recent.popleft()[1].memory_bytes

    def copies(self, forward: Forward) -> list[Piece]:
        """As `LogIndex.copies`."""
        if forward.by_value:
            fragments = Fragments(forward.text, forward.rows, forward.payload_bytes, forward.traits)
            return [Piece(forward.first_seq + forward.lost, forward.base, fragments)]
        known = [slice_ for first, last in forward.ranges for slice_ in self._slices(forward.source_id, first, last)]
        if sum([slice_.hi - slice_.lo for slice_ in known]) < forward.count:
            recent = [block for topic_id, block in self._recent if topic_id == forward.source_id]
            known = [
                *(RecordSlice(b.view, 0, b.count, b.first_seq) for b in recent if b.last_seq < _first(known)), *known
            ]  # fmt: skip
        return _copies_of(forward, known)

    def _slices(self, source_id: int, first: int, last: int) -> Iterator[RecordSlice]:
        source = self._core.topic_at(source_id)
        for run in source.runs_from(first) if source is not None else ():
            if run.first_seq > last:
                return
            lo, hi = max(first - run.first_seq, 0), min(last + 1 - run.first_seq, run.count)
            for view, view_lo, view_hi, offset in self._core.reader.views(source_id, run, lo, hi):
                yield RecordSlice(view, view_lo, view_hi, run.first_seq + offset)


def _first(slices: Sequence[RecordSlice]) -> int:
    return slices[0].first_seq if slices else 1 << 63


def _covering(slices: Sequence[RecordSlice], forwarded: SeqRange) -> list[tuple[RecordSlice | None, int]]:
    """A range of seqs as parts of slices, in order, with None for seqs that no slice has."""
    found: list[tuple[RecordSlice | None, int]] = []
    at, last = forwarded
    for slice_ in slices:
        if slice_.last_seq < at or slice_.first_seq > last:
            continue
        if slice_.first_seq > at:
            found.append((None, slice_.first_seq - at))
            at = slice_.first_seq
        end = min(slice_.last_seq, last)
        found.append(
            (RecordSlice(slice_.view, at - slice_.origin, end + 1 - slice_.origin, slice_.origin), end + 1 - at)
        )
        at = end + 1
    if at <= last:
        found.append((None, last + 1 - at))
    return found


def _first_seq(frame: Frame) -> int | None:
    """The first seq of the records of a frame; None if it has none."""
    if frame.kind is FrameKind.FORWARD:
        return forward_first_seq(frame.body)
    block = block_in(frame.kind, frame.body)
    return None if block is None else block_first_seq(block)


_log = logging.getLogger(__name__)


class RouterFeature:
    """Implements `engine.features.Feature`."""

    name = PART
    kinds = frozenset({FrameKind.ROUTER, FrameKind.UNROUTE, FrameKind.FORWARD})

    def __init__(self, core: EngineCore, registry: Registry) -> None:
        self._core = core
        self._registry = registry
        self._sources: set[int] = set()
        """Topics whose frames a forward may refer to, including deleted ones."""
        self._moved: dict[int, tuple[int, int]] = {}
        """By router id: the cursor and the number of copies."""
        self._index: LogIndex | None = None
        self._records: SourceRecords | None = None
        """In place of an index of the log; a running standby has it."""
        self._new: list[Router] = []
        """Routers that a running standby has found in the log since it was last reconciled."""
        core.features.followed.subscribe(self._followed)

    # Snapshots

    def save(self, topic: Topic) -> bytes:
        part = part_of(topic)
        if part is None or not (part.routers or part.hops):
            return b""
        return encode_routers(part.state())

    def load(self, topic: Topic, part: bytes) -> None:
        state, loaded = decode_routers(part), RouterPart()
        loaded.routers = {router.router_id: Router(router, topic) for router in state.routers}
        loaded.hops = list(state.hops)
        topic.parts = {**(topic.parts or {}), PART: loaded}
        self._sources.add(topic.id)

    # The log

    def replay(self, topic: Topic, frame: Frame, rebuild: Rebuild) -> None:
        if frame.kind is FrameKind.ROUTER:
            self._put(topic, frame)
        elif frame.kind is FrameKind.UNROUTE:
            gone = make_part(topic).routers.pop(decode_unroute(frame.body), None)
            if gone is not None and gone.dest is not None:
                self._registry.remove(gone)
        else:
            self.forward(topic, decode_forward(frame.body), rebuild)

    def _put(self, topic: Topic, frame: Frame) -> None:
        state, part = decode_router(frame.body), make_part(topic)
        self._sources.add(topic.id)
        known = part.routers.get(state.router_id)
        if known is None:
            part.routers[state.router_id] = router = Router(state, topic)
            if self._records is not None:
                self._new.append(router)
        elif known.dest is not None:
            self._registry.change(known, rules_of(state))
            known.cursor = max(known.cursor, state.cursor)
        else:
            known.rules, known.cursor = rules_of(state), max(known.cursor, state.cursor)

    def forward(self, topic: Topic, forward: Forward, rebuild: Rebuild) -> None:
        if forward.first_seq != topic.head + 1:
            missing = (topic.head + 1, forward.first_seq - 1)
            raise LogDamaged(
                Finding(
                    "wal", f"records {missing[0]} to {missing[1]} are missing", seq_range=missing, topic=topic.name
                ),
                None,
            )
        lost_upto = topic.head + forward.lost
        if forward.lost:
            self._core.applier.gap(topic, forward.first_seq, lost_upto, LossReason.SOURCE_TRIM)
        if forward.count:
            self._copy(topic, forward, rebuild)
        topic.next_base = forward.next_base
        topic.last_ts = max(topic.last_ts, forward.ts)
        if forward.hops:
            make_part(topic).note_hops(lost_upto + 1, forward.last_seq, forward.hops)
        for router in self._registry.into.get(topic.id, ()):
            if router.id == forward.router_id:
                self._core.before_change(router.source)
                router.cursor, router.forwarded = max(router.cursor, forward.cursor), router.forwarded + forward.count
                return
        cursor, copied = self._moved.get(forward.router_id, (0, 0))
        self._moved[forward.router_id] = (max(cursor, forward.cursor), copied + forward.count)

    def _copy(self, topic: Topic, forward: Forward, rebuild: Rebuild) -> None:
        """Rebuilds the copies. Their sources may never have been synced and may be lost in a power cut."""
        missing, missing_bytes = forward.count, forward.payload_bytes
        for piece in self._pieces(forward, rebuild):
            _lose_upto(topic, piece.first_seq - 1, rebuild)
            text, rows, payload_bytes, traits = piece.fragments
            block = Block(
                piece.first_seq, forward.ts, payload_bytes, piece.base, traits, None, rows, text, forward.written
            )
            self._core.applier.append(topic, block)
            missing, missing_bytes = missing - piece.count, missing_bytes - payload_bytes
        _lose_upto(topic, forward.last_seq, rebuild)
        if missing:
            self._core.retention.make_room(topic, missing, missing_bytes)

    def _pieces(self, forward: Forward, rebuild: Rebuild) -> list[Piece]:
        if self._records is not None:
            pieces = self._records.copies(forward)
        else:
            if self._index is None:
                self._index = LogIndex(self._sources, rebuild.walk_log)
            pieces = self._index.copies(forward)
        whole = len(pieces) == 1 and pieces[0].count == forward.count
        if whole and len(pieces[0].fragments.text) != forward.text_length:
            raise ValueError("the copies of a forward are not what they were when it was logged")
        return pieces

    # The end

    def may_page_out(self, topic: Topic) -> bool:
        return False

    def reconcile(self) -> None:
        core, registry = self._core, self._registry
        self._index = None
        routers = [r for t in core.topics.values() if (part := part_of(t)) is not None for r in part.routers.values()]
        for router in sorted(routers, key=lambda router: (router.created_ts, router.id)):
            self._reconcile(router)
        for topic in core.topics.values():
            part = part_of(topic)
            if part is not None:
                # The checkpoint at the end of a recovery removes the whole log.
                part.wal_floor = topic.head
                part.forget_hops()
        if not self._new:
            self._moved, self._sources = {}, set()
        registry.mark_cycles()
        if core.path.follows:
            self._records = SourceRecords(core)

    def _followed(self, topics: Sequence[Topic]) -> None:
        new, self._new = self._new, []
        for router in new:
            part = part_of(router.source)
            if not self._core.exists(router.source) or part is None or part.routers.get(router.id) is not router:
                continue
            if self._core.topic_at(router.dest_id) is None:
                # The creation of the destination is in another shard, and was logged in the same millisecond.
                self._new.append(router)
            else:
                self._reconcile(router)
        for topic in topics:
            part = part_of(topic)
            if part is not None:
                part.forget_hops()
        self._moved, self._sources = {}, set()

    def _reconcile(self, router: Router) -> None:
        core, registry, source = self._core, self._registry, router.source
        part = part_of(source)
        assert part is not None
        dest = core.topic_at(router.dest_id)
        if dest is None or is_retired(dest) or is_retired(source):
            # It was deleted with its source or its destination; only their deletion was logged.
            part.routers.pop(router.id)
            return
        older = registry.by_name.get(router.name)
        if older is not None:
            # A name has one router at a time: the creation of the older one failed, with its frame in the log.
            _log.warning("failed router creation skipped", extra={"router": router.name})
            registry.remove(older)
        cursor, copied = self._moved.get(router.id, (0, 0))
        # A class without durability may have fallen back: records in the place of lost ones are new.
        router.cursor = min(max(router.cursor, cursor), source.head)
        router.dedupe_upto = min(router.dedupe_upto, source.head)
        router.forwarded += copied
        registry.add(router, dest)


def _lose_upto(topic: Topic, seq: int, rebuild: Rebuild) -> None:
    if seq > topic.head:
        rebuild.lose(topic, topic.head + 1, seq)
