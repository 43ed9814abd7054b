"""Record reader: seq ranges as Arrow batches, from sealed segments where possible, over HTTP otherwise."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from topics.log.catalog import CatalogTopic
from topics.log.layout import Layout
from topics.log.object_store.tiered_fs import guest_files
from topics.log.posix import PosixFileSystem
from topics.model.seq_ranges import Ranges, SeqRange, difference, intersection, union
from topics.spark.archive.archive_reader import FilePart, pack_parts, parts_of, read_part
from topics.spark.archive.archive_state import ArchivedTopic
from topics.spark.archive.data_files import Run
from topics.spark.archive.ledger import ArchiveStore
from topics.spark.arrow_slices import CONTENT_TYPE_KEY, JSON_TYPE, RECORD_SCHEMA
from topics.spark.connector.options import Access, Losses, ReadOptions
from topics.spark.connector.origins import Origin, Position, SeqSpan, losses_within
from topics.spark.promotion import Versions, ask_versions, catalogued_versions
from topics.spark.segment_reader import (
    SEQ_MAX,
    NoCatalogError,
    NoColdFolderError,
    ScanOptions,
    SegmentGoneError,
    SegmentRef,
    expired,
    load_catalog,
    plan_topic,
    read_segment,
)
from topics.system.clock import SystemClock
from topics_client import Client, Gap, TopicNotFound
from topics_client.requests import Request, diff

# HTTP pages. Payloads are kept as raw text, so that Spark returns them byte for byte.

_PAGE_RECORDS = 1000
_PAGE_BYTES = 8 * 1024 * 1024
_CONTENT_TYPE_MARK = f'"{CONTENT_TYPE_KEY}"'.encode()
_NONE = msgspec.Raw()


class RawRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    data: msgspec.Raw
    meta: msgspec.Raw = _NONE


class RawPage(msgspec.Struct, frozen=True, kw_only=True):
    records: list[RawRecord]
    next_from_seq: int
    tombstone: Gap | None = None


class _Meta(msgspec.Struct):
    content_type: str = msgspec.field(name=CONTENT_TYPE_KEY, default=JSON_TYPE)


_decode_meta = msgspec.json.Decoder(_Meta).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def open_client(access: Access) -> Client:
    assert access.http is not None
    return Client(access.http, api_key=access.api_key)


def page_request(
    topic: str, epoch: int, cursor: int, requested: int, schema: pa.Schema = RECORD_SCHEMA
) -> Request[RawPage]:
    """A request for records after a cursor, of this epoch of the topic only."""
    request = diff(
        topic,
        cursor,
        limit=min(requested, _PAGE_RECORDS),
        include_tags="tag" in schema.names,
        include_meta="meta" in schema.names or "content_type" in schema.names,
        max_batch_bytes=_PAGE_BYTES,
        epoch=epoch or None,
        streams=True,
    )
    return Request(method=request.method, target=request.target, body=request.body, answer=RawPage)


def as_batch(
    topic: str, epoch: int, records: list[RawRecord], schema: pa.Schema = RECORD_SCHEMA
) -> pa.RecordBatch:  # fmt: skip
    """Records of a response as a batch of `RECORD_SCHEMA`, or of some of its columns."""
    columns = [_column(name, topic, epoch, records) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(name: str, topic: str, epoch: int, records: list[RawRecord]) -> pa.Array:
    match name:
        case "topic":
            return pa.repeat(pa.scalar(topic), len(records))
        case "epoch":
            return pa.repeat(pa.scalar(epoch, pa.int64()), len(records))
        case "seq":
            return pa.array([record.seq for record in records], pa.int64())
        case "ts":
            return pa.array([record.ts * 1000 for record in records], pa.timestamp("us", tz="UTC"))
        case "node":
            return pa.array([record.node for record in records], pa.string())
        case "tag":
            return pa.array([record.tag for record in records], pa.string())
        case "meta":
            texts = [str(bytes(record.meta), "utf-8") if len(record.meta) else None for record in records]
            return pa.array(texts, pa.string())
        case "data":
            return pa.array([str(bytes(record.data), "utf-8") for record in records], pa.string())
        case "content_type":
            return pa.array([_content_type(record.meta) for record in records], pa.string())
        case _:
            return pa.repeat(pa.scalar(False), len(records))


def as_map(meta: pa.Array, kind: pa.MapType) -> pa.Array:
    """Returns the headers as a map: texts unchanged, other values as JSON text."""
    found = [None if text is None else _members(text) for text in meta.to_pylist()]
    return pa.array(found, kind)


def _members(text: str) -> list[tuple[str, str]]:
    try:
        members = _decode_members(text)
    except msgspec.ValidationError:
        return []  # Headers that are not an object have no members.
    return [
        (name, value if isinstance(value := msgspec.json.decode(raw), str) else str(bytes(raw), "utf-8"))
        for name, raw in members.items()
    ]


def _content_type(meta: msgspec.Raw) -> str:
    if not len(meta) or _CONTENT_TYPE_MARK not in bytes(meta):
        return JSON_TYPE
    try:
        return _decode_meta(meta).content_type
    except msgspec.ValidationError:
        return JSON_TYPE


_DELETED = "the topic was deleted"
_RECREATED = "recreated"
_EXPIRED = "ttl"
_UNSEALED = "no segment has them: they are not sealed yet, which mode=auto can read, or they were deleted since"


class SpanReader:
    """Reads the spans of one task, with one read of the catalog and one connection."""

    def __init__(self, options: ReadOptions, schema: pa.Schema = RECORD_SCHEMA) -> None:
        """`schema` has the columns to read, and those that the options filter by."""
        self._options = options
        self._schema = schema
        self._losses = Losses(options.fail_on_loss)
        self._layout = options.access.layout
        self._files = guest_files(self._layout.cold_root) if self._layout is not None else PosixFileSystem()
        self._client: Client | None = None
        self._topics: dict[str, CatalogTopic] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._client is not None:
            self._client.close()

    def read(self, spans: Iterable[SeqSpan]) -> Iterator[pa.RecordBatch]:
        """The records of some spans, each in seq order."""
        for span in spans:
            for part in self._parts(span):
                if isinstance(part, SegmentRef):
                    yield from self._read_sealed(part)
                else:
                    yield from self._read_http(SeqSpan(span.topic, span.epoch, part[0] - 1, part[1]))

    def read_group(self, refs: Sequence[SegmentRef]) -> Iterator[pa.RecordBatch]:
        """The selected records of segments that were planned."""
        for ref in refs:
            yield from self._read_sealed(ref)

    # Sealed segments

    def _read_sealed(self, ref: SegmentRef) -> Iterator[pa.RecordBatch]:
        assert self._layout is not None
        try:
            yield from read_segment(self._files, self._layout, ref, schema=self._schema)
        except SegmentGoneError:
            # Removed after the catalog was read. The server or a newer catalog knows why.
            yield from self._rest_of(ref)
        except NoColdFolderError:
            if self._options.access.http is None:
                raise
            yield from self._rest_of(ref)

    def _rest_of(self, ref: SegmentRef) -> Iterator[pa.RecordBatch]:
        first = max(ref.first_seq, ref.from_seq)
        last = min(ref.first_seq + ref.count - 1, ref.to_seq)
        if self._options.access.http is not None:
            yield from self._read_http(SeqSpan(ref.topic, ref.epoch, first - 1, last))
        else:
            self._report_losses(self._catalog(anew=True).get(ref.topic), ref.topic, ref.epoch, [(first, last)])

    def _report_losses(self, topic: CatalogTopic | None, name: str, epoch: int, missing: Ranges) -> None:
        """Reports losses of the catalog; other seqs without a segment were deleted by request."""
        if topic is None or topic.epoch != epoch:
            for first, last in missing:
                self._losses.record_loss(name, first, last, _DELETED if topic is None else _RECREATED)
            return
        for (first, last), reason in losses_within(topic, missing):
            self._losses.record_loss(name, first, last, reason)

    def _parts(self, span: SeqSpan) -> list[SegmentRef | SeqRange]:
        """The segments of a span and the ranges between them that only the server has, in order."""
        whole = [(span.after + 1, span.to)]
        if self._layout is None:
            return list(whole)
        topic = self._catalog().get(span.topic)
        known = topic if topic is not None and topic.epoch == span.epoch else None
        refs, old = self._segments(self._layout, known, span) if known is not None else ([], [])
        missing = difference(whole, _held(known) if known is not None else [])
        if self._options.access.http is None:
            self._report_losses(topic, span.topic, span.epoch, missing)
            for first, last in old:
                self._losses.record_loss(span.topic, first, last, _EXPIRED)
            for first, last in _unsealed(known, span) if known is not None else ():
                self._losses.record_loss(span.topic, first, last, _UNSEALED)
            return list(refs)
        # The server uses its own clock and reports the loss.
        missing = union(missing, old)
        return sorted([*refs, *missing], key=lambda part: part.first_seq if isinstance(part, SegmentRef) else part[0])

    def _segments(self, layout: Layout, topic: CatalogTopic, span: SeqSpan) -> tuple[list[SegmentRef], Ranges]:
        """The segments of a span with live records, and the expired seqs before them."""
        options = self._options
        requested = ScanOptions(
            from_seq=max(span.after + 1, topic.evict_floor),
            to_seq=span.to,
            from_ts=options.from_of(span.topic),
            to_ts=options.to_of(span.topic),
            tag_prefix=options.tag_prefix,
            include_deleted=options.include_deleted,
        )
        now = SystemClock().now_ms()
        refs, old = plan_topic(topic, requested, now), expired(self._files, layout, topic, requested, now)
        if not old:
            return refs, old
        return [msgspec.structs.replace(ref, from_seq=max(ref.from_seq, old[-1][1] + 1)) for ref in refs], old

    def _catalog(self, anew: bool = False) -> dict[str, CatalogTopic]:
        if self._topics is None or anew:
            self._topics = _topics_of(self._layout, self._options)
        return self._topics

    # The server

    def _read_http(self, span: SeqSpan) -> Iterator[pa.RecordBatch]:
        """Reads a span page by page. Records that were deleted meanwhile are left out."""
        cursor, losses = span.after, self._losses
        if self._client is None:
            self._client = open_client(self._options.access)
        while cursor < span.to:
            try:
                request = page_request(span.topic, span.epoch, cursor, span.to - cursor, self._schema)
                answer = self._client.send(request)
            except TopicNotFound:
                losses.record_loss(span.topic, cursor + 1, span.to, _DELETED)
                return
            gap = answer.tombstone
            if gap is not None and gap.reason == _RECREATED:
                losses.record_loss(span.topic, cursor + 1, span.to, gap.reason)
                return
            if gap is not None and gap.gap_from <= span.to:
                losses.record_loss(span.topic, gap.gap_from, min(gap.gap_to, span.to), gap.reason)
            records = [record for record in answer.records if record.seq <= span.to]
            if records:
                yield filtered(as_batch(span.topic, span.epoch, records, self._schema), span.topic, self._options)
            if answer.next_from_seq <= cursor:
                return
            cursor = answer.next_from_seq


def versions_of(options: ReadOptions, topics: Iterable[str]) -> Versions:
    """The schema versions to promote records by; empty if records are read as written."""
    if not options.promoted and not options.typed:
        return {}
    # Typed columns need any version; promotion needs at least two.
    least = 1 if options.typed else 2
    if options.access.http is None:
        return catalogued_versions(_topics_of(options.access.layout, options), topics, least)
    with open_client(options.access) as client:
        return ask_versions(client, topics, least)


def _held(topic: CatalogTopic) -> Ranges:
    """The seqs that a topic's segments cover. Seqs below the floor are not covered: reading them is a loss."""
    ranges = union([(max(one.first_seq, topic.evict_floor), one.last_seq) for one in topic.segments])
    return difference(ranges, union(topic.lost))


