"""Random lives of a queue, held against a model after every step. The clock is moved by hand, and jumps.

Forbidden outcomes: a job is lost, is held by two workers at once, is delayed and delivered, is moved to the dead letter
topic twice or half, or answers to another lease. And the counters are exact, always.
"""

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import astuple

from tests.property.effort import effort
from tests.property.queue_model import QueueModel, tag_of
from tests.property.totals import check_totals
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.engine.results import AppendResult
from topics.log.group_commit import InlineCommitter
from topics.model.errors import JobNotFoundError, TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import DeleteSelector
from topics.model.topic_config import Durability, TopicConfigPatch, TopicType
from topics.queues.job_operations import JobChanged, JobPage
from topics.queues.leases import (
    ClaimedJob,
    ClaimRequest,
    ClaimResult,
    ExtendRequest,
    HeldRequest,
    NackRequest,
    NackResult,
    RedriveRequest,
    RedriveResult,
    WorkerRequest,
)
from topics.queues.queue_state import Worker, find_queue
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival

NODES = ("a", "b")
COUNTS = st.integers(1, 5)
PRIORITIES = st.sampled_from((0, 0, 0, 1, 7, -1))
LEASES_MS = st.sampled_from((100, 400, 2000))
STALE = "lease_0000000000000001"


