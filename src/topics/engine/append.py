"""Appends: decides whether a batch or a group of requests is accepted, assigns seqs, and passes the block to the write
path. Requests of one tick are coalesced first (`engine.coalesce`)."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from topics.engine.apply import forget_old_keys, grant
from topics.engine.coalesce import GROUP_MAX, AppendSource, Coalescer, DecodedAppends
from topics.engine.conditional_append import FenceChange, check_conditions, check_token
from topics.engine.core import EngineCore
from topics.engine.idempotency import KeyedBlock, KeyMemory, KnownAppend
from topics.engine.quotas import KEY_BYTES, memory_of
from topics.engine.results import AppendDone, AppendResult, deduped
from topics.engine.topic import Block, Topic, block_head
from topics.engine.write_path import FrameDraft, LogOperation, WritePath
from topics.log.commit_requests import CommitTiming
from topics.log.frame import BASE_MAX, FrameKind, Keys, encode_create
from topics.model.errors import (
    IdempotencyConflictError,
    NotAQueueError,
    ShuttingDownError,
    ThrottledError,
    TopicNotFoundError,
    TopicsError,
)
from topics.model.limits import Limits
from topics.model.records import Batch, PlainRecords, Record, check_records, find_plain, payload_bytes
from topics.model.topic_config import (
    TopicConfig,
    TopicConfigPatch,
    TopicType,
    check_topic_name,
    encode_config,
    is_server_name,
    resolve_config,
)
from topics.queues.job_order import check_terms, order_frames, order_of
from topics.queues.queue_frames import JobOrder, JobTerms
from topics.wire.preencoding import Preencoded, check_preencoded
from topics.wire.record_encoding import encode_fragments


class FrameExtension(Protocol):
    """A feature's change that is logged in the same frame as a batch, so that no crash can separate them."""

    kind: FrameKind
    creates: bool
    """Whether the frame can also create the topic."""

    def staged(self, topic: Topic) -> None:
        """Called when the batch is accepted: from now on it is either applied or undone."""
        ...

    def prefix(self, topic: Topic) -> bytes:
        """The bytes of the frame before the block. If it creates a topic, they include its name and id."""
        ...

    def applied(self, topic: Topic) -> None:
        """Called when the batch is published."""
        ...

    def undone(self, topic: Topic, error: TopicsError) -> None:
        """Called when the batch failed, and the change with it."""
        ...


_OUTLIVES_RECORDS = (FrameKind.FENCE, FrameKind.SCHEDULE)
"""Frames that an ephemeral topic logs without their block: a restart keeps its fence, and repeats no due time."""


class Append(LogOperation):
    """The log operation of a batch: published when it is committed, undone when that fails."""

    __slots__ = ("_core", "_created", "_done", "_extension", "callers", "followers", "order")

    def __init__(
        self, core: EngineCore, topic: Topic, block: Block, created: bool, done: AppendDone,
        extension: FrameExtension | None, callers: int,
    ) -> None:  # fmt: skip
        # All fields are set here instead of through two constructors: one object is created for each append.
        self.path = core.path
        self.topic = topic
        self.block = block
        self.first_seq = block.first_seq
        self.ceiling = self.last_lsn = 0
        self._core = core
        self._created = created
        self._done = done
        self._extension = extension
        self.callers = callers
        self.order: JobOrder | None = None
        """For jobs that are delayed or have a priority."""
        self.followers: list[Callable[[TopicsError | None], None]] | None = None
        """Duplicates: callbacks of requests with the same key that arrived before the commit; called with the error, if
        any."""

    def apply(self, timing: CommitTiming) -> None:
        core, topic, block = self._core, self.topic, self.block
        assert block is not None
        first, last = block.first_seq, block.first_seq + block.count - 1
        if not topic.rules.created:
            core.add_topic(topic)
        if self.order is not None:
            # First, because publishing may wake a worker immediately.
            core.jobs_ordered.emit(topic, first, last, self.order)
        self.publish()
        if self._extension is not None:
            self._extension.applied(topic)
        result = AppendResult(topic.name, first, last, topic.head, self._created, False, *timing)
        if topic.rules.remote or self.path.remote.leaving:
            self.acknowledge(self._done, result)
        else:
            self._done(result)
        if self.followers is not None:
            for follower in self.followers:
                follower(None)

    def undo(self, error: TopicsError) -> None:
        topic, block = self.topic, self.block
        assert block is not None
        if self._created:
            self._core.directory.discard(topic)
        if block.key is not None and topic.keys is not None:
            topic.keys.release(block.key)
            if not topic.keys:
                topic.keys = None
        if self._extension is not None:
            self._extension.undone(topic, error)
        self._done(error)
        for follower in self.followers or ():
            follower(error)