def _unsealed(topic: CatalogTopic, span: SeqSpan) -> Ranges:
    """The part of a span after the last segment, which only a batch planned with a server has."""
    sealed_to = topic.segments[-1].last_seq if topic.segments else 0
    first = max(span.after, sealed_to, topic.earliest - 1) + 1
    return difference([(first, span.to)], union(topic.lost)) if first <= span.to else []


def _topics_of(layout: Layout | None, options: ReadOptions) -> dict[str, CatalogTopic]:
    assert layout is not None
    try:
        return load_catalog(PosixFileSystem(), layout).by_name()
    except NoCatalogError:
        if options.access.mode == "segments":
            raise
        return {}


def read_schema(requested: Iterable[str], options: ReadOptions) -> pa.Schema:
    """The columns of records to read: the requested ones, and those that the options filter by."""
    needed = set(requested)
    if options.promoted or options.typed:
        return RECORD_SCHEMA
    if options.from_ts or options.from_ts_by or options.to_ts < SEQ_MAX or options.to_ts_by:
        needed.add("ts")
    if options.tag_prefix:
        needed.add("tag")
    return pa.schema([field for field in RECORD_SCHEMA if field.name in needed])


def filtered(batch: pa.RecordBatch, topic: str, options: ReadOptions) -> pa.RecordBatch:
    """The records of a batch of one topic that match the time range and the tag prefix."""
    from_ts, to_ts = options.from_of(topic), options.to_of(topic)
    if from_ts or to_ts < SEQ_MAX:
        times = batch["ts"].cast(pa.int64())
        keep = pc.greater_equal(times, from_ts * 1000)
        if to_ts < SEQ_MAX // 1000:
            keep = pc.and_(keep, pc.less(times, to_ts * 1000))
        batch = batch.filter(keep)
    if options.tag_prefix:
        batch = batch.filter(pc.fill_null(pc.starts_with(batch["tag"], options.tag_prefix), False))
    return batch


