"""The scheduler by itself: a clock that stands still, a loop of one list, and topics that are only looked at."""

from collections.abc import Callable

import pytest

from topics.engine.scheduler import AGE_TICK_MS, BAND_TURNS, DELIVERIES_A_TICK, Scheduler, band_of
from topics.engine.topic import Topic
from topics.model.topic_config import TopicConfig
from topics.testing import ManualClock

Run = Callable[[], None]


class FakeTimer:
    def __init__(self, due_ms: int, function: Run) -> None:
        self.due_ms = due_ms
        self.function = function
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Bench:
    """A scheduler on a loop that a test turns by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ticks: list[Run] = []
        self.timers: list[FakeTimer] = []
        self.reported: list[str] = []
        self.scheduler = Scheduler(self.clock.now_ms, self.clock.monotonic, self.ticks.append)
        self.scheduler.later = self._later
        self._ids = 0

    def _later(self, seconds: float, function: Run) -> FakeTimer:
        timer = FakeTimer(self.clock.now_ms() + round(seconds * 1000), function)
        self.timers.append(timer)
        return timer

    def topic(self, name: str, priority: int | None = 0, watchers: int = 1) -> Topic:
        self._ids += 1
        topic = Topic(self._ids, name, 1, TopicConfig(priority=priority), 0)
        self.watch(topic, watchers)
        return topic

    def watch(self, topic: Topic, watchers: int = 1) -> None:
        topic.waiters = [lambda: self.reported.append(topic.name)] * watchers

    def wake(self, *topics: Topic) -> None:
        for topic in topics:
            self.scheduler.add(topic)

    def tick(self) -> list[str]:
        """One tick of the loop; whom it told."""
        before = len(self.reported)
        ticks, self.ticks[:] = self.ticks[:], []
        for run in ticks:
            run()
        return self.reported[before:]

    def pass_time(self, ms: int) -> list[str]:
        """Lets time go by, with the timers and ticks that come in it."""
        before = len(self.reported)
        until = self.clock.now_ms() + ms
        while True:
            self.timers = [timer for timer in self.timers if not timer.cancelled]
            due = min(self.timers, key=lambda timer: timer.due_ms, default=None)
            if due is None or due.due_ms > until:
                break
            self.clock.advance(max(due.due_ms - self.clock.now_ms(), 0))
            self.timers.remove(due)
            due.function()
            while self.ticks:
                self.tick()
        self.clock.advance(until - self.clock.now_ms())
        return self.reported[before:]


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(
    ("priority", "band"),
    [(2000, 0), (750, 0), (749, 1), (500, 1), (499, 2), (250, 2), (249, 3), (0, 3), (-1, 4), (-1000, 4)],
)
def test_the_bands(priority: int, band: int) -> None:
    assert band_of(priority) == band


# Without pressure


def test_a_change_is_reported_in_the_next_tick(bench: Bench) -> None:
    bench.wake(bench.topic("a"))
    assert bench.reported == []
    assert bench.tick() == ["a"]
    assert bench.ticks == []
    assert bench.timers == []


def test_changes_of_one_topic_are_reported_once(bench: Bench) -> None:
    topic = bench.topic("a")
    bench.wake(topic, topic, topic)
    assert bench.tick() == ["a"]
    assert bench.scheduler.coalesced_total == 2
    assert bench.scheduler.waiting == 0


def test_a_change_after_its_report_is_reported_again(bench: Bench) -> None:
    topic = bench.topic("a")
    bench.wake(topic)
    bench.tick()
    bench.watch(topic)
    bench.wake(topic)
    assert bench.tick() == ["a"]


def test_a_change_made_by_a_watcher_waits_for_the_next_tick(bench: Bench) -> None:
    first, second = bench.topic("a"), bench.topic("b")
    first.waiters = [lambda: bench.wake(second)]
    bench.wake(first)
    assert bench.tick() == []
    assert bench.tick() == ["b"]


def test_the_higher_priority_is_reported_first(bench: Bench) -> None:
    names = {"low": -5, "plain": 0, "some": 300, "more": 600, "most": 900}
    bench.wake(*(bench.topic(name, priority) for name, priority in names.items()))
    assert bench.tick() == ["most", "more", "some", "plain", "low"]


def test_a_topic_that_was_just_read_counts_more(bench: Bench) -> None:
    quiet, read = bench.topic("quiet", None), bench.topic("read", None)
    read.last_consumed_ts = bench.clock.now_ms()
    bench.wake(quiet, read)
    assert bench.tick() == ["read", "quiet"]


def test_within_a_band_who_came_first_is_notified_first(bench: Bench) -> None:
    bench.wake(*(bench.topic(f"t{number}", number % 2) for number in range(40)))
    assert bench.tick() == [f"t{number}" for number in range(40)]


def test_a_tick_is_bounded_and_the_rest_follows(bench: Bench) -> None:
    names = [f"t{number}" for number in range(2 * DELIVERIES_A_TICK + 10)]
    bench.wake(*(bench.topic(name) for name in names))
    assert bench.tick() == names[:DELIVERIES_A_TICK]
    assert bench.scheduler.backlog == DELIVERIES_A_TICK + 10
    assert bench.tick() == names[DELIVERIES_A_TICK : 2 * DELIVERIES_A_TICK]
    assert bench.tick() == names[2 * DELIVERIES_A_TICK :]
    assert (bench.scheduler.backlog, bench.scheduler.waiting, bench.ticks) == (0, 0, [])


def test_what_counts_is_the_watchers_and_no_topic_is_split(bench: Bench) -> None:
    first, second = bench.topic("a", watchers=DELIVERIES_A_TICK), bench.topic("b", watchers=DELIVERIES_A_TICK * 2)
    bench.wake(first, second)
    assert bench.tick() == ["a"] * DELIVERIES_A_TICK
    assert bench.tick() == ["b"] * DELIVERIES_A_TICK * 2


def test_a_tick_ends_early_when_report_takes_long(bench: Bench) -> None:
    slow, second = bench.topic("slow", 1), bench.topic("second")
    slow.waiters = [lambda: bench.clock.advance(5)]
    bench.wake(slow, second)
    assert bench.tick() == []
    assert bench.scheduler.backlog == 1
    assert bench.tick() == ["second"]


def test_a_round_gives_each_band_its_turns(bench: Bench) -> None:
    priorities = (900, 600, 300, 0, -5)
    topics = [bench.topic(str(priority), priority, watchers=1) for priority in priorities for _ in range(100)]
    bench.wake(*topics)
    reported = bench.tick()[: sum(BAND_TURNS) * 2]
    once = [str(p) for p, turns in zip(priorities, BAND_TURNS, strict=True) for _ in range(turns)]
    assert reported == once * 2


def test_what_a_tick_reported_is_acted_on_once_behind_all_of_it(bench: Bench) -> None:
    bench.scheduler.tick_ended.subscribe(lambda: bench.reported.append("then"))
    bench.wake(*(bench.topic(name) for name in "abc"))
    assert bench.tick() == ["a", "b", "c", "then"]
    bench.wake(bench.topic("d"))
    assert bench.tick() == ["d", "then"]
    bench.scheduler.set_policy(0.0, deferring=True)
    bench.wake(bench.topic("e"), bench.topic("f"))
    assert bench.tick() == ["e", "f", "then"]


def test_who_is_left_of_many_comes_before_those_of_the_next_tick(bench: Bench) -> None:
    many = [bench.topic(str(number)) for number in range(DELIVERIES_A_TICK + 3)]
    bench.wake(*many)
    assert bench.tick() == [topic.name for topic in many[:DELIVERIES_A_TICK]]
    assert bench.scheduler.backlog == 3
    bench.wake(bench.topic("later"))
    assert bench.tick() == [*(topic.name for topic in many[DELIVERIES_A_TICK:]), "later"]
    assert bench.scheduler.backlog == 0


def test_a_watcher_that_fails_keeps_the_news_from_nobody(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise RuntimeError("broken")

    first, second = bench.topic("a"), bench.topic("b")
    first.waiters = [broken, lambda: bench.reported.append("a")]
    bench.wake(first, second)
    assert bench.tick() == ["a", "b"]
    assert "watcher failed" in caplog.text


def test_a_topic_that_nobody_watches_any_more_leaves_quietly(bench: Bench) -> None:
    topic = bench.topic("a")
    bench.wake(topic)
    topic.waiters = None
    assert bench.tick() == []
    assert bench.scheduler.waiting == 0


# Coalescing


def test_rounds_keep_their_distance_and_the_first_does_not_wait(bench: Bench) -> None:
    bench.scheduler.set_policy(0.020, deferring=False)
    topic = bench.topic("a")
    bench.wake(topic)
    assert bench.tick() == ["a"]
    for _ in range(10):
        bench.watch(topic)
        bench.wake(topic)
        assert bench.tick() == []
        bench.clock.advance(1)
    assert bench.scheduler.coalesced_total == 9
    assert bench.pass_time(9) == []
    assert bench.pass_time(1) == ["a"]
    assert bench.scheduler.waited_ms == 20
    assert bench.scheduler.waiting == 0


def test_the_highest_band_keeps_no_distance(bench: Bench) -> None:
    bench.scheduler.set_policy(0.020, deferring=False)
    high, low = bench.topic("high", 1000), bench.topic("low", 0)
    bench.wake(high, low)
    assert bench.tick() == ["high", "low"]
    for _ in range(3):
        bench.watch(high)
        bench.watch(low)
        bench.wake(high, low)
        assert bench.tick() == ["high"]
    assert bench.pass_time(20) == ["low"]


def test_a_backlog_is_worked_off_without_a_distance(bench: Bench) -> None:
    bench.scheduler.set_policy(0.020, deferring=False)
    bench.wake(*(bench.topic(f"t{number}") for number in range(3 * DELIVERIES_A_TICK)))
    assert [len(bench.tick()) for _ in range(3)] == [DELIVERIES_A_TICK] * 3


def test_when_pressure_goes_the_gate_opens_at_once(bench: Bench) -> None:
    bench.scheduler.set_policy(0.020, deferring=False)
    topic = bench.topic("a")
    bench.wake(topic)
    bench.tick()
    bench.watch(topic)
    bench.wake(topic)
    bench.tick()
    bench.scheduler.set_policy(0.0, deferring=False)
    assert bench.tick() == ["a"]
    assert bench.pass_time(1000) == []


# Deferring


def test_negative_priorities_wait_until_pressure_goes(bench: Bench) -> None:
    bench.scheduler.set_policy(0.0, deferring=True)
    low, plain = bench.topic("low", -500), bench.topic("plain", 0)
    bench.wake(low, plain)
    assert bench.tick() == ["plain"]
    assert (bench.scheduler.put_off, bench.scheduler.deferred_total) == (1, 1)
    assert bench.pass_time(1000) == []
    bench.scheduler.set_policy(0.0, deferring=False)
    assert bench.tick() == ["low"]
    assert (bench.scheduler.put_off, bench.scheduler.deferred_total) == (0, 1)


def test_who_asked_hears_once_that_a_topic_is_put_off(bench: Bench) -> None:
    put_off: list[str] = []
    bench.scheduler.topic_put_off.subscribe(lambda topic: put_off.append(topic.name))
    low, plain = bench.topic("low", -900), bench.topic("plain", 0)
    bench.wake(low, plain)
    bench.tick()
    assert put_off == []
    bench.scheduler.set_policy(0.0, deferring=True)
    for topic in (low, plain):
        bench.watch(topic)
    bench.wake(low, plain)
    bench.tick()
    bench.pass_time(500)
    assert put_off == ["low"]


def test_a_topic_that_waits_when_deferring_begins_is_put_off_too(bench: Bench) -> None:
    put_off: list[str] = []
    bench.scheduler.topic_put_off.subscribe(lambda topic: put_off.append(topic.name))
    slow = bench.topic("slow", 0)
    slow.waiters = [lambda: bench.clock.advance(5)]
    bench.wake(slow, bench.topic("low", -900))
    bench.tick()
    bench.scheduler.set_policy(0.0, deferring=True)
    assert (put_off, bench.scheduler.put_off) == ([], 1)
    bench.clock.advance(AGE_TICK_MS)
    bench.tick()
    assert (put_off, bench.reported) == (["low"], [])


def test_a_deferred_topic_is_notified_once_of_all_it_missed(bench: Bench) -> None:
    bench.scheduler.set_policy(0.0, deferring=True)
    low = bench.topic("low", -500)
    for _ in range(50):
        bench.wake(low)
        bench.tick()
    bench.scheduler.set_policy(0.0, deferring=False)
    assert bench.tick() == ["low"]
    assert bench.tick() == []


@pytest.mark.parametrize(("priority", "seconds"), [(-1, 0.05), (-100, 1), (-500, 5), (-1000, 10)])
def test_waiting_lifts_a_topic_out_of_deferral(bench: Bench, priority: int, seconds: float) -> None:
    bench.scheduler.set_policy(0.020, deferring=True)
    bench.wake(bench.topic("low", priority))
    assert bench.tick() == []
    assert bench.pass_time(round(seconds * 1000) - AGE_TICK_MS) == []
    assert bench.pass_time(2 * AGE_TICK_MS) == ["low"]


def test_the_priority_shown_has_what_waiting_added(bench: Bench) -> None:
    bench.scheduler.set_policy(0.0, deferring=True)
    low = bench.topic("low", -500)
    assert bench.scheduler.priority(low) == -500
    bench.wake(low)
    bench.tick()
    bench.pass_time(2000)
    assert bench.scheduler.priority(low) == -300


def test_a_deferred_topic_does_not_hold_up_the_gate_of_others(bench: Bench) -> None:
    # The timer that ages deferred topics is slower than the gate; the sooner of the two has to count.
    bench.scheduler.set_policy(0.010, deferring=True)
    low, plain = bench.topic("low", -1000), bench.topic("plain", 0)
    bench.wake(low, plain)
    assert bench.tick() == ["plain"]
    bench.watch(plain)
    bench.wake(plain)
    assert bench.tick() == []
    assert bench.pass_time(10) == ["plain"]


# Background work


def test_background_work_may_always_run_without_pressure(bench: Bench) -> None:
    assert bench.scheduler.may_run(bench.topic("low", -1000))


def test_background_work_waits_while_low_value_is_deferred(bench: Bench) -> None:
    bench.scheduler.set_policy(0.0, deferring=True)
    assert not bench.scheduler.may_run(bench.topic("plain", 0))
    assert not bench.scheduler.may_run(bench.topic("more", 999))
    assert bench.scheduler.may_run(bench.topic("most", 1000))


def test_work_that_asks_again_is_known_and_forgotten_when_it_may_run(bench: Bench) -> None:
    topic = bench.topic("plain", 0)
    assert not bench.scheduler.puts_off("work", topic)
    bench.scheduler.set_policy(0.0, deferring=True)
    for _ in range(10):
        assert bench.scheduler.puts_off("work", topic)
        bench.clock.advance(1000)
    assert not bench.scheduler.puts_off("work", topic)
    # It had its turn: its next task waits anew, until the pressure goes.
    assert bench.scheduler.puts_off("work", topic)
    bench.scheduler.set_policy(0.0, deferring=False)
    assert not bench.scheduler.puts_off("work", topic)
    bench.scheduler.set_policy(0.0, deferring=True)
    bench.clock.advance(9999)
    assert bench.scheduler.puts_off("work", topic)


@pytest.mark.parametrize(("priority", "seconds"), [(500, 5), (0, 10), (-1000, 20)])
def test_background_work_is_allowed_once_it_has_waited(bench: Bench, priority: int, seconds: int) -> None:
    bench.scheduler.set_policy(0.0, deferring=True)
    topic, since = bench.topic("t", priority), bench.clock.now_ms()
    bench.clock.advance(seconds * 1000 - 10)
    assert not bench.scheduler.may_run(topic, since)
    bench.clock.advance(10)
    assert bench.scheduler.may_run(topic, since)


def test_topics_of_one_config_are_distinguished_by_who_was_read(bench: Bench) -> None:
    config = TopicConfig()
    topics = [bench.topic(name) for name in "abcd"]
    for topic in topics:
        topic.configure(config)
        topic.last_consumed_ts = 0
    bench.clock.advance(1)
    topics[2].last_consumed_ts = bench.clock.now_ms()
    bench.wake(*topics)
    bench.tick()
    assert bench.reported == ["c", "a", "b", "d"]
    bench.reported.clear()
    for topic in topics:
        topic.last_consumed_ts = bench.clock.now_ms()
        bench.watch(topic)
    bench.wake(*topics)
    bench.tick()
    assert bench.reported == ["a", "b", "c", "d"]
