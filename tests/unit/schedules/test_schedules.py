"""Schedules: one job per due time, over restarts and jumps of the clock, and what happens when a run fails."""

from random import Random
from typing import Any

import pytest

from tests.unit.conftest import Answers, ask_drop, checkpoint, killed, open_engine, put, read, topic
from topics.log.frame import Frame, FrameKind
from topics.model.errors import InvalidRequestError, ScheduleNotFoundError, ThrottledError, TopicNotFoundError
from topics.model.limits import Limits
from topics.model.topic_config import Discard, Durability, TopicType
from topics.schedules.schedule_frames import CatchUp, ScheduleDropped, ScheduleRun, ScheduleState, encode_schedule
from topics.schedules.schedule_state import CATCH_UP_MAX, LATE_MS
from topics.schedules.schedules import ScheduleInfo, SchedulePut, ScheduleWish
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem, ManualClock

MINUTE = 60_000


class World:
    """An engine on a disk that survives kills, and its clock."""

    def __init__(self, **limits: int) -> None:
        self.disk, self.clock, self.limits = FakeDisk(), ManualClock(), Limits(**limits)  # type: ignore[arg-type]
        self.faulty = FaultyFileSystem(self.disk)
        self.engine = open_engine(self.faulty, self.clock, limits=self.limits)

    def kill(self) -> None:
        self.disk = killed(self.disk)
        self.engine = open_engine(self.disk, self.clock, limits=self.limits)

    def wait(self, ms: int) -> None:
        self.clock.advance(ms)
        self.engine.schedules.run_due()

    def jump(self, ms: int) -> None:
        self.clock.jump(ms)
        self.engine.schedules.run_due()

    def put(self, name: str = "s", **wish: object) -> ScheduleInfo:
        answers: list[object] = []
        self.engine.schedules.put(name, ScheduleWish(**wish), "key", answers.append)  # type: ignore[arg-type]
        (answer,) = answers
        assert isinstance(answer, SchedulePut), answer
        return answer.info

    def every_minute(self, name: str = "s", **wish: object) -> ScheduleInfo:
        put(self.engine, "jobs", type=TopicType.QUEUE)
        return self.put(name, topic="jobs", every_ms=MINUTE, **wish)

    def due_times(self, of: str = "jobs") -> list[int]:
        found: list[Any] = list(read(self.engine, of, limit=1000).records())
        return [record["meta"]["$schedule_due_ms"] for record in found]

    def info(self, name: str = "s") -> ScheduleInfo:
        return self.engine.schedules.info(name)


@pytest.fixture
def world() -> World:
    return World()


def minutes(first: int, last: int) -> list[int]:
    return [ManualClock().now_ms() + number * MINUTE for number in range(first, last + 1)]


def test_each_due_time_gets_one_job(world: World) -> None:
    world.every_minute(data=b'{"report":1.50}', tag="nightly")
    for _ in range(6):
        world.wait(MINUTE // 2)
    records: list[Any] = list(read(world.engine, "jobs", include_tags=True).records())
    first, second, _ = records
    assert first["data"] == {"report": 1.5} and first["$tag"] == "nightly"
    assert first["meta"] == {"$schedule": "s", "$schedule_due_ms": minutes(1, 1)[0]}
    assert world.due_times() == minutes(1, 3)
    state = world.info().state
    assert (state.runs, state.last_seq, state.last_due_ms, state.next_due_ms) == (3, 3, *minutes(3, 4))
    assert second["$ts"] == minutes(2, 2)[0]


def test_the_due_time_is_in_the_frame_of_its_job(world: World) -> None:
    world.every_minute()
    own = topic(world.engine, "jobs")
    shard = world.engine.core.shards[own.shard]
    before = shard.next_lsn
    world.wait(MINUTE)
    assert shard.next_lsn == before + 1
    assert world.due_times() == minutes(1, 1)


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.DISK, Durability.EPHEMERAL])
def test_a_restart_repeats_no_due_time(world: World, durability: Durability) -> None:
    put(world.engine, "jobs", type=TopicType.QUEUE, durability=durability)
    world.put(topic="jobs", every_ms=MINUTE)
    world.wait(MINUTE)
    world.kill()
    assert world.info().state.runs == 1
    world.wait(0)
    assert world.due_times() == ([] if durability is Durability.EPHEMERAL else minutes(1, 1))
    world.wait(MINUTE)
    assert world.due_times()[-1:] == minutes(2, 2)


