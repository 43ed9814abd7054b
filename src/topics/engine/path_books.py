"""What the write path knows of the engine."""

from typing import Protocol

from topics.core.limits import Limits
from topics.engine.state.apply import Applier
from topics.engine.topic import Topic
from topics.engine.write.quotas import Quotas
from topics.storage.commit import Shard


class Books(Protocol):
    """The part of `EngineCore` that `engine.transaction` asks and changes."""

    shards: list[Shard]
    limits: Limits
    applier: Applier
    topics: dict[int, Topic]
    closed: bool
    total_bytes: int
    staged_bytes: int
    reserve: int
    quiet: bool
    metered: bool
    quotas: Quotas

    def begin(self) -> None: ...

    def before_change(self, topic: Topic) -> None: ...

    def wake(self, topic: Topic) -> None: ...

    @property
    def used_bytes(self) -> int:
        """What counts against the server's quota."""
        ...
