"""The machine stops at every call: copies are where they were, once, and none is missing.

Each scenario mixes direct writes into a destination with forwarded ones, and is stopped before every call there is, or
has every call fail; `tests.crash.router_world` states what is checked then.
"""

from collections.abc import Iterator
from itertools import islice

import pytest

from tests.crash.router_world import RouterScenario, RouterWorld, small, sweep_faults, sweep_stops
from topics.engine.features import Rebuild
from topics.engine.topic import Topic
from topics.model.router_rules import Guarantee, TagMatch
from topics.routers import copy_batches, pump
from topics.routers.pump import Syncing
from topics.routers.replaying import Piece, RouterFeature
from topics.routers.router_frames import Forward
from topics.testing import Fault

SHOWN = 8

LONG = pytest.mark.slow
"""One shard is the easier case, and every mistake with it also shows with three."""

each_number_of_shards = pytest.mark.parametrize("shards", [pytest.param(1, marks=LONG), 3])
each_pair_of_classes = pytest.mark.parametrize(
    ("source", "dest", "shards"),
    [
        ("disk", "disk", 1),
        ("disk", "disk", 3),
        ("memory", "fsync", 3),
        ("fsync", "disk", 2),
        ("disk", "fsync", 2),
        pytest.param("memory", "fsync", 1, marks=LONG),
        pytest.param("fsync", "disk", 1, marks=LONG),
        pytest.param("disk", "fsync", 1, marks=LONG),
    ],
)


def assert_kept(broken: Iterator[str]) -> None:
    found = list(islice(broken, SHOWN))
    assert not found, "\n".join(found)


def forwarding(source: str, dest: str) -> RouterScenario:
    """Copies and direct writes, deletes among both, and a checkpoint in between."""

    def scenario(world: RouterWorld) -> None:
        world.start()
        world.put("a", durability=source)
        world.put("b", durability=dest)
        world.route("a", "b")
        world.append("a", 2, tag="x")
        world.append("b", tag="x")
        world.append("a")
        world.delete("b", tag="x")
        world.append("a", 3)
        world.checkpoint()
        world.append("b")
        world.append("a", 2)
        world.delete("b", before=6)
        world.append("a")

    return scenario


@each_pair_of_classes
def test_a_copy_is_kept_like_a_direct_write(source: str, dest: str, shards: int) -> None:
    assert_kept(sweep_stops(forwarding(source, dest), small(shards)))


def filtering(world: RouterWorld) -> None:
    world.start()
    world.put("a", durability="fsync")
    world.route("a", "b", filter=TagMatch("x"), guarantee=Guarantee.EXACTLY_ONCE)
    world.route("a", "c", preserve_tag=False)
    for tag in ("x", "y", "y", "x", "y"):
        world.append("a", 2, tag=tag)
    world.checkpoint()
    world.append("a", tag="y")
    world.append("a", 8, tag="x")
    world.background_sync()
    world.append("a", tag="x")


@each_number_of_shards
def test_fan_out_and_filters(shards: int) -> None:
    assert_kept(sweep_stops(filtering, small(shards)))


def chaining(world: RouterWorld) -> None:
    world.start()
    world.put("c", durability="fsync")
    world.route("a", "b")
    world.route("b", "c", guarantee=Guarantee.EXACTLY_ONCE)
    world.append("a", 2)
    world.append("b")
    world.seal("b")
    world.append("a")
    world.checkpoint()
    world.append("a", 2)
    world.delete("c", before=3)
    world.append("b")


@each_number_of_shards
def test_copies_of_copies(shards: int) -> None:
    assert_kept(sweep_stops(chaining, small(shards)))


def losing_the_source(world: RouterWorld) -> None:
    """The source is trimmed, and then deleted, while only the log has the origin of the copies."""
    world.start()
    world.put("b", durability="fsync")
    world.route("a", "b")
    world.append("a", 3)
    world.append("b")
    world.delete("a", before=3)
    world.append("a", 2)
    world.delete("b", before=2)
    world.drop("a")
    world.append("b")
    world.route("a", "b", "again")
    world.append("a", 2)
    world.checkpoint()
    world.append("a")


@each_number_of_shards
def test_copies_outlive_their_source(shards: int) -> None:
    assert_kept(sweep_stops(losing_the_source, small(shards)))


def backfilling(world: RouterWorld) -> None:
    """Records that the log does not hold any more travel by value."""
    world.start()
    world.put("e", durability="ephemeral")
    world.append("a", 4, tag="x")
    world.checkpoint()
    world.append("a", 2)
    world.route("a", "b", from_seq=0)
    world.append("b")
    world.route("e", "f")
    world.append("e", 2)
    world.append("a")
    world.append("e")
    world.delete("b", tag="x")
    world.checkpoint(full=True)
    world.append("a", 2)


@each_number_of_shards
def test_copies_by_value(shards: int) -> None:
    assert_kept(sweep_stops(backfilling, small(shards)))


