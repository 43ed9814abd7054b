"""A state-protocol stream whose touches the test sends."""

import heapq
import json
from collections.abc import Callable
from typing import Any

from tests.unit.streams.conftest import append, create
from tests.unit.streams.describing import JSON, profile
from topics.schema.invalidation_keys import parse_activation, parse_wait
from topics.streams.invalidation import Outcome, StreamInvalidation
from topics.streams.streams import Streams
from topics.testing import ManualClock


class Timers:
    """Delayed calls, which run when the clock is moved."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._taken_back: set[int] = set()
        self._count = 0

    def later(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        self._count += 1
        number = self._count
        heapq.heappush(self._due, (self.clock.now_ms() + seconds * 1000, number, function))
        return lambda: self._taken_back.add(number)

    def advance(self, ms: int) -> None:
        end = self.clock.now_ms() + ms
        while self._due and self._due[0][0] <= end:
            at, number, function = heapq.heappop(self._due)
            self.clock.advance(max(int(at) - self.clock.now_ms(), 0))
            if number not in self._taken_back:
                function()
        self.clock.advance(end - self.clock.now_ms())


def touched_stream(streams: Streams, name: str = "s", **settings: Any) -> StreamInvalidation:
    create(streams, name, JSON)
    profile(streams, name, "state-protocol", touch={"enabled": True, **settings})
    return touch_of(streams, name)


def touch_of(streams: Streams, name: str = "s") -> StreamInvalidation:
    touch = streams.invalidation.of(streams.topic(name))
    assert touch is not None
    return touch


def change(
    streams: Streams, operation: str, before: dict[str, Any] | None = None, after: dict[str, Any] | None = None,
    entity: str = "posts", name: str = "s",
) -> None:  # fmt: skip
    entry: dict[str, Any] = {"type": entity, "key": "k", "headers": {"operation": operation}}
    if after is not None:
        entry["value"] = after
    if before is not None:
        entry["old_value"] = before
    append(streams, name, json.dumps(entry).encode(), JSON)


def activate(touch: StreamInvalidation, *fields: str, entity: str = "posts", ttl_ms: int = 3_600_000) -> str:
    """The id of a template."""
    template = {"entity": entity, "fields": [{"name": field, "encoding": "string"} for field in fields]}
    body = json.dumps({"templates": [template], "inactivityTtlMs": ttl_ms}).encode()
    ((activated, refusal),) = touch.activate(parse_activation(body))
    assert refusal == "", refusal
    return activated.id


class Waiting:
    """A wait, and how it ended."""

    def __init__(self, touch: StreamInvalidation, *keys: str, cursor: str = "now", **more: Any) -> None:
        self.outcomes: list[Outcome] = []
        body = json.dumps({"cursor": cursor, "keys": list(keys), **more}).encode()
        self._end = touch.wait(parse_wait(body), self.outcomes.append)

    @property
    def touched(self) -> bool:
        return bool(self.outcomes) and self.outcomes[0].touched

    @property
    def stale(self) -> bool:
        return bool(self.outcomes) and self.outcomes[0].stale

    def end(self) -> Outcome:
        assert self._end is not None
        return self._end()
