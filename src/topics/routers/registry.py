"""Router registry: all routers by name, by source and by destination, and as part of the source's state.

A router belongs to its source. Its definition and its cursor are the source's part "routers", so they are captured,
saved and dropped with it. The destination is stored by its topic id: ids are never reused, so a router whose
destination was deleted is always detected, and is removed when found.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from topics.engine.core import EngineCore
from topics.engine.topic import Block, Topic
from topics.model.router_rules import Guarantee, RouterRules, Stamp, TagMatch
from topics.routers.router_frames import RoutersState, RouterState, SeqRange

PART = "routers"
_LEVELS_MAX = 16
"""The maximum number of upstream routers that a read follows."""
Hops = tuple[int, int, int]


class Router:
    __slots__ = (
        "alone", "blocked", "blocked_by", "blocked_seq", "closing", "created_ts", "cursor", "cyclic", "dedupe_upto",
        "dest", "dest_id", "due", "forwarded", "id", "inflight", "listening", "name", "present", "rules", "source",
        "when_idle",
    )  # fmt: skip

    def __init__(self, state: RouterState, source: Topic) -> None:
        self.id = state.router_id
        self.name = state.name
        self.source = source
        self.dest_id = state.dest_id
        self.dest: Topic | None = None
        """The destination; None only while recovery has not read it yet."""
        self.alone = True
        """Whether it is the only router into its destination."""
        self.rules = rules_of(state)
        self.cursor = state.cursor
        """Every source record up to here was forwarded, filtered out, or reported as lost."""
        self.forwarded = state.forwarded
        self.created_ts = state.created_ts
        self.dedupe_upto = state.dedupe_upto
        """Records up to here may have been copied by an earlier router of this name."""
        self.present: list[SeqRange] | None = None
        """The seqs of these copies; None before the search."""
        self.cyclic = False
        """Whether it is part of a cycle, so that hops are counted."""
        self.due = False
        self.inflight = False
        self.blocked = False
        """Whether its destination has no room; it continues when the destination changes."""
        self.blocked_by = ""
        """The error code of an append in its place; `schema` if a record is refused for its content."""
        self.blocked_seq = 0
        """The source record that its destination refuses; 0 if the obstacle is not a record."""
        self.listening = False
        """Whether it subscribes to the next change of its destination."""
        self.closing = False
        """Whether it is being deleted: it then forwards no more records."""
        self.when_idle: Callable[[], None] | None = None
        """Called once none of its forwards is in flight."""

    def state(self) -> RouterState:
        rules = self.rules
        return RouterState(
            self.id, self.name, self.dest_id, rules.preserve_node, rules.preserve_tag,
            None if rules.filter is None else rules.filter.pattern, rules.filter is not None and rules.filter.prefix,
            rules.allow_cycle, rules.exactly_once, self.cursor, self.forwarded, self.created_ts, self.dedupe_upto,
        )  # fmt: skip

    def stamp(self) -> Stamp | None:
        if not self.rules.exactly_once:
            return None
        return Stamp.of(self.name, self.source.name, self.source.id, self.source.epoch)


def rules_of(state: RouterState) -> RouterRules:
    return RouterRules(
        preserve_node=state.preserve_node,
        preserve_tag=state.preserve_tag,
        filter=None if state.filter is None else TagMatch(state.filter, state.filter_prefix),
        allow_cycle=state.allow_cycle,
        guarantee=Guarantee.EXACTLY_ONCE if state.exactly_once else Guarantee.AT_LEAST_ONCE,
    )


class RouterPart:
    """The router state of a topic."""

    __slots__ = ("held", "held_bytes", "hops", "idle_at", "routers", "synced_head", "syncing", "wal_floor", "watched")

    def __init__(self) -> None:
        self.routers: dict[int, Router] = {}
        """The routers whose source the topic is, by id."""
        self.hops: list[Hops] = []
        """Records of this topic that were forwarded within a cycle: first seq, last seq, and number of hops."""
        self.wal_floor = 0
        """The log after the last checkpoint holds the topic's records above this seq only."""
        self.synced_head = 0
        """The frames that the records up to here depend on are known to be on disk."""
        self.syncing = False
        self.idle_at = -1
        """The head of the source up to which every router has forwarded; -1 if one may not have."""
        self.watched = False
        """Whether the pump subscribes to the topic's changes."""
        self.held: list[Block] = []
        """Blocks whose records a cap may evict before their routers forward them; held briefly."""
        self.held_bytes = 0

    def hops_of(self, seq: int) -> tuple[int, int]:
        """The number of hops of a record, and the last seq of its range with the same number."""
        for first, last, hops in self.hops:
            if seq < first:
                return 0, first - 1
            if seq <= last:
                return hops, last
        return 0, 1 << 63

    def note_hops(self, first: int, last: int, hops: int) -> None:
        if self.hops and self.hops[-1][1] + 1 == first and self.hops[-1][2] == hops:
            self.hops[-1] = (self.hops[-1][0], last, hops)
        else:
            self.hops.append((first, last, hops))

    def forget_hops(self) -> None:
        """Forget the hops of records that every router of a cycle has passed."""
        if self.hops:
            passed = min([router.cursor for router in self.routers.values() if router.cyclic], default=1 << 63)
            self.hops = [known for known in self.hops if known[1] > passed]

    def hold(self, block: Block) -> None:
        """Keeps a block in memory for the routers, even if the topic's caps evict it."""
        self.held.append(block)
        self.held_bytes += block.memory_bytes

    def let_go(self) -> int:
        """Releases the blocks that every router has passed; a blocked router keeps none. Returns the freed bytes."""
        cursors = [router.cursor for router in self.routers.values() if not router.blocked]
        passed = min(cursors, default=1 << 63)
        before = self.held_bytes
        self.held = [block for block in self.held if block.last_seq > passed]
        self.held_bytes = sum([block.memory_bytes for block in self.held])
        return before - self.held_bytes

    def state(self) -> RoutersState:
        return RoutersState([router.state() for router in self.routers.values()], self.hops)


