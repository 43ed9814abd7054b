"""Delete export: keeps deletes from sealed segments until the archive has applied them.

A delete sets the record's flag in its segment, where later readers see it. But a segment whose last record was deleted
is removed, and a segment entirely below a delete by seq has no flags for it: an archive that copied the records before
would keep them forever. So with an archive, each topic keeps the ranges that were deleted by request and the catalog
lists them. They are dropped after the archive has reported, in a separate file, that it has applied every catalog up to
theirs. Evictions by cap or time are not kept here: the archive may outlive the log.

While no pipeline runs, all ranges are kept. A range that is too large would remove records from the archive
permanently, including ones that exist nowhere else, and one that is too small would keep deleted data. So the ranges
grow with the deletes (docs/decisions/0047), and three rules bound them:

* Ranges are kept encoded, in at most `EXPORTED_MAX` lists: of all neighbours but the newest, the smallest two are
  joined when there is one more.
* Two ranges with nothing between them that an archive may hold are one, once there are many (`harmless_between`).
* A large number is logged as a warning.

Merging and encoding a million ranges takes more than a second. So a checkpoint begins with it, in turns with other work
(`DeleteExport.prepare`); only the deletes since then are left for the moment at which the topic is captured.
"""

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge

import msgspec

from topics.engine.apply import Marks
from topics.engine.background_jobs import Job, Until
from topics.engine.checkpoint import Checkpointer
from topics.engine.core import EngineCore
from topics.engine.features import Rebuild
from topics.engine.read import EXACT_MAX, anything_live, lost_from
from topics.engine.topic import RunReader, Topic
from topics.log.frame import Frame, FrameKind
from topics.log.fs import FileSystem, WrongChecksumError, read_checked
from topics.log.snapshot_files import (
    REMOVALS_PART,
    PackedRemoval,
    Pieces,
    decode_packed,
    encode_removals,
    pack,
    packed_bytes,
    packed_ranges,
    unpack,
)
from topics.model.seq_ranges import Ranges, SeqRange, union
from topics.model.topic_config import is_server_name

EXPORTED_MAX = 16
MUCH_BYTES = 1024 * 1024
"""The bytes of encoded ranges of a topic, about a hundred thousand ranges, that are logged as a warning; repeated at
each doubling."""

_RANGES_A_TURN = 1_000
"""About two milliseconds."""
_FEW_ENDS = 32
_MUCH_A_TURN_BYTES = 10 * _RANGES_A_TURN

_log = logging.getLogger(__name__)


class TopicDeletes:
    """A topic's deleted ranges: those in catalogs, and those for the next catalog."""

    __slots__ = ("exported", "fresh", "many", "much_bytes", "prepared")

    def __init__(self, exported: list[PackedRemoval]) -> None:
        self.exported = exported
        """Oldest first."""
        self.fresh: Ranges = []
        """In the order of the deletes."""
        self.many: list[array[int]] = []
        """The ends of the ranges of deletes of many records at once, each ascending."""
        self.prepared: list[msgspec.Raw] = []
        """Deletes that are encoded for the next checkpoint."""
        self.much_bytes = MUCH_BYTES


