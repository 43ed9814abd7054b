"""Everything about routers behind one object, for the engine."""

from collections.abc import Callable, Iterable

from topics.core.errors import RouterNotFoundError
from topics.core.routers import RouterWish
from topics.engine.background import Background
from topics.engine.core import EngineCore
from topics.engine.routing.control import PutDone, RemoveDone, RouterController, RouterInfo, info_of
from topics.engine.routing.forwarding import Forwarder
from topics.engine.routing.pump import Pump
from topics.engine.routing.registry import Registry, Router, part_of
from topics.engine.routing.replaying import RouterFeature
from topics.engine.topic import Topic
from topics.engine.write.control import Controller


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
        core.turned.append(self._turned)
        core.applier.before_caps.append(self.pump.hold)
        core.detach.append(self._dropped)

    def put(self, name: str, wish: RouterWish, done: PutDone) -> None:
        self._controller.put(name, wish, done)

    def remove(self, name: str, done: RemoveDone) -> None:
        self._controller.remove(name, done)

    def info(self, name: str) -> RouterInfo:
        router = self.router(name)
        self.catch_up([router])
        return info_of(router)

    def catch_up(self, routers: Iterable[Router]) -> None:
        """Forwards what is left to forward before somebody looks at routers."""
        self.pump.catch_up([router.dest for router in routers if router.dest is not None])

    def router(self, name: str) -> Router:
        router = self.registry.by_name.get(name)
        if router is None:
            raise RouterNotFoundError(name)
        return router

    def listed(self, prefix: str, after: str, limit: int, wanted: Callable[[RouterInfo], bool]) -> list[RouterInfo]:
        """Routers in the order of their names, those behind `after`."""
        found: list[Router] = []
        for name in self.registry.names_from(prefix, after):
            if len(found) == limit:
                break
            router = self.registry.by_name[name]
            if wanted(info_of(router)):
                found.append(router)
        self.catch_up(found)
        return [info_of(router) for router in found]

    def kick(self) -> None:
        """After a start: every source is watched, and whatever its routers have not forwarded yet is due."""
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