def part_of(topic: Topic) -> RouterPart | None:
    part = topic.parts.get(PART) if topic.parts is not None else None
    assert part is None or isinstance(part, RouterPart)
    return part


def make_part(topic: Topic) -> RouterPart:
    """The topic's part; creates it if necessary."""
    part = part_of(topic)
    if part is None:
        part = RouterPart()
        # Records logged before the first router are not read from the log.
        part.wal_floor = topic.head
        topic.parts = {**(topic.parts or {}), PART: part}
    return part


class Registry:
    """The graph of the routers of all topics."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self.by_name: dict[str, Router] = {}
        self.names: list[str] = []
        self.into: dict[int, list[Router]] = {}
        """The routers into a topic, by its id; all of them have the same source."""
        self._cycles = 0
        """The number of routers that may close a cycle; with 0 there is no cycle."""
        self._marked = False
        """Whether any router is marked as part of a cycle."""

    def add(self, router: Router, dest: Topic) -> None:
        """Adds a router to the registry and to its source's part."""
        router.dest = dest
        part = make_part(router.source)
        if not part.routers:
            part.wal_floor = router.source.head
        part.routers[router.id] = router
        if router.cursor < router.source.head:
            part.idle_at = -1
        self.by_name[router.name] = router
        insort(self.names, router.name)
        self._lead_into(dest.id, [*self.into.get(dest.id, ()), router])
        self._cycles += router.rules.allow_cycle
        self.mark_cycles()

    def remove(self, router: Router) -> None:
        part = part_of(router.source)
        if part is not None:
            part.routers.pop(router.id, None)
        if self.by_name.get(router.name) is router:
            del self.by_name[router.name]
            del self.names[bisect_left(self.names, router.name)]
        others = [other for other in self.into.get(router.dest_id, ()) if other is not router]
        if others:
            self._lead_into(router.dest_id, others)
        else:
            self.into.pop(router.dest_id, None)
        self._cycles -= router.rules.allow_cycle
        router.closing = True
        self.mark_cycles()

    def _lead_into(self, dest_id: int, routers: list[Router]) -> None:
        self.into[dest_id] = routers
        for router in routers:
            router.alone = len(routers) == 1

    def change(self, router: Router, rules: RouterRules) -> None:
        self._cycles += rules.allow_cycle - router.rules.allow_cycle
        router.rules = rules
        self.mark_cycles()

    def touching(self, topic: Topic) -> list[Router]:
        """The routers that are deleted with the topic, by name."""
        part = part_of(topic)
        out = list(part.routers.values()) if part is not None else []
        return sorted({*out, *self.into.get(topic.id, ())}, key=lambda router: router.name)

    def names_from(self, prefix: str, after: str) -> Iterator[str]:
        place = max(bisect_left(self.names, prefix), bisect_right(self.names, after))
        while place < len(self.names) and self.names[place].startswith(prefix):
            yield self.names[place]
            place += 1

    # The graph

    def source_of(self, topic: Topic) -> Topic | None:
        """The topic that is forwarded into this one."""
        routers = self.into.get(topic.id)
        return routers[0].source if routers else None

    def upstream(self, topic: Topic) -> Iterator[Topic]:
        """The topic, its source, the source of that, and so on, each once."""
        seen: set[int] = set()
        at: Topic | None = topic
        while at is not None and at.id not in seen:
            seen.add(at.id)
            yield at
            at = self.source_of(at)

    def is_behind(self, dest: Topic) -> bool:
        """Returns whether an upstream router of a topic has records left to forward. Called before every read."""
        routers = self.into.get(dest.id)
        for _ in range(_LEVELS_MAX):
            if not routers:
                break
            for router in routers:
                if router.cursor < router.source.head:
                    return True
            routers = self.into.get(routers[0].source.id)
        return False

    def levels(self, dests: Iterable[Topic]) -> list[list[Router]]:
        """The upstream routers of topics, farthest first."""
        levels: dict[int, dict[Router, None]] = {}
        for dest in dests:
            way = [
                routers for topic in islice(self.upstream(dest), _LEVELS_MAX) if (routers := self.into.get(topic.id))
            ]
            for depth, routers in enumerate(reversed(way)):
                levels.setdefault(depth, {}).update(dict.fromkeys(routers))
        return [list(levels[depth]) for depth in sorted(levels)]

    def path(self, start: Topic, goal: Topic) -> list[Topic] | None:
        """The topics on the path between two topics along routers, both included; None if there is no path.

        Every topic has at most one source, so the path is unique and is found backwards.
        """
        way: list[Topic] = []
        for topic in self.upstream(goal):
            way.append(topic)
            if topic is start:
                return way[::-1]
        return None

    def mark_cycles(self) -> None:
        """Marks the routers that are part of a cycle, if there may be any."""
        if not self._cycles and not self._marked:
            return
        self._marked = False
        for router in self.by_name.values():
            assert router.dest is not None
            router.cyclic = self.path(router.dest, router.source) is not None
            self._marked = self._marked or router.cyclic