class SealingState(Protocol):
    """The writer of segments (`engine.sealing`)."""

    failures: int
    """The number of consecutive failures; while sealing fails, memory fills up."""


class AdmissionState(Protocol):
    """Admission control under pressure (`engine.backpressure`)."""

    refusing: bool


class Appender:
    """Decides on appends and stages them.

        append_requests   network requests, undecoded: coalesced, a single one as a group of one
        append            one decoded batch for a name: creates the topic, recognizes repeated keys, calls the guard
        write             a checked batch for a resolved topic: the second half of `append`, and of the features
                          that have additional rules

    A single record passed to `write` is coalesced as well. All of them end in `_stage`.
    """

    def __init__(self, core: EngineCore, sealing: SealingState, admission: AdmissionState) -> None:
        self._core = core
        self._sealing = sealing
        self._admission = admission
        self.coalescer = Coalescer(core, self._stage, self._stage_decoded)

    def append_requests(
        self, name: str, requests: Sequence[object], source: AppendSource, streams: bool = False
    ) -> bool:
        """Accepts undecoded requests for one topic if the topic coalesces appends and no check may refuse them. All
        requests of a tick are decoded, checked and logged together, and `source` answers them.

        Returns False without effect if each request must be passed to `append` instead. `streams` marks requests of the
        streams protocol, which may name topics that others may not.
        """
        # Resident topics only, because this is the most frequent lookup; `append` loads the others.
        topic = self._core.directory.resident.get(name)
        if topic is None or self._core.closed:
            return False
        rules = topic.rules
        if not (rules.plain or (rules.shares and _is_indifferent(topic, streams))):
            return False
        group = topic.coalesced
        if group is None:
            # Checked for the first of a group only: the others of its block pass the same check.
            return not self._may_refuse(topic) and self.coalescer.defer(topic, requests, source)
        if group.source is not source or len(group.requests) + len(requests) > GROUP_MAX:
            # A group of decoded records is open: through `append` these requests share its block.
            return group.source is not None and self.coalescer.defer(topic, requests, source)
        group.requests += requests
        return True

    def _stage_decoded(self, topic: Topic, decoded: DecodedAppends, done: AppendDone) -> bool:
        """Checks and stages the records of requests that were decoded together; returns False if one may have to be
        refused."""
        records, keys = decoded
        limits, plain, keyed = self._core.limits, None, None
        if len(records) == 1:
            # Batch checks pay off for many requests; they would cost a lone request a twelfth of its time.
            if not _is_right(records[0], limits):
                return False
        elif (plain := find_plain(records)) is None:
            if not all([_is_right(record, limits) for record in records]):
                return False
        elif max(plain.sizes) > limits.max_record_bytes:
            return False
        if keys is not None:
            # The rules are not used: by now they may be those of a topic that is about to be deleted.
            remembers = not topic.rules.guarded and topic.staged_config.idempotency_window_ms > 0
            keyed = self._take_keys(topic, keys) if remembers else None
            if keyed is None:
                return False
        self._stage(topic, Batch(records=records), done, None, None, plain, len(records), keyed)
        return True

    def _take_keys(self, topic: Topic, keys: list[str | None]) -> KeyedBlock | None:
        """Reserves the idempotency keys of a group; returns None if a key is already in use or invalid, or if there may
        be no room."""
        limits = self._core.limits
        memory, most = KeyMemory() if topic.keys is None else topic.keys, limits.max_idempotency_keys
        by_key, room = memory.by_key, most - len(memory) if most else len(keys)
        if len(keys) == 1:
            (key,) = keys
            if not key or len(key) > limits.max_idempotency_key_chars or room < 1 or key in by_key:
                return None
            topic.keys = memory
            keyed = by_key[key] = KeyedBlock(key)
            return keyed
        places = {key: place for place, key in enumerate(keys) if key is not None}
        if len(places) + keys.count(None) != len(keys) or max(map(len, places)) > limits.max_idempotency_key_chars:
            return None
        if "" in places or room < len(places) or not by_key.keys().isdisjoint(places):
            return None
        topic.keys = memory
        keyed = KeyedBlock(places)
        by_key.update(dict.fromkeys(places, keyed))
        return keyed

    def _may_refuse(self, topic: Topic) -> bool:
        """Returns whether any check besides its rules may refuse an append to a topic."""
        core = self._core
        if core.quiet or core.metered or self._admission.refusing or self._sealing.failures > 0:
            return True
        if core.path.lease is not None and not core.path.lease.is_valid:
            return True
        if core.held_sources and topic in core.held_sources:
            return True
        return core.memory.pressed and core.memory.is_tight(topic)

    def append(self, topic: Topic | None, name: str, batch: Batch, done: AppendDone, prepared: object = None) -> None:
        """Appends to `topic`; creates it if it does not exist.

        `prepared` is the result of the topic's guard, if it postponed the records before.
        """
        core, records, key = self._core, batch.records, batch.idempotency_key
        if core.closed:
            raise ShuttingDownError()
        plain = check_preencoded(records, core.limits, batch.node, key)
        if batch.run_at is not None or batch.priority:
            check_terms(JobTerms(batch.delay_ms, batch.run_at, batch.priority), core.wall())
        if topic is None:
            topic = self._new_topic(name, batch)
        elif key is not None and self._answered_before(topic, key, batch, done):
            return
        elif topic.rules.guarded:
            asked, guard = batch, topic.guard
            assert guard is not None
            if guard.postpones(topic, records, prepared, lambda ready: self._append_again(name, asked, done, ready)):
                return
            admitted = core.path.admit(topic, lambda: records, prepared=prepared)
            if admitted is not None:
                batch, plain = msgspec.structs.replace(batch, records=admitted), None
        if batch.expected_head_seq is None and batch.fence is None and batch.new_fence is None:
            self.write(topic, batch, done, plain=plain)
        else:
            self._append_if(topic, batch, done, plain)

    def _append_if(self, topic: Topic, batch: Batch, done: AppendDone, plain: PlainRecords | None) -> None:
        """Appends if the topic meets the batch's conditions. Repeated keys were answered earlier."""
        while topic.coalesced is not None:
            topic.coalesced.stage()
        check_conditions(topic, batch.expected_head_seq, batch.fence)
        change = None
        if batch.new_fence is not None:
            check_token(batch.new_fence)
            change = FenceChange(batch.new_fence)
        self.write(topic, batch, done, change, plain=plain, conditional=True)

    def _append_again(self, name: str, batch: Batch, done: AppendDone, prepared: object) -> None:
        """Appends a batch that the topic's guard had postponed. Errors go to the callback: the caller has returned."""
        try:
            self.append(self._core.directory.find(name), name, batch, done, prepared)
        except TopicsError as error:
            done(error)

    def write(
        self,
        topic: Topic,
        batch: Batch,
        done: AppendDone,
        extension: FrameExtension | None = None,
        ts: int | None = None,
        plain: PlainRecords | None = None,
        conditional: bool = False,
    ) -> None:
        """Appends checked records to a topic that accepts them.

        `ts` is the writer's timestamp; it is raised to that of the previous batch if necessary. A `conditional` batch
        gets its seqs immediately, because its condition holds now.
        """
        core, path, rules = self._core, self._core.path, topic.rules
        count = len(batch.records) if plain is None else len(plain.sizes)
        if path.lease is not None:
            path.lease.check(count)
        if topic.config.ttl_ms:
            core.expire(topic)
        ordered = batch.delay_ms or batch.priority or batch.run_at is not None or batch.unique_key is not None
        if ordered and topic.staged_config.type is not TopicType.QUEUE:
            raise NotAQueueError(topic.name)
        if rules.rejects or core.metered:
            path.check_fits(topic, batch.records)
        key = batch.idempotency_key
        if core.held_sources and topic in core.held_sources:
            raise ThrottledError.over_cap("max_fanout_bytes_per_key", core.limits.max_fanout_bytes_per_key)
        if core.memory.pressed and (key is not None or ordered or not rules.logged):
            size = memory_of(len(batch.records), payload_bytes(batch.records)) if not rules.logged else 0
            core.memory.check(topic, size + (KEY_BYTES if key is not None else 0))
        if count == 1 and batch.node is None and not ordered and extension is None and ts is None and not conditional:
            shared = (rules.plain if key is None else rules.keyed) and not core.metered and not core.quiet
            if shared and self.coalescer.add(topic, batch.records[0], done, key):
                return
        if rules.logged or not rules.created:
            path.check(topic, patient=batch.disable_backpressure, overtakes=True)
        elif core.quiet:
            core.begin()
        self._stage(topic, batch, done, extension, ts, plain)

    def _stage(
        self,
        topic: Topic,
        batch: Batch,
        done: AppendDone,
        extension: FrameExtension | None = None,
        given_ts: int | None = None,
        plain: PlainRecords | None = None,
        callers: int = 1,
        keyed: KeyedBlock | None = None,
    ) -> None:
        """Assigns seqs and logs the frames. Nothing here may fail: an assigned number must be logged.

        `keyed` are the already reserved keys of single records.
        """
        core, rules, key = self._core, topic.rules, batch.idempotency_key
        logged = rules.logged
        if key is not None:
            if topic.keys is None:
                topic.keys = KeyMemory()
            # None if keys are not remembered; a key may then be in flight more than once, and the last one counts.
            keyed = topic.keys.begin(key)
        keys = key if keyed is None else keyed.keys
        if keyed is not None and plain is None and batch.node is None and callers > 1:
            plain = find_plain(batch.records)
        block = stage_block(core, topic, batch.records, batch.node, keys, given_ts, plain)
        created = not rules.created and core.directory.find(topic.name) is not topic
        append = Append(core, topic, block, created, done, extension, callers)
        frames: list[FrameDraft] = []
        if created and (extension is None or not extension.creates):
            frames.append((FrameKind.CREATE, creation_body(core, topic), b""))
        if extension is not None:
            extension.staged(topic)
        if batch.delay_ms or batch.priority or batch.run_at is not None or batch.unique_key is not None:
            terms = JobTerms(batch.delay_ms, batch.run_at, batch.priority, batch.unique_key)
            order = append.order = order_of(terms, core.time)
            if logged:
                frames += order_frames(order, block.first_seq, block.last_seq, core.time)
        if logged and extension is None:
            frames.append((FrameKind.APPEND, block_head(block), block.text))
        elif logged and extension is not None:
            frames.append((extension.kind, extension.prefix(topic) + block_head(block), block.text))
        elif extension is not None and extension.kind in _OUTLIVES_RECORDS:
            frames.append((extension.kind, extension.prefix(topic), b""))
        append.frames = frames
        if keyed is not None:
            keyed.stands_for(block, plain).append = append
        core.path.log(append)

    def _new_topic(self, name: str, batch: Batch) -> Topic:
        """The topic that this write creates; its name is registered only when it is staged."""
        core, patch = self._core, batch.config
        config = resolve_config(patch or TopicConfigPatch(), name, None)
        requested = config.auto_create if batch.create is None else batch.create
        if not requested:
            raise TopicNotFoundError(name)
        check_topic_name(name)
        return make_topic(core, name, config)

    def _answered_before(self, topic: Topic, key: str, batch: Batch, done: AppendDone) -> bool:
        if not topic.staged_config.idempotency_window_ms:
            return False
        while topic.coalesced is not None and topic.coalesced.may_bring(key):
            # The key came earlier in this tick, or may have. Once staged it can be followed. Appends that are then
            # accepted one by one form a group again.
            topic.coalesced.stage()
        taken = topic.keys.by_key.get(key) if topic.keys else None
        if taken is not None and taken.append is not None:
            flying: Append = taken.append
            duplicate = DuplicateAppend(self._core.path, topic, taken.find(key), batch, done)
            if flying.followers is None:
                flying.followers = []
            flying.followers.append(duplicate.answer)
            return True
        forget_old_keys(topic, self._core.wall())
        known = topic.keys.get(key) if topic.keys else None
        if known is None:
            most = self._core.limits.max_idempotency_keys
            if topic.keys is not None and 0 < most <= len(topic.keys):
                # Forgetting a key early would allow its append twice. All keys expire within the window.
                raise ThrottledError.over_cap("max_idempotency_keys", most)
            return False
        DuplicateAppend(self._core.path, topic, known, batch, done).answer(None)
        return True


