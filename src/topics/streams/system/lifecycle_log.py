"""Writes `__registry__`: what becomes of streams, in the order in which it does, some at a time.

An entry is written after the change it tells of is as safe as that was promised to be, so it never tells of something
that a crash takes back. A crash, a full disk or a time without this log may leave changes untold; they are found and
told by comparing the log with the streams there are (`streams.system.reconciling`), at every start and whenever more
happened than could be kept for later.
"""

import logging
from typing import Any

from topics.core.errors import InvalidRequestError, TopicsError
from topics.core.names import REGISTRY_STREAM, is_server_name
from topics.core.records import Record
from topics.engine.streams.state import is_retired
from topics.engine.topic import Topic
from topics.streams.early import Later
from topics.streams.service import Streams
from topics.streams.system.lifecycle_event import CONFIG, CONTRACT, EventName, event_of, record_of
from topics.streams.system.own_stream import OwnStream
from topics.streams.system.reconciling import Reconciler

BATCH_MAX = 500
PENDING_MAX = 100_000
"""Entries that wait to be written. Beyond it none are kept, and the streams are compared with the log instead."""
RETRY_S = 1.0

_log = logging.getLogger(__name__)


class LifecycleLog:
    def __init__(self, streams: Streams, later: Later) -> None:
        self._streams = streams
        self._core = streams.engine.core
        self._later = later
        self._stream = OwnStream(streams.engine, REGISTRY_STREAM, CONTRACT, CONFIG)
        self._pending: list[Record] = []
        self._due = False
        self._writing = False
        self._overflowed = False
        self._reconciler: Reconciler | None = None
        self.reconciled = False
        """Whether everything that happened before this start was told."""

    def start(self) -> None:
        """Begins to listen, and to write once the stream is there."""
        self._core.added.append(lambda topic: self._tell("created", topic))
        self._core.gone.append(self._gone)
        self._streams.engine.streams.told.append(self._tell)
        self._open()

    def _open(self) -> None:
        if not self._core.closed:
            self._stream.open(self._opened)

    def _opened(self, error: TopicsError | None) -> None:
        if error is not None:
            _log.warning("the registry of streams cannot be written yet", extra={"error": error.message})
            self._later(RETRY_S, self._open)
            return
        self._reconcile()
        self._flush()

    # What happens

    def _gone(self, topic: Topic) -> None:
        if not is_retired(topic):
            self._tell("deleted", topic)

    def _tell(self, event: EventName, topic: Topic) -> None:
        if is_server_name(topic.name):
            return
        if self._reconciler is not None:
            # What stands in the log about it so far is of no interest any more.
            self._reconciler.skip.add(topic.name)
        self._add(record_of(event_of(event, topic, self._core.wall())))

    def _add(self, record: Record) -> None:
        if len(self._pending) >= PENDING_MAX:
            self._overflowed = True
            return
        self._pending.append(record)
        if not self._due:
            # In a turn of its own: who makes streams by the thousand does not wait for what is told of them.
            self._due = True
            self._later(0, self._flush)

    # Writing

    def _flush(self) -> None:
        self._due = False
        if self._writing or not self._pending or self._stream.topic is None or self._core.closed:
            return
        batch = self._pending[:BATCH_MAX]
        self._writing = True
        self._stream.write(batch, lambda error: self._written(len(batch), error))

    def _written(self, count: int, error: TopicsError | None) -> None:
        self._writing = False
        if error is not None and not isinstance(error, InvalidRequestError):
            self._later(RETRY_S, self._flush)
            return
        if error is not None:
            # To try again would be in vain, and hold up everything behind it.
            _log.error("entries of the registry were refused", extra={"error": error.message, "entries": count})
        del self._pending[:count]
        if self._pending:
            self._later(0, self._flush)
        else:
            self._make_up()

    def _make_up(self) -> None:
        """Finds what was not kept, once everything that was is written."""
        if self._overflowed and not self._pending and self._reconciler is None:
            self._overflowed = False
            self._reconcile()

    def _reconcile(self) -> None:
        topic = self._stream.topic
        if self._reconciler is not None or topic is None or self._core.closed:
            return
        told = {record.tag for record in self._pending if record.tag is not None}
        self._reconciler = Reconciler(self._streams, topic, self._late, self._later, told, self._done)
        self._reconciler.begin()

    def _late(self, event: dict[str, Any]) -> None:
        self._add(record_of(event))

    def _done(self, error: TopicsError | None) -> None:
        self._reconciler = None
        if error is None:
            self.reconciled = True
            self._make_up()
        elif not self._core.closed:
            _log.warning("the registry could not be read; it is tried again", extra={"error": error.message})
            self._later(RETRY_S, self._reconcile)
