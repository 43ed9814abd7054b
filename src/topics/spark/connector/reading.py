"""Records of a span as Arrow batches: out of sealed segments where they can be reached, over HTTP where not."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from topics.core.ranges import SeqRange, difference
from topics.spark.connector.loss import Losses
from topics.spark.connector.options import ReadOptions
from topics.spark.connector.pages import as_batch, open_client, page_request
from topics.spark.connector.planning import SeqSpan
from topics.spark.segments import (
    SEQ_MAX,
    NoCatalogError,
    ScanOptions,
    SegmentGoneError,
    SegmentRef,
    load_catalog,
    plan_topic,
    read_segment,
)
from topics.storage.layout import Layout
from topics.storage.objects.tiers import guest_files
from topics.storage.posix import PosixFileSystem
from topics.system.clock import SystemClock


def read_span(span: SeqSpan, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Everything of a span that there is, in the order of the seqs."""
    losses = Losses(options.fail_on_loss)
    parts = _sealed_parts(span, options)
    for part in parts:
        if isinstance(part, SegmentRef):
            layout = options.access.layout
            assert layout is not None
            try:
                yield from read_segment(guest_files(layout.cold_root), layout, part)
            except SegmentGoneError:
                # It went between the look at the catalog and now. What is left of it, the server knows.
                yield from _rest_of(part, span, options, losses)
        else:
            yield from read_http(SeqSpan(span.topic, span.epoch, part[0] - 1, part[1]), options, losses)


def _rest_of(part: SegmentRef, span: SeqSpan, options: ReadOptions, losses: Losses) -> Iterator[pa.RecordBatch]:
    if options.access.http is None:
        return
    first = max(part.first_seq, part.from_seq)
    last = min(part.first_seq + part.count - 1, part.to_seq)
    yield from read_http(SeqSpan(span.topic, span.epoch, first - 1, last), options, losses)


def _sealed_parts(span: SeqSpan, options: ReadOptions) -> list[SegmentRef | SeqRange]:
    """The segments of a span, and the ranges between them that only the server has; in order."""
    whole = [(span.after + 1, span.to)]
    layout = options.access.layout
    if layout is None:
        return list(whole)
    refs = _segments(span, options, layout)
    held = [(ref.first_seq, ref.first_seq + ref.count - 1) for ref in refs]
    rest = difference(whole, held) if options.access.http is not None else []
    return sorted([*refs, *rest], key=lambda part: part.first_seq if isinstance(part, SegmentRef) else part[0])


def _segments(span: SeqSpan, options: ReadOptions, layout: Layout) -> list[SegmentRef]:
    try:
        topic = load_catalog(PosixFileSystem(), layout).by_name().get(span.topic)
    except NoCatalogError:
        if options.access.mode == "segments":
            raise
        return []
    if topic is None or topic.epoch != span.epoch:
        return []
    wanted = ScanOptions(
        from_seq=span.after + 1,
        to_seq=span.to,
        from_ts=options.from_ts,
        to_ts=options.to_ts,
        tag_prefix=options.tag_prefix,
        include_deleted=options.include_deleted,
    )
    return plan_topic(topic, wanted, SystemClock().now_ms())


def read_http(span: SeqSpan, options: ReadOptions, losses: Losses) -> Iterator[pa.RecordBatch]:
    """Reads a span from the server, page by page. Records deleted meanwhile are silently not there."""
    cursor = span.after
    with open_client(options.access) as client:
        while cursor < span.to:
            answer = client.send(page_request(span.topic, span.epoch, cursor, span.to - cursor))
            gap = answer.tombstone
            if gap is not None and gap.reason == "recreated":
                losses.met(span.topic, cursor + 1, span.to, gap.reason)
                return
            if gap is not None and gap.gap_from <= span.to:
                losses.met(span.topic, gap.gap_from, min(gap.gap_to, span.to), gap.reason)
            records = [record for record in answer.records if record.seq <= span.to]
            if records:
                yield filtered(as_batch(span.topic, span.epoch, records), options)
            if answer.next_from_seq <= cursor:
                return
            cursor = answer.next_from_seq


def filtered(batch: pa.RecordBatch, options: ReadOptions) -> pa.RecordBatch:
    """What of a batch lies within the wanted times and has a wanted tag."""
    if options.from_ts or options.to_ts < SEQ_MAX:
        times = batch["ts"].cast(pa.int64())
        keep = pc.greater_equal(times, options.from_ts * 1000)
        if options.to_ts < SEQ_MAX // 1000:
            keep = pc.and_(keep, pc.less(times, options.to_ts * 1000))
        batch = batch.filter(keep)
    if options.tag_prefix:
        batch = batch.filter(pc.fill_null(pc.starts_with(batch["tag"], options.tag_prefix), False))
    return batch
