"""The state of a worker: its jobs, their outcomes, and the reports to send. No function here waits.

                 ┌── the handler returned ──▶ acknowledged
    claimed ─────┤
                 └── the handler raised ────▶ given back with the reason, to be tried again after a while

Every report to the server carries the lease ids, so that a slow worker cannot settle a job that another worker holds by
now.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from topics_client.answers import Acked, Claimed, Diff, Extended, Nacked, TopicState
from topics_client.errors import ClientError
from topics_client.requests import Request, ack, claim, diff, extend, get_topic, nack
from topics_client.system import Entropy, logger
from topics_protocol.config import MAX_DELAY_MS
from topics_protocol.records import Job

_LEASE_MS = 30_000
_NODE_BYTES = 6


class JobRetry(msgspec.Struct, frozen=True, kw_only=True):
    """The delay of a failed job: doubled after each delivery, less a random part. The queue's `max_deliveries` and
    `dead_letter` limit the attempts.
    """

    backoff_min_s: float = 1.0
    backoff_max_s: float = 300.0

    def delay_ms(self, deliveries: int, luck: float) -> int:
        """The delay after a number of deliveries; `luck` is from 0 to 1, and a higher value shortens the wait."""
        # The exponent is bounded because a job may fail for years.
        backoff = min(self.backoff_min_s * 2.0 ** min(deliveries - 1, 60), self.backoff_max_s, MAX_DELAY_MS / 1000)
        return int(backoff * (1.0 - luck / 2) * 1000)


class RetryJob(Exception):
    """Raised by a handler: the job shall be tried again, after `delay_s` instead of the usual time."""

    def __init__(self, delay_s: float = 0.0) -> None:
        if not math.isfinite(delay_s):
            # Raised in the handler, which is a failure like any other: the job is held back as usual.
            raise ValueError(f"a job cannot be tried again in {delay_s} s")
        super().__init__(f"to be tried again in {delay_s:g} s")
        self.delay_s = delay_s


class FailJob(Exception):
    """Raised by a handler: the job shall not be tried again, but move to the dead-letter topic now."""


_REASON_BYTES_MAX = 1024


def failure_reason(error: BaseException) -> str:
    """The type and the message of an exception, no longer than the server takes; empty for a mere `RetryJob`."""
    if isinstance(error, (RetryJob, FailJob)) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, RetryJob):
        return ""
    try:
        message = str(error)
    except Exception:
        # An exception of user code whose text fails: the job must be reported anyway.
        message = ""
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text.encode("utf-8", "replace")[:_REASON_BYTES_MAX].decode("utf-8", "ignore")


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The handler and the options of a worker."""

    topic: str
    handle: Callable[[Job], Any]
    node: str | None
    concurrency: int
    lease_ms: int
    idle_s: float
    retry: JobRetry

    @property
    def extend_every_s(self) -> float:
        """Often enough that two tries may fail before a lease ends."""
        return self.lease_ms / 3000


def worker(
    topic: str,
    handle: Callable[[Job], Any],
    *,
    node: str | None = None,
    concurrency: int = 1,
    lease_ms: int = _LEASE_MS,
    idle_s: float = 1.0,
    retry: JobRetry | None = None,
) -> WorkerPlan:
    """Returns a worker that calls `handle` with every job of a queue, and extends and acknowledges its leases.

    A job is acknowledged when `handle` returns, and returned to the queue with the delay of `retry` when it raises; the
    queue keeps the exception's type and message. `RetryJob` sets another delay, `FailJob` makes it a dead letter. Up to
    `concurrency` jobs run at once. Leases are extended while `handle` runs, so `lease_ms` limits only how long the jobs
    of a dead worker stay hidden. An idle worker gets new jobs at once, and returned ones within `idle_s`. `node` is the
    worker's name; workers must not share a name.
    """
    if concurrency < 1:
        raise ValueError("concurrency: a worker handles at least one job at a time")
    return WorkerPlan(
        topic=topic, handle=handle, node=node, concurrency=concurrency, lease_ms=lease_ms, idle_s=idle_s,
        retry=retry or JobRetry(),
    )  # fmt: skip


AckOutcome = Acked | Nacked
PendingAck = tuple[Request[AckOutcome], list[Job]]


