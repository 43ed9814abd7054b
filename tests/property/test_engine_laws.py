"""The engine does the same as the model, for every operation, stop and start.

One state machine runs random operations on an engine over a fake disk and on the model beside it. Every limit that
makes the engine move records between its homes is set so low that a few batches reach it: a short history sees blocks,
segments that wait to be written, sealed and partly evicted and relocated ones, flags in memory and in files, snapshots
that add to each other, and log files that come and go.

After each step every topic is compared with the model and read from some cursor to its end.
"""

from bisect import bisect_left
from collections import Counter
from functools import partial
from random import Random
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.property import batches
from tests.property.effort import effort
from tests.property.reading import check_read, check_scan
from tests.property.totals import all_topics, check_books, check_no_litter
from tests.unit.conftest import LOCAL
from topics.engine.background_jobs import InlineRunner, Job
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.engine.results import AppendResult, DeleteResult, DropResult, PutResult, deduped
from topics.engine.topic import Topic
from topics.log.group_commit import InlineCommitter
from topics.model.errors import TopicFullError, TopicNotEmptyError, TopicNotFoundError, TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import DeleteSelector, TagMatch
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import Durability, TopicConfigPatch, resolve_config
from topics.testing import FakeDisk, Fate, ManualClock, Model, ModelTopic, PowerCut, SeededEntropy, Survival
from topics.testing.reference_model import content

EPOCH_MS = 1_700_000_000_000


def options(shards: int, awake: int = 10_000) -> EngineOptions:
    return EngineOptions(
        data_dir="data",
        cold_dir="cold",
        wal_shards=shards,
        wal_file_bytes=2048,
        segment_max_events=7,
        segment_max_bytes=1500,
        segment_max_age_ms=3000,
        hot_retain_segments=1,
        tail_memory_bytes=1500,
        map_cache_bytes=600,
        snapshot_interval_ms=4000,
        snapshot_wal_bytes=3000,
        snapshot_inline_bytes=400,
        disk_reserve_seqs=4,
        awake_topics=awake,
    )


class PatientRunner:
    """Lets jobs wait until a test runs them, so that segments are read while they wait to be written."""

    def __init__(self, patient: bool = False) -> None:
        self.patient = patient
        self._waiting: list[Job] = []

    def start(self, job: Job) -> None:
        self._waiting.append(job)
        if not self.patient:
            self.hurry()

    def hurry(self) -> None:
        """Runs waiting calls, and from now on everything at once."""
        self.patient = False
        while self._waiting:
            InlineRunner().start(self._waiting.pop(0))

    def close(self) -> None:
        self.hurry()


Answers = list[Any]
Operation = tuple[str, str, Any]

appends = st.tuples(
    st.just("append"),
    batches.names,
    st.builds(
        Batch,
        records=batches.handfuls,
        node=st.none() | batches.nodes,
        idempotency_key=st.none() | batches.keys,
        config=st.none() | batches.patches,
    ),
)
puts = st.tuples(st.just("put"), batches.names, batches.patches)
deletes = st.tuples(st.just("delete"), batches.names, batches.selectors)
shard_counts = st.sampled_from([1, 3])
set_back = st.sampled_from([0, 0, 0, 700, 10_000])