class QueueLaws(RuleBasedStateMachine):
    @initialize(
        shards=st.sampled_from((1, 3)),
        durability=st.sampled_from((Durability.FSYNC, Durability.DISK, Durability.MEMORY)),
        leases_durable=st.booleans(),
        max_deliveries=st.sampled_from((0, 1, 2)),
        dead_letter_is_queue=st.booleans(),
        cap_records=st.sampled_from((0, 0, 9)),
        max_per_second=st.sampled_from((0, 0, 3)),
        max_leased=st.sampled_from((0, 0, 2)),
        fair_tags=st.booleans(),
        seed=st.integers(0, 1000),
    )
    def begin(
        self,
        shards: int,
        durability: Durability,
        leases_durable: bool,
        max_deliveries: int,
        dead_letter_is_queue: bool,
        cap_records: int,
        max_per_second: int,
        max_leased: int,
        fair_tags: bool,
        seed: int,
    ) -> None:
        self.disk, self.clock, self.entropy = FakeDisk(), ManualClock(), SeededEntropy(seed)
        self.options = EngineOptions(
            data_dir="data", wal_shards=shards, wal_file_bytes=8192, segment_max_events=6, disk_reserve_seqs=4
        )
        self.durability, self.boots = durability, 0
        self.leases_durable = leases_durable
        self.cap_records = cap_records
        self.model = QueueModel(
            max_deliveries,
            now=self.clock.now_ms(),
            began=self.clock.now_ms(),
            max_per_second=max_per_second,
            max_leased=max_leased,
            fair_tags=fair_tags,
        )  # fmt: skip
        self.workers: list[Worker] = []
        self.value = 0
        self.gathers = self.jumped = False
        self.evicted: set[int] = set()
        self.gone: set[int] = set()
        """Values that were acknowledged or deleted."""
        self.start()
        patch = TopicConfigPatch(
            type=TopicType.QUEUE, durability=durability, leases_durable=leases_durable, lease_ms=1000,
            max_deliveries=max_deliveries, dead_letter="dead", cap_records=cap_records,
            max_per_second=max_per_second, max_leased=max_leased, fair_tags=fair_tags,
        )  # fmt: skip
        self.engine.put_topic("jobs", patch, _ignore)
        if dead_letter_is_queue:
            self.engine.put_topic("dead", TopicConfigPatch(type=TopicType.QUEUE, durability=durability), _ignore)

    def start(self) -> None:
        self.engine = Engine.recover(self.disk, self.options, self.clock, self.entropy, boot_id=f"boot-{self.boots}")

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close_inline()

    # Steps: the model is asked first, then the engine, whose pushes are held against the model as it then is

    @rule(count=COUNTS, delay_ms=st.sampled_from((0, 0, 150, 900)), priority=PRIORITIES, absolute=st.booleans())
    def append(self, count: int, delay_ms: int, priority: int, absolute: bool) -> None:
        assert isinstance(self.ask_append(count, delay_ms, priority, absolute)[0], AppendResult)

    def ask_append(
        self, count: int, delay_ms: int = 0, priority: int = 0, absolute: bool = False
    ) -> list[AppendResult | TopicsError]:
        values = list(range(self.value, self.value + count))
        self.value += count
        topic = self.engine.core.existing("jobs")
        ready_at = self.clock.now_ms() + delay_ms if delay_ms else 0
        self.model.append(topic.staged_head + 1, values, ready_at, priority)
        self.evict()
        answers: list[AppendResult | TopicsError] = []
        batch = Batch(
            records=[Record.of(value, meta={"v": value}, tag=tag_of(value)) for value in values], priority=priority,
            delay_ms=0 if absolute else delay_ms, run_at=ready_at if absolute else None,
        )  # fmt: skip
        self.engine.append("jobs", batch, answers.append)
        return answers

    def evict(self) -> None:
        """Jobs over the cap are evicted, the oldest first, claimed or not."""
        if not self.gathers:
            self.evicted = set()
        while self.cap_records and len(self.model.jobs) > self.cap_records:
            self.evicted.add(min(self.model.jobs))
            self.gone.add(self.model.jobs.pop(min(self.model.jobs)).value)

    @rule(node=st.sampled_from(NODES), requested=COUNTS, lease_ms=st.none() | LEASES_MS)
    def claim(self, node: str, requested: int, lease_ms: int | None) -> None:
        most = min(requested, self.model.room())
        expected = self.model.next_claim(most)
        buried = self.model.dead_lettered
        answers: list[ClaimResult | TopicsError] = []
        self.engine.queues.claim("jobs", ClaimRequest(node=node, max=requested, lease_ms=lease_ms), answers.append)
        result = answers[0]
        assert isinstance(result, ClaimResult)
        seqs = [job.seq for job in result.jobs]
        left = [job for job in self.model.ready() if job.seq not in seqs and not self.model.is_doomed(job)]
        priorities = [self.model.jobs[seq].priority for seq in seqs]
        if self.model.fair_tags:
            self.model.check_shares(seqs)
        else:
            assert seqs == sorted(seqs, key=self.model.place)
            assert not left or not seqs or max(job.priority for job in left) <= min(priorities)
        self.deliver(node, result.jobs)
        self.find_dead_letters()
        if expected is not None:
            assert seqs == expected[0]
            assert self.model.dead_lettered - buried == len(expected[1])
        assert (
            len(seqs) == most
            or self.model.paused
            or not [job for job in self.model.ready() if not self.model.is_doomed(job)]
        )

    def deliver(self, node: str, jobs: list[ClaimedJob]) -> None:
        for job in jobs:
            reported = msgspec.json.decode(job.fragment)
            assert reported["$seq"] == job.seq and reported["meta"] == {"v": reported["data"]}
            assert (reported["lease_id"], reported["deadline"]) == (job.lease_id, job.deadline)
            self.model.deliver(job.seq, node, job.lease_id, job.deadline, reported["deliveries"], reported["data"])

    @rule(data=st.data(), node=st.sampled_from(NODES), fenced=st.booleans())
    def ack(self, data: st.DataObject, node: str, fenced: bool) -> None:
        self.judge_ack(*self.ask_ack(data, node, fenced))

    @rule(data=st.data(), fenced=st.booleans(), counts=st.lists(COUNTS, min_size=2, max_size=2))
    def ack_together(self, data: st.DataObject, fenced: bool, counts: list[int]) -> None:
        """Workers that are done in the same tick, and produce as well."""
        committers = [shard.committer for shard in self.engine.core.shards]
        asked, appended = [], []
        for committer in committers:
            assert isinstance(committer, InlineCommitter)
            committer.hold = committer.coalesces = True
        self.gathers, self.evicted = True, set()
        for node, count in zip(NODES, counts, strict=True):
            asked.append(self.ask_ack(data, node, fenced))
            appended.append(self.ask_append(count))
        for committer in committers:
            assert isinstance(committer, InlineCommitter)
            committer.hold = committer.coalesces = False
            committer.flush()
        self.gathers = False
        for held, skipped, answers in asked:
            self.judge_ack(held, skipped, answers)
        assert all(isinstance(answer, AppendResult) for (answer,) in appended)

    def ask_ack(self, data: st.DataObject, node: str, fenced: bool) -> tuple[int, list[int], list[object]]:
        seqs, lease_ids = self.some_jobs(data, fenced)
        if self.gathers:
            # Whether a job goes by its cap or by an acknowledgement of the same tick is open.
            seqs = [999 if seq in self.evicted else seq for seq in seqs]
        held, skipped = self.model.held(node, seqs, lease_ids)
        for job in held:
            del self.model.jobs[job.seq]
            self.gone.add(job.value)
        answers: list[object] = []
        self.engine.queues.ack("jobs", HeldRequest(node=node, seqs=seqs, lease_ids=lease_ids), answers.append)
        return len(held), skipped, answers

    def judge_ack(self, held: int, skipped: list[int], answers: list[object]) -> None:
        assert (answers[0].acked, answers[0].skipped) == (held, skipped)  # type: ignore[attr-defined]

    @rule(
        data=st.data(),
        node=st.sampled_from(NODES),
        fenced=st.booleans(),
        delay_ms=st.sampled_from((0, 150, 900)),
        reason=st.sampled_from(("", "", "no", 'a "quoted" one')),
        fatal=st.sampled_from((False, False, False, True)),
    )
    def nack(self, data: st.DataObject, node: str, fenced: bool, delay_ms: int, reason: str, fatal: bool) -> None:
        seqs, lease_ids = self.some_jobs(data, fenced)
        held, skipped = self.model.held(node, seqs, lease_ids)
        for job in held:
            if reason or fatal:
                job.fail(self.clock.now_ms(), reason, fatal)
            job.let_go(self.clock.now_ms() + delay_ms if delay_ms and not fatal else 0)
        answers: list[object] = []
        request = NackRequest(node=node, seqs=seqs, lease_ids=lease_ids, delay_ms=delay_ms, reason=reason, fatal=fatal)
        self.engine.queues.nack("jobs", request, answers.append)
        result = answers[0]
        assert isinstance(result, NackResult)
        assert (result.nacked, result.skipped) == (len(held), skipped)
        assert result.dead_lettered == (len(held) if fatal else 0)

    @rule(data=st.data(), node=st.sampled_from(NODES), fenced=st.booleans(), lease_ms=LEASES_MS)
    def extend(self, data: st.DataObject, node: str, fenced: bool, lease_ms: int) -> None:
        seqs, lease_ids = self.some_jobs(data, fenced)
        held, skipped = self.model.held(node, seqs, lease_ids)
        for job in held:
            job.deadline = self.clock.now_ms() + lease_ms
        answers: list[object] = []
        request = ExtendRequest(node=node, seqs=seqs, lease_ids=lease_ids, lease_ms=lease_ms)
        self.engine.queues.extend("jobs", request, answers.append)
        deadlines = {job.seq: job.deadline for job in held}
        assert (answers[0].deadlines, answers[0].skipped) == (deadlines, skipped)  # type: ignore[attr-defined]

    def some_jobs(self, data: st.DataObject, fenced: bool) -> tuple[list[int], list[str] | None]:
        """Seqs, most of them leased, some of them not or not even there; with ids of which some are stale."""
        leased = [job.seq for job in self.model.jobs.values() if job.leased]
        seqs = data.draw(st.lists(st.sampled_from([*leased, *leased, 1, 2, 999]), max_size=4))
        if not fenced:
            return seqs, None
        own = [self.model.jobs[seq].lease_id if seq in self.model.jobs else "" for seq in seqs]
        return seqs, [data.draw(st.sampled_from((lease_id, lease_id, "", STALE))) for lease_id in own]

    @rule(data=st.data(), verb=st.sampled_from(("promote", "release", "cancel")))
    def change_job(self, data: st.DataObject, verb: str) -> None:
        seq = data.draw(st.sampled_from([*self.model.jobs, 999]))
        state = self.model.state(seq)
        changes = state is not None and (verb == "cancel" or state == {"promote": "delayed", "release": "leased"}[verb])
        if changes and verb == "cancel":
            self.gone.add(self.model.jobs.pop(seq).value)
        elif changes:
            self.model.jobs[seq].let_go()
        answers: list[JobChanged | TopicsError] = []
        try:
            self.engine.queues.change_job("jobs", seq, verb, answers.append)
        except JobNotFoundError:
            assert state is None
            return
        answer = answers[0]
        assert isinstance(answer, JobChanged) and answer.changed is changes

    @rule(dead=st.data(), cancels=st.booleans())
    def change_dead_letter(self, dead: st.DataObject, cancels: bool) -> None:
        if not self.model.dead:
            return
        seq = dead.draw(st.sampled_from(sorted(self.model.dead)))
        value = self.model.dead.pop(seq)[0]
        if cancels:
            self.gone.add(value)
        else:
            self.model.append(self.engine.core.existing("jobs").staged_head + 1, [value], 0)
            self.evict()
        answers: list[JobChanged | TopicsError] = []
        self.engine.queues.change_job("jobs", seq, "cancel" if cancels else "retry", answers.append, cancels)
        assert isinstance(answers[0], JobChanged) and answers[0].changed

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.model.paused = paused
        self.engine.queues.pause("jobs", paused, _ignore)

    @rule(ms=st.sampled_from((1, 50, 100, 101, 400, 1001, 3000)))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.model.tick(self.clock.now_ms())
        self.engine.queues.alarms.run_due()

    @rule(ms=st.sampled_from((-600_000, -50, 400, 86_400_000)))
    def jump_clock(self, ms: int) -> None:
        """Somebody sets the clock: leases and delays keep what is left of them, and are reported by the new time."""
        self.clock.jump(ms)
        self.model.jump(ms)
        self.jumped = True

    @rule(part=st.floats(0, 1))
    def delete(self, part: float) -> None:
        topic = self.engine.core.existing("jobs")
        before = topic.earliest + int(part * (topic.head + 1 - topic.earliest) / 2)
        for seq in [seq for seq in self.model.jobs if seq < before]:
            self.gone.add(self.model.jobs.pop(seq).value)
        self.engine.delete_records("jobs", DeleteSelector(before, None), _ignore)

    @precondition(lambda self: self.model.dead)
    @rule(requested=st.integers(1, 3))
    def redrive(self, requested: int) -> None:
        expected = sorted(self.model.dead)[:requested]
        topic = self.engine.core.existing("jobs")
        for place, dead_seq in enumerate(expected):
            value = self.model.dead.pop(dead_seq)[0]
            self.model.append(topic.staged_head + 1 + place, [value], 0)
        self.evict()
        answers: list[RedriveResult | TopicsError] = []
        self.engine.queues.redrive("jobs", RedriveRequest(max=requested), answers.append)
        assert isinstance(answers[0], RedriveResult) and answers[0].moved == len(expected)

    # Workers that are pushed to

    @precondition(lambda self: len(self.workers) < 2)
    @rule(most=st.integers(1, 3))
    def open_worker(self, most: int) -> None:
        node = f"w{len(self.workers)}{self.value}"
        worker = self.engine.queues.open_worker(
            "jobs", WorkerRequest(node=node, max=most), lambda jobs: self.deliver(node, jobs), lambda error: None
        )
        self.workers.append(worker)

    @precondition(lambda self: self.workers)
    @rule()
    def close_worker(self) -> None:
        worker = self.workers.pop(0)
        for seq in worker.held:
            self.model.jobs[seq].let_go()
        worker.close()

    @precondition(lambda self: self.workers)
    @rule(done=st.booleans())
    def worker_settles(self, done: bool) -> None:
        worker = self.workers[0]
        seqs = list(worker.held)[:2]
        for seq in seqs:
            if done:
                self.gone.add(self.model.jobs.pop(seq).value)
            else:
                self.model.jobs[seq].let_go()
        if done:
            self.engine.queues.ack("jobs", HeldRequest(node=worker.node, seqs=seqs), _ignore)
        else:
            self.engine.queues.nack("jobs", NackRequest(node=worker.node, seqs=seqs), _ignore)

    # Life and death

    @rule(full=st.booleans())
    def checkpoint(self, full: bool) -> None:
        self.engine.run_job(self.engine.checkpointer.job(full=full))

    def is_restart_exact(self) -> bool:
        """`tests/unit/engine/test_clock_jumps.py` covers restarts after a jump."""
        return not self.jumped or not (self.leases_durable or any(job.ready_at for job in self.model.jobs.values()))

    @precondition(is_restart_exact)
    @rule(end=st.sampled_from(("stop", "kill", "power cut")))
    def restart(self, end: str) -> None:
        self.workers = []
        if end == "stop":
            self.engine.close_inline()
        elif end == "kill" or self.durability is not Durability.FSYNC:
            self.engine._lock.release()
        else:
            # Only this class keeps everything.
            self.disk = self.disk.crash(Survival.NOTHING)
            self.boots += 1
        self.start()
        self.model.restart(self.leases_durable, self.clock.now_ms())

    # Laws

    def find_dead_letters(self) -> None:
        """Takes over the jobs that the engine has moved since: each must have been due, and none can come twice."""
        if "dead" not in self.engine.core.directory:
            return
        for record in self.engine.read_now("dead", ReadRequest(limit=1000)).records():
            seq, meta = record["$seq"], record["meta"]
            assert isinstance(seq, int) and isinstance(meta, dict)
            value, deliveries = record["data"], int(meta["$dead_letter_deliveries"])
            src_seq = int(meta["$dead_letter_src_seq"])
            assert isinstance(value, int) and meta["$dead_letter_from"] == "jobs" and meta["v"] == value
            keys = ("$dead_letter_reason", "$dead_letter_first_failure_ms", "$dead_letter_last_failure_ms")
            reason, first_ms, last_ms = [str(meta.get(key, "")) for key in keys]
            if seq not in self.model.dead:
                self.model.bury(seq, value, deliveries, src_seq, (reason, first_ms, last_ms))
            assert self.model.dead[seq] == (value, deliveries, src_seq)

    @invariant()
    def everything_is_as_the_model_has_it(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.find_dead_letters()
        queues = self.engine.queues
        counters = queues.counters("jobs")
        found = (counters.ready, counters.in_flight, counters.delayed, counters.dead_lettered)
        assert found == self.model.counters()
        queue = find_queue(self.engine.core.existing("jobs"))
        failures = queue.lease_table.failures if queue is not None else {}
        assert {seq: (history.first_ms, *map(astuple, history.last)) for seq, history in failures.items()} == {
            job.seq: (job.failures[0][1], *job.failures[-3:]) for job in self.model.jobs.values() if job.failures
        }
        leases = queues.list_leases("jobs", limit=1000).leases
        assert {lease.seq: (lease.node, lease.deadline, lease.deliveries) for lease in leases} == self.model.leases()
        assert queues.counters("jobs").paused is self.model.paused
        for state in ("ready", "leased", "delayed"):
            pages: list[JobPage | TopicsError] = []
            queues.list_jobs("jobs", state, pages.append, limit=1000)
            assert isinstance(pages[0], JobPage)
            jobs = msgspec.json.decode(b"[%b]" % pages[0].body)
            assert [job["$seq"] for job in jobs] == self.model.listed(state)
            assert all(job.get("priority", 0) == self.model.jobs[job["$seq"]].priority for job in jobs)
        assert self.engine.info("jobs").count == len(self.model.jobs)
        values = {record["data"] for record in self.engine.read_now("jobs", ReadRequest(limit=1000)).records()}
        assert values == {job.value for job in self.model.jobs.values()}
        check_totals(self.engine)
        dead = {value for value, _, _ in self.model.dead.values()}
        assert values | dead | self.gone == set(range(self.value)) and not values & dead and not values & self.gone

    @invariant()
    def no_worker_waits_while_there_are_jobs(self) -> None:
        if any(worker.requested for worker in getattr(self, "workers", ())) and not self.model.paused:
            assert not self.model.ready() or not self.model.room()


def _ignore(outcome: object) -> None:
    assert not isinstance(outcome, TopicsError), outcome


TestQueueLaws = QueueLaws.TestCase
TestQueueLaws.settings = effort(60, steps=40)