# Archived records that the log no longer has: a batch from earliest reads them first.
#
# The log is used from its first live record on, the archive below it, so no record is read twice and no deleted one is
# shown. Seqs that neither has are a loss: the ledger knows exactly which seqs it covers. A read begins with the first
# record that was ever archived, as a read without an archive begins with the first record of the log.

_log = logging.getLogger(__name__)


def plan_history(
    options: ReadOptions, positions: Mapping[str, Position], origin: Origin, losses: Losses
) -> list[list[FilePart]]:
    """The archived files with records older than the log, in one list for each task."""
    if options.archive is None or options.starting.word != "earliest" or options.ending.word == "earliest":
        return []
    store = ArchiveStore(guest_files(options.archive), options.archive)
    requested = {name: one for name, one in positions.items() if name not in options.starting.by_topic}
    parts: list[FilePart] = []
    found = set()
    state = store.load()
    for topic in state.topics.values():
        position = requested.get(topic.name)
        if position is None or position.epoch != topic.epoch:
            continue
        found.add(topic.name)
        runs = state.runs_of(topic.topic_id)
        for first, last in _gaps(topic, runs, position, origin, options):
            losses.record_loss(topic.name, first, last, "neither the archive nor the log has them")
        below = position.earliest
        parts += parts_of(store, state, topic.topic_id, below, partial(_is_selected, below=below, options=options))
    for name in sorted(requested.keys() - found):
        _log.warning("the archive has nothing of a topic", extra={"topic": name})
    return pack_parts(parts, options.bytes_per_partition)


