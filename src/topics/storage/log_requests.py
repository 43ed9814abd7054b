"""What a shard's writer is asked for besides commits. Each is done behind everything that was submitted before it."""

from collections.abc import Callable
from typing import NamedTuple

from topics.core.errors import TopicsError


class LogPosition(NamedTuple):
    """The end of a shard's log: a file, and how far it is written."""

    file: int
    offset: int


class Rotation:
    """Asks the writer to sync and finish its file; `position` is then the number of the file that follows."""

    def __init__(self, done: Callable[[int], None], failed: Callable[[TopicsError], None]) -> None:
        self.done = done
        self.failed = failed
        self.position = 0


class Reopening:
    """Asks the writer of a halted shard whether it can write again; `done` is told when it can."""

    def __init__(self, done: Callable[[], None]) -> None:
        self.done = done


class Locating:
    """Asks the writer where its log ends; `done` is told None where nobody can say, as the log takes no writes."""

    def __init__(self, done: Callable[[LogPosition | None], None]) -> None:
        self.done = done


Request = Rotation | Reopening | Locating
