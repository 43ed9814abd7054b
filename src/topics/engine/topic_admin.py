"""Topic administration: create, configure and delete topics.

Changes of topics are always synced before they take effect, whatever the topic's class: an error means that nothing was
applied.
"""

from collections.abc import Callable, Sequence

from topics.engine.append import creation_body, make_topic
from topics.engine.core import EngineCore
from topics.engine.results import DropDone, DropResult, PutDone, PutResult
from topics.engine.topic import Records, Topic
from topics.engine.write_path import Change, FrameDraft, Gate, LogOperation
from topics.log.commit_requests import CommitTiming
from topics.log.frame import FrameKind, encode_config_change
from topics.model.errors import StreamGoneError, TopicNotEmptyError, TopicNotFoundError, TopicsError
from topics.model.records import Record
from topics.model.topic_config import (
    Durability,
    TopicConfig,
    TopicConfigPatch,
    check_topic_name,
    encode_config,
    resolve_config,
)


class Put(LogOperation):
    """The creation of a topic, or a new config."""

    __slots__ = ("_config", "_core", "_done")

    def __init__(self, core: EngineCore, topic: Topic, frame: FrameDraft, config: TopicConfig, done: PutDone) -> None:
        super().__init__(core.path, topic, (frame,))
        self._core = core
        self._config = config
        self._done = done

    def apply(self, timing: CommitTiming) -> None:
        topic, created = self.topic, not self.topic.created
        # Also if the new class would not need it: the next write relies on the change.
        waits = topic.config.durability is Durability.REMOTE
        if created:
            self._core.add_topic(topic)
        else:
            latest = topic.staged_config
            self._core.applier.configure(topic, self._config, topic.head)
            topic.staged_config = latest
        result = PutResult(topic.name, created, self._config)
        if waits:
            if self.path.lease is not None and self._config.durability is not Durability.REMOTE:
                self.path.remote.leave(topic)
            self.path.remote.hold(self._done, result)
        else:
            self.acknowledge(self._done, result)

    def undo(self, error: TopicsError) -> None:
        topic = self.topic
        topic.staged_config = topic.config
        if not topic.created:
            self._core.directory.discard(topic)
        self._done(error)


class Drop(LogOperation):
    """The deletion of a topic."""

    __slots__ = ("_core", "_done")

    def __init__(self, core: EngineCore, topic: Topic, done: DropDone) -> None:
        super().__init__(core.path, topic, ((FrameKind.DROP, b"", b""),))
        self._core = core
        self._done = done
        topic.closing = True

    def apply(self, timing: CommitTiming) -> None:
        topic = self.topic
        routers = self._core.remove_routers(topic)
        self._core.remove_topic(topic)
        self._retry_others()
        self.acknowledge(self._done, DropResult(topic.name, True, routers))

    def undo(self, error: TopicsError) -> None:
        topic = self.topic
        topic.closing = False
        self._core.wake(topic)
        self._retry_others()
        self._done(error)

    def _retry_others(self) -> None:
        # Before the answer: a client sends its next requests after it, and these operations came earlier.
        waiting, self.topic.deletion_waiters = self.topic.deletion_waiters, None
        for retry in waiting or ():
            retry()


