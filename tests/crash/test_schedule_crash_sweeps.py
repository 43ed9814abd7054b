"""The machine stops, or a call fails, at every file-system call of schedules, unique jobs and results.

After the next start the jobs of a schedule are those of the first due times, each once, in agreement with the state
of the schedule. Then time goes on: no due time is lost. A unique key has one job at most.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from tests.crash.sweeps import Ending, crashes, usual_endings
from tests.unit.conftest import append, checkpoint, open_engine, put, read
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.log.fs import FileSystem
from topics.model.errors import JobNotFoundError, TopicsError
from topics.model.records import Batch, Record
from topics.model.topic_config import Durability, TopicType
from topics.queues.leases import AckRequest, ClaimRequest
from topics.schedules.schedule_frames import CatchUp
from topics.schedules.schedules import SchedulePut, ScheduleWish
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock, PowerCut, Survival

MINUTE = 60_000
SHOWN = 5
START_MS = ManualClock().now_ms()


class Life:
    """One run of an engine with a schedule, up to its end, and the promises that it made."""

    def __init__(self, fs: FileSystem, durability: Durability) -> None:
        self.fs, self.durability, self.clock = fs, durability, ManualClock()
        self.engine: Engine | None = None
        self.created = False
        self.changed = False
        self.unique_seq = 0
        self.result_seq = 0
        """The job that was acknowledged with a result."""

    @property
    def runs(self) -> int:
        """The jobs that readers saw."""
        engine = self.engine
        return engine.schedules.info("s").state.runs if engine is not None and self.created else 0

    def live(self) -> None:
        engine = self.engine = open_engine(self.fs, self.clock, segment_max_events=3)
        put(engine, "jobs", type=TopicType.QUEUE, durability=self.durability)
        put(engine, "sums", type=TopicType.QUEUE, durability=self.durability, result_retention_ms=10**9)
        self.put(topic="jobs", every_ms=MINUTE, catch_up=CatchUp.ALL, data=b"1")
        self.created = True
        self.wait(2)
        self.produce()
        checkpoint(engine)
        self.wait(1)
        self.put(data=b"2")
        self.changed = True
        self.produce()
        self.work()
        self.wait(1, step=3)
        checkpoint(engine, full=True)
        self.wait(1)

    def put(self, **wish: Any) -> None:
        assert self.engine is not None
        answers: list[object] = []
        self.engine.schedules.put("s", ScheduleWish(**wish), "key", answers.append)
        if not isinstance(answers[0], SchedulePut):
            raise Refused

    def wait(self, times: int, step: int = 1) -> None:
        assert self.engine is not None
        for _ in range(times):
            self.clock.advance(step * MINUTE)
            self.engine.schedules.run_due()

    def produce(self) -> None:
        assert self.engine is not None
        answers: list[AppendResult | TopicsError] = []
        self.engine.append("jobs", Batch(records=[Record.of("u")], unique_key="u"), answers.append)
        if not isinstance(answers[0], AppendResult):
            raise Refused
        self.unique_seq = answers[0].first_seq

    def work(self) -> None:
        assert self.engine is not None
        append(self.engine, "sums", 3)
        found: list[Any] = []
        self.engine.queues.claim("sums", ClaimRequest(node="w", max=1), found.append)
        if isinstance(found[-1], TopicsError):
            raise Refused
        seq = found[-1].jobs[0].seq
        self.engine.queues.ack("sums", AckRequest(node="w", seqs=[seq], result=b"9"), found.append)
        if isinstance(found[-1], TopicsError):
            raise Refused
        self.result_seq = seq


class Refused(Exception):
    """A write was refused; the life ends here, as with a client that gives up."""


def run(life: Life) -> None:
    try:
        life.live()
    except (PowerCut, Refused, TopicsError, OSError):
        pass


def jobs(engine: Engine, *, unique: bool) -> list[Any]:
    records: list[Any] = []
    cursor = 0
    while cursor < engine.existing("jobs").head:
        found = read(engine, "jobs", from_seq=cursor, limit=1000)
        records += found.records()
        cursor = found.next_from_seq
    return [record for record in records if (record["data"] == "u") == unique]


def examine(life: Life, disk: FakeDisk, ending: Ending) -> Iterator[str]:
    """The broken promises in the start after a life."""
    engine = open_engine(disk, life.clock, boot_id="another" if ending.restarted else "a")
    kept = life.durability is Durability.FSYNC or ending.survival is Survival.EVERYTHING
    if not engine.schedules.count:
        if life.created:
            yield "the schedule is lost"
        return
    before = engine.schedules.info("s").state
    due = [job["meta"]["$schedule_due_ms"] for job in jobs(engine, unique=False)]
    if due != [START_MS + MINUTE * number for number in range(1, before.runs + 1)]:
        yield f"{before.runs} runs, and jobs for {due}"
    if due and before.last_due_ms != due[-1]:
        yield f"the last due time is {before.last_due_ms} instead of {due[-1]}"
    if kept and before.runs < life.runs:
        yield f"{life.runs} runs were seen, and {before.runs} are there"
    if life.changed and before.data != b"2":
        yield "the change is lost"
    life.clock.advance(MINUTE)
    engine.schedules.run_due()
    due = [job["meta"]["$schedule_due_ms"] for job in jobs(engine, unique=False)]
    expected = [START_MS + MINUTE * n for n in range(1, (life.clock.now_ms() - START_MS) // MINUTE + 1)]
    if due != expected:
        yield f"later there are jobs for {due} instead of {expected}"
    yield from unique_promises(life, engine, kept)
    yield from result_promises(life, engine, kept)


def unique_promises(life: Life, engine: Engine, kept: bool) -> Iterator[str]:
    there = [job["$seq"] for job in jobs(engine, unique=True)]
    if len(there) > 1 or (kept and life.unique_seq and not there):
        yield f"the unique job {life.unique_seq} is there as {there}"
    answers: list[AppendResult | TopicsError] = []
    engine.append("jobs", Batch(records=[Record.of("u")], unique_key="u"), answers.append)
    (answer,) = answers
    assert isinstance(answer, AppendResult), answer
    if answer.deduped != bool(there) or (there and answer.first_seq != there[0]):
        yield f"a repetition is answered with {answer.first_seq}, and there is {there}"


def result_promises(life: Life, engine: Engine, kept: bool) -> Iterator[str]:
    """The job is there, or its result."""
    there = engine.find("sums")
    if there is None or not there.head or any(lost.from_seq <= 1 <= lost.to_seq for lost in there.lost or ()):
        # A job that was never seen, or one of class `disk` that is reported as lost.
        return
    try:
        found = engine.queues.result("sums", 1)
    except JobNotFoundError:
        yield "the job is gone, and its result is not there"
        return
    if kept and life.result_seq and (found.finished is None or found.finished.result != b"9"):
        yield f"the result is lost: {found}"


each_class = pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.DISK])


def found_at(make: Callable[[], tuple[Life, FakeDisk]], where: str, number: int) -> Iterator[str]:
    life, disk = make()
    run(life)
    for ending, crashed in crashes(disk, usual_endings(number)):
        clock = life.clock.now_ms()
        for text in examine(life, crashed, ending):
            yield f"{where}, {ending}: {text}"
        life.clock.jump(clock - life.clock.now_ms())


@each_class
def test_schedules_recover_after_a_stop_at_every_call(durability: Durability) -> None:
    whole = FakeDisk()
    Life(whole, durability).live()

    def sweep() -> Iterator[str]:
        for call in range(1, whole.call_count + 2):

            def make(call: int = call) -> tuple[Life, FakeDisk]:
                disk = FakeDisk(stop_before=call)
                return Life(disk, durability), disk

            yield from found_at(make, f"stopped after call {call - 1} of {whole.call_count}", call)

    assert not (texts := list(islice(sweep(), SHOWN))), "\n".join(texts)


@pytest.mark.parametrize("fault", [Fault.EIO, Fault.ENOSPC, Fault.SHORT])
def test_schedules_recover_after_every_failed_call(fault: Fault) -> None:
    counted = FaultyFileSystem(FakeDisk())
    Life(counted, Durability.FSYNC).live()

    def sweep() -> Iterator[str]:
        for call in range(1, counted.calls + 1):

            def make(call: int = call) -> tuple[Life, FakeDisk]:
                disk = FakeDisk()
                return Life(FaultyFileSystem(disk, FaultPlan(call=call, fault=fault)), Durability.FSYNC), disk

            yield from found_at(make, f"call {call} of {counted.calls} failed", call)

    assert not (texts := list(islice(sweep(), SHOWN))), "\n".join(texts)