class DuplicateAppend:
    """Answers a duplicate: an append whose key is known, or will be once the earlier append is committed."""

    def __init__(self, path: WritePath, topic: Topic, known: KnownAppend, batch: Batch, done: AppendDone) -> None:
        self._path = path
        self._topic = topic
        self._known = known
        self._differs = len(batch.records) != known.records
        # Records that a schema or a profile has rewritten, perhaps with the current time, cannot be compared byte by
        # byte.
        rewritten = topic.guard is not None and topic.guard.rewrites(topic)
        if not self._differs and not rewritten:
            self._differs = not _is_known(batch, known)
        self._check = batch.idempotency_check
        self._done = done

    def answer(self, error: TopicsError | None) -> None:
        """`error` is the failure of the earlier append; this one did not happen either and may be retried."""
        first, last = self._known.first_seq, self._known.first_seq + self._known.records - 1
        if error is None and self._differs and self._check:
            error = IdempotencyConflictError(self._topic.name, first, last)
        if error is None:
            self._path.acknowledge(self._topic, self._done, deduped(self._topic.name, first, last, self._differs))
        else:
            self._done(error)


def _is_known(batch: Batch, known: KnownAppend) -> bool:
    """Returns whether a batch equals the stored one."""
    if known.of_data:
        plain = find_plain(batch.records) if batch.node is None else None
        return plain is not None and known.holds(plain.datas[0])
    return known.holds(_encode_again(batch, known.first_seq, known.ts))


