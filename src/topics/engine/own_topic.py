"""Topics that are the server's own: it keeps its books in them, and nobody else sees them."""

from collections.abc import Callable, Sequence

from topics.core.errors import TopicNotFoundError
from topics.core.records import Record
from topics.engine.topic import Records, Topic


class Hidden:
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

    def sweep(self, topic: Topic) -> None: ...

    def drop(self, topic: Topic, done: Callable[..., None]) -> None:
        raise TopicNotFoundError(topic.name)

    def removed(self, topic: Topic) -> None: ...

    def release(self, source: Topic) -> None: ...
