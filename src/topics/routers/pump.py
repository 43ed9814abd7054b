"""The pump: forwards records along routers, a bounded amount each tick of the loop.

A router is due when its source gets records, when its last forward is published, or when its full destination changes.
There is no polling and no task or thread for each router. A pass copies up to 1024 records of the source into the
destination; routers of the same source with the same cursor share the work of cutting the copies.

A read of a destination includes the records that its source had at that moment, unless the router is blocked: a pending
pass runs first, and its frame is written immediately if it waits for the write only.

Obstacles of a router, and the events that remove them:

| because | until |
|---|---|
| its last forward is in flight | it is published |
| a checkpoint rotates the shards | all are rotated |
| the records depend on unsynced frames, and the destination is of class fsync | a sync |
| the destination is full and rejects, or is being deleted | the destination changes |
| the destination is a closed stream | never: the router reports it and stays blocked |
| the next record violates the destination's schema | the schema changes, or the record is deleted |
| too much is in flight to the destination's shard | another forward is published, or the next second |
| the server is at its quota, or under pressure, or the source cannot be read | the next second, or one after it |
| the copies of sources with many routers have used up their budget | the next second |
| the destination's shard is read-only | the next start |
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable

from topics.engine.background_jobs import Background
from topics.engine.core import EngineCore
from topics.engine.topic import Block, Topic
from topics.log.segment_files import SegmentDamaged
from topics.model.errors import CorruptSegmentError, TopicNotFoundError, TopicsError
from topics.model.router_rules import HOPS_MAX
from topics.routers.copy_batches import Gathered, GatherPlan, Packer, Place, fetch, in_log
from topics.routers.forwarding import CopyBatch, ForwardBatches, Forwarder, Load, find_copies, plan_search
from topics.routers.registry import Registry, Router, RouterPart, part_of
from topics.streams.chunked_validation import REASON, is_schema_refusal

# Dependencies of copies: a destination of class fsync shows no record that a power cut could remove.
#
# A forward by reference is as durable as the frames it refers to. The frames of the source, of the source's source and
# so on may be in other shards, written and not yet synced if their class does not require it. So before a forward into
# a destination of class fsync is logged, the shards of all of them are synced. Its own shard needs no sync: the sync of
# the forward follows.


class Syncing:
    def __init__(self, core: EngineCore, registry: Registry, rouse: Callable[[Topic], None]) -> None:
        self._core = core
        self._registry = registry
        self._rouse = rouse

    def synced_upto(self, source: Topic, part: RouterPart, dest: Topic, cursor: int) -> int:
        """The last seq whose copy the destination may show; if it equals the cursor, a sync is in progress."""
        if part.synced_head > cursor:
            return part.synced_head
        shards = self._unsynced(source, dest)
        if not shards:
            return source.head
        if not part.syncing:
            part.syncing = True
            self._sync(source, part, shards)
        # On the caller's stack the sync is over by now.
        return max(part.synced_head, cursor)

    def _unsynced(self, source: Topic, dest: Topic) -> list[int]:
        numbers = {
            topic.shard
            for topic in self._registry.upstream(source)
            if topic.config.durability.logged and not topic.config.durability.acks_after_sync
        }
        return [number for number in sorted(numbers - {dest.shard}) if not self._core.path.is_synced(number)]

    def _sync(self, source: Topic, part: RouterPart, shards: list[int]) -> None:
        head, waiting = source.head, len(shards)

        def synced() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                part.syncing = False
                part.synced_head = max(part.synced_head, head)
                self._rouse(source)

        for shard in shards:
            # A shard that cannot sync never answers and is read-only; the copies then wait for the next start.
            self._core.path.after_sync(shard, synced)


_COST_A_TICK = 64
"""The number of forwards in one tick of the loop; a pass over many records counts as several."""
_COST_OF_MORE = 0.25
"""Relative cost of forwarding the same records to another destination."""
_COST_OF_WAITING = 0.02
_COST_OF_NOTHING = 0.05
"""A pass that an obstacle ends at once, which may be that of thousands of routers."""
_RECORDS_A_COST = 64
_HELD_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of records kept in memory for routers although caps have evicted them from their topics."""

_log = logging.getLogger(__name__)


