"""The scheduler's promises, for all topics and any pressure: no watcher is called twice, forgotten or starved, and a
topic's watchers are called in the order in which they asked.
"""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.property.effort import effort
from topics.engine.scheduler import AGE_TICK_MS, BAND_TURNS, DELIVERIES_A_TICK, NoTimer, Scheduler
from topics.engine.topic import Topic
from topics.model.topic_config import TopicConfig
from topics.testing import ManualClock

Run = Callable[[], None]

ROUND = sum(BAND_TURNS)
LONGEST_DEFERRAL_MS = 10_000
priorities = st.one_of(st.none(), st.integers(-1200, 1200))


def a_topic(number: int, priority: int | None) -> Topic:
    return Topic(number, f"t{number}", 1, TopicConfig(priority=priority), 0)


class SchedulerLaws(RuleBasedStateMachine):
    """Watchers come, topics change, time and pressure pass. The model keeps the watchers that are owed a call."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.ticks: list[Run] = []
        self.timed: list[Run] = []
        self.scheduler = Scheduler(self.clock.now_ms, self.clock.monotonic, self.ticks.append)
        self.scheduler.later = self.later
        self.topics: list[Topic] = []
        self.watchers = 0
        self.changed: set[Topic] = set()
        """Topics that changed since their watchers were last told."""
        self.asked: dict[Topic, list[int]] = {}
        """Watchers that were not called yet, in the order they came."""
        self.owed: set[int] = set()
        """The watchers among them whose topic has changed since they came."""
        self.served: set[Topic] = set()
        """Topics whose watchers were called since the scheduler was last let run."""
        self.mistakes: list[str] = []
        """The mistakes found. The scheduler itself survives a watcher that raises, so they are raised elsewhere."""

    def later(self, seconds: float, function: Run) -> NoTimer:
        self.timed.append(function)
        return NoTimer()

    @initialize(given=st.lists(priorities, min_size=1, max_size=8))
    def begin(self, given: list[int | None]) -> None:
        self.topics = [a_topic(number, priority) for number, priority in enumerate(given)]
        self.asked = {topic: [] for topic in self.topics}

    def pick(self, number: int) -> Topic:
        return self.topics[number % len(self.topics)]

    @rule(number=st.integers(0, 7), count=st.sampled_from([1, 1, 1, 3, DELIVERIES_A_TICK]))
    def watch(self, number: int, count: int) -> None:
        topic = self.pick(number)
        for _ in range(count):
            self.watchers += 1
            me = self.watchers
            topic.waiters = [*(topic.waiters or ()), lambda me=me: self.called(topic, me)]  # type: ignore[misc]
            self.asked[topic].append(me)

    def called(self, topic: Topic, me: int) -> None:
        if topic not in self.changed:
            self.mistakes.append(f"{topic.name}: watcher {me} is called although nothing happened")
        if self.asked[topic][:1] != [me]:
            self.mistakes.append(f"{topic.name}: watcher {me} is called twice, or before others that came earlier")
        self.asked[topic].remove(me)
        self.owed.discard(me)
        self.served.add(topic)

    def let_run(self, functions: list[Run]) -> None:
        runs, functions[:] = functions[:], []
        for run in runs:
            run()
            self.changed -= self.served
            self.served.clear()

    @rule(number=st.integers(0, 7), times=st.integers(1, 3))
    def change(self, number: int, times: int) -> None:
        topic = self.pick(number)
        for _ in range(times):
            # As `EngineCore.wake` does: without watchers nothing is queued.
            if topic.waiters:
                self.scheduler.add(topic)
                self.owed.update(self.asked[topic])
                self.changed.add(topic)

    @rule(number=st.integers(0, 7))
    def read(self, number: int) -> None:
        self.pick(number).last_consumed_ts = self.clock.now_ms()

    @rule(number=st.integers(0, 7), priority=priorities)
    def configure(self, number: int, priority: int | None) -> None:
        self.pick(number).config = TopicConfig(priority=priority)

    @rule()
    def tick(self) -> None:
        self.let_run(self.ticks)

    @rule(ms=st.sampled_from([1, 5, 20, AGE_TICK_MS, 400, 3000]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)
        self.let_run(self.timed)

    @rule(window_ms=st.sampled_from([0, 0, 2, 20]), deferring=st.booleans())
    def press(self, window_ms: int, deferring: bool) -> None:
        self.scheduler.set_policy(window_ms / 1000, deferring)

    @precondition(lambda self: self.topics)
    @invariant()
    def somebody_comes_back_for_those_who_wait(self) -> None:
        assert not self.mistakes
        if self.scheduler.waiting:
            assert self.ticks or self.timed

    def teardown(self) -> None:
        """However high the pressure stays, time alone brings everyone their news."""
        self.scheduler.set_policy(0.020, deferring=True)
        for _ in range(LONGEST_DEFERRAL_MS // AGE_TICK_MS + 2):
            for _ in range(20):
                self.tick()
            self.wait(AGE_TICK_MS)
        assert not self.mistakes
        assert not self.owed
        assert not self.scheduler.waiting


TestSchedulerLaws = SchedulerLaws.TestCase
TestSchedulerLaws.settings = effort(60, steps=40)


@effort(60)
@given(
    given=st.lists(priorities, min_size=2, max_size=120),
    late=st.integers(-1000, 1000),
    after=st.integers(0, 50),
    step_ms=st.sampled_from([0, 1, 20]),
)
def test_a_topic_is_served_within_as_many_rounds_as_others_stood_before_it(
    given: list[int | None], late: int, after: int, step_ms: int
) -> None:
    """Every watcher that is served gets in line again at once: a flood that never ends. Each tick serves exactly
    one."""
    clock, ticks, reported = ManualClock(), list[Run](), list[Topic]()
    scheduler = Scheduler(clock.now_ms, clock.monotonic, ticks.append)

    def enlist(topic: Topic) -> None:
        topic.waiters = [lambda: reported.append(topic)] + [lambda: None] * (DELIVERIES_A_TICK - 1)
        scheduler.add(topic)

    def tick() -> None:
        clock.advance(step_ms)
        before = len(reported)
        ticks.pop()()
        assert len(reported) == before + 1
        enlist(reported[-1])

    flood = [a_topic(number, priority) for number, priority in enumerate(given)]
    for topic in flood:
        enlist(topic)
    for _ in range(after):
        tick()
    newcomer, ahead = a_topic(len(flood), late), scheduler.waiting
    enlist(newcomer)
    begun = len(reported)
    while newcomer not in reported[begun:]:
        tick()
        # One round for each that stood before it, the one it came in, and one each time age moves it to another band.
        assert len(reported) - begun <= ROUND * (ahead + 1 + len(BAND_TURNS))
