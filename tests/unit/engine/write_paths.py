"""Every way to write something, as data: its preparation, its call, and the check of its effect.

`target` is the topic that an obstacle is put to. For a fork that is its source, for a forward and a dead letter the
destination, for a redrive the queue that takes the jobs back.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tests.unit.conftest import Answers, append, ask_delete, ask_drop, ask_put, batch_of, committers
from tests.unit.engine.writing_world import JSON, LARGEST, SMALL, World, reported
from tests.unit.queues.conftest import DEAD, JOBS, make_queue, produce
from tests.unit.routers.conftest import EXACTLY_ONCE, ask_route, route
from topics.consumers.consumer_state import consumers_of
from topics.engine.coalesce import DecodedAppends
from topics.engine.conditional_append import fence_of
from topics.engine.engine import Engine
from topics.model.errors import RouterNotFoundError, TopicsError
from topics.model.records import Record
from topics.queues.leases import (
    ClaimRequest,
    ClaimResult,
    ExtendRequest,
    HeldRequest,
    NackRequest,
    RedriveRequest,
)
from topics.queues.queue_state import find_queue
from topics.schedules.schedules import ScheduleWish
from topics.streams.append import AppendRequest
from topics.streams.lifecycle import CreateRequest, ForkFrom
from topics.streams.stream_frames import Producer
from topics.streams.stream_state import stream_of
from topics.transactions.transaction_state import BeginRequest, StageRequest, TransactionRef

TARGET, SOURCE, ROUTER, FORK = "target", "source", "source->target", "fork"
UPDATE = b'{"profile":{"kind":"state-protocol"}}'
LONG = "y" * (LARGEST - 2)
"""The longest payload for a record: provenance added by the server makes it longer."""


class Held(msgspec.Struct, frozen=True):
    """The outcome of a write without a waiting client: the code of the obstacle, or "" where nothing reports one."""

    code: str


@dataclass(frozen=True)
class Path:
    target: str
    prepare: Callable[[World], None]
    """Also called to recreate a resource that an obstacle took away."""
    call: Callable[[World], Answers]
    done: Callable[[World], bool]
    """Whether the write is to be seen."""
    again: Callable[[World], Answers] | None = None
    """The way to retry it; None repeats the same call."""
    shard: Callable[[World], int] | None = None
    """The shard whose log it needs; None is the target's shard."""
    blind: frozenset[str] = frozenset()
    """The books that change although the write is refused."""
    slack_bytes: int = 0
    """The room that a full server must have left for the write to come as far as the target."""

    def shard_in(self, world: World) -> int:
        return world.topic(self.target).shard if self.shard is None else self.shard(world)

    def try_again(self, world: World) -> Answers:
        return self.call(world) if self.again is None else self.again(world)


# Appends


def _log(world: World) -> None:
    world.make(TARGET)
    append(world.engine, TARGET, "old")


def _log_and_source(world: World) -> None:
    _log(world)
    world.make(SOURCE)


def _batch(world: World, key: str | None = None) -> Answers:
    batch = batch_of("first", world.payload, create=False, key=key)
    return reported(lambda done: world.engine.append(TARGET, batch, done))


def _conditional(world: World) -> Answers:
    batch = msgspec.structs.replace(batch_of(world.payload, create=False), fence="", new_fence="w")
    return reported(lambda done: world.engine.append(TARGET, batch, done))


def _gathering(world: World) -> None:
    for committer in committers(world.engine):
        committer.coalesces = True


def _plain(world: World) -> None:
    """The engine knows by an earlier record that single ones may be gathered here."""
    _gathering(world)
    _log(world)


def _lone(world: World, key: str | None = None) -> Answers:
    _gathering(world)
    return reported(lambda done: world.engine.append(TARGET, batch_of(world.payload, create=False, key=key), done))


class _Source:
    """One request that is decoded at the end of the tick, as the API does it."""

    def __init__(self, world: World, key: str | None) -> None:
        self._world = world
        self._key = key
        self.answers: Answers = []

    def decode(self, callers: list[object]) -> DecodedAppends:
        return DecodedAppends([Record.of(self._world.payload)], None if self._key is None else [self._key])

    def handle_each(self, callers: list[object]) -> None:
        try:
            batch = batch_of(self._world.payload, create=False, key=self._key)
            self._world.engine.append(TARGET, batch, self.answers.append)
        except TopicsError as error:
            self.answers.append(error)

    def answer(self, callers: list[object], outcome: object) -> None:
        assert callers == ["caller"]
        self.answers.append(outcome)