def being_full(world: RouterWorld) -> None:
    world.start()
    world.put("a", cap_records=4)
    world.put("b", durability="fsync", cap_records=3, discard="reject")
    world.put("c", cap_records=3)
    world.route("a", "b")
    world.route("a", "c")
    world.append("a", 3)
    world.append("a", 3)
    world.append("a", 3)
    world.delete("b", before=3)
    world.checkpoint()
    world.delete("b", before=4)
    world.append("a", 2)


@each_number_of_shards
def test_backpressure_and_what_a_trimmed_source_leaves(shards: int) -> None:
    assert_kept(sweep_stops(being_full, small(shards)))


def in_groups(world: RouterWorld) -> None:
    world.start()
    world.put("b", durability="fsync")
    world.route("a", "b")
    world.route("a", "c")
    for _ in range(3):
        world.hold()
        world.append("a", 2)
        world.append("b")
        world.append("a")
        world.append("c")
        world.flush()
    world.checkpoint()
    world.hold()
    world.append("b")
    world.append("a")
    world.flush()


@each_number_of_shards
def test_group_commits(shards: int) -> None:
    assert_kept(sweep_stops(in_groups, small(shards)))


def working(world: RouterWorld) -> None:
    """Jobs that a router brings are acknowledged; jobs that were given up are moved, and forwarded from there."""
    world.start()
    world.put("jobs", type="queue", durability="fsync", max_deliveries=1, dead_letter="dead", lease_ms=1000)
    world.route("a", "jobs")
    world.route("dead", "archive")
    world.append("a", 3)
    world.work("jobs", 2, acked=1)
    world.append("jobs")
    world.clock.advance(2000)
    world.work("jobs", 2, acked=1)
    world.append("a", 2)
    world.checkpoint()
    world.work("jobs", 3, acked=1)
    world.clock.advance(2000)
    world.append("a")
    world.work("jobs", 1, acked=0)


@each_number_of_shards
def test_a_job_that_a_router_brought_stays_acknowledged(shards: int) -> None:
    assert_kept(sweep_stops(working, small(shards)))


def changing(world: RouterWorld) -> None:
    world.start()
    world.route("a", "b", filter=TagMatch("x"))
    world.append("a", 2, tag="y")
    world.route("a", "b", filter=TagMatch("y"))
    world.append("a", 1, tag="x")
    world.append("a", 2, tag="y")
    world.unroute("a->b")
    world.append("a", 2, tag="y")
    world.route("a", "c")
    world.append("a", 2)
    world.drop("c")
    world.append("a")


@each_number_of_shards
def test_changes_of_routers(shards: int) -> None:
    broken = (text for text in sweep_stops(changing, small(shards)) if "never arrived" not in text)
    assert_kept(broken)


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(forwarding("disk", "fsync"), id="forwarding"),
        pytest.param(chaining, marks=LONG, id="chaining"),
        pytest.param(losing_the_source, id="losing_the_source"),
        pytest.param(backfilling, marks=LONG, id="backfilling"),
    ],
)
def test_a_call_that_fails(scenario: RouterScenario) -> None:
    assert_kept(sweep_faults(scenario, small(2)))


@pytest.mark.parametrize("fault", [Fault.ENOSPC, Fault.EMFILE], ids=lambda fault: str(fault.name))
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(forwarding("disk", "fsync"), id="forwarding"),
        pytest.param(chaining, marks=LONG, id="chaining"),
        pytest.param(losing_the_source, marks=LONG, id="losing_the_source"),
        pytest.param(backfilling, marks=LONG, id="backfilling"),
    ],
)
def test_a_call_that_meets_a_shortage(scenario: RouterScenario, fault: Fault) -> None:
    assert_kept(sweep_faults(scenario, small(2), fault=fault))


# The sweeps can fail: each of these mistakes is found


def test_a_reference_across_a_checkpoint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_batches, "in_log", lambda source, part, seq: source.config.durability.logged)
    monkeypatch.setattr(pump, "in_log", lambda source, part, seq: source.config.durability.logged)
    assert any(sweep_stops(backfilling, small(3)))


def test_a_copy_that_is_shown_before_what_it_depends_on_is_synced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Syncing, "_unsynced", lambda self, source, dest: [])
    assert any(sweep_stops(forwarding("memory", "fsync"), small(3)))


def test_a_cursor_that_does_not_move_with_its_copies_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = RouterFeature.forward

    def forgetful(self: RouterFeature, topic: Topic, frame: Forward, rebuild: Rebuild) -> None:
        forward(self, topic, frame, rebuild)
        self._moved.clear()

    monkeypatch.setattr(RouterFeature, "forward", forgetful)
    assert any("twice" in text for text in sweep_stops(forwarding("disk", "disk"), small(1)))


def test_copies_that_are_made_from_the_state_of_their_source_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_the_state(self: RouterFeature, forward: Forward, rebuild: Rebuild) -> list[Piece]:
        source = self._core.topics.get(forward.source_id)
        if source is None or source.head < forward.ranges[-1][1] or source.earliest > forward.ranges[0][0]:
            return []
        return right(self, forward, rebuild)

    right = RouterFeature._pieces
    monkeypatch.setattr(RouterFeature, "_pieces", from_the_state)
    assert any(sweep_stops(losing_the_source, small(3)))
