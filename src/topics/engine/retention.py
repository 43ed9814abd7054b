"""Retention: eviction of records by age and by caps, and its effect on the two watermarks.

`earliest` moves whenever the first live record changes, for any reason. `evict_floor` moves only when retention removes
live records. Because the two are separate, a tombstone always means that a reader has missed records. Records are
evicted in seq order, whole runs at a time where possible; the files of a run are removed when none of its records is
live.

A topic with `retain_for_consumers` keeps the records that its slowest consumer has not read, up to this many bytes in
total. The retained records depend only on its log, so a replay evicts the same.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from topics.engine.quotas import Totals
from topics.engine.read import forget_below
from topics.engine.topic import Run, RunReader, Segment, Topic, count_live, first_live, last_live, nth_live
from topics.log.segment import DELETED
from topics.log.segment_files import UNREADABLE
from topics.model.topic_config import Discard
from topics.wire.record_slicing import payload_sizes

_CHUNK_RECORDS = 256
Dropped = Callable[[Topic, Segment], None]
"""Called for each segment without live records, so that its files can be removed."""


class HoldBack(Protocol):
    """The interface of consumers for retention (`consumers.consumers`)."""

    def lowest(self, topic: Topic) -> int | None:
        """The lowest committed cursor; None without consumers."""
        ...

    def gave_up(self, topic: Topic, cursor: int, floor: int) -> None:
        """Notes that records after this cursor and below the floor are about to be evicted."""
        ...


class Retention:
    def __init__(self, reader: RunReader, dropped: Dropped, totals: Totals) -> None:
        self.hold_back: HoldBack | None = None
        self._reader = reader
        self._dropped = dropped
        self.totals = totals
        self.tail_bytes = 0
        """The memory of the tails of all topics: the sum of `Topic.tail_bytes`."""

    def expire(self, topic: Topic, now_ms: int) -> bool:
        """Evicts records older than the topic's TTL; returns True if there were any."""
        ttl = topic.config.ttl_ms
        if not ttl or not topic.live_count:
            return False
        if self._holds_all(topic):
            return False
        upto = self._held(topic, self._expired_upto(topic, now_ms - ttl))
        return upto > topic.earliest and self.evict(topic, upto, expired=True)

    def enforce_caps(self, topic: Topic) -> None:
        """Evicts from the front until the topic is within its caps; called after each append and each new config."""
        config = topic.config
        over = (config.cap_records and topic.live_count > config.cap_records) or (
            config.cap_bytes and topic.live_bytes > config.cap_bytes
        )
        if over:
            self.evict(topic, self.excess_below(topic), expired=False)

    def excess_below(self, topic: Topic) -> int:
        """Returns the seq below which everything must be evicted to be within the caps; 0 if nothing."""
        config, floor = topic.config, 0
        if config.discard is Discard.REJECT:
            # Such a topic never evicts: if it holds more than a new cap allows, it rejects appends until it is drained.
            return floor
        if self._holds_all(topic):
            return floor
        if config.cap_records and topic.live_count > config.cap_records:
            floor = self._upto_for_count(topic, topic.live_count - config.cap_records)
        if config.cap_bytes and topic.live_bytes > config.cap_bytes:
            floor = max(floor, self._upto_for_bytes(topic, topic.live_bytes - config.cap_bytes))
        return self._held(topic, floor)

    def _holds_all(self, topic: Topic) -> bool:
        """Returns whether consumers retain all records. Checked first, because the cost of finding evictions grows with
        the retained records."""
        most = topic.config.retain_for_consumers
        if not most or self.hold_back is None or topic.live_bytes > most:
            return False
        cursor = self.hold_back.lowest(topic)
        return cursor is not None and cursor < topic.earliest

    def _held(self, topic: Topic, floor: int) -> int:
        """Limits an eviction floor by consumers: records that the slowest consumer has not read stay, while the topic
        has at most `retain_for_consumers` bytes."""
        most = topic.config.retain_for_consumers
        if not most or self.hold_back is None or floor <= topic.earliest:
            return floor
        cursor = self.hold_back.lowest(topic)
        if cursor is None or floor <= cursor + 1:
            return floor
        held, excess = max(cursor + 1, topic.earliest), topic.live_bytes - most
        if excess <= 0:
            return held
        forced = min(self._upto_for_bytes(topic, excess), floor)
        if forced <= held:
            return held
        self.hold_back.gave_up(topic, cursor, forced)
        return forced

    def make_room(self, topic: Topic, count: int, size: int) -> None:
        """Repeats evictions that were caused by lost records, so that evicted records do not reappear."""
        config = topic.config
        if config.discard is Discard.REJECT:
            return
        excess = topic.live_count + count - config.cap_records
        if config.cap_records and excess > 0:
            upto = self._upto_for_count(topic, min(excess, topic.live_count))
            self.evict(topic, self._held(topic, upto), expired=False)
        excess = topic.live_bytes + size - config.cap_bytes
        if config.cap_bytes and excess > 0:
            upto = self._upto_for_bytes(topic, min(excess, topic.live_bytes))
            self.evict(topic, self._held(topic, upto), expired=False)

    def evict(self, topic: Topic, upto: int, expired: bool) -> bool:
        """Evicts all live records below `upto` and raises the floors. Returns whether there were any."""
        removed, last = self.remove_front(topic, upto)
        if removed:
            self._raise_floors(topic, last + 1, expired)
        return bool(removed)

    def expired_below(self, topic: Topic, floor: int) -> None:
        """Repeats an expiry.

        Readers have seen a tombstone for everything below; a delete that was in flight then precedes the expiry in the
        log, and must not hide that tombstone.
        """
        self.remove_front(topic, floor)
        self._raise_floors(topic, min(floor, topic.head + 1), expired=True)

    def _raise_floors(self, topic: Topic, floor: int, expired: bool) -> None:
        topic.evict_floor = max(topic.evict_floor, floor)
        if expired:
            topic.ttl_floor = max(topic.ttl_floor, floor)
        else:
            topic.cap_floor = max(topic.cap_floor, floor)
        # The floor covers lost ranges below it.
        forget_below(topic, topic.evict_floor)

    def remove_front(self, topic: Topic, upto: int) -> tuple[int, int]:
        """Removes every live record below `upto`. Returns their number and the last seq."""
        removed, last = 0, 0
        while (run := topic.first_run()) is not None and run.first_seq < upto:
            whole = run.last_seq < upto
            if whole and run.live == run.count:
                count, size, end = run.live, run.live_bytes, run.last_seq
            else:
                count, size, end = self._live_below(topic, run, upto)
            if count:
                removed, last = removed + count, end
                topic.live_count -= count
                topic.live_bytes -= size
                run.live -= count
                run.live_bytes -= size
            if run.live:
                break
            self.drop_first(topic, run)
        self.totals.records -= removed
        topic.earliest = max(topic.earliest, min(upto, topic.head + 1))
        self.advance_earliest(topic)
        return removed, last

    def advance_earliest(self, topic: Topic) -> None:
        """Moves `earliest` to the first live record, and removes leading runs without live records."""
        while (run := topic.first_run()) is not None and not run.live:
            self.drop_first(topic, run)
        if run is None:
            topic.earliest = topic.head + 1
            return
        lo = max(topic.earliest - run.first_seq, 0)
        try:
            flags = self._reader.flags(topic.id, run)
        except UNREADABLE:
            flags = None
        first = first_live(flags, lo, run.count)
        topic.earliest = run.first_seq + (first if first < run.count else lo)

    def drop_first(self, topic: Topic, run: Run) -> None:
        if isinstance(run, Segment):
            self.drop_segment(topic, run)
        else:
            del topic.tail[0]
            topic.tail_count -= run.count
            size = run.memory_bytes
            topic.tail_bytes -= size
            self.tail_bytes -= size

    def drop_segment(self, topic: Topic, segment: Segment) -> None:
        """Removes a segment without live records from the topic, at any position.

        Blocks without live records stay in the tail until they are at its front: the tail must have no gaps in its
        seqs, because it becomes one segment.
        """
        topic.segments.remove(segment)
        self._dropped(topic, segment)

    def drop_segments(self, topic: Topic, emptied: Sequence[Segment]) -> None:
        """Removes many segments without live records from the topic."""
        if emptied:
            topic.segments[:] = [segment for segment in topic.segments if segment.live]
            for segment in emptied:
                self._dropped(topic, segment)

    def _live_below(self, topic: Topic, run: Run, upto: int) -> tuple[int, int, int]:
        """Returns the number of a run's live records below `upto`, their bytes, and the last seq."""
        lo = max(topic.earliest - run.first_seq, 0)
        hi = min(upto - run.first_seq, run.count)
        try:
            # Counted and not listed: every second of a million records may be deleted.
            flags = self._reader.flags(topic.id, run)
            count = count_live(flags, lo, hi)
            if not count:
                return 0, 0, 0
            size = run.live_bytes if count == run.live else self._reader.live_bytes(topic.id, run, flags, lo, hi)
            return count, size, run.first_seq + last_live(flags, lo, hi)
        except UNREADABLE:
            # The segment is unreadable. It is evicted entirely, or its counts stay and only the floor hides older
            # records.
            whole = hi == run.count
            return (run.live, run.live_bytes, run.last_seq) if whole else (0, 0, 0)

    def _upto_for_count(self, topic: Topic, excess: int) -> int:
        """Returns the seq below which there are exactly `excess` live records."""
        for run in topic.runs_from(topic.earliest):
            if run.live <= excess:
                excess -= run.live
                if not excess:
                    return run.last_seq + 1
                continue
            lo = max(topic.earliest - run.first_seq, 0)
            return run.first_seq + nth_live(self._flags(topic, run), lo, run.count, excess) + 1
        return topic.head + 1

    def _upto_for_bytes(self, topic: Topic, excess: int) -> int:
        """Returns the lowest seq below which live records have at least `excess` payload bytes."""
        for run in topic.runs_from(topic.earliest):
            if run.live_bytes <= excess:
                excess -= run.live_bytes
                if not excess:
                    return run.last_seq + 1
                continue
            for index, size in self._sizes(topic, run):
                excess -= size
                if excess <= 0:
                    return run.first_seq + index + 1
        return topic.head + 1

    def _flags(self, topic: Topic, run: Run) -> bytes | bytearray | None:
        """Returns a run's delete flags; in an unreadable run no record counts as deleted."""
        try:
            return self._reader.flags(topic.id, run)
        except UNREADABLE:
            return None

    def _sizes(self, topic: Topic, run: Run) -> Iterator[tuple[int, int]]:
        """Yields each live record's index and size, read in small portions, because usually the first few are
        enough."""
        flags, hi = self._flags(topic, run), run.count
        for begin in range(max(topic.earliest - run.first_seq, 0), hi, _CHUNK_RECORDS):
            end = min(begin + _CHUNK_RECORDS, hi)
            if not count_live(flags, begin, end):
                continue
            try:
                views = list(self._reader.views(topic.id, run, begin, end, check=False))
            except UNREADABLE:
                # The segment is unreadable: count the rest as one.
                yield hi - 1, run.live_bytes
                return
            for view, view_lo, view_hi, offset in views:
                sizes = enumerate(payload_sizes(view, view_lo, view_hi), offset + view_lo)
                if flags is None:
                    yield from sizes
                else:
                    yield from [(index, size) for index, size in sizes if flags[index] != DELETED]

    def _expired_upto(self, topic: Topic, deadline: int) -> int:
        for run in topic.runs_from(topic.earliest):
            try:
                expired = self._reader.written_before(topic.id, run, deadline)
            except UNREADABLE:
                # Its newest record is young enough, and the ages of the others are unknown.
                expired = 0
            if expired < run.count:
                return run.first_seq + expired
        return topic.head + 1
