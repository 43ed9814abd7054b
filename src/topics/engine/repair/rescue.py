"""What can be brought back out of one segment's files: blocks to be sealed anew, and the seqs that are lost."""

from collections.abc import Iterator

import msgspec

from topics.engine.repair.verification import map_file, read_image
from topics.engine.state.runs import Block, live_ranges
from topics.formats.segment import DELETED
from topics.formats.snapshot import SegmentState, TopicState
from topics.storage.damage.segment_image import SegmentImage
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout, number_in
from topics.storage.segments import SegmentKey
from topics.wire.cuts import payload_sizes

SeqRange = tuple[int, int]
"""First and last seq, both included."""


class Rescued(msgspec.Struct):
    """The outcome for one segment."""

    segment: SegmentState | None = None
    """Set when a segment can stay as it is on disk."""
    blocks: list[Block] = []
    lost: list[SeqRange] = []
    """Seqs nothing was found of."""
    doubtful: list[SeqRange] = []
    """Seqs that are there but marked as deleted, though perhaps nobody deleted them."""


def rescue(
    fs: FileSystem, layout: Layout, state: TopicState, segment: SegmentState, sure: bool, strange: bytes | None
) -> Rescued:
    """Mends a segment that the state names; `sure` says that there was no newer state.

    `strange` has its delete flags where they are more than were ever set.
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
    flags, unsure = _settle_flags(image.flags, segment.marked, sure)
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
    """A segment of a state that may be old: its file may have been told of deletes since."""
    image = read_image(fs, layout, state, segment)
    flags = _either(image.flags, segment.flags if len(segment.flags) == segment.count else bytes(segment.count))
    live, size = _live(image, flags, state.earliest)
    kept = flags if flags != image.flags else b""
    return msgspec.structs.replace(segment, live=live, live_bytes=size, marked=flags.count(DELETED), flags=kept)


def found_segments(fs: FileSystem, layout: Layout, topic_id: int, skip: set[SegmentKey]) -> Iterator[SegmentKey]:
    """The segments in a topic's folders, the hot copy first where there are two."""
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
    """A segment that no state names; None when it is not what its name says."""
    path = layout.segment(*key)
    image = SegmentImage(map_file(fs, path + ".data"), map_file(fs, path + ".idx"), None)
    head = image.head
    return image if head is not None and (head.topic_id, head.first_seq) == key[:2] else None


def adopt(image: SegmentImage, cold: bool, earliest: int) -> Rescued:
    """A segment that no state names, as part of a topic whose first live seq is not below `earliest`."""
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
    """What ascending ranges leave open between two seqs."""
    found, at = [], first
    for begin, end in covered:
        if at < begin:
            found.append((at, min(begin - 1, last)))
        at = max(at, end + 1)
    if at <= last:
        found.append((at, last))
    return [seqs for seqs in found if seqs[0] <= seqs[1]]


def _live(image: SegmentImage, flags: bytes, earliest: int) -> tuple[int, int]:
    """How many records are live, and their payload."""
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


def _settle_flags(flags: bytes, marked: int, sure: bool) -> tuple[bytes, bytes]:
    """Flags that are only set or clear, and those among the set ones of which nobody knows.

    How many are set in all is known. When the readable ones are that many, the others are clear; when all the others
    are needed to make up the number, they are set. In between they count as set: a record that was deleted must not
    come back, and of one that was not its readers are told. When more are set than ever were, and there is no newer
    state that could know why, any of them may be one that nobody set.
    """
    unknown = [index for index, flag in enumerate(flags) if flag not in (0, DELETED)]
    missing = marked - flags.count(DELETED)
    settled = bytearray(flags)
    for index in unknown:
        settled[index] = DELETED if missing > 0 else 0
    unsure = bytearray(len(flags))
    if 0 < missing < len(unknown):
        for index in unknown:
            unsure[index] = DELETED
    elif missing < 0 and sure:
        unsure = bytearray(DELETED if flag == DELETED else 0 for flag in flags)
    return bytes(settled), bytes(unsure)


def _erased_flags(image: SegmentImage, flags: bytes, segment: SegmentState, earliest: int) -> bytes:
    """The records that a flag may have marked which now reads as clear, so that nothing in it tells of the damage.

    How many records are live is known, and their bytes: a single one that is too many can be told by its size, or at
    least only those of its size come into question. Of several that are too many it may be any.
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
    """What one or the other marks as deleted."""
    return bytes(DELETED if DELETED in pair else 0 for pair in zip(flags, others, strict=True))


def _marked(flags: bytes, first_seq: int) -> list[SeqRange]:
    inverted = bytes(0 if flag == DELETED else DELETED for flag in flags)
    return [(first_seq + lo, first_seq + hi - 1) for lo, hi in live_ranges(inverted, 0, len(inverted))]


def _all_deleted(seqs: SeqRange, first_seq: int, flags: bytes) -> bool:
    mine = flags[seqs[0] - first_seq : seqs[1] - first_seq + 1] if seqs[0] >= first_seq else b""
    return bool(mine) and mine.count(DELETED) == seqs[1] - seqs[0] + 1
