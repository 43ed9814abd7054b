"""Priorities and followers: following raises a topic, and followers of a topic that pressure delays are notified."""

import pytest

from tests.unit.api.live.rig import Rig


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.engine.scheduler.topic_put_off.subscribe(rig.feeds.put_off)
    rig.put("low", priority=-500)
    return rig


def defer(rig: Rig, deferring: bool) -> None:
    rig.engine.core.scheduler.set_policy(0.0, deferring)


def test_a_follower_hears_once_that_news_is_late_and_when_it_comes_at_the_latest(rig: Rig) -> None:
    follower = rig.follow("low")
    rig.run_until_idle()
    follower.take()
    defer(rig, True)
    for _ in range(3):
        rig.append("low")
        rig.run_until_idle()
    assert follower.take() == [{"kind": "paced", "retry_after_ms": 5000}]
    assert follower.subscription.cursor == 0
    defer(rig, False)
    rig.run_until_idle()
    assert follower.story() == [[1, 2, 3]]


def test_a_follower_of_several_topics_goes_on_with_the_others(rig: Rig) -> None:
    rig.put("plain")
    sink = rig.sink()
    low, plain = rig.follow("low", sink=sink), rig.follow("plain", sink=sink)
    rig.run_until_idle()
    low.take(), plain.take()
    defer(rig, True)
    rig.append("low")
    rig.append("plain")
    rig.run_until_idle()
    assert plain.story() == [[1]]
    assert low.story() == ["paced"]


def test_a_connection_without_room_gets_nothing(rig: Rig) -> None:
    follower = rig.follow("low")
    rig.run_until_idle()
    follower.take()
    follower.sink.filled()
    defer(rig, True)
    rig.append("low")
    rig.run_until_idle()
    assert follower.take() == []
    follower.sink.drain()
    defer(rig, False)
    rig.run_until_idle()
    assert follower.story() == [[1]]


def test_deferred_topic_without_followers_sends_no_notice(rig: Rig) -> None:
    defer(rig, True)
    rig.engine.watch("low", lambda: None)
    rig.append("low")
    assert len(rig.feeds) == 0


def test_coming_to_follow_a_topic_counts_as_consuming_it(rig: Rig) -> None:
    rig.put("quiet")
    assert rig.engine.info("quiet", touch=False).effective_priority == 0
    rig.follow("quiet")
    assert rig.engine.info("quiet", touch=False).effective_priority == 500
