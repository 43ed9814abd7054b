"""Routers: create, change, delete and list them, for the engine."""

from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from topics.engine.background_jobs import Background
from topics.engine.core import EngineCore
from topics.engine.topic import Topic
from topics.engine.topic_admin import Controller, wait_while_in_motion
from topics.engine.write_path import Change, FrameDraft, Gate
from topics.log.frame import FrameKind
from topics.model.errors import (
    InvalidRequestError,
    RouterCycleError,
    RouterNotFoundError,
    ThrottledError,
    TopicExistsIncompatibleError,
    TopicNotFoundError,
    TopicsError,
    quoted,
)
from topics.model.router_rules import RouterRules, RouterWish, check_router_name
from topics.model.topic_config import TopicConfigPatch, check_topic_name
from topics.routers.forwarding import Forwarder
from topics.routers.pump import Pump
from topics.routers.registry import Registry, Router, part_of
from topics.routers.replaying import RouterFeature
from topics.routers.router_frames import RouterState, encode_router, encode_unroute
from topics.streams.stream_state import check_visible

# Creation, change and deletion of routers.
#
# Changes are serialized: each is decided on the result of the previous one, so names, cycles and fan-in are checked
# against committed state and not against changes that may still fail. As for topics, a change is synced before it takes
# effect.


class RouterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a router in answers."""

    router: str
    source: str
    dest: str
    rules: RouterRules
    forwarded_total: int
    cursor: int
    lag: int
    """The lag: the number of source seqs after its cursor."""
    blocked: bool
    blocked_by: str = ""
    """The error code of an append to the destination, which blocks the router; empty if it is not blocked."""
    blocked_seq: int = 0
    """With `schema`: the source record that the destination refuses."""


class RouterPutResult(msgspec.Struct, frozen=True):
    info: RouterInfo
    created: bool


class RouterRemoveResult(msgspec.Struct, frozen=True):
    router: str
    deleted: bool


PutDone = Callable[[RouterPutResult | TopicsError], None]
RemoveDone = Callable[[RouterRemoveResult | TopicsError], None]
Finish = Callable[[object], None]
Begin = Callable[[], None]


def info_of(router: Router) -> RouterInfo:
    assert router.dest is not None
    return RouterInfo(
        router=router.name, source=router.source.name, dest=router.dest.name, rules=router.rules,
        forwarded_total=router.forwarded, cursor=router.cursor, lag=max(router.source.head - router.cursor, 0),
        blocked=router.blocked,
        blocked_by=router.blocked_by,
        blocked_seq=router.blocked_seq,
    )  # fmt: skip


class RouterController:
    def __init__(self, core: EngineCore, registry: Registry, pump: Pump, topics: Controller) -> None:
        self._core = core
        self._registry = registry
        self._pump = pump
        self._topics = topics
        self._waiting: deque[tuple[Begin, Callable[[TopicsError], None]]] = deque()
        self._busy = False

    def put(self, name: str, wish: RouterWish, done: PutDone) -> None:
        """Creates or changes a router."""
        self._core.check_accepting()
        check_router_name(name)
        check_topic_name(wish.source)
        check_topic_name(wish.dest)
        if wish.source == wish.dest:
            raise InvalidRequestError("dest: must be another topic than source", field="dest")
        finish = self._finishing(done)
        self._in_turn(lambda: self._put(name, wish, finish), finish)

    def remove(self, name: str, done: RemoveDone) -> None:
        """Deletes a router. Its copies stay where they are."""
        self._core.check_accepting()
        finish = self._finishing(done)
        self._in_turn(lambda: self._remove(name, finish), finish)

    # One at a time

    def _in_turn(self, begin: Begin, fail: Callable[[TopicsError], None]) -> None:
        if self._busy:
            self._waiting.append((begin, fail))
            return
        self._busy = True
        try:
            begin()
        except TopicsError:
            self._next()
            raise

    def _finishing(self, done: Callable[..., None]) -> Finish:
        def finish(outcome: object) -> None:
            # The next change starts after the answer, even if the answer's callback requests another change.
            try:
                done(outcome)
            finally:
                self._next()

        return finish

    def _next(self) -> None:
        self._busy = False
        if self._waiting:
            begin, fail = self._waiting.popleft()
            self._busy = True
            self._try(begin, fail)

    @staticmethod
    def _try(begin: Begin, fail: Callable[[TopicsError], None]) -> None:
        try:
            begin()
        except TopicsError as error:
            fail(error)

    # Create and change

    def _put(self, name: str, wish: RouterWish, finish: Finish) -> None:
        """Checks the request, then creates missing topics one at a time, and repeats the checks after each."""
        core = self._core
        core.check_accepting()
        again: Begin = lambda: self._try(lambda: self._put(name, wish, finish), finish)  # noqa: E731
        source, dest = core.directory.find(wish.source), core.directory.find(wish.dest)
        for topic in (source, dest):
            if topic is not None and wait_while_in_motion(core, topic, again, finish):
                return
        router = self._registry.by_name.get(name)
        if router is not None:
            self._change(router, wish, finish)
            return
        self._check_streams(source, dest)
        self._check_new(name, wish, source, dest)
        if source is None:
            self._make(wish.source, again, finish)
        elif dest is None:
            self._make(wish.dest, again, finish)
        else:
            self._create(name, wish, source, dest, finish)

    def _make(self, name: str, again: Begin, finish: Finish) -> None:
        def made(outcome: object) -> None:
            if isinstance(outcome, TopicsError):
                finish(outcome)
            else:
                again()

        self._topics.put(name, TopicConfigPatch(), made)

    @staticmethod
    def _check_streams(source: Topic | None, dest: Topic | None) -> None:
        """Refuses expired and closed streams: a closed stream never accepts a copy."""
        for topic in (source, dest):
            if topic is not None:
                check_visible(topic, topic.name)
        if dest is not None and dest.guard is not None:
            dest.guard.check_append(dest)

    def _check_new(self, name: str, wish: RouterWish, source: Topic | None, dest: Topic | None) -> None:
        limits = self._core.limits
        if limits.max_routers and len(self._registry.by_name) >= limits.max_routers:
            raise ThrottledError.over_cap("max_routers", limits.max_routers)
        self._core.quotas.check_router(name, self._registry.by_name)
        if dest is None and not wish.create_dest:
            raise TopicNotFoundError(wish.dest)
        if dest is not None:
            other = self._registry.source_of(dest)
            if other is not None and other is not source:
                raise TopicExistsIncompatibleError(
                    f"topic {quoted(dest.name)} is forwarded into from {quoted(other.name)} already; "
                    "a destination has one source",
                    reason="router_dest_fan_in", dest=dest.name, source=other.name,
                )  # fmt: skip
        if source is not None and dest is not None:
            self._check_cycle(wish, source, dest)
        head = source.staged_head if source is not None else 0
        if wish.from_seq is not None and wish.from_seq > head:
            raise InvalidRequestError(f"from_seq: the source's head is {head}", field="from_seq", head_seq=head)
        missing = (source is None) + (dest is None)
        if missing and limits.max_topics and self._core.name_count + missing > limits.max_topics:
            # Before either topic is created: a refused router leaves no topics behind.
            raise ThrottledError.over_cap("max_topics", limits.max_topics)
        ends = ((wish.source, source), (wish.dest, dest))
        self._core.quotas.check_topics(*(end for end, there in ends if there is None))

    def _check_cycle(self, wish: RouterWish, source: Topic, dest: Topic) -> None:
        if wish.rules.allow_cycle:
            return
        way = self._registry.path(dest, source)
        if way is not None:
            raise RouterCycleError([source.name, *(topic.name for topic in way)])

    def _create(self, name: str, wish: RouterWish, source: Topic, dest: Topic, finish: Finish) -> None:
        core, rules = self._core, wish.rules
        core.path.check(source)
        core.expire(source)
        head = source.staged_head
        # Records that were removed before the router was created do not count as lost.
        cursor = head if wish.from_seq is None else min(max(wish.from_seq, source.earliest - 1), head)
        dedupe_upto = head if rules.exactly_once and cursor < head and dest.live_count else 0
        state = _state(self._fresh_id(source), name, dest, rules, cursor, 0, core.wall(), dedupe_upto)

        def apply() -> object:
            if not core.exists(dest):
                return TopicNotFoundError(dest.name)
            router = Router(state, source)
            self._registry.add(router, dest)
            self._pump.watch(source)
            self._pump.due(router)
            return RouterPutResult(info_of(router), True)

        self._log(source, (FrameKind.ROUTER, encode_router(state), b""), apply, finish)

    def _fresh_id(self, source: Topic) -> int:
        """An unused router id of the source: forwards in the log refer to their router by it."""
        part = part_of(source)
        while True:
            router_id = int.from_bytes(self._core.entropy.token(8), "little")
            if part is None or router_id not in part.routers:
                return router_id

    def _change(self, router: Router, wish: RouterWish, finish: Finish) -> None:
        core, source, dest = self._core, router.source, router.dest
        assert dest is not None
        if (source.name, dest.name) != (wish.source, wish.dest):
            raise TopicExistsIncompatibleError(
                f"router {quoted(router.name)} goes from {quoted(source.name)} to {quoted(dest.name)}; "
                "delete it to let it go elsewhere",
                reason="router_repoint_forbidden", router=router.name, source=source.name, dest=dest.name,
            )  # fmt: skip
        self._check_cycle(wish, source, dest)
        if wish.rules == router.rules:
            finish(RouterPutResult(info_of(router), False))
            return
        core.path.check(source)
        if router.inflight:
            # Operations in flight follow the old rules, and their frames belong before this one.
            router.when_idle = lambda: self._try(lambda: self._change_again(router.name, wish, finish), finish)
            return
        # Includes the cursor: records that the old rules skipped must not be evaluated again with the new ones.
        state = _state(
            router.id, router.name, dest, wish.rules, router.cursor, 0, router.created_ts, router.dedupe_upto
        )
        router.inflight = True

        def apply() -> object:
            router.inflight = False
            if router.closing:
                return RouterNotFoundError(router.name)
            self._registry.change(router, wish.rules)
            self._pump.due(router)
            return RouterPutResult(info_of(router), False)

        def undo() -> None:
            router.inflight = False

        self._log(source, (FrameKind.ROUTER, encode_router(state), b""), apply, finish, undo)

    def _change_again(self, name: str, wish: RouterWish, finish: Finish) -> None:
        self._put(name, wish, finish)

    # Delete

    def _remove(self, name: str, finish: Finish) -> None:
        core, router = self._core, self._registry.by_name.get(name)
        core.check_accepting()
        if router is None:
            finish(RouterRemoveResult(name, False))
            return
        again: Begin = lambda: self._try(lambda: self._remove(name, finish), finish)  # noqa: E731
        source = router.source
        if source.closing:
            source.notify_on_delete(again)
            return
        # Reset, because a second attempt may be refused.
        router.closing = False
        core.path.check(source, frees=True)
        router.closing = True
        if router.inflight:
            # Answered once none of its forwards can be published any more.
            router.when_idle = again
            return

        def apply() -> object:
            if self._registry.by_name.get(name) is router:
                self._registry.remove(router)
            return RouterRemoveResult(name, True)

        def undo() -> None:
            router.closing = False

        self._log(source, (FrameKind.UNROUTE, encode_unroute(router.id), b""), apply, finish, undo)

    def _log(
        self, source: Topic, frame: FrameDraft, apply: Callable[[], object], finish: Finish,
        undo: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Logs a change of a source's routers."""

        def failed(error: TopicsError) -> None:
            undo()
            finish(error)

        path = self._core.path
        path.log(Change(path, source, (frame,), lambda timing: finish(apply()), failed), Gate.SYNC)


