"""Schedules: create, change and delete them, and append their jobs when they are due, also known as cron jobs.

A run is one append whose frame also has the due time (`schedules.schedule_frames`). Runs and changes of one schedule
follow each other: while one is in flight, the next one waits. The next due time of every schedule is in a heap, so that
waiting costs nothing per schedule. The clock on the wall decides. It is examined at the due time and once a second, so
a jump of it is noticed: after a jump forward `catch_up` decides about the missed due times; after a jump back nothing
is due until the clock has passed the next due time.

A schedule is the server's own writer once it was created: it continues when the key that created it is removed. A
failed run, for example because the topic is full, is tried again after 1 to 60 seconds until it succeeds or its due
time is skipped.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from typing import TypeVar

import msgspec

from topics.engine.append import FrameExtension
from topics.engine.core import EngineCore
from topics.engine.results import AppendDone, AppendResult
from topics.engine.topic import Topic
from topics.engine.write_path import Change, Gate
from topics.log.commit_requests import AT_ONCE, CommitTiming
from topics.log.frame import FrameKind
from topics.model.errors import (
    InvalidRequestError,
    ScheduleNotFoundError,
    ThrottledError,
    TopicsError,
    quoted,
)
from topics.model.limits import KIB
from topics.model.records import Batch, Record, check_records
from topics.schedules.due_times import check_timing, next_due
from topics.schedules.schedule_frames import (
    CatchUp,
    ScheduleDropped,
    ScheduleMark,
    ScheduleRun,
    ScheduleState,
    encode_schedule,
)
from topics.schedules.schedule_state import RunPlan, Schedule, ScheduleFeature, plan_run, size_of

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
SCHEDULE_NAME_PATTERN = f"^{_NAME.pattern}$"
SCHEDULE_DATA_BYTES_MAX = 64 * KIB
META_SCHEDULE, META_DUE = "$schedule", "$schedule_due_ms"
"""Fields of a job's meta: the name of its schedule, and its due time."""
_KEY_NAME_CHARS_MAX = 128
_RUNS_PER_TURN = 25
_TIMER_MS = 1_500
"""Due times that are farther away wait for the tick that comes once a second."""
_RETRY_MS = 1_000
_RETRY_MS_MAX = 60_000

T = TypeVar("T")
Write = Callable[[Topic, Batch, AppendDone, FrameExtension | None], None]


