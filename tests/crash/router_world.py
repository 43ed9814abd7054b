"""An engine with routers on a fake disk, and the promises that it may never break.

Every block is noted the moment it is published, because from then on a reader may have seen it: seq by seq, by the
number of its topic. Deletes are noted when they are asked for and when they are answered. After a crash and a start
`broken` compares: a published record is there, with the same seq, unless a client removed it or the loss is reported; a
deleted one stays deleted; nothing is there twice; and, once the routers went on, every record in a source has arrived.

Every value occurs once. The value names its writer, so that a copy differs from a direct write.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from tests.crash.harness import SMALL, Dump, dump, read_all
from tests.crash.sweeps import KILL, POWER_CUT, SHORTAGES, Ending, crashes
from tests.property.totals import all_topics
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.topic import Block, Topic
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import DeleteSelector, RouterRules, RouterWish, TagMatch
from topics.model.topic_config import Durability, TopicConfigPatch, TopicType, is_own_name
from topics.ops.repair.repair import verify
from topics.queues.leases import AckResult, ClaimRequest, ClaimResult, HeldRequest
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock, PowerCut, SeededEntropy, Survival
from topics.wire.record_slicing import data_of

BATCH_MAX = 3
"""The number of records a scenario appends at once to a topic with a cap."""

RouterScenario = Callable[["RouterWorld"], None]


def small(shards: int) -> EngineOptions:
    return msgspec.structs.replace(SMALL, wal_shards=shards, wal_file_bytes=4096)


class RouterWorld:
    def __init__(self, fs: FileSystem, options: EngineOptions) -> None:
        self.fs = fs
        self.options = options
        self.clock = ManualClock()
        self.boot = 0
        self.starting = True
        self.published: dict[int, dict[int, object]] = {}
        """By topic: the records that readers may have seen under each seq."""
        self.removable: dict[int, set[int]] = {}
        """By topic: seqs that a delete was asked for."""
        self.removed: dict[int, set[int]] = {}
        """By topic: seqs whose delete was answered."""
        self.floors: dict[int, int] = {}
        self.dropped: set[int] = set()
        """Topics whose deletion was asked for."""
        self.written: set[object] = set()
        self.classes: dict[int, Durability] = {}
        self.full: set[str] = set()
        """Topics that reject non-matching records: records for them may have to wait."""
        self._value = 0
        self.engine: Engine = None  # type: ignore[assignment]

    # Life

    def start(self, fs: FileSystem | None = None, restarted: bool = False) -> None:
        self.fs = self.fs if fs is None else fs
        self.boot += restarted
        self.starting = True
        self.engine = Engine.recover(
            self.fs, self.options, self.clock, SeededEntropy(self.boot), boot_id=f"boot-{self.boot}"
        )
        self.starting = False
        applier = self.engine.core.applier
        append = applier.append

        def publish(topic: Topic, block: Block) -> None:
            append(topic, block)
            self._note(topic, block)

        applier.append = publish  # type: ignore[method-assign]

    def _note(self, topic: Topic, block: Block) -> None:
        if is_own_name(topic.name):
            return  # No reader sees it.
        self.classes[topic.id] = topic.config.durability
        seen, view = self.published.setdefault(topic.id, {}), block.view
        for index in range(block.count):
            seen[block.first_seq + index] = msgspec.json.decode(data_of(view, index))

    def note_floors(self) -> None:
        """Evictions are seen by looking; records over a cap may be gone."""
        if self.engine is not None:
            for topic in all_topics(self.engine):
                self.floors[topic.id] = max(self.floors.get(topic.id, 0), topic.evict_floor)

    def fork(self) -> "RouterWorld":
        twin = type(self)(self.fs, self.options)
        twin.clock, twin.boot, twin._value = self.clock, self.boot, self._value
        twin.published = {topic: dict(seen) for topic, seen in self.published.items()}
        twin.removable = {topic: set(seqs) for topic, seqs in self.removable.items()}
        twin.removed = {topic: set(seqs) for topic, seqs in self.removed.items()}
        twin.floors, twin.dropped, twin.written = dict(self.floors), set(self.dropped), set(self.written)
        twin.classes, twin.full = dict(self.classes), set(self.full)
        return twin

    def rebase(self, found: Dump) -> None:
        """From now on only the records that were found count; lost ones have been reported."""
        self.published = {t.topic_id: {seq: kept.value for seq, kept in t.live.items()} for t in found.values()}
        self.classes = {t.topic_id: t.config.durability for t in found.values()}
        self.removed = {t.topic_id: self.removed.get(t.topic_id, set()) - t.live.keys() for t in found.values()}

    # Operations

    def put(self, name: str, **config: object) -> None:
        patch = msgspec.convert(config, TopicConfigPatch, strict=False)
        if config.get("discard") == "reject":
            self.full.add(name)
        self._ask(lambda: self.engine.put_topic(name, patch, lambda answer: None))

    def route(self, source: str, dest: str, name: str = "", from_seq: int | None = None, **rules: object) -> None:
        wish = RouterWish(
            source=source,
            dest=dest,
            from_seq=from_seq,
            rules=RouterRules(**rules),  # type: ignore[arg-type]
        )
        self._ask(lambda: self.engine.put_router(name or f"{source}->{dest}", wish, lambda answer: None))

    def unroute(self, name: str) -> None:
        self._ask(lambda: self.engine.remove_router(name, lambda answer: None))

    def append(self, name: str, count: int = 1, tag: str | None = None) -> None:
        values = [self._next_value(name) for _ in range(count)]
        batch = Batch(records=[Record.of(value, tag=tag) for value in values])
        self._ask(lambda: self.engine.append(name, batch, lambda answer: None))

    def delete(self, name: str, before: int | None = None, tag: str | None = None) -> None:
        topic = self.engine.core.directory.find(name)
        if topic is None:
            return
        seqs = self._matching(topic, before, tag)
        self.removable.setdefault(topic.id, set()).update(seqs)

        def done(answer: object) -> None:
            if not isinstance(answer, TopicsError):
                self.removed.setdefault(topic.id, set()).update(seqs)

        selector = DeleteSelector(before, None if tag is None else TagMatch(tag))
        self._ask(lambda: self.engine.delete_records(name, selector, done))

    def work(self, name: str, count: int, acked: int) -> None:
        """Claims jobs of a queue and acknowledges the first of them; the others wait for their lease to end."""
        topic = self.engine.core.directory.find(name)
        if topic is None or topic.config.type is not TopicType.QUEUE:
            return
        seqs: list[int] = []

        def claimed(answer: object) -> None:
            if isinstance(answer, ClaimResult):
                seqs.extend(job.seq for job in answer.jobs)

        def done(answer: object) -> None:
            if isinstance(answer, AckResult):
                self.removed.setdefault(topic.id, set()).update(set(seqs[:acked]) - set(answer.skipped))

        # A claim moves exhausted jobs to the dead-letter topic, which removes them here.
        self.removable.setdefault(topic.id, set()).update(self._matching(topic, None, None))
        request = ClaimRequest(node="w", max=count)

        def ask() -> None:
            self.engine.queues.claim(name, request, claimed)

        self._ask(ask)
        self._ask(lambda: self.engine.queues.ack(name, HeldRequest(node="w", seqs=seqs[:acked]), done))

    def _matching(self, topic: Topic, before: int | None, tag: str | None) -> set[int]:
        live, _ = read_all(self.engine, topic.name)
        return {
            seq for seq, kept in live.items() if (before is None or seq < before) and (tag is None or kept.tag == tag)
        }

    def drop(self, name: str) -> None:
        topic = self.engine.core.directory.find(name)
        if topic is not None:
            self.dropped.add(topic.id)
            self._ask(lambda: self.engine.drop_topic(name, False, lambda answer: None))

    def checkpoint(self, full: bool = False) -> None:
        self.engine.run_job(self.engine.checkpointer.job(full=full))

    def seal(self, name: str) -> None:
        topic = self.engine.core.directory.find(name)
        if topic is not None:
            self.engine.core.before_change(topic)
            self.engine.sealer.cut(topic)

    def background_sync(self) -> None:
        for shard in self.engine.core.shards:
            shard.writer.sync()

    def hold(self) -> None:
        for shard in self.engine.core.shards:
            shard.committer.hold = True  # type: ignore[attr-defined]

    def flush(self) -> None:
        for shard in self.engine.core.shards:
            shard.committer.hold = False  # type: ignore[attr-defined]
            shard.committer.flush()  # type: ignore[attr-defined]

    def also_broken(self, found: Dump, restarted: bool) -> Iterator[str]:
        """Lists violations of the other promises."""
        yield from ()

    def go_on(self) -> None:
        self.engine.routing.kick()
        self.engine.housekeeper.tick()

    def _ask(self, ask: Callable[[], None]) -> None:
        try:
            ask()
        except TopicsError:
            pass
        finally:
            self.note_floors()

    def _next_value(self, name: str) -> str:
        self._value += 1
        value = f"{name}:{self._value:05}"
        self.written.add(value)
        return value


# Forbidden states


def broken(world: RouterWorld, found: Dump, restarted: bool) -> Iterator[str]:
    """Every promise that the state found breaks."""
    topics = {topic.topic_id: topic for topic in found.values()}
    for topic_id, seen in world.published.items():
        topic = topics.get(topic_id)
        if topic is None:
            if topic_id not in world.dropped:
                yield f"topic {topic_id} is gone"
            continue
        durability = world.classes[topic_id]
        excused = set(topic.lost_seqs) if restarted and durability is not Durability.FSYNC else set()
        if durability is Durability.EPHEMERAL or (restarted and durability is Durability.MEMORY):
            continue
        # An append that was not answered any more may be there all the same, and have pushed others out.
        floor = world.floors.get(topic_id, 0)
        floor = max(floor, min(topic.evict_floor, floor + BATCH_MAX))
        for seq, value in seen.items():
            kept = topic.live.get(seq)
            if kept is not None and kept.value != value:
                yield f"topic {topic_id}: {seq} was {value} and is {kept.value}"
            gone_for_a_reason = seq < floor or seq in world.removable.get(topic_id, ()) or seq in excused
            if kept is None and not gone_for_a_reason:
                yield f"topic {topic_id}: {seq}, {value}, is gone and nobody removed it; lost are {topic.lost}"
        if not restarted or durability is Durability.FSYNC:
            for seq in world.removed.get(topic_id, set()) & topic.live.keys():
                yield f"topic {topic_id}: {seq} was deleted and is back"
    for name, topic in found.items():
        values = [kept.value for kept in topic.live.values()]
        if len(set(map(str, values))) != len(values):
            yield f"{name} holds something twice: {values}"
        if set(values) - world.written:
            yield f"{name} holds what nobody wrote: {set(values) - world.written}"
        for writer in {str(value).split(":")[0] for value in values}:
            own = [value for value in values if str(value).startswith(f"{writer}:")]
            if own != sorted(own, key=str):
                yield f"{name}: what came from {writer} is out of order: {own}"


def undelivered(world: RouterWorld, once: dict[int, set[object]]) -> Iterator[str]:
    """Returns the records of a source that are missing in the destination after the routers went on.

    `once` has all records that the destinations ever held: a missing one was removed there, or `broken` has reported
    it.
    """
    engine = world.engine
    for router in engine.routing.registry.by_name.values():
        dest = router.dest
        assert dest is not None
        if dest.name in world.full:
            continue
        if router.cursor < router.source.head:
            yield f"{router.name} stands at {router.cursor}, its source at {router.source.head}"
        there = {kept.value for kept in read_all(engine, dest.name)[0].values()}
        once_there = once.get(dest.id, set()) | set(world.published.get(dest.id, {}).values())
        for seq, kept in read_all(engine, router.source.name)[0].items():
            requested = router.rules.filter is None or router.rules.filter.matches(kept.tag)
            if requested and kept.value not in there and kept.value not in once_there:
                yield f"{router.name}: {seq}, {kept.value}, never arrived"


# Sweeps


def endings(call: int) -> tuple[Ending, ...]:
    return (
        KILL, Ending(Survival.EVERYTHING), POWER_CUT, Ending(Survival.TORN, call), Ending(Survival.SCATTERED, call),
        Ending(Survival.SCATTERED, call + 1000),
    )  # fmt: skip


def sweep_stops(
    scenario: Callable[[Any], None],
    options: EngineOptions,
    calls: Iterable[int] | None = None,
    make: type[RouterWorld] = RouterWorld,
) -> Iterator[str]:
    """Stops a scenario before every call, lets the machine end in every way, and looks."""
    whole = FakeDisk()
    scenario(make(whole, options))
    last = whole.call_count
    for call in range(1, last + 2) if calls is None else calls:
        disk = FakeDisk(stop_before=call)
        world = make(disk, options)
        try:
            scenario(world)
        except PowerCut:
            pass
        world.note_floors()
        where = f"stopped before call {call} of {last}, after {disk.trace[-1] if disk.trace else ''}"
        for ending, crashed in crashes(disk, endings(call)):
            # The recovery is followed by more work for every third call only: it hardly depends on where the machine
            # stopped.
            for text in examine(world, crashed, ending, on_and_on=call % 3 == 0):
                yield f"{where}, {ending}: {text}"


def sweep_faults(
    scenario: Callable[[Any], None], options: EngineOptions, make: type[RouterWorld] = RouterWorld,
    fault: Fault = Fault.EIO,
) -> Iterator[str]:  # fmt: skip
    """Fails every call of a scenario once, and for good; the engine runs on, then the machine ends. A temporary
    shortage fails only the calls that need the resource."""
    counted = FaultyFileSystem(FakeDisk())
    scenario(make(counted, options))
    for call, (operation, path) in enumerate(list(counted.trace), start=1):
        only = SHORTAGES.get(fault, frozenset())
        for lasting in (False, True) if not only or operation in only else ():
            inner = FakeDisk()
            world = make(FaultyFileSystem(inner, FaultPlan(call, fault, lasting, only=only)), options)
            try:
                scenario(world)
            except OSError:
                assert world.starting, "only a start may fail with an error of the system"
            world.note_floors()
            for ending, crashed in crashes(inner, (KILL, POWER_CUT, Ending(Survival.SCATTERED, call))):
                for text in examine(world, crashed, ending, failed=True):
                    yield f"call {call} ({operation} {path}) failed, {ending}: {text}"


def examine(
    world: RouterWorld, crashed: FakeDisk, ending: Ending, failed: bool = False, on_and_on: bool = True
) -> Iterator[str]:
    try:
        yield from _examine(world.fork(), crashed, ending.restarted, failed, on_and_on)
    except Exception as error:  # An engine that does not start is one more finding.
        yield f"fails: {error!r}"


def _examine(world: RouterWorld, disk: FakeDisk, restarted: bool, failed: bool, on_and_on: bool) -> Iterator[str]:
    layout = Layout(world.options.data_dir, world.options.cold_dir)
    if disk.exists(layout.root):
        report = verify(disk, layout, f"boot-{world.boot + restarted}")
        for finding in report.findings:
            yield f"verify takes it for damage: {finding}"
    world.start(disk, restarted)
    found = dump(world.engine)
    yield from broken(world, found, restarted or failed)
    yield from world.also_broken(found, restarted or failed)
    if on_and_on:
        twin = world.fork()
        twin.start(disk.clone().crash(Survival.NOTHING), True)
        if dump(twin.engine) != found:
            yield f"a power cut after recovery changes it from {found} to {dump(twin.engine)}"
    # The routers go on, and their results are recorded as well.
    once = {topic_id: set(seen.values()) for topic_id, seen in world.published.items()}
    world.rebase(found)
    world.go_on()
    for name in sorted(found):
        world.append(name)
    world.note_floors()
    yield from undelivered(world, once)
    yield from world.also_broken(dump(world.engine), restarted or failed)
    if not on_and_on:
        return
    again = world.fork()
    again.start(disk.clone().crash(Survival.EVERYTHING))
    last = dump(again.engine)
    for text in (*broken(again, last, False), *again.also_broken(last, False)):
        yield f"went on, then killed: {text}"
