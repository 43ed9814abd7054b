"""Drives a queue on a fake disk and remembers, for each job, everything it was seen to be.

After each operation everything that can be seen is written down. A sighting is promised to survive a kill as soon as
it is made; it is promised to survive a power cut when the class is fsync, or when the log was synced since. After a
crash a job must be what it was seen to be at its last promise or later, or what an operation that was never answered
may have made of it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.crash.harness import SMALL, read_all
from tests.property.totals import check_totals
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.fs import FileSystem
from topics.log.group_commit import InlineCommitter
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.model.topic_config import Durability, TopicConfigPatch, TopicType
from topics.queues.job_operations import QueuePausedResult
from topics.queues.leases import (
    EXPIRED,
    ClaimRequest,
    ClaimResult,
    ExtendRequest,
    HeldRequest,
    NackRequest,
    RedriveRequest,
)
from topics.queues.queue_frames import JobFailure
from topics.queues.queue_state import find_queue
from topics.testing import ManualClock, SeededEntropy

QUEUE, DEAD = "jobs", "dead"
LEASE_MS = 1000


class Sight(NamedTuple):
    """An observed state of a job."""

    where: str
    """The topic that holds it; empty when none does."""
    seq: int = 0
    node: str = ""
    moment: int = 0
    """When its lease ends, or when it is ready."""
    deliveries: int = 0
    failures: tuple[JobFailure, ...] = ()
    """The last ones."""
    priority: int = 0

    def failed(self, at_ms: int, node: str, reason: str, fatal: bool = False) -> "Sight":
        """The same after the delivery under way has failed."""
        if self.failures and self.failures[-1].deliveries >= self.deliveries:
            return self
        failure = JobFailure(self.deliveries, at_ms, node, reason, fatal)
        return self._replace(failures=(*self.failures[-2:], failure))

    @property
    def is_fatal(self) -> bool:
        return bool(self.failures) and self.failures[-1].fatal

    @property
    def forgotten(self) -> "Sight":
        """The same after a restart of a queue whose leases are not durable."""
        if self.where != QUEUE:
            return self
        appended_later = not self.node and not self.deliveries
        return Sight(self.where, self.seq, "", self.moment if appended_later else 0, priority=self.priority)


GONE = Sight("")
Change = Callable[[Sight], set[Sight]]
"""The possible effects of an operation on a job."""


@dataclass
class Story:
    """Of one job, by its value."""

    sights: list[Sight] = field(default_factory=lambda: [GONE])
    kept: int = 0
    """The first sight that may be found after a kill."""
    durable: int = 0
    """The first sight that may be found after a power cut."""
    open: set[Sight] = field(default_factory=set)
    """Its other possible states when time passed: the result of a change that failed."""


@dataclass
class Dump:
    jobs: dict[int, list[Sight]]
    """Every place where a value was found."""
    counters: tuple[int, int, int, int]
    reported: dict[str, list[tuple[int, int, str]]]
    heads: dict[str, int]


def look(engine: Engine) -> Dump:
    jobs: dict[int, list[Sight]] = {}
    reported, heads = {}, {}
    for name in (QUEUE, DEAD):
        if name not in engine.core.names:
            continue
        live, reported[name] = read_all(engine, name)
        topic = engine.core.existing(name)
        heads[name] = topic.head
        queue = find_queue(topic) if name == QUEUE else None
        for seq, kept in live.items():
            assert isinstance(kept.value, int)
            jobs.setdefault(kept.value, []).append(_sight(engine, name, seq, queue))
    counters = engine.queues.counters(QUEUE) if QUEUE in engine.core.names else None
    found = (counters.ready, counters.in_flight, counters.delayed, counters.dead_lettered) if counters else (0, 0, 0, 0)
    return Dump(jobs, found, reported, heads)


def _sight(engine: Engine, name: str, seq: int, queue: object) -> Sight:
    if queue is None:
        return Sight(name, seq)
    engine.queues.counters(name)  # Lets time do its work first.
    table = queue.lease_table  # type: ignore[attr-defined]
    lease = table.leases.get(seq) or table.leaving.get(seq)
    failures = table.failures[seq].last if seq in table.failures else ()
    priority = table.priorities.by_seq.get(seq, 0)
    if lease is not None:
        return Sight(name, seq, lease.node, lease.deadline, lease.deliveries, failures, priority)
    return Sight(name, seq, "", table.delayed.get(seq, 0), table.delivered.get(seq, 0), failures, priority)


class QueueWorld:
    def __init__(self, fs: FileSystem, options: EngineOptions = SMALL, **config: object) -> None:
        self.fs = fs
        self.options = options
        self.clock = ManualClock()
        self.boot = 0
        self.config = {"durability": Durability.FSYNC, "leases_durable": True, **config}
        self.dead_class = self.config.pop("dead_class", self.config["durability"])
        self.stories: dict[int, Story] = {}
        self.unanswered: list[Change] = []
        """Operations that may or may not have happened."""
        self.starting = False
        self.held = False
        self.engine: Engine = None  # type: ignore[assignment]
        self._value = 0
        self.pauses = {False}
        """The possible values of the queue's pause after a crash."""

    @property
    def leases_survive(self) -> bool:
        return bool(self.config["leases_durable"])

    # Life

    def start(self, fs: FileSystem | None = None, *, restarted: bool = False) -> None:
        self.fs = fs or self.fs
        self.boot += restarted
        self.starting = True
        self.engine = Engine.recover(
            self.fs, self.options, self.clock, SeededEntropy(self.boot), boot_id=f"boot-{self.boot}"
        )
        check_totals(self.engine)
        self.starting = False

    def begin(self, **config: object) -> None:
        """Starts, as a server does, and makes the queue."""
        self.start()
        self.starting = True
        self.engine.core.begin()
        self.starting = False
        patch = TopicConfigPatch(type=TopicType.QUEUE, lease_ms=LEASE_MS, dead_letter=DEAD, **{**self.config, **config})  # type: ignore[arg-type]
        self.engine.put_topic(QUEUE, patch, lambda answer: None)
        if self.dead_class is not self.config["durability"]:
            patch = TopicConfigPatch(durability=self.dead_class)  # type: ignore[arg-type]
            self.engine.put_topic(DEAD, patch, lambda answer: None)

    def lift_limits(self) -> None:
        """The queue hands out as many jobs as are requested."""
        if QUEUE in self.engine.core.names:
            config = self.engine.core.directory.load(QUEUE).config
            if config.max_leased or config.max_per_second:
                patch = TopicConfigPatch(
                    type=TopicType.QUEUE, lease_ms=LEASE_MS, dead_letter=DEAD, **self.config  # type: ignore[arg-type]
                )  # fmt: skip
                self.engine.put_topic(QUEUE, patch, lambda answer: None)

    def restart(self, clean: bool) -> None:
        self.starting = True
        if clean:
            self.engine.close_inline()
        else:
            self.engine._lock.release()
        for story in self.stories.values():
            if not self.leases_survive:
                story.sights.append(story.sights[-1].forgotten)
        self.start()
        self.starting = True
        self.observe(durable=True)
        self.starting = False

    # Operations

    def append(self, count: int, delay_ms: int = 0, priority: int = 0) -> None:
        values = list(range(self._value, self._value + count))
        self._value += count
        for value in values:
            self.stories[value] = Story()
        ready_at = self.clock.now_ms() + delay_ms if delay_ms else 0

        def change(sight: Sight) -> set[Sight]:
            if sight != GONE:
                return set()
            return {Sight(QUEUE, seq, "", ready_at, priority=priority) for seq in range(1, 40)}

        batch = Batch(
            records=[Record.of(value, meta={"v": value}) for value in values], delay_ms=delay_ms, priority=priority,
            create=False,
        )  # fmt: skip
        only: dict[int, Change] = dict.fromkeys(values, change)
        self._do(lambda done: self.engine.append(QUEUE, batch, done), _nothing, only)

    def claim(self, node: str, requested: int) -> list[int]:
        deadline = self.clock.now_ms() + LEASE_MS

        def change(sight: Sight) -> set[Sight]:
            if sight.where != QUEUE or sight.node or sight.moment > self.clock.now_ms():
                return set()
            leased = sight._replace(node=node, moment=deadline, deliveries=sight.deliveries + 1)
            return {leased, *(Sight(DEAD, seq) for seq in range(1, 40))}

        answer = self._do(
            lambda done: self.engine.queues.claim(QUEUE, ClaimRequest(node=node, max=requested), done), change
        )
        return [job.seq for job in answer.jobs] if isinstance(answer, ClaimResult) else []

    def ack(self, node: str, seqs: list[int]) -> None:
        def change(sight: Sight) -> set[Sight]:
            return {GONE} if sight.where == QUEUE and sight.seq in seqs else set()

        self._do(lambda done: self.engine.queues.ack(QUEUE, HeldRequest(node=node, seqs=seqs), done), change)

    def nack(self, node: str, seqs: list[int], delay_ms: int = 0, reason: str = "", fatal: bool = False) -> None:
        now = self.clock.now_ms()
        ready_at = now + delay_ms if delay_ms else 0

        def change(sight: Sight) -> set[Sight]:
            if sight.where != QUEUE or sight.seq not in seqs:
                return set()
            failed = sight.failed(now, node, reason, fatal) if reason or fatal else sight
            released = failed._replace(node="", moment=ready_at)
            if released.is_fatal:
                # Of the frames of a move any may be the last.
                return {failed, released, *(Sight(DEAD, seq) for seq in range(1, 40))}
            return {failed, released}

        if fatal:
            # They are given back first, and then moved.
            for story in self.stories.values():
                last = story.sights[-1]
                if last.where == QUEUE and last.seq in seqs and last.node == node:
                    story.sights.append(last.failed(now, node, reason, fatal)._replace(node="", moment=0))
        request = NackRequest(node=node, seqs=seqs, delay_ms=delay_ms, reason=reason, fatal=fatal)
        self._do(lambda done: self.engine.queues.nack(QUEUE, request, done), change)

    def extend(self, node: str, seqs: list[int], lease_ms: int) -> None:
        deadline = self.clock.now_ms() + lease_ms

        def change(sight: Sight) -> set[Sight]:
            return {sight._replace(moment=deadline)} if sight.seq in seqs and sight.node == node else set()

        request = ExtendRequest(node=node, seqs=seqs, lease_ms=lease_ms)
        self._do(lambda done: self.engine.queues.extend(QUEUE, request, done), change)

    def change_job(self, seq: int, verb: str) -> None:
        def change(sight: Sight) -> set[Sight]:
            if verb == "retry":
                return {Sight(QUEUE, to) for to in range(1, 40)} if sight == Sight(DEAD, seq) else set()
            if sight.where != QUEUE or sight.seq != seq:
                return set()
            return {GONE} if verb == "cancel" else {sight._replace(node="", moment=0)}

        self._do(lambda done: self.engine.queues.change_job(QUEUE, seq, verb, done), change)

    def pause(self, paused: bool) -> None:
        before, self.pauses = self.pauses, {*self.pauses, paused}
        answer = self._do(lambda done: self.engine.queues.pause(QUEUE, paused, done), _nothing)
        if isinstance(answer, QueuePausedResult):
            self.pauses = {paused}
        elif not self.poisoned:
            self.pauses = before

    def redrive(self, requested: int) -> None:
        def change(sight: Sight) -> set[Sight]:
            return {Sight(QUEUE, seq) for seq in range(1, 40)} if sight.where == DEAD else set()

        self._do(lambda done: self.engine.queues.redrive(QUEUE, RedriveRequest(max=requested), done), change)

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        # Effects of time need no log: a state with a moment that has passed is now a state without it.
        now = self.clock.now_ms()
        for story in self.stories.values():
            open_before = story.open | set(story.sights[story.durable :])
            story.open = {
                _after(new, now) for change in self.unanswered for sight in open_before for new in change(sight)
            }
            story.sights = [_after(sight, now) for sight in story.sights]

    def checkpoint(self, full: bool = False) -> None:
        outcome: list[bool] = []
        self.engine.run_job(self.engine.checkpointer.job(full=full, then=outcome.append))
        if outcome[0]:
            self.observe(durable=True)

    def sync(self) -> None:
        for shard in self.engine.core.shards:
            shard.writer.sync()
        if not self.poisoned:
            self.observe(durable=True)

    def hold(self) -> None:
        """Gathers the following operations into one commit a shard, until `flush`."""
        self.held = True
        for committer in self._committers():
            committer.hold = committer.coalesces = True

    def flush(self) -> None:
        for committer in self._committers():
            committer.hold = committer.coalesces = False
        for _ in range(2):  # The second half of a move is submitted by the first.
            for committer in self._committers():
                committer.flush()
        self.held = False
        if not self.poisoned:
            self.unanswered = []
            self.observe(durable=self.config["durability"] is Durability.FSYNC)

    def _committers(self) -> list[InlineCommitter]:
        committers = [shard.committer for shard in self.engine.core.shards]
        return [committer for committer in committers if isinstance(committer, InlineCommitter)]

    @property
    def poisoned(self) -> bool:
        return any(shard.writer.poison is not None for shard in self.engine.core.shards)

    def _do(
        self,
        submit: Callable[[Callable[[object], None]], object],
        change: Change,
        only: Mapping[int, Change] | None = None,
    ) -> object:
        answers: list[object] = []

        self.unanswered.append(change)
        for value, special in (only or {}).items():
            self.stories[value].sights += sorted(special(GONE))
        refused, poisoned = False, self.poisoned
        try:
            submit(answers.append)
        except TopicsError as error:
            answers.append(error)
            refused = True
        if self.held:
            if refused:
                self.unanswered.pop()
            # An unlogged change cannot be distinguished from a change that waits for the log until all is flushed.
            return None
        failed = isinstance(answers[0], TopicsError)
        # A claim may be answered and its dead letters fail after that: the outcome of those jobs is then open as well.
        if refused or (not failed and (poisoned or not self.poisoned)):
            self.unanswered.pop()
        if not failed or refused:
            for value in only or {}:
                self.stories[value].sights = [GONE]
        # The state that a poisoned engine shows is not promised, and a bystander's promise stands as before.
        self.observe(durable=self.config["durability"] is Durability.FSYNC and not failed, kept=not failed)
        return answers[0]

    def observe(self, durable: bool, kept: bool = True) -> None:
        found = look(self.engine)
        assert not (wrong := list(miscounted(found))), wrong
        for value, story in self.stories.items():
            places = found.jobs.get(value, [GONE])
            assert len(places) == 1, f"job {value} is seen in {places}"
            if places[0] != story.sights[-1]:
                story.sights.append(places[0])
            if kept and not self.poisoned:
                story.kept = len(story.sights) - 1
                # A record that is seen where another class rules is as durable as that class.
                weak = places[0].where == DEAD and self.dead_class is not Durability.FSYNC
                if durable and not weak:
                    story.durable = story.kept

    def possible(self, value: int, power: bool) -> set[Sight]:
        """Returns the possible states of a job after a crash."""
        story = self.stories[value]
        sights = set(story.sights[story.durable if power else story.kept :]) | story.open
        for change in self.unanswered:
            for sight in list(sights):
                sights |= change(sight)
        sights = {_after(sight, self.clock.now_ms()) for sight in sights}
        # A move that failed is tried again a second later, which only the process knows.
        sights |= {sight._replace(moment=0) for sight in sights if sight.is_fatal and not sight.node}
        return sights if self.leases_survive else {sight.forgotten for sight in sights} | _leased_or_not(sights)

    def fork(self) -> "QueueWorld":
        twin = QueueWorld(self.fs, self.options, **self.config, dead_class=self.dead_class)
        twin.clock, twin.boot, twin.stories = ManualClock(self.clock.now_ms()), self.boot, self.stories
        twin.unanswered = list(self.unanswered)
        twin._value = self._value
        twin.pauses = self.pauses
        return twin


