"""Segment reader: plans and reads sealed segments in place, without a server.

A reader reads the catalog once, when it plans. Files may be removed or moved while it reads: a missing segment is
looked up in the other tier, and one that a newer catalog no longer lists was removed, as for readers over HTTP.
"""

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import pyarrow as pa

from topics.log.catalog import Catalog, CatalogTopic
from topics.log.catalog_files import read_catalog
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.model.seq_ranges import Ranges, union
from topics.model.topic_config import decode_config
from topics.spark.arrow_slices import RECORD_SCHEMA, SegmentSlicer, Window

GROUP_BYTES = 32 * 1024 * 1024
BATCH_RECORDS = 20_000
SEQ_MAX = 2**63 - 1


class NoCatalogError(Exception):
    """The folder has no catalog: it is not a data folder, or no checkpoint was taken yet."""

    def __init__(self, root: str) -> None:
        super().__init__(f"{root} has no catalog: it is no data folder, or nothing in it was sealed yet")


class SegmentDamagedError(Exception):
    """A sealed segment is damaged. `topics verify` shows details."""


class SegmentGoneError(Exception):
    """A segment's files were removed, and the newest catalog no longer names them."""


class NoColdFolderError(Exception):
    """A segment is in the cold tier, whose folder was not given."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is in the cold tier: say where that is in the option coldDir, or leave it to the server of the "
            "option url with mode=auto"
        )


class SegmentRef(msgspec.Struct, frozen=True):
    """A segment and the filter for its records; small, since it is sent to tasks."""

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
    """For copies: the seqs from this one to before `from_seq` are deleted and count as covered. 0 for none."""

    @property
    def window(self) -> Window:
        return Window(self.from_seq, self.to_seq, self.from_ts, self.to_ts, self.tag_prefix, self.include_deleted)


class ScanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The filter of a scan."""

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
    """The live range of a topic: not evicted, deleted from the front, or expired."""
    ttl = _ttl_of(topic.config)
    return Window(from_seq=topic.earliest, from_ts=max(now_ms - ttl, 0) if ttl else 0)


@lru_cache(maxsize=1024)
def _ttl_of(config: bytes) -> int:
    """Cached: thousands of topics share few configs."""
    return decode_config(config).ttl_ms


def plan_topic(topic: CatalogTopic, options: ScanOptions, now_ms: int) -> list[SegmentRef]:
    """The segments of a topic with selected records, in order."""
    live = live_window(topic, now_ms)
    return plan_segments(topic, options, live.from_seq, max(live.from_ts, options.from_ts))


def plan_segments(topic: CatalogTopic, options: ScanOptions, first_seq: int, from_ts: int) -> list[SegmentRef]:
    """The segments with selected records from a seq and a time on."""
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
    """The segments of all topics with selected records, ordered by topic name."""
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
    """Groups of consecutive segments of about `group_bytes`, one for each task."""
    refs = list(refs)
    total = sum(ref.text_bytes for ref in refs)
    target = max(1, min(group_bytes, -(-total // max(groups_min, 1))))
    groups: list[list[SegmentRef]] = []
    size = 0
    for place, ref in enumerate(refs):
        # The remaining segments must suffice for `groups_min` groups.
        if not groups or size >= target or len(refs) - place <= groups_min - len(groups):
            groups.append([])
            size = 0
        groups[-1].append(ref)
        size += ref.text_bytes
    return groups


def covered(refs: Sequence[SegmentRef]) -> Ranges:
    """The seqs of some segments, selected or not."""
    return union([(ref.first_seq, ref.first_seq + ref.count - 1) for ref in refs])


def open_segment(fs: FileSystem, layout: Layout, ref: SegmentRef) -> SegmentSlicer:
    """Maps a segment from its tier."""
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
    raise _missing_segment_error(fs, layout, ref)


def read_segment(
    fs: FileSystem, layout: Layout, ref: SegmentRef, rows: int = BATCH_RECORDS, schema: pa.Schema = RECORD_SCHEMA
) -> Iterator[pa.RecordBatch]:
    """The selected records of a segment in batches of `rows`; `schema` has some or all columns of a record."""
    slicer = open_segment(fs, layout, ref)
    chosen = slicer.select(ref.window)
    for begin in range(0, len(chosen), rows):
        try:
            yield slicer.batch(chosen[begin : begin + rows], ref.topic, schema)
        except ValueError as error:
            path = layout.segment(ref.topic_id, ref.first_seq, ref.cold)
            raise SegmentDamagedError(f"{path}: {error}") from error


def _missing_segment_error(fs: FileSystem, layout: Layout, ref: SegmentRef) -> Exception:
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


# Expiry: records that are past their TTL while segments still have them.
#
# A catalog is as old as the last checkpoint. Records that have expired since are not shown, and are reported as lost.


def expired(fs: FileSystem, layout: Layout, topic: CatalogTopic, options: ScanOptions, now_ms: int) -> Ranges:
    """The seqs of expired records: for each segment from the first to the last that is not deleted.

    Times never decrease within a topic, so later records have not expired. A segment that cannot be opened has expired
    as a whole if none of it is live; otherwise the reader of its live records reports the error.
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


def has_elapsed(since_ms: int, for_ms: int, now_ms: int) -> bool:
    """Whether `for_ms` have passed since `since_ms`.

    True as well for a `since_ms` further in the future than `for_ms`: it was stored while the clock was wrong, and
    waiting for it could take years.
    """
    return abs(now_ms - since_ms) >= for_ms


class Backlog(msgspec.Struct, frozen=True):
    """The sealed segments that a product has not processed."""

    segments: int = 0
    bytes: int = 0
    oldest_ts: int | None = None
    """The commit time of the oldest unprocessed record; None when there is none."""
    records: int = 0
    """Records of these segments, also deleted ones."""


class History(NamedTuple):
    """The identity of the log that products are built from."""

    name: str
    takes_over: bool = False
    """Whether products of another history may be replaced."""
    acked_delete: int = 0
    """The newest catalog whose deletes were acknowledged, by any archive."""


# Buckets: topics share archive files by a hash of their names.
#
# The hash is Apache Iceberg's `bucket` transform: 32-bit Murmur3 with seed 0 over the UTF-8 bytes of the name, sign bit
# cleared, modulo the number of buckets. So the files can be partitions of an Iceberg table, and any engine that knows
# the transform finds the bucket of a topic.

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
