"""Unique jobs: while a job with a key is in its queue, an append with the same key adds none, also known as job ids.

A key belongs to one job, from the decision to append it until the job is acknowledged, deleted, evicted, expired or
moved away. A QUEUE frame with the key precedes the frame of the job in the same write; a crash between the two leaves a
key without a job, which does not count. An ephemeral queue keeps its keys as long as its jobs.
"""

from collections.abc import Callable

from topics.engine.core import EngineCore
from topics.engine.results import AppendDone, AppendResult, deduped
from topics.engine.topic import Topic
from topics.model.errors import InvalidRequestError, TopicsError
from topics.model.limits import MAX_UNIQUE_KEY_BYTES
from topics.model.records import Batch
from topics.queues.job_results import KEYED_JOB_BYTES
from topics.queues.queue_state import find_queue

Append = Callable[[str, Batch, AppendDone], None]


class UniqueAppends:
    """Appends of jobs with a key."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._in_flight: dict[tuple[str, str], list[AppendDone]] = {}
        """The keys of appends in flight, by queue and key, with the callers that repeat them."""

    def append(self, name: str, batch: Batch, done: AppendDone, append: Append) -> None:
        """Appends a job, or answers with the job that has its key."""
        key = batch.unique_key
        assert key is not None
        _check(batch, key)
        core = self._core
        core.check_accepting()
        repeats = self._in_flight.get((name, key))
        if repeats is not None:
            repeats.append(done)
            return
        topic = core.directory.find(name)
        if topic is not None and topic.created:
            seq = self._seq_of(topic, key)
            if seq is not None:
                core.path.acknowledge(topic, done, deduped(name, seq, seq))
                return
            core.memory.check(topic, KEYED_JOB_BYTES + len(key))
        self._in_flight[name, key] = []

        def finished(outcome: AppendResult | TopicsError) -> None:
            followers = self._in_flight.pop((name, key))
            done(outcome)
            if not isinstance(outcome, TopicsError):
                outcome = deduped(name, outcome.first_seq, outcome.last_seq)
            for follower in followers:
                follower(outcome)

        try:
            append(name, batch, finished)
        except TopicsError:
            self._in_flight.pop((name, key), None)
            raise

    def _seq_of(self, topic: Topic, key: str) -> int | None:
        """The job in the queue that has a key."""
        queue = find_queue(topic)
        seq = queue.keys.by_key.get(key) if queue is not None else None
        if queue is None or seq is None:
            return None
        self._core.expire(topic)
        return seq if queue.jobs.is_live(seq) else None


def _check(batch: Batch, key: str) -> None:
    if len(batch.records) != 1:
        raise InvalidRequestError("unique_key: give exactly one record", field="unique_key")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError("unique_key: the text cannot be written as UTF-8", field="unique_key") from error
    if not 0 < size <= MAX_UNIQUE_KEY_BYTES:
        raise InvalidRequestError(
            f"unique_key: takes {size} bytes, 1 to {MAX_UNIQUE_KEY_BYTES} are allowed", field="unique_key",
            bytes=size, max=MAX_UNIQUE_KEY_BYTES,
        )  # fmt: skip