def _leased_or_not(sights: set[Sight]) -> set[Sight]:
    return {
        Sight(sight.where, sight.seq) for sight in sights if sight.where == QUEUE and (sight.node or sight.deliveries)
    }


def _nothing(sight: Sight) -> set[Sight]:
    return set()


def _after(sight: Sight, now: int) -> Sight:
    if sight.node and sight.moment < now:
        return sight.failed(sight.moment, sight.node, EXPIRED)._replace(node="", moment=0)
    if not sight.node and sight.moment and sight.moment <= now:
        return sight._replace(moment=0)
    return sight


# Required states


def broken(world: QueueWorld, power: bool) -> Iterator[str]:
    """Every violation in the state that a start has found."""
    found = look(world.engine)
    for value in world.stories:
        places = found.jobs.get(value, [GONE])
        if len(places) > 1:
            yield f"job {value} is in {places} at once"
            continue
        allowed = world.possible(value, power)
        if places[0] not in allowed:
            likely = sorted(allowed, key=lambda sight: sight.where != places[0].where)[:4]
            yield f"job {value} is {places[0]}, and may be one of {len(allowed)}, such as {likely}"
    for value in found.jobs.keys() - world.stories.keys():
        yield f"job {value} is in {found.jobs[value]}, and nobody appended it"
    yield from miscounted(found)
    if QUEUE in world.engine.core.names and world.engine.queues.counters(QUEUE).paused not in world.pauses:
        yield f"a pause may be one of {world.pauses}, and is not"