class EngineLaws(RuleBasedStateMachine):
    @initialize(shards=shard_counts, seed=st.integers(0, 2**32), first=puts)
    def open(self, shards: int, seed: int, first: Operation) -> None:
        self.disk = FakeDisk()
        self.clock = ManualClock(EPOCH_MS)
        self.model = Model()
        self.rng = Random(seed)
        self.marks: dict[str, tuple[int, ...]] = {}
        self.overtaken: set[str] = set()
        """Topics of which a delete or a new config was still on its way when the next operation was asked for."""
        self.concurrent: set[str] = set()
        """Topics with a delete by tag, or with a delete and another operation, in the group that is judged."""
        self.recover(shards)
        self.one(first)

    # Operations: requests to the engine, and the model's expected answers.

    @rule(operation=appends)
    def append(self, operation: Operation) -> None:
        self.one(operation)

    @rule(name=batches.names, several=st.lists(batches.handfuls, min_size=2, max_size=5))
    def fill(self, name: str, several: list[list[Record]]) -> None:
        """Writes enough at once to get somewhere."""
        for records in several:
            self.one(("append", name, Batch(records=records)))

    @rule(operation=puts)
    def put(self, operation: Operation) -> None:
        self.one(operation)

    @rule(name=batches.names, durability=st.sampled_from(LOCAL))
    def change_class(self, name: str, durability: Durability) -> None:
        """Records written under one promise are not lost, and not resurrected, under another."""
        topic = self.model.get(name)
        if topic is not None:
            config = msgspec.structs.replace(topic.config, durable=False, durability=durability)
            fields = msgspec.structs.asdict(config)
            del fields["durable"]
            self.one(("put", name, TopicConfigPatch(**fields)))

    @rule(operation=deletes)
    def delete(self, operation: Operation) -> None:
        self.one(operation)

    @rule(name=batches.names, tag=batches.common_tags, prefix=st.booleans())
    def delete_by_tag(self, name: str, tag: str, prefix: bool) -> None:
        self.one(("delete", name, DeleteSelector(None, TagMatch(tag, prefix))))

    @rule(operations=st.lists(appends | appends | puts | deletes, min_size=2, max_size=5), gathers=st.booleans())
    def group(self, operations: list[Operation], gathers: bool) -> None:
        """Operations that overtake each other's commit count in the order in which they were asked for."""
        committers = [shard.committer for shard in self.engine.core.shards]
        for committer in committers:
            assert isinstance(committer, InlineCommitter)
            committer.hold, committer.coalesces = True, gathers
        asked = [(operation, *self.ask(operation)) for operation in operations]
        for name, topic in self.model.items():
            if topic.config.durability.logged:
                # Nothing of it is seen before it is committed.
                self.read_somewhere(name, topic)
        for committer in committers:
            assert isinstance(committer, InlineCommitter)
            committer.hold = committer.coalesces = False
            committer.flush()
        asked_of = Counter(name for _, name, _ in operations)
        deletes = [(name, selector) for kind, name, selector in operations if kind == "delete"]
        self.concurrent = {name for name, selector in deletes if selector.match or asked_of[name] > 1}
        for operation, head, answers in asked:
            self.judge(operation, head, answers)
        for name in self.concurrent & self.model.keys():
            self.adopt_reasons(self.model[name], self.engine.core.directory.load(name))
        self.overtaken.clear()
        self.concurrent.clear()

    @staticmethod
    def adopt_reasons(topic: ModelTopic, found: Topic) -> None:
        """Of a group with a delete, the reason for which a record is gone is open: a cap or a time to live evicts it
        once the group is published, and a delete that came later may have been faster."""
        if found.evict_floor == topic.evict_floor:
            return
        topic.cap_floor, topic.ttl_floor = found.cap_floor, found.ttl_floor
        topic.lost = [(gap.from_seq, gap.to_seq) for gap in found.lost or ()]
        for record in topic.records:
            if record.fate in (Fate.DELETED, Fate.EVICTED):
                record.fate = Fate.EVICTED if record.seq < found.evict_floor else Fate.DELETED

    def one(self, operation: Operation) -> None:
        self.judge(operation, *self.ask(operation))
        self.overtaken.clear()

    def ask(self, operation: Operation) -> tuple[int | None, Answers]:
        """Hands an operation to the engine; the head that its readers see at that moment, and where the answer goes."""
        kind, name, argument = operation
        topic = self.engine.core.directory.find(name)
        head = topic.head if topic is not None and topic.created else None
        self.model.expire(self.engine.core.wall())
        answers: Answers = []
        try:
            if kind == "append":
                self.engine.append(name, argument, answers.append)
            elif kind == "put":
                self.engine.put_topic(name, argument, answers.append)
            else:
                self.engine.delete_records(name, argument, answers.append)
        except TopicsError as error:
            answers.append(error)
        return head, answers

    def judge(self, operation: Operation, head: int | None, answers: Answers) -> None:
        kind, name, argument = operation
        assert len(answers) == 1, "an operation is answered once"
        if kind == "append":
            self.judge_append(name, argument, answers[0])
        elif kind == "put":
            self.judge_put(name, argument, answers[0])
        else:
            self.judge_delete(name, argument, head, answers[0])

    def judge_append(self, name: str, batch: Batch, answer: object) -> None:
        now, topic = self.engine.core.wall(), self.model.get(name)
        created = topic is None
        if topic is None:
            topic = ModelTopic(resolve_config(batch.config or TopicConfigPatch(), name, None))
        known = topic.known(batch.idempotency_key, now)
        if isinstance(answer, AppendResult) and answer.deduped:
            if name in self.overtaken:
                # A new config is on its way, and until it counts the old window does.
                known = topic.keys.get(batch.idempotency_key or "")
            assert known is not None, "a key that nobody used, or whose window has passed, was taken for a repeat"
            if known.certain:
                differs = content(batch.records, batch.node) != known.content
                assert answer == deduped(name, known.first, known.last, differs)
            else:
                # Its last use went with a kill, and an earlier one is remembered in its place.
                assert answer.last_seq <= known.last
            return
        assert known is None or not known.certain or name in self.overtaken, "a repeated key was not recognised"
        refusal = topic.refusal(batch.records)
        if isinstance(answer, TopicFullError) and name in self.overtaken:
            # Room counts when the operation that freed it is committed, and here a delete or a config was still on its
            # way.
            return
        if refusal is not None:
            assert type(answer) is refusal
            return
        assert isinstance(answer, AppendResult), answer
        first, last = topic.append(batch.records, batch.node, batch.idempotency_key, now)
        if name in self.overtaken and batch.idempotency_key in topic.keys:
            # A config that turns the window on may count behind it: then the key is not remembered.
            topic.keys[batch.idempotency_key].certain = False
        assert (answer.topic, answer.first_seq, answer.last_seq) == (name, first, last)
        assert (answer.head_seq, answer.count, answer.created) == (last, len(batch.records), created)
        self.model[name] = topic

    def judge_put(self, name: str, patch: TopicConfigPatch, answer: object) -> None:
        topic = self.model.get(name)
        config = resolve_config(patch, name, None if topic is None else topic.config)
        assert answer == PutResult(name, topic is None, config)
        if topic is None:
            self.model[name] = ModelTopic(config)
        else:
            topic.configure(config)
        self.overtaken.add(name)

    def judge_delete(self, name: str, selector: DeleteSelector, head: int | None, answer: object) -> None:
        topic = self.model.get(name)
        if topic is None or head is None:
            assert isinstance(answer, TopicNotFoundError)
            return
        deleted = topic.delete(selector.before_seq, selector.match, head)
        if name in self.overtaken and self.engine.core.directory.load(name).unlogged:
            # The evictions of the new caps are decided behind the delete; the model applied them before.
            assert isinstance(answer, DeleteResult)
            self.overtaken.add(name)
            return
        if name in self.concurrent:
            # A delete that looks through segments is decided behind other operations of its group, and a cap evicts
            # once the appends of the group are published. All of them remove the same records together, but which of
            # them counts a record is open.
            assert isinstance(answer, DeleteResult)
            self.overtaken.add(name)
            return
        assert answer == DeleteResult(name, deleted, topic.earliest, topic.head, topic.count, topic.bytes)
        self.overtaken.add(name)

    @rule(name=batches.names, if_empty=st.sampled_from([True, True, True, False]))
    def drop(self, name: str, if_empty: bool) -> None:
        answers: Answers = []
        topic = self.model.get(name)
        try:
            self.engine.drop_topic(name, if_empty, answers.append)
        except TopicNotEmptyError as error:
            assert topic is not None
            assert if_empty
            assert error.detail["count"] == topic.count > 0
            return
        assert answers == [DropResult(name, topic is not None)]
        assert topic is None or not if_empty or not topic.count
        self.model.pop(name, None)
        self.marks.pop(name, None)

    @rule(
        name=batches.names,
        from_seq=batches.positions,
        limit=st.integers(1, 20),
        nodes=st.lists(batches.nodes, max_size=3).map(tuple),
        include_tags=st.booleans(),
        include_meta=st.booleans(),
        max_bytes=st.integers(1, 500) | st.just(1 << 20),
    )
    def read(self, name: str, **wishes: Any) -> None:
        request = ReadRequest(**wishes)
        topic = self.model.get(name)
        if topic is None:
            try:
                self.engine.read_now(name, request)
            except TopicNotFoundError:
                return
            raise AssertionError("a topic that does not exist was read")
        topic.expire(self.engine.core.wall())
        check_read(topic, request, self.engine.read_now(name, request))

    # Time and upkeep: nothing here may change the visible records.

    @rule(ms=st.sampled_from([1, 99, 100, 101, 499, 500, 501, 1500, 6000, 119_999]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=st.sampled_from([-86_400_000, -1_000, -1, 1, 700, 3_600_000]))
    def set_clock(self, ms: int) -> None:
        """An operator sets the machine's clock; the model has no other."""
        self.clock.jump(max(ms, EPOCH_MS - self.clock.now_ms()))

    @rule(full=st.booleans())
    def checkpoint(self, full: bool) -> None:
        self.sealing.hurry()
        done: list[bool] = []
        self.engine.run_job(self.engine.checkpointer.job(full=full, then=done.append))
        assert done == [True]
        self.model.checkpoint()
        check_no_litter(self.engine, self.disk)

    @rule()
    def tick(self) -> None:
        self.sealing.hurry()
        before = self.engine.checkpointer.completed
        self.engine.housekeeper.tick()
        if self.engine.checkpointer.completed > before:
            self.model.checkpoint()

    @rule(name=batches.names)
    def cut(self, name: str) -> None:
        topic = self.engine.core.directory.find(name)
        if topic is not None and topic.config.durability.logged:
            self.engine.core.before_change(topic)
            self.engine.sealer.cut(topic)

    @rule(patient=st.booleans())
    def write_pending(self, patient: bool) -> None:
        self.sealing.hurry()
        self.sealing.patient = patient

    @rule()
    def relocate(self) -> None:
        """Only files in a snapshot can be moved, so one is taken first."""
        self.checkpoint(full=False)
        for topic in all_topics(self.engine):
            self.engine.run_job(self.engine.housekeeper.relocate(topic))

    # Stops and starts

    @rule(shards=shard_counts, back_ms=set_back)
    def restart(self, shards: int, back_ms: int) -> None:
        """A clean stop loses only data that is kept in memory by choice."""
        self.sealing.hurry()
        self.engine.close_inline()
        self.start_again(shards, back_ms, killed=False)

    @rule(shards=shard_counts, back_ms=set_back, stops=st.lists(st.integers(1, 60), max_size=2))
    def kill(self, shards: int, back_ms: int, stops: list[int]) -> None:
        """The process is killed, perhaps again in the middle of its recovery; the machine runs on."""
        self.disk = self.disk.crash(Survival.EVERYTHING)
        self.start_again(shards, back_ms, killed=True, stops=stops)

    @rule(shards=shard_counts, calls=st.integers(1, 60), full=st.booleans())
    def kill_in_checkpoint(self, shards: int, calls: int, full: bool) -> None:
        """The process is killed after some call of a checkpoint to the disk."""
        self.sealing.hurry()
        ceilings = self.ceilings()
        self.disk.stop_after = self.disk.call_count + calls
        begun = len(self.disk.trace)
        try:
            self.engine.run_job(self.engine.checkpointer.job(full=full))
        except PowerCut:
            pass
        if any(call == "rename" and "snapshot" in path for call, path in self.disk.trace[begun:]):
            self.model.checkpoint()
            # A caller that recovers from it adds the reserve to the heads it has.
            reserve = self.engine.core.reserve
            ceilings = {name: max(upto, self.model[name].head + reserve) for name, upto in ceilings.items()}
        self.disk = self.disk.crash(Survival.EVERYTHING)
        self.start_again(shards, 0, killed=True, ceilings=ceilings)

    def recover(self, shards: int, stops: list[int] | None = None) -> None:
        for stop in stops or ():
            self.disk.stop_after = stop
            try:
                Engine.recover(self.disk, options(shards), self.clock, SeededEntropy(1), boot_id="boot")
            except PowerCut:
                pass
            self.disk = self.disk.crash(Survival.EVERYTHING)
        # Also from one start to the next: a topic that slept in one run may be awake in the next, and the other way
        # round.
        awake = self.rng.choice((0, 2, 10_000))
        self.engine = Engine.recover(self.disk, options(shards, awake), self.clock, SeededEntropy(1), boot_id="boot")
        self.sealing = PatientRunner(patient=self.rng.random() < 0.5)
        self.engine.sealer.use(self.sealing)

    def ceilings(self) -> dict[str, int]:
        return {topic.name: max(topic.head, topic.ceiling) for topic in all_topics(self.engine)}

    def start_again(
        self,
        shards: int,
        back_ms: int,
        *,
        killed: bool,
        stops: list[int] | None = None,
        ceilings: dict[str, int] | None = None,
    ) -> None:
        ceilings = self.ceilings() if ceilings is None else ceilings
        self.clock = ManualClock(max(EPOCH_MS, self.clock.now_ms() - back_ms))
        self.recover(shards, stops)
        found = {topic.name: topic for topic in all_topics(self.engine)}
        assert set(found) == set(self.model)
        for name, topic in self.model.items():
            self.compare_after_start(topic, found[name], killed, ceilings[name])

    def compare_after_start(self, topic: ModelTopic, found: Topic, killed: bool, ceiling: int) -> None:
        """Whether a start found the expected state. Necessary losses must be reported, and no others may be."""
        assert found.config == topic.config
        assert topic.head <= found.head <= (ceiling if killed else topic.head), "seqs were given back, or given away"
        exact = topic.exact or not killed
        gone = topic.restart(killed, found.head)
        assert max((record.ts for record in topic.live), default=0) <= found.last_ts <= topic.last_ts
        lost = [(gap.from_seq, gap.to_seq) for gap in found.lost or ()]
        assert {gap.reason for gap in found.lost or ()} <= {LossReason.CRASH}
        floors = (found.cap_floor, found.ttl_floor)
        if exact:
            assert (*floors, found.last_ts) == (topic.cap_floor, topic.ttl_floor, topic.last_ts)
        if exact and topic.config.durability.logged:
            assert lost == topic.lost
        else:
            reported = {seq for first, last in lost for seq in range(first, last + 1)} | set(
                range(1, found.evict_floor)
            )
            untold = {record.seq for record in gone} | {r.seq for r in topic.records if r.fate is Fate.EVICTED}
            untold |= {seq for first, last in topic.lost for seq in range(first, last + 1)}
            assert untold <= reported, f"records {sorted(untold - reported)} vanished without a word"
            assert not reported & {record.seq for record in topic.live}
            assert floors[0] <= topic.cap_floor
            assert floors[1] <= topic.ttl_floor
            # Changes below the floor need not have been logged, so the floor may have been forgotten: marks begin
            # again, and the lost ranges report them instead.
            self.marks.pop(found.name, None)
            # Nor need have been what told that the clock had been set back.
            topic.last_written = found.last_write_ts
            for record in topic.live:
                record.written = self.written(found, record.seq)
            for key, known in (found.keys or {}).items():
                topic.keys[key].ts = known.written
        topic.adopt(lost, *floors, found.last_ts)

    def written(self, topic: Topic, seq: int) -> int:
        """When the engine believes a record to have been written: before any later moment, and not before that one."""
        reader, run = self.engine.core.reader, next(iter(topic.runs_from(seq)))
        moments = range(topic.last_write_ts + 1)
        found = bisect_left(
            moments, True, key=lambda moment: reader.written_before(topic.id, run, moment + 1) > seq - run.first_seq
        )
        return moments[found]

    # Laws that hold after every step

    @invariant()
    def laws_hold(self) -> None:
        self.topics_are_those_of_the_model()
        self.watermarks_never_go_back()
        check_books(self.engine)
        for name, topic in self.model.items():
            self.read_somewhere(name, topic)
            cursor = 0 if self.rng.random() < 0.7 else self.rng.randrange(topic.head + 3)
            check_scan(topic, partial(self.engine.read_now, name), cursor, self.rng)

    def topics_are_those_of_the_model(self) -> None:
        now = self.engine.core.wall()
        assert [info.topic for info in self.engine.list_topics()] == sorted(self.model)
        self.model.expire(now)
        for name, topic in self.model.items():
            info = self.engine.info(name)
            assert (info.head_seq, info.earliest_seq) == (topic.head, topic.earliest)
            assert (info.count, info.bytes, info.config) == (topic.count, topic.bytes, topic.config)

    def watermarks_never_go_back(self) -> None:
        for topic in all_topics(self.engine):
            mark = (topic.head, topic.earliest, topic.evict_floor, topic.last_ts)
            before = self.marks.get(topic.name, mark)
            assert all(new >= old for old, new in zip(before, mark, strict=True)), f"{before} became {mark}"
            self.marks[topic.name] = mark
            assert topic.evict_floor == self.model[topic.name].evict_floor

    def read_somewhere(self, name: str, topic: ModelTopic) -> None:
        request = ReadRequest(from_seq=self.rng.randrange(topic.head + 3), limit=self.rng.choice([1, 5, 100]))
        check_read(topic, request, self.engine.read_now(name, request))


EngineLaws.TestCase.settings = effort(300, steps=40)
test_engine_laws = EngineLaws.TestCase
