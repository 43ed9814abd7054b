"""Origins: the positions of topics, from a server over HTTP or from the catalog beside the segments.

Input partitions: resolves offsets into seq ranges, and packs ranges into the partitions that tasks read.

A partition of a stream has seq ranges only. The task that reads it finds out where the records are, because sealing
continues meanwhile.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from topics.log.catalog import Catalog, CatalogTopic
from topics.log.object_store.tiered_fs import guest_files
from topics.log.posix import PosixFileSystem
from topics.model.seq_ranges import Ranges, SeqRange, intersection, union
from topics.spark.connector.options import (
    Access,
    Bound,
    Losses,
    Offset,
    Offsets,
    OptionError,
    Point,
    ReadOptions,
    offset,
)
from topics.spark.segment_reader import SEQ_MAX, ScanOptions, expired, load_catalog
from topics.system.clock import SystemClock
from topics_client import Client, Diff, TopicNotFound

_PAGE_TOPICS = 1000
_ASKED_ONE_BY_ONE = 64
"""More topics than this are read from the topic list, which has a thousand in a page."""

_log = logging.getLogger(__name__)


class Position(msgspec.Struct, frozen=True):
    """The first and last seq of a topic."""

    topic: str
    epoch: int
    earliest: int
    """The first live seq."""
    head: int
    """The last seq that can be read."""
    record_bytes: int = 0
    """The average length of a record; 0 when unknown."""


class Origin(Protocol):
    def positions(self, options: ReadOptions) -> dict[str, Position]:
        """The selected topics that exist, by name."""
        ...

    def first_at(self, position: Position, ts: int) -> int:
        """A cursor before all records from `ts` on; it may be earlier than necessary."""
        ...

    def last_before(self, position: Position, ts: int) -> int:
        """A cursor after all records before `ts`; it may be later than necessary."""
        ...

    def lost_before(self, position: Position) -> Ranges:
        """The seqs lost before the first live record: evicted, expired, or lost in a crash."""
        ...

    def report(self, spans: Iterable[tuple[str, int, int, int]]) -> list[tuple[str, SeqRange, str]]:
        """The known losses in (topic, epoch, after, to), with reasons. Reading finds the rest."""
        ...


def found_positions(origin: Origin, options: ReadOptions) -> dict[str, Position]:
    """The positions of the selected topics. Raises OptionError for a named topic that does not exist."""
    positions = origin.positions(options)
    missing = [name for name in options.topics if name not in positions]
    if missing and options.fail_on_missing:
        what = "there is no topic" if options.access.http is not None else "no catalog has a sealed record of"
        raise OptionError(
            f"{what} {', '.join(missing)}: create it first, or set failOnMissingTopic=false to read topics once they "
            "are there"
        )
    if not positions:
        requested = options.pattern or ", ".join(options.topics)
        _log.warning("no topic is there to be read", extra={"requested": requested})
    return positions


class HttpOrigin:
    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url
        self._api_key = api_key

    def positions(self, options: ReadOptions) -> dict[str, Position]:
        """Reads positions without `touch`, so that the request does not count as use of the topic."""
        with Client(self._url, api_key=self._api_key) as client:
            if options.topics and len(options.topics) <= _ASKED_ONE_BY_ONE:
                return _one_by_one(client, options.topics)
            requested = frozenset(options.topics)
            prefix = _common_start(options.topics) if requested else _fixed_part(options.pattern)
            found, cursor = {}, ""
            while True:
                page = client.list_topics(prefix, page_size=_PAGE_TOPICS, cursor=cursor, streams=True)
                for one in page.topics:
                    if options.selects(one.topic):
                        each = one.bytes // one.count if one.count else 0
                        found[one.topic] = Position(one.topic, one.epoch, one.earliest_seq, one.head_seq, each)
                cursor = page.next_cursor or ""
                if not cursor:
                    return found

    def first_at(self, position: Position, ts: int) -> int:
        """Binary search for the first record from `ts` on: times never decrease within a topic."""
        low, high = position.earliest - 1, position.head
        with Client(self._url, api_key=self._api_key) as client:
            while low < high:
                middle = (low + high) // 2
                answer = _peek(client, position, middle)
                if answer.records and answer.records[0].ts < ts:
                    low = max(answer.records[0].seq, middle + 1)
                else:
                    high = middle
        return min(low, position.head)

    def last_before(self, position: Position, ts: int) -> int:
        return self.first_at(position, ts)

    def lost_before(self, position: Position) -> Ranges:
        lost: list[SeqRange] = []
        cursor = 0
        with Client(self._url, api_key=self._api_key) as client:
            while cursor < position.earliest - 1:
                answer = _peek(client, position, cursor)
                gap = answer.tombstone
                if gap is None:
                    break
                lost.append((gap.gap_from, min(gap.gap_to, position.earliest - 1)))
                cursor = max(gap.gap_to, cursor + 1)
        return union(lost)

    def report(self, spans: Iterable[tuple[str, int, int, int]]) -> list[tuple[str, SeqRange, str]]:
        """None: the server reports losses in reads, and a request for each topic would cost more than the read."""
        return []


class SegmentOrigin:
    """Positions from the catalog: only sealed records, so a topic ends with its last segment."""

    def __init__(self, access: Access) -> None:
        layout = access.layout
        assert layout is not None
        self._layout = layout
        self._topics: dict[str, CatalogTopic] = {}
        self.catalog: Catalog | None = None
        """The catalog that was last read."""

    def positions(self, options: ReadOptions) -> dict[str, Position]:
        topics = self._reload().topics
        return {topic.name: _position(topic, self._expired(topic)) for topic in topics if options.selects(topic.name)}

    def first_at(self, position: Position, ts: int) -> int:
        topic = self._known(position.topic, position.epoch)
        for segment in topic.segments if topic is not None else ():
            if segment.last_ts >= ts:
                return max(segment.first_seq, position.earliest) - 1
        return position.head

    def last_before(self, position: Position, ts: int) -> int:
        topic = self._known(position.topic, position.epoch)
        early = [one.last_seq for one in topic.segments if one.first_ts < ts] if topic is not None else []
        return max(early, default=min(position.earliest - 1, position.head))

    def lost_before(self, position: Position) -> Ranges:
        topic = self._known(position.topic, position.epoch)
        if topic is None:
            return []
        return intersection(union(lost_of(topic), self._expired(topic)), [(1, position.earliest - 1)])

    def report(self, spans: Iterable[tuple[str, int, int, int]]) -> list[tuple[str, SeqRange, str]]:
        self._reload()
        reported = []
        for name, epoch, after, to in spans:
            topic = self._known(name, epoch)
            if topic is not None:
                reported += [(name, part, reason) for part, reason in losses_within(topic, [(after + 1, to)])]
        return reported

    def _expired(self, topic: CatalogTopic) -> Ranges:
        files = guest_files(self._layout.cold_root)
        return expired(files, self._layout, topic, ScanOptions(), SystemClock().now_ms())

    def _reload(self) -> Catalog:
        catalog = self.catalog = load_catalog(PosixFileSystem(), self._layout)
        self._topics = catalog.by_name()
        return catalog

    def _known(self, name: str, epoch: int) -> CatalogTopic | None:
        """A topic of the last catalog, if it has this epoch."""
        found = self._topics.get(name)
        return found if found is not None and found.epoch == epoch else None


def lost_of(topic: CatalogTopic) -> Ranges:
    """The seqs of a topic that the catalog lists as lost."""
    return union([(1, topic.evict_floor - 1)], topic.lost)


def losses_within(topic: CatalogTopic, ranges: Ranges) -> list[tuple[SeqRange, str]]:
    """The losses of a catalog within some ranges, with reasons."""
    evicted: Ranges = [(1, topic.evict_floor - 1)] if topic.evict_floor > 1 else []
    reported = [(part, "cap or ttl") for part in intersection(ranges, evicted)]
    return reported + [(part, "crash or corrupt") for part in intersection(ranges, union(topic.lost))]


def _position(topic: CatalogTopic, old: Ranges) -> Position:
    segments = topic.segments
    earliest = max(topic.earliest, old[-1][1] + 1 if old else 0)
    count = sum([segment.count for segment in segments])
    each = sum([segment.text_bytes for segment in segments]) // count if count else 0
    return Position(topic.name, topic.epoch, earliest, segments[-1].last_seq if segments else 0, each)


def _one_by_one(client: Client, names: Iterable[str]) -> dict[str, Position]:
    positions = {}
    for name in names:
        try:
            state = client.get_topic(name, touch=False, streams=True)
        except TopicNotFound:
            continue
        each = state.bytes // state.count if state.count else 0
        positions[name] = Position(name, state.epoch, state.earliest_seq, state.head_seq, each)
    return positions


def _peek(client: Client, position: Position, cursor: int) -> Diff:
    """The next record after a cursor, of this epoch of the topic only."""
    epoch = position.epoch or None
    return client.diff(position.topic, cursor, limit=1, include_meta=False, epoch=epoch, streams=True)


def _common_start(names: Iterable[str]) -> str:
    """The longest common prefix of some names."""
    first, last = min(names), max(names)
    same = next((place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first[:same]


def _fixed_part(pattern: str) -> str:
    """The literal prefix of a pattern."""
    return re.split(r"[*?\[]", pattern, maxsplit=1)[0]


def origin_of(access: Access) -> Origin:
    url = access.http
    return HttpOrigin(url, access.api_key) if url is not None else SegmentOrigin(access)


class SeqSpan(msgspec.Struct, frozen=True):
    """The records of one topic after `after`, up to and including `to`."""

    topic: str
    epoch: int
    after: int
    to: int


def resolve(bound: Bound, options: ReadOptions, positions: dict[str, Position], origin: Origin, start: bool) -> Offsets:
    """Resolves a bound into the offsets of the existing topics."""
    found: Offsets = {}
    for name, position in positions.items():
        requested = bound.of(name)
        if isinstance(requested, Point):
            if requested.epoch not in (0, position.epoch):
                raise OptionError(
                    f"topic {name} has epoch {position.epoch} now, not {requested.epoch}: it was made again"
                )
            # A batch ends at the current head, whatever is appended before it is read.
            seq = requested.seq if start else min(requested.seq, position.head)
        elif requested == "latest":
            seq = position.head
        else:
            seq = min(position.earliest - 1, position.head)
        if start and requested == "earliest" and options.from_of(name):
            seq = max(seq, origin.first_at(position, options.from_of(name)))
        if not start and requested == "latest" and options.to_of(name) < SEQ_MAX:
            # Later records would only be filtered out after the read.
            seq = min(seq, origin.last_before(position, options.to_of(name)))
        found[name] = offset(position.epoch, seq)
    for name in bound.by_topic:
        if name not in positions:
            raise OptionError(f"there is an offset for topic {name}, and no such topic is read")
    for name in options.from_ts_by if start else options.to_ts_by:
        if name not in positions:
            raise OptionError(f"there is a time for topic {name}, and no such topic is read")
    return found


def spans(start: Offsets, end: Offsets, losses: Losses) -> list[SeqSpan]:
    """The ranges between two offsets by topic; a recreated topic is read from its beginning."""
    found = []
    for name in sorted(start.keys() - end.keys()):
        losses.record_loss(name, start[name]["seq"] + 1, start[name]["seq"], "the topic was deleted")
    for name in sorted(end):
        to, before = end[name], start.get(name)
        after = before["seq"] if before is not None else 0
        if before is not None and before["epoch"] != to["epoch"]:
            losses.record_loss(name, after + 1, after, "the topic was deleted and made again")
            after = 0
        if after < to["seq"]:
            found.append(SeqSpan(name, to["epoch"], after, to["seq"]))
    return found


class PieceSize(msgspec.Struct, frozen=True):
    """The maximum size of a partition, and the minimum number of partitions."""

    records: int
    bytes: int
    pieces_min: int = 1


def packed(found: list[SeqSpan], size: PieceSize, sizes: Mapping[str, int] | None = None) -> list[list[SeqSpan]]:
    """Packs spans into partitions: long ones are split, short ones share one. Deterministic.

    `sizes` are the bytes of a record, by topic; a topic of unknown size is measured in records only.
    """
    known = sizes or {}
    total = sum([span.to - span.after for span in found])
    # Rounded down, so that there are at least `pieces_min` partitions, given enough records.
    most = max(1, min(size.records, total // max(size.pieces_min, 1)))
    pieces: list[list[SeqSpan]] = []
    records_left = bytes_left = 0
    for span in found:
        each, after = known.get(span.topic, 0), span.after
        while after < span.to:
            fits = min(records_left, bytes_left // each if each else records_left)
            if not fits:
                pieces.append([])
                records_left, bytes_left = most, size.bytes
                # A partition has at least one record, however long.
                fits = min(most, max(size.bytes // each, 1) if each else most)
            to = min(after + fits, span.to)
            pieces[-1].append(SeqSpan(span.topic, span.epoch, after, to))
            records_left -= to - after
            bytes_left = max(bytes_left - each * (to - after), 0)
            after = to
    return pieces


def limited(start: Offsets, end: Offsets, limit: int | None) -> Offsets:
    """The end of a micro-batch of at most `limit` seqs, shared fairly among the topics."""
    behind = {name: _distance(start.get(name), to) for name, to in end.items()}
    if limit is None or sum(behind.values()) <= limit:
        return end
    shares = _shares(behind, limit, sum([before["seq"] for before in start.values()]))
    capped: Offsets = {}
    for name, share in shares.items():
        before = start.get(name)
        same = before is not None and before["epoch"] == end[name]["epoch"]
        if share or same:
            capped[name] = offset(end[name]["epoch"], (before["seq"] if before is not None and same else 0) + share)
        elif before is not None:
            capped[name] = before
    return capped


def records_between(start: Offsets, end: Offsets) -> int:
    """The number of seqs between two offsets."""
    return sum([_distance(start.get(name), to) for name, to in end.items()])


def _shares(behind: Mapping[str, int], limit: int, read_before: int) -> dict[str, int]:
    """The number of seqs for each topic; `read_before` is the number of seqs read so far."""
    waiting = sorted(name for name, size in behind.items() if size)
    if limit < len(waiting):
        # Round robin, one seq each: each batch reads `limit`, so the next batch starts that much further. Any other
        # order could starve topics behind one that always has a few records.
        first = read_before % len(waiting)
        served = set([*waiting[first:], *waiting[:first]][:limit])
        return {name: int(name in served) for name in behind}
    shares: dict[str, int] = {}
    left = limit
    # Topics with the fewest records come first, so that no share is wasted; names make the order deterministic.
    for place, name in enumerate(sorted(behind, key=lambda name: (behind[name], name))):
        shares[name] = min(behind[name], -(-left // (len(behind) - place)))
        left -= shares[name]
    return shares


def _distance(before: Offset | None, to: Offset) -> int:
    after = before["seq"] if before is not None and before["epoch"] == to["epoch"] else 0
    return max(to["seq"] - after, 0)
