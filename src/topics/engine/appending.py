"""Appending: decide where a batch goes, log it, and let the operation publish it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from topics.core.batch import Batch
from topics.core.config import Discard, TopicConfig, TopicConfigPatch, TopicType, encode_config, resolve_config
from topics.core.durability import Durability
from topics.core.errors import (
    NotAQueueError,
    RecordTooLargeError,
    ShuttingDownError,
    ThrottledError,
    TopicFullError,
    TopicNotFoundError,
    TopicsError,
)
from topics.core.limits import clamp_delay_ms
from topics.core.names import check_topic_name
from topics.core.records import PlainRecords, Record, check_records
from topics.engine.apply import forget_old_keys
from topics.engine.core import EngineCore, Note
from topics.engine.gathering import Gatherer, answer_each, may_gather
from topics.engine.operations import AppendDone, AppendOperation, deduped
from topics.engine.runs import Block, block_head
from topics.engine.topic import Topic
from topics.formats.block import BASE_MAX
from topics.formats.control import encode_ceiling, encode_create
from topics.formats.frame import FrameKind
from topics.formats.queue import encode_delay
from topics.storage.commit import AT_ONCE, Shard
from topics.wire.fragments import encode_fragments

_RESERVE_MAX = 1 << 20
_QUICK_MS = 1000


class Rider(Protocol):
    """What a feature changes together with a batch, in the same frame, so that no crash can part them."""

    kind: FrameKind

    def staged(self, topic: Topic) -> None:
        """The batch is accepted and on its way: from now on it is either applied or undone."""
        ...

    def prefix(self, topic: Topic) -> bytes:
        """What stands in the frame before the block. For a new topic it is also what gives it its name and number."""
        ...

    def applied(self, topic: Topic) -> None:
        """The batch is published."""
        ...

    def undone(self, topic: Topic, error: TopicsError) -> None:
        """The batch failed, and with it whatever rides on it."""
        ...


class Appender:
    def __init__(self, core: EngineCore, after: Callable[[Topic], None]) -> None:
        self._core = core
        self.after = after
        """Called after each batch that was published (`engine.sealing`)."""
        self.delayed: Callable[[Topic, Block, int], None] = lambda topic, block, ready_at: None
        """Told of jobs that are held back until a moment (`engine.queues`)."""
        self.gatherer = Gatherer(core, self._stage)

    def append(self, topic: Topic | None, name: str, batch: Batch, done: AppendDone) -> None:
        """Appends to `topic`, or to the one it makes where there is none of that name."""
        core, records, key = self._core, batch.records, batch.idempotency_key
        if core.closed:
            raise ShuttingDownError()
        plain = check_records(records, core.limits, batch.node, key)
        if topic is None:
            topic = self._new_topic(name, batch)
        elif key is not None and self._answered_before(topic, key, done):
            return
        elif topic.guard is not None:
            topic.guard.check_append(topic)
        self.write(topic, batch, done, plain=plain)

    def write(
        self,
        topic: Topic,
        batch: Batch,
        done: AppendDone,
        rider: Rider | None = None,
        ts: int | None = None,
        plain: PlainRecords | None = None,
    ) -> None:
        """Appends records that were found right to a topic that takes them.

        `ts` is a time that the writer gives, not in the future; it is moved up to that of the batch before if need be.
        """
        core, config = self._core, topic.staged_config
        if topic.config.ttl_ms:
            core.expire(topic)
        quota = core.limits.max_total_bytes
        if batch.delay_ms and config.type is not TopicType.QUEUE:
            raise NotAQueueError(topic.name)
        if config.discard is Discard.REJECT or quota:
            self._check_room(topic, batch.records)
        shard = core.shards[topic.shard]
        alone = len(batch.records) == 1 and batch.idempotency_key is None and batch.node is None and not batch.delay_ms
        unruled = rider is None and ts is None and not quota
        if alone and unruled and may_gather(topic) and shard.gathers:
            self.gatherer.add(topic, batch.records[0], done, answer_each)
            return
        if config.durability.logged or not topic.created:
            shard.check_open(patient=batch.disable_backpressure)
        self._stage(topic, batch, shard, done, rider, ts, plain)

    def _stage(
        self,
        topic: Topic,
        batch: Batch,
        shard: Shard,
        done: AppendDone,
        rider: Rider | None = None,
        given_ts: int | None = None,
        plain: PlainRecords | None = None,
        askers: int = 1,
    ) -> None:
        """Gives out seqs and sends the frames on their way. Nothing here may fail: a number spent must be logged."""
        core, key = self._core, batch.idempotency_key
        durability = topic.staged_config.durability
        block = stage_block(core, topic, batch.records, batch.node, key, given_ts, plain)
        last, ts, after = topic.staged_head, block.ts, self.after
        exists = topic.created
        created = not exists and core.by_name.get(topic.name) is not topic
        pieces = creation_frame(core, topic, shard) if created and rider is None else []
        if rider is not None:
            rider.staged(topic)
        if batch.delay_ms:
            ready_at = ts + clamp_delay_ms(batch.delay_ms)
            after = partial(self._delay, block, ready_at)
            if durability.logged:
                pieces += shard.frame(FrameKind.DELAY, topic.id, encode_delay(ready_at, block.first_seq, last))
        if durability.logged:
            if rider is None:
                frame = shard.frame(FrameKind.APPEND, topic.id, block_head(block), block.text)
            else:
                frame = shard.frame(rider.kind, topic.id, rider.prefix(topic) + block_head(block), block.text)
            pieces = pieces + frame if pieces else frame
        else:
            topic.unlogged = True
        guarded = durability.reserves_seqs
        ceiling = self.reserve(topic, shard, last, ts, pieces) if guarded and last > topic.ceiling_staged else 0
        needs_sync = (
            durability.acks_after_sync or topic.sync_inflight > 0 or not exists or (guarded and last > topic.ceiling)
        )
        operation = AppendOperation(core, topic, pieces, needs_sync, block, ceiling, created, after, done, rider)
        operation.askers = askers
        if key is not None:
            if topic.inflight_keys is None:
                topic.inflight_keys = {}
            topic.inflight_keys[key] = operation
        if pieces or needs_sync:
            shard.submit(operation)
        else:
            operation.committed(AT_ONCE)
        if durability is Durability.EPHEMERAL or (guarded and not ceiling):
            self.reserve_ahead(topic, shard, last, ts)

    def _delay(self, block: Block, ready_at: int, topic: Topic) -> None:
        self.delayed(topic, block, ready_at)
        self.after(topic)

    def _new_topic(self, name: str, batch: Batch) -> Topic:
        """The topic this write creates; it gets its name only when it is staged."""
        core, patch = self._core, batch.config
        config = resolve_config(patch or TopicConfigPatch(), name, None)
        wanted = config.auto_create if batch.create is None else batch.create
        if not wanted:
            raise TopicNotFoundError(name)
        check_topic_name(name)
        return make_topic(core, name, config)

    def _answered_before(self, topic: Topic, key: str, done: AppendDone) -> bool:
        if not topic.staged_config.idempotency_window_ms:
            return False
        flying = topic.inflight_keys.get(key) if topic.inflight_keys else None
        if isinstance(flying, AppendOperation):
            flying.followers = [*(flying.followers or ()), done]
            return True
        forget_old_keys(topic, self._core.now())
        known = topic.keys.get(key) if topic.keys else None
        if known is None:
            return False
        done(deduped(topic.name, known[0], known[0] + known[1] - 1))
        return True

    def _check_room(self, topic: Topic, records: Sequence[Record]) -> None:
        config, quota = topic.staged_config, self._core.limits.max_total_bytes
        rejects = config.discard is Discard.REJECT and (config.cap_records or config.cap_bytes)
        if not rejects and not quota:
            return
        size = sum([len(record.data) + len(record.meta or b"") for record in records])
        if rejects:
            _check_cap(topic, config, len(records), size)
        if quota and self._core.total_bytes + self._core.staged_bytes + size > quota:
            raise ThrottledError.over_cap("max_total_bytes", quota)

    def check_cap(self, topic: Topic, records: Sequence[Record]) -> None:
        """Refuses records that a topic which rejects has no room for."""
        config = topic.staged_config
        if config.discard is Discard.REJECT and (config.cap_records or config.cap_bytes):
            size = sum([len(record.data) + len(record.meta or b"") for record in records])
            _check_cap(topic, config, len(records), size)

    def reserve(self, topic: Topic, shard: Shard, last: int, now: int, pieces: list[bytes]) -> int:
        """Class disk: before a seq is seen, a ceiling above it is on disk, so that no crash gives it out twice."""
        if not topic.staged_config.durability.reserves_seqs or last <= topic.ceiling_staged:
            return 0
        ceiling = self._next_ceiling(topic, last, now)
        pieces += shard.frame(FrameKind.CEILING, topic.id, encode_ceiling(ceiling))
        return ceiling

    def reserve_ahead(self, topic: Topic, shard: Shard, last: int, now: int) -> None:
        """Raises the ceiling before it is reached, so that hardly any append waits for it."""
        if last + topic.reserve // 2 < topic.ceiling_staged or shard.writer.poison is not None:
            return
        ceiling = self._next_ceiling(topic, last, now)

        def raised() -> None:
            self._core.before_change(topic)
            topic.ceiling = max(topic.ceiling, ceiling)

        shard.submit(
            Note(shard.frame(FrameKind.CEILING, topic.id, encode_ceiling(ceiling)), needs_sync=True, then=raised)
        )

    def _next_ceiling(self, topic: Topic, last: int, now: int) -> int:
        # A busy topic reserves more at a time; a quiet one little, because a crash leaves the rest as a hole.
        smallest = self._core.options.disk_reserve_seqs
        quick = now - topic.reserved_at < _QUICK_MS
        topic.reserve = min(topic.reserve * 2, _RESERVE_MAX) if quick and topic.reserve else smallest
        topic.reserved_at = now
        topic.ceiling_staged = last + topic.reserve
        return topic.ceiling_staged


def stage_block(
    core: EngineCore,
    topic: Topic,
    records: Sequence[Record],
    node: str | None = None,
    key: str | None = None,
    given_ts: int | None = None,
    plain: PlainRecords | None = None,
) -> Block:
    """Gives out seqs for a batch. From here on nothing may fail until its frame is submitted."""
    first = topic.staged_head + 1
    ts = core.now() if given_ts is None else given_ts
    if ts < topic.staged_ts:
        ts = topic.staged_ts
    topic.staged_ts = ts
    base = topic.next_base if topic.next_base < BASE_MAX else 0
    text, rows, payload_bytes, traits = encode_fragments(records, first, ts, node, base, plain)
    block = Block(first, ts, payload_bytes, base, traits, key, rows, text)
    count = block.count
    topic.staged_head += count
    topic.next_base = base + len(text) + 1
    topic.staged_count += count
    topic.staged_bytes += payload_bytes
    core.staged_bytes += payload_bytes
    return block


def make_topic(core: EngineCore, name: str, config: TopicConfig) -> Topic:
    """A new topic that does not exist yet: it has a number and a shard, and no name."""
    limits = core.limits
    if limits.max_topics and len(core.by_name) >= limits.max_topics:
        raise ThrottledError.over_cap("max_topics", limits.max_topics)
    topic_id = core.next_topic_id
    topic = Topic(topic_id, name, topic_id, config, core.now())
    topic.shard = core.shard_number(topic_id)
    return topic


def creation_frame(core: EngineCore, topic: Topic, shard: Shard) -> list[bytes]:
    """Gives a new topic its name and its number for good; the frame must be submitted."""
    return shard.frame(FrameKind.CREATE, topic.id, creation_body(core, topic))


def creation_body(core: EngineCore, topic: Topic) -> bytes:
    """The body of such a frame, or of a part of another one; it gives the topic its name and number just the same."""
    core.by_name[topic.name] = topic
    core.next_topic_id = topic.id + 1
    return encode_create(topic.epoch, topic.created_ts, topic.name, encode_config(topic.config))


def _check_cap(topic: Topic, config: TopicConfig, count: int, size: int) -> None:
    """A topic that rejects never drops: refused before a seq is given out."""
    if (config.cap_records and count > config.cap_records) or (config.cap_bytes and size > config.cap_bytes):
        raise RecordTooLargeError(
            "the batch alone is larger than the topic's cap",
            topic=topic.name, cap_records=config.cap_records, cap_bytes=config.cap_bytes,
        )  # fmt: skip
    over_count = config.cap_records and topic.live_count + topic.staged_count + count > config.cap_records
    over_bytes = config.cap_bytes and topic.live_bytes + topic.staged_bytes + size > config.cap_bytes
    if over_count or over_bytes:
        raise TopicFullError(
            topic.name,
            cap_records=config.cap_records,
            cap_bytes=config.cap_bytes,
            head_seq=topic.head,
            earliest_seq=topic.earliest,
        )
