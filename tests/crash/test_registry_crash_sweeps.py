"""A caller that reads `__registry__` comes to the streams there are, whenever the server was stopped and however it
ended.

Streams come, are described, closed, forked and deleted while the registry is written, and the disk stops before each
call in turn. After the next start everything that happened is reported: to a follower that reads the registry from its
start, and to one that continues from its place before the crash, with everything that it had seen then.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.crash.streams import Player, Scenario, broken_promises
from tests.unit.streams.lifecycle_world import actual, believed, entries, opened
from topics.streams.lifecycle import ForkFrom
from topics.streams.system_streams.registry_stream import LifecycleLog


def look(player: Player) -> None:
    """A follower of the registry sees new entries."""
    seen = seen_by(player)
    last = seen[-1]["seq"] if seen else 0
    seen += [one for one in entries(player.streams) if one["seq"] > last]


def seen_by(player: Player) -> list[dict[str, Any]]:
    """The entries that the follower of this run has seen."""
    seen: list[dict[str, Any]] = player.__dict__.setdefault("seen", [])
    return seen


def everything(player: Player) -> None:
    """Each change told as it happens, and some only later together."""
    turns = opened(player.streams)[1]
    player.create("a", body=b"one|")
    turns.run()
    look(player)
    player.create_described("d")
    player.create("gone")
    turns.run()
    look(player)
    player.delete("gone")
    player.evolve("d", 2)
    player.close("a")
    player.checkpoint()
    turns.run()
    look(player)
    player.create("fork", fork=ForkFrom("a"))
    player.delete("a")
    player.create("gone")
    turns.run()
    look(player)


def many(player: Player) -> None:
    """Enough for several segments of the registry, with checkpoints in between."""
    turns = opened(player.streams)[1]
    for number in range(6):
        player.create(f"s{number}")
        if number % 2:
            player.delete(f"s{number - 1}")
            turns.run()
            look(player)
        if number % 3 == 2:
            player.checkpoint()


def check(player: Player) -> Iterator[str]:
    log, turns = opened(player.streams)
    turns.run()
    if not log.reconciled:
        yield "the registry was not compared with the streams"
    yield from differences(player, "from the start", entries(player.streams))
    look(player)
    yield from differences(player, "from where it was", seen_by(player))
    # And a second start finds nothing more to report.
    before = len(entries(player.streams))
    opened(player.streams)
    if len(entries(player.streams)) != before:
        yield f"told again: {entries(player.streams)[before:]}"


def differences(player: Player, who: str, seen: list[dict[str, Any]]) -> Iterator[str]:
    wrong = {
        name: (believed(seen).get(name), actual(player.streams).get(name))
        for name in believed(seen).keys() | actual(player.streams).keys()
        if believed(seen).get(name) != actual(player.streams).get(name)
    }
    if wrong:
        yield f"{who} {wrong}"


@pytest.mark.parametrize("scenario", [everything, many])
def test_registry_recovers_after_a_stop_at_every_call(scenario: Scenario) -> None:
    assert list(broken_promises(scenario, check)) == []


def test_the_sweep_finds_a_registry_that_is_not_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LifecycleLog, "_reconcile", lambda self: setattr(self, "reconciled", True))
    assert any("from the start" in broken for broken in broken_promises(everything, check, step=5))
