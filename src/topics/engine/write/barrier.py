"""Telling when what readers see of a topic is on the disk, for those who must not act on less."""

from collections.abc import Callable

from topics.engine.core import EngineCore
from topics.engine.topic import Topic


def when_durable(core: EngineCore, topic: Topic, done: Callable[[int], None]) -> None:
    """Tells the topic's head as it is now, once everything up to it is on the disk; it may do so before it returns.

    A class that is never written has nothing to wait for. Where the disk fails, `done` is never called: nothing
    becomes durable any more.
    """
    head, path = topic.head, core.path
    durability = topic.config.durability
    nothing_to_wait_for = durability.acks_after_sync or not durability.logged
    if nothing_to_wait_for or path.is_synced(topic.shard):
        done(head)
    elif path.takes_notes(topic):
        path.after_sync(topic.shard, lambda: done(head))
