"""Jobs that are to be buried or redriven during a shortage: none is lost or doubled, callers get an error, and after
the shortage every job arrives where it belongs.

The sweeps of `test_queue_fault_sweeps` leave these moves out, because a job that could not be buried waits for a second
that only the process knows of. So the tests here do not depend on timing: the life of a queue meets a shortage at each
call that can notice it, the shortage lasts until the end of that life, and then all jobs are looked for.
"""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.crash.sweeps import SHORTAGES
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.engine.results import AppendResult
from topics.model.errors import RetryLaterError
from topics.model.records import Batch, Record
from topics.model.topic_config import Durability, TopicConfigPatch, TopicType
from topics.queues.leases import ClaimRequest, ClaimResult, NackRequest, RedriveRequest, RedriveResult
from topics.testing import NO_FAULTS, FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock, SeededEntropy, Survival

JOBS, DEAD = "jobs", "dead"
OPTIONS = EngineOptions(data_dir="data", wal_shards=2, wal_file_bytes=600, segment_max_events=5)
SECOND_MS = 1000


class Life:
    """A queue whose jobs are delivered once and then buried, and its answers."""

    def __init__(self, fs: FaultyFileSystem) -> None:
        self.fs = fs
        self.clock = ManualClock()
        self.engine = Engine.recover(fs, OPTIONS, self.clock, SeededEntropy(1), boot_id="boot")
        config = TopicConfigPatch(
            type=TopicType.QUEUE, durability=Durability.FSYNC, lease_ms=SECOND_MS, max_deliveries=1, dead_letter=DEAD
        )
        self.ask(lambda done: self.engine.put_topic(JOBS, config, done))
        self.appended: list[object] = []
        self.refused: list[RetryLaterError] = []

    def ask(self, what: Callable[[Callable[[object], None]], object]) -> object:
        """Returns the answer; refusals must ask the client to try again."""
        answers: list[object] = []
        try:
            what(answers.append)
        except RetryLaterError as error:
            answers.append(error)
        if not answers:
            return None
        assert len(answers) == 1, answers
        if isinstance(answers[0], Exception):
            assert isinstance(answers[0], RetryLaterError), answers[0]
            self.refused.append(answers[0])
        return answers[0]

    def append(self, *values: int) -> None:
        batch = Batch(records=[Record.of(value) for value in values])
        if isinstance(self.ask(lambda done: self.engine.append(JOBS, batch, done)), AppendResult):
            self.appended += values

    def claim_and_give_back(self) -> None:
        request = ClaimRequest(node="a", max=10, lease_ms=SECOND_MS)
        outcome = self.ask(lambda done: self.engine.queues.claim(JOBS, request, done))
        if isinstance(outcome, ClaimResult) and outcome.jobs:
            seqs = [job.seq for job in outcome.jobs][::2]
            self.ask(lambda done: self.engine.queues.nack(JOBS, NackRequest(node="a", seqs=seqs), done))

    def redrive(self) -> object:
        if DEAD not in self.engine.core.directory:
            return None  # The first buried job creates it.
        return self.ask(lambda done: self.engine.queues.redrive(JOBS, RedriveRequest(max=100), done))

    def pass_seconds(self, count: int) -> None:
        for _ in range(count):
            self.clock.advance(SECOND_MS)
            self.engine.housekeeper.tick()

    def live(self) -> None:
        """Everything that buries and redrives: given back too often, held too long, brought back, buried again."""
        self.append(1, 2, 3)
        self.claim_and_give_back()
        self.claim_and_give_back()
        self.pass_seconds(2)
        self.claim_and_give_back()
        self.append(4, 5)
        self.redrive()
        self.claim_and_give_back()
        self.pass_seconds(2)
        self.claim_and_give_back()
        self.redrive()

    def settle(self) -> None:
        """Afterwards nothing is missing: all jobs are delivered once more, and buried."""
        self.pass_seconds(5)
        for _ in range(4):
            self.claim_and_give_back()
            self.pass_seconds(2)


def values(engine: Engine, name: str) -> Counter[object]:
    if name not in engine.core.directory:
        return Counter()
    return Counter(record["data"] for record in engine.read_now(name, ReadRequest(from_seq=0, limit=1000)).records())


@pytest.mark.parametrize("fault", [Fault.ENOSPC, Fault.EMFILE], ids=lambda fault: str(fault.name))
def test_burying_and_redriving_wait_for_the_end_of_a_shortage(fault: Fault) -> None:
    clean = FaultyFileSystem(FakeDisk())
    Life(clean).live()
    begun = FaultyFileSystem(FakeDisk())
    Life(begun)
    only, met = SHORTAGES[fault], 0
    for call in range(begun.calls + 1, len(clean.trace) + 1):
        if clean.trace[call - 1][0] not in only:
            continue
        disk = FakeDisk()
        life = Life(FaultyFileSystem(disk))
        life.fs.plan = FaultPlan(call, fault, lasting=True, only=only)
        life.live()
        life.fs.plan = NO_FAULTS
        met += bool(life.refused)
        where = f"call {call} {clean.trace[call - 1]}, refused {[str(error) for error in life.refused]}"
        life.refused.clear()
        life.settle()
        assert not life.refused, f"{where}: refused after the shortage: {life.refused}"
        requested = Counter(life.appended)
        assert values(life.engine, JOBS) + values(life.engine, DEAD) == requested, where
        assert values(life.engine, DEAD) == requested, f"{where}: what was delivered too often is buried"
        outcome = life.redrive()
        assert isinstance(outcome, RedriveResult) or not requested, f"{where}: {outcome}"
        assert (values(life.engine, JOBS), values(life.engine, DEAD)) == (requested, Counter()), where
        found = Engine.recover(disk.crash(Survival.NOTHING), OPTIONS, life.clock, SeededEntropy(1), boot_id="another")
        assert (values(found, JOBS), values(found, DEAD)) == (requested, Counter()), f"{where}: after a power cut"
    assert met > 3, "the shortages met somebody"