# The fan-out budget: copies of sources with many routers.
#
# One append is copied once for each router of its source, in memory immediately and on disk when the destinations are
# sealed. So copies of such sources have a budget of bytes a second, for each key and for the server. Routers beyond it
# wait for the next second, and a source with too many pending copies rejects appends until there are fewer. Other
# topics do not wait: the budget is below the throughput of sealing.

FANOUT_ROUTERS = 8
"""The number of routers above which a source counts."""
FANOUT_BACKLOG_BYTES = 64 * 1024 * 1024
"""The bytes of pending copies at which a source rejects appends, until half of them are made."""


Owner = tuple[str, ...]
"""The prefixes of a tenant; empty for all topics without a tenant."""
_PASS_RECORDS = 1024


class FanoutBudget:
    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._second = 0
        self._spent: dict[Owner, int] = {}
        self._total = 0

    def allows(self, router: Router) -> bool:
        """Returns whether a router may make copies now, and counts them. If not, its source may be held back as
        well."""
        core, source, part = self._core, router.source, part_of(router.source)
        if part is None or len(part.routers) <= FANOUT_ROUTERS:
            return True
        second = core.steady() // 1000
        if second != self._second:
            self._second, self._total = second, 0
            self._spent.clear()
        most, each = core.limits.max_fanout_bytes, core.limits.max_fanout_bytes_per_key
        owners: list[Owner] = [tenant.prefixes for tenant in core.quotas.tenants_of(source.name)] or [()]
        late = source.head - router.cursor
        if (not most or self._total < most) and not (each and any([self._spent.get(one, 0) >= each for one in owners])):
            size = _record_bytes(source) * min(late, _PASS_RECORDS)
            self._total += size
            for owner in owners:
                self._spent[owner] = self._spent.get(owner, 0) + size
            return True
        if late * _record_bytes(source) * len(part.routers) > FANOUT_BACKLOG_BYTES:
            core.held_sources.add(source)
        return False

    def release(self) -> None:
        """Accepts appends again for sources whose routers have nearly caught up."""
        held = self._core.held_sources
        for source in list(held):
            part = part_of(source)
            routers = part.routers.values() if part is not None and self._core.exists(source) else ()
            late = sum([max(source.head - router.cursor, 0) for router in routers])
            if late * _record_bytes(source) <= FANOUT_BACKLOG_BYTES // 2:
                held.discard(source)


def _record_bytes(topic: Topic) -> int:
    """The mean size of a topic's records."""
    return topic.live_bytes // max(topic.live_count, 1) + 1


