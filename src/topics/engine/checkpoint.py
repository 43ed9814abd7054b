"""Checkpoints: write changes as a snapshot, and remove the replaced log files.

Each shard turns to a new log file; at the moment the loop hears of it, the shard's topics stand exactly at the end of
the old one. Topics that changed since the last checkpoint are then captured: the few that are about to change again
just before they do, the others a slice at a time, so no tick of the loop is long. The rest is file work in an order
that a crash may cut anywhere:

1. the segments the snapshot will name are written, and synced with their names;
2. the snapshot is written, synced and renamed into place;
3. deletes that the segments' files do not know yet are flipped into their flags, and synced. Until here the snapshot
   has them, and not before: a start from the snapshot before it goes through the log again, and must find the flags as
   they were then, or a cap that the log enforces would count other records than it did;
4. the catalog for readers of the segments is replaced, and only now log files, older snapshots, dead segments and the
   folders of deleted topics are removed: until then a start would go through the log with the segments that the
   snapshot before it names.

A topic that is paged out (`engine.topic_paging`) has not changed since an older snapshot. If that one stays, it is
left alone; if the new one replaces it, its frames are copied from file to file, off the loop: a change meanwhile is
logged behind the rotation, and the frames are the state before it. At the end topics that were captured and have not
changed since are paged out.

Keeps the catalog: one entry for each topic with sealed records, of which each checkpoint publishes the changed ones.

Entries stay encoded between checkpoints, since most topics do not change between two of them. They are made from the
states that the snapshot holds, off the loop, so that the two cannot differ.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import NamedTuple, cast

import msgspec
from xxhash import xxh3_64_digest

from topics.engine.apply import needs_ceiling
from topics.engine.background_jobs import Job, OffLoop, Until
from topics.engine.core import EngineCore
from topics.engine.read import join
from topics.engine.sealing import Sealer
from topics.engine.topic import Block, Segment, Topic, block_head
from topics.engine.topic_paging import copy_topics
from topics.log.catalog import (
    CatalogHead,
    CatalogRemoval,
    CatalogSegment,
    CatalogTopic,
    Listed,
    contract_in,
)
from topics.log.catalog import (
    encode_topic as encode_catalog_topic,
)
from topics.log.catalog_files import CatalogWriter
from topics.log.commit_requests import Rotation
from topics.log.fs import FileSystem
from topics.log.group_commit import Shard
from topics.log.layout import Layout, wal_file, wal_numbers
from topics.log.object_store.store import StoreUnavailable
from topics.log.segment_files import SegmentDamaged, SegmentKey
from topics.log.snapshot_files import (
    REMOVALS_PART,
    LostState,
    SegmentState,
    SnapshotFile,
    SnapshotHead,
    SnapshotWriter,
    TopicEntry,
    TopicState,
    WalPosition,
    decode_packed,
    decode_topic,
    encode_topic,
    note_newest,
    remove_snapshots,
)
from topics.model.errors import DamageError, TopicsError
from topics.model.seq_ranges import SeqRange
from topics.model.topic_config import encode_config, is_server_name
from topics.schema.contract import decode_contract
from topics.schema.registry import Registry
from topics.streams.stream_frames import PART_NAME as STREAM_PART
from topics.streams.stream_frames import decode_part
from topics.system.events import Event

_NEWEST = 10_000
"""A run of the pipeline that is this many catalogs behind is told a younger oldest record than it has."""


class CatalogKeeper:
    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout
        self._writer = CatalogWriter(fs, layout)
        self._entries: dict[int, bytes] = {}
        self._unpublished: set[int] = set()
        """The topics whose entries have changed, or are gone, since the last catalog."""
        self._changed = False
        self.number = 0
        """The last published catalog."""
        self.tracked = False
        """Whether deletes are kept for an archive (`engine.delete_export`)."""
        self.work_number = 0
        """The last one in which anything changed that a pipeline would have to work on: segments and removals."""
        self.families_number = 0
        """The same, of streams that ask for indexes alone."""
        self.listed = Listed()
        """Every segment that a catalog has named, also in earlier runs of the server. It changes on the loop, together
        with the segments that the sealer counts as not named."""
        self._listed = Listed()
        """The same with the catalog that is being written."""
        self.newest_listed: deque[tuple[int, int]] = deque(maxlen=_NEWEST)
        """Numbers of the newest catalogs that named new segments, each with the oldest time of a record in them."""
        self._oldest_ts: int | None = None
        self._families_changed = False
        self._work: dict[int, bytes] = {}
        self.published: Event[[]] = Event()
        """The catalog was published; emitted off the loop."""

    def load(self, snapshot: int) -> bool:
        """Continues with the existing catalog. Returns False if it does not belong to this snapshot."""
        try:
            found = self._writer.load()
        except ValueError:
            found = None
        else:
            if found is None:
                return snapshot == 0
        if found is None or found.head.number != snapshot or not found.head.has_contracts:
            self._writer = CatalogWriter(self._fs, self._layout)
            return False
        head, entries = found.head, found.topics
        self._entries, self.number, self.work_number = entries, head.number, head.number
        self.listed = self._listed = head.listed
        if any(asks_for_indexes(contract_in(entry)) for entry in entries.values()):
            self.families_number = head.number
        return True

    def take(self, state: bytes, fresh: Iterable[Segment] = ()) -> None:
        """Notes a topic as a snapshot has it; `fresh` are its segments that no catalog has named."""
        topic = decode_topic(memoryview(state))
        if is_server_name(topic.name):
            return  # It holds what no guest should have, such as the key that signs webhooks.
        for segment in fresh:
            self._count(segment)
        entry = catalog_topic(topic)
        work = encode_work(entry)
        if self._work.get(topic.topic_id, b"") != work:
            self._work[topic.topic_id] = work
            self._changed = True
            self._families_changed |= asks_for_indexes(entry.contract)
        encoded = encode_catalog_topic(entry) if entry.segments or entry.earliest > 1 else None
        if encoded == self._entries.get(topic.topic_id):
            return
        self._unpublished.add(topic.topic_id)
        if encoded is not None:
            self._entries[topic.topic_id] = encoded
        else:
            del self._entries[topic.topic_id]

    def _count(self, segment: Segment) -> None:
        known = self._listed
        self._listed = Listed(known.segments + 1, known.records + segment.count, known.bytes + segment.text_bytes)
        self._oldest_ts = segment.first_ts if self._oldest_ts is None else min(self._oldest_ts, segment.first_ts)

    def show_listed(self) -> None:
        """Counts the segments of the last catalog as named."""
        self.listed = self._listed

    def publish(self, head: SnapshotHead) -> None:
        """Publishes the catalog, durably."""
        for topic_id in head.dropped:
            self._work.pop(topic_id, None)
            gone = self._entries.pop(topic_id, None)
            if gone is not None:
                self._unpublished.add(topic_id)
                self._changed = True
                self._families_changed |= asks_for_indexes(contract_in(gone))
        entries = self._entries
        found = CatalogHead(head.number, head.now_ms, len(entries), self.tracked, True, self._listed)
        self._writer.publish(found, entries, self._unpublished)
        self._unpublished = set()
        self.number = head.number
        if self._oldest_ts is not None:
            self.newest_listed.append((head.number, self._oldest_ts))
            self._oldest_ts = None
        if self._changed:
            self.work_number, self._changed = head.number, False
        if self._families_changed:
            self.families_number, self._families_changed = head.number, False
        self.published.emit()


def catalog_topic(state: TopicState) -> CatalogTopic:
    # The ranges are copied as they are encoded: decoding a million of them would keep the loop waiting.
    packed = decode_packed(state.parts.get(REMOVALS_PART, b""))
    removals = [CatalogRemoval(number, cast("list[SeqRange]", ranges)) for number, ranges in packed]
    return CatalogTopic(
        state.topic_id, state.name, state.epoch, state.config, state.head, state.earliest, state.evict_floor,
        [_segment(segment) for segment in state.segments], [(lost.first, lost.last) for lost in state.lost], removals,
        _contract(state),
    )  # fmt: skip


def _contract(state: TopicState) -> bytes:
    part = state.parts.get(STREAM_PART)
    return b"" if part is None else decode_part(part).contract


@lru_cache(maxsize=256)
def asks_for_indexes(contract: bytes) -> bool:
    """Whether a pipeline makes indexes of a stream. Streams by the thousand have few contracts."""
    registry = decode_contract(contract).registry if contract else Registry()
    return registry.search is not None or registry.routing_key is not None


def encode_work(entry: CatalogTopic) -> bytes:
    """A digest of the pipeline's input; empty if there is none."""
    if not entry.segments and not entry.removals:
        return b""
    spans = [(segment.first_seq, segment.count) for segment in entry.segments]
    return xxh3_64_digest(msgspec.msgpack.encode((spans, entry.removals, entry.contract)))