def _state(
    router_id: int,
    name: str,
    dest: Topic,
    rules: RouterRules,
    cursor: int,
    forwarded: int,
    created_ts: int,
    dedupe_upto: int,
) -> RouterState:
    return RouterState(
        router_id, name, dest.id, rules.preserve_node, rules.preserve_tag,
        None if rules.filter is None else rules.filter.pattern, rules.filter is not None and rules.filter.prefix,
        rules.allow_cycle, rules.exactly_once, cursor, forwarded, created_ts, dedupe_upto,
    )  # fmt: skip


class Routing:
    def __init__(
        self,
        core: EngineCore,
        topics: Controller,
        background: Background,
    ) -> None:
        self._core = core
        self.registry = Registry(core)
        self.pump = Pump(core, self.registry, Forwarder(core), background)
        self._controller = RouterController(core, self.registry, self.pump, topics)
        core.features.add(RouterFeature(core, self.registry))
        core.shard_rotated.subscribe(self._turned)
        core.applier.before_caps.subscribe(self.pump.hold)
        core.detach_routers = self._dropped
        core.pager.destinations = self.registry.into

    def put(self, name: str, wish: RouterWish, done: PutDone) -> None:
        self._controller.put(name, wish, done)

    def remove(self, name: str, done: RemoveDone) -> None:
        self._controller.remove(name, done)

    def info(self, name: str) -> RouterInfo:
        router = self.router(name)
        self.catch_up([router])
        return info_of(router)

    def catch_up(self, routers: Iterable[Router]) -> None:
        """Forwards pending records before routers are read."""
        self.pump.catch_up([router.dest for router in routers if router.dest is not None])

    def router(self, name: str) -> Router:
        router = self.registry.by_name.get(name)
        if router is None:
            raise RouterNotFoundError(name)
        return router

    def listed(self, prefix: str, after: str, limit: int, matches: Callable[[RouterInfo], bool]) -> list[RouterInfo]:
        """Routers in the order of their names, beginning after `after`."""
        found: list[Router] = []
        for name in self.registry.names_from(prefix, after):
            if len(found) == limit:
                break
            router = self.registry.by_name[name]
            if matches(info_of(router)):
                found.append(router)
        self.catch_up(found)
        return [info_of(router) for router in found]

    def kick(self) -> None:
        """Starts the pump: watches every source and marks its routers as due."""
        for router in list(self.registry.by_name.values()):
            self.pump.watch(router.source)
            self.pump.due(router)

    def _turned(self, shard: int) -> None:
        for router in self.registry.by_name.values():
            part = part_of(router.source)
            if part is not None and router.source.shard == shard:
                part.wal_floor = router.source.head

    def _dropped(self, topic: Topic) -> list[str]:
        core, names = self._core, []
        for router in self.registry.touching(topic):
            if router.source is not topic:
                core.before_change(router.source)
            self.registry.remove(router)
            names.append(router.name)
        return names
