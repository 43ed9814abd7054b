"""Simulations of two servers at one store: class remote loses nothing and gives no seq two meanings, every loss of
another class is reported, and each rule of the takeover is needed for that."""

from collections.abc import Callable

import pytest

from tests.simulation.oracle import Broken
from tests.simulation.pair import PairWorld, summary
from topics.engine.remote_acks import RemoteAcks
from topics.engine.topic import Topic
from topics.model.errors import TopicsError
from topics.ops.failover.lease import LeaseRecord

Mistake = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("number", range(6))
def test_no_failover_breaks_a_promise(seed: int, number: int) -> None:
    PairWorld(seed + number).run(faults=12)


@pytest.mark.slow
def test_no_failover_of_many_breaks_a_promise(seed: int) -> None:
    for number in range(400):
        world = PairWorld(seed + number)
        try:
            world.run(faults=20)
        except Exception as error:
            raise Broken(f"seed {seed + number}: {error}; {world.trace[-10:]}") from error


def test_equal_seeds_give_equal_failovers(seed: int) -> None:
    worlds = [PairWorld(seed), PairWorld(seed)]
    for world in worlds:
        world.run(faults=8)
    assert worlds[0].trace == worlds[1].trace
    assert summary(worlds[0]) == summary(worlds[1])


def _skip_no_seqs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseRecord, "skipped", property(lambda self: 0))


def _show_what_is_not_shipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Topic, "visible_head", property(lambda self: self.head))


def _acknowledge_what_is_not_shipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RemoteAcks, "hold", lambda self, done, outcome: done(outcome))


def _forget_to_defer_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("topics.ops.backup.restore._defer_keys", lambda engine, moment: None)


def _forget_the_tail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("topics.ops.failover.standby.ship_tail", lambda *_: True)


@pytest.mark.parametrize(
    "mistake",
    [_skip_no_seqs, _show_what_is_not_shipped, _acknowledge_what_is_not_shipped],
)
def test_it_finds_a_planted_mistake_of_takeovers(monkeypatch: pytest.MonkeyPatch, mistake: Mistake, seed: int) -> None:
    mistake(monkeypatch)
    with pytest.raises((Broken, TopicsError)):
        for number in range(40):
            PairWorld(seed + number).run(faults=12)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", [_forget_the_tail, _forget_to_defer_keys])
def test_it_finds_a_rare_mistake_of_takeovers(monkeypatch: pytest.MonkeyPatch, mistake: Mistake, seed: int) -> None:
    mistake(monkeypatch)
    with pytest.raises((Broken, TopicsError)):
        for number in range(400):
            PairWorld(seed + number).run(faults=20)
