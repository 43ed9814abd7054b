"""The registry of streams on an engine without a loop: a test runs the turns."""

from collections import deque
from collections.abc import Callable
from typing import Any

from topics.engine.read import ReadRequest, execute_read, plan_read
from topics.engine.topic import Topic
from topics.model.topic_config import REGISTRY_STREAM
from topics.streams.streams import Streams
from topics.streams.system_streams.registry_stream import LifecycleLog, Standing, standing_of

_TURNS_MAX = 10_000


class Turns:
    """Deferred calls, in the order of the requests."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def later(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        self._waiting.append(function)
        return lambda: self._waiting.remove(function)

    def run(self, most: int = _TURNS_MAX) -> None:
        """Runs turns until none is requested."""
        for _ in range(most):
            if not self._waiting:
                return
            self._waiting.popleft()()


def opened(streams: Streams) -> tuple[LifecycleLog, Turns]:
    """The registry of streams, with everything told that happened before."""
    turns = Turns()
    log = LifecycleLog(streams, turns.later)
    log.start()
    turns.run()
    return log, turns


def entries(streams: Streams) -> list[dict[str, Any]]:
    """Everything that the registry holds, with the seqs."""
    topic: Topic | None = streams.engine.core.directory.find(REGISTRY_STREAM)
    found: list[dict[str, Any]] = []
    cursor = 0
    while topic is not None and cursor < topic.head:
        plan = plan_read(topic, ReadRequest(from_seq=cursor, limit=100))
        result = execute_read(plan, streams.engine.core.reader)
        found += [{"seq": record["$seq"], **msgspec_dict(record["data"])} for record in result.records()]
        if result.next_from_seq <= cursor:
            break
        cursor = result.next_from_seq
    return found


def msgspec_dict(value: object) -> dict[str, Any]:
    assert isinstance(value, dict)
    return value


Believed = dict[str, tuple[int, str, str | None, bool]]


def believed(reported: list[dict[str, Any]]) -> Believed:
    """The state of the streams for a reader of the registry."""
    streams: Believed = {}
    for one in reported:
        if one["event"] == "deleted":
            streams.pop(one["stream"], None)
        else:
            streams[one["stream"]] = (one["epoch"], one["profile"], one["contract"], one["closed"])
    return streams


def actual(streams: Streams) -> Believed:
    """The actual state of the streams, from their topics."""
    found: list[Standing] = [
        standing_of(topic) for topic in streams.topics("", "", 0, ()) if topic.name != REGISTRY_STREAM
    ]
    return {one.stream: (one.epoch, one.profile, one.contract, one.closed) for one in found}