def _encode_again(batch: Batch, first_seq: int, ts: int) -> bytes:
    """The batch as it was stored, if it equals the stored one."""
    records, node = batch.records, batch.node
    if isinstance(records, Preencoded) and records.preencoded.fits(len(records), first_seq, ts, node):
        return records.preencoded.take(first_seq, ts, 0).text
    return encode_fragments(records, first_seq, ts, node, 0).text


def _is_indifferent(topic: Topic, streams: bool) -> bool:
    return topic.guard is not None and topic.guard.indifferent(topic, streams)


def _is_right(record: Record, limits: Limits) -> bool:
    if record.tag is None and record.meta is None and record.node is None:
        return len(record.data) <= limits.max_record_bytes
    try:
        check_records((record,), limits)
    except TopicsError:
        return False
    return True


def stage_block(
    core: EngineCore,
    topic: Topic,
    records: Sequence[Record],
    node: str | None = None,
    key: Keys | None = None,
    given_ts: int | None = None,
    plain: PlainRecords | None = None,
) -> Block:
    """Assigns seqs to a batch. From here on nothing may fail until its frame is submitted."""
    first = topic.staged_head + 1
    written = core.wall()
    ts = written if given_ts is None else given_ts
    preencoded = records.preencoded if isinstance(records, Preencoded) else None
    if preencoded is not None and given_ts is None:
        # It is almost new, so its timestamps remain valid.
        ts = preencoded.ts
    if ts < topic.staged_ts:
        ts = topic.staged_ts
    topic.staged_ts = ts
    base = topic.next_base if topic.next_base < BASE_MAX else 0
    if preencoded is not None and preencoded.fits(len(records), first, ts, node):
        text, rows, payload_bytes, traits = preencoded.take(first, ts, base)
    else:
        text, rows, payload_bytes, traits = encode_fragments(records, first, ts, node, base, plain)
    block = Block(first, ts, payload_bytes, base, traits, key, rows, text, written)
    count = block.count
    topic.staged_head += count
    topic.next_base = base + len(text) + 1
    topic.staged_count += count
    topic.staged_bytes += payload_bytes
    core.staged_bytes += payload_bytes
    return block


def make_topic(core: EngineCore, name: str, config: TopicConfig, above: int = 0) -> Topic:
    """A topic to be created: it has an id and a shard, and no name. Its epoch is higher than `above`."""
    limits = core.limits
    if limits.max_topics and core.name_count >= limits.max_topics and not is_server_name(name):
        raise ThrottledError.over_cap("max_topics", limits.max_topics)
    core.quotas.check_topics(name)
    topic_id = core.next_topic_id
    now_ms = core.wall()
    topic = Topic(topic_id, name, max(core.epochs.next(name, now_ms), above + 1), config, now_ms)
    topic.shard = core.shard_number(topic_id)
    grant(topic, core.reserve)
    return topic


def creation_body(core: EngineCore, topic: Topic) -> bytes:
    """Registers the name and id of a new topic; a frame with them must be logged."""
    core.directory.add(topic)
    core.next_topic_id = topic.id + 1
    if core.path.lease is not None:
        # A takeover skips as many ids of topics as seqs.
        core.path.lease.give(1)
    return encode_create(topic.epoch, topic.created_ts, topic.name, encode_config(topic.config))