def _deferred(world: World, key: str | None = None) -> Answers:
    _gathering(world)
    source = _Source(world, key)
    if not world.engine.append_requests(TARGET, ["caller"], source):
        source.handle_each(["caller"])
    return source.answers


def _has_new(world: World) -> bool:
    return "new" in world.values(TARGET)


# Consumers


def _log_with_consumer(world: World) -> None:
    _log(world)
    topic = world.topic(TARGET)
    (answer,) = reported(lambda done: world.engine.consumers.put(topic, "c", 0, "key", done))
    assert not isinstance(answer, TopicsError), answer


def _committed(world: World) -> int | None:
    topic = world.find(TARGET)
    consumers = consumers_of(topic) if topic is not None else None
    mark = consumers.marks.get("c") if consumers is not None else None
    return None if mark is None else mark.seq


# Schedules


def _log_with_schedule(world: World) -> None:
    _log(world)
    wish = ScheduleWish(topic=TARGET, every_ms=60_000)
    (answer,) = reported(lambda done: world.engine.schedules.put("s", wish, "key", done))
    assert not isinstance(answer, TopicsError), answer


# Streams


def _post(world: World, **request: object) -> Answers:
    requested = AppendRequest(**request)  # type: ignore[arg-type]
    return reported(lambda done: world.streams.append(TARGET, requested, done))


def _json(world: World) -> bytes:
    return msgspec.json.encode(["first", world.payload])


def _is_closed(world: World) -> bool:
    topic = world.find(TARGET)
    state = stream_of(topic) if topic is not None else None
    return state is not None and state.closed


def _is_updated(world: World) -> bool:
    topic = world.find(TARGET)
    state = stream_of(topic) if topic is not None else None
    description = state.description if state is not None else None
    return description is not None and description.contract.profile.kind == "state-protocol"


def _fork(world: World, body: bytes) -> Answers:
    request = CreateRequest(fork=ForkFrom(SOURCE), body=body)
    return reported(lambda done: world.streams.create(FORK, request, done))


def _next_shard(world: World) -> int:
    core = world.engine.core
    return core.shard_number(core.next_topic_id)


# Copies and moves


def _route(world: World) -> None:
    world.make(SOURCE, 1)
    world.make(TARGET)
    append(world.engine, TARGET, "old")
    if ROUTER not in [info.router for info in world.engine.list_routers()]:
        route(world.engine, SOURCE, TARGET, guarantee=EXACTLY_ONCE)


def _forward(world: World) -> Answers:
    payload = LONG if world.payload == SMALL else world.payload
    (answer,) = reported(lambda done: world.engine.append(SOURCE, batch_of(payload), done))
    return [answer] if isinstance(answer, TopicsError) else _router_says(world)


def _router_says(world: World) -> Answers:
    try:
        info = world.engine.router(ROUTER)
    except RouterNotFoundError as error:
        return [error]
    return [info] if not info.lag else [Held(info.blocked_by)]


def _forward_on(world: World) -> Answers:
    """Pending records are forwarded as soon as possible; a second later at the latest."""
    if LONG not in world.values(SOURCE):
        return _forward(world)
    world.engine.routing.pump.retry()
    return _router_says(world)


def _has_long(name: str) -> Callable[[World], bool]:
    return lambda world: LONG in world.values(name)


def _dying(apart: bool) -> Callable[[World], None]:
    """A job that was delivered too often: the next claim finds it and moves it to the dead letters."""

    def prepare(world: World) -> None:
        world.make(DEAD)
        if world.find(JOBS) is None:
            world.come_to(1 if apart else 0)
            make_queue(world.engine, max_deliveries=1, dead_letter=DEAD, lease_ms=100, leases_durable=apart)
        produce(world.engine, LONG)
        _claim_job(world)
        world.clock.advance(1000)

    return prepare


def _claim_job(world: World) -> Answers:
    return reported(lambda done: world.engine.queues.claim(JOBS, ClaimRequest(node="a", max=10), done))


def _bury(world: World) -> Answers:
    world.warnings.take()
    (answer,) = _claim_job(world)
    if isinstance(answer, TopicsError):
        return [answer]
    errors = world.warnings.take()
    return [Held(_code_of(errors[-1]))] if errors else [answer]


