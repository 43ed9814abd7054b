"""Measurements, and the delivery of the governor's decisions to the parts that act on them."""

import asyncio
from pathlib import Path

import pytest

from tests.unit.conftest import FSYNC, append, ask_append, batch_of, flush, hold, one, open_engine, put, seqs
from topics.engine.backpressure import SAMPLE_MS, Sample
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.log.commit_thread import CommitThread
from topics.log.posix import PosixFileSystem
from topics.model.errors import ThrottledError
from topics.model.topic_config import TopicConfigPatch
from topics.system.clock import SystemClock
from topics.testing import FakeDisk, ManualClock, SeededEntropy

CALM = Sample()
OVERLOAD = Sample(loop_lag_ms=10_000.0)


def press(engine: Engine, sample: Sample, samples: int = 20) -> None:
    """Lets the engine measure the same a number of times."""
    engine.throttle.measure = lambda: sample  # type: ignore[method-assign]
    for _ in range(samples):
        engine.throttle.tick()


# Measuring


def measured(engine: Engine) -> Sample:
    engine.throttle.tick()
    return engine.throttle.sample


def test_an_idle_engine_measures_nothing(engine: Engine) -> None:
    assert measured(engine) == CALM
    assert engine.throttle.stats().pressure == 0.0


def test_a_full_queue_is_seen(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock, commit_queue_bytes=1000)
    append(engine, "t", 1)
    hold(engine)
    ask_append(engine, "t", "x" * 400)
    assert 0.4 < measured(engine).queue_part < 0.6
    flush(engine)
    assert measured(engine).queue_part == 0.0


def test_a_disk_that_stands_still_is_seen_although_it_reports_nothing(engine: Engine, clock: ManualClock) -> None:
    append(engine, "t", 1)
    engine.throttle.start(_NoLoop())  # type: ignore[arg-type]
    hold(engine)
    answers = ask_append(engine, "t", 2)
    found = []
    for _ in range(4):
        clock.advance(SAMPLE_MS)
        found.append(measured(engine).commit_ms)
    assert found == pytest.approx([0.0, 100.0, 200.0, 300.0])
    flush(engine)
    assert one(answers, AppendResult).last_seq == 2
    assert measured(engine).commit_ms == 0.0


def test_a_write_that_has_just_come_is_no_disk_that_stands_still(engine: Engine, clock: ManualClock) -> None:
    append(engine, "t", 0)
    engine.throttle.start(_NoLoop())  # type: ignore[arg-type]
    for number in range(5):
        clock.advance(10 * SAMPLE_MS)
        hold(engine)
        ask_append(engine, "t", number)
        assert measured(engine).commit_ms == 0.0
        flush(engine)
        assert measured(engine).commit_ms == 0.0


def test_slow_syncs_are_seen(engine: Engine) -> None:
    put(engine, "t", durability=FSYNC)
    engine.throttle.start(_NoLoop())  # type: ignore[arg-type]
    latency = engine.core.shards[0].writer.sync_latency
    latency.add(0.030)
    latency.add(0.050)
    assert measured(engine).commit_ms == pytest.approx(40.0)
    assert measured(engine).commit_ms == 0.0


def test_a_late_timer_is_the_lag_of_the_loop(engine: Engine, clock: ManualClock) -> None:
    loop = _NoLoop()
    engine.throttle.start(loop)  # type: ignore[arg-type]
    clock.advance(SAMPLE_MS)
    loop.fire()
    assert engine.throttle.sample.loop_lag_ms == pytest.approx(0.0, abs=1e-6)
    clock.advance(SAMPLE_MS + 70)
    loop.fire()
    assert engine.throttle.sample.loop_lag_ms == pytest.approx(70.0)
    engine.throttle.stop()
    assert loop.timers == []


