"""Reading sealed segments in place: which of them, where their files are, and what of them is wanted.

A guest reads the catalog once, when it plans. Files may go or move while it reads: a segment that is not where the
catalog said is looked for in the other tier, and one that a newer catalog no longer names is gone, which is what its
readers over HTTP would find as well.
"""

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import msgspec
import pyarrow as pa

from topics.core.config import decode_config
from topics.core.ranges import Ranges, union
from topics.formats.catalog import Catalog, CatalogTopic
from topics.spark.slicing import SegmentSlicer, Window
from topics.storage.catalog import read_catalog
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout

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
    settled_from: int = 0
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
    wanted = [
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
        for segment in wanted
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