def _bury_again(world: World) -> Answers:
    """The next tries: without durable leases the job has to be delivered once more first."""
    for _ in range(3):
        world.clock.advance(2000)
        answers = _bury(world)
        if _has_long(DEAD)(world):
            break
    return answers


_SAYS = {
    "is closed": "stream_closed",
    "does not exist": "topic_not_found",
    "was deleted, and forks": "stream_gone",
    "is full": "topic_full",
    "is read-only": "read_only",
    "is unwilling": "unwilling",
    "is reached": "throttled",
    "the routing key": "invalid_request",
}


def _code_of(message: str) -> str:
    return next((code for words, code in _SAYS.items() if words in message), message)


def _buried(apart: bool) -> Callable[[World], None]:
    def prepare(world: World) -> None:
        world.make(DEAD, 1 if apart else 0)
        if world.find(JOBS) is None:
            world.come_to(0)
            make_queue(world.engine, max_deliveries=1, dead_letter=DEAD, lease_ms=100)
        produce(world.engine, LONG)
        _claim_job(world)
        world.clock.advance(1000)
        _claim_job(world)
        assert LONG in world.values(DEAD)

    return prepare


def _redrive(world: World) -> Answers:
    return reported(lambda done: world.engine.queues.redrive(JOBS, RedriveRequest(max=1), done))


# Transactions


def _begun(books: int, staged: bool) -> Callable[[World], None]:
    """A transaction whose books are in a shard; the target is in shard 0."""

    def prepare(world: World) -> None:
        _log(world)
        world.come_to(books)
        request = BeginRequest(id=TRANSACTION, sequence=1)
        (begun,) = reported(lambda done: world.engine.transactions.begin(request, _anywhere, done))
        assert not isinstance(begun, TopicsError), begun
        if staged:
            (answer,) = _stage(world)
            assert not isinstance(answer, TopicsError), answer

    return prepare


def _stage(world: World) -> Answers:
    records = [Record.of("first"), Record.of(world.payload)]
    request = StageRequest(ref=_REF, topic=TARGET, records=records, part="p", create=False)
    return reported(lambda done: world.engine.transactions.stage(request, done))


def _is_staged(world: World) -> bool:
    return bool(world.engine.transactions.table.open[TRANSACTION].parts)


def _commit(world: World) -> Answers:
    return reported(lambda done: world.engine.transactions.commit(_REF, None, _anywhere, done))


def _anywhere(name: str) -> None: ...


TRANSACTION = "t"
_REF = TransactionRef(id=TRANSACTION, sequence=1)


# Jobs


def _jobs(claimed: bool) -> Callable[[World], None]:
    def prepare(world: World) -> None:
        if world.find(JOBS) is None:
            world.come_to(0)
            make_queue(world.engine, lease_ms=1000, leases_durable=True)
        produce(world.engine, "one", "two")
        if claimed:
            (answer,) = reported(lambda done: world.engine.queues.claim(JOBS, ClaimRequest(node="a", max=1), done))
            assert isinstance(answer, ClaimResult)

    return prepare


def _held(world: World) -> dict[int, int]:
    """The claimed jobs, and the ends of their leases."""
    topic = world.find(JOBS)
    queue = find_queue(topic) if topic is not None else None
    return {lease.seq: lease.deadline for lease in queue.lease_table.leases.values()} if queue is not None else {}


def _ask_held(world: World, verb: str) -> Answers:
    queues, seqs = world.engine.queues, list(_held(world)) or [1]
    if verb == "ack":
        return reported(lambda done: queues.ack(JOBS, HeldRequest(node="a", seqs=seqs), done))
    if verb == "nack":
        return reported(lambda done: queues.nack(JOBS, NackRequest(node="a", seqs=seqs), done))
    return reported(lambda done: queues.extend(JOBS, ExtendRequest(node="a", seqs=seqs, lease_ms=50_000), done))


def _change_job(world: World, verb: str) -> Answers:
    return reported(lambda done: world.engine.queues.change_job(JOBS, 1, verb, done))


def _delayed_job(world: World) -> None:
    _jobs(claimed=True)(world)
    reported(lambda done: world.engine.queues.nack(JOBS, NackRequest(node="a", seqs=[1], delay_ms=50_000), done))


def _ready(world: World) -> bool:
    topic = world.find(JOBS)
    queue = find_queue(topic) if topic is not None else None
    return queue is not None and not queue.lease_table.delayed