class WorkerState:
    """The state of one worker. Callers from several threads hold a lock."""

    def __init__(self, plan: WorkerPlan, entropy: Entropy) -> None:
        self._plan = plan
        self._entropy = entropy
        # Two workers must not have one name, or each could speak for the jobs of the other.
        self.node = plan.node or f"worker-{entropy.token(_NODE_BYTES).hex()}"
        self._held: dict[int, Job] = {}
        self._done: list[Job] = []
        self._failed: dict[tuple[int, str, bool], list[Job]] = {}
        """By delay, reason, and whether it was the last try."""

    @property
    def free(self) -> int:
        """The number of further jobs that fit. A job whose outcome is not reported yet still counts."""
        return self._plan.concurrency - len(self._held)

    def claim(self) -> Request[Claimed]:
        """Claims as many jobs as the worker has room for."""
        return claim(self._plan.topic, self.node, max=self.free, lease_ms=self._plan.lease_ms)

    def take(self, answer: Claimed) -> list[Job]:
        """Returns the jobs of a claim that are not held yet. A held job that is delivered again had lost its lease; its
        first run continues.
        """
        fresh = [job for job in answer.claimed if job.seq not in self._held]
        self._held.update([(job.seq, job) for job in answer.claimed])
        return fresh

    def succeeded(self, job: Job) -> None:
        self._done.append(self._held.get(job.seq, job))

    def failed(self, job: Job, error: BaseException) -> None:
        job = self._held.get(job.seq, job)
        luck = int.from_bytes(self._entropy.token(4)) / 2**32
        usual = self._plan.retry.delay_ms(job.deliveries, luck)
        delay_ms = max(int(error.delay_s * 1000), 0) if isinstance(error, RetryJob) else usual
        fatal = isinstance(error, FailJob)
        key = (0 if fatal else delay_ms, failure_reason(error), fatal)
        self._failed.setdefault(key, []).append(job)

    def settlement(self) -> list[PendingAck]:
        """The acknowledgements to send for jobs that have ended, each with its jobs."""
        topic, found = self._plan.topic, list[PendingAck]()
        done, self._done = self._done, []
        failed, self._failed = self._failed, {}
        if done:
            acks = ack(topic, self.node, _seqs(done), lease_ids=_ids(done))
            found.append((cast(Request[AckOutcome], acks), done))
        for (delay_ms, reason, fatal), jobs in failed.items():
            nacks = nack(
                topic, self.node, _seqs(jobs), delay_ms=delay_ms, lease_ids=_ids(jobs), reason=reason, fatal=fatal
            )
            found.append((cast(Request[AckOutcome], nacks), jobs))
        return found

    def settled(self, jobs: Sequence[Job], outcome: AckOutcome | ClientError) -> None:
        """Records that the outcomes were reported, or could not be: then the leases expire, and the jobs are delivered
        again."""
        for job in jobs:
            self._held.pop(job.seq, None)
        if isinstance(outcome, ClientError):
            logger(__name__).warning(
                "topic %s: reporting the end of jobs %s failed: %s", self._plan.topic, _seqs(jobs), outcome
            )
        elif outcome.skipped:
            logger(__name__).warning("topic %s: jobs %s ended after their leases", self._plan.topic, outcome.skipped)

    def extension(self) -> Request[Extended] | None:
        """Asks for more time for everything that is held."""
        jobs, plan = list(self._held.values()), self._plan
        if not jobs:
            return None
        return extend(plan.topic, self.node, _seqs(jobs), plan.lease_ms, lease_ids=_ids(jobs))


def _seqs(jobs: Sequence[Job]) -> list[int]:
    return [job.seq for job in jobs]


def _ids(jobs: Sequence[Job]) -> list[str]:
    return [job.lease_id for job in jobs]


Looked = TopicState | Diff


class Idling:
    """Waiting while the queue is empty: for the next append, with a look for freed jobs now and then. It takes note of
    where the queue's log ends, looks once more whether there is a job, and only then waits for something behind that
    place. So a job that comes between two looks ends the wait at once."""

    def __init__(self, plan: WorkerPlan) -> None:
        self._plan = plan
        self._cursor: int | None = None

    def after(self, answer: Claimed) -> Request[Looked] | None:
        """The request to send after a claim; None means to claim again when there is room."""
        if answer.claimed:
            # The log has moved on: its end is looked up again when the queue is empty the next time.
            self._cursor = None
            return None
        if self._cursor is None:
            return cast(Request[Looked], get_topic(self._plan.topic, touch=False))
        wait_ms = max(int(self._plan.idle_s * 1000), 1)
        waiting = diff(self._plan.topic, self._cursor, limit=1, include_meta=False, wait_ms=wait_ms)
        return cast(Request[Looked], waiting)

    def looked(self, answer: Looked) -> None:
        """Takes note of where the log ends."""
        self._cursor = answer.head_seq