@pytest.mark.parametrize(
    ("catch_up", "found"),
    [
        (CatchUp.NONE, []),
        (CatchUp.ONE, minutes(1, 1)),
        (CatchUp.ALL, minutes(1, 5)),
    ],
)
@pytest.mark.parametrize("stop", ["restart", "jump"])
def test_missed_due_times_follow_the_policy(world: World, catch_up: CatchUp, found: list[int], stop: str) -> None:
    world.every_minute(catch_up=catch_up)
    if stop == "restart":
        world.clock.advance(5 * MINUTE + 30_000)
        world.kill()
        world.wait(0)
    else:
        world.jump(5 * MINUTE + 30_000)
    assert world.due_times() == found
    world.wait(MINUTE // 2)
    assert world.due_times() == [*found, *minutes(6, 6)]
    world.kill()
    world.wait(0)
    assert world.due_times() == [*found, *minutes(6, 6)]


def test_a_due_time_a_little_late_is_not_missed(world: World) -> None:
    world.every_minute(catch_up=CatchUp.NONE)
    world.wait(MINUTE + LATE_MS)
    assert world.due_times() == minutes(1, 1)


def test_a_catch_up_is_bounded(world: World) -> None:
    world.every_minute(catch_up=CatchUp.ALL)
    world.wait((CATCH_UP_MAX + 500) * MINUTE)
    state = world.info().state
    assert state.runs == CATCH_UP_MAX + 1, "as many missed due times, and the one of now"
    assert state.next_due_ms == minutes(CATCH_UP_MAX + 501, CATCH_UP_MAX + 501)[0]


def test_a_clock_set_back_repeats_no_due_time(world: World) -> None:
    world.every_minute()
    world.wait(MINUTE)
    world.jump(-30 * MINUTE)
    world.wait(29 * MINUTE)
    world.kill()
    world.wait(MINUTE)
    assert world.due_times() == minutes(1, 1)
    world.wait(MINUTE)
    assert world.due_times() == minutes(1, 2)


def test_random_stops_and_jumps_never_lose_or_repeat_a_due_time(seed: int) -> None:
    random, world = Random(seed), World()
    world.every_minute(catch_up=CatchUp.ALL)
    start, latest = world.clock.now_ms(), world.clock.now_ms()
    for _ in range(60):
        step = random.randrange(5)
        if step == 0:
            world.kill()
        elif step == 1:
            world.jump(random.randrange(-20, 20) * 20_000)
        else:
            world.wait(random.randrange(4) * 20_000)
        latest = max(latest, world.clock.now_ms())
        world.wait(0)
    assert world.due_times() == [start + MINUTE * n for n in range(1, (latest - start) // MINUTE + 1)]


def test_a_paused_schedule_is_not_due(world: World) -> None:
    world.every_minute()
    assert world.put(paused=True).state.next_due_ms == 0
    world.wait(5 * MINUTE)
    world.kill()
    world.wait(MINUTE)
    assert world.due_times() == []
    world.put(paused=False)
    world.wait(MINUTE)
    assert world.due_times() == minutes(7, 7)


def test_a_change_keeps_the_other_fields(world: World) -> None:
    world.every_minute(data=b"1", tag="a", catch_up=CatchUp.ALL)
    world.wait(MINUTE)
    changed = world.put(data=b"2").state
    assert (changed.data, changed.tag, changed.catch_up, changed.runs) == (b"2", "a", CatchUp.ALL, 1)
    assert changed.next_due_ms == minutes(2, 2)[0]
    assert world.put(tag="").state.tag is None
    cron = world.put(cron="30 4 * * *", timezone="Europe/Berlin").state
    assert (cron.cron, cron.every_ms, cron.timezone) == ("30 4 * * *", 0, "Europe/Berlin")
    assert world.put(every_ms=MINUTE).state.cron == ""
    world.kill()
    assert world.info().state == world.put().state


def test_a_change_after_the_clock_was_set_back_repeats_no_due_time(world: World) -> None:
    put(world.engine, "jobs")
    world.put(topic="jobs", cron="* * * * *")
    world.wait(MINUTE)
    ran = world.due_times()
    world.jump(-10 * MINUTE)
    world.put(cron="*/1 * * * *")
    world.wait(10 * MINUTE)
    assert world.due_times() == ran


def test_a_schedule_is_deleted_with_its_topic(world: World) -> None:
    world.every_minute()
    ask_drop(world.engine, "jobs")
    with pytest.raises(ScheduleNotFoundError):
        world.info()
    put(world.engine, "jobs")
    world.wait(MINUTE)
    world.kill()
    world.wait(MINUTE)
    assert world.engine.schedules.count == 0 and world.due_times() == []


def test_a_deleted_schedule_is_not_due(world: World) -> None:
    world.every_minute()
    answers = Answers()
    world.engine.schedules.delete("s", answers.append)
    world.engine.schedules.delete("s", answers.append)
    assert [answer.deleted for answer in answers] == [True, False]  # type: ignore[attr-defined]
    world.wait(MINUTE)
    world.kill()
    world.wait(MINUTE)
    assert world.due_times() == []


def test_a_failed_run_is_tried_again(world: World) -> None:
    put(world.engine, "jobs", cap_records=1, discard=Discard.REJECT)
    world.put(topic="jobs", every_ms=MINUTE, catch_up=CatchUp.ALL)
    world.wait(MINUTE)
    world.wait(MINUTE)
    error = world.info().error
    assert error is not None and error[0] == "topic_full"
    assert world.engine.schedules.failures == 1
    assert world.engine.stats().schedules_failing == 1
    put(world.engine, "jobs", cap_records=9, discard=Discard.REJECT)
    world.wait(999)
    assert world.due_times() == minutes(1, 1)
    world.wait(1)
    assert world.due_times() == minutes(1, 2) and world.info().error is None
    assert world.engine.stats().schedules_failing == 0


@pytest.mark.parametrize("end", ["pause", "delete", "topic"])
def test_schedule_that_no_longer_runs_is_not_failing(world: World, end: str) -> None:
    put(world.engine, "jobs", cap_records=1, discard=Discard.REJECT)
    world.put(topic="jobs", every_ms=MINUTE, catch_up=CatchUp.ALL)
    world.wait(MINUTE)
    world.wait(MINUTE)
    assert world.engine.stats().schedules_failing == 1
    if end == "pause":
        world.put(paused=True)
    elif end == "delete":
        world.engine.schedules.delete("s", Answers().append)
    else:
        world.engine.drop_topic("jobs", False, lambda outcome: None)
    assert world.engine.stats().schedules_failing == 0


def test_a_failed_log_keeps_the_due_time(world: World) -> None:
    world.every_minute()
    world.faulty.plan = FaultPlan(call=world.faulty.calls + 1)
    world.wait(MINUTE)
    assert world.info().error is not None and world.info().state.runs == 0
    world.kill()
    world.wait(LATE_MS)
    assert world.due_times() == minutes(1, 1)


def test_the_quota_of_bytes_holds_for_jobs() -> None:
    world = World(max_total_bytes=100)
    world.every_minute(data=b'"0123456789"')
    world.wait(MINUTE)
    world.wait(MINUTE)
    error = world.info().error
    assert error is not None and error[0] == "throttled"
    assert world.due_times() == minutes(1, 1)


@pytest.mark.parametrize("limit", ["max_schedules", "max_schedules_per_key"])
def test_the_number_of_schedules_is_limited(limit: str) -> None:
    world = World(**{limit: 2})
    world.engine.set_tenants([("a-",)])
    put(world.engine, "jobs")
    for name in ("a-1", "a-2"):
        world.put(name, topic="jobs", every_ms=MINUTE)
    with pytest.raises(ThrottledError):
        world.put("a-3", topic="jobs", every_ms=MINUTE)
    world.put("a-1", every_ms=2 * MINUTE)


@pytest.mark.parametrize(
    ("wish", "error"),
    [
        ({"every_ms": MINUTE}, InvalidRequestError),
        ({"topic": "missing", "every_ms": MINUTE}, TopicNotFoundError),
        ({"topic": "jobs"}, InvalidRequestError),
        ({"topic": "jobs", "cron": "* * * * *", "every_ms": MINUTE}, InvalidRequestError),
        ({"topic": "jobs", "every_ms": MINUTE, "data": b'"' + b"x" * 70_000 + b'"'}, InvalidRequestError),
        ({"topic": "jobs", "every_ms": MINUTE, "tag": "x" * 300}, InvalidRequestError),
    ],
)
def test_an_invalid_schedule_changes_nothing(world: World, wish: dict[str, Any], error: type[Exception]) -> None:
    put(world.engine, "jobs")
    with pytest.raises(error):
        world.put("s", **wish)
    assert world.engine.schedules.count == 0


def test_the_topic_of_a_schedule_cannot_change(world: World) -> None:
    world.every_minute()
    put(world.engine, "other")
    with pytest.raises(InvalidRequestError) as caught:
        world.put(topic="other")
    assert caught.value.detail["field"] == "topic"


def test_lists_are_sorted_and_paged(world: World) -> None:
    put(world.engine, "jobs")
    for name in ("b", "a2", "a1", "c"):
        world.put(name, topic="jobs", every_ms=MINUTE)

    def names(**given: object) -> list[str]:
        return [one.state.name for one in world.engine.schedules.list_all(**given)]  # type: ignore[arg-type]

    assert names() == ["a1", "a2", "b", "c"]
    assert names(prefix="a") == ["a1", "a2"]
    assert names(prefix="a", after="a1") == ["a2"]
    assert names(after="a2", limit=1) == ["b"]
    assert names(requested=lambda info: info.state.name > "a2") == ["b", "c"]


def test_a_checkpoint_keeps_schedules_and_their_runs(world: World) -> None:
    world.every_minute()
    world.wait(MINUTE)
    checkpoint(world.engine)
    world.wait(MINUTE)
    before = world.info()
    world.kill()
    assert world.info() == before
    world.wait(0)
    assert world.due_times() == minutes(1, 2)


def test_memory_of_schedules_is_counted(world: World) -> None:
    put(world.engine, "jobs")
    before = world.engine.core.memory.total_bytes
    world.put(topic="jobs", every_ms=MINUTE, data=b'"' + b"x" * 5_000 + b'"')
    assert world.engine.core.memory.total_bytes - before > 5_000
    world.engine.schedules.delete("s", lambda answer: None)
    assert world.engine.core.memory.total_bytes == before


def test_frames_replayed_in_a_running_engine_reach_the_index(world: World) -> None:
    """As a standby does it (`engine.following`)."""
    state = world.every_minute().state
    own, features = topic(world.engine, "jobs"), world.engine.core.features

    def replay(mark: ScheduleState | ScheduleRun | ScheduleDropped) -> None:
        body = memoryview(encode_schedule(mark))
        features.replay(own, Frame(FrameKind.SCHEDULE, own.id, 1, 0, body, 0, len(body)), Never())

    class Never:
        def walk_log(self, visit: object) -> None: ...

        def lose(self, of: object, first: int, last: int) -> None: ...

    replay(ScheduleRun("s", state.next_due_ms + MINUTE, state.next_due_ms, 1, 1, 1))
    assert world.info().state.runs == 1
    replay(ScheduleDropped("s"))
    assert world.engine.schedules.count == 0
    replay(state)
    assert world.info().state == state