def _paused(world: World) -> bool:
    topic = world.find(JOBS)
    queue = find_queue(topic) if topic is not None else None
    return queue is not None and queue.paused


def _ask_gathered_ack(world: World) -> Answers:
    _gathering(world)
    return _ask_held(world, "ack")


def _given_back(world: World) -> bool:
    return world.find(JOBS) is not None and not _held(world) and world.topic(JOBS).live_count >= 2


def _extended(world: World) -> bool:
    return any(deadline > world.clock.now_ms() + 10_000 for deadline in _held(world).values())


_QUEUE_CHANGES = frozenset((f"jobs of {JOBS}",))

PATHS: dict[str, Path] = {
    "append of a batch": Path(TARGET, _log, _batch, _has_new),
    "lone append": Path(TARGET, _plain, _lone, _has_new),
    "deferred append": Path(TARGET, _plain, _deferred, _has_new),
    "deferred keyed append": Path(TARGET, _plain, lambda world: _deferred(world, "k"), _has_new),
    "lone keyed append": Path(TARGET, _plain, lambda world: _lone(world, "k"), _has_new),
    "keyed append": Path(TARGET, _log, lambda world: _batch(world, "k"), _has_new),
    "conditional append": Path(TARGET, _log, _conditional, _has_new),
    "set a fence": Path(
        TARGET,
        _log,
        lambda world: reported(lambda done: world.engine.fences.set(world.engine.existing(TARGET), "w", "", done)),
        lambda world: (topic := world.find(TARGET)) is not None and fence_of(topic) == "w",
    ),
    "append that makes its topic": Path(
        TARGET,
        lambda world: None,
        lambda world: reported(lambda done: world.engine.append(TARGET, batch_of("first", world.payload), done)),
        _has_new,
        shard=_next_shard,
    ),
    "append to a stream": Path(
        TARGET,
        lambda world: world.make_stream(TARGET),
        lambda world: _post(world, body=_json(world), content_type=JSON),
        _has_new,
    ),
    "append by a producer": Path(
        TARGET,
        lambda world: world.make_stream(TARGET),
        lambda world: _post(world, body=_json(world), content_type=JSON, producer=Producer("p", 1, 0)),
        _has_new,
    ),
    "append that closes": Path(
        TARGET,
        lambda world: world.make_stream(TARGET),
        lambda world: _post(world, body=_json(world), content_type=JSON, close=True),
        lambda world: _has_new(world) and _is_closed(world),
    ),
    "close": Path(TARGET, lambda world: world.make_stream(TARGET), lambda world: _post(world, close=True), _is_closed),
    "update of a profile": Path(
        TARGET,
        lambda world: world.make_stream(TARGET),
        lambda world: reported(lambda done: world.streams.update_profile(TARGET, UPDATE, done)),
        _is_updated,
    ),
    "fork": Path(
        SOURCE,
        lambda world: world.make_stream(SOURCE),
        lambda world: _fork(world, b""),
        lambda world: world.find(FORK) is not None,
        shard=_next_shard,
    ),
    "fork with first records": Path(
        SOURCE,
        lambda world: world.make_stream(SOURCE),
        lambda world: _fork(world, _json(world)),
        lambda world: world.find(FORK) is not None,
        shard=_next_shard,
    ),
    "create a stream with a body": Path(
        TARGET,
        lambda world: None,
        lambda world: reported(
            lambda done: world.streams.create(TARGET, CreateRequest(content_type=JSON, body=_json(world)), done)
        ),
        lambda world: world.find(TARGET) is not None,
        shard=_next_shard,
    ),
    "forward": Path(
        TARGET,
        _route,
        _forward,
        _has_long(TARGET),
        again=_forward_on,
        blind=frozenset((f"topic {SOURCE}", "bytes")),
        slack_bytes=LARGEST,
    ),
    "dead letter, one shard": Path(
        DEAD, _dying(apart=False), _bury, _has_long(DEAD), again=_bury_again, blind=_QUEUE_CHANGES
    ),
    "dead letter, two shards": Path(
        DEAD, _dying(apart=True), _bury, _has_long(DEAD), again=_bury_again, blind=_QUEUE_CHANGES
    ),
    "redrive, one shard": Path(JOBS, _buried(apart=False), _redrive, _has_long(JOBS)),
    "redrive, two shards": Path(JOBS, _buried(apart=True), _redrive, _has_long(JOBS)),
    "redrive, its source": Path(DEAD, _buried(apart=True), _redrive, _has_long(JOBS)),
    "stage for a transaction": Path(TARGET, _begun(books=0, staged=False), _stage, _is_staged),
    "commit, one shard": Path(TARGET, _begun(books=0, staged=True), _commit, _has_new),
    "commit, two shards": Path(TARGET, _begun(books=1, staged=True), _commit, _has_new),
    "commit, its books": Path(TARGET, _begun(books=1, staged=True), _commit, _has_new, shard=lambda world: 1),
    "ack": Path(
        JOBS, _jobs(claimed=True), lambda world: _ask_held(world, "ack"), lambda world: "one" not in world.values(JOBS)
    ),
    "ack, gathered": Path(JOBS, _jobs(claimed=True), _ask_gathered_ack, lambda world: "one" not in world.values(JOBS)),
    "nack": Path(JOBS, _jobs(claimed=True), lambda world: _ask_held(world, "nack"), _given_back),
    "extend": Path(JOBS, _jobs(claimed=True), lambda world: _ask_held(world, "extend"), _extended),
    "cancel a job": Path(
        JOBS,
        _jobs(claimed=True),
        lambda world: _change_job(world, "cancel"),
        lambda world: "one" not in world.values(JOBS),
    ),
    "release a job": Path(JOBS, _jobs(claimed=True), lambda world: _change_job(world, "release"), _given_back),
    "promote a job": Path(JOBS, _delayed_job, lambda world: _change_job(world, "promote"), _ready),
    "pause": Path(
        JOBS,
        _jobs(claimed=True),
        lambda world: reported(lambda done: world.engine.queues.pause(JOBS, True, done)),
        _paused,
    ),
    "claim": Path(JOBS, _jobs(claimed=False), _claim_job, lambda world: bool(_held(world))),
    "create a consumer": Path(
        TARGET,
        _log,
        lambda world: reported(
            lambda done: world.engine.consumers.put(world.engine.existing(TARGET), "c", 1, "key", done)
        ),
        lambda world: _committed(world) == 1,
    ),
    "commit": Path(
        TARGET,
        _log_with_consumer,
        lambda world: reported(
            lambda done: world.engine.consumers.commit(world.engine.existing(TARGET), "c", 1, "key", done)
        ),
        lambda world: _committed(world) == 1,
    ),
    "delete a consumer": Path(
        TARGET,
        _log_with_consumer,
        lambda world: reported(lambda done: world.engine.consumers.delete(world.engine.existing(TARGET), "c", done)),
        lambda world: world.find(TARGET) is not None and _committed(world) is None,
    ),
    "create a schedule": Path(
        TARGET,
        _log,
        lambda world: reported(
            lambda done: world.engine.schedules.put("s", ScheduleWish(topic=TARGET, every_ms=60_000), "key", done)
        ),
        lambda world: world.engine.schedules.count == 1,
    ),
    "delete a schedule": Path(
        TARGET,
        _log_with_schedule,
        lambda world: reported(lambda done: world.engine.schedules.delete("s", done)),
        lambda world: world.engine.schedules.count == 0,
    ),
    "delete records": Path(
        TARGET, _log, lambda world: ask(ask_delete, world.engine, TARGET), lambda world: not world.values(TARGET)
    ),
    "change the config": Path(
        TARGET,
        _log,
        lambda world: ask(ask_put, world.engine, TARGET, ttl_ms=10**9),
        lambda world: world.find(TARGET) is not None and world.topic(TARGET).config.ttl_ms == 10**9,
    ),
    "make a topic": Path(
        TARGET,
        lambda world: None,
        lambda world: ask(ask_put, world.engine, TARGET),
        lambda world: world.find(TARGET) is not None,
        shard=_next_shard,
    ),
    "put a router": Path(
        TARGET,
        _log_and_source,
        lambda world: ask(ask_route, world.engine, SOURCE, TARGET, create_dest=False),
        lambda world: ROUTER in [info.router for info in world.engine.list_routers()],
    ),
    "drop": Path(
        TARGET, _log, lambda world: ask(ask_drop, world.engine, TARGET), lambda world: TARGET not in visible(world)
    ),
}


def ask(asked: Callable[..., Answers], engine: Engine, *given: object, **more: object) -> Answers:
    try:
        return asked(engine, *given, **more)
    except TopicsError as error:
        return [error]


def visible(world: World) -> list[str]:
    return [info.topic for info in world.engine.list_topics(limit=1000)]
