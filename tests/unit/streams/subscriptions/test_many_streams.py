"""Patterns over very many streams: looked at in turns, bounded, and none that comes meanwhile is missed."""

from collections import deque
from collections.abc import Callable

import pytest

from tests.unit.conftest import append, killed, open_engine
from topics.model.errors import InvalidRequestError, TopicsError
from topics.model.topic_config import SUBSCRIPTIONS_TOPIC
from topics.streams.stream_state import START
from topics.streams.streams import inline_streams
from topics.streams.subscriptions import subscription_store
from topics.streams.subscriptions.subscription import Subscription, SubscriptionRequest
from topics.streams.subscriptions.subscriptions import Subscriptions
from topics.testing import FakeDisk


class World:
    def __init__(self, disk: FakeDisk | None = None) -> None:
        self.disk = FakeDisk() if disk is None else disk
        self.engine = open_engine(self.disk)
        self.later: deque[Callable[[], None]] = deque()
        self.made: list[Subscription] = []
        self.failed: list[TopicsError] = []
        self.subscriptions = Subscriptions(
            inline_streams(self.engine),
            lambda *args: None,
            lambda s, f: lambda: None,
            True,
        )

    def put(self, pattern: str, subscription_id: str = "s") -> None:
        request = SubscriptionRequest(type="pull-wake", pattern=pattern, wake_stream="wakes")
        self.subscriptions.put(
            subscription_id, request, "http://x", lambda made, new: self.made.append(made), self.failed.append
        )

    def put_off(self) -> None:
        self.engine.core.defer.use(self.later.append)

    def turns(self, count: int | None = None) -> int:
        done = 0
        while self.later and (count is None or done < count):
            self.later.popleft()()
            done += 1
        return done


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(subscription_store, "_MATCHED_AT_ONCE", 10)
    monkeypatch.setattr(subscription_store, "_LOOKED_AT_ONCE", 5)
    return World()


def test_names_are_looked_at_a_number_at_a_time(world: World) -> None:
    for number in range(45):
        append(world.engine, f"n{number:02}", 1)
    world.put_off()
    world.put("*")
    assert not world.made
    turns = world.turns()
    assert turns >= 45 // 10 + 45 // 5 - 1
    (made,) = world.made
    assert {f"n{number:02}" for number in range(45)} <= set(made.links)
    assert all(link.acked != START for link in made.links.values()), "it begins at the end of what was there"


def test_what_comes_to_be_meanwhile_is_watched_from_its_beginning(world: World) -> None:
    for number in range(45):
        append(world.engine, f"n{number:02}", 1)
    world.put_off()
    world.put("*")
    world.turns(2)
    append(world.engine, "a-new", 1)  # Behind the place that is being looked at.
    append(world.engine, "z-new", 1)
    world.turns()
    (made,) = world.made
    assert made.links["a-new"].acked == made.links["z-new"].acked == START
    assert {"a-new", "z-new"} <= made.pending


def test_a_pattern_that_fits_too_many_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_store, "MATCHES_MAX", 20)
    for number in range(30):
        append(world.engine, f"n{number:02}", 1)
    world.put_off()
    world.put("n*")
    world.turns()
    assert not world.made and isinstance(world.failed[0], InvalidRequestError)
    world.put("n1*")
    world.turns()
    assert len(world.made[0].links) == 10


def test_where_very_many_streams_stand_is_kept_in_few_records(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """To encode and log one for each of ten thousand took 20 ms of the loop."""
    monkeypatch.setattr(subscription_store, "_ACKS_TOGETHER", 20)
    for number in range(45):
        append(world.engine, f"n{number:02}", 1)
    append(world.engine, "alone", 1)
    world.put("n*")
    world.put("alone", "t")
    log = world.engine.core.directory.load(SUBSCRIPTIONS_TOPIC)
    assert log.head == 1 + (1 + 3) + (1 + 1)
    kept = {one.id: {name: link.acked for name, link in one.links.items()} for one in world.made}
    again = World(killed(world.disk))
    for name, links_of_it in kept.items():
        assert {path: link.acked for path, link in again.subscriptions.get(name).links.items()} == links_of_it
        assert START not in links_of_it.values()