def test_a_mistake_in_measuring_does_not_end_it(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Sample:
        raise RuntimeError("broken")

    loop = _NoLoop()
    engine.throttle.start(loop)  # type: ignore[arg-type]
    engine.throttle.measure = broken  # type: ignore[method-assign]
    loop.fire()
    assert "backpressure measurement failed" in caplog.text
    assert len(loop.timers) == 1


class _NoLoop:
    """Keeps the sampler's timer for a test to fire."""

    def __init__(self) -> None:
        self.timers: list[_Timer] = []

    def call_later(self, seconds: float, function: object) -> "_Timer":
        timer = _Timer(self, function)
        self.timers.append(timer)
        return timer

    def fire(self) -> None:
        (timer,) = self.timers
        self.timers.remove(timer)
        timer.function()  # type: ignore[operator]


class _Timer:
    def __init__(self, loop: _NoLoop, function: object) -> None:
        self._loop = loop
        self.function = function

    def cancel(self) -> None:
        self._loop.timers.remove(self)


# Acting


def test_pressure_defers_negative_priorities_and_calm_feeds_them(engine: Engine) -> None:
    put(engine, "low", priority=-10)
    put(engine, "high", priority=800)
    reported: list[str] = []
    for name in ("low", "high"):
        engine.watch(name, lambda name=name: reported.append(name))  # type: ignore[misc]
    # Deferring and not yet refusing.
    press(engine, Sample(queue_part=0.9))
    append(engine, "low", 1)
    append(engine, "high", 1)
    assert reported == ["high"]
    stats = engine.stats().throttle
    assert (stats.throttle_level, stats.topics_deferred, stats.topics_deferred_total) == (3, 1, 1)
    press(engine, CALM)
    assert reported == ["high", "low"]
    assert engine.stats().throttle.throttle_level == 0


def test_overload_refuses_and_calm_lets_in(engine: Engine) -> None:
    append(engine, "t", 1)
    press(engine, OVERLOAD)
    with pytest.raises(ThrottledError) as refused:
        ask_append(engine, "t", 2)
    assert refused.value.detail["retry_after_ms"] == engine.throttle.decision.retry_after_ms > 0
    assert engine.stats().throttle.appends_refused_total == 1
    press(engine, CALM)
    assert append(engine, "t", 3).last_seq == 2
    assert seqs(engine, "t") == [1, 2]


def test_what_changes_for_clients_is_logged(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    press(engine, OVERLOAD)
    press(engine, CALM, 30)
    levels = [record.throttle_level for record in caplog.records if record.message == "backpressure level changed"]  # type: ignore[attr-defined]
    assert levels == [3, 4, 3, 2]


def test_the_priority_of_a_waiting_topic_is_shown_with_its_age(engine: Engine, clock: ManualClock) -> None:
    put(engine, "low", priority=-500)
    engine.watch("low", lambda: None)
    press(engine, OVERLOAD)
    engine.admission.set_policy(refusing=False, retry_after_ms=0)
    append(engine, "low", 1)
    clock.advance(3000)
    assert engine.info("low").effective_priority == -200


def test_the_steps_can_be_switched_off(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(
        disk, clock,
        pressure_coalesce_percent=101, pressure_widen_percent=101, pressure_defer_percent=101,
        pressure_refuse_percent=101,
    )  # fmt: skip
    press(engine, OVERLOAD)
    assert append(engine, "t", 1).last_seq == 1
    assert (engine.stats().throttle.pressure > 0.99, engine.stats().throttle.throttle_level) == (True, 0)


# With threads


def started(folder: Path, **options: object) -> Engine:
    settings = {"data_dir": str(folder / "data"), "wal_shards": 2, "wal_file_bytes": 1 << 20, **options}
    engine = Engine.recover(PosixFileSystem(), EngineOptions(**settings), SystemClock(), SeededEntropy(1))  # type: ignore[arg-type]
    engine.start(asyncio.get_running_loop())
    return engine


def test_commits_are_widened_and_narrowed_again(tmp_path: Path) -> None:
    async def test() -> None:
        engine = started(tmp_path)
        press(engine, OVERLOAD)
        committers = [shard.committer for shard in engine.core.shards]
        assert all(
            isinstance(committer, CommitThread) and committer._window._wide_s > 0.009 for committer in committers
        )
        press(engine, CALM)
        assert all(isinstance(committer, CommitThread) and committer._window._wide_s == 0.0 for committer in committers)
        await engine.close()

    asyncio.run(test())


def test_closing_under_pressure_reports_everyone_who_waits(tmp_path: Path) -> None:
    async def test() -> None:
        engine = started(tmp_path)
        reported: list[str] = []
        done = asyncio.Event()
        engine.put_topic("low", TopicConfigPatch(priority=-1000), lambda outcome: done.set())
        await asyncio.wait_for(done.wait(), 5)
        engine.watch("low", lambda: reported.append("low"))
        press(engine, Sample(queue_part=0.9))
        answered = asyncio.get_running_loop().create_future()
        engine.append("low", batch_of(1), answered.set_result)
        await asyncio.wait_for(answered, 5)
        await asyncio.sleep(0)
        assert reported == []
        await engine.close()
        assert reported == ["low"]

    asyncio.run(test())


def test_a_stalled_disk_is_noticed_by_the_running_engine(tmp_path: Path) -> None:
    """The whole way, with real threads: the writer is held, the sampler sees it, and then it is over."""

    async def test() -> None:
        engine = started(tmp_path, pressure_commit_ms=1)
        answered = asyncio.get_running_loop().create_future()
        engine.append("t", batch_of(1), answered.set_result)
        await asyncio.wait_for(answered, 5)
        for shard in engine.core.shards:
            assert isinstance(shard.committer, CommitThread)
            shard.committer.resume.clear()
        stuck = asyncio.get_running_loop().create_future()
        engine.append("t", batch_of(2), stuck.set_result)
        while engine.throttle.decision.level == 0:
            await asyncio.sleep(0.01)
        assert not stuck.done()
        for shard in engine.core.shards:
            shard.committer.resume.set()  # type: ignore[attr-defined]
        result = await asyncio.wait_for(stuck, 5)
        assert isinstance(result, AppendResult)
        while engine.throttle.decision.level:
            await asyncio.sleep(0.01)
        await engine.close()

    asyncio.run(asyncio.wait_for(test(), 60))