def miscounted(found: Dump) -> Iterator[str]:
    here = [places[0] for places in found.jobs.values() if places[0].where == QUEUE]
    counted = (
        sum(not sight.node and not sight.moment for sight in here),
        sum(bool(sight.node) for sight in here),
        sum(not sight.node and bool(sight.moment) for sight in here),
    )
    if found.counters[:3] != counted:
        yield f"the counters say {found.counters}, the jobs {counted}"
    buried = sum(any(sight.where == DEAD for sight in places) for places in found.jobs.values())
    if found.counters[3] < buried:
        yield f"{found.counters[3]} dead letters are counted, and {buried} are there"


def nothing_is_stranded(world: QueueWorld) -> Iterator[str]:
    """Once every lease and every delay is over, everything that is there can be claimed, once."""
    world.clock.advance(10_000)
    world.engine.queues.pause(QUEUE, False, lambda answer: None)
    world.lift_limits()
    before = {value for value, places in look(world.engine).jobs.items() if places[0].where == QUEUE}
    values: list[int] = []

    def claimed(answer: ClaimResult | TopicsError) -> None:
        assert isinstance(answer, ClaimResult), answer
        values.extend(job.seq for job in answer.jobs)

    world.engine.queues.claim(QUEUE, ClaimRequest(node="all", max=1000), claimed)
    after = look(world.engine)
    here = {value for value, places in after.jobs.items() if places[0].where == QUEUE}
    if len(values) != len(here) or len(set(values)) != len(values):
        yield f"{len(here)} jobs are there, and {sorted(values)} were claimed"
    if missing := before - after.jobs.keys():
        yield f"jobs {sorted(missing)} are lost by a claim"