class DeleteExport:
    """Implements `engine.features.Feature`; it has no frames, because the log's DELETE is sufficient."""

    name = REMOVALS_PART
    kinds: frozenset[FrameKind] = frozenset()

    def __init__(self, core: EngineCore, fs: FileSystem, checkpointer: Checkpointer) -> None:
        self._fs = fs
        self._reader = core.reader
        self._layout = core.layout
        self._checkpointer = checkpointer
        self._enabled = core.options.track_removals
        self.on = self._enabled or fs.exists(core.layout.pipeline_seen)
        """Also if there was an archive earlier: its records must not outlive a delete."""
        self.confirmed = self._read_confirmed()
        core.features.add(self)
        core.applier.removed.subscribe(self._removed)
        core.applier.marked.subscribe(self._marked)
        self._changed: dict[int, Topic] = {}
        """Topics with deletes that are not encoded."""
        checkpointer.prepare_deletes = self.prepare
        checkpointer.catalog.published.subscribe(self._published)
        checkpointer.catalog.tracked = self.on

    def replay(self, topic: Topic, frame: Frame, rebuild: Rebuild) -> None:
        raise AssertionError("removals have no frames")

    def save(self, topic: Topic) -> bytes:
        part = (topic.parts or {})[self.name]
        assert isinstance(part, TopicDeletes)
        part.exported = [removal for removal in part.exported if removal[0] > self.confirmed]
        if part.fresh or part.many:
            ranges = union(part.fresh, *map(_ranges_of, part.many))
            part.prepared.append(pack(joined(topic, self._reader, ranges)))
            part.fresh, part.many = [], []
        if part.prepared:
            # "Saving" means captured for the checkpoint in progress, whose catalog is the first to contain it.
            part.exported += [(self._checkpointer.number + 1, ranges) for ranges in part.prepared]
            part.prepared = []
            self._join_lists(topic, part.exported)
        encoded = encode_removals(part.exported)
        if len(encoded) > part.much_bytes:
            part.much_bytes = 2 * len(encoded)
            _log.warning("many deletes wait for the archive", extra={"topic": topic.name, "bytes": len(encoded)})
        return encoded

    def prepare(self, next_tick: Callable[[Callable[[object], None]], None]) -> Job:
        """Merges and encodes many deletes ahead of a checkpoint, a bounded number of ranges each tick."""
        for topic_id in list(self._changed):
            topic = self._changed.pop(topic_id)
            part = (topic.parts or {}).get(self.name)
            if not isinstance(part, TopicDeletes) or topic.closing:
                continue
            if len(part.fresh) + sum([len(ends) // 2 for ends in part.many]) > _RANGES_A_TURN:
                yield from self._encode(topic, part, next_tick)
            while len(part.exported) > 2 and len(part.exported) + len(part.prepared) >= EXPORTED_MAX:
                place = _smallest_pair(part.exported)
                if sum([packed_bytes(ranges) for _, ranges in part.exported[place : place + 2]]) < _MUCH_A_TURN_BYTES:
                    break
                yield from self._join_in_turns(topic, part, place, next_tick)

    def _encode(self, topic: Topic, part: TopicDeletes, next_tick: Callable[..., None]) -> Job:
        """Encodes the deletes of a topic that there are now; those that come meanwhile are left."""
        fresh, many = part.fresh, part.many
        part.fresh, part.many = [], []
        done = False
        try:
            runs: list[Iterable[SeqRange]] = [_ranges_of(ends) for ends in many]
            for place in range(0, len(fresh), _RANGES_A_TURN):
                runs.append(sorted(fresh[place : place + _RANGES_A_TURN]))
                yield Until(next_tick)
            encoded = Pieces()
            for some in self._joined_in_turns(topic, merge(*runs)):
                encoded.add(some)
                yield Until(next_tick)
            part.prepared.append(encoded.packed())
            done = True
        finally:
            if not done:
                part.fresh, part.many = fresh + part.fresh, many + part.many
                self._changed[topic.id] = topic

    def _join_in_turns(self, topic: Topic, part: TopicDeletes, place: int, next_tick: Callable[..., None]) -> Job:
        """Merges two of the encoded lists, so that there is room for another one."""
        (_, older), (number, newer) = part.exported[place : place + 2]
        encoded = Pieces()
        for some in self._joined_in_turns(topic, merge(packed_ranges(older), packed_ranges(newer))):
            encoded.add(some)
            yield Until(next_tick)
        part.exported[place : place + 2] = [(number, encoded.packed())]

    def _joined_in_turns(self, topic: Topic, ranges: Iterable[SeqRange]) -> Iterator[Ranges]:
        """Ascending ranges as `joined` has them, in parts that each take a turn."""
        part: Ranges = []
        for count, (first, last) in enumerate(ranges, 1):
            if part and (first <= part[-1][1] + 1 or harmless_between(topic, self._reader, part[-1][1] + 1, first - 1)):
                part[-1] = (part[-1][0], max(last, part[-1][1]))
            else:
                part.append((first, last))
            if count % _RANGES_A_TURN == 0:
                # The last one may grow by the next.
                yield part[:-1]
                del part[:-1]
        yield part

    def load(self, topic: Topic, part: bytes) -> None:
        if not self.on:
            return  # There is no archive any more, so the ranges are never needed.
        topic.parts = {**(topic.parts or {}), self.name: TopicDeletes(decode_packed(part))}

    def may_page_out(self, topic: Topic) -> bool:
        return False

    def reconcile(self) -> None:
        if self.on and not self._enabled:
            _log.warning("deletes kept for a disabled archive", extra={"folder": self._layout.pipeline})

    def _removed(self, topic: Topic, first: int, last: int) -> None:
        if not self.on or is_server_name(topic.name):
            return  # There is no archive, or it never gets these records.
        sealed_to = topic.tail[0].first_seq - 1 if topic.tail else topic.head
        # A tag is looked up in whole segments, including records that were evicted since.
        first, last = max(first, topic.earliest), min(last, sealed_to)
        if first > last:
            return
        if topic.parts is None:
            topic.parts = {}
        part = topic.parts.setdefault(self.name, TopicDeletes([]))
        assert isinstance(part, TopicDeletes)
        self._changed[topic.id] = topic
        before = part.fresh[-1] if part.fresh else (0, -1)
        if before[0] <= first <= before[1] + 1:
            part.fresh[-1] = (before[0], max(before[1], last))
        else:
            part.fresh.append((first, last))

    def _marked(self, topic: Topic, marks: Sequence[Marks]) -> None:
        if not self.on or is_server_name(topic.name):
            return
        sealed_to = topic.tail[0].first_seq - 1 if topic.tail else topic.head
        # Not the marks themselves, whose masks are as long as their runs.
        sealed = [mark.pairs for mark in marks if mark.live and mark.first_seq + mark.count - 1 <= sealed_to]
        if sealed:
            if topic.parts is None:
                topic.parts = {}
            part = topic.parts.setdefault(self.name, TopicDeletes([]))
            assert isinstance(part, TopicDeletes)
            for ends in sealed:
                if len(ends) > _FEW_ENDS:
                    part.many.append(ends)
                else:
                    part.fresh += _ranges_of(ends)
            self._changed[topic.id] = topic

    def _join_lists(self, topic: Topic, exported: list[PackedRemoval]) -> None:
        """Merges encoded lists. An archive gets merged deletes again, which has no effect on it.

        The smallest neighbours are merged, so that a long list is not decoded at every checkpoint. The newest is never
        merged, because it would then never be confirmed.
        """
        while len(exported) > EXPORTED_MAX:
            place = _smallest_pair(exported)
            (_, older), (number, newer) = exported[place : place + 2]
            ranges = joined(topic, self._reader, union(unpack(older), unpack(newer)))
            exported[place : place + 2] = [(number, pack(ranges))]

    def _published(self) -> None:
        """Runs off the loop after each checkpoint: one small read."""
        self.confirmed = max(self.confirmed, self._read_confirmed())

    def _read_confirmed(self) -> int:
        try:
            text = read_checked(self._fs, self._layout.pipeline_seen)
        except WrongChecksumError as error:
            # The deletes are kept until the pipeline confirms them again.
            _log.error("confirmation of the archive cannot be read", extra={"error": str(error)})
            return 0
        return int(text) if text.isdigit() else 0


def _ranges_of(ends: "array[int]") -> Iterable[SeqRange]:
    return zip(ends[::2], ends[1::2], strict=True)


def _smallest_pair(exported: list[PackedRemoval]) -> int:
    """The place of the two neighbours with the fewest bytes, the newest list apart."""
    sizes = [packed_bytes(ranges) for _, ranges in exported]
    return min(range(len(exported) - 2), key=lambda at: sizes[at] + sizes[at + 1])


def joined(topic: Topic, reader: RunReader, ranges: Ranges) -> Ranges:
    """Returns the ranges for the catalog.

    If there are many, neighbours with only harmless seqs between them are merged.
    """
    if len(ranges) <= EXACT_MAX:
        # Exact ranges are better while there are few.
        return ranges
    found = ranges[:1]
    for first, last in ranges[1:]:
        before = found[-1]
        if harmless_between(topic, reader, before[1] + 1, first - 1):
            found[-1] = (before[0], last)
        else:
            found.append((first, last))
    return found


def harmless_between(topic: Topic, reader: RunReader, first: int, last: int) -> bool:
    """Returns whether an archive loses nothing if these seqs are reported as deleted, too.

    Above the eviction floor, every seq that is neither live nor lost was deleted: in the tail, which is not exported,
    or by an exported delete. The archive keeps evicted records, and may have the only copy of records lost to damage.
    """
    if first < topic.evict_floor:
        return False
    lost = next(lost_from(topic, first), None)
    if lost is not None and lost.from_seq <= last:
        return False
    return not anything_live(topic, reader, first, last)
