"""Batches that take too long to be looked at in one go: a portion each turn of the loop, and in between all others.

A batch of a hundred thousand entries takes its schema half a second. It is admitted in portions, and comes back once
all of them are through, with what is to be stored. Only then it is decided, as if it came now; should the stream have
got another schema meanwhile, it is looked at again. What comes for the same stream in the meantime waits behind it, so
that the order in which requests came stays the order of the log.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from topics.core.errors import TopicsError
from topics.core.records import Record
from topics.engine.core import EngineCore
from topics.engine.streams.description import Description
from topics.engine.topic import Topic
from topics.wire.drafts import Draft, Drafted

_DRAFTED_RECORDS = 4_000
"""So many take some milliseconds to encode."""


class Prepared(NamedTuple):
    """Records that were looked at: as they are to be stored, or why they are not."""

    description: Description
    records: Sequence[Record]
    refusal: TopicsError | None = None


Retry = Callable[[Prepared | None], None]
"""Tries again, with what was prepared; without, it was only its turn."""


class _Job:
    __slots__ = ("admitted", "description", "draft", "now_ms", "records", "retry", "topic")

    def __init__(
        self, topic: Topic, description: Description, records: Sequence[Record], now_ms: int, retry: Retry
    ) -> None:
        self.topic = topic
        self.description = description
        self.records = records
        self.now_ms = now_ms
        self.retry = retry
        self.admitted: list[Record] = []
        self.draft: Draft | None = None


class Slicer:
    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._jobs: deque[_Job] = deque()
        self._lines: dict[Topic, deque[Retry]] = {}
        """Those who came for a stream while a batch for it is looked at."""
        self._running = self._again = False

    def waits(self, topic: Topic, retry: Retry) -> bool:
        """Whether somebody is before them; then they are called when it is their turn."""
        line = self._lines.get(topic)
        if line is None:
            return False
        line.append(retry)
        return True

    def is_busy(self, topic: Topic) -> bool:
        """Whether somebody would have to wait."""
        return topic in self._lines

    def begin(self, topic: Topic, description: Description, records: Sequence[Record], retry: Retry) -> None:
        """Looks at a batch in portions, and calls back with the outcome."""
        self._lines.setdefault(topic, deque())
        self._jobs.append(_Job(topic, description, records, self._core.wall(), retry))
        self._core.defer(self._run)

    def _run(self) -> None:
        """A portion of one batch. Without a loop, `defer` calls at once: then one call does them all, one by one."""
        self._again = True
        if self._running:
            return
        self._running = True
        try:
            while self._again and self._jobs:
                self._again = False
                self._look(self._jobs.popleft())
                if self._jobs:
                    self._core.defer(self._run)
        finally:
            self._running = False

    def _look(self, job: _Job) -> None:
        begin = len(job.admitted)
        refusal: TopicsError | None = None
        try:
            job.admitted += job.description.admit_portion(job.records, begin, job.now_ms)
        except TopicsError as error:
            refusal = error
        if refusal is None and len(job.admitted) < len(job.records):
            self._jobs.append(job)
            return
        if refusal is None and len(job.admitted) > _DRAFTED_RECORDS and not self._draft(job):
            self._jobs.append(job)
            return
        records = job.admitted if job.draft is None else Drafted(job.admitted, job.draft)
        self._finish(job.topic, lambda: job.retry(Prepared(job.description, records, refusal)))

    def _draft(self, job: _Job) -> bool:
        """Encodes some of what was admitted, so that this is done as well when it is decided."""
        if job.draft is None:
            topic = job.topic
            job.draft = Draft(job.admitted, topic.staged_head + 1, max(self._core.wall(), topic.staged_ts), None)
        return job.draft.step()

    def _finish(self, topic: Topic, first: Callable[[], None]) -> None:
        """The batch goes on its way, and then those behind it, until one of them has to be looked at as well."""
        line = self._lines.pop(topic)
        first()
        while line:
            if topic in self._lines:
                self._lines[topic].extend(line)
                return
            line.popleft()(None)