class Controller:
    def __init__(self, core: EngineCore) -> None:
        self._core = core

    def put(self, name: str, patch: TopicConfigPatch, done: PutDone) -> None:
        core = self._core
        core.check_accepting()
        check_topic_name(name)
        topic = core.directory.find(name)
        if topic is None:
            self._create(name, resolve_config(patch, name, None), done)
            return
        if topic.guard is not None and topic.guard.hides(topic):
            raise StreamGoneError(name)
        # A stream got its class from the server, not from the caller that changes the rest of its config: a weaker
        # class would break the guarantees of the stream protocol.
        config = resolve_config(patch, name, topic.staged_config, keeps_durability=topic.guard is not None)
        if config == topic.staged_config and topic.created and not topic.sync_inflight:
            done(PutResult(name, False, config))
            return
        core.path.check(topic)
        if config.durability is Durability.REMOTE:
            core.path.remote.check()
        core.expire(topic)
        topic.staged_config = config
        body = encode_config_change(topic.staged_head, encode_config(config))
        core.path.log(Put(core, topic, (FrameKind.CONFIG, body, b""), config, done), Gate.SYNC)

    def _create(self, name: str, config: TopicConfig, done: PutDone) -> None:
        core = self._core
        topic = make_topic(core, name, config)
        core.path.check(topic)
        frame = (FrameKind.CREATE, creation_body(core, topic), b"")
        core.path.log(Put(core, topic, frame, config, done), Gate.SYNC)

    def drop(self, name: str, if_empty: bool, done: DropDone) -> None:
        core = self._core
        core.check_accepting()
        topic = core.directory.find(name)
        if topic is None or (topic.guard is not None and topic.guard.hides(topic)):
            done(DropResult(name, False))
            return
        core.expire(topic)
        if if_empty:
            # Records of this tick belong to the topic, although they are staged at its end.
            core.path.stage_coalesced(topic.shard)
        if if_empty and topic.live_count + topic.staged_count:
            raise TopicNotEmptyError(name, topic.live_count + topic.staged_count)
        if topic.guard is not None:
            topic.guard.drop(topic, done)
        else:
            drop_topic(core, topic, done)


def drop_topic(core: EngineCore, topic: Topic, done: DropDone) -> None:
    """Deletes a topic with everything in it."""
    core.path.check(topic, frees=True)
    core.path.log(Drop(core, topic, done), Gate.SYNC)


def wait_for_drop(
    core: EngineCore, name: str, retry: Callable[[], None], done: Callable[[TopicsError], None] | Callable[..., None]
) -> bool:
    """Postpones an operation while the topic of its name is being deleted."""
    topic = core.directory.find(name)
    if topic is not None and topic.guard is not None:
        topic.guard.sweep(topic)
        # Without a loop it is deleted by now.
        topic = core.directory.find(name)
    if topic is None or not topic.closing:
        return False

    def again() -> None:
        try:
            retry()
        except TopicsError as error:
            done(error)

    topic.notify_on_delete(again)
    return True


def wait_while_in_motion(
    core: EngineCore, topic: Topic, again: Callable[[], None], failed: Callable[[TopicsError], None]
) -> bool:
    """Postpones operations while the topic is being created or deleted. Raises if the topic cannot be logged."""
    if topic.closing:
        topic.notify_on_delete(again)
    elif not topic.created:
        core.path.check(topic)
        # Without a frame: it waits for all earlier operations.
        core.path.log(Change(core.path, topic, (), lambda timing: again(), failed), Gate.SYNC)
    else:
        return False
    return True


# System topics: the server stores its own state in them, and clients do not see them.


class SystemTopic:
    """The guard of such a topic (`engine.topic.Guard`)."""

    def __init__(self) -> None:
        self.lifted = False

    def check_append(self, topic: Topic) -> None:
        raise TopicNotFoundError(topic.name)

    def indifferent(self, topic: Topic, streams: bool) -> bool:
        return False

    def rewrites(self, topic: Topic) -> bool:
        return False

    def postpones(self, topic: Topic, records: Sequence[Record], prepared: object, retry: object) -> bool:
        return False

    def admit(self, topic: Topic, records: Records, moved: bool, prepared: object = None) -> None:
        return None

    def hides(self, topic: Topic) -> bool:
        return not self.lifted

    def over(self, topic: Topic) -> bool:
        return not self.lifted

    def content_type(self, topic: Topic) -> str | None:
        return None

    def sweep(self, topic: Topic) -> None: ...

    def drop(self, topic: Topic, done: Callable[..., None]) -> None:
        raise TopicNotFoundError(topic.name)

    def removed(self, topic: Topic) -> None: ...

    def release(self, source: Topic) -> None: ...
