"""Job operations: list the jobs of a queue by state, retry, cancel, promote or release one, pause the queue.

A page examines a bounded number of jobs: few jobs of a state are found in the lease table, otherwise the log is scanned
by seq, and a page ends early with a cursor at the limit. Records are extracted off the loop. Every change uses the
write path; a paused queue delivers no jobs, and all other operations work.
"""

from collections.abc import Callable, Collection, Sequence
from heapq import nsmallest
from typing import NamedTuple

import msgspec

from topics.engine.background_jobs import Background
from topics.engine.core import EngineCore
from topics.engine.delete import delete_frames
from topics.engine.topic import Topic
from topics.engine.write_path import Change, Gate, LogOperation
from topics.log.commit_requests import AT_ONCE, CommitTiming
from topics.log.frame import FrameKind
from topics.model.errors import InvalidRequestError, JobNotFoundError, TopicsError
from topics.queues.dead_letters import DeadLetters
from topics.queues.dispatch import Dispatcher
from topics.queues.job_results import MAX_RESULT_BYTES, RESULT_BYTES, JobResult
from topics.queues.leases import RedriveResult
from topics.queues.queue_frames import JobHistory, QueuePaused, encode_delay, encode_event
from topics.queues.queue_state import Queue, TopicJobs, execute_cut, find_queue, plan_cut, queue_of
from topics.wire.record_copies import read_provenance

READY, LEASED, DELAYED, DEAD = "ready", "leased", "delayed", "dead"
STATES = (READY, LEASED, DELAYED, DEAD)
PAGE_MAX = 1000
_SORTED_MAX = 20_000
"""The maximum number of jobs of a state that are sorted for a page; for more the log is scanned."""
_LOOKED_MAX = 4_000
"""The maximum number of jobs of the log that one page examines."""
_READ_MAX = 1000
"""The maximum number of records that one page reads to find a tag or the dead letters of a queue."""
_PAGE_BYTES = 4 * 1024 * 1024
"""Payload of a page, by the mean size of the topic's records; a single job always fits."""


class JobPage(msgspec.Struct, frozen=True):
    """Some jobs of one state, by seq."""

    topic: str
    body: bytes
    """The jobs as JSON objects, separated by commas."""
    next_seq: int | None
    """The cursor of the next page; None after the last one."""


class JobChanged(msgspec.Struct, frozen=True):
    """The outcome of an operation on one job."""

    topic: str
    seq: int
    """The seq that the job has now."""
    changed: bool
    """False if the operation does not apply to the job's state."""
    state: str | None
    """The current state; None if the job is gone."""
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0


class QueuePausedResult(msgspec.Struct, frozen=True):
    topic: str
    paused: bool
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0


PageDone = Callable[[JobPage | TopicsError], None]
JobDone = Callable[[JobChanged | TopicsError], None]
PauseDone = Callable[[QueuePausedResult | TopicsError], None]


class _Told(msgspec.Struct, omit_defaults=True):
    """The fields of a listed job besides its record."""

    state: str
    deliveries: int = 0
    priority: int = 0
    worker: str | None = None
    deadline: int | None = None
    ready_at: int | None = None
    first_failure: int | None = None
    failures: list["_Failure"] = []


class _Failure(msgspec.Struct, omit_defaults=True):
    delivery: int
    at: int
    worker: str = ""
    reason: str = ""
    fatal: bool = False


class _Tagged(msgspec.Struct, rename={"tag": "$tag"}):
    tag: str | None = None
    meta: msgspec.Raw = msgspec.Raw()


class _DeadMeta(msgspec.Struct):
    """The reserved text keys of a dead letter's meta; see `wire.record_copies`."""

    deliveries: str = msgspec.field(name="$dead_letter_deliveries", default="0")
    reason: str = msgspec.field(name="$dead_letter_reason", default="")
    first_ms: str = msgspec.field(name="$dead_letter_first_failure_ms", default="")
    last_ms: str = msgspec.field(name="$dead_letter_last_failure_ms", default="")


_encode = msgspec.json.Encoder().encode
_decode_tagged = msgspec.json.Decoder(_Tagged).decode
_decode_dead = msgspec.json.Decoder(_DeadMeta).decode


class _Plan(NamedTuple):
    """The candidate jobs of a page, and the cursor of the next one."""

    seqs: list[int]
    told: list[_Told]
    next_seq: int | None


class _Cancel(LogOperation):
    """Deletes one job in any state."""

    __slots__ = ("_done", "_seq")

    def __init__(
        self, core: EngineCore, topic: Topic, seq: int, done: Callable[[int | TopicsError, CommitTiming], None]
    ):
        super().__init__(core.path, topic, delete_frames(core, topic, 0, [(seq, seq)]))
        self._seq = seq
        self._done = done

    def apply(self, timing: CommitTiming) -> None:
        self._done(self.path.engine.applier.delete(self.topic, 0, [(self._seq, self._seq)]), timing)

    def undo(self, error: TopicsError) -> None:
        self._done(error, AT_ONCE)


