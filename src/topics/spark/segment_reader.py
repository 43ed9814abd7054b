"""Reading sealed segments in place: which of them, where their files are, and what of them is wanted.

A guest reads the catalog once, when it plans. Files may go or move while it reads: a segment that is not where the
catalog said is looked for in the other tier, and one that a newer catalog no longer names is gone, which is what its
readers over HTTP would find as well.
"""

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import pyarrow as pa

from topics.log.catalog import Catalog, CatalogTopic, read_catalog
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.model.seq_ranges import Ranges, union
from topics.model.topic_config import decode_config
from topics.spark.arrow_slices import SegmentSlicer, Window

GROUP_BYTES = 32 * 1024 * 1024
BATCH_RECORDS = 20_000
SEQ_MAX = 2**63 - 1


class NoCatalogError(Exception):
    """The folder has no catalog: it is none of ours, or no checkpoint was taken yet."""

    def __init__(self, root: str) -> None:
        super().__init__(f"{root} has no catalog: it is no data folder, or nothing in it was sealed yet")


class SegmentDamagedError(Exception):
    """A sealed segment is not what was written. `topics verify` tells more."""


class SegmentGoneError(Exception):
    """A segment's files are gone and the newest catalog no longer names them."""


class NoColdFolderError(Exception):
    """A segment is in the cold tier, and nobody said where that is."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is in the cold tier: say where that is in the option coldDir, or leave it to the server of the "
            "option url with mode=auto"
        )


class SegmentRef(msgspec.Struct, frozen=True):
    """One segment and what is wanted of it; small, since it travels to the tasks."""

    topic: str
    topic_id: int
    epoch: int
    first_seq: int
    count: int
    text_bytes: int
    cold: bool
    from_seq: int
    to_seq: int
    from_ts: int
    to_ts: int
    tag_prefix: str = ""
    include_deleted: bool = False
    deleted_from: int = 0
    """For whoever copies: the seqs from here up to the wanted ones are deleted, and not to be waited for. 0 is none."""

    @property
    def window(self) -> Window:
        return Window(self.from_seq, self.to_seq, self.from_ts, self.to_ts, self.tag_prefix, self.include_deleted)


class ScanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a scan leaves out. A range of seqs is for every topic that has none of its own."""

    topics: tuple[str, ...] = ()
    """Names; none means every topic."""
    pattern: str = ""
    """A glob over the names, such as `orders.*`."""
    from_seq: int = 0
    to_seq: int = SEQ_MAX
    from_ts: int = 0
    to_ts: int = SEQ_MAX
    tag_prefix: str = ""
    include_deleted: bool = False


def load_catalog(fs: FileSystem, layout: Layout) -> Catalog:
    found = read_catalog(fs, layout)
    if found is None:
        raise NoCatalogError(layout.root)
    return found


def live_window(topic: CatalogTopic, now_ms: int) -> Window:
    """What of a topic is neither evicted nor deleted from its front nor expired by now."""
    ttl = _ttl_of(topic.config)
    return Window(from_seq=topic.earliest, from_ts=max(now_ms - ttl, 0) if ttl else 0)


@lru_cache(maxsize=1024)
def _ttl_of(config: bytes) -> int:
    """Topics by the thousand have few configs between them."""
    return decode_config(config).ttl_ms


def plan_topic(topic: CatalogTopic, options: ScanOptions, now_ms: int) -> list[SegmentRef]:
    """The segments of a topic that hold anything wanted, in order."""
    live = live_window(topic, now_ms)
    return plan_segments(topic, options, live.from_seq, max(live.from_ts, options.from_ts))


def plan_segments(topic: CatalogTopic, options: ScanOptions, first_seq: int, from_ts: int) -> list[SegmentRef]:
    """The segments that hold anything wanted from a seq and from a moment on."""
    from_seq = max(first_seq, options.from_seq)
    selected = [
        segment
        for segment in topic.segments
        if segment.last_seq >= from_seq
        and segment.first_seq <= options.to_seq
        and segment.last_ts >= from_ts
        and segment.first_ts < options.to_ts
    ]
    return [
        SegmentRef(
            topic=topic.name,
            topic_id=topic.topic_id,
            epoch=topic.epoch,
            first_seq=segment.first_seq,
            count=segment.count,
            text_bytes=segment.text_bytes,
            cold=segment.cold,
            from_seq=from_seq,
            to_seq=options.to_seq,
            from_ts=from_ts,
            to_ts=options.to_ts,
            tag_prefix=options.tag_prefix,
            include_deleted=options.include_deleted,
        )
        for segment in selected
    ]


