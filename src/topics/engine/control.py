"""Topics themselves: creating, configuring and deleting them, and deleting records out of them.

Changes of topics are always synced before they count, whatever the topic's class: an error means nothing was applied.
Deletes of records wait for as much as appends to the same topic do.
"""

from collections.abc import Callable

from topics.core.config import TopicConfig, TopicConfigPatch, encode_config, resolve_config
from topics.core.errors import (
    CorruptSegmentError,
    StreamGoneError,
    TopicNotEmptyError,
    TopicNotFoundError,
    TopicsError,
)
from topics.core.names import check_topic_name
from topics.core.selectors import DeleteSelector, TagMatch
from topics.engine.appending import creation_frame, make_topic
from topics.engine.core import EngineCore
from topics.engine.operations import (
    DeleteDone,
    DeleteOperation,
    DropDone,
    DropOperation,
    DropResult,
    PutDone,
    PutOperation,
    PutResult,
)
from topics.engine.runs import Segment
from topics.engine.tags import SeqRange, as_ranges, find_in_memory, find_on_disk
from topics.engine.topic import Topic
from topics.formats.control import encode_config_change, encode_delete
from topics.formats.frame import FrameKind
from topics.storage.commit import CommitTiming
from topics.storage.segments import SegmentDamaged, SegmentKey

Background = Callable[[Callable[[], object], Callable[[object], None]], None]
"""Runs the first function off the loop and hands its outcome, a result or an exception, to the second on the loop."""


class Controller:
    def __init__(self, core: EngineCore, background: Background) -> None:
        self._core = core
        self._background = background

    def put(self, name: str, patch: TopicConfigPatch, done: PutDone) -> None:
        core = self._core
        core.check_accepting()
        check_topic_name(name)
        topic = core.by_name.get(name)
        if topic is None:
            self._create(name, resolve_config(patch, name, None), done)
            return
        if topic.guard is not None and topic.guard.hides(topic):
            raise StreamGoneError(name)
        config = resolve_config(patch, name, topic.staged_config)
        if config == topic.staged_config and topic.created and not topic.sync_inflight:
            done(PutResult(name, False, config))
            return
        shard = core.shards[topic.shard]
        shard.check_open()
        core.expire(topic)
        topic.staged_config = config
        body = encode_config_change(topic.staged_head, encode_config(config))
        shard.submit(PutOperation(core, topic, shard.frame(FrameKind.CONFIG, topic.id, body), config, done))

    def _create(self, name: str, config: TopicConfig, done: PutDone) -> None:
        core = self._core
        topic = make_topic(core, name, config)
        shard = core.shards[topic.shard]
        shard.check_open()
        shard.submit(PutOperation(core, topic, creation_frame(core, topic, shard), config, done))

    def drop(self, name: str, if_empty: bool, done: DropDone) -> None:
        core = self._core
        core.check_accepting()
        topic = core.by_name.get(name)
        if topic is None or (topic.guard is not None and topic.guard.hides(topic)):
            done(DropResult(name, False))
            return
        core.expire(topic)
        if if_empty and topic.live_count + topic.staged_count:
            raise TopicNotEmptyError(name, topic.live_count + topic.staged_count)
        if topic.guard is not None:
            topic.guard.drop(topic, done)
            return
        shard = core.shards[topic.shard]
        shard.check_open()
        shard.submit(DropOperation(core, topic, shard.frame(FrameKind.DROP, topic.id, b""), done))

    def delete(self, name: str, selector: DeleteSelector, done: DeleteDone) -> None:
        core = self._core
        core.check_accepting()
        topic = core.existing(name)
        core.expire(topic)
        # A delete concerns what is there now: later records are safe from it, whatever their tag.
        below = topic.head + 1
        if selector.before_seq is not None:
            below = min(below, selector.before_seq)
        if selector.match is None:
            self._log_delete(topic, below, [], done)
        else:
            self._delete_matching(topic, selector.match, below, done)

    def _delete_matching(self, topic: Topic, match: TagMatch, below: int, done: DeleteDone) -> None:
        core = self._core
        near = find_in_memory(topic, match)
        sealed = [s for s in topic.segments if s.blocks is None and s.has_tags and s.first_seq < below]
        if not sealed:
            self._log_delete(topic, 0, as_ranges(near, below), done)
            return

        def found(outcome: object) -> None:
            try:
                if isinstance(outcome, SegmentDamaged):
                    raise self._corrupt(topic, sealed, outcome)
                if isinstance(outcome, TopicsError):
                    raise outcome
                if not isinstance(outcome, list):
                    raise TopicsError(f"a look-up by tag failed: {outcome}")
                core.check_accepting()
                if core.topics.get(topic.id) is not topic or topic.closing:
                    raise TopicNotFoundError(topic.name)
                self._log_delete(topic, 0, as_ranges(near + outcome, below), done)
            except TopicsError as error:
                done(error)

        self._background(lambda: find_on_disk(core.store, topic.id, sealed, match), found)

    def _corrupt(self, topic: Topic, segments: list[Segment], damage: SegmentDamaged) -> CorruptSegmentError:
        for segment in segments:
            if damage.path.startswith(self._core.store.path(SegmentKey(topic.id, segment.first_seq, segment.cold))):
                return CorruptSegmentError(topic.name, segment.first_seq, segment.last_seq)
        return CorruptSegmentError(topic.name, topic.earliest, topic.head)

    def _log_delete(self, topic: Topic, before_seq: int, ranges: list[SeqRange], done: DeleteDone) -> None:
        core = self._core
        durability = topic.staged_config.durability
        shard = core.shards[topic.shard]
        pieces: list[bytes] = []
        # An ephemeral topic may hold records of a time when it was none, and without a frame those would come back.
        if durability.logged or topic.config.durability.logged or topic.segments:
            shard.check_open()
            pieces = shard.frame(FrameKind.DELETE, topic.id, encode_delete(before_seq, ranges))
        # Later operations of an ephemeral topic have nothing to write: only behind a sync do they wait their turn.
        needs_sync = durability.acks_after_sync or topic.sync_inflight > 0 or (bool(pieces) and not durability.logged)
        operation = DeleteOperation(core, topic, pieces, needs_sync, before_seq, ranges, done)
        if pieces or needs_sync:
            shard.submit(operation)
        else:
            operation.committed(CommitTiming())
