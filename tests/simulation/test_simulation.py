"""Simulations of whole servers: nothing acknowledged is lost, nothing is there twice, and equal seeds give equal
runs."""

from collections.abc import Callable

import pytest

from tests.simulation.oracle import Broken
from tests.simulation.world import World
from topics.engine.apply import Applier
from topics.engine.topic import Block, Topic
from topics.log.wal import Writer
from topics.model.errors import DamageError

Mistake = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("number", range(10))
def test_no_promise_is_broken(seed: int, number: int) -> None:
    World(seed + number).run(lives=6)


def test_a_seed_reports_the_same_story_twice(seed: int) -> None:
    stories = []
    for _ in range(2):
        world = World(seed)
        world.run(lives=4)
        stories.append(world.trace)
    assert stories[0] == stories[1] and len(stories[0]) > 100


def _forget_to_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Writer, "_sync", lambda self: setattr(self, "synced_lsn", self._written_lsn))


def _forget_deletes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Applier, "delete", lambda self, topic, before_seq, ranges: 0)


def _forget_keys(patch: pytest.MonkeyPatch) -> None:
    def forget(applier: Applier, topic: Topic, block: Block) -> None:
        if topic.keys is not None:
            topic.keys.release(block.key or "")

    patch.setattr(Applier, "_remember", forget)


@pytest.mark.parametrize("mistake", [_forget_to_sync, _forget_deletes, _forget_keys])
def test_it_finds_a_planted_mistake(monkeypatch: pytest.MonkeyPatch, mistake: Mistake, seed: int) -> None:
    mistake(monkeypatch)
    # A log that was never synced may also be found damaged, and that is not less of a finding.
    with pytest.raises((Broken, DamageError)):
        for number in range(40):
            World(seed + number).run(lives=8)
