"""Copies made again from the log: the frames that forwards refer to, and the records in them.

A forward names records of its source, not payload. Where the source stands by now is of no use to a replay: it may have
been trimmed, or deleted, and its shard may be read before or after. What counts is the log. So the first forward that
is met makes one more walk over it, which notes where the frames of every source are, and nothing else: sixteen bytes a
frame. A topic is a source from its first router on, and nothing before that is ever referred to.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable

import msgspec

from topics.core.rows import ROW_BYTES, words
from topics.formats.block import block_first_seq, decode_block
from topics.formats.carriers import block_in
from topics.formats.frame import Frame, FrameKind, read_frame
from topics.formats.routing import Forward, SeqRange, decode_forward, forward_first_seq
from topics.wire.copies import Change, Stretch, cut_copies, render
from topics.wire.cuts import View
from topics.wire.fragments import Fragments

Walk = Callable[[Callable[[Frame], None]], None]
"""Hands every frame of the log, all shards, to a function."""

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

    def stretch(self) -> Stretch:
        view = View(self.fragments.text, words(self.fragments.rows), self.base, self.count)
        return Stretch(view, 0, self.count, self.first_seq)


class _Frames:
    """Where a topic's frames are: their first seqs, ascending, and their places."""

    __slots__ = ("first_seqs", "places")

    def __init__(self) -> None:
        self.first_seqs = array("Q")
        self.places = array("Q")


class LogIndex:
    def __init__(self, sources: set[int], walk: Walk) -> None:
        self._sources = set(sources)
        self._buffers: list[memoryview] = []
        self._loose: list[Frame] = []
        """Those that are in the log as a part of another one."""
        self._frames: dict[int, _Frames] = {}
        self._memo: dict[int, list[Stretch]] = {}
        self._memo_bytes = 0
        walk(self._note)

    def copies(self, forward: Forward) -> list[Piece]:
        """The copies a forward stands for, as far as the log still holds what they are made of."""
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
        """The frames that hold what a forward refers to."""
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
        """Finds the records in a frame; what it refers to itself comes first, however long that chain is."""
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
                self._remember(place, [Stretch(view, 0, parts.count, parts.first_seq)])
                continue
            forward = decode_forward(frame.body)
            if not forward.by_value:
                missing = [other for other in self._places(forward) if other not in self._memo]
                if missing:
                    pending += missing
                    continue
            self._remember(place, [piece.stretch() for piece in self._derive(forward)])

    def _frame(self, place: int) -> Frame:
        if place & _LOOSE:
            return self._loose[place ^ _LOOSE]
        frame = read_frame(self._buffers[place >> _OFFSET_BITS], place & ((1 << _OFFSET_BITS) - 1))
        assert isinstance(frame, Frame), "a frame that was valid a moment ago"
        return frame

    def _remember(self, place: int, stretches: list[Stretch]) -> None:
        self._memo[place] = stretches
        self._memo_bytes += sum([len(stretch.view.text) + 200 for stretch in stretches])

    def _derive(self, forward: Forward) -> list[Piece]:
        """The copies of a forward, from frames that are resolved."""
        if forward.by_value:
            return self.copies(forward)
        known = [stretch for place in self._places(forward) for stretch in self._memo[place]]
        pieces: list[Piece] = []
        group: list[Stretch] = []
        seq, start, base = forward.first_seq + forward.lost, 0, forward.base

        def finish() -> None:
            nonlocal base
            if group:
                copies = cut_copies(group, Change(forward.keep_node, forward.keep_tag, forward.stamp))
                pieces.append(Piece(start, base, render(copies, start, forward.ts, base)))
                base += len(pieces[-1].fragments.text) + 1
                group.clear()

        for wanted in forward.ranges:
            for stretch, count in _covering(known, wanted):
                if stretch is None:
                    finish()
                else:
                    start = start if group else seq
                    group.append(stretch)
                seq += count
        finish()
        return pieces


def _covering(stretches: list[Stretch], wanted: SeqRange) -> list[tuple[Stretch | None, int]]:
    """A range of seqs as parts of stretches, in order, with None for what none of them has."""
    found: list[tuple[Stretch | None, int]] = []
    at, last = wanted
    for stretch in stretches:
        if stretch.last_seq < at or stretch.first_seq > last:
            continue
        if stretch.first_seq > at:
            found.append((None, stretch.first_seq - at))
            at = stretch.first_seq
        end = min(stretch.last_seq, last)
        found.append(
            (Stretch(stretch.view, at - stretch.origin, end + 1 - stretch.origin, stretch.origin), end + 1 - at)
        )
        at = end + 1
    if at <= last:
        found.append((None, last + 1 - at))
    return found


def _first_seq(frame: Frame) -> int | None:
    """The first seq of the records that a frame brings; None when it brings none."""
    if frame.kind is FrameKind.FORWARD:
        return forward_first_seq(frame.body)
    block = block_in(frame.kind, frame.body)
    return None if block is None else block_first_seq(block)