def _is_selected(run: Run, below: int, options: ReadOptions) -> bool:
    from_ts, to_ts = options.from_of(run.topic), options.to_of(run.topic)
    return run.first_seq < below and run.last_ts >= from_ts and run.first_ts < to_ts


def _gaps(
    topic: ArchivedTopic, runs: Sequence[Run], position: Position, origin: Origin, options: ReadOptions
) -> Ranges:
    """The seqs between the first archived record and the first of the log that were lost unarchived."""
    if not topic.covered or position.earliest <= topic.covered[0][0]:
        return []
    first, last = topic.covered[0][0], position.earliest - 1
    # Losses outside the time range are not reported.
    first = max([first, *(run.last_seq + 1 for run in runs if run.last_ts < options.from_of(topic.name))])
    last = min([last, *(run.first_seq - 1 for run in runs if run.first_ts >= options.to_of(topic.name))])
    missing = difference([(first, last)], topic.covered) if first <= last else []
    return intersection(missing, origin.lost_before(position)) if missing else []


def read_history(part: FilePart, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records of an archived file that are neither deleted nor in the log."""
    table = read_part(guest_files(options.archive), part)
    table = table.append_column(RECORD_SCHEMA.field("deleted"), pa.repeat(pa.scalar(False), table.num_rows))
    for batch in table.to_batches(max_chunksize=20_000):
        topic = batch["topic"][0].as_py() if batch.num_rows else ""
        yield filtered(pa.RecordBatch.from_arrays(batch.columns, schema=RECORD_SCHEMA), topic, options)
