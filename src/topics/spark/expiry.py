"""What of a topic is too old by now, though its segments still hold it.

A catalog is as old as the last checkpoint, and knows what had been taken from a topic by then. Time goes on: what has
become too old since is not to be shown, and whoever should have read it is to be told.
"""

import msgspec

from topics.core.ranges import Ranges, union
from topics.formats.catalog import CatalogTopic
from topics.spark.segments import (
    NoColdFolderError,
    ScanOptions,
    SegmentDamagedError,
    SegmentGoneError,
    SegmentRef,
    live_window,
    open_segment,
    plan_segments,
    plan_topic,
)
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout


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
