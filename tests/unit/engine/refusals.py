"""Every obstacle for a write, as data: how it begins, how it ends, and the losses with it."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tests.unit.conftest import append, ask_drop, delete, put
from tests.unit.engine.write_paths import Path
from tests.unit.engine.writing_world import HUGE, JSON, LARGEST, SMALL, World, reported
from topics.engine.engine import Engine
from topics.engine.topic import Guard, Topic
from topics.model.errors import TopicsError, TopicStateError
from topics.model.topic_config import Discard
from topics.streams.append import AppendRequest
from topics.streams.lifecycle import CreateRequest, ForkFrom
from topics.streams.stream_frames import StreamPart

BALLAST, READER = "ballast", "reader"
_QUOTA = 32 * LARGEST

Step = Callable[[World, Path], None]


class UnwillingError(TopicStateError):
    """The error that the test's guard raises."""

    code = "unwilling"


class UnwillingGuard:
    """Rejects appends and allows everything else. It may be shown them, or only be asked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def check_append(self, topic: Topic) -> None:
        raise UnwillingError("the topic is unwilling")

    def indifferent(self, topic: Topic, streams: bool) -> bool:
        return False

    def rewrites(self, topic: Topic) -> bool:
        return False

    def postpones(self, topic: Topic, records: object, prepared: object, retry: object) -> bool:
        return False

    def admit(self, topic: Topic, records: object, moved: bool, prepared: object = None) -> None: ...

    def hides(self, topic: Topic) -> bool:
        return False

    def over(self, topic: Topic) -> bool:
        return False

    def content_type(self, topic: Topic) -> str | None:
        return None

    def sweep(self, topic: Topic) -> None: ...

    def drop(self, topic: Topic, done: Callable[..., None]) -> None:
        topic.guard = None
        self._engine.drop_topic(topic.name, False, done)

    def removed(self, topic: Topic) -> None: ...

    def release(self, source: Topic) -> None: ...


def _ensure(world: World, path: Path) -> Topic:
    """The target, even if the write itself would create it."""
    world.make_stream(path.target)
    return world.topic(path.target)


def _close(world: World, path: Path) -> None:
    _ensure(world, path)
    (answer,) = reported(lambda done: world.streams.append(path.target, AppendRequest(close=True), done))
    assert not isinstance(answer, TopicsError), answer


def _drop(world: World, path: Path) -> None:
    _ensure(world, path)
    (answer,) = ask_drop(world.engine, path.target)
    assert not isinstance(answer, TopicsError), answer


def _begin_drop(world: World, path: Path) -> None:
    shard = _ensure(world, path).shard
    world.hold(shard, True)
    assert ask_drop(world.engine, path.target) == []


def _finish_drop(world: World, path: Path) -> None:
    topic = world.topic(path.target)
    assert topic.closing
    world.hold(topic.shard, False)
    assert world.find(path.target) is not topic


def _retire(world: World, path: Path) -> None:
    _ensure(world, path)
    request = CreateRequest(fork=ForkFrom(path.target))
    (answer,) = reported(lambda done: world.streams.create(READER, request, done))
    assert not isinstance(answer, TopicsError), answer
    _drop(world, path)


def _free(world: World, path: Path) -> None:
    """The last fork goes, and the data kept for it."""
    (answer,) = ask_drop(world.engine, READER)
    assert not isinstance(answer, TopicsError), answer
    world.engine.streams.tick()
    assert world.find(path.target) is None


def _outlive(world: World, path: Path) -> None:
    """The target is an expired stream that has not been swept out yet."""
    topic = _ensure(world, path)
    world.engine.streams.adopt(topic, StreamPart(JSON, expires_ms=world.clock.now_ms() + 1))
    world.engine.streams.watch_deadline(topic)
    world.clock.advance(1)


def _sweep(world: World, path: Path) -> None:
    world.engine.streams.tick()
    assert world.find(path.target) is None


def _configured(world: World, path: Path, **caps: object) -> None:
    config = world.topic(path.target).config
    kept = {
        "durability": config.durability, "lease_ms": config.lease_ms, "leases_durable": config.leases_durable,
        "max_deliveries": config.max_deliveries, "dead_letter": config.dead_letter,
    }  # fmt: skip
    put(world.engine, path.target, **{**kept, **caps})


def _fill(world: World, path: Path) -> None:
    topic = _ensure(world, path)
    # With less room than two records, a batch of two would be refused for another reason: it could never fit.
    while topic.live_count < 2:
        append(world.engine, path.target, "filler")
    _configured(world, path, cap_records=topic.live_count, discard=Discard.REJECT)


def _make_room(world: World, path: Path) -> None:
    _configured(world, path)


def _fill_server(world: World, path: Path) -> None:
    room = _QUOTA - world.engine.core.total_bytes - path.slack_bytes
    while room > 2:
        size = min(room, LARGEST)
        append(world.engine, BALLAST, "b" * (size - 2))
        room -= size


def _empty_server(world: World, path: Path) -> None:
    delete(world.engine, BALLAST)


def _guard(world: World, path: Path) -> None:
    guard: Guard = UnwillingGuard(world.engine)
    _ensure(world, path).guard = guard


def _unguard(world: World, path: Path) -> None:
    topic = world.topic(path.target)
    # A stream had a guard before: the streams' own.
    topic.guard = world.engine.streams if topic.parts is not None and "stream" in topic.parts else None


def _describe(world: World, path: Path) -> None:
    """From now on every record must contain its key, which no record of the tests does."""
    _ensure(world, path)
    _set_routing_key(world, path, {"jsonPointer": "/key", "required": True})


def _undescribe(world: World, path: Path) -> None:
    _set_routing_key(world, path, None)


def _set_routing_key(world: World, path: Path, key: object) -> None:
    body = msgspec.json.encode({"routingKey": key})
    (answer,) = reported(lambda done: world.streams.update_schema(path.target, body, done))
    assert not isinstance(answer, TopicsError), answer


def _bring(payload: str) -> Step:
    def step(world: World, path: Path) -> None:
        world.payload = payload

    return step


@dataclass(frozen=True)
class Refusal:
    place: Step
    lift: Step | None = None
    """None where nothing ever makes it go away."""
    takes: bool = False
    """Whether the target is gone with everything in it."""
    passes: Step | None = None
    """For an obstacle that passes by itself: lets it, so that waiting writers are answered."""
    max_total_bytes: int = 0
    passes_any_time: bool = False
    """Whether looking at the target may end it: then its end is not a change that the write made."""

    def blind(self, path: Path) -> frozenset[str]:
        """The parts of the books that are not compared."""
        taken = ("names", "bytes", f"topic {path.target}", f"jobs of {path.target}") if self.passes_any_time else ()
        return path.blind.union(taken)


REFUSALS: dict[str, Refusal] = {
    "closed": Refusal(_close),
    "gone": Refusal(_drop, lambda world, path: None, takes=True),
    "being deleted": Refusal(_begin_drop, lambda world, path: None, takes=True, passes=_finish_drop),
    "retired": Refusal(_retire, _free, takes=True),
    "over": Refusal(_outlive, _sweep, takes=True, passes_any_time=True),
    "full": Refusal(_fill, _make_room),
    "quota": Refusal(_fill_server, _empty_server, max_total_bytes=_QUOTA),
    "read-only": Refusal(lambda world, path: world.poison(path.shard_in(world)), lambda world, path: world.restart()),
    "this write fails": Refusal(
        lambda world, path: world.fail(path.shard_in(world)), lambda world, path: world.restart()
    ),
    "guard": Refusal(_guard, _unguard),
    "schema": Refusal(_describe, _undescribe),
    "shutting down": Refusal(lambda world, path: world.engine.close_inline(), lambda world, path: world.restart()),
    "record too large": Refusal(_bring(HUGE), _bring(SMALL)),
}
