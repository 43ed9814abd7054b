"""State of schedules, and the decision which due times get a job.

A schedule belongs to the topic that it appends to: its frames (`schedules.schedule_frames`) are in the topic's shard,
and it is deleted with the topic. Names are unique in the server.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from topics.engine.features import Rebuild
from topics.engine.quotas import SortedNames
from topics.engine.topic import Topic
from topics.log.frame import Frame, FrameKind
from topics.schedules.due_times import next_due
from topics.schedules.schedule_frames import (
    PART_NAME,
    CatchUp,
    ScheduleDropped,
    ScheduleRun,
    ScheduleState,
    decode_part,
    decode_schedule,
    encode_part,
)

SCHEDULE_BYTES = 1_200
"""Memory of a schedule besides its texts: its state, its numbers, and its places in dicts, lists and the heap."""
LATE_MS = 10_000
"""A due time that is later than this is missed, and `catch_up` decides."""
CATCH_UP_MAX = 1_000
"""Jobs of one catch-up with the policy `all`; further missed due times are skipped."""
_RUN_JOBS = 100
_RUN_BYTES = 1024 * 1024
"""Bounds of one frame of jobs."""

# The due times of a run.


class RunPlan(NamedTuple):
    due_times: list[int]
    """The due times that get a job now, ascending; empty if all are skipped."""
    next_due_ms: int
    catches_up: bool
    """Whether missed due times are among them."""


def plan_run(state: ScheduleState, now: int, caught_up: int) -> RunPlan:
    """Decides which due times up to `now` get a job.

    `caught_up` is the number of missed due times that already got a job in this catch-up.
    """
    due, late = state.next_due_ms, state.next_due_ms < now - LATE_MS
    most = max(min(_RUN_JOBS, _RUN_BYTES // max(len(state.data), 1)), 1)
    if late:
        if state.catch_up is CatchUp.ONE:
            return RunPlan([due], next_due(state, now), True)
        if state.catch_up is CatchUp.ALL:
            most = min(most, CATCH_UP_MAX - caught_up)
        if state.catch_up is CatchUp.NONE or most <= 0:
            return RunPlan([], next_due(state, now - LATE_MS - 1), True)
    due_times: list[int] = []
    while 0 < due <= now and len(due_times) < most:
        due_times.append(due)
        due = next_due(state, due)
    return RunPlan(due_times, due, late)


# The schedules of a topic, and of all topics by name.


class Schedule:
    """A schedule and its topic."""

    __slots__ = ("caught_up", "entry", "error", "failures", "retry_ms", "state", "topic")

    def __init__(self, topic: Topic, state: ScheduleState) -> None:
        self.topic = topic
        self.state = state
        self.entry = 0
        """The number of its entry in the heap; entries with other numbers are obsolete."""
        self.caught_up = 0
        """Missed due times that got a job since it was last on time."""
        self.failures = 0
        """Consecutive failed runs."""
        self.retry_ms = 0
        """When a failed run is tried again."""
        self.error: tuple[str, str] | None = None
        """Code and message of the last failure; None after a success."""

    def apply(self, run: ScheduleRun) -> None:
        self.state = msgspec.structs.replace(
            self.state, next_due_ms=run.next_due_ms, last_due_ms=run.last_due_ms, last_run_ms=run.last_run_ms,
            last_seq=run.last_seq, runs=run.runs,
        )  # fmt: skip


class TopicSchedules:
    """The schedules of one topic, by name."""

    __slots__ = ("by_name", "memory_bytes")

    def __init__(self) -> None:
        self.by_name: dict[str, Schedule] = {}
        self.memory_bytes = 0
        """Counted by `engine.quotas.KeptMemory`."""

    def put(self, topic: Topic, state: ScheduleState) -> Schedule:
        schedule = self.by_name.get(state.name)
        if schedule is None:
            schedule = self.by_name[state.name] = Schedule(topic, state)
        else:
            self.memory_bytes -= size_of(schedule.state)
            schedule.state = state
        self.memory_bytes += size_of(state)
        return schedule

    def drop(self, name: str) -> None:
        schedule = self.by_name.pop(name, None)
        if schedule is not None:
            self.memory_bytes -= size_of(schedule.state)


def size_of(state: ScheduleState) -> int:
    """The memory of a schedule."""
    texts = len(state.name) + len(state.cron) + len(state.timezone) + len(state.data) + len(state.created_by)
    return SCHEDULE_BYTES + 2 * len(state.name) + texts


def schedules_of(topic: Topic) -> TopicSchedules | None:
    """The schedules of a topic, if it ever had one."""
    return topic.parts.get(PART_NAME) if topic.parts is not None else None  # type: ignore[return-value]


class ScheduleFeature:
    """Schedules as checkpoints and recovery use them (`engine.features`), and the index of all schedules by name."""

    name = PART_NAME
    kinds = frozenset((FrameKind.SCHEDULE,))

    def __init__(self, topics: Mapping[int, Topic]) -> None:
        self._topics = topics
        self.by_name: dict[str, Schedule] = {}
        self.names = SortedNames()
        self._recovered = False

    def replay(self, topic: Topic, frame: Frame, rebuild: Rebuild) -> None:
        mark = decode_schedule(frame.body)[0]
        schedules = _part(topic)
        if isinstance(mark, ScheduleState):
            # A running standby replays frames behind the end of its recovery.
            (self.put if self._recovered else schedules.put)(topic, mark)
        elif isinstance(mark, ScheduleDropped):
            schedules.drop(mark.name)
            if self._recovered:
                self._forget(mark.name)
        elif (schedule := schedules.by_name.get(mark.name)) is not None:
            schedule.apply(mark)

    def save(self, topic: Topic) -> bytes:
        schedules = schedules_of(topic)
        if schedules is None or not schedules.by_name:
            return b""
        return encode_part([schedule.state for schedule in schedules.by_name.values()])

    def load(self, topic: Topic, part: bytes) -> None:
        for state in decode_part(part):
            _part(topic).put(topic, state)

    def reconcile(self) -> None:
        """Indexes the schedules that recovery has put together."""
        self._recovered = True
        for topic in self._topics.values():
            schedules = schedules_of(topic)
            for schedule in list(schedules.by_name.values()) if schedules is not None else ():
                self._index(schedule)
        self.names = SortedNames(self.by_name)

    def _index(self, schedule: Schedule) -> None:
        """Of two with the same name the younger counts: the creation of the older one failed after it was logged."""
        name = schedule.state.name
        other = self.by_name.get(name)
        if other is not None:
            older, schedule = sorted((other, schedule), key=lambda one: (one.state.created_ms, one.topic.id))
            _part(older.topic).drop(name)
        self.by_name[name] = schedule

    def may_page_out(self, topic: Topic) -> bool:
        """A run needs its topic, and lists examine every schedule."""
        schedules = schedules_of(topic)
        return schedules is None or not schedules.by_name

    def put(self, topic: Topic, state: ScheduleState) -> Schedule:
        """Applies a creation or a change."""
        schedule = _part(topic).put(topic, state)
        if state.name not in self.by_name:
            self.names.add(state.name)
        self.by_name[state.name] = schedule
        return schedule

    def drop(self, topic: Topic, name: str) -> None:
        """Applies a deletion."""
        _part(topic).drop(name)
        self._forget(name)

    def forget(self, topic: Topic) -> list[str]:
        """The topic was deleted; returns the names of its schedules."""
        schedules = schedules_of(topic)
        names = sorted(schedules.by_name) if schedules is not None else []
        for name in names:
            self._forget(name)
        return names

    def _forget(self, name: str) -> None:
        if self.by_name.pop(name, None) is not None:
            self.names.discard(name)


def _part(topic: Topic) -> TopicSchedules:
    schedules = schedules_of(topic)
    if schedules is None:
        schedules = TopicSchedules()
        if topic.parts is None:
            topic.parts = {}
        topic.parts[PART_NAME] = schedules
    return schedules