def _segment(state: SegmentState) -> CatalogSegment:
    return CatalogSegment(
        state.first_seq, state.count, state.text_bytes, state.traits, state.first_ts, state.last_ts, state.marked,
        state.cold,
    )  # fmt: skip


# How much of the snapshots that make up the current state still counts.
#
# A full snapshot costs as much as there are topics, and pays when it leaves out more than it has. The first state of a
# topic supersedes nothing, however many there are; what is said of one again does, and so does the end of one.


class ChainWeight:
    def __init__(self) -> None:
        self.sizes: list[int] = []
        """The bytes of each snapshot of the chain."""
        self.live_bytes = 0
        """Approximate size of a full snapshot."""
        self.live_topics = 0

    @property
    def is_mostly_dead(self) -> bool:
        return sum(self.sizes) > 2 * self.live_bytes

    def found(self, size: int, reported: int, live: int) -> None:
        """Counts the topics of an older snapshot, some of which it contains first."""
        self.sizes.insert(0, size)
        self.live_bytes += size * live // reported if reported else 0
        self.live_topics += live

    def rewritten(self, size: int, topics: int) -> None:
        self.sizes, self.live_bytes, self.live_topics = [size], size, topics

    def added(self, kept: int, size: int, new_bytes: int, new: int, dropped: int) -> None:
        """Behind the first `kept` snapshots there is one of `size`, which has `new_bytes` about `new` topics; so many
        others no longer exist. It is assumed to have as much of known topics as before."""
        if self.live_topics:
            self.live_bytes -= self.live_bytes * min(dropped, self.live_topics) // self.live_topics
        self.sizes[kept:] = [size]
        self.live_bytes += new_bytes
        self.live_topics = max(self.live_topics - dropped, 0) + new