def plan_scan(catalog: Catalog, options: ScanOptions, now_ms: int) -> list[SegmentRef]:
    """The segments of all topics that hold anything wanted, by the names of the topics."""
    topics = catalog.topics
    if options.topics:
        named = frozenset(options.topics)
        topics = [topic for topic in topics if topic.name in named]
    elif options.pattern:
        topics = [topic for topic in topics if fnmatch.fnmatchcase(topic.name, options.pattern)]
    refs = []
    for topic in sorted(topics, key=lambda topic: topic.name):
        refs += plan_topic(topic, options, now_ms)
    return refs


def pack(refs: Iterable[SegmentRef], group_bytes: int = GROUP_BYTES, groups_min: int = 1) -> list[list[SegmentRef]]:
    """Groups of neighbouring segments, each one task's work: neither a task a tiny segment nor one for everything."""
    refs = list(refs)
    total = sum(ref.text_bytes for ref in refs)
    target = max(1, min(group_bytes, -(-total // max(groups_min, 1))))
    groups: list[list[SegmentRef]] = []
    size = 0
    for place, ref in enumerate(refs):
        # As many groups as were wanted must still come out of what is left.
        if not groups or size >= target or len(refs) - place <= groups_min - len(groups):
            groups.append([])
            size = 0
        groups[-1].append(ref)
        size += ref.text_bytes
    return groups


def covered(refs: Sequence[SegmentRef]) -> Ranges:
    """The seqs that some segments hold, whether they are wanted or not."""
    return union([(ref.first_seq, ref.first_seq + ref.count - 1) for ref in refs])


def open_segment(fs: FileSystem, layout: Layout, ref: SegmentRef) -> SegmentSlicer:
    """Maps a segment wherever it is now."""
    tiers = (ref.cold, not ref.cold) if layout.cold_root is not None else (False,)
    for cold in tiers:
        path = layout.segment(ref.topic_id, ref.first_seq, cold)
        try:
            data, index = _map(fs, path + ".data"), _map(fs, path + ".idx")
        except FileNotFoundError:
            continue
        try:
            slicer = SegmentSlicer(data, index)
            if (slicer.head.topic_id, slicer.head.epoch, slicer.head.first_seq) != (
                ref.topic_id, ref.epoch, ref.first_seq,
            ):  # fmt: skip
                raise ValueError("it belongs somewhere else")
        except ValueError as error:
            raise SegmentDamagedError(f"{path}: {error}") from error
        return slicer
    raise _gone(fs, layout, ref)


def read_segment(
    fs: FileSystem, layout: Layout, ref: SegmentRef, rows: int = BATCH_RECORDS
) -> Iterator[pa.RecordBatch]:
    """The wanted records of a segment, some at a time."""
    slicer = open_segment(fs, layout, ref)
    chosen = slicer.select(ref.window)
    for begin in range(0, len(chosen), rows):
        try:
            yield slicer.batch(chosen[begin : begin + rows], ref.topic)
        except ValueError as error:
            path = layout.segment(ref.topic_id, ref.first_seq, ref.cold)
            raise SegmentDamagedError(f"{path}: {error}") from error


def _gone(fs: FileSystem, layout: Layout, ref: SegmentRef) -> Exception:
    path = layout.segment(ref.topic_id, ref.first_seq, ref.cold)
    topic = load_catalog(fs, layout).by_id().get(ref.topic_id)
    for segment in topic.segments if topic is not None else ():
        if segment.first_seq == ref.first_seq:
            if segment.cold and layout.cold_root is None:
                return NoColdFolderError(path)
            return SegmentDamagedError(f"{path}: the catalog names it, and it is not there")
    return SegmentGoneError(path)


def _map(fs: FileSystem, path: str) -> memoryview:
    file = fs.open(path)
    try:
        return file.map()
    finally:
        file.close()


# What of a topic is too old by now, though its segments still hold it.
#
# A catalog is as old as the last checkpoint, and knows what had been taken from a topic by then. Time goes on: what has
# become too old since is not to be shown, and whoever should have read it is to be told.


def expired(fs: FileSystem, layout: Layout, topic: CatalogTopic, options: ScanOptions, now_ms: int) -> Ranges:
    """The seqs of wanted records that are too old: of each segment from the first to the last that is not deleted.

    Times never go back along a topic, so whatever lies behind them is not too old. Of a segment that cannot be opened
    they are all where none is live; one that has both is left to whoever reads the others.
    """
    before = live_window(topic, now_ms).from_ts
    if not before:
        return []
    older = msgspec.structs.replace(options, tag_prefix="", include_deleted=False, to_ts=min(before, options.to_ts))
    refs = plan_segments(topic, older, topic.earliest, options.from_ts)
    live = {ref.first_seq for ref in plan_topic(topic, options, now_ms)} if refs else set()
    return union([part for ref in refs for part in _expired(fs, layout, ref, ref.first_seq in live)])


def _expired(fs: FileSystem, layout: Layout, ref: SegmentRef, partly: bool) -> Ranges:
    try:
        chosen = open_segment(fs, layout, ref).select(ref.window)
    except (SegmentGoneError, NoColdFolderError, SegmentDamagedError):
        whole = max(ref.first_seq, ref.from_seq), min(ref.first_seq + ref.count - 1, ref.to_seq)
        return [] if partly else [whole]
    return [(ref.first_seq + int(chosen[0]), ref.first_seq + int(chosen[-1]))] if len(chosen) else []


# Whether a time is over that began at a moment which was noted earlier.


def has_elapsed(since_ms: int, for_ms: int, now_ms: int) -> bool:
    """A moment further ahead than the time is long was noted while the clock was wrong. Nobody knows how long ago that
    was, and to wait for it could take years: the time is over then, too."""
    return abs(now_ms - since_ms) >= for_ms


# How far a product of the pipeline is behind the sealed segments.


class Backlog(msgspec.Struct, frozen=True):
    segments: int = 0
    bytes: int = 0
    oldest_ts: int | None = None
    """When the oldest record was committed that waits; None when none does."""


# Which log it is that products are made of.


class History(NamedTuple):
    name: str
    takes_over: bool = False
    """Whether products of another history are this one's, to be made anew."""
    acked_delete: int = 0
    """The newest catalog of which deletes were confirmed, by whichever archive."""


# Where records of a topic go in files that topics share: a bucket, by a hash of the topic's name.
#
# The hash is the one that Apache Iceberg uses for its transform `bucket`: Murmur3 of 32 bits with seed 0 over the UTF-8
# bytes of the name, its sign bit cleared, modulo the number of buckets. So the files can be parts of such a table as
# they are, and any engine that knows the transform finds the bucket of a topic.

BUCKETS = 16

_MASK = 0xFFFFFFFF


@lru_cache(maxsize=65_536)
def bucket_of(topic: str, buckets: int = BUCKETS) -> int:
    return (murmur3(topic.encode()) & 0x7FFFFFFF) % buckets


def murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0, unsigned."""
    length = len(data)
    whole = length & ~3
    state = 0
    for place in range(0, whole, 4):
        state ^= _mixed(int.from_bytes(data[place : place + 4], "little"))
        state = ((state << 13 | state >> 19) * 5 + 0xE6546B64) & _MASK
    if whole < length:
        state ^= _mixed(int.from_bytes(data[whole:], "little"))
    state ^= length
    state = ((state ^ state >> 16) * 0x85EBCA6B) & _MASK
    state = ((state ^ state >> 13) * 0xC2B2AE35) & _MASK
    return state ^ state >> 16


def _mixed(word: int) -> int:
    word = word * 0xCC9E2D51 & _MASK
    return (word << 15 | word >> 17) * 0x1B873593 & _MASK