class Pump:
    def __init__(self, core: EngineCore, registry: Registry, forwarder: Forwarder, background: Background) -> None:
        self._core = core
        self._registry = registry
        self._forwarder = forwarder
        self._background = background
        self._syncing = Syncing(core, registry, self.rouse)
        self._due: deque[Router] = deque()
        self._scheduled = False
        self._running = False
        self._packer = Packer(core)
        self._batches = ForwardBatches(registry)
        self._holding: set[RouterPart] = set()
        self._held_bytes = 0
        self._passed = False
        """Whether routers reached the end of their source, so that held blocks may be released."""
        self._crowded: list[Router] = []
        """Routers whose shard has too much in flight."""
        self.stuck: set[Router] = set()
        """Routers whose obstacle does not report its end."""
        self._fanout = FanoutBudget(core)
        self.cost_a_tick: float = float("inf")
        """On the caller's stack everything is done at once."""

    def use_ticks(self) -> None:
        self.cost_a_tick = _COST_A_TICK

    # Events that make routers due

    def watch(self, source: Topic) -> None:
        """Subscribes to changes of the source."""
        part = part_of(source)
        if part is None or part.watched:
            return
        part.watched = True

        def woken() -> None:
            part.watched = False
            if part.routers and self._core.exists(source):
                self.watch(source)
                # Not for changes such as a new router: of thousands, each would look at all others.
                if part.idle_at != source.head:
                    self.rouse(source)

        source.notify_on_change(woken)

    def rouse(self, source: Topic) -> None:
        """Marks every router of a source as due that has records left to forward."""
        part, due, head = part_of(source), self._due, source.head
        behind = [router for router in part.routers.values() if router.cursor < head] if part is not None else []
        if part is not None:
            part.idle_at = -1 if behind else head
        for router in behind:
            if not (router.due or router.inflight or router.closing):
                router.due = True
                due.append(router)
        self._schedule()

    def due(self, router: Router) -> None:
        self._line_up(router)
        self._schedule()

    def _line_up(self, router: Router) -> None:
        if not (router.due or router.inflight or router.closing):
            router.due = True
            self._due.append(router)

    def _schedule(self) -> None:
        if self._core.path.follows:
            return  # The copies come with the log of the primary.
        if (self._due or self._passed) and not self._scheduled and not self._running:
            self._scheduled = True
            self._core.defer(self._run)

    def hold(self, topic: Topic, block: Block) -> None:
        """Keeps records of a source with caps until its routers have forwarded them, within the memory budget."""
        part = part_of(topic)
        if part is not None and part.watched and self._held_bytes + block.memory_bytes <= _HELD_BYTES_MAX:
            part.hold(block)
            self._held_bytes += block.memory_bytes
            self._holding.add(part)

    def _let_go(self) -> None:
        for part in list(self._holding):
            self._held_bytes -= part.let_go()
            if not part.held:
                self._holding.discard(part)

    def retry(self) -> None:
        """Marks routers as due whose obstacle does not report its end. Called once a second."""
        stuck, self.stuck = self.stuck, set()
        for router in stuck:
            self._line_up(router)
        self._schedule()
        if self._core.held_sources:
            self._fanout.release()

    # A tick

    def _run(self) -> None:
        self._scheduled = self._passed = False
        self._running = True
        cost, limit, due, goes_along = 0.0, self.cost_a_tick, self._due, self._batches.goes_along
        try:
            while due and cost < limit:
                while due and cost < limit:
                    router = due.popleft()
                    router.due = False
                    if router.cursor < router.source.head and not self._fanout.allows(router):
                        self.stuck.add(router)
                        cost += _COST_OF_WAITING
                        continue
                    cost += _COST_OF_MORE if goes_along(router) else max(self._try_alone(router), _COST_OF_NOTHING)
                # On the caller's stack this makes routers due again.
                self._send()
        finally:
            self._rest()

    def _rest(self) -> None:
        self._running = False
        self._packer.forget(bool(self._due))
        self._let_go()
        self._schedule()

    def catch_up(self, dests: Iterable[Topic]) -> None:
        """Forwards pending records along the routers into destinations before they are read, upstream sources first.

        At most one pass for each router, and together at most the work of a tick. Passes that would have to wait
        continue as usual.
        """
        late = [dest for dest in dests if self._registry.is_behind(dest)]
        if self._running or not late or self._core.path.follows:
            return
        self._running = True
        cost = 0.0
        try:
            for level in self._registry.levels(late):
                behind = [router for router in level if router.cursor < router.source.head]
                for router in behind:
                    if cost < _COST_A_TICK and self._may_be_tried(router) and self._fanout.allows(router):
                        cost += self._try(router)
                self._send()
                # Also for earlier forwards in flight, which may only wait for the end of the tick.
                for number in {router.dest.shard for router in behind if router.inflight and router.dest is not None}:
                    self._core.shards[number].committer.write_now()
        finally:
            self._rest()

    def _may_be_tried(self, router: Router) -> bool:
        """Returns whether a read of a destination may run a pass of its router."""
        part = part_of(router.source)
        if part is None or not part.watched or router.inflight:
            # If the pump was never started, as in a read-only tool, a read must not write.
            return False
        return router.due or not (router.blocked or router in self.stuck)

    def _try(self, router: Router) -> float:
        return _COST_OF_MORE if self._batches.goes_along(router) else self._try_alone(router)

    def _try_alone(self, router: Router) -> float:
        try:
            return self._advance(router)
        except TopicsError as error:
            self._hold_up(router, str(error), error.code)
        except SegmentDamaged as damage:
            self._hold_up(router, f"{damage.path}: {damage.reason}", CorruptSegmentError.code)
        return 0

    def _hold_up(self, router: Router, why: str, code: str, seq: int = 0) -> None:
        if not router.blocked or (router.blocked_by, router.blocked_seq) != (code, seq):
            at = {"seq": seq} if seq else {}
            _log.warning("router blocked", extra={"router": router.name, "why": why, **at})
        router.blocked, router.blocked_by, router.blocked_seq = True, code, seq
        self.stuck.add(router)

    def _advance(self, router: Router) -> float:
        """Runs one pass of a router; returns its cost."""
        core, source, dest = self._core, router.source, router.dest
        part = part_of(source)
        if part is None or dest is None or core.closed or router.closing or router.inflight or source.closing:
            return 0
        if dest.closing:
            self._wait_for(router, dest, TopicNotFoundError.code)
            return 0
        if core.cross_shard_gate.closed:
            self._wait_for_turn(router)
            return 0
        core.expire(source)
        last = self._reach(router, dest, part)
        if last <= router.cursor:
            return 0
        if core.scheduler.puts_off(router, source):
            self.stuck.add(router)
            return 0
        hops = 0
        if router.cyclic:
            hops, alike = part.hops_of(router.cursor + 1)
            last = min(last, alike)
            if hops >= HOPS_MAX:
                self._pass_over(router, last)
                return 0.1
        if router.dedupe_upto > router.cursor and router.present is None:
            self._look_for_copies(router, dest)
            return 1
        place = (source.id, router.cursor, last)
        known = self._packer.known(place)
        gathered = known or self._packer.gather(source, part, place)
        if isinstance(gathered, GatherPlan):
            self._fetch_cold(router, place, gathered)
            return 1
        self._forward(router, dest, part, gathered, hops + 1 if router.cyclic else 0)
        return 1 if known is not None else 1 + gathered.count / _RECORDS_A_COST

    def _reach(self, router: Router, dest: Topic, part: RouterPart) -> int:
        """The last source seq of one forward, which is either entirely by value or entirely by reference."""
        source = router.source
        if not in_log(source, part, router.cursor + 1):
            logged = source.config.durability.logged and not source.unlogged
            return min(source.head, part.wal_floor) if logged else source.head
        if dest.rules.acks_after_sync:
            return self._syncing.synced_upto(source, part, dest, router.cursor)
        return source.head

    # Gathering

    def _fetch_cold(self, router: Router, place: Place, plan: GatherPlan) -> None:
        router.inflight = True

        def fetched(outcome: object) -> None:
            router.inflight = False
            if isinstance(outcome, Gathered):
                self._packer.keep(place, outcome)
                self._resume_cold(router, plan, outcome)
            else:
                self._hold_up(router, str(outcome), _code(outcome))
            self._idle(router)

        self._background(lambda: fetch(plan, self._core.reader), fetched, router.source.name)

    def _resume_cold(self, router: Router, plan: GatherPlan, gathered: Gathered) -> None:
        """Continues with records that another thread fetched, unless the router changed meanwhile."""
        core, dest, part = self._core, router.dest, part_of(router.source)
        moved = router.cursor != plan.cursor or router.closing or core.closed or router.source.closing
        if moved or dest is None or part is None or dest.closing or core.cross_shard_gate.closed:
            self.due(router)
            return
        hops = part.hops_of(router.cursor + 1)[0] + 1 if router.cyclic else 0
        try:
            self._forward(router, dest, part, gathered, hops)
        except TopicsError as error:
            self._hold_up(router, str(error), error.code)
        self._send()

    # Forwarding

    def _forward(self, router: Router, dest: Topic, part: RouterPart, gathered: Gathered, hops: int) -> None:
        load = self._packer.load(router, part, gathered, hops)
        if not load.lost and not load.ranges:
            self._pass_over(router, load.upto)
            return
        # A router that was blocked by a record is most likely still blocked by it, so that record is checked first.
        admitted = self._packer.admitted(dest, load.first(1) if router.blocked_seq and load.count else load)
        if isinstance(admitted, TopicsError):
            self._refused(router, dest, load, admitted)
            return
        load = admitted
        core = self._core
        if dest.rules.logged:
            core.path.check(dest, patient=True)
            if core.shards[dest.shard].full:
                self._crowded.append(router)
                self.stuck.add(router)
                return
        elif core.quiet:
            core.begin()
        if self._packer.takes_all(dest) and router.alone:
            waits = dest.rules.acks_after_sync or core.scheduler.deferring
            self._batches.add(CopyBatch(router, dest, load), load.shared and not waits and not router.cyclic)
            return
        # The number that fits depends on the records staged before it, so this forward is logged alone and immediately.
        fitting = self._packer.fitting(dest, load)
        if isinstance(fitting, TopicsError):
            self._wait_for(router, dest, fitting.code)
            return
        router.inflight = True
        self._forwarder.send([CopyBatch(router, dest, fitting)], self._finished)

    def _refused(self, router: Router, dest: Topic, load: Load, error: TopicsError) -> None:
        """Blocks the router until the destination's next change: it refuses the next record, and no record is
        skipped."""
        code, seq = error.code, 0
        if is_schema_refusal(error):
            code, seq = REASON, load.ranges[0][0]
        self._hold_up(router, str(error), code, seq)
        self._wait_for(router, dest, code, seq)

    def _send(self) -> None:
        batches = self._batches.take()
        if batches:
            self._forwarder.send(batches, self._finished)

    def _pass_over(self, router: Router, upto: int) -> None:
        """Skips records that the filter excludes. The cursor moves in memory, and in the next snapshot."""
        self._core.before_change(router.source)
        router.cursor = max(router.cursor, upto)
        self._moved(router, part_of(router.source))
        self.due(router)

    def _finished(self, routers: list[Router], error: TopicsError | None) -> None:
        crowded, self._crowded = self._crowded, []
        for router in crowded:
            self._line_up(router)
        source: Topic | None = None
        part: RouterPart | None = None
        for router in routers:
            router.inflight = False
            if error is None:
                if router.source is not source:
                    source = router.source
                    part = part_of(source)
                self._moved(router, part)
                if router.cursor < source.head:
                    self._line_up(router)
                elif self._holding:
                    self._passed = True
            else:
                self._hold_up(router, str(error), error.code)
        self._schedule()
        for router in [router for router in routers if router.when_idle is not None]:
            self._idle(router)

    def _moved(self, router: Router, part: RouterPart | None) -> None:
        """Updates a router after its cursor moved; `part` is its source's."""
        if router.blocked:
            router.blocked, router.blocked_by, router.blocked_seq = False, "", 0
        if part is not None and part.hops:
            part.forget_hops()
        if router.present is not None and router.cursor >= router.dedupe_upto:
            router.present = None

    def _idle(self, router: Router) -> None:
        then, router.when_idle = router.when_idle, None
        if then is not None and not router.inflight:
            then()
        elif then is not None:
            router.when_idle = then

    # Waiting

    def _wait_for(self, router: Router, dest: Topic, code: str, seq: int = 0) -> None:
        """Blocks the router until the destination's next change: it is full or may be about to be deleted."""
        router.blocked, router.blocked_by, router.blocked_seq = True, code, seq
        self.stuck.add(router)
        if not router.listening:
            router.listening = True
            dest.notify_on_change(lambda: self._unblocked(router))

    def _unblocked(self, router: Router) -> None:
        router.listening = False
        if router in self.stuck:
            self.stuck.discard(router)
            self.due(router)

    def _wait_for_turn(self, router: Router) -> None:
        router.inflight = True

        def turned() -> None:
            router.inflight = False
            self._core.cross_shard_gate.leave()
            self.due(router)
            self._idle(router)

        self._core.cross_shard_gate.enter(turned)

    def _look_for_copies(self, router: Router, dest: Topic) -> None:
        """Finds the records that an earlier router of the same name has copied (`routers.forwarding`)."""
        stamp = router.stamp()
        if stamp is None:
            router.present = []
            self.due(router)
            return
        router.inflight = True
        search = plan_search(dest, stamp)

        def found(outcome: object) -> None:
            router.inflight = False
            if isinstance(outcome, list):
                router.present = outcome
                self.due(router)
            else:
                self._hold_up(router, str(outcome), _code(outcome))
            self._idle(router)

        self._background(lambda: find_copies(search, self._core.reader), found, router.source.name)


def _code(outcome: object) -> str:
    return outcome.code if isinstance(outcome, TopicsError) else CorruptSegmentError.code