_SLICE = 200
"""The number of topics captured in one tick of the loop."""
_CHAIN_MAX = 32
"""The maximum number of snapshots that a start reads, if topics are paged out to them."""

_log = logging.getLogger(__name__)


def no_job(next_tick: Callable[[Callable[[object], None]], None]) -> Job:
    """Nothing."""
    yield from ()


class Capture(NamedTuple):
    """A captured topic, in the form of the snapshot."""

    topic: Topic
    head: int
    state: bytes
    tail: list[Block]
    entry: TopicEntry | None
    """Its entry in a directory, if it may be paged out."""
    unsynced: list[Segment]
    flips: list[tuple[Segment, SegmentKey, bytes, int]]


class Checkpointer:
    """`before_clean_up` is called once a snapshot counts and before anything that it replaces is removed; `retire_log`
    does away with a shard's log files below a number.
    """

    def __init__(
        self,
        core: EngineCore,
        sealer: Sealer,
        fs: FileSystem,
        before_clean_up: Callable[[], None] = lambda: None,
        retire_log: Callable[[int, int], None] | None = None,
    ) -> None:
        self._core = core
        self._sealer = sealer
        self._fs = fs
        self._before_clean_up = before_clean_up
        self._retire_log = retire_log or self._remove_log
        self.catalog = CatalogKeeper(fs, core.layout)
        self.number = 0
        """The newest snapshot."""
        self.chain: list[int] = []
        """The snapshots that make up the current state, the full one first."""
        self.weight = ChainWeight()
        self.dropped: list[int] = []
        """The topics that the snapshots behind the full one took away."""
        self.retired: list[WalPosition] = []
        """Where the logs of shards ended that a smaller number of shards no longer uses."""
        self.first_new = 1
        """Topics with this id or a higher one are in no snapshot, except the one being taken."""
        self.running = False
        self.error: Exception | None = None
        """The reason why the last checkpoint failed."""
        self.failures = 0
        self.completed = 0
        self._known_before = 1
        """Topics below this id, if they existed, are in snapshots before the one being taken."""
        self._new = self._new_bytes = 0
        """How many others that one has, and in how many bytes."""
        self._due: list[Topic] = []
        self._captures: list[Capture] = []
        self._dropped: list[int] = []
        self._positions: list[WalPosition] = []
        self._moment = 0
        self._absorbed: list[tuple[Shard, int]] = []
        self._left: list[SegmentKey | int] = []
        """Segments, and numbers of deleted topics, in an object store that could not be reached to remove them."""
        self.prepare_deletes: Callable[[Callable[[Callable[[object], None]], None]], Job] = no_job
        """Work ahead of a checkpoint, in turns with other work; `delete_export` sets it."""
        core.capture_due.subscribe(self._capture)

    def job(self, full: bool = False, then: Callable[[bool], None] = lambda done: None) -> Job:
        """Takes a checkpoint; `then` gets whether it succeeded. A failed one has no effect."""
        self.running = True
        yield from self._prepared(then)
        self._known_before, self.first_new = self.first_new, self._core.next_topic_id
        full, kept = self._extent(full)
        trash, self._core.trash = self._core.trash, []
        self._due, self._captures, self._dropped, self._positions, self._absorbed = [], [], [], [], []
        self._new = self._new_bytes = 0
        succeeded = False
        # Before the turn: what is given out behind it is not in the snapshot, also if the engine is closed meanwhile.
        quiet = self._core.quiet
        self._core.pager.begin_checkpoint()
        try:
            try:
                for shard in self._core.shards:
                    yield Until(partial(self._turn, shard, full))
                self._moment = self._core.time.moment()
            finally:
                self._core.cross_shard_gate.reopen()
            while self._due:
                self._capture_slice()
                yield Until(self._next_tick)
            yield Until(self._sealer.when_idle)
            head = self._head(kept, quiet and self._core.quiet)
            written = yield OffLoop(lambda: self._write(head))
            assert isinstance(written, SnapshotWriter)
            self._finish(head, written.size)
            succeeded = True
            put_off = yield OffLoop(self._flip)
            assert isinstance(put_off, set)
            self._flipped(put_off)
            yield OffLoop(lambda: self._clean_up(head, trash))
            trash = []
            self._sealer.listed()
            self.catalog.show_listed()
            self._core.pager.end_checkpoint()
            recording = self._record_places(head, written)
            while next(recording, None) is not None:
                yield Until(self._next_tick)
            self.completed += 1
            self.failures = 0
        except (OSError, TopicsError) as error:
            self._give_up(error, succeeded)
        finally:
            self._core.trash += trash
            self._captures = []
            self._core.pager.end_checkpoint()
            self.running = False
            then(succeeded)

    def _prepared(self, then: Callable[[bool], None]) -> Job:
        try:
            yield from self.prepare_deletes(self._next_tick)
        except BaseException:
            self.running = False
            then(False)
            raise

    def _extent(self, full: bool) -> tuple[bool, list[int]]:
        """Whether every resident topic is captured, and the snapshots that the new one adds to."""
        # On a full disk one that rewrites everything would need more room than there is, and it is the small one that
        # makes room.
        pager = self._core.pager
        if not self.chain or (self.weight.is_mostly_dead and self._core.room.short is None):
            return True, []
        if full:
            # Paged-out topics equal their snapshots, regardless of the recovery.
            return True, self.chain if pager.places.by_id else []
        if pager.places.by_id and len(self.chain) > _CHAIN_MAX:
            return True, self.chain[:1]
        return False, self.chain

    def _turn(self, shard: Shard, full: bool, resume: Callable[[object], None]) -> None:
        lsn = 0

        def turn() -> None:
            nonlocal lsn
            shard.stage_coalesced()
            lsn = shard.next_lsn
            shard.committer.rotate(Rotation(turned, resume))

        def turned(number: int) -> None:
            core = self._core
            dirty, core.dirty[shard.number] = core.dirty[shard.number], set()
            due = [t for t in core.topics.values() if t.shard == shard.number] if full else list(dirty)
            for topic in due:
                topic.capture_due = True
            self._due += due
            self._dropped += core.dropped[shard.number]
            core.dropped[shard.number] = []
            self._positions.append(WalPosition(shard.number, number, lsn))
            self._absorbed.append((shard, shard.logged_bytes))
            shard.logged_bytes = 0
            core.shard_rotated.emit(shard.number)
            resume(None)

        self._core.cross_shard_gate.close(turn)

    def _next_tick(self, resume: Callable[[object], None]) -> None:
        self._core.defer(lambda: resume(None))

    def _capture_slice(self) -> None:
        for topic in self._due[-_SLICE:]:
            if topic.capture_due:
                self._capture(topic)
        del self._due[-_SLICE:]

    def _capture(self, topic: Topic) -> None:
        topic.capture_due = False
        logged = topic.config.durability.logged
        if logged and topic.tail_bytes > self._core.options.snapshot_inline_bytes:
            self._sealer.cut(topic)
        if topic.staged_head == topic.head:
            # All of it is synced with the old log file: what was reserved by its frames is not needed any more.
            topic.ceiling = topic.ceiling_staged = min(topic.ceiling, topic.head + self._core.reserve)
        tail = list(topic.tail) if logged else []
        flips = [
            (s, SegmentKey(topic.id, s.first_seq, s.cold), bytes(s.flags), s.flag_changes)
            for s in topic.segments
            if s.flags is not None and s.flag_changes
        ]
        join(topic, self._core.reader)
        unsynced = [s for s in topic.segments if not s.synced]
        for segment in unsynced:
            segment.named = True
        # Above a head that the snapshot has, a caller that recovers adds the reserve.
        ceiling = topic.ceiling if topic.staged_head > topic.head else 0
        entry = self._core.pager.entry(topic) if self._core.pager.indexed else None
        state = encode_topic(topic_state(topic, ceiling, tail, self._core.features.save(topic)))
        self._captures.append(Capture(topic, topic.head, state, tail, entry, unsynced, flips))

    def _head(self, kept: list[int], quiet: bool) -> SnapshotHead:
        core = self._core
        # A snapshot that adds only to the full one drops everything that the replaced ones dropped.
        dropped = [*self.dropped, *self._dropped] if kept and kept != self.chain else self._dropped
        return SnapshotHead(
            self.number + 1, kept, len(core.shards), [*self._positions, *self.retired],
            core.next_topic_id, core.wall(), dropped, quiet, self._moment, core.epochs.floor, dict(core.epochs.deleted),
        )  # fmt: skip

    def _write(self, head: SnapshotHead) -> SnapshotWriter:
        """Steps 1 and 2; off the loop."""
        store = self._core.store
        for capture in self._captures:
            # Also those of topics that are deleted by now: a start replays the log of an earlier topic of the name over
            # the segments that the snapshot names.
            for segment in capture.unsynced:
                store.sync(SegmentKey(capture.topic.id, segment.first_seq))
            if capture.unsynced:
                store.sync_folder(capture.topic.id)
        pager = self._core.pager
        writer = SnapshotWriter(self._fs, self._core.layout, head, indexed=pager.indexed)
        try:
            for capture in self._captures:
                tail = [(block_head(block), block.text) for block in capture.tail]
                before = writer.size
                writer.add_topic(capture.topic.id, capture.state, tail, capture.entry)
                if capture.topic.id >= self._known_before:
                    self._new += 1
                    self._new_bytes += writer.size - before
            if pager.places.by_id:
                captured = {capture.topic.id for capture in self._captures}
                copy_topics(pager.places, writer, captured, set(pager.places.files) - set(head.chain))
            writer.finish()
            return writer
        finally:
            writer.close()

    def _finish(self, head: SnapshotHead, size: int) -> None:
        self.number = head.number
        self._weigh(head, size)
        self.chain = [*head.chain, head.number]
        self.dropped = self.dropped if head.chain else []
        self.dropped += self._dropped if head.chain else []
        for capture in self._captures:
            for segment in capture.unsynced:
                segment.synced = True
            topic = capture.topic
            if needs_ceiling(topic.config.durability):
                # The snapshot has the head it had then: a caller that recovers from it adds the reserve.
                topic.ceiling = max(topic.ceiling, capture.head + self._core.reserve)
                topic.ceiling_staged = max(topic.ceiling_staged, topic.ceiling)
            if topic.unlogged and topic.config.durability.logged and all(s.synced for s in topic.segments):
                self._core.path.complete(topic)

    def _weigh(self, head: SnapshotHead, size: int) -> None:
        if not head.chain:
            self.weight.rewritten(size, self._core.topic_count)
            return
        dropped = sum([topic_id < self._known_before for topic_id in self._dropped])
        self.weight.added(len(head.chain), size, self._new_bytes, self._new, dropped)

    def _flip(self) -> set[SegmentKey]:
        """Step 3; off the loop. Returns the segments that are put off: out of reach in an object store, or damaged.

        The snapshot has their flags, so nothing has to wait for them, least of all the end of the old log.
        """
        store, topics = self._core.store, self._core.topics
        put_off = set()
        for capture in self._captures:
            if topics.get(capture.topic.id) is capture.topic:
                for _, key, flags, _ in capture.flips:
                    try:
                        store.flip(key, flags)
                    except StoreUnavailable:
                        put_off.add(key)
                    except SegmentDamaged as damage:
                        put_off.add(key)
                        _log.error("delete flags failed: damaged segment", extra={"error": str(damage)})
        return put_off

    def _flipped(self, put_off: set[SegmentKey]) -> None:
        for capture in self._captures:
            for segment, key, _, changes in capture.flips:
                if key in put_off:
                    # The next checkpoint retries.
                    self._core.dirty[capture.topic.shard].add(capture.topic)
                    continue
                segment.flag_changes -= changes
                if not segment.flag_changes and segment.blocks is None:
                    segment.flags = None

    def _clean_up(self, head: SnapshotHead, trash: list[SegmentKey]) -> None:
        """Runs step 4 off the loop. The next start removes leftovers of a crash here."""
        core = self._core
        self._before_clean_up()
        for capture in self._captures:
            self.catalog.take(capture.state, capture.unsynced)
        self.catalog.publish(head)
        note_newest(self._fs, core.layout, head)
        for position in head.positions:
            self._retire_log(position.shard, position.file)
        remove_snapshots(self._fs, core.layout, {*head.chain, head.number})
        left: list[SegmentKey | int] = []
        for thing in (*self._left, *trash, *head.dropped):
            try:
                core.store.remove(thing) if isinstance(thing, SegmentKey) else core.store.remove_topic(thing)
            except StoreUnavailable:
                left.append(thing)
        self._left = left

    def _remove_log(self, shard: int, before: int) -> None:
        remove_wal_files(self._fs, self._core.layout.shard(shard), before)

    def _record_places(self, head: SnapshotHead, written: SnapshotWriter) -> Iterator[bool]:
        """Records the places of topics in the snapshot, and pages out those that are idle; some before each tick."""
        pager, taken = self._core.pager, self._captures
        if not pager.indexed:
            return
        # Captures hold the topics in memory.
        ids, self._captures = [capture.topic.id for capture in taken], []
        taken.clear()
        if self._core.closed:
            # Nothing is paged out any more, but older positions must not be copied into the last snapshot.
            for topic_id in ids:
                pager.forget(topic_id)
            return
        try:
            file = SnapshotFile(self._fs, self._core.layout, head.number)
        except (OSError, DamageError):
            # The snapshot is valid, but no topic can be paged out to it.
            for topic_id in ids:
                pager.forget(topic_id)
            raise
        for _ in pager.add_snapshot(file, written, ids):
            yield True
        pager.places.keep({*head.chain, head.number})

    def _give_up(self, error: Exception, written: bool) -> None:
        self.failures += 1
        self.error = error
        _log.error("checkpoint failed", extra={"error": str(error)})
        core = self._core
        if written:
            # The snapshot contains them; whether the catalog does is unknown.
            for capture in self._captures:
                if core.exists(capture.topic):
                    core.dirty[capture.topic.shard].add(capture.topic)
            return
        for topic in self._due:
            topic.capture_due = False
        for topic in (*self._due, *(capture.topic for capture in self._captures)):
            if core.exists(topic):
                core.dirty[topic.shard].add(topic)
        for topic_id in self._dropped:
            core.dropped[0].append(topic_id)
        for shard, size in self._absorbed:
            # Still not in any snapshot, so it still counts towards the next one.
            shard.logged_bytes += size


def topic_state(topic: Topic, ceiling: int, tail: list[Block], parts: dict[str, bytes]) -> TopicState:
    return TopicState(
        topic.id, topic.name, topic.epoch, encode_config(topic.config), topic.head, ceiling, topic.earliest,
        topic.evict_floor, topic.cap_floor, topic.ttl_floor, topic.created_ts, topic.last_ts, topic.last_write_ts,
        topic.next_base, [segment.state() for segment in topic.segments],
        [LostState(lost.from_seq, lost.to_seq, lost.reason.value, lost.existed) for lost in topic.lost or ()],
        [], [bytes(block.flags or b"") for block in tail], parts, topic.unlogged,
        topic.keys.save() if topic.keys is not None else [], sum([block.live for block in tail]),
        sum([block.live_bytes for block in tail]),
    )  # fmt: skip


def remove_wal_files(fs: FileSystem, folder: str, before: int) -> None:
    """Removes a shard's files with lower numbers, the oldest first, so that the remaining files never have a gap."""
    try:
        names = fs.list_dir(folder)
    except FileNotFoundError:
        return
    for number in wal_numbers(names):
        if number < before:
            fs.remove(wal_file(folder, number))