class ScheduleWish(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that a request sets; None leaves a field as it is, or at its default."""

    topic: str | None = None
    cron: str | None = None
    every_ms: int | None = None
    timezone: str | None = None
    data: bytes | None = None
    """JSON text."""
    tag: str | None = None
    """Empty removes the tag."""
    catch_up: CatchUp | None = None
    paused: bool | None = None


class ScheduleInfo(msgspec.Struct, frozen=True):
    """A schedule as people see it."""

    topic: str
    state: ScheduleState
    error: tuple[str, str] | None
    """Code and message of the last run, if it failed."""


class SchedulePut(msgspec.Struct, frozen=True):
    info: ScheduleInfo
    created: bool
    timing: CommitTiming = AT_ONCE


class ScheduleDeleted(msgspec.Struct, frozen=True):
    schedule: str
    deleted: bool
    timing: CommitTiming = AT_ONCE


PutDone = Callable[[SchedulePut | TopicsError], None]
DeleteDone = Callable[[ScheduleDeleted | TopicsError], None]


def check_schedule_name(name: str) -> str:
    """`name` itself when it is a legal schedule name, otherwise InvalidRequestError."""
    if _NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"{quoted(name)} is not a schedule name: 1 to 128 of A-Z a-z 0-9 . _ : - beginning with a letter or digit",
            field="schedule",
        )
    return name


class _Jobs:
    """The schedule's part of a frame with its jobs (`FrameExtension`)."""

    kind = FrameKind.SCHEDULE
    creates = False

    def __init__(self, run: ScheduleRun, applied: Callable[[ScheduleRun], None]) -> None:
        self._run = run
        self._applied = applied

    def staged(self, topic: Topic) -> None:
        self._run = msgspec.structs.replace(self._run, last_seq=topic.staged_head)

    def prefix(self, topic: Topic) -> bytes:
        return encode_schedule(self._run)

    def applied(self, topic: Topic) -> None:
        self._applied(self._run)

    def undone(self, topic: Topic, error: TopicsError) -> None:
        """The caller of the append is told."""


class Timetable:
    """The next due time of every schedule, in a heap."""

    def __init__(self, now: Callable[[], int], run: Callable[[Schedule, int], None]) -> None:
        self._now = now
        self._run = run
        self._heap: list[tuple[int, int, Schedule]] = []
        self._entries = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._armed_for = 0
        self._compacted = 0
        """The number of entries when obsolete ones were last removed."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arm()

    def stop(self) -> None:
        self._loop = None
        self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def fill(self, schedules: list[Schedule]) -> None:
        """Replaces all entries."""
        self._heap = [entry for schedule in schedules if (entry := self._entry(schedule)) is not None]
        heapify(self._heap)
        self._compacted = len(self._heap)

    def set(self, schedule: Schedule) -> None:
        """Replaces the entry of a schedule."""
        entry = self._entry(schedule)
        if entry is not None:
            heappush(self._heap, entry)
            self._arm()
        if len(self._heap) > 1_000 + 2 * self._compacted:
            # Changes leave obsolete entries behind, mostly of due times far ahead.
            self._heap = [known for known in self._heap if known[1] == known[2].entry]
            heapify(self._heap)
            self._compacted = len(self._heap)

    def _entry(self, schedule: Schedule) -> tuple[int, int, Schedule] | None:
        state = schedule.state
        self._entries += 1
        schedule.entry = self._entries
        if state.paused or not state.next_due_ms:
            return None
        return max(state.next_due_ms, schedule.retry_ms), schedule.entry, schedule

    def run_due(self) -> None:
        """Runs the schedules that are due: some in this turn of the loop, the others in the following ones."""
        now = self._now()
        left = _RUNS_PER_TURN
        while self._heap and self._heap[0][0] <= now and left:
            _, entry, schedule = heappop(self._heap)
            if entry == schedule.entry:
                left -= self._loop is not None
                self._run(schedule, now)
        self._arm()

    def _arm(self) -> None:
        if self._loop is None or not self._heap:
            return
        due = self._heap[0][0]
        if self._timer is not None and self._armed_for <= due:
            return
        delay_ms = due - self._now()
        if delay_ms < _TIMER_MS:
            self._cancel()
            self._armed_for = due
            self._timer = self._loop.call_later(max(delay_ms, 0) / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.run_due()


class Schedules:
    def __init__(self, core: EngineCore, write: Write) -> None:
        self._core = core
        self._write = write
        self._feature = ScheduleFeature(core.topics)
        self._timetable = Timetable(core.wall, self._run)
        self._in_flight: dict[str, list[Callable[[], None]]] = {}
        """Schedules with a change or a run in flight, by name, and the changes that wait for its end."""
        self.runs = self.failures = 0
        """Appended jobs and failed runs since the start."""
        self._failing: set[str] = set()
        """Schedules that failed, and may have run or ended since."""
        self._filled = False
        """Whether the timetable has the schedules that recovery found."""
        core.features.add(self._feature)
        core.topic_removed.subscribe(self._topic_removed)
        core.second_passed.subscribe(self.run_due)

    @property
    def count(self) -> int:
        return len(self._feature.by_name)

    @property
    def failing(self) -> int:
        """The number of schedules whose last run failed."""
        known = self._feature.by_name
        self._failing = {
            name for name in self._failing
            if (one := known.get(name)) is not None and one.error is not None and not one.state.paused
        }  # fmt: skip
        return len(self._failing)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to run schedules."""
        self._fill()
        self._timetable.start(loop)

    def _fill(self) -> None:
        if not self._filled and not self._core.path.follows:
            # The jobs of a standby come with the log of its primary.
            self._filled = True
            self._timetable.fill(list(self._feature.by_name.values()))

    def stop(self) -> None:
        self._timetable.stop()

    def run_due(self) -> None:
        """Runs what is due. Without a loop, call it after moving the clock."""
        if not (self._core.closed or self._core.path.follows or self._core.options.restoring):
            self._fill()
            self._timetable.run_due()

    # Changes

    def put(self, name: str, wish: ScheduleWish, by: str, done: PutDone) -> None:
        """Creates a schedule, or changes the fields that the wish names."""
        check_schedule_name(name)
        self._core.check_accepting()
        if self._waits(name, lambda: self.put(name, wish, by, done), done):
            return
        known = self._feature.by_name.get(name)
        if known is None:
            if wish.topic is None:
                raise InvalidRequestError("schedule: a new schedule needs a topic", field="topic")
            topic = self._core.existing(wish.topic)
        else:
            topic = known.topic
            if wish.topic not in (None, topic.name):
                raise InvalidRequestError(
                    "schedule: the topic of a schedule cannot change. Delete it, and create it again", field="topic"
                )
        self._core.path.check(topic, patient=True, frees=wish.paused is True)
        state = self._changed(topic, wish, name, by, None if known is None else known.state)
        if known is not None and state == known.state:
            done(SchedulePut(self._describe(known), False))
            return
        if known is None:
            self._check_quota(topic, name)
        self._core.memory.check(topic, size_of(state))

        def applied(timing: CommitTiming) -> None:
            schedule = self._feature.put(topic, state)
            schedule.caught_up = schedule.failures = schedule.retry_ms = 0
            schedule.error = None
            self._core.memory.note(topic)
            self._end(name)
            done(SchedulePut(self._describe(schedule), known is None, timing))

        self._log_change(topic, name, state, applied, done)

    def delete(self, name: str, done: DeleteDone) -> None:
        """Deletes a schedule; its jobs stay."""
        check_schedule_name(name)
        self._core.check_accepting()
        if self._waits(name, lambda: self.delete(name, done), done):
            return
        known = self._feature.by_name.get(name)
        if known is None:
            done(ScheduleDeleted(name, False))
            return
        topic = known.topic
        self._core.path.check(topic, patient=True, frees=True)

        def applied(timing: CommitTiming) -> None:
            known.entry = 0
            self._feature.drop(topic, name)
            self._core.memory.note(topic)
            self._end(name)
            done(ScheduleDeleted(name, True, timing))

        self._log_change(topic, name, ScheduleDropped(name), applied, done)

    def _changed(
        self, topic: Topic, wish: ScheduleWish, name: str, by: str, known: ScheduleState | None
    ) -> ScheduleState:
        """The state of a schedule after a request."""
        now = self._core.wall()
        cron, every_ms, zone = _timing_of(wish, known)
        check_timing(cron, every_ms, zone)
        before = (known.cron, known.every_ms, known.timezone) if known is not None else None
        paused = _either(wish.paused, known.paused if known else False)
        tag = _either(wish.tag, known.tag if known else None) or None
        data = _either(wish.data, known.data if known else b"null")
        if len(data) > SCHEDULE_DATA_BYTES_MAX:
            raise InvalidRequestError(
                f"schedule field data: at most {SCHEDULE_DATA_BYTES_MAX} bytes are allowed", field="data",
                max=SCHEDULE_DATA_BYTES_MAX,
            )  # fmt: skip
        state = ScheduleState(
            name, cron, every_ms, zone, known.start_ms if known else now, data, tag,
            _either(wish.catch_up, known.catch_up if known else CatchUp.ONE), paused,
            known.created_ms if known else now, known.created_by if known else by[:_KEY_NAME_CHARS_MAX], 0,
            *((known.last_due_ms, known.last_run_ms, known.last_seq, known.runs) if known else ()),
        )  # fmt: skip
        check_records([_job(state, now)], self._core.limits)
        if paused:
            return state
        if known is not None and before == (cron, every_ms, zone) and not known.paused:
            return msgspec.structs.replace(state, next_due_ms=known.next_due_ms)
        # Due times of the past are over, and one that had a job must not come again after the clock was set back.
        begin = max(now, state.last_due_ms)
        if before != (cron, every_ms, zone):
            state = msgspec.structs.replace(state, start_ms=begin)
        return msgspec.structs.replace(state, next_due_ms=next_due(state, begin))

    def _check_quota(self, topic: Topic, name: str) -> None:
        core, limits = self._core, self._core.limits
        if 0 < limits.max_schedules <= self.count:
            raise ThrottledError.over_cap("max_schedules", limits.max_schedules)
        most = limits.max_schedules_per_key
        for tenant in core.quotas.tenants_of(name) if most else ():
            if sum([self._feature.names.count(prefix) for prefix in tenant.prefixes]) >= most:
                raise ThrottledError.over_cap("max_schedules_per_key", most)

    def _log_change(
        self,
        topic: Topic,
        name: str,
        mark: ScheduleMark,
        applied: Callable[[CommitTiming], None],
        failed: Callable[[TopicsError], None],
        gate: Gate = Gate.SYNC,
    ) -> None:
        def undone(error: TopicsError) -> None:
            self._end(name)
            failed(error)

        self._in_flight[name] = []
        path = self._core.path
        path.log(Change(path, topic, ((FrameKind.SCHEDULE, encode_schedule(mark), b""),), applied, undone), gate)

    def _waits(self, name: str, again: Callable[[], None], done: Callable[[TopicsError], None]) -> bool:
        """Whether a change or a run is in flight; the request is then repeated at its end."""
        waiting = self._in_flight.get(name)
        if waiting is None:
            return False

        def repeat() -> None:
            try:
                again()
            except TopicsError as error:
                done(error)

        waiting.append(repeat)
        return True

    def _end(self, name: str) -> None:
        """A change or a run is over."""
        waiting = self._in_flight.pop(name, ())
        schedule = self._feature.by_name.get(name)
        if schedule is not None:
            self._timetable.set(schedule)
        for repeat in waiting:
            # Not within the publication of another operation.
            self._core.defer(repeat)

    def _topic_removed(self, topic: Topic) -> None:
        names = self._feature.forget(topic)
        if names:
            _log.info("schedules deleted with their topic", extra={"topic": topic.name, "schedules": len(names)})

    # Runs

    def _run(self, schedule: Schedule, now: int) -> None:
        """Appends the jobs of a schedule that is due."""
        state, topic = schedule.state, schedule.topic
        known = self._feature.by_name.get(state.name)
        if known is not schedule or state.name in self._in_flight:
            # The end of what is in flight sets the next due time.
            return
        plan = plan_run(state, now, schedule.caught_up)
        last_due_ms, last_run_ms = (
            (plan.due_times[-1], now) if plan.due_times else (state.last_due_ms, state.last_run_ms)
        )
        run = ScheduleRun(
            state.name, plan.next_due_ms, last_due_ms, last_run_ms, state.last_seq, state.runs + len(plan.due_times)
        )
        self._in_flight[state.name] = []
        try:
            if plan.due_times:
                self._append(schedule, plan, run)
            else:
                self._skip(schedule, plan, run)
        except TopicsError as error:
            self._failed(schedule, error)
        except Exception:
            _log.exception("schedule failed", extra={"schedule": state.name, "topic": topic.name})
            self._failed(schedule, TopicsError("the server made a mistake; it is in its log"))

    def _append(self, schedule: Schedule, plan: RunPlan, run: ScheduleRun) -> None:
        topic = schedule.topic
        records = [_job(schedule.state, due) for due in plan.due_times]
        if topic.rules.guarded:
            admitted = self._core.path.admit(topic, lambda: records)
            records = records if admitted is None else list(admitted)

        def applied(final: ScheduleRun) -> None:
            schedule.apply(final)

        def done(outcome: AppendResult | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                self._failed(schedule, outcome)
            else:
                self.runs += len(records)
                self._succeeded(schedule, plan)

        self._write(topic, Batch(records=records, disable_backpressure=True), done, _Jobs(run, applied))

    def _skip(self, schedule: Schedule, plan: RunPlan, run: ScheduleRun) -> None:
        """Logs that missed due times get no job."""
        core = self._core
        core.path.check(schedule.topic, patient=True)

        def applied(timing: CommitTiming) -> None:
            schedule.apply(run)
            self._succeeded(schedule, plan)

        def failed(error: TopicsError) -> None:
            self._failed(schedule, error)

        frame = (FrameKind.SCHEDULE, encode_schedule(run), b"")
        core.path.log(Change(core.path, schedule.topic, (frame,), applied, failed))

    def _succeeded(self, schedule: Schedule, plan: RunPlan) -> None:
        schedule.caught_up = schedule.caught_up + len(plan.due_times) if plan.catches_up else 0
        schedule.failures = schedule.retry_ms = 0
        schedule.error = None
        self._end(schedule.state.name)

    def _failed(self, schedule: Schedule, error: TopicsError) -> None:
        self.failures += 1
        self._failing.add(schedule.state.name)
        schedule.failures += 1
        schedule.error = (error.code, error.message)
        wait_ms = min(_RETRY_MS << min(schedule.failures - 1, 6), _RETRY_MS_MAX)
        schedule.retry_ms = self._core.wall() + wait_ms
        if schedule.failures == 1:
            extra = {"schedule": schedule.state.name, "topic": schedule.topic.name, "error": error.message}
            _log.warning("scheduled job failed", extra=extra)
        self._end(schedule.state.name)

    # Looking

    def info(self, name: str) -> ScheduleInfo:
        check_schedule_name(name)
        schedule = self._feature.by_name.get(name)
        if schedule is None:
            raise ScheduleNotFoundError(name)
        return self._describe(schedule)

    def find_topic(self, name: str) -> str | None:
        """The topic of a schedule; None if there is no such schedule."""
        schedule = self._feature.by_name.get(name)
        return None if schedule is None else schedule.topic.name

    def list_all(
        self, prefix: str = "", after: str = "", limit: int = 100,
        requested: Callable[[ScheduleInfo], bool] = lambda info: True,
    ) -> list[ScheduleInfo]:  # fmt: skip
        """Schedules by name, after `after`, whose names begin with `prefix`."""
        names = self._feature.names
        found = names.behind(after) if after >= prefix else names.from_(prefix)
        named = takewhile(lambda name: name.startswith(prefix), found)
        infos = (self._describe(self._feature.by_name[name]) for name in named)
        return list(islice(filter(requested, infos), limit))

    def _describe(self, schedule: Schedule) -> ScheduleInfo:
        return ScheduleInfo(schedule.topic.name, schedule.state, schedule.error)


def _either(wish: T | None, known: T) -> T:
    return known if wish is None else wish


def _timing_of(wish: ScheduleWish, known: ScheduleState | None) -> tuple[str, int, str]:
    """Cron expression, interval and time zone after a request; the one replaces the other."""
    cron, every_ms, zone = ("", 0, "UTC") if known is None else (known.cron, known.every_ms, known.timezone)
    if wish.cron or wish.every_ms:
        cron, every_ms = wish.cron or "", wish.every_ms or 0
    return cron, every_ms, wish.timezone or zone


def _job(state: ScheduleState, due_ms: int) -> Record:
    meta = msgspec.json.encode({META_SCHEDULE: state.name, META_DUE: due_ms})
    return Record(msgspec.Raw(state.data), state.tag, None, msgspec.Raw(meta))
