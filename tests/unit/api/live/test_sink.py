"""Slow connections: how long they may be full, the consequences for them, and heartbeats of quiet ones."""

from tests.unit.api.live.rig import MemorySink, Rig
from topics.api.live import SlowLimits, Sweep


def full_sink(rig: Rig, **limits: float) -> MemorySink:
    sink = rig.sink(**limits)
    sink.filled()
    return sink


def test_a_connection_that_is_full_for_too_long_ends() -> None:
    rig = Rig()
    sink = full_sink(rig, timeout_s=30.0)
    rig.clock.advance(29_900)
    sink.sweep(rig.clock.monotonic())
    assert not sink.slow
    rig.clock.advance(200)
    sink.sweep(rig.clock.monotonic())
    assert sink.slow


def test_one_that_drains_now_and_then_does_not() -> None:
    rig = Rig()
    sink = full_sink(rig, timeout_s=30.0)
    for _ in range(10):
        rig.clock.advance(20_000)
        sink.sweep(rig.clock.monotonic())
        sink.drain()
        sink.filled()
    assert not sink.slow


class Draining(MemorySink):
    """Its client takes a little at a time, and never so much that there is room again."""

    held = 1_000_000

    def waiting_bytes(self) -> int:
        return self.held


def test_one_that_takes_a_large_frame_slowly_does_not_either() -> None:
    """It would come back for the same frame, and never get it."""
    rig = Rig()
    sink = Draining(rig.run_queue, SlowLimits(grace_s=5.0, timeout_s=30.0))
    sink.filled()
    for _ in range(10):
        rig.clock.advance(29_000)
        sink.held -= 1
        sink.sweep(rig.clock.monotonic())
    assert not sink.slow
    rig.clock.advance(29_000)
    sink.held += 5
    sink.sweep(rig.clock.monotonic())
    assert not sink.slow
    rig.clock.advance(1_100)
    sink.sweep(rig.clock.monotonic())
    assert sink.slow, "what is written besides does not count as taken"


def test_a_loss_met_after_the_grace_is_the_readers_own() -> None:
    for waited_ms, reason in ((4_000, "cap"), (6_000, "from_seq_too_old")):
        rig = Rig()
        rig.put("t", cap_records=2)
        follower = rig.follow("t", sink=rig.sink(grace_s=5.0))
        rig.run_until_idle()
        follower.sink.filled()
        rig.append("t", 5)
        rig.run_until_idle()
        rig.clock.advance(waited_ms)
        follower.sink.drain()
        rig.run_until_idle()
        assert follower.story() == ["caught_up", (reason, 1, 3), [4, 5], "caught_up"]


def test_a_quiet_connection_beats_and_a_busy_one_does_not() -> None:
    rig = Rig()
    sink = rig.sink()
    sink.idle_timeout_s = 1.0
    sweep = Sweep(rig.run_queue, 0.25)
    forget = sweep.add(sink)
    for _ in range(12):
        rig.clock.advance(250)
        rig.tick()
    assert sink.beats == 3
    for _ in range(12):
        sink.sent = True
        rig.clock.advance(250)
        rig.tick()
    assert sink.beats == 3
    forget()
    rig.clock.advance(250)
    rig.tick()
    assert len(sweep) == 0
    assert not rig.tick()


def test_the_sweep_looks_at_all_however_many_there_are() -> None:
    rig = Rig()
    sweep = Sweep(rig.run_queue, 0.25)
    sinks = [full_sink(rig, timeout_s=1.0) for _ in range(1_200)]
    for sink in sinks:
        sweep.add(sink)
    for _ in range(40):
        rig.clock.advance(100)
        rig.tick()
    assert all(sink.slow for sink in sinks)