class _Unseen(Change):
    """A change that is invisible to followers of the topic."""

    __slots__ = ()
    wakes = False


class Jobs:
    def __init__(self, core: EngineCore, background: Background, dispatcher: Dispatcher, letters: DeadLetters) -> None:
        self._core = core
        self._background = background
        self._dispatcher = dispatcher
        self._letters = letters

    # Looking

    def page(self, topic: Topic, state: str, tag: str | None, after: int, limit: int, done: PageDone) -> None:
        """Lists jobs of one state after a seq, with `tag` if given. For `dead` the seqs are those of the dead letter
        topic."""
        core = self._core
        limit = min(max(limit, 1), PAGE_MAX)
        source = self._dead_letters(topic) if state == DEAD else topic
        if source is None:
            done(JobPage(topic.name, b"", None))
            return
        core.expire(source)
        bytes_limit = max(_PAGE_BYTES * source.live_count // max(source.live_bytes, 1), 1)
        reads = min(bytes_limit, _READ_MAX if tag is not None or state == DEAD else limit)
        if state == DEAD:
            seqs, ahead = TopicJobs(source, core.reader).live_from(after + 1, reads)
            plan = _Plan(seqs, [], ahead - 1 if ahead <= source.head else None)
        else:
            plan = self._plan(topic, state, after, reads)
        if not plan.seqs:
            done(JobPage(topic.name, b"", plan.next_seq))
            return
        cut, reader = plan_cut(source, plan.seqs), core.reader

        def found(outcome: object) -> None:
            if isinstance(outcome, JobPage):
                done(outcome)
            else:
                done(outcome if isinstance(outcome, TopicsError) else TopicsError(f"jobs could not be read: {outcome}"))

        self._background(lambda: _page_of(topic.name, plan, execute_cut(cut, reader), tag, limit), found, topic.name)

    def _dead_letters(self, topic: Topic) -> Topic | None:
        name = topic.config.dead_letter
        return self._core.directory.find(name) if name is not None else None

    def _plan(self, topic: Topic, state: str, after: int, limit: int) -> _Plan:
        queue, jobs = find_queue(topic), TopicJobs(topic, self._core.reader)
        if queue is None:
            if state != READY:
                return _Plan([], [], None)
            seqs, ahead = jobs.live_from(after + 1, limit)
            return _Plan(seqs, [_Told(READY) for _ in seqs], ahead - 1 if ahead <= topic.head else None)
        self._dispatcher.refresh(queue)
        table = queue.lease_table
        there: tuple[Collection[int], ...] = (table.leases, table.leaving, table.delayed, table.moving)
        if state == READY:
            seqs, next_seq = _walk(jobs, after, limit, lambda seq: not any([seq in one for one in there]))
        else:
            wanted: Collection[int] = table.leases if state == LEASED else table.delayed
            if len(wanted) <= _SORTED_MAX:
                seqs = nsmallest(limit + 1, [seq for seq in wanted if seq > after])
                next_seq = seqs[limit - 1] if len(seqs) > limit else None
                seqs = [seq for seq in seqs[:limit] if jobs.is_live(seq)]
            else:
                seqs, next_seq = _walk(jobs, after, limit, wanted.__contains__)
        return _Plan(seqs, [self._told(queue, state, seq) for seq in seqs], next_seq)

    def _told(self, queue: Queue, state: str, seq: int) -> _Told:
        table, time = queue.lease_table, self._core.time
        told = _Told(state, table.delivered.get(seq, 0), table.priorities.by_seq.get(seq, 0))
        if state == LEASED:
            lease = table.leases[seq]
            told.deliveries, told.worker, told.deadline = lease.deliveries, lease.node, time.wall_time(lease.deadline)
        elif state == DELAYED:
            told.ready_at = time.wall_time(table.delayed[seq])
        history = table.failures.get(seq)
        if history is not None:
            told.first_failure, told.failures = history.first_ms, _failures(history)
        return told

    # Changes

    def promote(self, queue: Queue, seq: int, done: JobDone) -> None:
        """Makes a delayed job ready now."""
        topic, core, table = queue.jobs.topic, self._core, queue.lease_table
        if self._state(queue, seq) != DELAYED or seq not in table.delayed:
            self._unchanged(queue, seq, done)
            return
        core.path.check(topic, patient=True, frees=True)
        now = core.steady()

        def applied(timing: CommitTiming) -> None:
            if seq in table.delayed:
                table.delay([seq], now)
            self._dispatcher.refresh(queue)
            self._dispatcher.schedule(queue)
            done(self._changed(queue, seq, timing))

        body = encode_delay(core.time.ending(now), seq, seq)
        frames = ((FrameKind.DELAY, body, b""),) if topic.rules.logged else ()
        core.path.log(_Unseen(core.path, topic, frames, applied, done))

    def release(self, queue: Queue, seq: int, done: JobDone) -> None:
        """Ends the lease of a job: it can be claimed again, and its worker cannot acknowledge it any more."""
        self._state(queue, seq)
        lease = queue.lease_table.leases.get(seq)
        if lease is None:
            self._unchanged(queue, seq, done)
            return
        self._dispatcher.check(queue)
        self._dispatcher.release(queue, [lease], 0, lambda timing: done(self._changed(queue, seq, timing)), done)

    def cancel(self, queue: Queue, seq: int, done: JobDone) -> None:
        """Deletes a job in any state; its worker cannot acknowledge it any more."""
        self._state(queue, seq)
        if seq in queue.lease_table.leaving or seq in queue.lease_table.moving:
            self._unchanged(queue, seq, done)
            return
        self._delete(queue.jobs.topic, queue.jobs.topic.name, seq, done)

    def cancel_dead(self, topic: Topic, seq: int, done: JobDone) -> None:
        """Deletes a dead letter of a queue."""
        source = self._dead_letters(topic)
        if source is None:
            raise JobNotFoundError(topic.name, seq)
        self._letters.find(topic, source, seq, lambda: self._delete(source, topic.name, seq, done), done)

    def retry(self, topic: Topic, seq: int, done: JobDone) -> None:
        """Moves a dead letter of a queue back into it, with a new seq and no deliveries."""
        source = self._dead_letters(topic)
        if source is None:
            raise JobNotFoundError(topic.name, seq)

        def moved(outcome: RedriveResult | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                done(outcome)
            elif not outcome.moved:
                done(JobChanged(topic.name, seq, False, DEAD))
            else:
                timing = outcome.wal_append_ms, outcome.fsync_ms
                done(JobChanged(topic.name, outcome.first_seq, True, READY, *timing))

        self._letters.retry(topic, source, seq, moved)

    def pause(self, topic: Topic, paused: bool, done: PauseDone) -> None:
        """Pauses or resumes delivery of jobs, durably for every class of the topic."""
        core = self._core
        core.path.check(topic, patient=True, frees=True)

        def applied(timing: CommitTiming) -> None:
            queue = queue_of(topic, core)
            queue.paused = paused
            self._dispatcher.schedule(queue)
            done(QueuePausedResult(topic.name, paused, *timing))

        frames = ((FrameKind.QUEUE, encode_event(QueuePaused(paused)), b""),)
        core.path.log(_Unseen(core.path, topic, frames, applied, done), Gate.SYNC)

    def _delete(self, topic: Topic, name: str, seq: int, done: JobDone) -> None:
        if self._core.path.logs_removals(topic):
            self._core.path.check(topic, patient=True, frees=True)

        def deleted(outcome: int | TopicsError, timing: CommitTiming) -> None:
            if isinstance(outcome, TopicsError):
                done(outcome)
            else:
                done(JobChanged(name, seq, outcome > 0, None, *timing))

        self._core.path.log(_Cancel(self._core, topic, seq, deleted))

    def state_of(self, queue: Queue, seq: int) -> str | None:
        """The state of a job; None if it is not in the queue."""
        self._core.expire(queue.jobs.topic)
        self._dispatcher.refresh(queue)
        return self._seen(queue, seq)

    def _state(self, queue: Queue, seq: int) -> str:
        self._core.check_accepting()
        self._dispatcher.refresh(queue)
        state = self._seen(queue, seq)
        if state is None:
            raise JobNotFoundError(queue.jobs.topic.name, seq)
        return state

    def _seen(self, queue: Queue, seq: int) -> str | None:
        table = queue.lease_table
        if not TopicJobs(queue.jobs.topic, self._core.reader).is_live(seq):
            return None
        if seq in table.leases or seq in table.leaving:
            return LEASED
        return DELAYED if seq in table.delayed or seq in table.moving else READY

    def _changed(self, queue: Queue, seq: int, timing: CommitTiming) -> JobChanged:
        return JobChanged(queue.jobs.topic.name, seq, True, self._seen(queue, seq), *timing)

    def _unchanged(self, queue: Queue, seq: int, done: JobDone) -> None:
        done(JobChanged(queue.jobs.topic.name, seq, False, self._seen(queue, seq)))


def _walk(jobs: TopicJobs, after: int, limit: int, fits: Callable[[int], bool]) -> tuple[list[int], int | None]:
    """The matching live seqs after `after`, and the cursor to continue from; None at the end of the log."""
    found: list[int] = []
    seq, left, head = after + 1, _LOOKED_MAX, jobs.topic.head
    while left > 0:
        seqs, seq = jobs.live_from(seq, min(left, _READ_MAX))
        left -= max(len(seqs), 1)
        for one in seqs:
            if fits(one):
                found.append(one)
                if len(found) == limit:
                    return found, one if one < head else None
        if seq > head:
            return found, None
    return found, seq - 1


def _page_of(topic: str, plan: _Plan, fragments: Sequence[bytes], tag: str | None, limit: int) -> JobPage:
    """Builds a page of the extracted records. Reads only immutable state, so it may run on any thread."""
    bodies: list[bytes] = []
    for place, (seq, fragment) in enumerate(zip(plan.seqs, fragments, strict=True)):
        one = plan.told[place] if plan.told else None
        if tag is not None or one is None:
            record = _decode_tagged(fragment)
            if tag is not None and record.tag != tag:
                continue
            one = one or _dead(topic, bytes(record.meta))
            if one is None:
                continue
        bodies.append(fragment[:-1] + b"," + _encode(one)[1:])
        if len(bodies) == limit:
            last = seq == plan.seqs[-1]
            return JobPage(topic, b",".join(bodies), plan.next_seq if last else seq)
    return JobPage(topic, b",".join(bodies), plan.next_seq)


def _dead(topic: str, meta: bytes) -> _Told | None:
    """The fields of a dead letter; None for one of another queue."""
    provenance = read_provenance(meta or None)
    if provenance is None or provenance.source != topic:
        return None
    try:
        told = _decode_dead(meta)
        deliveries, first_ms, last_ms = int(told.deliveries), int(told.first_ms or 0), int(told.last_ms or 0)
    except ValueError:
        # Clients may write such keys, too.
        return _Told(DEAD)
    if not last_ms:
        return _Told(DEAD, deliveries)
    return _Told(DEAD, deliveries, first_failure=first_ms, failures=[_Failure(deliveries, last_ms, reason=told.reason)])


def _failures(history: JobHistory) -> list[_Failure]:
    return [_Failure(one.deliveries, one.at_ms, one.node, one.reason, one.fatal) for one in history.last]


# Results of jobs: checked, found, and forgotten when their time is over.

DONE = "done"
_QUEUES_A_SECOND = 1_000


class Results:
    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._keeping: dict[Topic, None] = {}
        """Queues that keep a result, perhaps."""
        self._looked = False
        core.second_passed.subscribe(self._expire_some)
        core.topic_removed.subscribe(self._removed)

    def check(self, queue: Queue, seqs: Sequence[int], result: bytes) -> None:
        """Raises unless the queue can keep this result."""
        topic = queue.jobs.topic
        if not topic.config.result_retention_ms:
            raise InvalidRequestError(
                "result: the queue keeps no results. Set result_retention_ms in its config, or leave out the result",
                field="result",
            )
        if len(seqs) != 1:
            raise InvalidRequestError("result: give exactly one seq", field="result")
        if len(result) > MAX_RESULT_BYTES:
            raise InvalidRequestError(
                f"result: takes {len(result)} bytes, at most {MAX_RESULT_BYTES} are allowed", field="result",
                bytes=len(result), max=MAX_RESULT_BYTES,
            )  # fmt: skip
        self._core.memory.check(topic, RESULT_BYTES + len(result))
        self._keeping[topic] = None

    def find(self, queue: Queue, seq: int, state: str | None) -> JobResult:
        """The result of a job, or the state of one that is in the queue; JobNotFoundError for others."""
        if state is not None:
            return JobResult(seq, state, None)
        self._expire(queue)
        finished = queue.results.by_seq.get(seq)
        if finished is None:
            raise JobNotFoundError(queue.jobs.topic.name, seq)
        return JobResult(seq, DONE, finished)

    def _expire(self, queue: Queue) -> None:
        topic = queue.jobs.topic
        if queue.results.expire(self._core.wall() - topic.config.result_retention_ms):
            self._core.before_change(topic)
            self._core.memory.note(topic)

    def _expire_some(self) -> None:
        """Forgets results whose time is over, of some queues in a second."""
        if not self._looked:
            self._looked = True
            queues = [queue for topic in self._core.topics.values() if (queue := find_queue(topic)) is not None]
            self._keeping |= dict.fromkeys(queue.jobs.topic for queue in queues if queue.results.by_seq)
        for topic in list(self._keeping)[:_QUEUES_A_SECOND]:
            del self._keeping[topic]
            queue = find_queue(topic)
            if queue is None or topic.closing:
                continue
            self._expire(queue)
            if queue.results.by_seq:
                # To the end of the line.
                self._keeping[topic] = None

    def _removed(self, topic: Topic) -> None:
        self._keeping.pop(topic, None)
        queue = find_queue(topic)
        if queue is not None:
            queue.results.wake(lambda seq: False)
