"""Slow connections: how long they may be full, what that costs them, and heartbeats of quiet ones."""

from tests.unit.api.live.rig import MemoryOutlet, Rig
from topics.api.live import Patience, Sweep


def full_outlet(rig: Rig, **patience: float) -> MemoryOutlet:
    outlet = rig.outlet(**patience)
    outlet.filled()
    return outlet


def test_a_connection_that_is_full_for_too_long_ends() -> None:
    rig = Rig()
    outlet = full_outlet(rig, timeout_s=30.0)
    rig.clock.advance(29_900)
    outlet.sweep(rig.clock.monotonic())
    assert not outlet.slow
    rig.clock.advance(200)
    outlet.sweep(rig.clock.monotonic())
    assert outlet.slow


def test_one_that_drains_now_and_then_does_not() -> None:
    rig = Rig()
    outlet = full_outlet(rig, timeout_s=30.0)
    for _ in range(10):
        rig.clock.advance(20_000)
        outlet.sweep(rig.clock.monotonic())
        outlet.drain()
        outlet.filled()
    assert not outlet.slow


class Draining(MemoryOutlet):
    """Its client takes a little at a time, and never so much that there is room again."""

    held = 1_000_000

    def waiting_bytes(self) -> int:
        return self.held


def test_one_that_takes_a_large_frame_slowly_does_not_either() -> None:
    """It would come back for the same frame, and never get it."""
    rig = Rig()
    outlet = Draining(rig.turns, Patience(grace_s=5.0, timeout_s=30.0))
    outlet.filled()
    for _ in range(10):
        rig.clock.advance(29_000)
        outlet.held -= 1
        outlet.sweep(rig.clock.monotonic())
    assert not outlet.slow
    rig.clock.advance(29_000)
    outlet.held += 5
    outlet.sweep(rig.clock.monotonic())
    assert not outlet.slow
    rig.clock.advance(1_100)
    outlet.sweep(rig.clock.monotonic())
    assert outlet.slow, "what is written besides does not count as taken"


def test_a_loss_met_after_the_grace_is_the_readers_own() -> None:
    for waited_ms, reason in ((4_000, "cap"), (6_000, "from_seq_too_old")):
        rig = Rig()
        rig.put("t", cap_records=2)
        follower = rig.follow("t", outlet=rig.outlet(grace_s=5.0))
        rig.settle()
        follower.outlet.filled()
        rig.append("t", 5)
        rig.settle()
        rig.clock.advance(waited_ms)
        follower.outlet.drain()
        rig.settle()
        assert follower.story() == ["caught_up", (reason, 1, 3), [4, 5], "caught_up"]


def test_a_quiet_connection_beats_and_a_busy_one_does_not() -> None:
    rig = Rig()
    outlet = rig.outlet()
    outlet.idle_timeout_s = 1.0
    sweep = Sweep(rig.turns, 0.25)
    forget = sweep.add(outlet)
    for _ in range(12):
        rig.clock.advance(250)
        rig.tick()
    assert outlet.beats == 3
    for _ in range(12):
        outlet.sent = True
        rig.clock.advance(250)
        rig.tick()
    assert outlet.beats == 3
    forget()
    rig.clock.advance(250)
    rig.tick()
    assert len(sweep) == 0
    assert not rig.tick()


def test_the_sweep_looks_at_all_however_many_there_are() -> None:
    rig = Rig()
    sweep = Sweep(rig.turns, 0.25)
    outlets = [full_outlet(rig, timeout_s=1.0) for _ in range(1_200)]
    for outlet in outlets:
        sweep.add(outlet)
    for _ in range(40):
        rig.clock.advance(100)
        rig.tick()
    assert all(outlet.slow for outlet in outlets)
